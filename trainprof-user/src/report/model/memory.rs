//! Memory and allocations.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Faults, RssBytes};
use crate::session::Id;

/// Memory of the job. What is `null` here is not measured yet.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Sum over the job's processes; pages that they share are counted once for each.
    pub rss_bytes: Option<RssBytes>,
    pub growth_bytes_per_s: Option<f64>,
    pub time_to_limit_s: Option<f64>,
    pub allocs_per_s: Option<f64>,
    pub alloc_bytes_per_s: Option<f64>,
    pub churn_share: Option<f64>,
    /// Standard error of it.
    pub churn_share_error: Option<f64>,
    pub sites: Vec<AllocationSite>,
    pub faults: Option<Faults>,
    pub calls: BTreeMap<&'static str, CallRow>,
    /// Where memory is first touched that is then kept, the largest first; `null` without samples of page faults.
    pub kept_sites: Option<Vec<KeptSite>>,
    /// The largest ones.
    pub processes: Vec<MemoryProcess>,
    /// Sizes that calls were made with.
    pub sizes: Vec<SizeRow>,
    /// Control groups that the job's processes are in, and those above with a limit.
    pub cgroups: Vec<MemoryCgroup>,
    pub pressure: Option<MemoryPressure>,
    /// Of control groups of version 2 that the job's processes are in.
    pub cgroup_pressure: Vec<CgroupPressure>,
    /// `null` when no window on an allocator was opened.
    pub allocation: Option<Allocation>,
    /// Processes that the kernel killed because memory had run out.
    pub oom_kills: Vec<OomKill>,
}

/// A process of the job that was killed because memory had run out.
#[derive(Clone, Debug, Serialize)]
pub struct OomKill {
    pub pid: Id,
    pub name: String,
    pub role: &'static str,
    /// Seconds after the beginning of the watch at which it ended.
    pub at_s: f64,
    /// The largest resident size that was seen.
    pub rss_max_bytes: Option<u64>,
}

/// A place in the program where memory is first touched that is then kept.
#[derive(Clone, Debug, Serialize)]
pub struct KeptSite {
    /// The innermost function outside allocators and the C library.
    pub function: Option<String>,
    pub module: Option<String>,
    /// File and line, where debugging information tells.
    pub source: Option<String>,
    /// The innermost function first.
    pub stack: Vec<String>,
    /// Functions of Python that led there, the innermost first, each as `name (file:line)` with the line that it begins at; empty where
    /// that is not known.
    pub python: Vec<String>,
    pub kept_bytes_per_s: f64,
    /// 95 % confidence, from the number of samples: ± this.
    pub error_bytes_per_s: f64,
    /// Of all that is kept.
    pub share: f64,
    pub samples: usize,
}

/// Memory of one process over time.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryProcess {
    pub pid: Id,
    pub role: &'static str,
    pub anonymous_bytes: Option<Series>,
    pub file_bytes: Option<Series>,
    pub shared_bytes: Option<Series>,
    pub swap_bytes: Option<Series>,
    /// Proportional share, as last read.
    pub pss_bytes: Option<u64>,
    /// Of anonymous memory, where it grows steadily; 0 where it does not, `null` when too little was seen.
    pub growth_bytes_per_s: Option<f64>,
    pub faults: Option<FaultRates>,
    pub cpu: Option<MemoryCpu>,
    /// The proportional share over time; read seldom.
    pub proportional_bytes: Option<Series>,
}

/// A size over time, bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Series {
    pub first: u64,
    pub last: u64,
    pub max: u64,
    /// Of the straight line that fits best, and its 95 % confidence: ± this.
    pub slope_bytes_per_s: Option<f64>,
    pub slope_margin_bytes_per_s: Option<f64>,
}

/// Page faults of a process a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FaultRates {
    pub minor_per_s: f64,
    pub major_per_s: f64,
    /// Writes to pages that were shared, by samples, and its 95 % confidence.
    pub copy_on_write_per_s: Option<f64>,
    pub copy_on_write_error_per_s: Option<f64>,
    /// On files and shared memory, by samples.
    pub shared_per_s: Option<f64>,
    pub samples: u64,
}

/// What part of a process's CPU time memory takes, from clock samples.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryCpu {
    pub allocator: CpuShare,
    /// Its parts, the largest first.
    pub allocators: Vec<AllocatorCpu>,
    pub faults: CpuShare,
    /// mmap, munmap, brk, madvise, mremap, mprotect.
    pub calls: CpuShare,
    pub samples: usize,
}

/// CPU time in one allocator.
#[derive(Clone, Debug, Serialize)]
pub struct AllocatorCpu {
    /// `malloc` (the C library's, jemalloc, tcmalloc, mimalloc, operator new), `python` (the interpreter's own for objects) or `gpu` (a
    /// framework's for memory of the GPU).
    pub kind: &'static str,
    /// File name of the library or program that it is in; `null`: no file tells.
    pub module: Option<String>,
    pub share: f64,
    pub error: f64,
}

/// A share of CPU time (0–1), with its 95 % confidence.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CpuShare {
    pub share: f64,
    pub error: f64,
}

/// Calls of one kind and size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    pub pid: Id,
    pub call: &'static str,
    /// At least so many bytes, and less than twice as many.
    pub from_bytes: u64,
    pub count: u64,
}

/// Memory of a control group.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryCgroup {
    pub cgroup: String,
    pub usage_bytes: RssBytes,
    /// Its own, or the tightest one above it.
    pub limit_bytes: Option<u64>,
    pub anonymous_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    /// During the watch.
    pub oom_kills: Option<u64>,
}

/// Time in which some or all runnable threads of the host stalled for memory, seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryPressure {
    pub some_s: Option<f64>,
    pub full_s: Option<f64>,
}

/// Time in which some or all threads of a control group stalled for want of something, seconds.
#[derive(Clone, Debug, Serialize)]
pub struct CgroupPressure {
    pub cgroup: String,
    pub memory_some_s: Option<f64>,
    pub memory_full_s: Option<f64>,
    pub cpu_some_s: Option<f64>,
    pub cpu_full_s: Option<f64>,
    pub io_some_s: Option<f64>,
    pub io_full_s: Option<f64>,
}

/// What windows on allocators tell.
#[derive(Clone, Debug, Serialize)]
pub struct Allocation {
    pub windows: u32,
    /// Of them, those in which allocations were followed to their release.
    pub paired_windows: u32,
    /// Seconds in which calls were counted.
    pub window_s: f64,
    /// Standard errors of `memory.allocs_per_s` and `alloc_bytes_per_s`.
    pub allocs_per_s_error: Option<f64>,
    pub alloc_bytes_per_s_error: Option<f64>,
    pub sizes: Vec<AllocSizeRow>,
    pub lifetimes: Option<Lifetimes>,
    pub processes: Vec<AllocProcess>,
    /// Calls and addresses for which there was no room.
    pub lost: u64,
}

/// Allocations of sizes from this one on, below the next power of two.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AllocSizeRow {
    pub from_bytes: u64,
    pub count: u64,
    pub share: f64,
    /// Standard error of it.
    pub share_error: f64,
}

/// What became of allocations that were followed from `malloc` to `free`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lifetimes {
    pub followed: u64,
    pub followed_bytes: u64,
    pub freed_within_1ms_share: f64,
    pub freed_within_1ms_bytes_share: f64,
    /// At least so much: what lives longer than its window is not seen to go.
    pub freed_in_window_share: f64,
    pub freed_in_window_bytes_share: f64,
    /// Standard error of `freed_within_1ms_share`.
    pub error: f64,
    pub freed_within_1ms_bytes_share_error: f64,
    pub freed_in_window_share_error: f64,
    pub freed_in_window_bytes_share_error: f64,
}

/// Allocations of one process.
#[derive(Clone, Debug, Serialize)]
pub struct AllocProcess {
    pub pid: Id,
    /// File name of the library that serves it.
    pub allocator: Option<String>,
    pub windows: u32,
    pub window_s: f64,
    pub allocs_per_s: Option<f64>,
    pub allocs_per_s_error: Option<f64>,
    pub bytes_per_s: Option<f64>,
    pub bytes_per_s_error: Option<f64>,
    /// Calls that were counted, by function and by thread.
    pub functions: BTreeMap<String, u64>,
    pub threads: BTreeMap<u32, u64>,
    pub sizes: Vec<AllocSizeRow>,
    /// Those that called most.
    pub by_thread: Vec<AllocThread>,
}

/// Allocations of one thread.
#[derive(Clone, Debug, Serialize)]
pub struct AllocThread {
    pub tid: Id,
    /// Calls that were counted.
    pub calls: u64,
    pub allocs_per_s: Option<f64>,
    pub allocs_per_s_error: Option<f64>,
    pub bytes_per_s: Option<f64>,
    pub bytes_per_s_error: Option<f64>,
    pub sizes: Vec<AllocSizeRow>,
}

/// A function that asks for memory.
#[derive(Clone, Debug, Serialize)]
pub struct AllocationSite {
    pub pid: Id,
    /// The caller; `null` where no symbol tells.
    pub function: Option<String>,
    pub module: Option<String>,
    /// What it calls: `malloc`, `operator new`.
    pub allocator: String,
    pub allocs_per_s: Option<f64>,
    pub allocs_per_s_error: Option<f64>,
    pub bytes_per_s: Option<f64>,
    pub bytes_per_s_error: Option<f64>,
    pub kept_bytes_per_s: Option<f64>,
    pub kept_bytes_per_s_error: Option<f64>,
    /// Of the process's allocations.
    pub share: f64,
    /// Standard error of sampling.
    pub share_error: f64,
    pub samples: u64,
    /// The commonest way there, the caller first.
    pub stack: Vec<SiteFrame>,
}

/// One frame of a stack.
#[derive(Clone, Debug, Serialize)]
pub struct SiteFrame {
    pub function: Option<String>,
    pub module: Option<String>,
    /// In the module's file; the address where there is no module.
    pub offset: u64,
}

/// A call that maps or unmaps memory: how often, and the bytes that were asked for.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallRow {
    pub count: u64,
    pub bytes: u64,
}
