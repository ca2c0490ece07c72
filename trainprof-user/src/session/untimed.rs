//! Calls whose beginning was hidden: they are in every count, but have no length in time. What they took is estimated
//! from the calls of the same kind that were timed.

use std::{borrow::Cow, collections::BTreeMap};

use crate::record::fact::{Interval, OpSum};

/// Calls that were timed, and the nanoseconds that they took.
#[derive(Clone, Copy, Default)]
struct Timed {
    calls: u64,
    ns: u64,
}

/// What is needed to estimate, over a watch.
#[derive(Default)]
pub(super) struct Untimed {
    /// Of the interval that comes next.
    hidden_ns: u64,
    /// Of the whole watch.
    pub(super) total_ns: u64,
    /// By device number, operation and class: over the watch, all threads together.
    known: BTreeMap<(u32, u8, u8), Timed>,
}

impl Untimed {
    /// Beginnings of calls were hidden for `ns` nanoseconds of the interval that comes next.
    pub(super) fn hidden(&mut self, ns: u64) {
        self.hidden_ns += ns;
        self.total_ns += ns;
    }

    /// The operations of an interval, each with the nanoseconds that it would have taken had all its calls been
    /// timed. Unchanged where nothing was hidden: then what was not timed had begun before the watch, or has no length.
    pub(super) fn complete<'a>(&mut self, interval: &'a Interval) -> Cow<'a, [OpSum]> {
        // By thread, device, operation and class: as finely as latencies are recorded.
        let mut groups = BTreeMap::<_, (u64, Timed)>::new();
        for op in &interval.ops {
            let (calls, timed) = groups.entry((op.tid, op.dev, op.op, op.class)).or_default();
            *calls += op.count;
            timed.ns += op.ns;
        }
        for hist in &interval.hists {
            let counted: u64 = hist.latency.iter().map(|(_, n)| u64::from(*n)).sum();
            if let Some((_, timed)) = groups.get_mut(&(hist.tid, hist.dev, hist.op, hist.class)) {
                timed.calls += counted;
            }
        }
        for ((_, dev, op, class), (_, timed)) in &groups {
            let known = self.known.entry((*dev, *op, *class)).or_default();
            known.calls += timed.calls;
            known.ns += timed.ns;
        }
        if std::mem::take(&mut self.hidden_ns) == 0 {
            return Cow::Borrowed(&interval.ops);
        }
        let scaled = interval.ops.iter().map(|op| {
            let ns = match groups.get(&(op.tid, op.dev, op.op, op.class)) {
                Some((calls, timed)) if timed.calls > 0 => share(op.ns, *calls, timed.calls),
                _ => self
                    .known
                    .get(&(op.dev, op.op, op.class))
                    .filter(|known| known.calls > 0)
                    .map_or(op.ns, |known| share(known.ns, op.count, known.calls)),
            };
            OpSum { ns, ..*op }
        });
        Cow::Owned(scaled.collect())
    }
}

/// `n` × `of` ÷ `parts`.
fn share(n: u64, of: u64, parts: u64) -> u64 {
    (u128::from(n) * u128::from(of) / u128::from(parts)) as u64
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::{Class, Op};

    use super::*;
    use crate::record::fact::HistSum;

    fn op(tid: u32, fileset: u32, op: Op, count: u64, ns: u64) -> OpSum {
        OpSum {
            tid,
            fileset,
            dev: 1,
            op: op.number(),
            class: Class::File as u8,
            count,
            errors: 0,
            bytes: 0,
            ns,
        }
    }

    fn timed(tid: u32, op: Op, calls: u32) -> HistSum {
        HistSum {
            tid,
            dev: 1,
            op: op.number(),
            class: Class::File as u8,
            latency: vec![(3, calls)],
            size: vec![],
        }
    }

    fn interval() -> Interval {
        Interval {
            ops: vec![
                op(7, 1, Op::Open, 60, 400),
                op(7, 2, Op::Open, 40, 100),
                op(7, 1, Op::Fill, 9, 0),
                op(8, 1, Op::Open, 30, 0),
            ],
            hists: vec![timed(7, Op::Open, 10)],
            ..Interval::default()
        }
    }

    #[test]
    fn time_of_hidden_calls_is_that_of_the_timed_ones() {
        let mut untimed = Untimed::default();
        untimed.hidden(900);
        let ops: Vec<_> = untimed
            .complete(&interval())
            .iter()
            .map(|op| (op.count, op.ns))
            .collect();
        // One in ten was timed, 50 ns each: that holds for the thread of which none was, too.
        assert_eq!(ops, [(60, 4_000), (40, 1_000), (9, 0), (30, 1_500)]);
        assert_eq!(untimed.total_ns, 900);
    }

    #[test]
    fn nothing_is_estimated_where_nothing_was_hidden() {
        let mut untimed = Untimed::default();
        untimed.hidden(900);
        untimed.complete(&interval());
        let interval = interval();
        assert_eq!(*untimed.complete(&interval), interval.ops[..]);
    }
}
