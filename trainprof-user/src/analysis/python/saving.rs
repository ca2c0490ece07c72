//! Functions that save state: most of what happens under them, or in calls of them, is that it is written, and nothing is computed or read
//! for the model.

use std::collections::{BTreeMap, BTreeSet};

use super::{ALWAYS, Mark, Python};
use crate::{
    analysis::{
        checkpoints::{is_open, is_written},
        spans::overlap,
    },
    record::fact::TouchFact,
};

/// Samples of a function that show what it does.
const MIN_SAVING: usize = 8;
/// The part (0–1) of them in which state was written at least.
const MOSTLY: f64 = 0.5;
/// The part of them in which a framework, or a loader, may have been called: state is asked for there.
const ASKS: f64 = 0.1;
/// The part of all samples that shows a framework's work at least, so that its absence tells something.
const COMPUTES: f64 = 0.1;
/// A function in whose calls state is written, sooner or later, writes it itself: it is there in so many samples in which state is
/// written, in this part of all of these, and this part of its own are such.
const MIN_WRITING: usize = 4;
const WRITES: f64 = 0.5;
const OF_ITS_OWN: f64 = 0.15;
/// Samples further apart, ns, and than so many times the usual, are not of one call.
const APART_NS: u64 = 200_000_000;
const APART: f64 = 2.5;

/// A number that no stack has.
const NO_STACK: u32 = u32::MAX;

#[derive(Default)]
struct Seen {
    samples: usize,
    /// Those at which state was written, and those of calls in which some was, sooner or later.
    writing: usize,
    of_writing_calls: usize,
    /// Those in which a framework, or a loader, was called by it; and in which a library that keeps records was, or it by a loader.
    computing: usize,
    recording: usize,
    /// The call under way: when its first sample was, and how many there were.
    call: Option<(u64, usize)>,
}

impl Seen {
    fn part(&self, count: usize) -> f64 {
        count as f64 / self.samples as f64
    }

    /// Whether it does little else than write.
    fn saves(&self) -> bool {
        self.samples >= MIN_SAVING
            && self.part(self.writing) >= MOSTLY
            && self.part(self.computing) <= ASKS
    }

    /// Whether each of its calls writes, of all that is `written` (in samples) a good part: what it does around that belongs to it,
    /// such as compressing what is written next.
    fn saves_by_calls(&self, written: usize) -> bool {
        self.samples >= MIN_SAVING
            && self.writing >= MIN_WRITING
            && self.writing as f64 >= WRITES * written as f64
            && self.part(self.writing) >= OF_ITS_OWN
            && self.part(self.of_writing_calls) >= MOSTLY
            && self.part(self.computing + self.recording) <= ASKS
    }

    /// Its call is over: it was not there any more at the sample after the one at `last`.
    fn returned(&mut self, last: u64, written: &[(u64, u64)]) {
        if let Some((first, samples)) = self.call.take() {
            let next = written.partition_point(|(_, to)| *to < first);
            let wrote = written.get(next).is_some_and(|(from, _)| *from <= last);
            self.of_writing_calls += if wrote { samples } else { 0 };
        }
    }
}

impl Python<'_> {
    /// Stretches in which a process's main thread, while on a CPU, was in functions that do little else than what is done in the stretches
    /// `written`, in which it wrote state, or each of whose calls has a good part of these, and no further from these than `apart_ns`: making it ready, say, and removing what it replaces. A
    /// function that all of the loop runs in is none.
    pub fn saving(&self, tid: u32, written: &[(u64, u64)], apart_ns: u64) -> Vec<(u64, u64)> {
        let stacks = &self.facts.session.python.stacks;
        let samples = self.facts.python_samples(tid);
        let gap = usual_gap(samples);
        let apart = APART_NS.max((APART * gap as f64) as u64);
        let mut functions = BTreeMap::<u32, Seen>::new();
        let (mut known, mut computed, mut wrote) = (0_u32, 0_u32, 0);
        let mut last = (0, BTreeSet::new());
        for (at, stack) in samples {
            let (Some(marks), Some(stack)) = (self.marks.get(stack), stacks.get(stack)) else {
                continue;
            };
            let writing = overlap(written, *at, at.saturating_add(1)) > 0;
            known += 1;
            computed += u32::from(marks.contains(&Mark::Framework));
            wrote += usize::from(writing);
            if at.saturating_sub(last.0) > apart {
                let over = functions.values_mut();
                over.for_each(|seen| seen.returned(last.0, written));
            }
            // What a loader calls makes batches, the first frame being the innermost.
            let loader = marks.iter().rposition(|mark| *mark == Mark::Loader);
            let (mut computing, mut recording) = (false, false);
            let mut now = BTreeSet::new();
            for (at_depth, (mark, function)) in marks.iter().zip(stack).enumerate() {
                computing |= matches!(mark, Mark::Framework | Mark::Loader);
                recording |= *mark == Mark::Recorder;
                if now.insert(*function) {
                    let seen = functions.entry(*function).or_default();
                    seen.samples += 1;
                    seen.call.get_or_insert((*at, 0)).1 += 1;
                    seen.writing += usize::from(writing);
                    seen.computing += usize::from(computing);
                    let called = loader.is_some_and(|loader| at_depth < loader);
                    seen.recording += usize::from((recording || called) && !computing);
                }
            }
            for function in last.1.difference(&now) {
                let seen = functions.entry(*function).or_default();
                seen.returned(last.0, written);
            }
            last = (*at, now);
        }
        for seen in functions.values_mut() {
            seen.returned(last.0, written);
        }
        let by_calls = f64::from(computed) >= COMPUTES * f64::from(known);
        let always = ALWAYS * samples.len() as f64;
        functions.retain(|_, seen| seen.samples as f64 <= always);
        let (by_time, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            functions.into_iter().partition(|(_, seen)| seen.saves());
        let by_calls: BTreeSet<u32> = others
            .into_iter()
            .filter(|(_, seen)| by_calls && seen.saves_by_calls(wrote))
            .map(|(function, _)| function)
            .collect();
        let functions = by_time.into_keys().collect();
        let in_any = |stack| self.is_under(stack, &functions);
        let in_calls = |stack| self.is_under(stack, &by_calls);
        let samples = self.running(tid);
        let calls = self.stretches(&samples, 0.0, &[], in_calls);
        let calls = calls.into_iter();
        let touches = self.facts.touches(tid);
        let calls = calls.filter_map(|call| from_first(call, gap, written, touches));
        let calls: Vec<(u64, u64)> = calls.collect();
        // Those that lie at what was written, by all samples of them.
        let mut near = self.stretches(&samples, 0.0, &[], in_any);
        near.retain(|(from, to)| {
            overlap(
                written,
                from.saturating_sub(apart_ns),
                to.saturating_add(apart_ns),
            ) > 0
        });
        // A sample stands for the time around it: of what is known exactly it would show more than there is.
        let samples = samples.into_iter().map(|(at, stack)| {
            let known = overlap(written, at, at.saturating_add(1)) > 0;
            (at, if known { NO_STACK } else { stack })
        });
        let samples: Vec<_> = samples.collect();
        let mut beside = self.stretches(&samples, 0.0, &[], in_any);
        beside.retain(|(from, to)| overlap(&near, *from, *to) > 0);
        beside.extend(calls);
        beside
    }
}

/// A stretch of time from when state was begun to be written in it, or the file for it opened: what is done before that, such as computing
/// it, is no part of saving it. The stretch may have begun `gap` earlier, before the first sample that shows it. `calls`: the thread's.
fn from_first(
    (from, to): (u64, u64),
    gap: u64,
    written: &[(u64, u64)],
    calls: &[TouchFact],
) -> Option<(u64, u64)> {
    let since = from.saturating_sub(gap);
    let begun = written.get(written.partition_point(|(_, end)| *end < since));
    let calls = &calls[calls.partition_point(|call| call.at.0 < since)..];
    let inside = calls.iter().take_while(|call| call.at.0 < to).enumerate();
    let opened = inside
        .filter(|(_, call)| is_open(call))
        .find(|(n, call)| is_written(&calls[n + 1..], call.object.id))
        .map(|(_, call)| call.at.0);
    let first = begun
        .map(|(begun, _)| *begun)
        .into_iter()
        .chain(opened)
        .min()?;
    (first < to).then_some((first.max(from), to))
}

/// The time between two samples in the median, ns.
fn usual_gap(samples: &[(u64, u32)]) -> u64 {
    let pairs = samples.windows(2);
    let mut gaps: Vec<u64> = pairs
        .map(|pair| pair[1].0.saturating_sub(pair[0].0))
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(0)
}
