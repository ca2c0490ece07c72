//! What was looked up once and must not be looked up, or recorded, again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use trainprof_common::fileset::FilesetInfo;

use crate::{
    env::{
        mounts::{
            MountFacts, MountTable,
            overlay::{Layers, is_overlay},
        },
        process,
        symlinks::{below, real_directory},
    },
    record::{Record, fact::FilesetFact},
};

/// File sets that wait for a mount table to be read again; beyond that they stay as they are.
const MOST_UNSURE: usize = 1024;
/// Processes of a mount namespace that are tried for its table.
const MOST_TRIED: usize = 16;

/// Overlays that are looked into for one file set: a container sees a few, the host those of all containers.
const MOST_OVERLAYS: usize = 32;

/// Base of a path that is relative to the working directory (fcntl(2)).
const AT_FDCWD: i32 = -100;

/// File sets and mounts that the recording knows already.
#[derive(Default)]
pub struct Memo {
    filesets: BTreeSet<u32>,
    /// By number, device and point: a number is used again after an unmount.
    mounts: BTreeSet<(u32, u32, String)>,
    /// Mount tables by mount namespace (inode number of /proc/PID/ns/mnt).
    tables: BTreeMap<String, MountTable>,
    layers: Layers,
    /// Overlays by whose mounts files were opened, by namespace.
    opened: BTreeMap<String, BTreeSet<u32>>,
    /// Namespace of each process that was looked at.
    namespaces: BTreeMap<u32, String>,
    /// Used for processes that were gone before they could be looked at.
    last_namespace: Option<String>,
    /// File sets whose mount the tables did not surely tell.
    unsure: Vec<Unsure>,
}

/// A file set that may lie on a mount that came after its namespace's table was read.
struct Unsure {
    info: Box<FilesetInfo>,
    told: FilesetFact,
}

impl Memo {
    /// Reads a process's mounts while it is there.
    pub fn learn_process(&mut self, pid: u32) {
        let Some(namespace) = namespace_of(pid) else {
            return;
        };
        self.namespaces.insert(pid, namespace.clone());
        if !self.tables.contains_key(&namespace)
            && let Ok(table) = MountTable::read(pid)
        {
            self.tables.insert(namespace.clone(), table);
        }
        self.last_namespace = Some(namespace);
    }

    /// Whether a file set still has to be described; true once for each.
    pub fn new_fileset(&mut self, number: u32) -> bool {
        number != 0 && self.filesets.insert(number)
    }

    /// Describes a file set, and its mount when that is new.
    pub fn describe(&mut self, number: u32, info: &FilesetInfo, out: &mut Vec<Record>) {
        if !self.namespaces.contains_key(&info.tgid) {
            self.learn_process(info.tgid);
        }
        let (directory, mount, sure) = match info.from_text {
            0 => self.entry_place(info),
            _ => {
                let table = self.table(info.tgid);
                text_place(text_directory(info, table), table)
            }
        };
        let fact = fileset_fact(number, info, directory, mount.as_ref());
        if sure || self.unsure.len() >= MOST_UNSURE {
            self.tell_mount(mount, out);
        } else {
            self.unsure.push(Unsure {
                info: Box::new(*info),
                told: fact.clone(),
            });
        }
        out.push(Record::Fileset(fact));
    }

    /// Reads the mount tables again that did not tell the mount of a file set that is new, and describes those file sets once more
    /// where that tells more. Called once an interval: so often at most a namespace's table is read.
    pub fn look_again(&mut self, out: &mut Vec<Record>) {
        let unsure = std::mem::take(&mut self.unsure);
        let namespaces: BTreeSet<String> = unsure
            .iter()
            .filter_map(|one| self.namespace(one.info.tgid).cloned())
            .collect();
        let read: BTreeSet<String> = namespaces
            .into_iter()
            .filter(|namespace| self.read_again(namespace))
            .collect();
        for Unsure { info, told } in unsure {
            // The text of a path was made absolute while its process was there.
            let (directory, mount, _) = match info.from_text {
                0 => self.entry_place(&info),
                _ => text_place(told.directory.clone(), self.table(info.tgid)),
            };
            let fact = fileset_fact(told.number, &info, directory, mount.as_ref());
            self.tell_mount(mount, out);
            let fresh = self.namespace(info.tgid).is_some_and(|n| read.contains(n));
            if fresh && fact.directory.is_some() && fact != told {
                out.push(Record::Fileset(fact));
            }
        }
    }

    /// Reads the table of a namespace through a process that is still in it. False: there is none.
    fn read_again(&mut self, namespace: &str) -> bool {
        let inside = |pid: &u32| namespace_of(*pid).as_deref() == Some(namespace);
        let table = self
            .namespaces
            .iter()
            .rev()
            .filter(|(_, of)| *of == namespace)
            .map(|(pid, _)| *pid)
            .take(MOST_TRIED)
            .filter(inside)
            .find_map(|pid| MountTable::read(pid).ok());
        match table {
            Some(table) => {
                self.tables.insert(namespace.to_owned(), table);
                true
            }
            None => false,
        }
    }

    fn tell_mount(&mut self, mount: Option<MountFacts>, out: &mut Vec<Record>) {
        if let Some(mut mount) = mount {
            let dev = mount.dev_major << 20 | mount.dev_minor;
            let key = (mount.mnt_id, dev, mount.mount_point.clone());
            if self.mounts.insert(key) {
                mount.read_storage();
                out.push(Record::Mount(mount));
            }
        }
    }

    fn namespace(&self, pid: u32) -> Option<&String> {
        self.namespaces.get(&pid).or(self.last_namespace.as_ref())
    }

    fn table(&self, pid: u32) -> Option<&MountTable> {
        self.tables.get(self.namespace(pid)?)
    }

    /// The place of what the kernel's directory entries gave the names of.
    fn entry_place(&mut self, info: &FilesetInfo) -> Place {
        let Some(namespace) = self.namespace(info.tgid).cloned() else {
            return (None, None, false);
        };
        let (Some(table), Some(path)) = (self.tables.get(&namespace), path_in_fs(info)) else {
            return (None, None, false);
        };
        let dev = (info.dev >> 20, info.dev & 0xf_ffff);
        let at = |mount: &MountFacts| table.resolve(mount.mnt_id, &path);
        let by_dev = table
            .by_dev(dev.0, dev.1)
            .filter(|mount| at(mount).is_some())
            .max_by_key(|mount| mount.root.len());
        let numbered = table.by_mnt_id(info.mnt_id);
        let opened = self.opened.entry(namespace).or_default();
        // That number, and that file system.
        if let Some(mount) = numbered.filter(|mount| mount.dev() == dev) {
            if is_overlay(mount) {
                opened.insert(mount.mnt_id);
            }
            let directory = at(mount).or_else(|| at(by_dev?));
            return (directory, Some(mount.clone()), true);
        }
        // Known by its inode alone. A layer's is shown by an overlay, where the job opened files by that; and where it has no other way to it.
        let mut shown = |all: bool| {
            table
                .mounts()
                .iter()
                .filter(|mount| is_overlay(mount) && (all || opened.contains(&mount.mnt_id)))
                .take(MOST_OVERLAYS)
                .find_map(|overlay| {
                    let path = self.layers.shown(overlay, table, dev, &path)?;
                    Some((Some(path), Some(overlay.clone()), true))
                })
        };
        if let Some(place) = shown(false) {
            return place;
        }
        if let Some(mount) = by_dev {
            return (at(mount), Some(mount.clone()), false);
        }
        shown(true).unwrap_or_else(|| (numbered.and_then(at), numbered.cloned(), false))
    }
}

fn namespace_of(pid: u32) -> Option<String> {
    let link = fs::read_link(process::shared(pid, "ns/mnt")).ok()?;
    Some(link.display().to_string())
}

/// Where files are: the directory as the process sees it, its mount, and whether that is surely theirs.
type Place = (Option<String>, Option<MountFacts>, bool);

/// The place of a path's text, which fits some mount always.
fn text_place(directory: Option<String>, table: Option<&MountTable>) -> Place {
    let mount = table.zip(directory.as_deref());
    let mount = mount.and_then(|(table, path)| table.longest_prefix(path));
    (directory, mount.cloned(), false)
}

fn fileset_fact(
    number: u32,
    info: &FilesetInfo,
    directory: Option<String>,
    mount: Option<&MountFacts>,
) -> FilesetFact {
    FilesetFact {
        number,
        directory,
        extension: extension(info.ext),
        from_text: info.from_text != 0,
        mount_point: mount.map(|m| m.mount_point.clone()),
        fs_type: mount
            .map(|m| m.fs_type.clone())
            .or_else(|| fs_name(info.magic)),
    }
}

/// Path inside the file system: the names are stored from the directory upwards.
fn path_in_fs(info: &FilesetInfo) -> Option<String> {
    let used = info.path.get(..info.path_len as usize)?;
    let mut names: Vec<String> = used
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.reverse();
    let path = format!("/{}", names.join("/"));
    Some(if info.truncated != 0 {
        format!("/…{path}")
    } else {
        path
    })
}

/// Directory part of a path's text, made absolute while the process is there, and where its symbolic links lead.
fn text_directory(info: &FilesetInfo, table: Option<&MountTable>) -> Option<String> {
    let text = String::from_utf8_lossy(info.path.get(..info.path_len as usize)?).into_owned();
    let base = || {
        let link = match info.dfd {
            AT_FDCWD => "cwd".to_owned(),
            fd => format!("fd/{fd}"),
        };
        let read = |link: &str| fs::read_link(process::shared(info.tgid, link)).ok();
        let path = read(&link)?.display().to_string();
        let root = read("root").map(|root| root.display().to_string());
        // Outside of it there is no other way to say it.
        below(&path, root.as_deref().unwrap_or("/")).or(Some(path))
    };
    let path = if text.starts_with('/') {
        text
    } else {
        format!("{}/{text}", base()?)
    };
    // Even to look at a root directory may be to ask a server.
    let root_is_near =
        table.is_some_and(|table| table.longest_prefix("/").is_some_and(MountFacts::is_near));
    if root_is_near && let Some(real) = real_directory(info.tgid, &path) {
        return Some(real);
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

fn extension(packed: [u64; 2]) -> Option<String> {
    let bytes = packed.map(u64::to_le_bytes).concat();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Names of file systems whose mount is not in sight, by magic number (statfs(2)).
fn fs_name(magic: u64) -> Option<String> {
    let name = match magic {
        0x0102_1994 => "tmpfs",
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0x794c_7630 => "overlay",
        0x0bd0_0bd0 => "lustre",
        0x00c3_6400 => "ceph",
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use trainprof_common::fileset::PATH_BYTES;

    use super::*;

    fn info(path: &[u8]) -> FilesetInfo {
        let mut bytes = [0; PATH_BYTES];
        bytes[..path.len()].copy_from_slice(path);
        FilesetInfo {
            ext: [u64::from_le_bytes(*b"jpg\0\0\0\0\0"), 0],
            dev: 8 << 20 | 1,
            mnt_id: 30,
            from_text: 0,
            pad: 0,
            magic: 0xef53,
            tgid: 1,
            dfd: AT_FDCWD,
            path_len: path.len() as u32,
            truncated: 0,
            path: bytes,
        }
    }

    #[test]
    fn names_become_paths() {
        assert_eq!(
            path_in_fs(&info(b"train\0imagenet\0data\0")).as_deref(),
            Some("/data/imagenet/train")
        );
        assert_eq!(path_in_fs(&info(b"")).as_deref(), Some("/"));
        assert_eq!(extension(info(b"").ext).as_deref(), Some("jpg"));
        assert_eq!(extension([0; 2]), None);
        let long = [*b"safetens", *b"ors\0\0\0\0\0"].map(u64::from_le_bytes);
        assert_eq!(extension(long).as_deref(), Some("safetensors"));
    }

    /// One that knows the mounts of process 1.
    fn memo_of(table: MountTable) -> Memo {
        let mut memo = Memo::default();
        memo.namespaces.insert(1, "one".into());
        memo.tables.insert("one".into(), table);
        memo
    }

    #[test]
    fn mounts_are_put_in_front() {
        let table = MountTable::decode("30 1 8:1 /data /mnt/set rw - ext4 /dev/sda1 rw\n");
        let mut memo = memo_of(table);
        let mut directory = |info: &FilesetInfo| memo.entry_place(info).0;
        let there = info(b"train\0data\0");
        assert_eq!(directory(&there).as_deref(), Some("/mnt/set/train"));
        let mut unknown_mount = there;
        unknown_mount.mnt_id = 99;
        assert_eq!(directory(&unknown_mount).as_deref(), Some("/mnt/set/train"));
        assert_eq!(directory(&info(b"elsewhere\0")), None);
    }

    #[test]
    fn only_the_number_and_the_file_system_together_tell_a_mount() {
        let set = info(b"train\0data\0");
        let sure = |line: &str| memo_of(MountTable::decode(line)).entry_place(&set).2;
        assert!(sure("30 1 8:1 / /mnt rw - ext4 /dev/sda1 rw\n"));
        // The number was another mount's before that one was unmounted.
        assert!(!sure("30 1 8:2 / /old rw - ext4 /dev/sdb1 rw\n"));
        // Another mount of the same file system.
        assert!(!sure("31 1 8:1 / /mnt rw - ext4 /dev/sda1 rw\n"));
        assert!(!sure(""));
        let table = MountTable::decode("30 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        let text = Some("/mnt/train".to_owned());
        let (_, mount, sure) = text_place(text, Some(&table));
        assert_eq!(mount.map(|mount| mount.mnt_id), Some(30));
        assert!(!sure);
    }

    #[test]
    fn a_table_that_lacked_a_mount_is_read_again() {
        let pid = std::process::id();
        let now = MountTable::read(pid).expect("our own mounts");
        let root = now.longest_prefix("/").expect("a mount of /");
        let mut set = info(b"");
        set.tgid = pid;
        set.mnt_id = root.mnt_id;
        set.dev = root.dev_major << 20 | root.dev_minor;
        let mut memo = Memo::default();
        let namespace = namespace_of(pid).expect("a namespace");
        memo.namespaces.insert(pid, namespace.clone());
        memo.tables.insert(namespace, MountTable::default());
        let mut out = Vec::new();
        assert!(memo.new_fileset(7));
        memo.describe(7, &set, &mut out);
        let Some(Record::Fileset(told)) = out.pop() else {
            panic!("{out:?}");
        };
        assert_eq!((told.number, told.mount_point), (7, None));
        memo.look_again(&mut out);
        let [Record::Mount(mount), Record::Fileset(told)] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(mount.mount_point, "/");
        assert_eq!((told.number, told.mount_point.as_deref()), (7, Some("/")));
        memo.look_again(&mut out);
        assert_eq!(out.len(), 2, "once: {out:?}");
    }

    #[test]
    fn text_is_made_plain() {
        assert_eq!(
            text_directory(&info(b"/a/./b/../c/"), None).as_deref(),
            Some("/a/c")
        );
        assert_eq!(text_directory(&info(b"/"), None).as_deref(), Some("/"));
    }
}
