//! Which window may open next, what there is for it, and what a closed one took.

use super::{
    super::{
        shed::Shed,
        window::{Candidate, Costs, Outcome, Plan, Room, Spent, Wish, learned, longest, slowed},
    },
    Governor,
};
use crate::time::KtimeNs;

/// A share of this much time is what windows may add to one thread.
pub(super) const HORIZON_NS: u64 = 10_000_000_000;
/// The largest share that may be added to one thread, whatever the budget.
pub(super) const THREAD_SHARE: f64 = 0.01;
/// Windows are planned for this part of what may be added to a thread: a call may cost more than was expected of it. The first of a
/// process for less: in it a hit may take twice as long as in our own, and so may putting in the probes.
const PLANNED: f64 = 0.75;
const PLANNED_FIRST: f64 = 0.5;
/// So many windows are lent what they take.
pub(super) const LENT_WINDOWS: u32 = 2;
/// The budget of so many seconds is left unspent by the others: probes are counted in samples, and what they took is known late.
const KEPT_S: f64 = 1.0;
/// A window begins anywhere in so many microseconds: decisions are made four times a second, with which a job may keep pace. Or once a
/// second.
const DELAY_US: u64 = 250_000;
const SELDOM_DELAY_US: u64 = 1_000_000;
/// The first window of a process takes more from us beside its probes, since its allocator has to be found and read. Nanoseconds of CPU
/// time.
const OWN_FIRST_NS: f64 = 10_000_000.0;
/// Every so many-th window of a process is paired.
pub(super) const PAIRED_EVERY: u32 = 3;
/// What was learned of a process's rate longer ago than this does not pay for a paired window, nanoseconds.
const RECENT_NS: u64 = 20_000_000_000;
/// Windows open no closer than this on average, nanoseconds.
const SPACING_NS: f64 = 1e9;
/// A process that allocates little is looked at once in so many nanoseconds; oftener until so many windows have told its rate, while
/// more than the budget of so many seconds is unspent: one window may be half or twice of what others are.
const SELDOM_NS: u64 = 60_000_000_000;
const SOONER_NS: u64 = 2_000_000_000;
pub(super) const TELLING: u32 = 12;
const PLENTY_S: f64 = 5.0;
/// A process that has used less CPU time than this is not looked at.
const WARM_UP_NS: u64 = 2_000_000_000;

/// What is known of a process from its windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Calls a second of its busiest thread, had nothing slowed it down.
    pub(super) worst_rate: f64,
    last: KtimeNs,
    windows: u32,
    /// Windows in which it made calls.
    told: u32,
    /// How many times as long as on our own process a hit takes.
    slower: f64,
    /// Credit in the turn that processes take.
    turn: f64,
}

const NOTHING_KNOWN: Known = Known {
    worst_rate: 0.0,
    last: KtimeNs(0),
    windows: 0,
    told: 0,
    slower: 1.0,
    turn: 0.0,
};

impl Governor {
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
        // While probes go in and are taken away no cap ends anything, and the thread may do nothing but allocate.
        let planned =
            (planned * limit).min(limit - (costs.outside_ns as f64).max(self.outside_s * 1e9));
        let room = Room {
            thread_limit: limit,
            thread_most: limit - spent,
            thread_left: planned - spent,
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
            let plenty = self.balance > PLENTY_S * self.budget * self.job_rate.max(1e9);
            let untold = self
                .known
                .get(&busiest.pid)
                .is_none_or(|known| known.told < TELLING);
            let after = if plenty && untold {
                SOONER_NS
            } else {
                SELDOM_NS
            };
            return last
                .is_none_or(|last| now.since(last) >= after)
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
        let (worst_rate, worst) = if counted {
            let worst = outcome.worst_calls as f64 / outcome.calls as f64;
            (natural(outcome.worst_calls), worst)
        } else {
            (0.0, 1.0)
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
            known.told += 1;
            if !outcome.paired {
                // After a moment in which a host was slow the next window is no longer for that.
                known.worst_rate = learned(known.worst_rate, worst_rate);
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
