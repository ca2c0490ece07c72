//! What can go wrong while recording, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a recording, or a record, could not be written.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file could not be created, locked, written or synced.
    #[error("cannot {operation} the recording {path}: {source}; {cure}", path = path.display(), cure = cure(source))]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The recording.
        path: PathBuf,
        /// Bytes of the recording that are whole.
        offset: u64,
        /// What the kernel said.
        source: Arc<io::Error>,
    },
    /// Something other than a regular file stands at the path.
    #[error("cannot create the recording {path}: it is not a regular file; name a file", path = path.display())]
    NotRegular {
        /// The recording.
        path: PathBuf,
    },
    /// Another process is writing this recording.
    #[error("cannot create the recording {path}: another trainprof is writing to it; name another file", path = path.display())]
    InUse {
        /// The recording.
        path: PathBuf,
    },
    /// One record could not be stored; the recording goes on without it.
    #[error("cannot store a record in the recording {path}: {reason}; it was left out", path = path.display())]
    Record {
        /// The recording.
        path: PathBuf,
        /// What is wrong with the record.
        reason: String,
    },
}

/// What to do about an error of the file.
fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC) => "free some space, or name a file on another file system",
        Some(libc::EDQUOT) => {
            "free some of this user's quota, or name a file on another file system"
        }
        Some(libc::EFBIG) => "raise the file size limit (ulimit -f), or record for a shorter time",
        Some(libc::EIO) => {
            "the device or the file system failed (see dmesg): name a file on another file system"
        }
        Some(libc::ELOOP) => {
            "a recording is never written through a symbolic link: name the file itself"
        }
        Some(libc::ENOENT | libc::ENOTDIR) => "create its directory first, or name another file",
        Some(libc::EISDIR) => "name a file in that directory",
        Some(libc::EACCES | libc::EPERM) => {
            "name a file in a directory of your own, or remove the one of another user that stands there"
        }
        Some(libc::EROFS) => "name a file on a file system that can be written to",
        _ => "name another file",
    }
}
