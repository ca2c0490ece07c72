//! When a window of allocation probes may open, on which process, how long, and what is given up when even that costs
//! too much. Pure: it is told what things cost and what time it is.
//!
//! Two limits hold. Everything that the watch costs, its start too, comes below a share of the job's CPU time and stays there: what
//! is left of it after the fixed costs pays for the start first, and is then saved up for windows. And what windows add to one thread
//! stays below a share of any ten seconds.

use std::collections::{BTreeMap, VecDeque};

use super::{
    call_room::{CallCosts, CallRoom},
    shed::{CELLS, Looking, Shed},
    window::{
        Candidate, Costs, Outcome, Plan, Room, Spent, UNKNOWN_RATE, Wish, learned, longest, slowed,
    },
};
use crate::time::KtimeNs;

/// A share of this much time is what windows may add to one thread.
pub const HORIZON_NS: u64 = 10_000_000_000;
/// The largest share that may be added to one thread, whatever the budget.
pub const THREAD_SHARE: f64 = 0.01;
/// Windows are planned for this part of what may be added to a thread: a call may cost more than was expected of it. The first of a
/// process for less: in it a hit may take twice as long as in our own, and so may putting in the probes.
const PLANNED: f64 = 0.75;
const PLANNED_FIRST: f64 = 0.5;
/// So many windows are lent the budget of so many seconds, so that a short watch has some: they need not wait until the start is paid
/// for. What they take is owed, as the start is, before another one opens.
const LENT_WINDOWS: u32 = 2;
const LENT_S: f64 = 10.0;
/// The budget of so many seconds is left unspent by the others: probes are counted in samples, and what they took is known late.
const KEPT_S: f64 = 1.0;
/// Where counting calls leaves too little room, fewer are counted: so that what was overspent, or taken by the start, is paid back in
/// so many seconds.
const REPAID_S: f64 = 30.0;
/// A window begins anywhere in so many microseconds: decisions are made four times a second, with which a job may keep pace. Or once a
/// second.
pub const DELAY_US: u64 = 250_000;
const SELDOM_DELAY_US: u64 = 1_000_000;
/// Half of the samples are given up when all cost more than this part (0–1) of the budget, and not in the first intervals: a first
/// verdict needs them.
const SAMPLES_THAT_COST: f64 = 0.1;
const WHOLE_INTERVALS: u32 = 10;
/// A job that uses fewer CPUs than this is not at work, and nothing of it is left out.
const AT_WORK_CPUS: f64 = 0.02;
/// What is not spent in so many seconds is lost: a job that was quiet for an hour gets no hour of windows.
const SAVED_S: f64 = 60.0;
/// Length of the window by which it is decided what is given up, seconds.
const PREDICTED_S: f64 = 0.002;
/// What a window takes from us beside its probes, until that was seen: reading what was counted; and the first one of a process
/// more, since its allocator has to be found and read. Nanoseconds of CPU time.
const OWN_NS: f64 = 2_500_000.0;
const OWN_FIRST_NS: f64 = 10_000_000.0;
/// Every so many-th window of a process is paired.
const PAIRED_EVERY: u32 = 3;
/// What was learned of a process's rate longer ago than this does not pay for a paired window, nanoseconds.
const RECENT_NS: u64 = 20_000_000_000;
/// Windows open no closer than this on average, nanoseconds.
const SPACING_NS: f64 = 1e9;
/// A process that allocates little is looked at once in so many nanoseconds.
const SELDOM_NS: u64 = 60_000_000_000;
/// A process that has used less CPU time than this is not looked at.
const WARM_UP_NS: u64 = 2_000_000_000;
/// What can be afforded only once in so many seconds is given up.
const PAIRED_WITHIN_S: f64 = 60.0;
const STACKS_WITHIN_S: f64 = 90.0;
const WINDOWS_WITHIN_S: f64 = 180.0;
/// What a clock sample costs beside the interrupt, nanoseconds: the event and dealing with it.
const SAMPLE_NS: f64 = 8_000.0;
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

/// What is known of a process from its windows.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Calls a second of its busiest thread, and of all, had nothing slowed them down.
    worst_rate: f64,
    rate: f64,
    last: KtimeNs,
    windows: u32,
    /// How many times as long as on our own process a hit takes.
    slower: f64,
    /// Credit in the turn that processes take.
    turn: f64,
}

const NOTHING_KNOWN: Known = Known {
    worst_rate: 0.0,
    rate: 0.0,
    last: KtimeNs(0),
    windows: 0,
    slower: 1.0,
    turn: 0.0,
};

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

    /// What a window may take now, nanoseconds.
    fn saved(&self) -> f64 {
        let earned = self.balance - self.budget * self.job_rate * KEPT_S;
        if self.totals.windows < LENT_WINDOWS {
            // As if the start had cost nothing.
            let lent = self.lent + (self.balance + self.start).min(0.0);
            return earned.max(lent);
        }
        earned
    }

    /// Nanoseconds a second that are left for windows.
    fn left(&self) -> f64 {
        self.budget * self.job_rate - self.fixed_rate
    }

    fn decide_shed(&mut self, load: &Load) {
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
        // All are given up only where that helps, and not taken up again: analysis could not use a part of them.
        let before = self.shed.contains(&Shed::ClockSamples);
        if before || (busy && over > 0.5 * self.budget * self.job_rate && sampling > 0.5 * over) {
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

    /// The longest window that both limits leave room for.
    fn fit(
        &self,
        costs: &Costs,
        chosen: &Candidate,
        known: Option<Known>,
        paired: bool,
        now: KtimeNs,
    ) -> Option<Plan> {
        let first = known.is_none_or(|known| known.windows == 0);
        let wish = Wish {
            rate: known.map(|k| k.worst_rate).filter(|rate| *rate > 0.0),
            first,
            paired,
            stacks: !self.shed.contains(&Shed::Stacks),
        };
        let costs = costs.where_hits_are(known.map_or(1.0, |known| known.slower));
        let limit = self.thread_limit();
        let spent = self.spent_on(chosen.pid, now);
        let planned = if first { PLANNED_FIRST } else { PLANNED };
        let room = Room {
            thread_limit: limit,
            thread_most: limit - spent,
            thread_left: planned * limit - spent,
            saved: self.saved(),
            outside_s: self.outside_s,
            beside: self.own_ns.max(if first { OWN_FIRST_NS } else { 0.0 }),
        };
        longest(&costs, chosen, &wish, &room)
    }

    /// Whether a window may open now, and which. `random` is any number.
    pub fn decide(&mut self, now: KtimeNs, candidates: &[Candidate], random: u64) -> Option<Plan> {
        let costs = self.costs?;
        if now < self.next_at || self.intervals == 0 {
            return None;
        }
        let first = self.totals.windows == 0;
        if self.shed.contains(&Shed::Windows) && !first {
            return None;
        }
        self.forget_old(now);
        let chosen = self.choose(now, candidates)?;
        let known = self.known.get(&chosen.pid).copied();
        let paired = known
            .is_some_and(|k| k.windows % PAIRED_EVERY == 1 && now.since(k.last) < RECENT_NS)
            && !self.shed.contains(&Shed::PairedWindows);
        let plan = paired
            .then(|| self.fit(&costs, chosen, known, true, now))
            .flatten()
            .or_else(|| self.fit(&costs, chosen, known, false, now))?;
        // Never in step with the job: anything between half and one and a half of it, and then anywhere between two decisions.
        let seldom = self.shed.contains(&Shed::ShortIntervals);
        let delay = if seldom { SELDOM_DELAY_US } else { DELAY_US };
        let jitter = 0.5 + (random % 1_000) as f64 / 1_000.0;
        self.next_at = KtimeNs(now.0 + (SPACING_NS * jitter) as u64);
        Some(Plan {
            delay_us: (random / 1_000 % delay) as u32,
            ..plan
        })
    }

    /// Processes take turns by the CPU time that their allocators take.
    fn choose<'c>(&mut self, now: KtimeNs, candidates: &'c [Candidate]) -> Option<&'c Candidate> {
        let warm: Vec<&Candidate> = candidates
            .iter()
            .filter(|c| c.cpu_ns >= WARM_UP_NS)
            .collect();
        let worth: Vec<&&Candidate> = warm.iter().filter(|c| c.weight() > 0.0).collect();
        if worth.is_empty() {
            // Rates are worth knowing once, and now and then, where allocating is little.
            let busiest = warm.into_iter().max_by(|a, b| a.cpus.total_cmp(&b.cpus))?;
            let last = self.known.values().map(|known| known.last).max();
            return last
                .is_none_or(|last| now.since(last) >= SELDOM_NS)
                .then_some(busiest);
        }
        let total: f64 = worth.iter().map(|c| c.weight()).sum();
        for candidate in &worth {
            let known = self.known.entry(candidate.pid).or_insert(NOTHING_KNOWN);
            known.turn += candidate.weight();
        }
        let turn = |c: &Candidate| self.known.get(&c.pid).map_or(0.0, |known| known.turn);
        let chosen = **worth.iter().max_by(|a, b| turn(a).total_cmp(&turn(b)))?;
        if let Some(known) = self.known.get_mut(&chosen.pid) {
            known.turn -= total;
        }
        Some(chosen)
    }

    fn thread_limit(&self) -> f64 {
        THREAD_SHARE.min(self.budget) * HORIZON_NS as f64
    }

    fn forget_old(&mut self, now: KtimeNs) {
        while self
            .recent
            .front()
            .is_some_and(|(at, _, _)| now.since(*at) >= HORIZON_NS)
        {
            self.recent.pop_front();
        }
    }

    fn spent_on(&self, pid: u32, now: KtimeNs) -> f64 {
        self.recent
            .iter()
            .filter(|(at, of, _)| *of == pid && now.since(*at) < HORIZON_NS)
            .map(|(_, _, ns)| *ns as f64)
            .sum()
    }

    /// A window is over: what it cost.
    pub fn closed(&mut self, now: KtimeNs, outcome: &Outcome) -> Spent {
        let Some(costs) = self.costs else {
            return Spent::default();
        };
        let probes = outcome.sites.max(1) + u32::from(outcome.paired);
        let hits = outcome.emulated + outcome.stepped;
        let slower = match outcome.run_ns {
            Some(run_ns) => costs.slower(run_ns),
            None => self.known.get(&outcome.pid).map_or(1.0, |k| k.slower),
        };
        let costs = costs.where_hits_are(slower);
        let job_ns = outcome.emulated as f64 * costs.emulated_ns
            + outcome.stepped as f64 * costs.stepped_ns
            + outcome.returns as f64 * costs.return_ns;
        let call_ns = job_ns / hits.max(1) as f64;
        let natural = |calls: u64| {
            let lost = calls as f64 * call_ns / 1e9;
            calls as f64 / (outcome.counted_s - lost).max(outcome.counted_s * 0.05)
        };
        let own_ns = outcome.own_ns as f64;
        let probes_own_ns = (costs.own_ns * u64::from(probes)) as f64;
        let beside_ns = (own_ns - probes_own_ns).max(0.0);
        if self
            .known
            .get(&outcome.pid)
            .is_some_and(|known| known.windows > 0)
        {
            self.own_ns = learned(self.own_ns, beside_ns);
        }
        let counted = outcome.counted_s > 0.0 && outcome.calls > 0;
        let (rate, worst_rate, worst) = if counted {
            let worst = outcome.worst_calls as f64 / outcome.calls as f64;
            (natural(outcome.calls), natural(outcome.worst_calls), worst)
        } else {
            (0.0, 0.0, 1.0)
        };
        let linger_ns = (costs.linger_ns * u64::from(probes)) as f64 * slowed(worst_rate, call_ns);
        let stop_ns = costs.pause_ns * u64::from(outcome.sites);
        let pause_ns = stop_ns + linger_ns as u64;
        let thread_ns = (job_ns * worst) as u64 + pause_ns;
        self.totals.windows += 1;
        let all = job_ns + stop_ns as f64 + linger_ns / worst.max(0.01) + own_ns;
        self.totals.windows_ns += all as u64;
        self.balance -= all;
        self.recent.push_back((now, outcome.pid, thread_ns));
        self.forget_old(now);
        self.totals.worst_thread_ns = self
            .totals
            .worst_thread_ns
            .max(self.spent_on(outcome.pid, now) as u64);
        let known = self.known.entry(outcome.pid).or_insert(NOTHING_KNOWN);
        known.last = now;
        known.windows += 1;
        known.slower = slower;
        if counted {
            if !outcome.paired {
                known.worst_rate = worst_rate;
                known.rate = rate;
            }
            let outside = hits.saturating_sub(outcome.calls) as f64;
            let seen = outside / outcome.calls as f64 * outcome.counted_s;
            let seen = (seen / f64::from(probes)).clamp(0.0, 0.2);
            self.outside_s = learned(self.outside_s, seen);
        }
        Spent {
            job_ns: job_ns as u64,
            pause_ns,
            thread_ns,
        }
    }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
