//! The mounts of a process and the storage below them.
//!
//! The probes know a file by its device and its path inside the file system; people know it by its path as
//! the process sees it. A [`MountTable`] leads from one to the other.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{EnvError, process, read_text, read_value};

pub mod overlay;

/// Longer mount tables than this are cut (hosts with ten thousand containers' mounts stay below it).
const MOUNTINFO_LIMIT: u64 = 8 << 20;

/// One line of `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`), octal escapes resolved.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MountFacts {
    /// The mount's number, `mnt_id` in the kernel; used again after an unmount.
    pub mnt_id: u32,
    /// Major device number; 0 for file systems without a block device of their own.
    pub dev_major: u32,
    /// Minor device number; for major 0 the kernel hands them out at mount time.
    pub dev_minor: u32,
    /// The directory of the file system that is mounted here: `/`, or what a bind mount picked.
    pub root: String,
    /// Where it is mounted, as seen from the process's own root directory.
    pub mount_point: String,
    /// The file system type (`ext4`, `nfs4`, `fuse.s3fs`).
    pub fs_type: String,
    /// Device, export or share; file systems without one print `none` or their own name.
    pub source: String,
    /// Options of the mount, then those of the file system that are not among them, with commas between.
    pub options: String,
    /// What lies below; `None` until [`MountFacts::read_storage`] has looked, for file systems in memory, and for overlays whose
    /// layers lie on several disks or cannot be seen from here.
    pub storage: Option<StorageFacts>,
}

impl MountFacts {
    /// Fills [`MountFacts::storage`] of this mount from sysfs; network file systems are not touched.
    pub fn read_storage(&mut self) {
        let holder = overlay::is_overlay(self)
            .then(MountTable::own)
            .and_then(|own| overlay::holder(self, &own, real).cloned());
        self.storage = read_storage(Path::new("/sys"), holder.as_ref().unwrap_or(self));
    }

    /// Whether no server is asked for what lies on it.
    pub fn is_near(&self) -> bool {
        locate(&self.fs_type, &self.source) == Location::Local
    }

    /// (major, minor) of the file system.
    pub fn dev(&self) -> (u32, u32) {
        (self.dev_major, self.dev_minor)
    }
}

/// The device below a file system, or that it is reached over a network.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct StorageFacts {
    /// The whole disk's name (`nvme0n1`, `vda`, `dm-0`); `None` for a network file system.
    pub device: Option<String>,
    /// Whether the device says that it turns. Virtual disks often say so without one.
    pub rotational: Option<bool>,
    /// What the device calls itself (`/sys/block/DISK/device/model`).
    pub model: Option<String>,
    /// The I/O scheduler in use (`none`, `mq-deadline`, `bfq`).
    pub scheduler: Option<String>,
    /// How far the kernel reads ahead, in KiB, on this device or network mount.
    pub read_ahead_kb: Option<u64>,
    /// Whether bytes come over a network; `None` for a FUSE file system that is not known here.
    pub network: Option<bool>,
}

/// The mounts of one process, in the kernel's order.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct MountTable {
    mounts: Vec<MountFacts>,
}

impl MountTable {
    /// Reads `/proc/PID/mountinfo`, without the storage below (see [`MountFacts::read_storage`]).
    ///
    /// # Errors
    /// When the process has ended or may not be read.
    pub fn read(pid: u32) -> Result<MountTable, EnvError> {
        Ok(MountTable::decode(&read_text(
            &process::shared(pid, "mountinfo"),
            MOUNTINFO_LIMIT,
        )?))
    }

    /// That of our own namespace; empty where it cannot be read.
    pub fn own() -> MountTable {
        MountTable::read(std::process::id()).unwrap_or_default()
    }

    /// Decodes the text of a mountinfo file; lines of another form are left out.
    pub fn decode(mountinfo: &str) -> MountTable {
        MountTable {
            mounts: mountinfo.lines().filter_map(decode_line).collect(),
        }
    }

    /// All mounts, in the kernel's order: a later one hides an earlier one at the same mount point.
    pub fn mounts(&self) -> &[MountFacts] {
        &self.mounts
    }

    /// The mount of this number.
    pub fn by_mnt_id(&self, mnt_id: u32) -> Option<&MountFacts> {
        self.mounts.iter().find(|mount| mount.mnt_id == mnt_id)
    }

    /// Every mount of this file system: bind mounts share the device of what they show.
    pub fn by_dev(&self, major: u32, minor: u32) -> impl Iterator<Item = &MountFacts> {
        self.mounts
            .iter()
            .filter(move |mount| mount.dev() == (major, minor))
    }

    /// The path at which the process sees a file, from its mount and its path inside the file system (from the
    /// file system's own root, as the kernel's dentries give it).
    ///
    /// `None` for an unknown mount, and for a file that lies outside the part that is mounted there.
    pub fn resolve(&self, mnt_id: u32, path_in_fs: &str) -> Option<String> {
        let mount = self.by_mnt_id(mnt_id)?;
        let inside = strip_dir(path_in_fs, &mount.root)?;
        Some(match (inside, mount.mount_point.as_str()) {
            ("", point) => point.to_owned(),
            (inside, "/") => inside.to_owned(),
            (inside, point) => format!("{point}{inside}"),
        })
    }

    /// The mount that an absolute path lies on, by its text: symbolic links are not followed. Of several
    /// mounts at one point it is the last one, which hides the others.
    pub fn longest_prefix(&self, path: &str) -> Option<&MountFacts> {
        self.mounts
            .iter()
            .filter(|mount| strip_dir(path, &mount.mount_point).is_some())
            .max_by_key(|mount| mount.mount_point.len())
    }
}

/// What is left of `path` below `dir`: empty for the directory itself, else with its leading slash.
fn strip_dir<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    if dir == "/" {
        return path
            .starts_with('/')
            .then(|| if path == "/" { "" } else { path });
    }
    let rest = path.strip_prefix(dir)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn decode_line(line: &str) -> Option<MountFacts> {
    let mut fields = line.split(' ');
    let mnt_id = fields.next()?.parse().ok()?;
    let _parent = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let mount_options = fields.next()?;
    // Any number of optional fields, then a hyphen.
    fields.by_ref().find(|&field| field == "-")?;
    let fs_type = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let mut options: Vec<&str> = mount_options.split(',').collect();
    for option in fields.next().unwrap_or_default().split(',') {
        if !option.is_empty() && !options.contains(&option) {
            options.push(option);
        }
    }
    Some(MountFacts {
        mnt_id,
        dev_major: major.parse().ok()?,
        dev_minor: minor.parse().ok()?,
        root,
        mount_point,
        fs_type,
        source,
        options: unescape(&options.join(",")),
        storage: None,
    })
}

/// Resolves the octal escapes (`\040` for a space) with which the kernel protects its separators
/// (`mangle_path` in fs/seq_file.c). An incomplete escape stays as it is.
fn unescape(field: &str) -> String {
    if !field.contains('\\') {
        return field.to_owned();
    }
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at..] {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                at += 4;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a file system's type says of where its bytes are.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Location {
    /// Over a network.
    Network,
    /// Behind a user-space server that could be either.
    Unknown,
    /// On a block device, in memory or on another file system: the device number tells.
    Local,
}

fn locate(fs_type: &str, source: &str) -> Location {
    const NETWORK: [&str; 20] = [
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "lustre",
        "ceph",
        "gpfs",
        "beegfs",
        "9p",
        "virtiofs",
        "afs",
        "orangefs",
        "ocfs2",
        "gfs2",
        "wekafs",
        "panfs",
        "glusterfs",
        "ncpfs",
        "coda",
    ];
    // Servers that are clients of a remote store and nothing else.
    const NETWORK_FUSE: [&str; 18] = [
        "s3fs",
        "gcsfuse",
        "goofys",
        "mountpoint-s3",
        "mount-s3",
        "geesefs",
        "rclone",
        "juicefs",
        "sshfs",
        "glusterfs",
        "ceph-fuse",
        "ceph",
        "blobfuse",
        "blobfuse2",
        "alluxio-fuse",
        "cvmfs2",
        "moosefs",
        "seaweedfs",
    ];
    if NETWORK.contains(&fs_type) {
        return Location::Network;
    }
    let Some(subtype) = fs_type.strip_prefix("fuse") else {
        return Location::Local;
    };
    match subtype.strip_prefix('.') {
        Some(name) if NETWORK_FUSE.contains(&name.to_ascii_lowercase().as_str()) => {
            Location::Network
        }
        // Servers that set no subtype name themselves as the source.
        None if subtype.is_empty()
            && NETWORK_FUSE.contains(&source.to_ascii_lowercase().as_str()) =>
        {
            Location::Network
        }
        None if subtype == "blk" => Location::Local,
        _ => Location::Unknown,
    }
}

/// A path without symbolic links; `None` where nothing is.
fn real(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

fn read_storage(sys: &Path, mount: &MountFacts) -> Option<StorageFacts> {
    let read_ahead = |(major, minor): (u32, u32)| {
        read_value(sys.join(format!("class/bdi/{major}:{minor}/read_ahead_kb")))?
            .parse()
            .ok()
    };
    let remote = |network| {
        Some(StorageFacts {
            device: None,
            rotational: None,
            model: None,
            scheduler: None,
            read_ahead_kb: read_ahead(mount.dev()),
            network,
        })
    };
    match locate(&mount.fs_type, &mount.source) {
        Location::Network => return remote(Some(true)),
        Location::Unknown => return remote(None),
        Location::Local => {}
    }
    let disk = disk_of(sys, mount)?;
    let name = disk.file_name()?.to_string_lossy().into_owned();
    let file = |path: &str| read_value(disk.join(path));
    Some(StorageFacts {
        rotational: file("queue/rotational").and_then(|text| decode_flag(&text)),
        model: file("device/model"),
        scheduler: file("queue/scheduler").and_then(|text| decode_scheduler(&text)),
        // Each file system on a disk shares the disk's setting; btrfs and the like have one of their own.
        read_ahead_kb: read_ahead(mount.dev())
            .or_else(|| file("queue/read_ahead_kb")?.parse().ok()),
        network: Some(is_network_disk(&name)),
        device: Some(name),
    })
}

/// The sysfs directory of the whole disk below a mount.
fn disk_of(sys: &Path, mount: &MountFacts) -> Option<PathBuf> {
    // btrfs and others with several devices have a device number without a device; the source names one.
    let link = match mount.dev_major {
        0 => sys
            .join("class/block")
            .join(mount.source.strip_prefix("/dev/")?),
        major => sys.join(format!("dev/block/{major}:{}", mount.dev_minor)),
    };
    let device = link.canonicalize().ok()?;
    // A partition is a directory inside its disk's.
    if device.join("partition").exists() {
        return device.parent().map(Path::to_owned);
    }
    Some(device)
}

fn decode_flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The scheduler in brackets; device-mapper devices print `none` alone.
fn decode_scheduler(text: &str) -> Option<String> {
    super::host::decode_selected(text).or_else(|| (text == "none").then(|| text.to_owned()))
}

/// Ceph's and the network block device's disks.
fn is_network_disk(name: &str) -> bool {
    ["rbd", "nbd", "drbd"].iter().any(|kind| {
        name.strip_prefix(kind)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests;
