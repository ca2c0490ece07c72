//! Counting system calls in turns: where counting all of them costs more than the budget has room for, they are counted for half a
//! second again and again. What was counted stands for the time since it was counted last. Pure: it is told the time.

use std::collections::BTreeSet;

use super::live::Hidden;
use crate::{
    kernel::Counted,
    record::{Record, fact::CallsHidden},
    time::KtimeNs,
};

/// All calls are counted for so long at first, whatever that costs: a first verdict needs them.
const FIRST_NS: u64 = 4_000_000_000;
/// Where there is room for less than this share of the time it costs very much, and half of that has to do.
const DEAR: f64 = 0.1;
/// Calls are counted for so long at a time, give or take [`JITTER`]: with steps of any length a turn sees another part each time.
const TURN_NS: f64 = 500_000_000.0;
const JITTER: f64 = 0.25;

/// A call that is not counted while others are costs this part of one that is, as long as that was not measured.
const UNCOUNTED_CALL: f64 = 0.2;
/// Where calls of some would cost more than this part of what those of all do, none are counted.
const HARDLY_LESS: f64 = 0.45;

/// What calls cost while only those of processes are counted whose calls are noted one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SomeCalls {
    /// These processes' part (0–1) of the calls that are counted.
    pub touched: f64,
    /// As a part of what all cost.
    measured: Option<f64>,
}

impl SomeCalls {
    /// What both cost by the last measurements; what was measured first tells: afterwards perhaps none are counted.
    pub fn measured(&mut self, all: Option<f64>, some: Option<f64>) {
        if let (None, Some(all), Some(some)) = (self.measured, all, some) {
            self.measured = Some(some / all.max(1.0));
        }
    }

    /// As a part (0–1) of what all cost; `None`: then none are to be counted.
    pub fn cost(&self) -> Option<f64> {
        let expected = UNCOUNTED_CALL + (1.0 - UNCOUNTED_CALL) * self.touched;
        let cost = self.measured.unwrap_or(expected).max(expected);
        (cost <= HARDLY_LESS).then_some(cost)
    }
}

/// Whether calls are counted.
#[derive(Debug)]
pub struct Turns {
    began: u64,
    random: u64,
    /// Not all calls are counted, since when; whether some are.
    hidden: Option<(u64, bool)>,
    /// When that, or else this turn, is to end.
    until: u64,
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
            began: began.0,
            random: seed | 1,
            hidden: None,
            until: began.0 + FIRST_NS,
            ended: Hidden::default(),
            told: 0,
            untold: Vec::new(),
        }
    }

    /// Which calls are counted from `now` on, when there is room to count all for this share (0–1) of the time. `some`: whether in
    /// the rest of it those of the processes are counted whose calls are noted one by one.
    pub fn look(&mut self, now: KtimeNs, share: f64, some: bool) -> Counted {
        let at = now.0.max(self.began);
        match self.hidden {
            None if share < 1.0 && at >= self.turn_ends(share) => {
                self.hidden = Some((at, some));
                self.until = at + self.jittered(TURN_NS * (1.0 / share.max(1e-3) - 1.0));
            }
            Some(_) if share >= 1.0 || at >= self.until => {
                self.end_hidden(at);
                self.until = at + self.jittered(TURN_NS);
            }
            // That saves nothing, as is known by now.
            Some((_, true)) if !some => {
                self.end_hidden(at);
                self.hidden = Some((at, false));
            }
            _ => {}
        }
        self.counted()
    }

    /// When the turn of counting that is under way is over.
    fn turn_ends(&self, share: f64) -> u64 {
        let first = self.ended == Hidden::default();
        if first && share < DEAR {
            self.began + FIRST_NS / 2
        } else {
            self.until
        }
    }

    fn end_hidden(&mut self, at: u64) {
        self.ended = self.hidden(KtimeNs(at));
        if let Some((from, some)) = self.hidden.take() {
            self.untold.push((from.max(self.told), at, some));
        }
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
                    counted: touched.iter().copied().filter(|_| some).collect(),
                    slowed,
                })
            },
        ));
    }

    /// `ns`, give or take.
    fn jittered(&mut self, ns: f64) -> u64 {
        // A generator that is good enough for jitter (Knuth, MMIX).
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let even = (self.random >> 33) as f64 / (1_u64 << 31) as f64;
        (ns * (1.0 - JITTER + 2.0 * JITTER * even)) as u64
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
            turns.look(*now, share, true);
        }
        1.0 - (turns.hidden(*now).ns - before) as f64 / now.since(from) as f64
    }

    #[test]
    fn all_are_counted_at_first_and_where_there_is_room() {
        let mut now = KtimeNs(7_000_000_000);
        let mut turns = Turns::new(now, 1);
        assert_eq!(counted(&mut turns, &mut now, 3, 0.2), 1.0);
        assert_eq!(counted(&mut turns, &mut now, 60, 1.0), 1.0);
        let mut told = Vec::new();
        turns.tell(now, &BTreeSet::new(), 0.0, &mut told);
        assert!(told.is_empty());
    }

    #[test]
    fn none_are_counted_where_some_cost_nearly_as_much() {
        let mut some = SomeCalls::default();
        assert_eq!(some.cost(), Some(0.2));
        some.touched = 0.5;
        assert_eq!(some.cost(), None, "more than half of them are");
        some.touched = 0.0;
        some.measured(Some(4e7), None);
        assert!(some.cost().is_some());
        // Calls that are never counted cost the same in any case.
        some.measured(Some(4e7), Some(3.9e7));
        assert_eq!(some.cost(), None);
    }

    #[test]
    fn what_costs_very_much_is_counted_for_a_shorter_time_at_first() {
        let mut now = KtimeNs(1);
        let mut turns = Turns::new(now, 3);
        assert_eq!(counted(&mut turns, &mut now, 1, 0.05), 1.0);
        counted(&mut turns, &mut now, 2, 0.05);
        assert_eq!(turns.counted(), Counted::Touched);
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
            assert_eq!(hidden.counted, [4]);
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
        assert_eq!(turns.look(now, 0.03, false), Counted::None);
        now.0 += LOOK;
        turns.look(now, 0.03, false);
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
        assert_eq!(turns.look(now, 1.0, true), Counted::All);
    }
}
