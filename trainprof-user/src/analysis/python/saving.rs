//! Functions that save state: most of what happens under them is that it is written, and nothing is computed or read for the model.

use std::collections::{BTreeMap, BTreeSet};

use super::{ALWAYS, Mark, Python};
use crate::analysis::spans::overlap;

/// Samples of a function that show what it does.
const MIN_SAVING: usize = 8;
/// The part (0–1) of them in which state was written at least.
const MOSTLY: f64 = 0.5;
/// The part of them in which a framework, or a loader, may have been called: state is asked for there.
const ASKS: f64 = 0.1;

/// A number that no stack has.
const NO_STACK: u32 = u32::MAX;

#[derive(Default)]
struct Seen {
    samples: usize,
    writing: usize,
    computing: usize,
}

impl Seen {
    fn saves(&self) -> bool {
        let part = |count: usize| count as f64 / self.samples as f64;
        self.samples >= MIN_SAVING && part(self.writing) >= MOSTLY && part(self.computing) <= ASKS
    }
}

impl Python<'_> {
    /// Stretches in which a process's main thread, while on a CPU, was in functions that do little else than what is done in the stretches
    /// `written`, in which it wrote state, and no further from these than `apart_ns`: making it ready, say, and removing what it replaces. A
    /// function that all of the loop runs in is none.
    pub fn saving(&self, tid: u32, written: &[(u64, u64)], apart_ns: u64) -> Vec<(u64, u64)> {
        let stacks = &self.facts.session.python.stacks;
        let samples = self.facts.python_samples(tid);
        let mut functions = BTreeMap::<u32, Seen>::new();
        for (at, stack) in samples {
            let (Some(marks), Some(stack)) = (self.marks.get(stack), stacks.get(stack)) else {
                continue;
            };
            let writing = overlap(written, *at, *at + 1) > 0;
            let mut computing = false;
            let mut before = BTreeSet::new();
            for (mark, function) in marks.iter().zip(stack) {
                computing |= matches!(mark, Mark::Framework | Mark::Loader);
                if before.insert(*function) {
                    let seen = functions.entry(*function).or_default();
                    seen.samples += 1;
                    seen.writing += usize::from(writing);
                    seen.computing += usize::from(computing);
                }
            }
        }
        let always = ALWAYS * samples.len() as f64;
        functions.retain(|_, seen| seen.saves() && seen.samples as f64 <= always);
        let functions = functions.into_keys().collect();
        let in_any = |stack| self.is_under(stack, &functions);
        let samples = self.running(tid);
        // Those that lie at what was written, by all samples of them.
        let mut near = self.stretches(&samples, 0.0, &[], in_any);
        near.retain(|(from, to)| {
            overlap(written, from.saturating_sub(apart_ns), to + apart_ns) > 0
        });
        // A sample stands for the time around it: of what is known exactly it would show more than there is.
        let samples = samples.into_iter().map(|(at, stack)| {
            let known = overlap(written, at, at + 1) > 0;
            (at, if known { NO_STACK } else { stack })
        });
        let samples: Vec<_> = samples.collect();
        let mut beside = self.stretches(&samples, 0.0, &[], in_any);
        beside.retain(|(from, to)| overlap(&near, *from, *to) > 0);
        beside
    }
}
