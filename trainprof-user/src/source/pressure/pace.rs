//! When a poll comes next: at its period, or later when it was dear.

use super::super::own;
use crate::time::KtimeNs;

/// A poll's CPU time is at most one part in so many of the time until the next: 0.5 %.
const REST_PER_COST: u64 = 200;
/// The same of a poll that may well wait: 0.1 %.
const LONG_REST_PER_COST: u64 = 1_000;
/// Intervals begin a little early or late; nanoseconds.
const SLACK_NS: u64 = 100_000_000;

/// The pace of one poll.
#[derive(Debug)]
pub(super) struct Pace {
    period_ns: u64,
    rest_per_cost: u64,
    next: KtimeNs,
}

impl Pace {
    /// Due at once, then every so many nanoseconds.
    pub(super) fn every(period_ns: u64) -> Self {
        Self {
            period_ns,
            rest_per_cost: REST_PER_COST,
            next: KtimeNs(0),
        }
    }

    /// The same, with a longer rest after a dear one.
    pub(super) fn sparing(period_ns: u64) -> Self {
        Self {
            rest_per_cost: LONG_REST_PER_COST,
            ..Self::every(period_ns)
        }
    }

    /// Makes it due.
    pub(super) fn now(&mut self) {
        self.next = KtimeNs(0);
    }

    pub(super) fn is_due(&self, now: KtimeNs) -> bool {
        now.0.saturating_add(SLACK_NS) >= self.next.0
    }

    /// Works if it is due, and takes the CPU time of it into account.
    pub(super) fn round<T>(&mut self, now: KtimeNs, work: impl FnOnce() -> T) -> Option<T> {
        if !self.is_due(now) {
            return None;
        }
        let before = own::thread_cpu_ns();
        let done = work();
        self.spent(now, own::thread_cpu_ns().saturating_sub(before));
        Some(done)
    }

    pub(super) fn spent(&mut self, now: KtimeNs, cost_ns: u64) {
        let rest = cost_ns
            .saturating_mul(self.rest_per_cost)
            .max(self.period_ns);
        self.next = KtimeNs(now.0.saturating_add(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_cheap_poll_keeps_its_period_and_a_dear_one_rests() {
        let at = KtimeNs(50_000 * MS);
        let later = |ms: u64| KtimeNs(at.0 + ms * MS);
        // CPU time of a round in µs, ms until the next one is due.
        for (cost_us, rest_ms) in [(0, 1_000), (4_000, 1_000), (20_000, 4_000)] {
            let mut pace = Pace::every(1_000 * MS);
            assert!(pace.is_due(at));
            pace.spent(at, cost_us * 1_000);
            assert!(!pace.is_due(later(rest_ms - 101)), "{cost_us} µs");
            assert!(pace.is_due(later(rest_ms - 99)), "{cost_us} µs");
            pace.now();
            assert!(pace.is_due(at));
        }
    }

    #[test]
    fn a_round_counts_the_cpu_time_that_it_took() {
        let at = KtimeNs(1);
        let mut pace = Pace::every(0);
        let begin = own::thread_cpu_ns();
        let spun = || while own::thread_cpu_ns() < begin + 5 * MS {};
        assert_eq!(pace.round(at, spun), Some(()));
        assert_eq!(pace.round(KtimeNs(800 * MS), || ()), None);
    }
}
