//! Software events of the kernel's perf subsystem, opened without a library: perf_event_open(2).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{
    PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC,
    perf_event_attr, perf_sw_ids, perf_type_id,
};

/// Whom an event is of.
#[derive(Clone, Copy, Debug)]
pub enum Of {
    /// While such an event is open, counting or not, each switch of every CPU takes longer (`perf_sched_events` in
    /// kernel/events/core.c): 65 ns with two of them in a virtual machine on AMD EPYC. It is to be closed soon.
    ThisThread,
    /// Everybody on a CPU.
    Cpu(u32),
}

/// An event that does not count yet, of every `period` (nanoseconds of a clock, or what else it counts) on. `more`: other attributes.
pub fn open(
    event: perf_sw_ids,
    period: u64,
    of: Of,
    more: impl FnOnce(&mut perf_event_attr),
) -> io::Result<OwnedFd> {
    // SAFETY: numbers alone, for which zero is valid.
    let mut attribute: perf_event_attr = unsafe { std::mem::zeroed() };
    attribute.size = size_of::<perf_event_attr>() as u32;
    attribute.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
    attribute.config = event as u64;
    attribute.__bindgen_anon_1.sample_period = period;
    attribute.set_disabled(1);
    more(&mut attribute);
    let (pid, cpu) = match of {
        Of::ThisThread => (0, -1),
        Of::Cpu(cpu) => (-1, cpu as libc::c_int),
    };
    let no_group = -1;
    // SAFETY: the kernel reads the attribute, whose size it is told, and nothing else.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attribute,
            pid,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Has it count from now on, or not. Needs no privilege.
pub fn switch(event: &OwnedFd, on: bool) -> io::Result<()> {
    let order = if on {
        PERF_EVENT_IOC_ENABLE
    } else {
        PERF_EVENT_IOC_DISABLE
    };
    tell(event, order, 0)
}

/// Has a program run at each of its samples.
pub fn set_program(event: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    tell(event, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())
}

fn tell(event: &OwnedFd, order: u32, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these orders take a number, or none.
    let done = unsafe { libc::ioctl(event.as_raw_fd(), order.into(), argument) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
