//! Facts about the surroundings of a job: the machine, the control group, the mounts, the processes and
//! the frameworks that they have loaded.
//!
//! Each file has three parts: reading (`read…`, the only part that touches the system), decoding (pure
//! functions of text, tested by tables) and the facts themselves (plain structs, written into recordings).
//! A fact that could not be learnt is `None`, never 0 or an empty string. Nothing here knows what is slow.

pub mod cgroup;
pub mod clock;
pub mod frameworks;
pub mod host;
pub mod mounts;
pub mod process;
pub mod symlinks;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a fact without which the others make no sense could not be learnt.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A file of procfs or sysfs could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A file was read, and what must be in it is not.
    #[error("{} holds no {what}", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// A process could not be read.
    #[error("cannot read process {pid}")]
    Process {
        /// The process, as numbered in our own pid namespace.
        pid: u32,
        /// What `procfs` answered.
        source: procfs::ProcError,
    },
}

impl EnvError {
    /// Whether the error says that the process has ended (and not that it may not be read).
    ///
    /// Opening a file of an ended process gives ENOENT; reading one that was opened before gives ESRCH.
    pub fn is_gone(&self) -> bool {
        match self {
            EnvError::Read { source, .. } => is_gone(source),
            EnvError::Process { source, .. } => match source {
                procfs::ProcError::NotFound(_) => true,
                procfs::ProcError::Io(source, _) => is_gone(source),
                _ => false,
            },
            EnvError::Decode { .. } => false,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Reads at most `limit` bytes of a file that other programs may have filled; bytes that are not UTF-8 are
/// replaced. Procfs gives files a size of 0, so nothing is known of the length beforehand.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, EnvError> {
    let failed = |source| EnvError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file of one short value, without the white space around it; `None` where it is missing, unreadable or
/// empty.
pub(crate) fn read_value(path: impl AsRef<Path>) -> Option<String> {
    let text = read_text(path.as_ref(), 64 << 10).ok()?;
    non_empty(text.trim())
}

/// What operations on files, and pages added to the page cache, are called where they are missing.
pub const FILE_OPERATIONS: &str = "file operations";
pub const CACHE_HITS: &str = "cache hits";

/// What a member of the kernel's structures is called where it is missing, by its name in
/// [`trainprof_common::offsets::Offsets`].
pub fn kernel_member(name: &str) -> String {
    format!("kernel member {name}")
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
