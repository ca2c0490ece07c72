//! Creates the file of a recording: private, never through a link, never under another recorder.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use super::WriteError;
use crate::invoker;

/// A recording names paths and processes of a whole host: its owner's business only.
const MODE: u32 = 0o600;

/// Opens `path` for writing, empty, mode 0600 and locked.
pub(super) fn recording_file(path: &Path) -> Result<File, WriteError> {
    let failed = |operation| {
        move |source| WriteError::Io {
            operation,
            path: path.to_owned(),
            offset: 0,
            source: Arc::new(source),
        }
    };
    // Truncated below and not here, once it is known to be ours to truncate. O_NONBLOCK has no effect
    // on a regular file, and keeps a FIFO that nobody reads from blocking the open (open(2)).
    let mut options = OpenOptions::new();
    options
        .write(true)
        .truncate(false)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    if let Ok(new) = options.clone().create_new(true).open(path) {
        // A file system may know no owners.
        let _ = invoker::give(&new, path);
    }
    let file = options
        .create(true)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // What open(2) says of a FIFO without a reader, and of a socket.
            Some(libc::ENXIO) => WriteError::NotRegular {
                path: path.to_owned(),
            },
            _ => failed("create")(error),
        })?;
    let is_file = file.metadata().map_err(failed("create"))?.is_file();
    if !is_file {
        return Err(WriteError::NotRegular {
            path: path.to_owned(),
        });
    }
    if !lock(&file).map_err(failed("lock"))? {
        return Err(WriteError::InUse {
            path: path.to_owned(),
        });
    }
    file.set_permissions(Permissions::from_mode(MODE))
        .map_err(failed("set the mode of"))?;
    file.set_len(0).map_err(failed("truncate"))?;
    Ok(file)
}

/// Takes the file's lock; false when another open file description has it.
fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes no pointers, and `file` keeps the descriptor open for the call.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EWOULDBLOCK) => Ok(false),
        // A file system without locks (some network ones) still takes a recording.
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(true),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
    }

    #[test]
    fn an_existing_file_is_emptied_and_made_private() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("rec");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("chmod");
        let file = recording_file(&path).expect("created");
        assert_eq!(file.metadata().expect("stat").len(), 0);
        assert_eq!(mode(&path), MODE);
    }

    #[test]
    fn a_new_file_is_private_whatever_the_umask() {
        for umask in [0o000, 0o022, 0o777] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let path = dir.path().join("rec");
            let created = path.clone();
            thread::spawn(move || {
                // The umask is the process's until its thread unshares it.
                // SAFETY: neither call takes a pointer.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
                // SAFETY: as above.
                unsafe { libc::umask(umask) };
                recording_file(&created).expect("created");
            })
            .join()
            .expect("see above");
            assert_eq!(mode(&path), MODE, "umask {umask:o}");
        }
    }

    #[test]
    fn refuses_what_is_no_file_of_its_own() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("target"), "kept").expect("written");
        symlink(at("target"), at("link")).expect("linked");
        symlink(at("nowhere"), at("dangling")).expect("linked");
        let fifo = CString::new(at("fifo").as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: `fifo` is a NUL-terminated string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        let _socket = UnixListener::bind(at("socket")).expect("bound");
        let cases = [
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("fifo", "not a regular file"),
            ("socket", "not a regular file"),
            (".", "name a file in that directory"),
            ("missing/rec", "create its directory first"),
            ("target/rec", "create its directory first"),
        ];
        for (name, expected) in cases {
            let path = at(name);
            let message = recording_file(&path).expect_err(name).to_string();
            assert!(message.contains(expected), "{name}: {message}");
            assert!(message.contains("cannot create the recording"), "{message}");
            assert!(message.contains(&path.display().to_string()), "{message}");
        }
        assert_eq!(fs::read(at("target")).expect("readable"), b"kept");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn devices_are_refused() {
        let message = recording_file(Path::new("/dev/null")).expect_err("a device");
        assert!(matches!(message, WriteError::NotRegular { .. }));
    }

    #[test]
    fn a_file_that_is_being_recorded_to_is_left_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("rec");
        let first = recording_file(&path).expect("created");
        first.set_len(10).expect("extended");
        let second = recording_file(&path);
        assert!(matches!(second, Err(WriteError::InUse { .. })));
        assert_eq!(first.metadata().expect("stat").len(), 10);
        drop(first);
        recording_file(&path).expect("free again");
    }
}
