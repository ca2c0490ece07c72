//! What sampling costs the job beside the programs that the kernel counts: interrupts by clocks, and page faults that are counted. Pure.

use crate::source::fault_turns::FaultTurns;

/// By how much longer a page fault takes while faults are counted, nanoseconds, where it was not measured.
pub const COUNTED_NS: f64 = 25.0;
/// What a fault takes longer all the time that the event is there, off or on, as a part of that: 36 of 45 ns were measured with and
/// without it, on AMD EPYC.
const PRESENT: f64 = 0.8;

/// Faults a second of which that is measured: they cost some thousandth of a CPU.
const MANY_FAULTS: f64 = 20_000.0;

/// What that was so far.
#[derive(Debug)]
pub struct Beside {
    pub faults: FaultTurns,
    /// Clock samples since the last interval.
    pub samples: u64,
    /// What an interrupt by a clock takes, nanoseconds; `None`: not measured yet.
    pub interrupt_ns: Option<f64>,
    /// By how much longer a page fault takes while faults are counted, nanoseconds; `None`: not measured yet.
    pub fault_ns: Option<f64>,
    faults_before: u64,
    ns: f64,
}

impl Beside {
    /// `seed`: any number that differs from watch to watch.
    pub fn new(seed: u64) -> Self {
        Self {
            faults: FaultTurns::new(seed),
            samples: 0,
            interrupt_ns: None,
            fault_ns: None,
            faults_before: 0,
            ns: 0.0,
        }
    }

    /// Nanoseconds since the beginning.
    pub fn ns(&self) -> u64 {
        self.ns as u64
    }

    /// An interval of so many seconds is over; sampled faults stood for `all_faults` until then. `budget_ns`: what watching may cost,
    /// nanoseconds a second.
    pub fn interval(&mut self, seconds: f64, all_faults: u64, budget_ns: f64) {
        let every = u64::from(self.faults.every());
        let stood_for = all_faults - std::mem::replace(&mut self.faults_before, all_faults);
        let faults = stood_for / every;
        let samples = std::mem::take(&mut self.samples);
        let counted = self.fault_ns.unwrap_or(COUNTED_NS);
        self.faults.interval(seconds, faults, budget_ns, counted);
        self.ns += samples as f64 * self.interrupt_ns.unwrap_or(0.0)
            + faults as f64 * counted
            + self.faults.rate * seconds * counted * PRESENT;
    }

    /// Whether faults were so many in the last interval that it matters what counting them costs, and that was not measured yet.
    pub fn wants_fault_cost(&self) -> bool {
        self.fault_ns.is_none() && self.faults.are_on() && self.faults.rate > MANY_FAULTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_and_faults_are_paid_for() {
        let mut beside = Beside::new(1);
        beside.samples = 100;
        beside.interval(1.0, 1_000_000, 1e7);
        assert_eq!(
            beside.ns(),
            45_000_000,
            "what an interrupt takes is not known yet"
        );
        beside.interrupt_ns = Some(40_000.0);
        beside.samples = 100;
        beside.interval(1.0, 2_000_000, 1e7);
        assert_eq!(beside.ns(), 45_000_000 + 49_000_000);
        assert!(beside.wants_fault_cost());
        beside.fault_ns = Some(50.0);
        beside.interval(1.0, 3_000_000, 1e7);
        assert_eq!(beside.ns(), 94_000_000 + 90_000_000);
    }

    #[test]
    fn faults_of_intervals_in_which_none_are_counted_cost_less() {
        let mut beside = Beside::new(1);
        let mut all = 0;
        for _ in 0..100 {
            if beside.faults.are_on() {
                all += 1_000_000 * u64::from(beside.faults.every());
            }
            beside.interval(1.0, all, 1e7);
        }
        let counted = beside.ns() as f64 / (1e6 * COUNTED_NS) - 100.0 * PRESENT;
        // The first four, and an eighth of the others.
        assert!((15.0..=17.0).contains(&counted), "{counted}");
    }
}
