//! When a window of allocation probes may open, on which process, how long, and what is given up when even that costs
//! too much. Pure: it is told what things cost and what time it is.
//!
//! Two limits. Everything that the watch costs, its start too, comes below a share of the job's CPU time and stays there, as far as
//! what may be given up goes: what is left of it after the fixed costs pays for the start first, and is then saved up for windows. And what
//! windows add to one thread stays below a share of any ten seconds.

mod shedding;
mod windows;

use std::collections::{BTreeMap, VecDeque};

use self::windows::Known;
use super::{
    call_room::{CallCosts, CallRoom},
    shed::Shed,
    window::Costs,
};
use crate::time::KtimeNs;

/// First windows are lent the budget of so many seconds, so that a short watch has some: they need not wait until the start is paid
/// for. What they take is owed, as the start is, before another one opens.
const LENT_S: f64 = 10.0;
/// Where counting calls leaves too little room, fewer are counted: so that what was overspent, or taken by the start, is paid back in
/// so many seconds.
const REPAID_S: f64 = 30.0;
/// What is not spent in so many seconds is lost: a job that was quiet for an hour gets no hour of windows.
const SAVED_S: f64 = 60.0;
/// What a window takes from us beside its probes, until that was seen: reading what was counted. Nanoseconds of CPU time.
const OWN_NS: f64 = 2_500_000.0;
/// A job that uses fewer CPUs than this gains nothing when samples or counts are given up.
const BUSY_CPUS: f64 = 0.5;

/// What happened since this was told last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub seconds: f64,
    pub job_cpu_ns: u64,
    /// Run time of the probes that are always there.
    pub probes_ns: u64,
    /// CPU time of this program, without what windows took.
    pub own_ns: u64,
    /// More of it, that says nothing of what follows: for what is done once. Negative: it was told of too much.
    pub once_ns: i64,
    pub samples: u64,
    /// Of `probes_ns`, those on system calls.
    pub calls_ns: u64,
    /// What counting all calls takes, nanoseconds a second; `None`: not known.
    pub all_calls_rate: Option<f64>,
    /// What calls take while only some are counted, as a part (0–1) of that; `None`: nearly as much.
    pub hidden_calls: Option<f64>,
    /// What an interrupt by a clock takes, nanoseconds.
    pub interrupt_ns: f64,
    /// Page faults are sampled in turns.
    pub faults_in_turns: bool,
    /// Processes that use a CPU for a while of their time; and whether half of the samples can be given up.
    pub busy_processes: usize,
    pub halvable: bool,
    /// Sums that were collected.
    pub cells: usize,
    /// Threads came.
    pub came: bool,
}

/// See the module.
pub struct Governor {
    budget: f64,
    /// Whether it is asked when windows open.
    windows: bool,
    costs: Option<Costs>,
    /// What was saved up, nanoseconds; negative: what is owed.
    balance: f64,
    /// What was done once took so much.
    start: f64,
    /// What first windows are lent.
    lent: f64,
    /// Intervals so far, and how long they were.
    intervals: u32,
    watched_s: f64,
    /// Over the last seconds: CPUs that the job uses, what the fixed costs take (both as nanoseconds a second), samples.
    job_rate: f64,
    fixed_rate: f64,
    sample_rate: f64,
    calls_rate: f64,
    all_calls_rate: f64,
    calls: CallRoom,
    /// Not all calls could be counted even if the start were paid for.
    cramped: bool,
    known: BTreeMap<u32, Known>,
    /// Windows of the last ten seconds: end, process, what was added to one thread.
    recent: VecDeque<(KtimeNs, u32, u64)>,
    next_at: KtimeNs,
    /// For how long each probe is expected to be hit outside a window, and what a window takes from us beside its probes.
    outside_s: f64,
    own_ns: f64,
    shed: Vec<Shed>,
    pub totals: Totals,
}

/// Sums since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub job_ns: u64,
    pub probes_ns: u64,
    pub own_ns: u64,
    pub windows_ns: u64,
    pub windows: u32,
    pub worst_thread_ns: u64,
    /// CPU time of ours before the watch began; not in `own_ns`.
    pub start_ns: u64,
}

impl Totals {
    /// All that was spent.
    #[cfg(test)]
    pub fn spent_ns(&self) -> u64 {
        self.probes_ns + self.own_ns + self.windows_ns + self.start_ns
    }
}

impl Governor {
    /// `budget`: share (0–1) of the job's CPU time.
    pub fn new(budget: f64) -> Self {
        Self {
            budget,
            windows: true,
            costs: None,
            balance: 0.0,
            start: 0.0,
            lent: 0.0,
            intervals: 0,
            watched_s: 0.0,
            job_rate: 0.0,
            fixed_rate: 0.0,
            sample_rate: 0.0,
            calls_rate: 0.0,
            all_calls_rate: 0.0,
            calls: CallRoom::ALL,
            cramped: false,
            known: BTreeMap::new(),
            recent: VecDeque::new(),
            next_at: KtimeNs(0),
            outside_s: 0.0,
            own_ns: OWN_NS,
            shed: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// One that governs all but windows: there are none, or they are open all the time.
    pub fn without_windows(budget: f64) -> Self {
        Self {
            windows: false,
            ..Self::new(budget)
        }
    }

    pub fn budget(&self) -> f64 {
        self.budget
    }

    /// What watching may cost now, nanoseconds a second; no less than where giving something up begins to help.
    pub fn budget_ns(&self) -> f64 {
        self.budget * self.job_rate.max(BUSY_CPUS * 1e9)
    }

    /// What is given up for now.
    pub fn shed(&self) -> &[Shed] {
        &self.shed
    }

    pub fn calibrated(&mut self, costs: Costs) {
        self.costs = Some(costs);
        self.outside_s = costs.outside_ns as f64 / 1e9;
    }

    /// What all our processes took until the watch began.
    pub fn started(&mut self, ns: u64) {
        self.totals.start_ns += ns;
        self.start += ns as f64;
        self.balance -= ns as f64;
    }

    pub fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    /// Takes in what the last interval used and cost.
    pub fn interval(&mut self, load: &Load) {
        if load.seconds <= 0.0 {
            return;
        }
        self.totals.job_ns += load.job_cpu_ns;
        self.totals.probes_ns += load.probes_ns;
        self.totals.own_ns = (self.totals.own_ns + load.own_ns).saturating_add_signed(load.once_ns);
        let fixed = (load.probes_ns + load.own_ns) as f64;
        // The first interval holds what is done once: it counts as spent, but says nothing of what follows.
        let mix = if self.intervals > 1 {
            (load.seconds / 10.0).min(1.0)
        } else {
            1.0
        };
        for (mean, now) in [
            (&mut self.job_rate, load.job_cpu_ns as f64),
            (&mut self.fixed_rate, fixed),
            (&mut self.sample_rate, load.samples as f64),
            (&mut self.calls_rate, load.calls_ns as f64),
        ] {
            *mean += mix * (now / load.seconds - *mean);
        }
        let once = load.once_ns as f64;
        self.start += once;
        let earned = self.budget * load.job_cpu_ns as f64 - fixed - once;
        let a_second = self.budget * self.job_rate.max(1e9);
        if self.intervals == 0 {
            self.lent = a_second * LENT_S;
        }
        // What is owed stays owed, however much that is.
        self.balance = (self.balance + earned).min(a_second * SAVED_S);
        self.intervals += 1;
        self.watched_s += load.seconds;
        if self.intervals > 1 {
            self.room_for_calls(load);
            self.decide_shed(load);
        }
    }

    /// Part (0–1) of the time in which all system calls may be counted.
    pub fn calls_share(&self) -> f64 {
        self.calls.share
    }

    /// Whether there is room to count some of them in the rest of it.
    pub fn some_calls(&self) -> bool {
        self.calls.some
    }

    /// What counting all system calls takes of the job's CPU time, as a part of what is left.
    pub fn slowed_by_counting(&self) -> f64 {
        let all = self.all_calls_rate;
        all / (self.job_rate - all).max(all).max(1.0)
    }

    fn room_for_calls(&mut self, load: &Load) {
        let Some(all) = load.all_calls_rate else {
            return;
        };
        self.all_calls_rate = all;
        self.calls = if self.job_rate < BUSY_CPUS * 1e9 {
            CallRoom::ALL
        } else {
            let owed = (-self.balance).max(0.0);
            let of_start = owed.min(self.start);
            let room = |repaid| {
                CallRoom::of(&CallCosts {
                    budget: self.budget * self.job_rate,
                    rest: self.fixed_rate - self.calls_rate,
                    repaid,
                    all,
                    some: load.hidden_calls.map(|part| part * all),
                })
            };
            let repaid = (owed - of_start) / REPAID_S;
            self.cramped = room(repaid).share < 1.0;
            let of_start = if of_start > 0.0 { self.start } else { 0.0 };
            room(repaid + of_start / REPAID_S)
        };
        self.cramped &= self.calls.share < 1.0;
    }
}

#[cfg(test)]
mod tests;
