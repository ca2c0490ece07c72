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
/// What is computed for less than one in so many of what is computed most often tells nothing of that.
const SELDOM: usize = 64;

/// What may be computed once in each turn.
struct Candidate<'e> {
    /// Where it is among all that was computed.
    found: &'e [usize],
    /// What is computed from one to the next nearly always, itself first.
    turn: Vec<u64>,
    /// For how long such turns were, ns.
    ns: u64,
}

/// When a thread began what each turn has once, from all that it had computed, in order; `None` where nothing is.
pub(super) fn one_of_each(executions: &[ExecutionFact]) -> Option<Vec<u64>> {
    let mut places = BTreeMap::<u64, Vec<usize>>::new();
    for (at, execution) in executions.iter().enumerate() {
        places.entry(execution.what).or_default().push(at);
    }
    let most = places.values().map(Vec::len).max().unwrap_or(0);
    places.retain(|_, found| found.len() > MIN_STEPS.max(most / SELDOM));
    if places.len() > MANY {
        return None;
    }
    let mut candidates: Vec<Candidate> = places
        .values()
        .filter_map(|found| candidate(executions, found))
        .collect();
    // Of as many the first one of a turn.
    candidates.sort_by_key(|one| (Reverse(one.found.len()), one.found[0]));
    let mut candidates = candidates.into_iter();
    let mut best = candidates.next()?;
    // What has turns of its own, without the other, is another part of the program: an evaluation, or a policy that is asked before it learns.
    for other in candidates {
        let apart = !other.turn.contains(&best.turn[0]) && !best.turn.contains(&other.turn[0]);
        if apart && other.ns > best.ns {
            best = other;
        }
    }
    Some(best.found.iter().map(|at| executions[*at].at.0).collect())
}

/// Whether nearly always the same is computed from one of these to the next.
fn candidate<'e>(executions: &[ExecutionFact], found: &'e [usize]) -> Option<Candidate<'e>> {
    let mut turns = HashMap::<Vec<u64>, (usize, u64)>::new();
    for pair in found.windows(2) {
        let turn = &executions[pair[0]..pair[1]];
        if turn.len() <= MOST {
            let whats = turn.iter().map(|execution| execution.what).collect();
            let (count, ns) = turns.entry(whats).or_default();
            *count += 1;
            *ns += executions[pair[1]].at.since(turn[0].at);
        }
    }
    let (turn, (count, ns)) = turns.into_iter().max_by_key(|(_, (count, _))| *count)?;
    let alike = count as f64 >= ALIKE * (found.len() - 1) as f64;
    alike.then_some(Candidate { found, turn, ns })
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
    fn what_takes_longest_of_parts_of_a_program_is_its_step() {
        // A policy is asked 128 times for 2 each, and learns 32 times for 20 each; an evaluation is longer in batches than in time.
        let phases = |parts: [(u64, usize, u64); 2]| {
            let (mut now, mut executions) = (0, Vec::new());
            for _ in 0..8 {
                for (what, times, each) in parts {
                    for _ in 0..times {
                        let at = KtimeNs(now);
                        executions.push(ExecutionFact { at, tid: 1, what });
                        now += each;
                    }
                }
            }
            one_of_each(&executions).map(|turns| turns.len())
        };
        assert_eq!(phases([(7, 128, 2), (8, 32, 20)]), Some(8 * 32));
        assert_eq!(phases([(7, 50, 20), (8, 100, 3)]), Some(8 * 50));
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
