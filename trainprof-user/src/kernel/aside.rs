//! A process of our own that works beside us, and the line that both talk over.
//!
//! What may hang, what may crash and what needs privileges that the collector gives up is done by such a process. It
//! ends when we do, however we end; when it does not end, because it sleeps in a driver, we go without it.
//!
//! **Who puts uprobes in is never killed by us.** A process with a fatal signal cannot take a breakpoint out of another's code: the kernel's
//! walk to that page gives up (`__get_user_pages` in mm/gup.c), and the trap stays in the job for ever (`uprobe_unregister_nosync` in
//! kernel/events/uprobes.c: "failed to unregister, leaking uprobe"). Nor should it be by whoever kills us with our process group or by our
//! name, as killpg(3), pkill(1) and killall(1) do: it has a session and a name of its own.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::env::clock::process_cpu_ns;

/// How the other process learns that it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is killed: what it does may hang.
    Killed,
    /// Its line ends, and it looks at that when it is done with what it does.
    Told,
}

/// Most bytes of one message.
const MAX_MESSAGE: usize = 64 << 10;

/// One end of a line. Messages arrive whole and in order; how many may wait is bounded by the kernel (socket(7)).
pub struct Line {
    socket: OwnedFd,
}

/// What a look at a line gave.
#[derive(Debug)]
pub enum Received<T> {
    Message(T),
    /// Nothing waits.
    Nothing,
    /// The other end is gone.
    Ended,
}

impl Line {
    fn pair() -> io::Result<(Self, Self)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors, which are ours from here on.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok((
                Self {
                    socket: OwnedFd::from_raw_fd(fds[0]),
                },
                Self {
                    socket: OwnedFd::from_raw_fd(fds[1]),
                },
            ))
        }
    }

    /// Sends without waiting; `Ok(false)` when there is no room.
    pub fn send<T: Serialize>(&self, message: &T) -> io::Result<bool> {
        let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the buffer lives through the call.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                flags,
            )
        };
        if sent >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => Ok(false),
            _ => Err(error),
        }
    }

    /// The next message, waiting for it at most that long. A message that cannot be decoded ends the line.
    pub fn receive<T: DeserializeOwned>(&self, patience: Duration) -> Received<T> {
        if !self.readable(patience) {
            return Received::Nothing;
        }
        let mut bytes = [0_u8; MAX_MESSAGE];
        // SAFETY: the buffer lives through the call.
        let got = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(got) {
            Ok(0) => Received::Ended,
            Ok(len) => {
                postcard::from_bytes(&bytes[..len]).map_or(Received::Ended, Received::Message)
            }
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => {
                Received::Nothing
            }
            Err(_) => Received::Ended,
        }
    }

    /// Whether the other end is gone: what it still asked for need not be done.
    pub fn is_over(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// Ends it for both sides.
    fn end(&self) {
        // SAFETY: an open socket; that the other end may be gone already is no harm.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    fn readable(&self, patience: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, ms) > 0 }
    }
}

/// The other process, as we see it.
pub struct Aside {
    pub line: Line,
    pid: libc::pid_t,
    ending: Ending,
    /// How long its end is waited for.
    patience: Duration,
    ended: Option<String>,
    /// CPU time that it had used when that was last read, nanoseconds.
    cpu_ns: u64,
}

impl Aside {
    /// Starts a process that keeps the line and the descriptors `keep` open, and nothing else of ours, and that does
    /// `serve`. `name`: what ps(1) shows of it, 15 bytes at most. Must be called while we have one thread.
    pub fn start(
        name: &CStr,
        keep: &[RawFd],
        ending: Ending,
        patience: Duration,
        serve: impl FnOnce(&Line),
    ) -> io::Result<Self> {
        let (ours, theirs) = Line::pair()?;
        // SAFETY: only asks.
        let parent = unsafe { libc::getpid() };
        // SAFETY: we have one thread, so the child may go on as if nothing had happened.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                let mut kept = keep.to_vec();
                kept.push(theirs.socket.as_raw_fd());
                kept.extend([libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
                mute();
                close_all_but(&mut kept);
                // SAFETY: a string that ends; the kernel copies it.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                match ending {
                    Ending::Killed => end_with(parent),
                    Ending::Told => {
                        // It cannot fail: a process that was just forked leads no group.
                        // SAFETY: no arguments.
                        unsafe { libc::setsid() };
                        // Where memory runs out it goes last (proc(5)): it has traps to take away, and little memory. Without
                        // CAP_SYS_RESOURCE that is not allowed; then it goes in its turn.
                        let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
                    }
                }
                // A panic must not unwind into what was the parent's.
                let served = std::panic::catch_unwind(AssertUnwindSafe(|| serve(&theirs)));
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(i32::from(served.is_err())) }
            }
            pid => Ok(Self {
                line: ours,
                pid,
                ending,
                patience,
                ended: None,
                cpu_ns: 0,
            }),
        }
    }

    /// What it has told. Its end is told once, by `failed` with how it ended; `over` keeps that it was.
    pub fn told<N: DeserializeOwned>(
        &mut self,
        over: &mut bool,
        failed: impl FnOnce(&str) -> N,
    ) -> Vec<N> {
        let mut out = Vec::new();
        while !*over {
            match self.line.receive(Duration::ZERO) {
                Received::Message(notice) => out.push(notice),
                Received::Nothing => return out,
                Received::Ended => *over = true,
            }
            if *over {
                out.push(failed(self.ended().unwrap_or("unknown")));
                return out;
            }
        }
        out
    }

    /// CPU time of all its threads, nanoseconds; of one that has ended what was last read.
    pub fn cpu_ns(&mut self) -> u64 {
        // Once it was waited for, the number may be somebody else's.
        if self.ended().is_none()
            && let Some(ns) = process_cpu_ns(self.pid)
        {
            self.cpu_ns = ns;
        }
        self.cpu_ns
    }

    /// How it ended, in words; `None` while it lives.
    pub fn ended(&mut self) -> Option<&str> {
        if self.ended.is_none() {
            let mut status = 0;
            // SAFETY: a valid pointer; the child is ours and was not waited for.
            let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) };
            if pid == self.pid {
                self.ended = Some(if libc::WIFSIGNALED(status) {
                    format!("signal {}", libc::WTERMSIG(status))
                } else {
                    format!("exit status {}", libc::WEXITSTATUS(status))
                });
            }
        }
        self.ended.as_deref()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.ended().is_none() {
            match self.ending {
                // SAFETY: a child of ours that was not waited for, so the number is still its own.
                Ending::Killed => unsafe {
                    libc::kill(self.pid, libc::SIGKILL);
                },
                Ending::Told => self.line.end(),
            }
        }
        let until = Instant::now() + self.patience;
        while self.ended().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Keeps nothing open that belongs to the collector: no recording, no probe, no pipe of a launched command. Signals of
/// the terminal are the collector's to answer.
pub(super) fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut first = 0_u32;
    // SAFETY: this process uses no other descriptor from here on.
    unsafe {
        for fd in keep.iter().map(|fd| *fd as u32) {
            if fd > first {
                libc::syscall(libc::SYS_close_range, first, fd - 1, 0);
            }
            first = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0);
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Whatever a library says goes nowhere: it must not mix with our output.
fn mute() {
    // SAFETY: a constant string; the descriptors are replaced by a file that takes everything.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            libc::dup2(null, fd);
        }
    }
}

/// Ends this process when its parent does, even when the parent has no time to say so (prctl(2)).
fn end_with(parent: libc::pid_t) {
    // SAFETY: numbers only; a parent that died before is seen by the second call.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_until_the_other_end_is_gone() {
        let (a, b) = Line::pair().expect("a line");
        assert!(matches!(
            b.receive::<u32>(Duration::ZERO),
            Received::Nothing
        ));
        assert!(a.send(&"one").expect("sent"));
        assert!(a.send(&vec![7_u64; 3]).expect("sent"));
        assert!(
            matches!(b.receive::<String>(Duration::ZERO), Received::Message(text) if text == "one")
        );
        assert!(
            matches!(b.receive::<Vec<u64>>(Duration::ZERO), Received::Message(list) if list == [7; 3])
        );
        drop(a);
        assert!(matches!(b.receive::<u32>(Duration::ZERO), Received::Ended));
        assert!(b.send(&1).is_err());
    }

    #[test]
    fn who_is_told_finishes_what_it_does_and_does_nothing_else() {
        use std::io::{Read, Write};

        let (mut read, mut written) = io::pipe().expect("a pipe");
        let keep = [written.as_raw_fd()];
        let aside = Aside::start(c"tp-told", &keep, Ending::Told, Duration::ZERO, |line| {
            let _ = line.send(&line.is_over());
            while !line.is_over() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            let _ = written.write_all(b"done");
        })
        .expect("a process");
        let first = aside.line.receive::<bool>(Duration::from_secs(10));
        assert!(matches!(first, Received::Message(false)), "{first:?}");
        let _ = aside.line.send(&1_u32);
        drop((aside, written));
        let mut said = String::new();
        read.read_to_string(&mut said).expect("its end");
        assert_eq!(said, "done");
    }

    #[test]
    fn the_cpu_time_of_a_process_beside_us_is_told_also_when_it_has_ended() {
        let mut aside = Aside::start(
            c"tp-killed",
            &[],
            Ending::Killed,
            Duration::from_secs(1),
            |line| {
                let end = Instant::now() + Duration::from_millis(60);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                let _ = line.send(&7_u32);
                let _ = line.receive::<u32>(Duration::from_secs(10));
            },
        )
        .expect("a process");
        assert!(matches!(
            aside.line.receive::<u32>(Duration::from_secs(10)),
            Received::Message(7)
        ));
        let used = aside.cpu_ns();
        assert!((5_000_000..10_000_000_000).contains(&used), "{used} ns");
        let _ = aside.line.send(&8_u32);
        while aside.ended().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(aside.cpu_ns(), used);
    }

    #[test]
    fn a_full_line_is_said_and_never_waits() {
        let (a, _b) = Line::pair().expect("a line");
        let full = (0..1_000_000).any(|_| !a.send(&vec![1_u64; 64]).expect("sent"));
        assert!(full);
    }
}
