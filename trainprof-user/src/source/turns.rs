//! Counting system calls in turns: where counting all of them costs more than the budget has room for, they are counted for half a
//! second again and again. What was counted stands for the time since it was counted last. Pure: it is told the time.

use std::collections::BTreeSet;

use super::{jitter::Jitter, live::Hidden};
use crate::{
    kernel::Counted,
    record::{Record, fact::CallsHidden},
    time::KtimeNs,
};

/// All calls are counted for so long at first, whether there is room for that or not: a first verdict needs them.
const FIRST_NS: f64 = 4_000_000_000.0;
/// But while that slows the job down by more than this, for the shorter the more it does; a job of so many calls shows much in
/// a second, which is how long it takes at least.
const SLOWED: f64 = 0.04;
const FIRST_AT_LEAST_NS: f64 = 1_000_000_000.0;
/// Calls are counted for so long at a time, give or take [`JITTER`]: with steps of any length a turn sees another part each time.
const TURN_NS: f64 = 500_000_000.0;
const JITTER: f64 = 0.25;
/// Or where nobody's are counted between turns, for an interval: the walk along wake-ups knows whole ones.
const WHOLE_NS: f64 = 1_000_000_000.0;

/// A call that is not counted while others are costs this part of one that is, or more where that was measured.
const UNCOUNTED_CALL: f64 = 0.25;
/// Where calls of some would cost more than this part of what those of all do, none are counted.
const HARDLY_LESS: f64 = 0.85;
/// What was measured is believed from so many windows on: one of 20 ms may fall into a burst of a trainer's calls.
const BELIEVED_FROM: u32 = 4;
/// What was measured is forgotten after so many intervals: the job may do something else by then.
const FORGOTTEN_AFTER: u32 = 60;

/// What calls cost while only those of processes are counted whose calls are noted one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SomeCalls {
    /// These processes' part (0–1) of the calls.
    touched: f64,
    /// As a part of what all cost, and how many intervals ago that was measured.
    measured: Option<(f64, u32)>,
    /// In how many windows.
    windows: u32,
}

impl SomeCalls {
    /// In an interval of `ns` so many calls of these processes, and of all, were counted; for how long not all were, and some of them.
    pub fn interval(&mut self, ns: u64, touched: u64, all: u64, hidden: Hidden) {
        let counted = ns.saturating_sub(hidden.ns);
        let counted_some = counted + hidden.some_ns;
        if counted < ns / 10 || all == 0 {
            return;
        }
        let touched_rate = touched as f64 / counted_some as f64;
        let others_rate = (all - touched) as f64 / counted as f64;
        self.touched = touched_rate / (touched_rate + others_rate);
    }

    /// What both cost by the last measurements; `new`: some of that was not known before.
    pub fn measured(&mut self, all: Option<f64>, some: Option<f64>, new: bool) {
        if let (true, Some(all), Some(some)) = (new, all, some) {
            self.measured = Some((some / all.max(some).max(1.0), 0));
            self.windows += 1;
        } else if let Some((_, age)) = &mut self.measured {
            *age += 1;
            if *age > FORGOTTEN_AFTER {
                (self.measured, self.windows) = (None, 0);
            }
        }
    }

    /// As a part (0–1) of what all cost; `None`: then none are to be counted.
    pub fn cost(&self) -> Option<f64> {
        let expected = UNCOUNTED_CALL + (1.0 - UNCOUNTED_CALL) * self.touched;
        let cost = self
            .measured
            .filter(|_| self.windows >= BELIEVED_FROM)
            .map_or(expected, |(part, _)| part.max(expected));
        (cost <= HARDLY_LESS).then_some(cost)
    }
}

/// Whether calls are counted.
#[derive(Debug)]
pub struct Turns {
    random: Jitter,
    /// Not all calls are counted, since when; whether some are.
    hidden: Option<(u64, bool)>,
    /// Since when that, or else this turn, is so, and by which factor it is longer than usual.
    since: u64,
    jitter: f64,
    /// How long the first turn is at most.
    first_ns: f64,
    /// How long the last turn was: looks are up to a quarter of a second apart, and the rest after it is the longer for that.
    turn_ns: f64,
    /// Something went wrong: all are counted from now on.
    stopped: bool,
    /// Stretches in which not all were counted that have ended: how long they were, until when they were told, and those that were
    /// not, with whether some were counted.
    ended: Hidden,
    told: u64,
    untold: Vec<(u64, u64, bool)>,
}

impl Turns {
    /// Of a watch that began at `began`; `seed`: any number that differs from watch to watch.
    pub fn new(began: KtimeNs, seed: u64) -> Self {
        Self {
            random: Jitter::new(seed),
            hidden: None,
            since: began.0,
            jitter: 1.0,
            first_ns: FIRST_NS,
            turn_ns: TURN_NS,
            stopped: false,
            ended: Hidden::default(),
            told: 0,
            untold: Vec::new(),
        }
    }

    /// Counting all calls takes this part of what the job's CPU time would be without.
    pub fn slows(&mut self, slowed: f64) {
        let longest = FIRST_NS * (SLOWED / slowed.max(SLOWED));
        self.first_ns = longest.max(FIRST_AT_LEAST_NS);
    }

    /// Which calls are to be counted from `now` on, when there is room to count all for this share (0–1) of the time. `some`: whether in
    /// the rest of it those of the processes are counted whose calls are noted one by one. If not, whole intervals are with calls or
    /// without, and that changes only `between` two.
    pub fn wanted(&self, now: KtimeNs, share: f64, some: bool, between: bool) -> Counted {
        let lasted = now.0.saturating_sub(self.since) as f64;
        let hide = if some {
            Counted::Touched
        } else {
            Counted::None
        };
        match self.counted() {
            Counted::All => {
                let first = self.ended == Hidden::default();
                let turn = if first {
                    self.first_ns
                } else {
                    TURN_NS * self.jitter
                };
                let over = share < 1.0 && lasted >= turn && !self.stopped;
                if over && (some || between) {
                    hide
                } else {
                    Counted::All
                }
            }
            hidden => {
                let kept = hidden == Counted::Touched;
                let usual = if kept { TURN_NS } else { WHOLE_NS };
                let turn = (usual * self.jitter).max(self.turn_ns);
                let rest = turn * (1.0 / share.max(1e-3) - 1.0);
                if (share >= 1.0 || lasted >= rest) && (kept || between) {
                    Counted::All
                } else if kept && between {
                    hide
                } else {
                    hidden
                }
            }
        }
    }

    /// From `now` on these are.
    pub fn set(&mut self, now: KtimeNs, counted: Counted) {
        if counted == self.counted() {
            return;
        }
        let at = now.0.max(self.since);
        let hid = self.hidden.is_some();
        self.ended = self.hidden(KtimeNs(at));
        if let Some((from, some)) = self.hidden.take() {
            self.untold.push((from.max(self.told), at, some));
        }
        if counted != Counted::All {
            self.hidden = Some((at, counted == Counted::Touched));
            if !hid {
                // The first one lasts as long as it must.
                self.turn_ns = (at.saturating_sub(self.since) as f64).min(2.0 * TURN_NS);
            }
        }
        // Hiding more, or less, is still the same rest.
        if hid && self.hidden.is_some() {
            return;
        }
        self.since = at;
        self.jitter = 1.0 - JITTER + 2.0 * JITTER * self.random.part();
    }

    /// Something went wrong: all calls are counted from now on, as far as they can be.
    pub fn stop(&mut self, now: KtimeNs) {
        self.set(now, Counted::All);
        self.stopped = true;
    }

    /// Which calls are counted now.
    pub fn counted(&self) -> Counted {
        match self.hidden {
            None => Counted::All,
            Some((_, true)) => Counted::Touched,
            Some((_, false)) => Counted::None,
        }
    }

    /// For how long not all were until `now`.
    pub fn hidden(&self, now: KtimeNs) -> Hidden {
        let mut sum = self.ended;
        if let Some((from, some)) = self.hidden {
            let ns = now.0.saturating_sub(from);
            sum.ns += ns;
            sum.some_ns += if some { ns } else { 0 };
        }
        sum
    }

    /// The stretches until `now` of which this was not told yet. `touched`: processes whose calls are noted one by one.
    /// `slowed`: see [`CallsHidden::slowed`].
    pub fn tell(
        &mut self,
        now: KtimeNs,
        touched: &BTreeSet<u32>,
        slowed: f64,
        out: &mut Vec<Record>,
    ) {
        if let Some((from, some)) = self.hidden {
            self.untold.push((from.max(self.told), now.0, some));
        }
        self.told = now.0;
        out.extend(self.untold.drain(..).filter(|(from, to, _)| from < to).map(
            |(from, to, some)| {
                Record::CallsHidden(CallsHidden {
                    from: KtimeNs(from),
                    to: KtimeNs(to),
                    counted: some.then(|| touched.iter().copied().collect()),
                    slowed,
                })
            },
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 40_000_000;

    /// Looks for `seconds`; share of that time in which all calls were counted.
    fn counted(turns: &mut Turns, now: &mut KtimeNs, seconds: u64, share: f64) -> f64 {
        let before = turns.hidden(*now).ns;
        let from = *now;
        while now.since(from) < seconds * 1_000_000_000 {
            now.0 += LOOK;
            let wanted = turns.wanted(*now, share, true, false);
            turns.set(*now, wanted);
        }
        1.0 - (turns.hidden(*now).ns - before) as f64 / now.since(from) as f64
    }

    #[test]
    fn all_are_counted_at_first_and_where_there_is_room() {
        let mut now = KtimeNs(7_000_000_000);
        let mut turns = Turns::new(now, 1);
        assert_eq!(counted(&mut turns, &mut now, 3, 0.01), 1.0);
        assert_eq!(counted(&mut turns, &mut now, 60, 1.0), 1.0);
        let mut told = Vec::new();
        turns.tell(now, &BTreeSet::new(), 0.0, &mut told);
        assert!(told.is_empty());
    }

    #[test]
    fn the_first_turn_is_shorter_where_counting_slows_the_job_down() {
        for (slowed, seconds) in [(0.0, 4.0), (0.04, 4.0), (0.08, 2.0), (0.25, 1.0)] {
            let mut turns = Turns::new(KtimeNs(1), 7);
            turns.slows(slowed);
            let mut now = KtimeNs(1);
            while turns.wanted(now, 0.0, true, false) == Counted::All {
                now.0 += LOOK;
            }
            let lasted = now.since(KtimeNs(1)) as f64 / 1e9;
            assert!((lasted - seconds).abs() <= 0.05, "{slowed}: {lasted} s");
        }
    }

    #[test]
    fn none_are_counted_where_some_cost_nearly_as_much() {
        let second = 1_000_000_000;
        let mut some = SomeCalls::default();
        assert_eq!(some.cost(), Some(UNCOUNTED_CALL));
        some.interval(second, 900, 1_000, Hidden::default());
        assert_eq!(some.cost(), None, "most of them are");
        // Workers begin: of half a second of counting, and of the other half for the trainer alone.
        let half = Hidden {
            ns: second / 2,
            some_ns: second / 2,
        };
        some.interval(second, 100, 550, half);
        assert!(
            (some.cost().expect("some") - (UNCOUNTED_CALL + (1.0 - UNCOUNTED_CALL) * 0.1)).abs()
                < 1e-9
        );
        some.measured(Some(4e7), None, true);
        assert!(some.cost().is_some());
        // Calls that are never counted cost the same in any case; perhaps no longer a minute later.
        for _ in 1..BELIEVED_FROM {
            some.measured(Some(4e7), Some(3.9e7), true);
            assert!(some.cost().is_some(), "a burst");
        }
        some.measured(Some(4e7), Some(3.9e7), true);
        assert_eq!(some.cost(), None);
        for _ in 0..=FORGOTTEN_AFTER {
            some.measured(Some(4e7), Some(3.9e7), false);
        }
        assert!(some.cost().is_some());
    }

    #[test]
    fn without_any_calls_intervals_are_whole() {
        let mut now = KtimeNs(1);
        let mut turns = Turns::new(now, 3);
        let mut changes = 0;
        for look in 1..2_000_u64 {
            now.0 += LOOK;
            let before = turns.counted();
            let wanted = turns.wanted(now, 0.1, false, look % 25 == 0);
            turns.set(now, wanted);
            changes += u32::from(wanted != before);
            assert!(turns.counted() == before || look % 25 == 0);
        }
        assert!(changes > 10, "{changes}");
    }

    #[test]
    fn a_share_of_the_time_is_kept() {
        for share in [0.8, 0.25, 0.03] {
            let mut now = KtimeNs(1);
            let mut turns = Turns::new(now, 7);
            counted(&mut turns, &mut now, 5, share);
            let kept = counted(&mut turns, &mut now, 600, share);
            assert!((kept / share - 1.0).abs() < 0.15, "{share}: {kept}");
        }
    }

    #[test]
    fn a_share_of_the_time_is_kept_by_looks_that_are_far_apart() {
        for share in [0.4, 0.14, 0.03] {
            let (mut now, mut counted_ns) = (KtimeNs(1), 0);
            let mut turns = Turns::new(now, 11);
            counted(&mut turns, &mut now, 5, share);
            for _ in 0..4_000 {
                now.0 += 250_000_000;
                counted_ns += u64::from(turns.counted() == Counted::All);
                let wanted = turns.wanted(now, share, true, false);
                turns.set(now, wanted);
            }
            let kept = counted_ns as f64 / 4_000.0;
            assert!((kept / share - 1.0).abs() < 0.15, "{share}: {kept}");
        }
    }

    #[test]
    fn every_hidden_moment_is_told_once() {
        let mut now = KtimeNs(1);
        let mut turns = Turns::new(now, 3);
        let mut told = Vec::new();
        for _ in 0..20 {
            counted(&mut turns, &mut now, 1, 0.3);
            turns.tell(now, &BTreeSet::from([4]), 0.1, &mut told);
        }
        let mut last = 0;
        let mut sum = 0;
        for record in &told {
            let Record::CallsHidden(hidden) = record else {
                panic!("{record:?}")
            };
            assert!(hidden.from.0 >= last && hidden.to > hidden.from);
            assert_eq!(hidden.counted, Some(vec![4]));
            (last, sum) = (hidden.to.0, sum + hidden.to.since(hidden.from));
        }
        let hidden = turns.hidden(now);
        assert_eq!((sum, sum), (hidden.ns, hidden.some_ns));
        assert!(sum > 5_000_000_000);
    }

    #[test]
    fn where_counting_some_saves_nothing_none_are_counted_at_once() {
        let mut now = KtimeNs(1);
        let mut turns = Turns::new(now, 3);
        counted(&mut turns, &mut now, 5, 0.03);
        assert_eq!(turns.counted(), Counted::Touched);
        let hidden = turns.hidden(now);
        now.0 += LOOK;
        assert_eq!(turns.wanted(now, 0.03, false, true), Counted::None);
        turns.set(now, Counted::None);
        now.0 += LOOK;
        assert_eq!(turns.wanted(now, 0.03, false, true), Counted::None);
        let after = turns.hidden(now);
        assert_eq!(after.ns - hidden.ns, 2 * LOOK);
        assert_eq!(after.some_ns - hidden.some_ns, LOOK);
    }

    #[test]
    fn room_again_ends_it_at_once() {
        let mut now = KtimeNs(1);
        let mut turns = Turns::new(now, 3);
        counted(&mut turns, &mut now, 5, 0.03);
        assert_eq!(turns.counted(), Counted::Touched);
        now.0 += LOOK;
        assert_eq!(turns.wanted(now, 1.0, true, false), Counted::All);
        turns.stop(now);
        assert_eq!(turns.counted(), Counted::All);
        now.0 += 100 * LOOK;
        assert_eq!(turns.wanted(now, 0.1, true, true), Counted::All);
    }
}
