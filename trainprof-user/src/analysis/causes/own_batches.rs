//! The batches that a step thread without producers makes itself.

use super::{BESIDE, MAKES};
use crate::{
    analysis::{
        alternation::alternation,
        collecting::collecting,
        facts::Facts,
        phases,
        python::Python,
        spans::{share_inside, union, without},
    },
    record::fact::GpuCallKind,
};

/// So much (0–1) of what was guessed to be for batches is known to be for something else: then all of it is.
const MOSTLY: f64 = 0.5;
/// Parts of the time (0–1) that files or clock samples give, and stacks, differ by no more than this, and by what so few stacks leave
/// open, where both see the same: then the former are the finer ones.
const AGREE: f64 = 0.12;

/// What a step thread without producers does for its batches.
#[derive(Default)]
pub(super) struct OwnBatches {
    /// Stretches in which it makes them.
    pub(super) spans: Vec<(u64, u64)>,
    /// Stretches that tell steps, and how finely their ends are known, ns.
    pub(super) turns: Option<(Vec<(u64, u64)>, u64)>,
    /// Nothing but that it alternates with what a framework computes tells that it is that.
    pub(super) guessed: bool,
}

impl OwnBatches {
    /// Files that a step thread opens and its clock samples tell where batches begin, stacks of its code what is done for them.
    pub(super) fn new(facts: &Facts, step_tid: u32, checkpoints: &[(u64, u64)]) -> Self {
        let mut found = if facts.with_calls {
            phases::own_batches(facts, step_tid, checkpoints)
        } else {
            Vec::new()
        };
        if phases::apart_are_files(facts, step_tid, &found) {
            found.clear();
        }
        let mut turns = Some((found.clone(), 0));
        let mut guessed = false;
        if found.is_empty() {
            turns = None;
            if let Some(alternation) = alternation(facts, step_tid, checkpoints) {
                guessed = true;
                found = alternation.apart;
                turns = alternation
                    .countable
                    .then(|| (found.clone(), alternation.resolution_ns));
            }
        }
        let python = Python::new(facts);
        let mut told = python.input(step_tid, MAKES);
        let mut told_apart = false;
        if told.is_empty() && found.is_empty() {
            told = python.beside(step_tid, MAKES);
            told_apart = !told.is_empty();
        }
        let turns = turns.or_else(|| python.turns(step_tid));
        let part = |spans: &[(u64, u64)]| share_inside(&facts.spans, spans);
        let by_stacks = part(&told);
        let apart = (part(&found) - by_stacks).abs();
        let agree =
            !found.is_empty() && apart <= AGREE.hypot(python.share_error(step_tid, by_stacks));
        let guessed = told_apart || guessed && told.is_empty();
        let spans = if told.is_empty() || agree {
            found
        } else {
            told
        };
        Self {
            spans: if guessed {
                without(&spans, &launching(facts, step_tid))
            } else {
                spans
            },
            turns,
            guessed,
        }
    }

    /// Stretches in which the thread did other work than its model's between its step and the next batch, or for its loss, where that is
    /// most of what was guessed to be for batches.
    pub(super) fn after_steps(&self, facts: &Facts, step_tid: u32) -> Vec<(u64, u64)> {
        if !self.guessed {
            return Vec::new();
        }
        let (python, passes) = (Python::new(facts), facts.passes(step_tid));
        if python.for_loss(step_tid, &self.spans, passes) >= MOSTLY {
            return self.spans.clone();
        }
        let mut found = python.after_steps(step_tid, BESIDE, passes);
        found.extend(collecting(facts, step_tid, BESIDE));
        found.extend(python.recording(step_tid, BESIDE));
        let found = union(found);
        if share_inside(&self.spans, &found) < MOSTLY {
            return Vec::new();
        }
        found
    }
}

/// From each copy to a GPU to the next wait for it: the batch is there, and a thread launches what is computed with it.
fn launching(facts: &Facts, tid: u32) -> Vec<(u64, u64)> {
    let is_copy = |kind| matches!(kind, GpuCallKind::Copy | GpuCallKind::CopyAsync);
    let calls: Vec<_> = facts
        .calls(tid)
        .iter()
        .filter(|call| is_copy(call.kind) || call.kind == GpuCallKind::Synchronise)
        .collect();
    calls
        .windows(2)
        .filter(|pair| is_copy(pair[0].kind) && !is_copy(pair[1].kind))
        .map(|pair| (pair[0].to, pair[1].from))
        .filter(|(from, to)| from < to)
        .collect()
}
