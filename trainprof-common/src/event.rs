//! Single events, sent through the ring buffer: what is rare or slow.

use crate::{
    python::{PY_FRAMES, PyFrames},
    stack::{STACK_BYTES, UserStack},
    thread::Object,
};

/// Kind of an event: the first field of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Wait = 1,
    Fork = 2,
    Exec = 3,
    Exit = 4,
    Touch = 5,
    Sample = 6,
    GpuCall = 7,
    Fault = 8,
    Backward = 9,
    GpuMemory = 10,
    Update = 11,
    Execution = 12,
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
    /// Thread that had the CPU for most of the time from `woken` to `to`, as far as that CPU saw it; 0: it was idle.
    pub ran_before: u32,
    pub pad: u32,
}
crate::wire!(WaitEvent, 72);

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

/// [`ExitEvent::flags`]: the kernel had chosen its process as the one to end when memory ran out.
pub const EXIT_OUT_OF_MEMORY: u32 = 1;

/// A followed thread ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExitEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    pub tgid: u32,
    pub flags: u32,
}
crate::wire!(ExitEvent, 24);

/// A call on a descriptor, or one that maps memory, has succeeded, in a process whose calls are noted.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TouchEvent {
    pub kind: u32,
    pub tid: u32,
    /// Kernel time of its return.
    pub at: u64,
    pub object: Object,
    pub bytes: u64,
    /// [`crate::op::Op`] number.
    pub op: u32,
    /// Calls of the thread that were not noted since the last one that was.
    pub skipped: u32,
}
crate::wire!(TouchEvent, 56);

/// What a followed thread was doing when this CPU's sampling clock fired.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SampleEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    /// Address of the instruction in user mode; 0 in the kernel.
    pub ip: u64,
    pub tgid: u32,
    /// System call, or a `NR_*` number of [`crate::thread`]: `NR_PREEMPTED` in user mode.
    pub nr: i16,
    pub pad: u16,
}
crate::wire!(SampleEvent, 32);

/// One call into the GPU's runtime, from its beginning to its return (or to the end of its thread).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuCallEvent {
    pub kind: u32,
    pub tid: u32,
    pub from: u64,
    pub ns: u64,
    pub bytes: u64,
    /// [`crate::gpu::Function::number`].
    pub function: u32,
    /// [`crate::gpu::Function::kind`].
    pub what: u32,
}
crate::wire!(GpuCallEvent, 40);

/// A thread begins a backward pass.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BackwardEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    /// Stack pointer: of a pass inside another one it is lower.
    pub sp: u64,
    /// Hash of the calls of Python that led there; 0: not known.
    pub path: u64,
}
crate::wire!(BackwardEvent, 32);

/// A thread begins to update a model with the gradients of its backward passes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UpdateEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
}
crate::wire!(UpdateEvent, 16);

/// A thread begins to compute what its framework compiled, or a round of boosting.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ExecutionEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    /// Address of what is computed: the same one, the same computation.
    pub what: u64,
}
crate::wire!(ExecutionEvent, 24);

/// GPU or pinned memory was allocated or given back, with the Python that did so.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GpuMemoryEvent {
    pub kind: u32,
    pub tid: u32,
    /// Kernel time of the call's beginning.
    pub at: u64,
    /// What the call gave or took back: an address, or a handle.
    pub address: u64,
    /// 0: given back.
    pub bytes: u64,
    /// [`crate::gpu::Function::number`].
    pub function: u32,
    pub tgid: u32,
    pub python: PyFrames,
}
crate::wire!(GpuMemoryEvent, 40 + size_of::<PyFrames>());

/// [`FaultEvent::what`]: the page could be read already, so this was a write to a page that is shared with another
/// process, with a file, or with the page of zeros.
pub const FAULT_WRITE_TO_SHARED: u32 = 1;
/// [`FaultEvent::what`]: in the kernel, on behalf of a system call.
pub const FAULT_IN_KERNEL: u32 = 2;

/// A sampled page fault of a followed thread, at its beginning, with the user stack that led to it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FaultEvent {
    pub kind: u32,
    pub tid: u32,
    pub at: u64,
    /// The address that was touched.
    pub address: u64,
    pub tgid: u32,
    /// Looks at faults of followed threads on this CPU since the last one that was sent, this one included.
    pub weight: u32,
    pub what: u32,
    pub pad: u32,
    pub python: PyFrames,
    pub stack: UserStack,
}
crate::wire!(FaultEvent, 40 + 8 + 8 * PY_FRAMES + 32 + STACK_BYTES);
