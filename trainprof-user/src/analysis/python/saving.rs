//! Functions that save state: most of what happens under them, or in calls of them, is that it is written, and nothing is computed or read
//! for the model.

use std::collections::{BTreeMap, BTreeSet};

use super::{ALWAYS, Mark, Python};
use crate::analysis::spans::overlap;

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
/// Samples further apart, ns, are not of one call: they are taken every 40 or 80 ms.
const APART_NS: u64 = 200_000_000;

/// A number that no stack has.
const NO_STACK: u32 = u32::MAX;

#[derive(Default)]
struct Seen {
    samples: usize,
    /// Those at which state was written, and those of calls in which some was, sooner or later.
    writing: usize,
    of_writing_calls: usize,
    /// Those in which a framework, or a loader, was called by it; and a library that keeps records.
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
            if at.saturating_sub(last.0) > APART_NS {
                let over = functions.values_mut();
                over.for_each(|seen| seen.returned(last.0, written));
            }
            let (mut computing, mut recording) = (false, false);
            let mut now = BTreeSet::new();
            for (mark, function) in marks.iter().zip(stack) {
                computing |= matches!(mark, Mark::Framework | Mark::Loader);
                recording |= *mark == Mark::Recorder;
                if now.insert(*function) {
                    let seen = functions.entry(*function).or_default();
                    seen.samples += 1;
                    seen.call.get_or_insert((*at, 0)).1 += 1;
                    seen.writing += usize::from(writing);
                    seen.computing += usize::from(computing);
                    seen.recording += usize::from(recording && !computing);
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
        functions.retain(|_, seen| {
            let saves = seen.saves() || by_calls && seen.saves_by_calls(wrote);
            saves && seen.samples as f64 <= always
        });
        let functions = functions.into_keys().collect();
        let in_any = |stack| self.is_under(stack, &functions);
        let samples = self.running(tid);
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
        beside
    }
}
