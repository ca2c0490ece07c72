//! Switching the kernel's count of BPF run time on and off.
//!
//! That takes CAP_SYS_ADMIN each time (kernel/bpf/syscall.c, `bpf_enable_stats`), which the collector gives
//! up once its probes are attached. So a process of its own keeps it, does nothing else, and ends with us.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use aya::sys::{Stats, enable_stats};

use crate::{
    env::clock::process_cpu_ns,
    privilege::{Keep, drop_unneeded},
};

use super::aside::close_all_but;

/// The other process, as we see it.
pub struct StatsSwitch {
    line: UnixStream,
    pid: libc::pid_t,
}

impl StatsSwitch {
    /// Starts it. Must be called while we have one thread and no probe.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // SAFETY: we have one thread, so the child may go on as if nothing had happened.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                close_all_but(&mut [theirs.as_raw_fd()]);
                let keep = Keep {
                    administer: true,
                    ..Keep::default()
                };
                if drop_unneeded(keep).is_ok() {
                    serve(theirs);
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Self { line: ours, pid }),
        }
    }

    /// Switches counting on or off.
    pub fn set(&mut self, on: bool) -> io::Result<()> {
        let mut answer = [0; 4];
        self.line.write_all(&[u8::from(on)])?;
        self.line.read_exact(&mut answer)?;
        match i32::from_ne_bytes(answer) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// CPU time of that process, nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        // It is waited for at our end alone, so the number is its own.
        process_cpu_ns(self.pid).unwrap_or(0)
    }
}

impl Drop for StatsSwitch {
    fn drop(&mut self) {
        let _ = self.line.shutdown(std::net::Shutdown::Both);
        // SAFETY: a child of ours, which ends when the line does.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

fn serve(mut line: UnixStream) {
    let mut counting: Option<OwnedFd> = None;
    let mut order = [0];
    while line.read_exact(&mut order).is_ok() {
        let (now, code) = match (order == [1]).then(|| enable_stats(Stats::RunTime)) {
            None => (None, 0),
            Some(Ok(held)) => (Some(held), 0),
            Some(Err(error)) => (None, error.io_error.raw_os_error().unwrap_or(libc::EIO)),
        };
        counting = now;
        if line.write_all(&code.to_ne_bytes()).is_err() {
            return;
        }
    }
    drop(counting);
}
