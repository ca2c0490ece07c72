//! System calls of times in which they were not counted: those that were stand for them, from one such time to the next.

use std::borrow::Cow;

use trainprof_common::op::Op;

use crate::record::fact::{CallsHidden, Interval, OpSum};

/// What was counted for less than this (ns) stands for no other time: parts of a turn are put together.
const TELLS_NS: u64 = 250_000_000;

/// Time without counting.
#[derive(Clone, Copy, Default)]
struct Gone {
    /// In the interval that comes next, ns.
    here: u64,
    /// In it, and in earlier ones for which no counting stood yet: in so much time (ns) of counting, which slows the job down, as much
    /// would have been counted.
    worth: f64,
    /// In the whole watch, ns.
    total: u64,
}

impl Gone {
    fn add(&mut self, ns: u64, slowed: f64) {
        self.here += ns;
        self.total += ns;
        self.worth += ns as f64 * (1.0 + slowed);
    }

    /// How many times the time beside it counts what was counted in `counted` ns; afterwards it counts no more.
    fn given_to(&mut self, counted: u64) -> f64 {
        std::mem::take(&mut self.worth) / counted.max(1) as f64
    }
}

/// Operations of a process that were counted.
struct Seen {
    op: OpSum,
    pid: Option<u32>,
}

/// What was counted in some time.
#[derive(Default)]
struct Turn {
    seen: Vec<Seen>,
    /// For how long others' calls were counted, and those of noted processes, ns.
    ns: [u64; 2],
}

impl Turn {
    fn tells(&self) -> bool {
        self.ns[0] >= TELLS_NS
    }
}

/// What is known of it over a watch.
#[derive(Default)]
pub struct Uncounted {
    /// Of others, and of processes whose calls are noted one by one.
    gone: [Gone; 2],
    /// The latter.
    counted: Vec<u32>,
    /// What was counted since it last stood for other time, and then.
    turn: Turn,
    last: Turn,
}

impl Uncounted {
    /// For how long not all system calls were counted, seconds.
    pub fn seconds(&self) -> f64 {
        self.gone[0].total as f64 / 1e9
    }

    /// Whether not even trainers' calls were counted in a part of the interval that comes next.
    pub(super) fn hides_trainers(&self) -> bool {
        self.gone[1].here > 0
    }

    pub(super) fn hidden(&mut self, hidden: &CallsHidden) {
        let ns = hidden.to.since(hidden.from);
        self.gone[0].add(ns, hidden.slowed);
        match &hidden.counted {
            Some(counted) => self.counted.clone_from(counted),
            None => self.gone[1].add(ns, hidden.slowed),
        }
    }

    /// The operations of an interval as they would be had all calls been counted, also before it.
    pub(super) fn complete<'a>(
        &mut self,
        interval: &Interval,
        ops: Cow<'a, [OpSum]>,
        pid: impl Fn(u32) -> Option<u32>,
    ) -> Cow<'a, [OpSum]> {
        let length = interval.to.since(interval.from);
        for (ns, gone) in self.turn.ns.iter_mut().zip(&mut self.gone) {
            *ns += length.saturating_sub(std::mem::take(&mut gone.here));
        }
        let calls = ops.iter().filter(|op| Op::is_call(op.op));
        self.turn.seen.extend(calls.map(|op| Seen {
            op: *op,
            pid: pid(op.tid),
        }));
        if !self.turn.tells() {
            return ops;
        }
        self.last = std::mem::take(&mut self.turn);
        let beside = self.beside();
        if beside.is_empty() {
            ops
        } else {
            Cow::Owned([ops.as_ref(), &beside].concat())
        }
    }

    /// What is to be added for the time at the end of the watch for which no counting stood.
    pub(super) fn finish(&mut self) -> Vec<OpSum> {
        self.beside()
    }

    /// What the last turn that tells something tells of the time for which no counting stood yet.
    fn beside(&mut self) -> Vec<OpSum> {
        let [others, noted] = self.last.ns;
        let more = [self.gone[0].given_to(others), self.gone[1].given_to(noted)];
        let seen = self.last.seen.iter();
        seen.map(|seen| {
            let noted = seen.pid.is_some_and(|pid| self.counted.contains(&pid));
            times(&seen.op, more[usize::from(noted)])
        })
        .filter(|op| op.count > 0)
        .collect()
    }
}

fn times(op: &OpSum, by: f64) -> OpSum {
    let scaled = |n: u64| (n as f64 * by).round() as u64;
    OpSum {
        count: scaled(op.count),
        errors: scaled(op.errors),
        bytes: scaled(op.bytes),
        ns: scaled(op.ns),
        ..*op
    }
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::Class;

    use super::*;
    use crate::time::KtimeNs;

    const SECOND: u64 = 1_000_000_000;

    fn op(tid: u32, op: Op, count: u64) -> OpSum {
        OpSum {
            tid,
            fileset: 1,
            dev: 1,
            op: op.number(),
            class: Class::File as u8,
            count,
            errors: 0,
            bytes: 10 * count,
            ns: 100 * count,
        }
    }

    fn hidden(from: u64, to: u64, counted: Option<&[u32]>) -> CallsHidden {
        CallsHidden {
            from: KtimeNs(from),
            to: KtimeNs(to),
            counted: counted.map(<[u32]>::to_vec),
            slowed: 0.0,
        }
    }

    /// Counts of thread 7 (a worker), of thread 8 (the trainer), and of page-cache fills, in one-second intervals.
    fn counts(uncounted: &mut Uncounted, second: u64, ops: &[OpSum]) -> [u64; 3] {
        let interval = Interval {
            from: KtimeNs(second * SECOND),
            to: KtimeNs((second + 1) * SECOND),
            ..Interval::default()
        };
        let whole = uncounted.complete(&interval, Cow::Borrowed(ops), Some);
        sums(&whole)
    }

    fn sums(ops: &[OpSum]) -> [u64; 3] {
        let sum =
            |which: &dyn Fn(&&OpSum) -> bool| ops.iter().filter(which).map(|op| op.count).sum();
        let call = |op: &&OpSum| Op::is_call(op.op);
        [
            sum(&|op| call(op) && op.tid == 7),
            sum(&|op| call(op) && op.tid == 8),
            sum(&|op| !call(op)),
        ]
    }

    #[test]
    fn nothing_changes_where_all_was_counted() {
        let ops = [op(7, Op::Open, 100), op(8, Op::Read, 10)];
        let mut uncounted = Uncounted::default();
        assert_eq!(counts(&mut uncounted, 0, &ops), [100, 10, 0]);
        assert!(uncounted.finish().is_empty());
    }

    #[test]
    fn what_was_counted_stands_for_the_time_before() {
        let ops = [
            op(7, Op::Open, 100),
            op(8, Op::Read, 10),
            op(7, Op::Fill, 5),
        ];
        let mut uncounted = Uncounted::default();
        // 1.5 s hidden, the trainer's calls not, then half a second in which all are counted.
        uncounted.hidden(&hidden(0, SECOND, Some(&[8])));
        assert_eq!(
            counts(&mut uncounted, 0, &[op(8, Op::Read, 10)]),
            [0, 10, 0]
        );
        uncounted.hidden(&hidden(SECOND, SECOND * 3 / 2, Some(&[8])));
        assert_eq!(counts(&mut uncounted, 1, &ops), [400, 10, 5]);
        assert_eq!(uncounted.seconds(), 1.5);
        // And for what comes after it, at the end.
        uncounted.hidden(&hidden(2 * SECOND, 3 * SECOND, Some(&[8])));
        assert_eq!(counts(&mut uncounted, 2, &[op(8, Op::Read, 9)]), [0, 9, 0]);
        assert_eq!(sums(&uncounted.finish()), [200, 0, 0]);
    }

    #[test]
    fn a_turn_that_two_intervals_share_stands_as_a_whole() {
        let mut uncounted = Uncounted::default();
        uncounted.hidden(&hidden(0, SECOND * 9 / 10, Some(&[8])));
        assert_eq!(counts(&mut uncounted, 0, &[op(7, Op::Open, 2)]), [2, 0, 0]);
        uncounted.hidden(&hidden(SECOND * 14 / 10, 2 * SECOND, Some(&[8])));
        // 100 in half a second, 1.5 s hidden.
        assert_eq!(
            counts(&mut uncounted, 1, &[op(7, Op::Open, 98)]),
            [98 + 6 + 294, 0, 0]
        );
    }

    #[test]
    fn what_comes_first_stands_for_an_end_without_counting() {
        let mut uncounted = Uncounted::default();
        let ops = [op(7, Op::Open, 100), op(8, Op::Read, 10)];
        assert_eq!(counts(&mut uncounted, 0, &ops), [100, 10, 0]);
        // Counting slows the job down by a quarter: 5 of 4 s.
        let slowed = CallsHidden {
            slowed: 0.25,
            ..hidden(SECOND, 5 * SECOND, Some(&[8]))
        };
        uncounted.hidden(&slowed);
        assert_eq!(sums(&uncounted.finish()), [500, 0, 0]);
    }

    #[test]
    fn where_no_trainer_is_known_nothing_of_one_is_hidden() {
        let mut uncounted = Uncounted::default();
        uncounted.hidden(&hidden(0, SECOND / 2, Some(&[])));
        assert!(!uncounted.hides_trainers());
        assert_eq!(
            counts(&mut uncounted, 0, &[op(7, Op::Open, 10)]),
            [20, 0, 0]
        );
    }

    #[test]
    fn where_nobodys_calls_were_counted_all_are_estimated() {
        let ops = [op(7, Op::Open, 100), op(8, Op::Read, 10)];
        let mut uncounted = Uncounted::default();
        uncounted.hidden(&hidden(0, SECOND / 2, None));
        uncounted.hidden(&hidden(SECOND / 2, SECOND * 3 / 4, None));
        assert!(uncounted.hides_trainers());
        assert_eq!(counts(&mut uncounted, 0, &ops), [400, 40, 0]);
        assert!(!uncounted.hides_trainers());
    }
}
