//! Opens and closes the event that samples are taken with, to see whether this host allows it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// What became of trying `perf_event_open()`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfCall {
    /// A CPU's clock could be opened.
    Works,
    /// It was refused: `errno`.
    Refused(i32),
}

/// From include/uapi/linux/perf_event.h.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_ATTR_SIZE_VER0: u32 = 64;

/// `struct perf_event_attr`, its first version. All else zero is the CPU clock, counting.
#[repr(C)]
#[derive(Default)]
struct Attribute {
    kind: u32,
    size: u32,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<Attribute>() == PERF_ATTR_SIZE_VER0 as usize);

/// Opens the clock of one CPU for all processes, as the sampling does for each, and closes it again.
pub(super) fn try_call() -> PerfCall {
    let attribute = Attribute {
        kind: PERF_TYPE_SOFTWARE,
        size: PERF_ATTR_SIZE_VER0,
        ..Attribute::default()
    };
    let (all_processes, first_cpu, no_group) = (-1, 0, -1);
    // SAFETY: the kernel reads the attribute, whose size it is told, and nothing else.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attribute,
            all_processes,
            first_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel has just opened this descriptor for us alone.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            PerfCall::Works
        }
        _ => PerfCall::Refused(
            io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        ),
    }
}
