//! What a thread is blocked in that waited already when it was looked at first: the call, and what that waits for, out of /proc.
//!
//! From then on the kernel's own tables tell. The first wait may be the longest of the watch.

use std::{fs, fs::File, os::unix::fs::FileExt as _, path::Path};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use trainprof_common::{
    arch,
    op::{Class, NO_ARG, SyscallInfo, WaitOn},
    thread::{NR_FOREIGN, Object},
};

use super::foreign::is_foreign;

/// Arguments that a line of /proc/…/syscall has.
const ARGUMENTS: usize = 6;

/// A call that a thread is blocked in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    pub nr: i16,
    /// What it waits for, as far as that can be told.
    pub object: Object,
}

/// The system call that a thread is blocked in (/proc/…/syscall, proc(5)); `None` when it runs or may not be looked at.
pub(super) fn blocked_in(pid: u32, tid: u32) -> Option<Blocked> {
    let line = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let Line {
        nr,
        arguments,
        stack_pointer,
    } = parse(&line)?;
    // The program is looked at for few: where the stack pointer is one that 32-bit programs may have.
    if nr >= 0 && stack_pointer <= u32::MAX.into() && is_foreign(pid) {
        return Some(Blocked {
            nr: nr | NR_FOREIGN,
            object: Object::default(),
        });
    }
    let info = usize::try_from(nr)
        .ok()
        .and_then(|nr| arch::syscalls().get(nr).copied());
    let object = info.and_then(|info| object(pid, tid, &info, &arguments));
    Some(Blocked {
        nr,
        object: object.unwrap_or_default(),
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    nr: i16,
    arguments: [u64; ARGUMENTS],
    stack_pointer: u64,
}

fn parse(line: &str) -> Option<Line> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (nr, rest) = line.split_once(' ')?;
    let nr = nr.parse().ok()?;
    let numbers = rest.split_ascii_whitespace().map(number);
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    // Outside of a call there are no arguments.
    let (stack_pointer, before) = match numbers.as_slice() {
        [before @ .., stack_pointer, _instruction] => (*stack_pointer, before),
        _ => return None,
    };
    let mut arguments = [0; ARGUMENTS];
    for (argument, number) in arguments.iter_mut().zip(before) {
        *argument = *number;
    }
    Some(Line {
        nr,
        arguments,
        stack_pointer,
    })
}

/// What a call waits for: as the probes tell it, but for the set of files that a file belongs to.
fn object(pid: u32, tid: u32, info: &SyscallInfo, arguments: &[u64; ARGUMENTS]) -> Option<Object> {
    let fd = match info.wait_on {
        on if on == WaitOn::Address as u8 => {
            return Some(Object {
                id: arguments[0],
                ..Object::default()
            });
        }
        on if on == WaitOn::PollSet as u8 && arguments[1] == 0 => return None,
        on if on == WaitOn::PollSet as u8 => first_of(pid, tid, arguments[0])?,
        _ if info.at_flags != NO_ARG || info.fd == NO_ARG => return None,
        on if on != WaitOn::Descriptor as u8 && info.op == 0 => return None,
        // A call looks at the lower half of the register.
        _ => *arguments.get(usize::from(info.fd))? as u32,
    };
    described(&format!("/proc/{pid}/task/{tid}/fd/{fd}"))
}

/// The first descriptor of the set that poll(2) was given.
fn first_of(pid: u32, tid: u32, set: u64) -> Option<u32> {
    let mut fd = [0; 4];
    let memory = File::open(format!("/proc/{pid}/task/{tid}/mem")).ok()?;
    memory.read_exact_at(&mut fd, set).ok()?;
    Some(u32::from_ne_bytes(fd))
}

/// What a link of /proc/…/fd leads to. No file system is asked (statx(2), AT_STATX_DONT_SYNC): one that does not answer would hold us up
/// as it does the job.
fn described(link: &str) -> Option<Object> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let class = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::Fifo => Class::Pipe,
        FileType::Socket => Class::Socket,
        FileType::CharacterDevice | FileType::BlockDevice => Class::Device,
        FileType::Directory => Class::Directory,
        FileType::RegularFile => of_path(&fs::read_link(link).ok()?),
        _ => Class::Anon,
    };
    Some(Object {
        id: found.stx_ino,
        class: class as u32,
        ..Object::default()
    })
}

/// The class of a regular file, by where it lies.
fn of_path(path: &Path) -> Class {
    let below = |top: &[&str]| top.iter().any(|top| path.starts_with(top));
    if below(&["/proc", "/sys"]) {
        Class::Proc
    } else if below(&["/dev/shm", "/dev/hugepages"])
        || path.to_string_lossy().starts_with("/memfd:")
    {
        Class::Tmpfs
    } else {
        Class::File
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn the_call_a_thread_is_blocked_in_is_read() {
        let line = parse("202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f").expect("a call");
        assert_eq!((line.nr, line.arguments[1]), (202, 0x80));
        assert_eq!(line.stack_pointer, 0x7ffd);
        let outside = parse("-1 0x7ffd 0x7f").expect("no call");
        assert_eq!((outside.nr, outside.arguments[0]), (-1, 0));
        assert_eq!(outside.stack_pointer, 0x7ffd);
        for none in ["running", "", "12", "x 0x1 0x2"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn descriptors_are_told_by_what_they_are() {
        let class = |fd: i32| {
            let object = described(&format!("/proc/self/fd/{fd}")).expect("our own");
            (object.id > 0).then_some(object.class)
        };
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(class(reader.as_raw_fd()), Some(Class::Pipe as u32));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        assert_eq!(class(socket.as_raw_fd()), Some(Class::Socket as u32));
        let file = File::open("/proc/self/exe").expect("our own");
        assert_eq!(class(file.as_raw_fd()), Some(Class::File as u32));
        let file = File::open("/dev/null").expect("a device");
        assert_eq!(class(file.as_raw_fd()), Some(Class::Device as u32));
        let file = File::open("/proc/self/stat").expect("our own");
        assert_eq!(class(file.as_raw_fd()), Some(Class::Proc as u32));
        assert_eq!(described("/proc/self/fd/no-such").map(|o| o.class), None);
    }
}
