//! What happened one by one, kept for the walk along wake-ups: bounded, thinned evenly over a long watch.

use std::collections::{BTreeMap, HashMap, VecDeque};

use trainprof_common::thread::NR_PREEMPTED;

use super::threads::WaitId;
use crate::{
    record::fact::{
        ExecutionFact, GpuCallFact, Interval, PassFact, SampleFact, ThreadTotals, TouchFact,
        UpdateFact, WaitFact,
    },
    time::KtimeNs,
};

/// Intervals of one group: what is thinned out goes as a whole, so that what is left can be walked.
const GROUP: usize = 10;

/// Single facts that are kept. At 64 bytes each they are the collector's largest part.
const MAX_FACTS: usize = 160_000;

/// A thread's short waits below this share of an interval are not told from running.
const MIN_RESIDUAL: f64 = 0.005;

/// What a thread did in an interval while no single wait of it was recorded.
#[derive(Clone, Debug, Default)]
pub struct Residual {
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Nanoseconds that it wanted a CPU, in pieces too short to be recorded one by one.
    pub runnable_ns: u64,
    /// Waits too short to be recorded one by one.
    pub waits: Vec<(WaitId, u64)>,
}

impl Residual {
    /// Nanoseconds of all of it.
    pub fn total_ns(&self) -> u64 {
        self.run_ns + self.runnable_ns + self.waits.iter().map(|(_, ns)| ns).sum::<u64>()
    }
}

/// One interval: single facts in the order in which they came.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    pub from: KtimeNs,
    pub to: KtimeNs,
    /// Calls of trainers were counted all through it.
    pub with_calls: bool,
    pub waits: Vec<WaitFact>,
    pub touches: Vec<TouchFact>,
    pub samples: Vec<SampleFact>,
    pub calls: Vec<GpuCallFact>,
    pub passes: Vec<PassFact>,
    pub updates: Vec<UpdateFact>,
    pub executions: Vec<ExecutionFact>,
    pub residuals: BTreeMap<u32, Residual>,
}

impl Segment {
    /// Takes out what ended after `at`.
    fn split_off(&mut self, at: KtimeNs) -> Self {
        let later = |wait: &WaitFact| wait.from.0 + wait.wait_ns + wait.runnable_ns > at.0;
        Self {
            waits: self.waits.extract_if(.., |wait| later(wait)).collect(),
            touches: self.touches.extract_if(.., |touch| touch.at > at).collect(),
            samples: self
                .samples
                .extract_if(.., |sample| sample.at > at)
                .collect(),
            calls: self
                .calls
                .extract_if(.., |call| call.from.0.saturating_add(call.ns) > at.0)
                .collect(),
            passes: self.passes.extract_if(.., |pass| pass.at > at).collect(),
            updates: self.updates.extract_if(.., |it| it.at > at).collect(),
            executions: self.executions.extract_if(.., |it| it.at > at).collect(),
            ..Self::default()
        }
    }

    /// Gives back the room that is left: it is kept for long, and gets no more.
    fn shrink(&mut self) {
        self.waits.shrink_to_fit();
        self.touches.shrink_to_fit();
        self.samples.shrink_to_fit();
        self.calls.shrink_to_fit();
        self.passes.shrink_to_fit();
        self.updates.shrink_to_fit();
        self.executions.shrink_to_fit();
    }

    /// What it weighs: rows of residuals count as well.
    fn facts(&self) -> usize {
        self.residuals.len()
            + self.waits.len()
            + self.touches.len()
            + self.samples.len()
            + self.calls.len()
            + self.passes.len()
            + self.updates.len()
            + self.executions.len()
    }
}

/// The retained past.
#[derive(Default)]
pub struct History {
    segments: VecDeque<Segment>,
    open: Segment,
    facts: usize,
    /// Groups were dropped: what is left is a part of the watch.
    pub thinned: bool,
}

impl History {
    pub(super) fn wait(&mut self, fact: WaitFact) {
        self.open.waits.push(fact);
    }

    pub(super) fn touch(&mut self, fact: TouchFact) {
        self.open.touches.push(fact);
    }

    pub(super) fn sample(&mut self, fact: SampleFact) {
        self.open.samples.push(fact);
    }

    pub(super) fn call(&mut self, fact: GpuCallFact) {
        self.open.calls.push(fact);
    }

    pub(super) fn update(&mut self, fact: UpdateFact) {
        self.open.updates.push(fact);
    }

    pub(super) fn execution(&mut self, fact: ExecutionFact) {
        self.open.executions.push(fact);
    }

    pub(super) fn pass(&mut self, fact: PassFact) {
        self.open.passes.push(fact);
    }

    /// Closes an interval. `before` gives a thread's totals at its beginning. True when something of the past went.
    pub(super) fn close(
        &mut self,
        interval: &Interval,
        with_calls: bool,
        before: impl Fn(u32) -> Option<ThreadTotals>,
    ) -> bool {
        let mut segment = std::mem::take(&mut self.open);
        // What arrived already but ended later is in the sums of the next interval.
        self.open = segment.split_off(interval.to);
        // Of a damaged recording: time that was told already, or runs backwards.
        let last = self.segments.back().map_or(KtimeNs(0), |last| last.to);
        let orderly = interval.from >= last && interval.to >= interval.from;
        if !orderly {
            self.thinned = true;
            return true;
        }
        segment.with_calls = with_calls;
        segment.from = interval.from;
        segment.to = interval.to;
        segment.residuals = residuals(&segment, interval, before);
        segment.shrink();
        self.facts += segment.facts();
        self.segments.push_back(segment);
        let full = self.facts > MAX_FACTS;
        if full {
            self.thin();
        }
        full
    }

    /// Adds waits that had not ended when the watch did.
    pub(super) fn unfinished(&mut self, waits: impl Iterator<Item = WaitFact>) {
        if let Some(last) = self.segments.back_mut() {
            last.waits.extend(waits);
        }
    }

    /// Drops every second group, the newest one never: of segments with calls, or of those without if these are the larger part, so that
    /// neither kind crowds the other out.
    fn thin(&mut self) {
        self.thinned = true;
        let these = |with_calls: bool| {
            let of_kind = self
                .segments
                .iter()
                .filter(move |s| s.with_calls == with_calls);
            (
                of_kind.clone().count(),
                of_kind.map(Segment::facts).sum::<usize>(),
            )
        };
        let (with, without) = (these(true), these(false));
        let with_calls = with.1 >= without.1;
        let count = if with_calls { with.0 } else { without.0 };
        if count / GROUP < 3 {
            // Little time and many facts: the oldest intervals go.
            while self.facts > MAX_FACTS && self.segments.len() > 1 {
                if let Some(old) = self.segments.pop_front() {
                    self.facts -= old.facts();
                }
            }
        } else {
            let last = count - GROUP;
            let mut at = 0;
            self.segments.retain(|segment| {
                if segment.with_calls != with_calls {
                    return true;
                }
                let keep = (at / GROUP).is_multiple_of(2) || at >= last;
                at += 1;
                keep
            });
            self.facts = self.segments.iter().map(Segment::facts).sum();
        }
    }

    /// Closed intervals, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter()
    }

    /// Stretches of time without a hole.
    pub fn spans(&self) -> Vec<(KtimeNs, KtimeNs)> {
        let mut out: Vec<(KtimeNs, KtimeNs)> = Vec::new();
        for segment in &self.segments {
            match out.last_mut() {
                Some((_, to)) if *to == segment.from => *to = segment.to,
                _ => out.push((segment.from, segment.to)),
            }
        }
        out
    }
}

/// What is left of the interval's sums when the single waits are taken away.
fn residuals(
    segment: &Segment,
    interval: &Interval,
    before: impl Fn(u32) -> Option<ThreadTotals>,
) -> BTreeMap<u32, Residual> {
    let mut singles = HashMap::<(u32, WaitId), (u64, u64)>::new();
    let mut preempted = HashMap::<u32, u64>::new();
    for wait in &segment.waits {
        if wait.nr == NR_PREEMPTED {
            *preempted.entry(wait.tid).or_default() += wait.runnable_ns;
            continue;
        }
        let sum = singles
            .entry((wait.tid, WaitId::of_single(wait)))
            .or_default();
        sum.0 += wait.wait_ns;
        sum.1 += wait.runnable_ns;
    }
    let mut out = BTreeMap::<u32, Residual>::new();
    // Of those too short to be told one by one, such as waits for thousands of threads that live for a moment: the longest, with the time
    // of all alike.
    let mut small = BTreeMap::<(u32, i16, u8), (u64, WaitId, u64)>::new();
    let least = (interval.to.since(interval.from) as f64 * MIN_RESIDUAL) as u64;
    for sum in &interval.waits {
        let id = WaitId {
            nr: sum.nr,
            object: sum.object,
            waker: sum.waker,
        };
        let (wait, runnable) = singles.get(&(sum.tid, id)).copied().unwrap_or_default();
        let short = sum.wait_ns.saturating_sub(wait);
        let residual = out.entry(sum.tid).or_default();
        residual.runnable_ns += sum.runnable_ns.saturating_sub(runnable);
        if short >= least {
            residual.waits.push((id, short));
        } else if short > 0 {
            let alike = small.entry((sum.tid, sum.nr, sum.waker.kind));
            let (longest, longest_id, all) = alike.or_insert((0, id, 0));
            if short > *longest {
                (*longest, *longest_id) = (short, id);
            }
            *all += short;
        }
    }
    for ((tid, ..), (_, id, ns)) in small {
        if ns >= least
            && let Some(residual) = out.get_mut(&tid)
        {
            residual.waits.push((id, ns));
        }
    }
    let ended = interval.ended.iter().map(|end| &end.totals);
    for totals in interval.running.iter().chain(ended) {
        let since = before(totals.tid).unwrap_or_default();
        let residual = out.entry(totals.tid).or_default();
        residual.run_ns += totals.run_ns.saturating_sub(since.run_ns);
        residual.runnable_ns += totals
            .preempted_ns
            .saturating_sub(since.preempted_ns)
            .saturating_sub(preempted.get(&totals.tid).copied().unwrap_or(0));
    }
    out.retain(|_, residual| residual.total_ns() > 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fact::{ObjectFact, WaitSum, WakerFact};

    fn touch() -> TouchFact {
        TouchFact {
            tid: 7,
            at: KtimeNs(0),
            op: 0,
            object: ObjectFact::default(),
            bytes: 0,
            skipped: 0,
        }
    }

    #[test]
    fn time_that_was_told_already_is_not_told_again() {
        let mut history = History::default();
        let mut close = |from, to| {
            let interval = Interval {
                from: KtimeNs(from),
                to: KtimeNs(to),
                ..Interval::default()
            };
            history.close(&interval, true, |_| None)
        };
        assert!(!close(10, 20) && !close(20, 30) && !close(40, 50));
        // As in a damaged recording: again, before all others, and backwards.
        assert!(close(20, 30) && close(0, 5) && close(70, 60));
        let spans = history.spans();
        let expected = [(10, 30), (40, 50)].map(|(from, to)| (KtimeNs(from), KtimeNs(to)));
        assert_eq!(spans, expected);
    }

    #[test]
    fn of_too_many_facts_those_without_calls_go_where_they_are_more() {
        let mut history = History::default();
        let all = MAX_FACTS as u64 + 1;
        for second in 0..100_u64 {
            for n in 0..all / 100 + 1 {
                history.touch(TouchFact {
                    at: KtimeNs(second * 1_000_000 + n),
                    ..touch()
                });
            }
            let interval = Interval {
                from: KtimeNs(second * 1_000_000),
                to: KtimeNs((second + 1) * 1_000_000),
                ..Interval::default()
            };
            let gone = history.close(&interval, second % 10 == 0, |_| None);
            assert_eq!(gone, second == 99, "{second}");
        }
        let kept = |with_calls| {
            let segments = history.segments();
            segments.filter(move |segment| segment.with_calls == with_calls)
        };
        assert_eq!((kept(true).count(), kept(false).count()), (10, 50));
        assert_eq!(
            kept(false).last().map(|segment| segment.to.0),
            Some(100_000_000)
        );
        assert!(history.thinned);
    }

    #[test]
    fn many_waits_too_short_to_be_told_one_by_one_are_told_together() {
        const MS: u64 = 1_000_000;
        // For 200 threads 1 ms each, in a second; and for one that is gone a moment later 1 ms by an interrupt.
        let sum = |waker: WakerFact| WaitSum {
            tid: 7,
            nr: 202,
            object: ObjectFact::default(),
            waker,
            count: 1,
            wait_ns: MS,
            runnable_ns: 0,
            iowait_ns: 0,
            max_ns: 0,
        };
        let by_threads = (100..300).map(|tid| sum(WakerFact { kind: 1, tid }));
        let by_nobody = std::iter::once(sum(WakerFact { kind: 2, tid: 0 }));
        let interval = Interval {
            to: KtimeNs(1_000 * MS),
            waits: by_threads.chain(by_nobody).collect(),
            ..Interval::default()
        };
        let mut history = History::default();
        history.close(&interval, true, |_| None);
        let residual = &history.segments[0].residuals[&7];
        let told: Vec<(u8, u64)> = residual
            .waits
            .iter()
            .map(|(id, ns)| (id.waker.kind, *ns))
            .collect();
        assert_eq!(told, [(1, 200 * MS)]);
    }
}
