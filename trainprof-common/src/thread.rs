//! State of a followed thread, kept in the kernel.

use crate::fileset::FilesetKey;

/// Entries of a thread's descriptor cache; a power of two.
pub const FD_CACHE: usize = 4;

/// What a descriptor refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Object {
    /// Inode number; address for futexes.
    pub id: u64,
    /// Device number of the file system.
    pub dev: u32,
    /// File set, or 0.
    pub fileset: u32,
    /// [`crate::op::Class`] number.
    pub class: u32,
    pub pad: u32,
}
crate::wire!(Object, 24);

/// A descriptor's object, valid while the descriptor's `struct file` and its inode are the same.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CachedFd {
    pub file: u64,
    pub inode: u64,
    pub object: Object,
    pub fd: u32,
    /// Not 0: `fd` cannot have changed unseen since, as long as nobody else uses the table of descriptors and calls are
    /// counted since the stretch of this number.
    pub trusted: u32,
}
crate::wire!(CachedFd, 48);

/// Scheduling state. A thread is in exactly one at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// On a CPU.
    Run = 0,
    /// Blocked, or woken and not yet on a CPU.
    Wait = 1,
    /// Put off the CPU while it still wanted it.
    Preempted = 2,
    /// Not known yet.
    Unseen = 3,
}

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum WakerKind {
    /// No wake-up was seen.
    Unknown = 0,
    /// A thread woke it from its own context.
    Thread = 1,
    /// A hardware interrupt (timer, device): the thread below it is innocent.
    Interrupt = 2,
    /// A softirq inside a thread that was not sending: timer or network receive.
    Softirq = 3,
    /// A softirq that ran inside the thread's own send (loopback): the thread is the cause.
    Sender = 4,
    /// A kernel thread: worker of a file system or a driver.
    Kernel = 5,
}

impl WakerKind {
    /// Every kind, by its number.
    pub const ALL: [Self; 6] = [
        Self::Unknown,
        Self::Thread,
        Self::Interrupt,
        Self::Softirq,
        Self::Sender,
        Self::Kernel,
    ];
}

impl TryFrom<u8> for WakerKind {
    type Error = u8;

    fn try_from(n: u8) -> Result<Self, u8> {
        Self::ALL.get(n as usize).copied().ok_or(n)
    }
}

/// `nr` of a wait outside any system call: a page fault.
pub const NR_FAULT: i16 = -1;
/// `nr` of an interval in which the thread was preempted.
pub const NR_PREEMPTED: i16 = -2;
/// `nr` of a wait of an io_uring worker thread.
pub const NR_URING_WORKER: i16 = -3;
/// `nr` of a wait whose beginning was not seen.
pub const NR_UNSEEN: i16 = -4;
/// `nr` of the time in which a signal, a tracer or a freezer had stopped the thread.
pub const NR_STOPPED: i16 = -5;
/// Bit of the `nr` of a wait in a system call of another ABI than the host's own (a 32-bit program's), whose number the rest is. Above all
/// numbers of our own.
pub const NR_FOREIGN: i16 = 1 << 14;

/// [`ThreadState::flags`]: the thread uses io_uring, which may close its descriptors at any time.
pub const USES_RING: u32 = 1;
/// [`ThreadState::flags`]: the thread has had more descriptors at a time than its cache holds.
pub const KEEPS: u32 = 2;

/// A followed thread. Written by the probes on the CPU that runs it, and by its waker (`woken_*`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ThreadState {
    pub tgid: u32,
    pub flags: u32,
    /// [`State`] number.
    pub state: u32,
    /// System call of the current wait, or a `NR_*` number.
    pub nr: i16,
    /// 1: the current wait counts as I/O wait (`in_iowait`).
    pub iowait: u8,
    pub woken_kind: u8,
    /// Kernel time (ns, CLOCK_MONOTONIC) at which the current state began.
    pub since: u64,
    /// Object of the current wait.
    pub object: Object,
    /// Kernel time of the last wake-up that was not consumed; 0: none.
    pub woken_at: u64,
    pub woken_by: u32,
    /// Page-fault counters at the time of the last look.
    pub maj_flt_seen: u32,
    /// Nanoseconds on a CPU so far, the current slice not included.
    pub run_ns: u64,
    /// Kernel time of the entry into the counted system call in flight; 0: none.
    pub op_enter: u64,
    /// Its object.
    pub op_object: Object,
    /// Its number.
    pub op_nr: u32,
    /// In which stretch of shown entries the last one was seen; 0: none yet.
    pub entry_stretch: u32,
    /// Calls that were not looked at to be noted one by one, since the last that was.
    pub passed: u32,
    /// Times that it was put off the CPU, or yielded it.
    pub preemptions: u32,
    /// Nanoseconds that it then waited for its next turn.
    pub preempted_ns: u64,
    /// Inode for which `fault_object` was resolved.
    pub fault_inode: u64,
    /// Page faults that the thread had finished when a fault of its own last filled the page cache, and one more; 0: none did.
    pub filling_fault: u64,
    /// Object of the last page-cache fill.
    pub fault_object: Object,
    /// When the thread began to be followed.
    pub followed_since: u64,
    /// The kernel's own account of its CPU time (`sum_exec_runtime`, ns) at the last switch.
    pub exec_seen: u64,
    /// Page faults and storage bytes when the thread began to be followed.
    pub base: TaskCounters,
    pub fds: [CachedFd; FD_CACHE],
}
crate::wire!(
    ThreadState,
    24 + 24 + 8 + 8 + 8 + 8 + 24 + 8 + 8 + 8 + 8 + 8 + 24 + 8 + 8 + 32 + 48 * FD_CACHE
);

/// Counters that the kernel keeps for every thread anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TaskCounters {
    /// Minor and major page faults (getrusage(2)).
    pub min_flt: u64,
    pub maj_flt: u64,
    /// Bytes fetched from and sent to storage on the thread's behalf (/proc/PID/io).
    pub read_bytes: u64,
    pub write_bytes: u64,
}
crate::wire!(TaskCounters, 32);

/// A followed thread that has ended: its final account.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndedThread {
    pub tgid: u32,
    pub preemptions: u32,
    pub run_ns: u64,
    pub preempted_ns: u64,
    pub followed_since: u64,
    pub counters: TaskCounters,
    pub comm: [u8; 16],
}
crate::wire!(EndedThread, 8 + 8 + 8 + 8 + 32 + 16);

/// What a descriptor refers to, with the size of the file, and what that was found from.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Described {
    pub object: Object,
    pub size: u64,
    /// Addresses of its `struct file`, `struct inode` and `struct super_block`.
    pub file: u64,
    pub inode: u64,
    pub superblock: u64,
    /// Of a file or directory: its file set's.
    pub key: FilesetKey,
}
crate::wire!(Described, 56 + 40);

/// Key of an [`EndedThread`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EndedKey {
    /// Kernel time of the exit.
    pub at: u64,
    pub tid: u32,
    pub pad: u32,
}
crate::wire!(EndedKey, 16);
