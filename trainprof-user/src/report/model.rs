//! The JSON contract `trainprof.report/1`. Keys are added, never renamed.
//!
//! Shares are 0–1, times in seconds unless the key says otherwise, sizes in bytes; what was not seen is
//! `null`, never 0.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::env::{frameworks::FrameworkFacts, mounts::MountFacts};

/// Name of the contract.
pub const SCHEMA: &str = "trainprof.report/1";

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
    pub blame: Vec<()>,
    pub verdict: Option<()>,
    pub findings: Vec<()>,
    pub cost: Cost,
}

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

#[derive(Clone, Debug, Serialize)]
pub struct Job {
    pub pid: Option<u32>,
    pub command: Vec<String>,
    /// Seconds since 1970.
    pub started: Option<f64>,
    pub cgroup: Option<crate::env::cgroup::CgroupFacts>,
    pub frameworks: Option<FrameworkFacts>,
    pub processes: Vec<ProcessRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    pub pid: u32,
    /// Clock ticks after boot (proc(5)); tells apart two processes with one id.
    pub start_time: Option<u64>,
    pub parent: u32,
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
    pub io: Traffic,
    pub faults: Option<Faults>,
    pub storage: Option<StorageBytes>,
    pub rss_bytes: Option<RssBytes>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Shares {
    pub on_cpu: f64,
    pub runnable: f64,
    pub data_wait: f64,
    pub io_wait: f64,
    /// `null`: no GPU call is seen yet.
    pub gpu_wait: Option<f64>,
    pub lock_wait: f64,
    pub comm_wait: f64,
    pub other_wait: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_wait: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    pub opens: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Faults {
    pub minor: u64,
    pub major: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StorageBytes {
    pub read: u64,
    pub written: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct RssBytes {
    pub first: u64,
    pub last: u64,
    pub max: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Coverage {
    /// Occurrences seen, single or counted.
    pub events: u64,
    /// Occurrences lost, for any reason.
    pub lost: u64,
    pub lost_by_reason: BTreeMap<&'static str, u64>,
    pub missing: Vec<Missing>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    pub what: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Steps {
    pub count: Option<u64>,
    pub clock: Option<String>,
    pub time_ms: Option<()>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Trainer {
    pub pid: u32,
    pub tid: u32,
    pub share: Shares,
}

#[derive(Clone, Debug, Serialize)]
pub struct Workers {
    pub count: usize,
    /// Mean over the workers; `null` without any.
    pub share: Option<Shares>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ThreadTime {
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

#[derive(Clone, Debug, Serialize)]
pub struct WaitRow {
    pub kind: &'static str,
    pub syscall: String,
    pub object: Option<String>,
    pub seconds: f64,
    /// From the wake-ups until on a CPU.
    pub runnable_s: f64,
    pub count: u64,
    pub max_s: f64,
    pub waker: Waker,
}

#[derive(Clone, Debug, Serialize)]
pub struct Waker {
    /// `thread`, `interrupt`, `kernel` or `unknown`.
    pub kind: &'static str,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Gpu {
    pub available: bool,
    pub devices: Vec<()>,
    pub idle_blame: Vec<()>,
}

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
    pub latency_us: BTreeMap<&'static str, Quantiles>,
    pub operations: BTreeMap<&'static str, OperationRow>,
    pub top: Vec<DirectoryRow>,
    pub extensions: Vec<ExtensionRow>,
    pub other: BTreeMap<&'static str, OtherTraffic>,
    pub mounts: Vec<MountFacts>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct OperationRow {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub latency_us: Option<Quantiles>,
}

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
    pub wait_s: f64,
    pub filesystem: Option<String>,
    pub mount: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ExtensionRow {
    pub extension: String,
    pub opens: u64,
    pub reads: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OtherTraffic {
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Sum over the job's processes; pages that they share are counted once for each.
    pub rss_bytes: Option<RssBytes>,
    pub growth_bytes_per_s: Option<f64>,
    pub time_to_limit_s: Option<f64>,
    pub allocs_per_s: Option<f64>,
    pub alloc_bytes_per_s: Option<f64>,
    pub churn_share: Option<f64>,
    pub sites: Vec<()>,
    pub faults: Option<Faults>,
    pub calls: BTreeMap<&'static str, CallRow>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallRow {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Run time of our probes over the CPU time that the whole host used meanwhile, percent: what the job, and
    /// everybody else, was slowed down on average.
    pub slowdown_estimate_pct: Option<f64>,
    pub bpf_ns: Option<u64>,
    pub bpf_runs: Option<u64>,
    pub collector_cpu_s: Option<f64>,
    pub collector_rss_max_bytes: Option<u64>,
    pub attach_s: Option<f64>,
    pub shed: Vec<String>,
}
