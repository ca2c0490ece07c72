//! A threshold that rises while too many single events arrive, and falls again when few do. Sums in the
//! kernel are exact at any threshold: only what is sent one by one depends on it.

use crate::time::KtimeNs;

const SECOND: u64 = 1_000_000_000;

/// Between which bounds a threshold moves, and when.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub least: u64,
    pub most: u64,
    /// More events than this in a second: twice the threshold.
    pub raise_above: u64,
    /// Fewer than this a second: half of it.
    pub lower_below: u64,
}

/// A threshold in force.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    bounds: Bounds,
    value: u64,
    /// Events since the second began or the threshold rose; when the second began.
    recent: u64,
    second: KtimeNs,
    /// Events in the interval.
    events: u64,
    /// The highest threshold that was in force in the interval.
    highest: u64,
    raised: bool,
}

impl Throttle {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            value: bounds.least,
            recent: 0,
            second: KtimeNs(0),
            events: 0,
            highest: bounds.least,
            raised: false,
        }
    }

    /// `n` more events arrived until `now`. A new threshold, when it must rise at once: before the ring overflows.
    pub fn arrived(&mut self, n: u64, now: KtimeNs) -> Option<u64> {
        if now.since(self.second) >= SECOND {
            (self.second, self.recent) = (now, 0);
        }
        self.events += n;
        self.recent += n;
        let before = self.value;
        while self.recent > self.bounds.raise_above && self.value < self.bounds.most {
            self.value = (self.value * 2).min(self.bounds.most);
            self.recent -= self.bounds.raise_above;
        }
        if self.value == before {
            return None;
        }
        self.recent = 0;
        self.raised = true;
        self.highest = self.highest.max(self.value);
        Some(self.value)
    }

    /// An interval of `ns` nanoseconds is over: the threshold above which every event of it was sent, and a
    /// new threshold, when it can fall.
    pub fn interval(&mut self, ns: u64) -> (u64, Option<u64>) {
        let highest = self.highest;
        let quiet = self.events.saturating_mul(SECOND) < self.bounds.lower_below.saturating_mul(ns);
        // What happens before a lower threshold reaches the kernel still falls under this one.
        self.highest = self.value;
        let lower = (quiet && !self.raised && self.value > self.bounds.least).then(|| {
            self.value = (self.value / 2).max(self.bounds.least);
            self.value
        });
        self.events = 0;
        self.raised = false;
        (highest, lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        least: 50,
        most: 1_600,
        raise_above: 6_000,
        lower_below: 1_500,
    };

    fn at(second: u64) -> KtimeNs {
        KtimeNs((100 + second) * SECOND)
    }

    #[test]
    fn it_rises_at_once_and_falls_in_quiet() {
        let mut t = Throttle::new(BOUNDS);
        assert_eq!(t.arrived(6_000, at(0)), None);
        assert_eq!(t.arrived(1, at(0)), Some(100));
        // Several times too many: several steps at once.
        assert_eq!(t.arrived(13_000, at(0)), Some(400));
        assert_eq!(t.interval(SECOND), (400, None));
        assert_eq!(t.arrived(1_499, at(1)), None);
        assert_eq!(t.interval(SECOND), (400, Some(200)));
        // The interval began under the old one.
        assert_eq!(t.interval(SECOND), (400, Some(100)));
        assert_eq!(t.interval(SECOND), (200, Some(50)));
        assert_eq!(t.interval(SECOND), (100, None));
        assert_eq!(t.interval(SECOND), (50, None));
    }

    #[test]
    fn it_stays_within_its_bounds_and_between_the_rates() {
        let mut t = Throttle::new(BOUNDS);
        assert_eq!(t.arrived(1_000_000, at(0)), Some(1_600));
        assert_eq!(t.arrived(1_000_000, at(0)), None);
        assert_eq!(t.interval(SECOND), (1_600, None));
        // Neither many nor few.
        for second in 1..4 {
            assert_eq!(t.arrived(3_000, at(second)), None);
            assert_eq!(t.interval(SECOND), (1_600, None));
        }
        // Short intervals are judged by rate.
        assert_eq!(t.arrived(400, at(4)), None);
        assert_eq!(t.interval(SECOND / 10), (1_600, None));
    }

    #[test]
    fn events_of_a_long_interval_are_judged_by_the_second() {
        let mut t = Throttle::new(BOUNDS);
        for second in 0..4 {
            assert_eq!(t.arrived(5_000, at(second)), None);
        }
        assert_eq!(t.interval(4 * SECOND), (50, None));
        assert_eq!(t.arrived(6_001, at(4)), Some(100));
    }
}
