//! Aggregates that the kernel counts into, per thread (so each has one writer), and user space drains.

use crate::hist::{COARSE_BUCKETS, LATENCY_BUCKETS, SIZE_BUCKETS};

/// Operations of one thread on one file set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct OpKey {
    pub tid: u32,
    pub fileset: u32,
    /// Device number of the file system, for objects without a file set.
    pub dev: u32,
    /// [`crate::op::Op`] number.
    pub op: u8,
    /// [`crate::op::Class`] number.
    pub class: u8,
    pub pad: u16,
}
crate::wire!(OpKey, 16);

/// Value of an [`OpKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OpCell {
    pub count: u64,
    pub errors: u64,
    /// Bytes moved; for opens the sum of the files' sizes.
    pub bytes: u64,
    /// Nanoseconds from entry to exit, waits included.
    pub ns: u64,
    /// How many of those that were timed took how long.
    pub latency: [u32; COARSE_BUCKETS],
}
crate::wire!(OpCell, 32 + COARSE_BUCKETS * 4);

impl OpCell {
    pub const EMPTY: Self = Self {
        count: 0,
        errors: 0,
        bytes: 0,
        ns: 0,
        latency: [0; COARSE_BUCKETS],
    };
}

/// Operations of one thread on one file system: there are far fewer of these than of [`OpKey`], and their values are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct HistKey {
    pub tid: u32,
    /// Device number of the file system.
    pub dev: u32,
    /// [`crate::op::Op`] number.
    pub op: u8,
    /// [`crate::op::Class`] number.
    pub class: u8,
    pub pad: u16,
}
crate::wire!(HistKey, 12);

impl OpKey {
    /// Where its latencies and sizes are counted.
    #[inline(always)]
    pub const fn hist(&self) -> HistKey {
        HistKey {
            tid: self.tid,
            dev: self.dev,
            op: self.op,
            class: self.class,
            pad: 0,
        }
    }
}

/// Value of a [`HistKey`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HistCell {
    pub latency: [u32; LATENCY_BUCKETS],
    /// Bytes of reads and writes; for opens the sizes of the files.
    pub size: [u32; SIZE_BUCKETS],
}
crate::wire!(HistCell, (LATENCY_BUCKETS + SIZE_BUCKETS) * 4);

impl HistCell {
    pub const EMPTY: Self = Self {
        latency: [0; LATENCY_BUCKETS],
        size: [0; SIZE_BUCKETS],
    };
}

/// Waits of one thread on one object, ended by one waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct WaitKey {
    /// Inode number or futex address; 0: none.
    pub object: u64,
    pub tid: u32,
    /// Thread id of the waker, 0 when it was not a thread.
    pub waker: u32,
    pub fileset: u32,
    /// System call, or a `NR_*` number of [`crate::thread`].
    pub nr: i16,
    pub class: u8,
    /// [`crate::thread::WakerKind`] number.
    pub waker_kind: u8,
}
crate::wire!(WaitKey, 24);

/// Value of a [`WaitKey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WaitCell {
    pub count: u64,
    /// Nanoseconds blocked, until woken.
    pub wait_ns: u64,
    /// Nanoseconds from the wake-up (or the preemption) until on a CPU.
    pub runnable_ns: u64,
    /// Nanoseconds of `wait_ns` that the kernel accounted as I/O wait.
    pub iowait_ns: u64,
    /// Longest single wait, ns.
    pub max_ns: u64,
}
crate::wire!(WaitCell, 40);
