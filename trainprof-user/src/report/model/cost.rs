//! What watching cost.

use serde::Serialize;

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
    /// Of it, until the watch began.
    pub start_cpu_s: Option<f64>,
    pub collector_rss_max_bytes: Option<u64>,
    /// From the beginning of attaching until everything was followed.
    pub attach_s: Option<f64>,
    /// What was given up to keep to the budget, in the order in which it was.
    pub shed: Vec<String>,
    /// Share (0–1) of the job's CPU time that watching may cost.
    pub budget: Option<f64>,
    /// What it cost of that: probes, trainprof's own CPU time with that of its start, and windows, over the job's CPU time.
    pub spent_share: Option<f64>,
    /// The probes' part of `spent_share` is estimated by how often they ran.
    pub estimated: bool,
    pub windows: Option<WindowCost>,
}

/// What windows of allocation probes cost.
#[derive(Clone, Debug, Serialize)]
pub struct WindowCost {
    pub count: u32,
    /// Of these, those that ended early because a thread had called often enough.
    pub capped: u32,
    /// Hits of the probes, those while windows opened and closed too.
    pub hits: u64,
    /// What hits took from the job's threads.
    pub job_cpu_s: f64,
    /// What opening and closing windows added to their busiest threads, stopped or still meeting traps, summed up.
    pub pause_s: f64,
    pub trainprof_cpu_s: f64,
    /// The most that windows added to one thread in any ten seconds, as a share of them.
    pub worst_thread_share: Option<f64>,
    /// Cost of a hit as measured at the start: emulated, single-stepped; and what seeing the return adds.
    pub hit_ns: Option<f64>,
    pub stepped_hit_ns: Option<f64>,
    pub return_ns: Option<f64>,
    /// For how long putting one probe in, and taking one away, stops a thread.
    pub open_pause_ms: Option<f64>,
    pub close_pause_ms: Option<f64>,
}
