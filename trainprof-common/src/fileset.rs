//! File sets: files of one directory with one extension, the unit that operations are attributed to.

/// Bytes of path kept in a [`FilesetInfo`].
pub const PATH_BYTES: usize = 1024;
/// The file set of everything that has none: number 0.
pub const NO_FILESET: u32 = 0;
/// Longest extension that is told, in bytes; what is longer counts as none.
pub const EXT_BYTES: usize = 15;

/// Identity of a file set in the kernel: addresses, so that it takes no look-up to build one.
///
/// A directory whose entry was dropped from the kernel's cache and read again has another key and the same
/// path; user space puts such sets together. All three addresses used again for another directory at once is
/// not reckoned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct FilesetKey {
    /// Address of the directory's `struct dentry`; for a path given as text a hash of its directory part and
    /// its base.
    pub dir: u64,
    /// Address of the directory's `struct inode`; 0 for text.
    pub inode: u64,
    /// Address of the `struct vfsmount`; 0 when it is not known.
    pub mount: u64,
    /// Extension: up to [`EXT_BYTES`] bytes after the last dot, zero-filled, first byte lowest. 0: none.
    pub ext: [u64; 2],
}
crate::wire!(FilesetKey, 40);

/// What every file of a file set has in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FilesetRef {
    pub number: u32,
    /// Kernel-internal device number of the file system (`s_dev`: major << 20 | minor).
    pub dev: u32,
    /// [`crate::op::Class`] number of its regular files, or of the directory itself.
    pub class: u32,
    pub pad: u32,
}
crate::wire!(FilesetRef, 16);

/// What a file set is; written once, when its first file is seen.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FilesetInfo {
    /// As in [`FilesetKey`].
    pub ext: [u64; 2],
    /// Magic number of the file system (statfs(2)).
    pub magic: u64,
    /// As in [`FilesetRef`].
    pub dev: u32,
    /// Mount id as in /proc/PID/mountinfo; 0 when it is not known.
    pub mnt_id: u32,
    /// Process that was seen first: its mount namespace resolves `mnt_id`, its cwd a relative path.
    pub tgid: u32,
    /// Base of a relative text path: a descriptor, or AT_FDCWD.
    pub dfd: i32,
    /// 1: from the text of a path that left no descriptor behind.
    pub from_text: u32,
    /// Bytes used in `path`.
    pub path_len: u32,
    /// 1: the path was longer than what is kept.
    pub truncated: u32,
    pub pad: u32,
    /// From a descriptor: names from the directory up to the file system's root, each ended by a NUL.
    /// From text: the directory part as the program gave it.
    pub path: [u8; PATH_BYTES],
}
crate::wire!(FilesetInfo, 16 + 8 + 16 + 16 + PATH_BYTES);
