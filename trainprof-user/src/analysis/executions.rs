//! What a framework computes as a whole, once in each turn: a function that JAX or TensorFlow compiled, a round of boosting.
//!
//! A loop may call for several of them: random numbers for a batch, its own step, now and then an evaluation or the mean of some losses. The one
//! that most turns have once is looked for.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use super::clock::MIN_STEPS;
use crate::record::fact::ExecutionFact;

/// Part (0–1) of the turns in which the same is computed, from one beginning of theirs to the next. What a turn has several times, such as
/// the parts of a batch whose gradients are accumulated, is followed by itself in all but the last of them: eight of those are told
/// from as many turns.
const ALIKE: f64 = 0.88;
/// Most computations of one turn that are compared.
const MOST: usize = 256;
/// With more different ones nothing is compiled as a whole: each operation is one, and layers that are alike look like turns.
const MANY: usize = 16;

/// When a thread began what each turn has once, from all that it had computed, in order; `None` where nothing is.
pub(super) fn one_of_each(executions: &[ExecutionFact]) -> Option<Vec<u64>> {
    let mut places = BTreeMap::<u64, Vec<usize>>::new();
    for (at, execution) in executions.iter().enumerate() {
        places.entry(execution.what).or_default().push(at);
    }
    places.retain(|_, found| found.len() > MIN_STEPS);
    if places.len() > MANY {
        return None;
    }
    let alike = |found: &&Vec<usize>| are_alike(executions, found);
    // Of as many the first one of a turn.
    let most = places.values().filter(alike);
    let most = most.max_by_key(|found| (found.len(), Reverse(found[0])))?;
    Some(most.iter().map(|at| executions[*at].at.0).collect())
}

/// Whether nearly always the same is computed from one of these to the next.
fn are_alike(executions: &[ExecutionFact], found: &[usize]) -> bool {
    let turn = |pair: &[usize]| -> Option<Vec<u64>> {
        let turn = &executions[pair[0]..pair[1]];
        (turn.len() <= MOST).then(|| turn.iter().map(|execution| execution.what).collect())
    };
    let turns: Vec<Option<Vec<u64>>> = found.windows(2).map(turn).collect();
    let mut counts = HashMap::<&[u64], usize>::new();
    for turn in turns.iter().flatten() {
        *counts.entry(turn).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    most as f64 >= ALIKE * turns.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::KtimeNs;

    /// How many turns are found of what is computed in this order.
    fn turns(whats: impl IntoIterator<Item = u64>) -> Option<usize> {
        let execution = |(at, what)| ExecutionFact {
            at: KtimeNs(at),
            tid: 1,
            what,
        };
        let executions: Vec<_> = (0..).zip(whats).map(execution).collect();
        one_of_each(&executions).map(|turns| turns.len())
    }

    #[test]
    fn what_each_turn_has_once_counts() {
        assert_eq!(turns([7; 40]), Some(40));
        // With random numbers for each batch, and for each of its parts.
        assert_eq!(turns([3, 7].repeat(40)), Some(40));
        assert_eq!(turns([3, 3, 3, 7].repeat(40)), Some(40));
        // Nothing is compiled as a whole: products, sums and what follows them.
        assert_eq!(turns([1, 2, 1, 2, 3, 1, 1, 4, 4, 5].repeat(40)), Some(40));
    }

    #[test]
    fn evaluations_and_means_of_some_losses_set_no_turn_apart() {
        let logged = [&[7; 10][..], &[8]].concat().repeat(10);
        assert_eq!(turns(logged), Some(100));
        let evaluated = [&[7; 100][..], &[9; 30]].concat().repeat(2);
        assert_eq!(turns(evaluated), Some(200));
    }

    #[test]
    fn where_each_operation_is_one_layers_are_no_turns() {
        // Twelve layers of five operations, and what is around them.
        let layers = [1, 2, 3, 4, 5].repeat(12);
        let around: Vec<u64> = (10..25).collect();
        assert_eq!(turns([layers, around].concat().repeat(30)), None);
    }

    #[test]
    fn parts_whose_gradients_are_accumulated_are_one_turn() {
        assert_eq!(turns([7, 7, 7, 7, 8].repeat(30)), Some(30));
    }

    #[test]
    fn what_is_too_seldom_or_now_this_and_now_that_tells_nothing() {
        assert_eq!(turns([7; 4]), None);
        let shapes = (0..200).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61);
        assert_eq!(turns(shapes), None);
    }
}
