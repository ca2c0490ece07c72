//! What kind of wait a wait is, from the system call that blocked and the class of its object.

use trainprof_common::{
    arch,
    op::Class,
    thread::{NR_FAULT, NR_FOREIGN, NR_PREEMPTED, NR_STOPPED, NR_UNSEEN, NR_URING_WORKER},
};

use super::threads::WaitId;

/// What a thread waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// A file's bytes or names.
    File,
    Pipe,
    Socket,
    /// A lock or a condition in memory.
    Futex,
    /// Any of several descriptors.
    Poll,
    Sleep,
    /// A page fault.
    Fault,
    /// The end of a child.
    Child,
    Device,
    /// Asynchronous reads and writes of files: io_uring, libaio.
    Uring,
    /// A system call that is none of the above.
    Other,
    /// Stopped by a signal, a tracer or a freezer.
    Stopped,
    /// A wait that had begun before it could be seen what for.
    Unseen,
    /// No wait: preempted.
    None,
}

impl WaitKind {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Futex => "futex",
            Self::Poll => "poll",
            Self::Sleep => "sleep",
            Self::Fault => "fault",
            Self::Child => "child",
            Self::Device => "device",
            Self::Uring => "uring",
            Self::Other => "other",
            Self::Stopped => "stopped",
            Self::Unseen => "unseen",
            Self::None => "none",
        }
    }
}

/// The kind of a wait.
pub fn wait_kind(id: &WaitId) -> WaitKind {
    match id.nr {
        NR_FAULT => return WaitKind::Fault,
        NR_PREEMPTED => return WaitKind::None,
        NR_URING_WORKER => return WaitKind::Uring,
        NR_UNSEEN => return WaitKind::Unseen,
        NR_STOPPED => return WaitKind::Stopped,
        _ => {}
    }
    let name = arch::syscall_name(id.nr).unwrap_or("");
    if let Some((kind, _)) = BY_CALL.iter().find(|(_, names)| names.contains(&name)) {
        return *kind;
    }
    match Class::try_from(id.object.class) {
        Ok(Class::File | Class::Directory | Class::Tmpfs) => WaitKind::File,
        Ok(Class::Pipe) => WaitKind::Pipe,
        Ok(Class::Socket) => WaitKind::Socket,
        Ok(Class::Device) => WaitKind::Device,
        _ if ON_FILES.contains(&name) => WaitKind::File,
        _ => WaitKind::Other,
    }
}

/// What waits in these calls are, whatever their descriptor is of.
const BY_CALL: [(WaitKind, &[&str]); 6] = [
    (WaitKind::Futex, &["futex", "futex_wait", "futex_waitv"]),
    (
        WaitKind::Sleep,
        &[
            "nanosleep",
            "clock_nanosleep",
            "pause",
            "rt_sigtimedwait",
            "rt_sigsuspend",
        ],
    ),
    (WaitKind::Child, &["wait4", "waitid"]),
    (
        WaitKind::Poll,
        &[
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
        ],
    ),
    (WaitKind::Uring, &["io_uring_enter"]),
    (WaitKind::Uring, &AIO),
];

/// Linux's own asynchronous I/O: of files, as good as always.
const AIO: [&str; 3] = ["io_submit", "io_getevents", "io_pgetevents"];

/// Calls that have a path, or a descriptor that is not known: they wait for files.
const ON_FILES: [&str; 32] = [
    "open",
    "openat",
    "openat2",
    "creat",
    "stat",
    "lstat",
    "fstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "truncate",
    "statfs",
    "getxattr",
    "lgetxattr",
    "sync",
    "syncfs",
    "fsync",
    "fdatasync",
    "msync",
    "close",
];

/// Whether a call belongs to Linux's own asynchronous I/O (io_submit(2)).
pub fn is_aio(nr: i16) -> bool {
    arch::syscall_name(nr).is_some_and(|name| AIO.contains(&name))
}

/// Name of the system call, or of what stands in its place.
pub fn syscall_name(nr: i16) -> String {
    match nr {
        NR_FAULT => "page fault".to_owned(),
        NR_PREEMPTED => "preempted".to_owned(),
        NR_URING_WORKER => "io_uring worker".to_owned(),
        NR_UNSEEN => "unseen".to_owned(),
        NR_STOPPED => "stopped".to_owned(),
        nr if nr & NR_FOREIGN != 0 && nr > 0 => format!("32-bit syscall {}", nr & !NR_FOREIGN),
        nr => arch::syscall_name(nr).map_or_else(|| format!("syscall {nr}"), str::to_owned),
    }
}

/// Whether a number is known of a call: nothing that is told by a name without one ever holds.
#[cfg(test)]
pub(crate) fn has_number(name: &str) -> bool {
    (0..512).any(|nr| arch::syscall_name(nr) == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_told_by_name_have_a_number() {
        let named = BY_CALL.iter().flat_map(|(_, names)| *names);
        for name in named.chain(&ON_FILES) {
            assert!(has_number(name), "{name}");
        }
    }
}
