//! The JSON contract `trainprof.report/1`. Keys are added, never renamed.
//!
//! Shares are 0–1, times in seconds unless the key says otherwise, sizes in bytes; what was not seen is
//! `null`, never 0.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::env::{frameworks::FrameworkFacts, mounts::MountFacts};

/// Name of the contract.
pub const SCHEMA: &str = "trainprof.report/1";

/// The whole report. Every key is described in `docs/JSON.md`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub host: Option<Host>,
    pub job: Job,
    pub duration_s: f64,
    /// Why the watch ended: `duration`, `interrupted`, `job-ended`; `null` when the recording does not say.
    pub ended: Option<&'static str>,
    pub coverage: Coverage,
    pub steps: Steps,
    pub trainer: Option<Trainer>,
    pub workers: Workers,
    pub threads: Vec<ThreadTime>,
    pub gpu: Gpu,
    pub io: Io,
    pub memory: Memory,
    pub blame: Vec<BlameRow>,
    /// `null` when nothing could be walked.
    pub verdict: Option<VerdictRow>,
    pub findings: Vec<FindingRow>,
    pub cost: Cost,
}

/// The machine that was watched.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    pub kernel: String,
    pub architecture: String,
    pub hostname: Option<String>,
    pub cpu_model: Option<String>,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub virtualisation: Option<String>,
    pub clocksource: Option<String>,
    pub lockdown: Option<String>,
    pub gpu_driver: Option<String>,
    pub versions: BTreeMap<&'static str, String>,
}

/// Who was watched: facts of the process that was asked for first, and every process.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// The first process that was asked for.
    pub pid: Option<u32>,
    /// Its arguments, with what looks like a secret replaced by `***`.
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub started: Option<f64>,
    pub cgroup: Option<crate::env::cgroup::CgroupFacts>,
    pub frameworks: Option<FrameworkFacts>,
    pub processes: Vec<ProcessRow>,
}

/// One process of the job.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    pub pid: u32,
    /// Clock ticks after boot (proc(5)); tells apart two processes with one id.
    pub start_time: Option<u64>,
    pub parent: u32,
    /// `trainer`, `worker` or `helper`.
    pub role: &'static str,
    pub name: String,
    pub command: Vec<String>,
    /// Threads seen during the watch.
    pub threads: usize,
    /// Whether it ended during the watch.
    pub ended: bool,
    /// Of its leading thread.
    pub share: Shares,
    /// CPU time of all its threads.
    pub cpu_s: f64,
    /// On files only.
    pub io: Traffic,
    /// While its threads were followed; `null` when no counters are known.
    pub faults: Option<Faults>,
    pub storage: Option<StorageBytes>,
    pub rss_bytes: Option<RssBytes>,
}

/// A thread's time, split; shares of the time that it was there. `slot_wait` is for workers only.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Shares {
    pub on_cpu: f64,
    pub runnable: f64,
    /// A trainer's wait that a worker ended.
    pub data_wait: f64,
    /// For files, page faults and devices.
    pub io_wait: f64,
    /// `null`: no GPU call is seen yet.
    pub gpu_wait: Option<f64>,
    /// Ended by another thread of the process.
    pub lock_wait: f64,
    /// A trainer's wait that another trainer ended.
    pub comm_wait: f64,
    pub other_wait: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// A worker's wait that a trainer ended.
    pub slot_wait: Option<f64>,
}

/// Opens, reads and writes. Opens are the successful ones; reads and writes all calls.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Page faults (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Faults {
    pub minor: u64,
    pub major: u64,
}

/// Bytes that the kernel fetched from and sent to storage on behalf of threads (/proc/PID/io).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StorageBytes {
    pub read: u64,
    pub written: u64,
}

/// Resident bytes over time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RssBytes {
    pub first: u64,
    pub last: u64,
    pub max: u64,
}

/// What was seen, what was lost, and what could not be seen at all.
#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// Occurrences seen, single or counted.
    pub events: u64,
    /// Occurrences lost, for any reason.
    pub lost: u64,
    /// Names of [`trainprof_common::loss::Loss`], and `undecodable`.
    pub lost_by_reason: BTreeMap<&'static str, u64>,
    /// Part (0–1) of the watch in which all system calls were counted. Below 1 numbers of files, calls and bytes are estimates.
    pub calls_counted_share: f64,
    pub missing: Vec<Missing>,
}

/// Something that was not seen, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    pub what: String,
    pub reason: String,
}

/// Steps of the training loop; everything is `null` where no clock was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Steps {
    pub count: Option<u64>,
    /// Name of a [`crate::analysis::steps::Clock`].
    pub clock: Option<&'static str>,
    /// 0–1: how regular the steps are, and how well a second clock agrees.
    pub confidence: Option<f64>,
    pub time_ms: Option<StepTimes>,
}

/// Lengths of steps, milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepTimes {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Time of the step thread that went one way, back along wake-ups.
#[derive(Clone, Debug, Serialize)]
pub struct BlameRow {
    /// From the trainer to the cause.
    pub path: Vec<String>,
    /// Name of a cause, or of what could not be blamed: `sleep`, `worker-start`, `not-asked`, `unknown`.
    pub kind: &'static str,
    pub seconds: f64,
    /// Of the trainer's wall time.
    pub share: f64,
}

/// What bounds the job.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictRow {
    /// A cause, or `inconclusive`.
    pub bottleneck: &'static str,
    pub share: Option<f64>,
    /// `trainer-wall-time` or `gpu-idle-time`.
    pub share_of: &'static str,
    pub speedup_bound: Option<f64>,
    pub summary: String,
    pub confidence: f64,
}

/// One cause, or one thing worth knowing.
#[derive(Clone, Debug, Serialize)]
pub struct FindingRow {
    pub kind: &'static str,
    pub share: Option<f64>,
    pub evidence: BTreeMap<&'static str, serde_json::Value>,
    pub summary: String,
    pub advice: String,
}

/// The process that consumes batches; of several the one that used most CPU time.
#[derive(Clone, Debug, Serialize)]
pub struct Trainer {
    pub pid: u32,
    /// Its leading thread, whose time is told.
    pub tid: u32,
    pub share: Shares,
}

/// The processes that make batches.
#[derive(Clone, Debug, Serialize)]
pub struct Workers {
    pub count: usize,
    /// Mean over the workers; `null` without any.
    pub share: Option<Shares>,
}

/// Where the time of one thread went.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadTime {
    /// Role of the process for the thread that its time is told by; `helper` for its other threads.
    pub role: &'static str,
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// Seconds that it was there while it was watched.
    pub present_s: f64,
    pub on_cpu_s: f64,
    pub runnable_s: f64,
    pub wait_s: f64,
    /// What of `present_s` is in none of the three.
    pub unseen_s: f64,
    pub waits: Vec<WaitRow>,
}

/// Waits of one thread that read alike.
#[derive(Clone, Debug, Serialize)]
pub struct WaitRow {
    /// Name of a [`crate::session::kind::WaitKind`].
    pub kind: &'static str,
    pub syscall: String,
    /// Directory, or `pipe:[inode]`, `socket:[inode]`.
    pub object: Option<String>,
    /// Blocked, until woken.
    pub seconds: f64,
    /// From the wake-ups until on a CPU.
    pub runnable_s: f64,
    pub count: u64,
    pub max_s: f64,
    pub waker: Waker,
}

/// Who ended a wait.
#[derive(Clone, Debug, Serialize)]
pub struct Waker {
    /// `thread`, `interrupt`, `kernel` or `unknown`.
    pub kind: &'static str,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub name: Option<String>,
}

/// GPUs as the driver's library tells of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gpu {
    pub available: bool,
    pub devices: Vec<GpuDevice>,
    /// Idle seconds of the devices that the job uses (their mean), by cause.
    pub idle_blame: Vec<IdleRow>,
    /// Seconds of `idle_blame` that may belong to another cause: samples say how much of a span was idle, not
    /// when.
    pub idle_uncertainty_s: Option<f64>,
    /// Calls into the GPU's runtime, by function.
    pub calls: Vec<GpuCallRow>,
}

/// One GPU, or one slice of one.
#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    pub index: u32,
    pub mig: Option<u32>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub used_by_job: Option<bool>,
    /// Seconds that samples tell about.
    pub sampled_s: f64,
    pub util_mean: Option<f64>,
    pub idle_s: Option<f64>,
    pub memory_total_bytes: Option<u64>,
    pub memory_max_bytes: Option<u64>,
    pub power_mean_w: Option<f64>,
    pub sm_clock_mean_mhz: Option<f64>,
    pub temperature_max_c: Option<f64>,
    pub sm_activity_mean: Option<f64>,
    /// Bits of NVML's clock-throttle reasons that were set at any time.
    pub throttle_reasons: Option<u64>,
    pub pcie_rx_bytes_per_s: Option<f64>,
    pub pcie_tx_bytes_per_s: Option<f64>,
    pub ecc_errors: Option<u64>,
    pub processes: Vec<GpuProcess>,
}

/// A process on a GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuProcess {
    pub pid: u32,
    pub name: Option<String>,
    pub in_job: bool,
    pub memory_max_bytes: Option<u64>,
    pub util_mean: Option<f64>,
    /// Over time; `null` when it was not told.
    pub memory_bytes: Option<Series>,
}

/// Idle time by cause.
#[derive(Clone, Debug, Serialize)]
pub struct IdleRow {
    pub kind: &'static str,
    pub seconds: f64,
    /// Of the idle time.
    pub share: f64,
}

/// Calls of one function.
#[derive(Clone, Debug, Serialize)]
pub struct GpuCallRow {
    pub function: String,
    pub library: String,
    pub count: u64,
    pub seconds: f64,
    pub bytes: u64,
}

/// Files, and descriptors that are none.
#[derive(Clone, Debug, Serialize)]
pub struct Io {
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Share of the opened regular files that are smaller than 256 KiB.
    pub small_file_share: Option<f64>,
    /// Share of the bytes read that did not have to come from a device or a server.
    pub cache_hit_ratio: Option<f64>,
    /// Of `open` and `read`; a key without a value is left out.
    pub latency_us: BTreeMap<&'static str, Quantiles>,
    pub operations: BTreeMap<&'static str, OperationRow>,
    pub top: Vec<DirectoryRow>,
    pub extensions: Vec<ExtensionRow>,
    /// By `pipe`, `socket`, `shm`, `proc`, `device`, `anon`.
    pub other: BTreeMap<&'static str, OtherTraffic>,
    pub mounts: Vec<MountFacts>,
}

/// Quantiles in microseconds, at most 12.5 % off.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// One operation on files; `count` includes the failed ones.
#[derive(Clone, Debug, Serialize)]
pub struct OperationRow {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    /// Sum over all threads, waits included.
    pub seconds: f64,
    pub latency_us: Option<Quantiles>,
}

/// Operations and waits in one directory itself, not below it.
#[derive(Clone, Debug, Serialize)]
pub struct DirectoryRow {
    pub path: String,
    pub opens: u64,
    pub reads: u64,
    pub bytes: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub stats: u64,
    pub mean_file_bytes: Option<f64>,
    /// Waits on descriptors and in page faults, all threads.
    pub wait_s: f64,
    pub filesystem: Option<String>,
    pub mount: Option<String>,
}

/// Operations on files with one extension; empty for those without.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionRow {
    pub extension: String,
    pub opens: u64,
    pub reads: u64,
    pub bytes: u64,
}

/// Reads and writes of what is no file.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OtherTraffic {
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

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
    /// `null` when no window on an allocator was opened.
    pub allocation: Option<Allocation>,
    /// Processes that the kernel killed because memory had run out.
    pub oom_kills: Vec<OomKill>,
}

/// A process of the job that was killed because memory had run out.
#[derive(Clone, Debug, Serialize)]
pub struct OomKill {
    pub pid: u32,
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
    pub pid: u32,
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
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryCpu {
    pub allocator: CpuShare,
    pub faults: CpuShare,
    /// mmap, munmap, brk, madvise, mremap, mprotect.
    pub calls: CpuShare,
    pub samples: usize,
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
    pub pid: u32,
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
}

/// Allocations of one process.
#[derive(Clone, Debug, Serialize)]
pub struct AllocProcess {
    pub pid: u32,
    /// File name of the library that serves it.
    pub allocator: Option<String>,
    pub windows: u32,
    pub window_s: f64,
    pub allocs_per_s: Option<f64>,
    pub allocs_per_s_error: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Calls that were counted, by function and by thread.
    pub functions: BTreeMap<String, u64>,
    pub threads: BTreeMap<u32, u64>,
}

/// A function that asks for memory.
#[derive(Clone, Debug, Serialize)]
pub struct AllocationSite {
    pub pid: u32,
    /// The caller; `null` where no symbol tells.
    pub function: Option<String>,
    pub module: Option<String>,
    /// What it calls: `malloc`, `operator new`.
    pub allocator: String,
    pub allocs_per_s: Option<f64>,
    pub allocs_per_s_error: Option<f64>,
    pub bytes_per_s: Option<f64>,
    pub kept_bytes_per_s: Option<f64>,
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

/// What watching cost. `null` when the kernel did not count.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Run time of our probes, without `bpf_spin_ns`, over the CPU time that the whole host used meanwhile, percent: what the job, and
    /// everybody else, was slowed down on average.
    pub slowdown_estimate_pct: Option<f64>,
    /// Extrapolated from short windows in which the kernel counted.
    pub bpf_ns: Option<u64>,
    pub bpf_runs: Option<u64>,
    /// Of `bpf_ns`, in calls by which threads gave up the CPU because they had nothing to do.
    pub bpf_spin_ns: Option<u64>,
    pub collector_cpu_s: Option<f64>,
    pub collector_rss_max_bytes: Option<u64>,
    /// From the beginning of attaching until everything was followed.
    pub attach_s: Option<f64>,
    /// What was given up to keep to the budget, in the order in which it was.
    pub shed: Vec<String>,
    /// Share (0–1) of the job's CPU time that watching may cost.
    pub budget: Option<f64>,
    /// What it cost of that: probes, trainprof's own CPU time and windows, over the job's CPU time.
    pub spent_share: Option<f64>,
    pub windows: Option<WindowCost>,
}

/// What windows of allocation probes cost.
#[derive(Clone, Debug, Serialize)]
pub struct WindowCost {
    pub count: u32,
    /// Hits of the probes, those while windows opened and closed too.
    pub hits: u64,
    /// What hits took from the job's threads.
    pub job_cpu_s: f64,
    /// What closing windows added to their busiest threads, stopped or still meeting traps, summed up.
    pub pause_s: f64,
    pub trainprof_cpu_s: f64,
    /// The most that windows added to one thread in any ten seconds, as a share of them.
    pub worst_thread_share: Option<f64>,
    /// Cost of a hit as measured at the start: emulated, single-stepped; and what seeing the return adds.
    pub hit_ns: Option<f64>,
    pub stepped_hit_ns: Option<f64>,
    pub return_ns: Option<f64>,
    /// For how long taking one probe away stops a thread.
    pub close_pause_ms: Option<f64>,
}
