//! Where a directory really is that a process names by a path with symbolic links in it.
//!
//! No file system is asked: only what the kernel has in its cache is walked (`RESOLVE_CACHED` of openat2(2), Linux
//! 5.12), which is the case for a path that a process has just used. On a server that does not answer that fails at once. The
//! process's root itself must not lie on one.

use std::{fs, os::fd::AsRawFd, path::PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use super::process;

/// What the kernel puts behind the path of a directory that was removed.
const REMOVED: &str = " (deleted)";

/// The directory that `path`, absolute as process `pid` sees it, leads to, as it sees that one. `None` where it leads to no
/// directory, the process may not be looked at, or the kernel would have to ask a file system for it.
pub fn real_directory(pid: u32, path: &str) -> Option<String> {
    let (path, up) = without_ups(path);
    if path.is_empty() {
        return None;
    }
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(process::shared(pid, "root"), place, Mode::empty()).ok()?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | ResolveFlags::NO_MAGICLINKS;
    let directory = openat2(&root, path, place, Mode::empty(), how).ok()?;
    let mut found = below(&path_of(&directory)?, &path_of(&root)?)?;
    // Links there (`/proc/self`) lead to whoever follows them.
    if found.ends_with(REMOVED) || found == "/proc" || found.starts_with("/proc/") {
        return None;
    }
    // What was found has no links in it.
    for _ in 0..up {
        found.truncate(found.rfind('/').unwrap_or(0));
    }
    if found.is_empty() {
        found.push('/');
    }
    Some(found)
}

/// A path that we see as a process sees it whose root directory is `root`; `None` where it is not below that.
pub fn below(path: &str, root: &str) -> Option<String> {
    if root == "/" {
        return Some(path.to_owned());
    }
    let below = path.strip_prefix(root)?;
    match below {
        "" => Some("/".to_owned()),
        _ => below.starts_with('/').then(|| below.to_owned()),
    }
}

/// A path without what it ends in of `.` and `..`, and how often it goes up there: the kernel may ask a file system again about a
/// path that ends so.
fn without_ups(path: &str) -> (&str, usize) {
    let (mut path, mut up) = (path, 0);
    loop {
        path = path.trim_end_matches('/');
        if let Some(before) = path.strip_suffix("/..") {
            (path, up) = (before, up + 1);
        } else if let Some(before) = path.strip_suffix("/.") {
            path = before;
        } else {
            return (path, up);
        }
    }
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
        // Up from where the link leads, not from where it is.
        assert_eq!(real("link/inner/.."), expected("real"));
        assert_eq!(real("absolute/./inner/./../"), expected("real"));
        assert_eq!(real("link/."), expected("real"));
        assert_eq!(real("loop"), None);
        assert_eq!(real("nowhere"), None);
        fs::write(at.join("real/file"), "").expect("a file");
        assert_eq!(real("link/file"), None, "not a directory");
        // The test's own process stands for the one that is watched.
        for own in [
            "/proc/self",
            "/proc/self/cwd",
            "/proc/self/task/",
            "/dev/fd",
        ] {
            assert_eq!(real_directory(std::process::id(), own), None, "{own}");
        }
        assert_eq!(real_directory(u32::MAX, "/tmp"), None, "no such process");
    }

    #[test]
    fn what_lies_below_a_root_is_told_from_there() {
        for (path, root, told) in [
            ("/a/b", "/", Some("/a/b")),
            ("/jail/a", "/jail", Some("/a")),
            ("/jail", "/jail", Some("/")),
            ("/jailer/a", "/jail", None),
            ("/a", "/jail", None),
        ] {
            assert_eq!(below(path, root).as_deref(), told, "{path} {root}");
        }
    }
}
