//! Doing a piece of work in a process of its own, so that the memory it takes is not ours.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{FromRawFd, OwnedFd},
};

use serde::{Serialize, de::DeserializeOwned};

/// Work that goes on in a child process.
pub struct Apart {
    answer: File,
    pid: libc::pid_t,
}

impl Apart {
    /// Starts `work`. Must be called while we have one thread.
    pub fn start<T: Serialize>(work: impl FnOnce() -> T) -> io::Result<Self> {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors, which are ours from here on.
        let (answer, mut reply) = unsafe {
            if libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            (File::from(OwnedFd::from_raw_fd(fds[0])), File::from(OwnedFd::from_raw_fd(fds[1])))
        };
        // SAFETY: we have one thread, so the child may go on as if nothing had happened.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(answer);
                let sent = postcard::to_stdvec(&work()).is_ok_and(|bytes| reply.write_all(&bytes).is_ok());
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(i32::from(!sent)) }
            }
            pid => Ok(Self { answer, pid }),
        }
    }

    /// Waits for what the work gave.
    pub fn finish<T: DeserializeOwned>(mut self) -> io::Result<T> {
        let mut bytes = Vec::new();
        let read = self.answer.read_to_end(&mut bytes);
        // SAFETY: a child of ours, which has closed its end of the pipe.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        read?;
        postcard::from_bytes(&bytes).map_err(|_| io::Error::other("the process that did the work died"))
    }
}
