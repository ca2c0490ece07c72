//! What watching costs so far: the probes by the kernel's count, ourselves, and the host beside us.

use crate::{
    kernel::RunStats,
    record::{Record, fact::CostSample},
    source::own,
    time::KtimeNs,
};

/// Run time of the probes, counted by the kernel in short windows.
pub struct Cost {
    started: KtimeNs,
    /// CPU time that the host had used when the watch began.
    host_busy_ns: Option<u64>,
    window: Option<(KtimeNs, RunStats)>,
    counted: RunStats,
    counted_ns: u64,
    /// What the probes cost from the beginning of the watch until the last sample, extrapolated.
    pub probes: RunStats,
}

impl Cost {
    /// Of a watch that began at `started`.
    pub fn begin(started: KtimeNs) -> Self {
        Self {
            started,
            host_busy_ns: own::host_busy_ns(),
            window: None,
            counted: RunStats::default(),
            counted_ns: 0,
            probes: RunStats::default(),
        }
    }

    /// The kernel counts from now on; `before`: what it had counted.
    pub fn begin_window(&mut self, before: RunStats) {
        self.window = Some((own::now(), before));
    }

    /// It does so no longer; false when it did not.
    pub fn end_window(&mut self, after: RunStats) -> bool {
        let Some((from, before)) = self.window.take() else {
            return false;
        };
        self.counted.ns += after.ns.saturating_sub(before.ns);
        self.counted.runs += after.runs.saturating_sub(before.runs);
        self.counted_ns += own::now().since(from);
        true
    }

    /// What watching costs so far; of the probes what the windows of counting tell.
    pub fn sample(&mut self) -> Record {
        let at = own::now();
        let scale = |n: u64| {
            let all = u128::from(n) * u128::from(at.since(self.started));
            (self.counted_ns > 0).then(|| (all / u128::from(self.counted_ns)) as u64)
        };
        let (bpf_ns, bpf_runs) = (scale(self.counted.ns), scale(self.counted.runs));
        self.probes = RunStats {
            ns: bpf_ns.unwrap_or(0),
            runs: bpf_runs.unwrap_or(0),
        };
        let (collector_cpu_ns, collector_rss_max_bytes) = own::usage();
        Record::Cost(CostSample {
            at,
            bpf_ns,
            bpf_runs,
            counted_ns: self.counted_ns,
            host_busy_ns: own::host_busy_ns()
                .zip(self.host_busy_ns)
                .map(|(now, then)| now.saturating_sub(then)),
            collector_cpu_ns,
            collector_rss_max_bytes,
        })
    }
}
