//! Backward passes that are none of another's: what is recomputed for a checkpointed part of a model has a pass of its own inside the
//! step's.

use std::collections::BTreeMap;

use super::clock::MIN_STEPS;
use crate::record::fact::BackwardFact;

/// Passes after this part (0–1) of which comes one from deeper in the stack have such inside, where they are steps at all.
const INSIDE: f64 = 0.5;

/// When the outer ones of a thread's passes, which are in order, began.
pub(super) fn outer(passes: &[BackwardFact]) -> Vec<u64> {
    // By stack pointer: how many there are, and after how many comes a deeper one.
    let mut levels = BTreeMap::<u64, (usize, usize)>::new();
    for (at, pass) in passes.iter().enumerate() {
        let deeper = passes.get(at + 1).is_some_and(|next| next.sp < pass.sp);
        let level = levels.entry(pass.sp).or_default();
        level.0 += 1;
        level.1 += usize::from(deeper);
    }
    let has_inside = |sp: u64| {
        let (all, deeper) = levels[&sp];
        all >= MIN_STEPS && deeper as f64 >= INSIDE * all as f64
    };
    let mut out = Vec::with_capacity(passes.len());
    let mut around: Option<u64> = None;
    for pass in passes {
        if around.is_some_and(|around| pass.sp < around) {
            continue;
        }
        around = has_inside(pass.sp).then_some(pass.sp);
        out.push(pass.at.0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::KtimeNs;

    fn passes(told: &[(u64, u64)]) -> Vec<BackwardFact> {
        told.iter()
            .map(|(at, sp)| BackwardFact {
                at: KtimeNs(*at),
                tid: 1,
                sp: *sp,
            })
            .collect()
    }

    #[test]
    fn passes_inside_another_are_none_of_their_own() {
        // Two checkpointed parts, the second of which has one itself; the watch began in the midst of a step.
        let step = [(0, 900), (1, 700), (2, 700), (3, 500), (4, 700)];
        let later = |n: u64| step.iter().map(move |(at, sp)| (at + 10 * n, *sp));
        let told: Vec<_> = later(0).skip(2).chain((1..6).flat_map(later)).collect();
        let found = outer(&passes(&told));
        assert!(found.ends_with(&[4, 10, 20, 30, 40, 50]), "{found:?}");
    }

    #[test]
    fn loops_at_several_depths_count_all() {
        // One step to warm up, then a loop in a function, then one deeper still.
        let told: Vec<_> = [(0, 900)]
            .into_iter()
            .chain((1..50).map(|at| (at, 700)))
            .chain((50..60).map(|at| (at, 500)))
            .collect();
        let found = outer(&passes(&told));
        assert_eq!(found.len(), 60);
    }
}
