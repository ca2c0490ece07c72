//! What is given up for now.

use super::{
    super::{
        shed::{CELLS, Looking, Shed},
        window::{Costs, UNKNOWN_RATE, slowed},
    },
    BUSY_CPUS, Governor, Load,
    windows::PAIRED_EVERY,
};

/// Half of the samples are given up when all cost more than this part (0–1) of the budget. None are in the first intervals: a first
/// verdict needs them.
const SAMPLES_THAT_COST: f64 = 0.1;
const WHOLE_INTERVALS: u32 = 10;
/// A job that uses fewer CPUs than this is not at work, and nothing of it is left out.
const AT_WORK_CPUS: f64 = 0.02;
/// Length of the window by which it is decided what is given up, seconds.
const PREDICTED_S: f64 = 0.002;
/// What can be afforded only once in so many seconds is given up.
const PAIRED_WITHIN_S: f64 = 60.0;
const STACKS_WITHIN_S: f64 = 90.0;
const WINDOWS_WITHIN_S: f64 = 180.0;
/// What a clock sample costs beside the interrupt, nanoseconds: the event and dealing with it.
const SAMPLE_NS: f64 = 8_000.0;

impl Governor {
    pub(super) fn decide_shed(&mut self, load: &Load) {
        let mut shed = Vec::new();
        let looking = Looking {
            seldom: self.shed.contains(&Shed::ShortIntervals),
            watched_s: self.watched_s,
            owes: self.balance < 0.0,
            fixed: self.fixed_rate,
            budget: self.budget * self.job_rate,
        };
        let whole = self.calls.share < 1.0 && !self.calls.some;
        if !whole && !load.came && load.cells <= CELLS && looking.may_be_seldom() {
            shed.push(Shed::ShortIntervals);
        }
        if self.job_rate < AT_WORK_CPUS * 1e9 {
            let kept = self.shed.iter().filter(|shed| **shed >= Shed::HalfSamples);
            shed.extend(kept);
            self.shed = shed;
            return;
        }
        shed.extend(self.shed_of_windows());
        if self.calls.share < 1.0 {
            shed.push(Shed::Calls);
        }
        if load.faults_in_turns {
            shed.push(Shed::FaultSamples);
        }
        let sampling = self.sample_rate * (SAMPLE_NS + load.interrupt_ns);
        let busy = self.job_rate > BUSY_CPUS * 1e9;
        let over = self.fixed_rate - self.budget * self.job_rate;
        if busy && self.halves(load, sampling, over) {
            shed.push(Shed::HalfSamples);
        }
        // All are given up only where that helps, and not taken up again: analysis could not use a part of them. Nor are those of a process
        // that works alone, of which nothing else tells what it does, and not before a first verdict.
        let before = self.shed.contains(&Shed::ClockSamples);
        let helps = over > 0.5 * self.budget * self.job_rate && sampling > 0.5 * over;
        let may = busy && load.busy_processes > 1 && self.intervals > WHOLE_INTERVALS;
        if before || (may && helps) {
            shed.push(Shed::ClockSamples);
        }
        self.shed = shed;
    }

    /// Whether half of the clock samples will do. Those of a process that works alone are needed: its steps are found in them. Where
    /// several work, what they hand over tells steps, and halves are given up where the budget is short and samples are a part of that.
    fn halves(&self, load: &Load, sampling: f64, over: f64) -> bool {
        let several = load.halvable && load.busy_processes > 1;
        let short = over > 0.0 || self.calls.share < 1.0;
        let helps = sampling > SAMPLES_THAT_COST * self.budget * self.job_rate;
        let first = self.intervals <= WHOLE_INTERVALS;
        several && (self.shed.contains(&Shed::HalfSamples) || (short && helps && !first))
    }

    /// What of windows is given up; nothing as long as it is not known what they cost, since none opens then.
    fn shed_of_windows(&self) -> Vec<Shed> {
        let mut shed = Vec::new();
        let Some(costs) = self.costs.filter(|_| self.windows) else {
            return shed;
        };
        let left = self.left();
        let every = |cost: f64| {
            if left <= 0.0 {
                f64::INFINITY
            } else {
                cost / left
            }
        };
        let busiest = self
            .known
            .values()
            .map(|known| known.worst_rate)
            .fold(0.0, f64::max);
        let rate = if busiest > 0.0 { busiest } else { UNKNOWN_RATE };
        let plain = self.predict(&costs, rate, costs.emulated_ns, 1, 0);
        let both_ns = costs.emulated_ns * 2.0 + costs.return_ns;
        let paired = self.predict(&costs, rate, both_ns, 2, 1);
        if every(paired * f64::from(PAIRED_EVERY)) > PAIRED_WITHIN_S {
            shed.push(Shed::PairedWindows);
        }
        if every(plain) > STACKS_WITHIN_S {
            shed.push(Shed::Stacks);
        }
        if every(plain) > WINDOWS_WITHIN_S || self.cramped {
            shed.push(Shed::Windows);
        }
        shed
    }

    /// What a short window costs, all of it, when one thread makes `rate` calls a second which cost `call_ns` each;
    /// nanoseconds.
    fn predict(&self, costs: &Costs, rate: f64, call_ns: f64, sites: u32, returns: u32) -> f64 {
        let probes = sites + returns;
        let pause = (costs.pause_ns * u64::from(sites)) as f64;
        let trapped_ns = (PREDICTED_S + self.outside_s * f64::from(probes)) * 1e9;
        (trapped_ns + costs.traps_left_ns(probes)) * slowed(rate, call_ns)
            + pause
            + costs.takes_of_us(probes, self.own_ns)
    }

    /// Nanoseconds a second that are left for windows.
    fn left(&self) -> f64 {
        self.budget * self.job_rate - self.fixed_rate
    }
}
