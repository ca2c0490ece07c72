//! File sets: files of one directory with one extension, the unit that operations are attributed to.

/// Bytes of path kept in a [`FilesetInfo`].
pub const PATH_BYTES: usize = 1024;
/// `dev` of a key made from the text of a path (the call failed, or there is no descriptor).
pub const TEXT_DEV: u32 = u32::MAX;
/// The file set of everything that has none: number 0.
pub const NO_FILESET: u32 = 0;

/// Identity of a file set in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FilesetKey {
    /// Inode number of the directory; for [`TEXT_DEV`] a hash of the directory's text and its base.
    pub dir: u64,
    /// Extension: up to 8 bytes after the last dot, zero-filled, first byte lowest. 0: none.
    pub ext: u64,
    /// Kernel-internal device number of the file system (`s_dev`: major << 20 | minor).
    pub dev: u32,
    /// Mount id as in /proc/PID/mountinfo.
    pub mnt_id: u32,
}
crate::wire!(FilesetKey, 24);

/// What is known of a file set; written once, when its first file is seen.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FilesetInfo {
    pub key: FilesetKey,
    /// Magic number of the file system (statfs(2)).
    pub magic: u64,
    /// Process that was seen first: its mount namespace resolves `mnt_id`, its cwd a relative path.
    pub tgid: u32,
    /// Base of a relative text path: a descriptor, or AT_FDCWD.
    pub dfd: i32,
    /// Bytes used in `path`.
    pub path_len: u32,
    /// 1: the path was longer than what is kept.
    pub truncated: u32,
    /// From a descriptor: names from the directory up to the file system's root, each ended by a NUL.
    /// From text: the directory part as the program gave it.
    pub path: [u8; PATH_BYTES],
}
crate::wire!(FilesetInfo, 24 + 24 + PATH_BYTES);
