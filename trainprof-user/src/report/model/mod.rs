//! The JSON contract `trainprof.report/1`. Keys are added, never renamed.
//!
//! Shares are 0–1, times in seconds unless the key says otherwise, sizes in bytes; what was not seen is
//! `null`, never 0.

mod cost;
mod gpu;
mod io;
mod memory;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::{cost::*, gpu::*, io::*, memory::*};
use crate::{env::frameworks::FrameworkFacts, session::Id};

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
    /// Findings that could not be looked for, in the order of the rules.
    pub not_told: Vec<NotToldRow>,
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
    pub pid: Option<Id>,
    /// Its arguments, with what looks like a secret replaced by `***`.
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub started: Option<f64>,
    /// Its own or, where they name no container, pod or batch job and the trainer's do, the trainer's.
    pub cgroup: Option<crate::env::cgroup::CgroupFacts>,
    /// Its own or, where it has no interpreter and no framework and the trainer has, the trainer's.
    pub frameworks: Option<FrameworkFacts>,
    pub processes: Vec<ProcessRow>,
}

/// One process of the job.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    pub pid: Id,
    /// Clock ticks after boot (proc(5)); tells apart two processes with one id.
    pub start_time: Option<u64>,
    pub parent: Id,
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
    /// Seconds that its leading thread was there while it was watched; `null` when no thread was seen.
    pub present_s: Option<f64>,
    /// All waiting of its leading thread, seconds, by the kind of the wait.
    pub wait_s_by_kind: BTreeMap<&'static str, f64>,
    /// The longest waits of its leading thread.
    pub waits: Vec<WaitRow>,
    /// CPU time of all its threads.
    pub cpu_s: f64,
    /// On files only.
    /// `null` where operations on files are not seen.
    pub io: Option<Traffic>,
    /// Likewise, by operation: those that it made.
    pub operations: BTreeMap<&'static str, Operations>,
    /// Of its opens and reads of files.
    pub latency_us: Latencies,
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
    /// When, the times with most first.
    pub lost_windows: Vec<LostWindow>,
    /// Part (0–1) of the watch in which all system calls were counted. Below 1 numbers of files, calls and bytes are estimates.
    pub calls_counted_share: f64,
    pub missing: Vec<Missing>,
}

/// Intervals, one after the other, in each of which something was lost: seconds since the watch began.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LostWindow {
    pub from_s: f64,
    pub to_s: f64,
    pub lost: u64,
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
    /// What other clocks count.
    pub others: Vec<OtherClock>,
    /// The steps that everything else is about; `None`: the same ones.
    pub walked: Option<WalkedSteps>,
}

/// Steps in the part of the watch in which calls were counted.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WalkedSteps {
    pub count: u64,
    pub mean_ms: f64,
}

/// Another clock than that which the steps are from.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OtherClock {
    pub clock: &'static str,
    pub count: u64,
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
    /// `trainer-wall-time`, `gpu-idle-time`, or `gpu-time` for computing on a GPU that is sampled.
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
    /// Of a cause: what the job would gain without it, at most.
    pub effect: Option<String>,
}

/// Something that is neither found nor known not to be there.
#[derive(Clone, Debug, Serialize)]
pub struct NotToldRow {
    /// The finding's `kind`.
    pub kind: &'static str,
    pub reason: String,
}

/// The process that consumes batches; of several the one that used most CPU time.
#[derive(Clone, Debug, Serialize)]
pub struct Trainer {
    pub pid: Id,
    /// Its leading thread, whose time is told.
    pub tid: Id,
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
    /// Role of the process for the thread that its time is told by; `loader` for the trainer's other threads through which batches come; `helper` for all others.
    pub role: &'static str,
    pub pid: Id,
    pub tid: Id,
    pub name: String,
    /// Seconds that it was there while it was watched.
    pub present_s: f64,
    pub on_cpu_s: f64,
    pub runnable_s: f64,
    pub wait_s: f64,
    /// All of `wait_s`, by the kind of the wait.
    pub wait_s_by_kind: BTreeMap<&'static str, f64>,
    /// What of `present_s` is in none of the three.
    pub unseen_s: f64,
    /// On files only.
    /// `null` where operations on files are not seen.
    pub io: Option<ThreadIo>,
    /// On files, by operation: those that it made.
    pub operations: BTreeMap<&'static str, Operations>,
    /// Of its opens and reads of files.
    pub latency_us: Latencies,
    pub waits: Vec<WaitRow>,
}

/// What one thread did with files. Opens include the failed ones.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ThreadIo {
    pub opens: u64,
    pub reads: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// In open, stat, getdents and close; in reads; in writes, fsync and rename: waits included.
    pub meta_s: f64,
    pub read_s: f64,
    pub write_s: f64,
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
    /// Of `seconds`, what the kernel counts as waiting for I/O (`in_iowait` of its `task_struct`).
    pub iowait_s: f64,
    pub count: u64,
    pub max_s: f64,
    pub waker: Waker,
}

/// Who ended a wait.
#[derive(Clone, Debug, Serialize)]
pub struct Waker {
    /// `thread`, `interrupt`, `kernel` or `unknown`.
    pub kind: &'static str,
    pub pid: Option<Id>,
    pub tid: Option<Id>,
    pub name: Option<String>,
}
