//! When the job's own CPU quota kept it off the CPU.

use super::facts::Facts;

/// A piece of being runnable that is shorter than this is no throttling: a period is 100 ms as a rule.
const MIN_PIECE_NS: u64 = 2_000_000;
/// A thread of the job had the CPU before: then only a piece this long is throttling.
const MIN_PIECE_AMONG_OURS_NS: u64 = 10_000_000;
/// Periods that were throttled, of all: fewer are noise.
const MIN_PERIODS: f64 = 0.05;

/// Stretches between two readings of a quota in which it was hit.
pub struct Throttled {
    stretches: Vec<(u64, u64)>,
    /// Share (0–1) of the periods of the watch that were throttled, of the cgroup where that was most.
    pub periods: f64,
    /// That cgroup, and its quota in CPUs.
    pub cgroup: Option<(String, f64)>,
}

impl Throttled {
    pub fn new(facts: &Facts) -> Self {
        let mut out = Self {
            stretches: Vec::new(),
            periods: 0.0,
            cgroup: None,
        };
        for (cgroup, series) in &facts.session.host.quotas {
            let (Some(first), Some(last)) = (series.first(), series.last()) else {
                continue;
            };
            let share = |a: &crate::record::fact::QuotaSample,
                         b: &crate::record::fact::QuotaSample| {
                let periods = b.periods.saturating_sub(a.periods);
                let hit = b.throttled_periods.saturating_sub(a.throttled_periods);
                if periods == 0 {
                    0.0
                } else {
                    hit as f64 / periods as f64
                }
            };
            let whole = share(first, last);
            if whole > out.periods {
                out.periods = whole;
                let cpus = last.quota_us as f64 / last.period_us.max(1) as f64;
                out.cgroup = Some((cgroup.clone(), cpus));
            }
            out.stretches.extend(
                series
                    .windows(2)
                    .filter(|pair| share(&pair[0], &pair[1]) >= MIN_PERIODS)
                    .map(|pair| (pair[0].at.0, pair[1].at.0)),
            );
        }
        out.stretches = super::spans::union(out.stretches);
        out
    }

    /// Share (0–1) of pieces of being runnable that were throttling. `among_ours`: a thread of the job had the
    /// CPU before.
    pub fn share(&self, pieces: &[(u64, u64)], among_ours: bool) -> f64 {
        let least = if among_ours {
            MIN_PIECE_AMONG_OURS_NS
        } else {
            MIN_PIECE_NS
        };
        let (mut all, mut hit) = (0, 0);
        for (from, to) in pieces {
            all += to - from;
            if to - from >= least {
                hit += super::spans::overlap(&self.stretches, *from, *to);
            }
        }
        if all == 0 {
            0.0
        } else {
            hit as f64 / all as f64
        }
    }
}
