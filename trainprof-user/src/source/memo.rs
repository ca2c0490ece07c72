//! What was looked up once and must not be looked up, or recorded, again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use trainprof_common::fileset::FilesetInfo;

use crate::{
    env::mounts::{MountFacts, MountTable},
    record::{Record, fact::FilesetFact},
};

/// Base of a path that is relative to the working directory (fcntl(2)).
const AT_FDCWD: i32 = -100;

/// File sets and mounts that the recording knows already.
#[derive(Default)]
pub struct Memo {
    filesets: BTreeSet<u32>,
    mounts: BTreeSet<(u32, u32)>,
    /// Mount tables by mount namespace (inode number of /proc/PID/ns/mnt).
    tables: BTreeMap<String, MountTable>,
    /// Namespace of each process that was looked at.
    namespaces: BTreeMap<u32, String>,
    /// Used for processes that were gone before they could be looked at.
    last_namespace: Option<String>,
}

impl Memo {
    /// Reads a process's mounts while it is there.
    pub fn learn_process(&mut self, pid: u32) {
        let Some(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt"))
            .ok()
            .map(|l| l.display().to_string())
        else {
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
        let (fact, mount) = {
            let table = self.table(info.tgid);
            let from_text = info.from_text != 0;
            let directory = if from_text {
                text_directory(info)
            } else {
                entry_directory(info, table)
            };
            let mount = match (from_text, table) {
                (_, None) => None,
                (true, Some(table)) => directory.as_deref().and_then(|d| table.longest_prefix(d)),
                (false, Some(table)) => {
                    table.by_mnt_id(info.mnt_id).or_else(|| by_dev(table, info))
                }
            }
            .cloned();
            let fact = FilesetFact {
                number,
                directory,
                extension: extension(info.ext),
                from_text,
                mount_point: mount.as_ref().map(|m| m.mount_point.clone()),
                fs_type: mount
                    .as_ref()
                    .map(|m| m.fs_type.clone())
                    .or_else(|| fs_name(info.magic)),
            };
            (fact, mount)
        };
        if let Some(mut mount) = mount
            && self
                .mounts
                .insert((mount.mnt_id, mount.dev_major << 20 | mount.dev_minor))
        {
            mount.read_storage();
            out.push(Record::Mount(mount));
        }
        out.push(Record::Fileset(fact));
    }

    fn table(&self, pid: u32) -> Option<&MountTable> {
        let namespace = self.namespaces.get(&pid).or(self.last_namespace.as_ref())?;
        self.tables.get(namespace)
    }
}

fn by_dev<'a>(table: &'a MountTable, info: &FilesetInfo) -> Option<&'a MountFacts> {
    let path = path_in_fs(info)?;
    table
        .by_dev(info.dev >> 20, info.dev & 0xf_ffff)
        .filter(|mount| table.resolve(mount.mnt_id, &path).is_some())
        .max_by_key(|mount| mount.root.len())
}

/// The directory as the process sees it, from the names that the kernel's directory entries gave.
fn entry_directory(info: &FilesetInfo, table: Option<&MountTable>) -> Option<String> {
    let path = path_in_fs(info)?;
    let table = table?;
    table
        .resolve(info.mnt_id, &path)
        .or_else(|| by_dev(table, info).and_then(|mount| table.resolve(mount.mnt_id, &path)))
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

/// Directory part of a path's text, made absolute while the process is there.
fn text_directory(info: &FilesetInfo) -> Option<String> {
    let text = String::from_utf8_lossy(info.path.get(..info.path_len as usize)?).into_owned();
    let base = || {
        let link = match info.dfd {
            AT_FDCWD => format!("/proc/{}/cwd", info.tgid),
            fd => format!("/proc/{}/fd/{fd}", info.tgid),
        };
        fs::read_link(link).ok().map(|p| p.display().to_string())
    };
    let path = if text.starts_with('/') {
        text
    } else {
        format!("{}/{text}", base()?)
    };
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

fn extension(packed: u64) -> Option<String> {
    let bytes = packed.to_le_bytes();
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
            ext: u64::from_le_bytes(*b"jpg\0\0\0\0\0"),
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
        assert_eq!(extension(0), None);
    }

    #[test]
    fn mounts_are_put_in_front() {
        let table = MountTable::decode("30 1 8:1 /data /mnt/set rw - ext4 /dev/sda1 rw\n");
        let there = info(b"train\0data\0");
        assert_eq!(
            entry_directory(&there, Some(&table)).as_deref(),
            Some("/mnt/set/train")
        );
        let mut unknown_mount = there;
        unknown_mount.mnt_id = 99;
        assert_eq!(
            entry_directory(&unknown_mount, Some(&table)).as_deref(),
            Some("/mnt/set/train")
        );
        assert_eq!(entry_directory(&info(b"elsewhere\0"), Some(&table)), None);
    }

    #[test]
    fn text_is_made_plain() {
        assert_eq!(
            text_directory(&info(b"/a/./b/../c/")).as_deref(),
            Some("/a/c")
        );
        assert_eq!(text_directory(&info(b"/")).as_deref(), Some("/"));
    }
}
