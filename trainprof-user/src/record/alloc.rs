//! Facts about calls into allocators, seen in short windows, and about what that cost.

use serde::{Deserialize, Serialize};

use crate::time::KtimeNs;

/// What a probe costs on this host, measured on a process of our own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocCalibrationFact {
    /// Nanoseconds of a hit where the kernel emulates the instruction, and where it single-steps; and what seeing a
    /// function's return adds.
    pub emulated_ns: f64,
    pub stepped_ns: f64,
    pub return_ns: f64,
    /// For how long taking one probe away stops a thread: the median of three.
    pub pause_ns: u64,
    /// Wall time of attaching one probe and of taking one away.
    pub attach_ns: u64,
    pub detach_ns: u64,
}

/// The allocator that serves a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorFact {
    pub pid: u32,
    /// File name of the library, or of the program itself.
    pub library: String,
    /// Its functions, and whether the kernel single-steps their probes.
    pub functions: Vec<(String, bool)>,
}

/// A window in which every call of a process's allocator was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocWindowFact {
    /// Counted from 1 in a watch.
    pub number: u32,
    pub pid: u32,
    /// The time in which calls were counted.
    pub from: KtimeNs,
    pub to: KtimeNs,
    /// It ended early: a thread had called often enough.
    pub full: bool,
    /// Nanoseconds by which each call was slowed down while it was counted.
    pub hit_ns: f64,
    /// Functions that were probed, those that nobody called too.
    pub functions: Vec<String>,
    /// CPU time of the process's threads meanwhile, nanoseconds; `None`: not looked at.
    pub cpu_ns: Option<u64>,
    pub calls: Vec<AllocCallsFact>,
    /// One call in so many had its stack taken; 0: none.
    pub stack_every: u32,
    /// `None`: allocations were not followed to their release.
    pub lifetimes: Option<AllocLifetimesFact>,
    /// Addresses and sums for which there was no room.
    pub lost: u64,
    /// Probes that were attached, entries and returns.
    pub sites: u32,
    /// All hits of the probes, those outside `from` to `to` as well.
    pub hits: u64,
    /// CPU time that the hits took from the job, by calibration, and what closing the window added to its busiest thread:
    /// for how long it was stopped, and what traps took that were still there.
    pub job_ns: u64,
    pub pause_ns: u64,
    /// CPU time of ours.
    pub own_ns: u64,
}

/// Calls of one function by one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocCallsFact {
    pub tid: u32,
    /// As people know it: `malloc`, `operator new`.
    pub function: String,
    /// It makes memory; if not, it only gives back.
    pub allocates: bool,
    pub count: u64,
    pub bytes: u64,
    /// (Bucket of [`trainprof_common::hist::size_bucket`], calls) of those not empty.
    pub sizes: Vec<(u8, u32)>,
}

/// What became of allocations that were followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocLifetimesFact {
    /// One address in so many was followed.
    pub one_in: u32,
    pub tracked: u64,
    pub tracked_bytes: u64,
    /// Given back before the window ended.
    pub freed: u64,
    pub freed_bytes: u64,
    /// Given back within a millisecond.
    pub quick: u64,
    pub quick_bytes: u64,
    /// (Bucket of nanoseconds by powers of two, count) of those not empty.
    pub ns: Vec<(u8, u32)>,
}

/// Sampled calls of a window that came the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocSiteFact {
    /// Number of an [`AllocWindowFact`].
    pub window: u32,
    pub pid: u32,
    pub function: String,
    /// Sampled calls and their bytes: about [`AllocWindowFact::stack_every`] times as many were made.
    pub count: u64,
    pub bytes: u64,
    /// The caller first.
    pub frames: Vec<AllocFrame>,
}

/// Where a call returns to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AllocFrame {
    pub address: u64,
    /// Path of the mapped file as the process sees it; `None`: no file is mapped there.
    pub module: Option<String>,
    /// Offset in that file of `address`.
    pub offset: u64,
    /// Function of the call, where a symbol tells.
    pub function: Option<String>,
}

/// What the overhead governor has come to. The last one holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GovernorFact {
    pub at: KtimeNs,
    /// Share (0–1) of the job's CPU time that may be spent.
    pub budget: f64,
    /// CPU time that the job used since the watch began, as far as the governor knows.
    pub job_ns: u64,
    /// What was spent: probes that are always there (their run time in the kernel), trainprof's processes since the watch began (see
    /// [`super::fact::StartCost`]) without what windows took of them, windows.
    pub probes_ns: u64,
    pub own_ns: u64,
    pub windows_ns: u64,
    /// Windows that were opened.
    pub windows: u32,
    /// The longest time that windows added to one thread in any ten seconds.
    pub worst_thread_ns: u64,
    /// What is left out for now, in the order in which it was given up.
    pub shed: Vec<String>,
}

/// Of [`GovernorFact::shed`]: system calls are counted in turns, see [`super::fact::CallsHidden`].
pub const SHED_CALLS: &str = "calls";
