//! Data files of known size in a folder that goes away with the test.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder for one test. Children are readable for everyone, for tests that give up privileges.
pub struct Data {
    root: TempDir,
}

impl Default for Data {
    fn default() -> Self {
        Self::new()
    }
}

impl Data {
    pub fn new() -> Self {
        let base = std::env::var_os("TRAINPROF_TEST_DIR")
            .map_or_else(|| crate::env::target().join("test-data"), PathBuf::from);
        fs::create_dir_all(&base).expect("create the folder of test data");
        let root = tempfile::Builder::new()
            .prefix("t-")
            .tempdir_in(base.canonicalize().expect("canonical test folder"))
            .expect("create a test folder");
        set_mode(root.path(), 0o755);
        Self { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// An empty folder.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("create a data folder");
        path
    }

    /// A folder of `count` files named 0, 1, … of `size(i)` bytes each, with `extension` (may be empty).
    pub fn files(
        &self,
        name: &str,
        count: usize,
        extension: &str,
        size: impl Fn(usize) -> usize,
    ) -> PathBuf {
        let folder = self.folder(name);
        for i in 0..count {
            let dot = if extension.is_empty() { "" } else { "." };
            let path = folder.join(format!("{i}{dot}{extension}"));
            fs::write(&path, noise(size(i), i as u64)).expect("write a data file");
        }
        // Dirty pages cannot be dropped from the page cache: tests of cold reads need clean ones.
        // SAFETY: sync has no preconditions.
        unsafe { libc::sync() };
        folder
    }

    /// Whether the folder is on a file system that keeps data on a device (and so has cold reads).
    pub fn on_device(&self) -> bool {
        !matches!(self.filesystem_magic(), 0x0102_1994 | 0x8584_58f6) // TMPFS_MAGIC, RAMFS_MAGIC
    }

    fn filesystem_magic(&self) -> i64 {
        let path = std::ffi::CString::new(self.root.path().as_os_str().as_encoded_bytes())
            .expect("a path without NUL");
        // SAFETY: statfs is plain data, for which zero is a value; both pointers live through the call.
        unsafe {
            let mut info: libc::statfs = std::mem::zeroed();
            assert_eq!(libc::statfs(path.as_ptr(), &mut info), 0, "statfs");
            info.f_type
        }
    }
}

/// Takes a file out of the page cache.
pub fn drop_cached(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path).expect("open a data file");
    file.sync_all().expect("sync a data file");
    // SAFETY: the descriptor is open through the call.
    let failed = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(failed, 0, "posix_fadvise");
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set permissions");
}

/// Bytes that do not compress, the same for the same seed (xorshift).
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..size)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
