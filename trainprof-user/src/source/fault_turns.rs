//! Page-fault samples in turns: while they are on, each fault of the host costs a little, sampled or not. A job that faults all the time
//! has them on in one interval of several, picked by chance: what is seen then stands for all of these. Pure.

use super::jitter::Jitter;

/// They are on all the time at first, for a first verdict: for so many intervals, or fewer where they cost more than half of the budget.
const FIRST: u32 = 10;
const FIRST_IF_DEAR: u32 = 4;
const DEAR: f64 = 0.5;
/// What they may cost of the budget, as a part (0–1).
const PART: f64 = 0.05;
/// They are on in one of no more intervals than these.
const MOST: f64 = 8.0;

/// In which intervals they are on.
#[derive(Debug)]
pub struct FaultTurns {
    random: Jitter,
    intervals: u32,
    /// One of so many is one in which they are on; which of them it is, and which one this is.
    every: u32,
    chosen: u32,
    at: u32,
    /// Faults a second, when they were on last.
    pub rate: f64,
}

impl FaultTurns {
    /// `seed`: any number that differs from watch to watch.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Jitter::new(seed),
            intervals: 0,
            every: 1,
            chosen: 0,
            at: 0,
            rate: 0.0,
        }
    }

    pub fn are_on(&self) -> bool {
        self.at == self.chosen
    }

    /// For how many intervals what is seen now stands.
    pub fn every(&self) -> u32 {
        self.every
    }

    /// An interval of so many seconds is over, in which samples stood for so many faults of that interval; `budget_ns`: what watching may
    /// cost, nanoseconds a second; `fault_ns`: by how much longer a fault takes while they are on.
    pub fn interval(&mut self, seconds: f64, faults: u64, budget_ns: f64, fault_ns: f64) {
        if self.are_on() && seconds > 0.0 {
            self.rate = faults as f64 / seconds;
        }
        self.intervals += 1;
        self.at += 1;
        if self.at < self.every {
            return;
        }
        self.at = 0;
        let cost = self.rate * fault_ns;
        let first = if cost > DEAR * budget_ns {
            FIRST_IF_DEAR
        } else {
            FIRST
        };
        self.every = if self.intervals < first {
            1
        } else {
            (cost / (PART * budget_ns).max(1.0)).ceil().clamp(1.0, MOST) as u32
        };
        self.chosen = (self.random.number() % u64::from(self.every)) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT_NS: f64 = 25.0;
    /// 1 % of two CPUs.
    const BUDGET_NS: f64 = 2e7;

    #[test]
    fn few_faults_are_sampled_all_the_time_and_many_at_first() {
        let mut few = FaultTurns::new(7);
        let mut many = FaultTurns::new(7);
        for second in 0..100 {
            assert!(few.are_on());
            assert!(many.are_on() || second >= FIRST);
            few.interval(1.0, 10_000, BUDGET_NS, FAULT_NS);
            many.interval(1.0, 100_000, BUDGET_NS, FAULT_NS);
        }
        assert_eq!(many.every(), 3);
    }

    #[test]
    fn what_is_seen_stands_for_all_and_costs_its_part() {
        for (faults, first) in [
            (50_000_u64, FIRST),
            (120_000, FIRST),
            (10_000_000, FIRST_IF_DEAR),
        ] {
            let mut turns = FaultTurns::new(faults);
            let (mut seen, mut on, mut others) = (0, 0, std::collections::BTreeSet::new());
            let seconds = 840;
            for second in 0..first + seconds {
                let is_on = turns.are_on();
                if second >= first && is_on {
                    seen += faults * u64::from(turns.every());
                    on += 1;
                    others.insert(second % 2);
                }
                turns.interval(1.0, if is_on { faults } else { 0 }, BUDGET_NS, FAULT_NS);
            }
            let told = seen as f64 / (faults * u64::from(seconds)) as f64;
            assert!((told - 1.0).abs() < 0.01, "{faults}: {told}");
            let costs = on as f64 * faults as f64 * FAULT_NS / f64::from(seconds);
            let most = PART * BUDGET_NS;
            assert!(
                costs < 1.02 * most || turns.every() == 8,
                "{faults}: {costs}"
            );
            assert_eq!(others.len(), 2, "always in step");
        }
    }

    #[test]
    fn who_faults_less_is_seen_all_the_time_again() {
        let mut turns = FaultTurns::new(3);
        let mut on = 0;
        for second in 0..60 {
            let faults = if second < 30 { 500_000 } else { 100 };
            on += u32::from(second >= 46 && turns.are_on());
            turns.interval(
                1.0,
                if turns.are_on() { faults } else { 0 },
                BUDGET_NS,
                FAULT_NS,
            );
        }
        assert_eq!(on, 14, "within two groups of eight");
    }
}
