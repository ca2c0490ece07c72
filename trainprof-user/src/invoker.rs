//! Who asked for this run, where it is not who runs it: sudo(8).

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
};

/// Gives a file that root has just made to who called sudo, so that reading it takes no root: in a folder of that user, or one
/// that everybody may write to. Does nothing elsewhere, and where nobody called sudo.
///
/// # Errors
/// fchown(2), stat(2) of the folder: the file stays root's.
pub fn give(file: &File, path: &Path) -> io::Result<()> {
    // SAFETY: geteuid has no arguments and always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (true, Some(user), Some(group)) = (root, id("SUDO_UID"), id("SUDO_GID")) else {
        return Ok(());
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = folder.metadata()?;
    let shared = libc::S_ISVTX | libc::S_IWOTH;
    if folder.uid() != user && folder.mode() & shared != shared {
        return Ok(());
    }
    // SAFETY: fchown takes no pointers, and `file` keeps the descriptor open for the call.
    if unsafe { libc::fchown(file.as_raw_fd(), user, group) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
