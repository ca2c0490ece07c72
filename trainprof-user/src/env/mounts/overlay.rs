//! The layers of overlay mounts (overlayfs), as every container has them.
//!
//! Page faults and read-ahead are known by the inode that the bytes come from, which is a layer's: of another file system, at a
//! path that the process does not see. Documentation/filesystems/overlayfs.rst in the kernel.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Location, MountFacts, MountTable, locate, real, strip_dir};

/// The layers of overlays, by their options: looked for once. Their paths are those of our own mount namespace, which is the one that
/// containers are made in where we run on the host.
#[derive(Default)]
pub struct Layers(BTreeMap<String, Vec<Layer>>);

/// A directory of another file system that an overlay shows.
struct Layer {
    /// (major, minor) of the file system that it lies on.
    dev: (u32, u32),
    /// Its path there.
    path: String,
}

impl Layers {
    /// The path at which an overlay of `table` shows a directory of another file system.
    pub fn shown(
        &mut self,
        overlay: &MountFacts,
        table: &MountTable,
        dev: (u32, u32),
        path_in_fs: &str,
    ) -> Option<String> {
        if !self.0.contains_key(&overlay.options) {
            let layers = layers(overlay, &MountTable::own(), real);
            self.0.insert(overlay.options.clone(), layers);
        }
        let layers = self.0.get(&overlay.options)?.iter();
        layers.filter(|layer| layer.dev == dev).find_map(|layer| {
            let inside = strip_dir(path_in_fs, &layer.path)?;
            let inside = if inside.is_empty() { "/" } else { inside };
            table.resolve(overlay.mnt_id, inside)
        })
    }
}

/// The layers of an overlay that can be found.
fn layers(
    overlay: &MountFacts,
    own: &MountTable,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<Layer> {
    let below = below(overlay, own, real).into_iter().flatten();
    below
        .map(|(mount, path)| Layer {
            dev: mount.dev(),
            path,
        })
        .collect()
}

/// The mount that holds the files of an overlay: that of all layers; `None` where they lie on several file systems, or where one
/// cannot be found.
pub(super) fn holder<'a>(
    overlay: &MountFacts,
    own: &'a MountTable,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> Option<&'a MountFacts> {
    let below: Option<Vec<_>> = below(overlay, own, real).into_iter().collect();
    let below = below?;
    let (first, _) = below.first()?;
    below
        .iter()
        .all(|(mount, _)| mount.dev() == first.dev())
        .then_some(*first)
}

/// Whether a mount is an overlay.
pub fn is_overlay(mount: &MountFacts) -> bool {
    mount.fs_type == "overlay"
}

/// The layers of an overlay, the uppermost first: the mount that each lies on, and its path in that file system. `real` resolves
/// symbolic links (Docker's layers are some). `None`: it cannot be found.
fn below<'a>(
    overlay: &MountFacts,
    own: &'a MountTable,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> Vec<Option<(&'a MountFacts, String)>> {
    let found = |path: &String| {
        own.longest_prefix(path).filter(|mount| is_near(mount))?;
        let path = real(Path::new(path))?.to_str()?.to_owned();
        let mount = own.longest_prefix(&path).filter(|mount| is_near(mount))?;
        let inside = strip_dir(&path, &mount.mount_point)?;
        let path = match (mount.root.as_str(), inside) {
            ("/", "") => "/".to_owned(),
            ("/", inside) => inside.to_owned(),
            (root, inside) => format!("{root}{inside}"),
        };
        Some((mount, path))
    };
    paths(&overlay.options).iter().map(found).collect()
}

/// Whether a look at a file there cannot hang on a dead server.
fn is_near(mount: &MountFacts) -> bool {
    locate(&mount.fs_type, &mount.source) == Location::Local
}

/// The paths of the layers in an overlay's options, the uppermost first. (Where many layers had no room, some container runtimes
/// give paths relative to a folder that the options do not tell: these are found nowhere. So are those with a comma in them.)
fn paths(options: &str) -> Vec<String> {
    let of = |names: &'static [&'static str]| {
        options.split(',').filter_map(move |option| {
            names
                .iter()
                .find_map(|name| option.strip_prefix(name))
                .map(str::to_owned)
        })
    };
    of(&["upperdir="])
        .chain(of(&["lowerdir="]).flat_map(|list| split(&list)))
        .chain(of(&["lowerdir+=", "datadir+="]))
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
        let mut known = Layers::default();
        for overlay in job.mounts() {
            let options = overlay.options.clone();
            known.0.insert(options, layers(overlay, &own, real));
        }
        let mut shown = |id, dev, path| {
            let overlay = job.by_mnt_id(id).expect("an overlay");
            known.shown(overlay, &job, dev, path)
        };
        let mut at = |id, dev, path, expected: Option<&str>| {
            assert_eq!(shown(id, dev, path).as_deref(), expected, "{path}");
        };
        at(90, (8, 2), "/docker/B/diff/usr/lib", Some("/usr/lib"));
        at(90, (8, 2), "/docker/up/diff", Some("/"));
        // Beside a layer, and at the same path of another disk.
        at(90, (8, 2), "/docker/B/different", None);
        at(90, (8, 1), "/docker/B/diff/usr/lib", None);
        // What a bind mount shows of an overlay, and what it does not.
        at(91, (8, 1), "/up/opt/lib", Some("/venv/lib"));
        at(91, (8, 1), "/up/usr/lib", None);
        // Nothing at all is there.
        assert!(layers(&job.mounts()[0], &own, |_| None).is_empty());
    }

    #[test]
    fn one_disk_holds_an_overlay_or_none_is_told() {
        let own = MountTable::decode(OWN);
        let holds = |options: &str| {
            let line = format!("1 0 0:9 / /m rw - overlay o rw,{options}\n");
            let table = MountTable::decode(&line);
            holder(&table.mounts()[0], &own, real).map(MountFacts::dev)
        };
        let docker = "/var/lib/docker";
        let one = format!("lowerdir={docker}/l/A:{docker}/l/B,upperdir={docker}/up/diff");
        assert_eq!(holds(&one), Some((8, 2)));
        assert_eq!(holds("lowerdir=/a,upperdir=/b"), Some((8, 1)));
        // On two disks; on a server as well; where the options tell a part of the path.
        assert_eq!(
            holds(&format!("lowerdir=/a,upperdir={docker}/up/diff")),
            None
        );
        assert_eq!(holds("lowerdir=/nfs/layer,upperdir=/b"), None);
        assert_eq!(holds("lowerdir=l/A,upperdir=/b"), None);
        assert_eq!(holds("volatile"), None);
    }

    #[test]
    fn paths_of_layers_are_told_apart() {
        assert_eq!(
            paths("rw,lowerdir=/a\\:b:/c::/d,upperdir=/u,workdir=/w"),
            ["/u", "/a:b", "/c", "/d"]
        );
        assert_eq!(paths("ro,lowerdir+=/a,lowerdir+=/b"), ["/a", "/b"]);
        assert_eq!(paths("rw,lowerdir=l/A:l/B"), ["l/A", "l/B"]);
        assert_eq!(paths("rw,upperdir=/a:b"), ["/a:b"]);
    }
}
