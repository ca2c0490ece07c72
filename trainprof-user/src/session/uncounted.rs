//! System calls of times in which they were not counted: those that were stand for them, from one such time to the next.

use std::borrow::Cow;

use trainprof_common::op::Op;

use crate::{
    record::fact::{CallsHidden, Interval, OpSum},
    time::KtimeNs,
};

/// What was counted for less than this in an interval (ns) stands for no other time.
const TELLS_NS: u64 = 50_000_000;

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

    /// For how long calls were counted in an interval of this length that ends.
    fn rest_of(&mut self, length: u64) -> u64 {
        length.saturating_sub(std::mem::take(&mut self.here))
    }

    /// How many times the time beside it counts what was counted in `counted` ns; afterwards it counts no more.
    fn given_to(&mut self, counted: u64) -> f64 {
        if counted < TELLS_NS {
            return 0.0;
        }
        std::mem::take(&mut self.worth) / counted as f64
    }
}

/// Operations of a process that were counted.
struct Seen {
    op: OpSum,
    pid: Option<u32>,
}

/// What is known of it over a watch.
#[derive(Default)]
pub struct Uncounted {
    /// Of processes whose calls are noted one by one, and of others.
    noted: Gone,
    others: Gone,
    /// The former.
    counted: Vec<u32>,
    /// Times in which no calls at all were counted.
    spans: Vec<(KtimeNs, KtimeNs)>,
    /// What was counted in the last interval that tells something, and for how long, ns: others' calls, and those of noted processes.
    last: Vec<Seen>,
    last_ns: [u64; 2],
}

impl Uncounted {
    /// For how long not all system calls were counted, seconds.
    pub fn seconds(&self) -> f64 {
        self.others.total as f64 / 1e9
    }

    /// Times in which not even the trainers' calls were counted, in order.
    pub fn spans(&self) -> &[(KtimeNs, KtimeNs)] {
        &self.spans
    }

    pub(super) fn hidden(&mut self, hidden: &CallsHidden) {
        let ns = hidden.to.since(hidden.from);
        self.others.add(ns, hidden.slowed);
        if hidden.counted.is_empty() {
            self.noted.add(ns, hidden.slowed);
            match self.spans.last_mut() {
                Some(last) if last.1 >= hidden.from => last.1 = hidden.to,
                _ => self.spans.push((hidden.from, hidden.to)),
            }
        } else {
            self.counted.clone_from(&hidden.counted);
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
        let counted = [self.others.rest_of(length), self.noted.rest_of(length)];
        let more = [
            self.others.given_to(counted[0]),
            self.noted.given_to(counted[1]),
        ];
        let calls = ops.iter().filter(|op| Op::is_call(op.op));
        let seen: Vec<Seen> = calls
            .map(|op| Seen {
                op: *op,
                pid: pid(op.tid),
            })
            .collect();
        let all = if more == [0.0; 2] {
            ops
        } else {
            let beside = self.times(&seen, more);
            Cow::Owned([ops.as_ref(), &beside].concat())
        };
        if counted[0] >= TELLS_NS && !seen.is_empty() {
            self.last = seen;
            self.last_ns = counted;
        }
        all
    }

    /// What is to be added for the time at the end of the watch for which no counting stood.
    pub(super) fn finish(&mut self) -> Vec<OpSum> {
        let [others, noted] = self.last_ns;
        let more = [self.others.given_to(others), self.noted.given_to(noted)];
        self.times(&self.last, more)
    }

    /// What was seen, so many times: of others, and of noted processes.
    fn times(&self, seen: &[Seen], more: [f64; 2]) -> Vec<OpSum> {
        seen.iter()
            .map(|seen| {
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

    fn hidden(from: u64, to: u64, counted: &[u32]) -> CallsHidden {
        CallsHidden {
            from: KtimeNs(from),
            to: KtimeNs(to),
            counted: counted.to_vec(),
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
        uncounted.hidden(&hidden(0, SECOND, &[8]));
        assert_eq!(
            counts(&mut uncounted, 0, &[op(8, Op::Read, 10)]),
            [0, 10, 0]
        );
        uncounted.hidden(&hidden(SECOND, SECOND * 3 / 2, &[8]));
        assert_eq!(counts(&mut uncounted, 1, &ops), [400, 10, 5]);
        assert_eq!(uncounted.seconds(), 1.5);
        assert!(uncounted.spans().is_empty());
        // And for what comes after it, at the end.
        uncounted.hidden(&hidden(2 * SECOND, 3 * SECOND, &[8]));
        assert_eq!(counts(&mut uncounted, 2, &[op(8, Op::Read, 9)]), [0, 9, 0]);
        assert_eq!(sums(&uncounted.finish()), [200, 0, 0]);
    }

    #[test]
    fn what_comes_first_stands_for_an_end_without_counting() {
        let mut uncounted = Uncounted::default();
        let ops = [op(7, Op::Open, 100), op(8, Op::Read, 10)];
        assert_eq!(counts(&mut uncounted, 0, &ops), [100, 10, 0]);
        // Counting slows the job down by a quarter: 5 of 4 s.
        let slowed = CallsHidden {
            slowed: 0.25,
            ..hidden(SECOND, 5 * SECOND, &[8])
        };
        uncounted.hidden(&slowed);
        assert_eq!(sums(&uncounted.finish()), [500, 0, 0]);
    }

    #[test]
    fn where_nobodys_calls_were_counted_all_are_estimated() {
        let ops = [op(7, Op::Open, 100), op(8, Op::Read, 10)];
        let mut uncounted = Uncounted::default();
        uncounted.hidden(&hidden(0, SECOND / 2, &[]));
        uncounted.hidden(&hidden(SECOND / 2, SECOND * 3 / 4, &[]));
        assert_eq!(counts(&mut uncounted, 0, &ops), [400, 40, 0]);
        let span = (KtimeNs(0), KtimeNs(SECOND * 3 / 4));
        assert_eq!(uncounted.spans(), [span]);
    }
}
