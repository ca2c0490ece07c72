//! Programs that return at once, where any observer of calls and switches needs one: what they cost is the least that watching
//! can cost, whatever is done with what is seen.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// Where a watch must be told: the end of a call, who gets a CPU, who is woken.
const POINTS: [&str; 3] = ["sys_exit", "sched_switch", "sched_waking"];

/// Commands of bpf(2) and the type of program (include/uapi/linux/bpf.h).
const BPF_PROG_LOAD: i32 = 5;
const BPF_RAW_TRACEPOINT_OPEN: i32 = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// `r0 = 0; exit`, eight bytes each.
const RETURN: [u64; 2] = [0xb7, 0x95];

#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log: [u64; 2],
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
struct Open {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

/// Attaches them, says so and waits for Ctrl-C.
pub fn hold() -> Result<()> {
    let attached = POINTS
        .iter()
        .map(|point| attach(point).with_context(|| format!("cannot attach to {point}")))
        .collect::<Result<Vec<_>>>()?;
    println!("watching");
    // SAFETY: pause has no preconditions.
    unsafe { libc::pause() };
    drop(attached);
    Ok(())
}

fn attach(point: &str) -> Result<(OwnedFd, OwnedFd)> {
    let load = Load {
        prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt: RETURN.len() as u32,
        insns: RETURN.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..Load::default()
    };
    let program = bpf(BPF_PROG_LOAD, &load)?;
    let name = CString::new(point)?;
    let open = Open {
        name: name.as_ptr() as u64,
        prog_fd: std::os::fd::AsRawFd::as_raw_fd(&program) as u32,
        pad: 0,
    };
    let link = bpf(BPF_RAW_TRACEPOINT_OPEN, &open)?;
    Ok((program, link))
}

fn bpf<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are a prefix of `union bpf_attr`, of the size that is named, and their pointers outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
