//! Launching a command that waits to be let go, so that it is watched from before its first instruction.

use std::{
    ffi::{CString, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
};

use super::Failure;

/// Exit statuses of a shell for commands that cannot be run (POSIX, sh(1)).
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// A command that a signal ended exits with this plus the signal's number.
const SIGNALLED: i32 = 128;

/// A launched command.
pub struct Child {
    pid: libc::pid_t,
    /// Writing lets it go.
    gate: Option<File>,
    /// Holds the error number when it could not be executed.
    error: Option<File>,
    exec_error: Option<io::Error>,
    status: Option<u8>,
}

/// How far a command got.
pub enum Launched {
    /// It never executed.
    Never,
    /// It ended with this status.
    Ended(u8),
}

fn pipe() -> io::Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are ours from here on.
    unsafe {
        if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((
            File::from(OwnedFd::from_raw_fd(fds[0])),
            File::from(OwnedFd::from_raw_fd(fds[1])),
        ))
    }
}

/// Forks a child that executes `command` once it is released.
pub fn held(command: &[OsString]) -> Result<Child, Failure> {
    let arguments: Vec<CString> = command
        .iter()
        .map(|argument| CString::new(argument.as_bytes()))
        .collect::<Result<_, _>>()
        .map_err(|_| Failure::input("an argument of the command holds a NUL byte"))?;
    let mut pointers: Vec<*const libc::c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let cannot = |error: io::Error| Failure::host(format!("cannot launch a process: {error}"));
    let (mut gate_in, gate_out) = pipe().map_err(cannot)?;
    let (error_in, error_out) = pipe().map_err(cannot)?;
    // SAFETY: we have one thread, and the child calls nothing but what is safe after fork.
    match unsafe { libc::fork() } {
        -1 => Err(cannot(io::Error::last_os_error())),
        0 => {
            drop(gate_out);
            drop(error_in);
            let mut byte = [0_u8];
            let released = matches!(gate_in.read(&mut byte), Ok(1));
            if released {
                // SAFETY: a null-terminated array of strings that live on. Rust ignores SIGPIPE, and we ignore
                // SIGXFSZ: a command expects the defaults.
                let code = unsafe {
                    libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                    libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                    libc::execvp(pointers[0], pointers.as_ptr());
                    *libc::__errno_location()
                };
                let _ = (&error_out).write_all(&code.to_ne_bytes());
            }
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(NOT_FOUND)) }
        }
        pid => Ok(Child {
            pid,
            gate: Some(gate_out),
            error: Some(error_in),
            exec_error: None,
            status: None,
        }),
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Lets it execute its command.
    pub fn release(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            let _ = gate.write_all(&[1]);
        }
        let mut code = [0_u8; 4];
        if let Some(mut error) = self.error.take()
            && error.read_exact(&mut code).is_ok()
        {
            self.exec_error = Some(io::Error::from_raw_os_error(i32::from_ne_bytes(code)));
        }
    }

    /// Why it could not be executed.
    pub fn exec_error(&self) -> Option<&io::Error> {
        self.exec_error.as_ref()
    }

    /// Sends it a signal, while it is there.
    pub fn signal(&self, signal: i32) {
        if self.status.is_none() {
            // SAFETY: it was not waited for, so the id is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Its exit status, as a shell would give it; `None` while it runs.
    pub fn try_wait(&mut self) -> Option<u8> {
        self.wait_with(libc::WNOHANG)
    }

    fn wait_with(&mut self, flags: i32) -> Option<u8> {
        while self.status.is_none() {
            let mut raw = 0;
            // SAFETY: a valid pointer; the child is ours.
            if unsafe { libc::waitpid(self.pid, &raw mut raw, flags) } != self.pid {
                break;
            }
            if libc::WIFEXITED(raw) || libc::WIFSIGNALED(raw) {
                self.status = Some(self.shell_status(raw));
            }
        }
        self.status
    }

    fn shell_status(&self, raw: i32) -> u8 {
        match &self.exec_error {
            Some(error) if error.raw_os_error() == Some(libc::ENOENT) => NOT_FOUND,
            Some(_) => NOT_EXECUTABLE,
            None if libc::WIFSIGNALED(raw) => (SIGNALLED + libc::WTERMSIG(raw)) as u8,
            None => libc::WEXITSTATUS(raw) as u8,
        }
    }

    /// Gives it up after a failure of ours: one that was never released ends; one that runs runs on to its end.
    pub fn abandon(mut self) -> Launched {
        let never = self.gate.take().is_some();
        match (never, self.wait_with(0)) {
            (false, Some(status)) => Launched::Ended(status),
            _ => Launched::Never,
        }
    }
}
