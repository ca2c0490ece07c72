//! What watching costs so far: the probes by the kernel's count, ourselves, and the host beside us.

use crate::{
    kernel::RunStats,
    record::{Record, fact::CostSample},
    source::own,
    time::KtimeNs,
};

/// Run time of the probes, counted by the kernel in short windows.
pub struct Cost {
    /// CPU time that the host had used when the watch began.
    host_busy_ns: Option<u64>,
    window: Option<(KtimeNs, RunStats)>,
    spread: Spread,
    /// What the probes cost from the beginning of the watch until the last sample, extrapolated.
    pub probes: RunStats,
}

/// Windows of counting, each spread over the time since the one before: a busy moment at the beginning, where windows
/// are close together, does not stand for all of the watch.
#[derive(Debug)]
struct Spread {
    /// Until where `sum` goes.
    until: KtimeNs,
    sum: RunStats,
    /// The last window, and its length in nanoseconds.
    last: RunStats,
    last_ns: u64,
    counted_ns: u64,
}

impl Spread {
    fn from(at: KtimeNs) -> Self {
        Self {
            until: at,
            sum: RunStats::default(),
            last: RunStats::default(),
            last_ns: 0,
            counted_ns: 0,
        }
    }

    fn window(&mut self, at: KtimeNs, counted: RunStats, length_ns: u64) {
        if length_ns == 0 {
            return;
        }
        self.counted_ns += length_ns;
        (self.last, self.last_ns) = (counted, length_ns);
        self.sum = self.at(at);
        self.until = at;
    }

    /// The sum until `at`, the last window's rate going on.
    fn at(&self, at: KtimeNs) -> RunStats {
        let more = |n: u64| {
            let all = u128::from(n) * u128::from(at.since(self.until));
            (all / u128::from(self.last_ns.max(1))) as u64
        };
        RunStats {
            ns: self.sum.ns + more(self.last.ns),
            runs: self.sum.runs + more(self.last.runs),
        }
    }
}

impl Cost {
    /// Of a watch that began at `started`.
    pub fn begin(started: KtimeNs) -> Self {
        Self {
            host_busy_ns: own::host_busy_ns(),
            window: None,
            spread: Spread::from(started),
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
        let counted = RunStats {
            ns: after.ns.saturating_sub(before.ns),
            runs: after.runs.saturating_sub(before.runs),
        };
        let now = own::now();
        self.spread.window(now, counted, now.since(from));
        true
    }

    /// What watching costs so far; of the probes what the windows of counting tell.
    pub fn sample(&mut self) -> Record {
        let at = own::now();
        let counted_ns = self.spread.counted_ns;
        let known = (counted_ns > 0).then(|| self.spread.at(at));
        self.probes = known.unwrap_or_default();
        let (collector_cpu_ns, collector_rss_max_bytes) = own::usage();
        Record::Cost(CostSample {
            at,
            bpf_ns: known.map(|probes| probes.ns),
            bpf_runs: known.map(|probes| probes.runs),
            counted_ns,
            host_busy_ns: own::host_busy_ns()
                .zip(self.host_busy_ns)
                .map(|(now, then)| now.saturating_sub(then)),
            collector_cpu_ns,
            collector_rss_max_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_stands_for_the_time_since_the_one_before() {
        let at = |ms: u64| KtimeNs(ms * 1_000_000);
        let counted = |ns, runs| RunStats { ns, runs };
        let mut spread = Spread::from(at(1_000));
        // 20 ms of each: a busy one after a quarter of a second, then quiet ones.
        spread.window(at(1_250), counted(10_000_000, 10_000), 20_000_000);
        spread.window(at(2_250), counted(20_000, 20), 20_000_000);
        spread.window(at(6_250), counted(20_000, 20), 20_000_000);
        let sum = spread.at(at(11_250));
        assert_eq!(sum.ns, 125_000_000 + 1_000_000 + 4_000_000 + 5_000_000);
        assert_eq!(sum.runs, 125_000 + 1_000 + 4_000 + 5_000);
        assert_eq!(spread.counted_ns, 60_000_000);
        spread.window(at(11_250), counted(1, 1), 0);
        assert_eq!(spread.at(at(11_250)).ns, sum.ns, "no time, no count");
    }
}
