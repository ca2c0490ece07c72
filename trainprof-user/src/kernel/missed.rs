//! Runs of a program that the kernel left out because the program was running on that CPU already (`recursion_misses`).
//!
//! The library that loads programs does not hand that number on, so the kernel is asked here.

use std::{
    io,
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, BorrowedFd},
};

/// `BPF_OBJ_GET_INFO_BY_FD` (include/uapi/linux/bpf.h).
const GET_INFO: libc::c_long = 15;

/// `struct bpf_prog_info` there: older kernels fill less of it, newer ones have more.
#[repr(C)]
struct ProgInfo {
    /// What it is and how it was translated.
    before: [u64; 24],
    run_time_ns: u64,
    run_count: u64,
    recursion_misses: u64,
}

/// `union bpf_attr` of that command.
#[repr(C)]
struct Request {
    fd: u32,
    len: u32,
    info: u64,
}

/// How many runs of a program were left out so far.
pub fn missed(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = ProgInfo {
        before: [0; 24],
        run_time_ns: 0,
        run_count: 0,
        recursion_misses: 0,
    };
    let request = Request {
        fd: program.as_raw_fd() as u32,
        len: size_of::<ProgInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: both outlive the call, and the kernel writes no more than `len` bytes. The pointers among them are null, so that it
    // copies nothing else.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            GET_INFO,
            &raw const request,
            size_of::<Request>(),
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info.recursion_misses)
}

/// As the kernel has it.
const _: () = assert!(offset_of!(ProgInfo, recursion_misses) == 208);
