//! Single events, sent through the ring buffer: what is rare or slow.

use crate::thread::Object;

/// Kind of an event: the first field of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Wait = 1,
    Fork = 2,
    Exec = 3,
    Exit = 4,
}

/// One interval off the CPU that lasted at least the collector's threshold.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitEvent {
    pub kind: u32,
    pub tid: u32,
    /// Kernel time at which the thread left the CPU.
    pub from: u64,
    /// Kernel time of the wake-up; equals `from` when preempted, `to` when no wake-up was seen.
    pub woken: u64,
    /// Kernel time at which it was back on a CPU.
    pub to: u64,
    pub object: Object,
    pub waker: u32,
    pub nr: i16,
    pub waker_kind: u8,
    pub iowait: u8,
}
crate::wire!(WaitEvent, 64);

/// A followed thread made another thread or process, which is followed from now on.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ForkEvent {
    pub kind: u32,
    pub parent_tid: u32,
    pub at: u64,
    pub parent_tgid: u32,
    pub child_tid: u32,
    pub child_tgid: u32,
    pub pad: u32,
    pub comm: [u8; 16],
}
crate::wire!(ForkEvent, 48);

/// A followed process executed another program.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExecEvent {
    pub kind: u32,
    pub tgid: u32,
    pub at: u64,
    /// Thread id that called execve, and that is gone when it was not the leader.
    pub old_tid: u32,
    pub pad: u32,
    pub comm: [u8; 16],
}
crate::wire!(ExecEvent, 40);

/// A followed thread ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExitEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    pub tgid: u32,
    pub pad: u32,
}
crate::wire!(ExitEvent, 24);
