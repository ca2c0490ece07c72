//! Memory of our own, on which it is measured what page faults take.

use std::{
    io,
    ptr::{self, NonNull},
};

use crate::env::clock::thread_cpu_ns;

pub const PAGE: usize = 4096;

/// Pages that nobody has touched yet.
pub fn new_pages(pages: usize) -> io::Result<Mapped> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let memory = Mapped::new(pages * PAGE, anonymous, -1)?;
    // SAFETY: our own mapping. Should it be refused, huge pages make the faults few and the answer none.
    unsafe {
        libc::madvise(
            memory.at.as_ptr().cast(),
            memory.bytes,
            libc::MADV_NOHUGEPAGE,
        )
    };
    Ok(memory)
}

/// Memory mapped until this is dropped.
pub struct Mapped {
    pub at: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    pub fn new(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping wherever there is room.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, bytes })
    }

    /// Writes one byte of each page. Gives the CPU nanoseconds that it took.
    pub fn touch(&self) -> u64 {
        let began = thread_cpu_ns();
        for page in (0..self.bytes).step_by(PAGE) {
            // SAFETY: within our own mapping.
            unsafe { self.at.as_ptr().add(page).write_volatile(1) };
        }
        thread_cpu_ns().saturating_sub(began)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used by nobody any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
