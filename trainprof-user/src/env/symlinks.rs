//! Where a directory really is that a process names by a path with symbolic links in it.
//!
//! Nothing here waits for a file system: only what the kernel has in its cache is walked (`RESOLVE_CACHED` of openat2(2), Linux
//! 5.12), which is the case for a path that a process has just used. On a server that does not answer that fails at once.

use std::{fs, os::fd::AsRawFd, path::PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use super::process;

/// What the kernel puts behind the path of a directory that was removed.
const REMOVED: &str = " (deleted)";

/// The directory that `path`, absolute as process `pid` sees it, leads to, as it sees that one. `None` where it leads to no
/// directory, the process may not be looked at, or the kernel would have to ask a file system for it.
pub fn real_directory(pid: u32, path: &str) -> Option<String> {
    let up = path.trim_end_matches(['/', '.']).len() < path.trim_end_matches('/').len();
    if up {
        // A path that ends in `..` may be asked about again, even when it is in the cache.
        return None;
    }
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(process::shared(pid, "root"), place, Mode::empty()).ok()?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    let directory = openat2(&root, path, place, Mode::empty(), how).ok()?;
    let found = path_of(&directory)?;
    let below = match path_of(&root)?.as_str() {
        "/" => found,
        root => {
            let below = found.strip_prefix(root)?;
            (below.is_empty() || below.starts_with('/'))
                .then(|| format!("/{}", below.trim_start_matches('/')))?
        }
    };
    (!below.ends_with(REMOVED)).then_some(below)
}

fn path_of(descriptor: &impl AsRawFd) -> Option<String> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let path = fs::read_link(link).ok()?.to_str()?.to_owned();
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_where_they_lead() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(at.join("real/inner")).expect("directories");
        symlink("real", at.join("link")).expect("a link");
        symlink(at.join("link"), at.join("absolute")).expect("a link");
        symlink("loop", at.join("loop")).expect("a link");
        let real = |path: &str| {
            let path = at.join(path);
            // What was just looked at is in the kernel's cache.
            let _ = fs::metadata(&path);
            let path = path.to_str().expect("text");
            real_directory(std::process::id(), path)
        };
        let expected = |path: &str| Some(at.join(path).to_str().expect("text").to_owned());
        assert_eq!(real("link/inner"), expected("real/inner"));
        assert_eq!(real("absolute/inner/"), expected("real/inner"));
        assert_eq!(real("link/inner/../inner"), expected("real/inner"));
        assert_eq!(real("real/inner"), expected("real/inner"));
        assert_eq!(real("loop"), None);
        assert_eq!(real("nowhere"), None);
        fs::write(at.join("real/file"), "").expect("a file");
        assert_eq!(real("link/file"), None, "not a directory");
        assert_eq!(real_directory(std::process::id(), "/proc/self/cwd"), None);
        assert_eq!(real_directory(u32::MAX, "/"), None, "no such process");
    }
}
