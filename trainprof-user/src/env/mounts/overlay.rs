//! The layers of overlay mounts (overlayfs), as every container has them.
//!
//! Page faults and read-ahead are known by the inode that the bytes come from, which is a layer's: of another file system, at a
//! path that the process does not see. Documentation/filesystems/overlayfs.rst in the kernel.

use std::path::{Path, PathBuf};

use super::{Location, MountFacts, MountTable, locate, strip_dir};

/// The directories of other file systems that the overlays of a mount namespace show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layers(Vec<Layer>);

#[derive(Clone, Debug, PartialEq)]
struct Layer {
    /// (major, minor) of the file system that it lies on.
    dev: (u32, u32),
    /// Its path there.
    path: String,
    /// The overlay's mount.
    mnt_id: u32,
}

impl Layers {
    /// Those of `table`'s overlays, whose paths are `own`'s: that of the namespace that they were mounted in, which is the host's
    /// for containers. `real` resolves symbolic links (Docker's layers are some); layers that it does not find are left out.
    pub fn of(
        table: &MountTable,
        own: &MountTable,
        real: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Layers {
        let overlays = table.mounts().iter().filter(|mount| is_overlay(mount));
        Layers(
            overlays
                .flat_map(|overlay| {
                    let below = below(overlay, own, &real);
                    below.into_iter().map(|(mount, path)| Layer {
                        dev: mount.dev(),
                        path,
                        mnt_id: overlay.mnt_id,
                    })
                })
                .collect(),
        )
    }

    /// The overlay that shows a directory, and the path at which it does.
    pub fn shown<'a>(
        &self,
        table: &'a MountTable,
        dev: (u32, u32),
        path_in_fs: &str,
    ) -> Option<(&'a MountFacts, String)> {
        self.0
            .iter()
            .filter(|layer| layer.dev == dev)
            .find_map(|layer| {
                let inside = strip_dir(path_in_fs, &layer.path)?;
                let inside = if inside.is_empty() { "/" } else { inside };
                let path = table.resolve(layer.mnt_id, inside)?;
                Some((table.by_mnt_id(layer.mnt_id)?, path))
            })
    }
}

/// The mount that holds the files of an overlay: that of all layers; `None` where they lie on several file systems, or where `own`
/// does not have them.
pub(super) fn holder<'a>(
    overlay: &MountFacts,
    own: &'a MountTable,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> Option<&'a MountFacts> {
    let below = below(overlay, own, real);
    let (first, _) = below.first()?;
    below
        .iter()
        .all(|(mount, _)| mount.dev() == first.dev())
        .then_some(*first)
}

pub(super) fn is_overlay(mount: &MountFacts) -> bool {
    mount.fs_type == "overlay"
}

/// The layers of an overlay, the uppermost first: the mount that each lies on, and its path in that file system.
fn below<'a>(
    overlay: &MountFacts,
    own: &'a MountTable,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<(&'a MountFacts, String)> {
    paths(&overlay.options)
        .iter()
        .filter(|path| own.longest_prefix(path).is_some_and(is_near))
        .filter_map(|path| {
            let path = real(Path::new(path))?.to_str()?.to_owned();
            let mount = own.longest_prefix(&path).filter(|mount| is_near(mount))?;
            let inside = strip_dir(&path, &mount.mount_point)?;
            let path = match (mount.root.as_str(), inside) {
                ("/", "") => "/".to_owned(),
                ("/", inside) => inside.to_owned(),
                (root, inside) => format!("{root}{inside}"),
            };
            Some((mount, path))
        })
        .collect()
}

/// Whether a look at a file there cannot hang on a dead server.
fn is_near(mount: &MountFacts) -> bool {
    locate(&mount.fs_type, &mount.source) == Location::Local
}

/// The absolute paths of the layers in an overlay's options, the uppermost first. (Where many layers had no room, some
/// container runtimes give paths relative to a folder that the options do not tell.)
fn paths(options: &str) -> Vec<String> {
    let all = |name: &str| {
        options
            .split(',')
            .filter_map(move |option| option.strip_prefix(name))
            .flat_map(split)
            .collect::<Vec<_>>()
    };
    ["upperdir=", "lowerdir=", "lowerdir+=", "datadir+="]
        .into_iter()
        .flat_map(all)
        .filter(|path| path.starts_with('/'))
        .collect()
}

/// Splits at colons; those of a path have a backslash in front.
fn split(list: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut chars = list.chars();
    while let (Some(c), Some(last)) = (chars.next(), out.last_mut()) {
        match c {
            '\\' => last.extend(chars.next()),
            ':' => out.push(String::new()),
            c => last.push(c),
        }
    }
    out.retain(|path| !path.is_empty());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                       21 20 8:2 /docker /var/lib/docker rw - ext4 /dev/sda2 rw\n\
                       22 20 0:50 / /nfs rw - nfs4 server:/ rw\n";
    const JOB: &str = "90 1 0:60 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/l/A:/var/lib/docker/l/B,\
                       upperdir=/var/lib/docker/up/diff,workdir=/var/lib/docker/up/work\n\
                       91 90 0:60 /opt /venv rw - overlay overlay rw,lowerdir=l/A:/nfs/layer,upperdir=/up\n";

    fn real(path: &Path) -> Option<PathBuf> {
        let link = path.strip_prefix("/var/lib/docker/l").ok();
        Some(match link {
            Some(name) => Path::new("/var/lib/docker")
                .join(name.to_str()?)
                .join("diff"),
            None => path.to_owned(),
        })
    }

    #[test]
    fn a_layers_file_is_where_the_overlay_shows_it() {
        let (own, job) = (MountTable::decode(OWN), MountTable::decode(JOB));
        let layers = Layers::of(&job, &own, real);
        let shown = |dev, path| {
            let (mount, path) = layers.shown(&job, dev, path)?;
            Some((mount.mnt_id, path))
        };
        let at = |id, path: &str| Some((id, path.to_owned()));
        assert_eq!(shown((8, 2), "/docker/B/diff/usr/lib"), at(90, "/usr/lib"));
        assert_eq!(shown((8, 2), "/docker/up/diff"), at(90, "/"));
        // Beside a layer, and at the same path of another disk.
        assert_eq!(shown((8, 2), "/docker/B/different"), None);
        assert_eq!(shown((8, 1), "/docker/B/diff/usr/lib"), None);
        // What a bind mount shows of an overlay, and what it does not.
        assert_eq!(shown((8, 1), "/up/opt/lib"), at(91, "/venv/lib"));
        assert_eq!(shown((8, 1), "/up/usr/lib"), None);
        // Nothing at all is there.
        assert_eq!(Layers::of(&job, &own, |_| None), Layers::default());
    }

    #[test]
    fn one_disk_holds_an_overlay_or_none_is_told() {
        let (own, job) = (MountTable::decode(OWN), MountTable::decode(JOB));
        let holds = |id| {
            let overlay = job.by_mnt_id(id).expect("an overlay");
            holder(overlay, &own, real).map(|mount| mount.dev())
        };
        assert_eq!(holds(90), Some((8, 2)));
        // Paths of servers and relative ones are not looked at.
        assert_eq!(holds(91), Some((8, 1)));
        let mixed = MountTable::decode(
            "1 0 0:9 / /m rw - overlay o rw,lowerdir=/a,upperdir=/var/lib/docker/b\n",
        );
        assert_eq!(holder(&mixed.mounts()[0], &own, real), None);
    }

    #[test]
    fn paths_of_layers_are_told_apart() {
        assert_eq!(
            paths("rw,lowerdir=/a\\:b:/c::/d,upperdir=/u,workdir=/w"),
            ["/u", "/a:b", "/c", "/d"]
        );
        assert_eq!(paths("ro,lowerdir+=/a,lowerdir+=/b"), ["/a", "/b"]);
        assert_eq!(paths("rw,lowerdir=l/A:l/B"), [""; 0]);
    }
}
