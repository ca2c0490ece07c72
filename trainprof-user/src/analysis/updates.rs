//! Updates of the model. Where gradients of several backward passes are accumulated, the optimiser updates it after the last of them
//! alone, and these passes are one turn of the training loop.

use super::clock::MIN_STEPS;

/// Part (0–1) of the turns that have several passes where they are accumulated: one without an update, whose gradients were no numbers,
/// makes two turns one.
const ACCUMULATE: f64 = 0.5;
/// Part (0–1) of the passes that have one where each has: one whose gradients were no numbers has none.
const EACH: f64 = 0.9;
/// So many times as many passes as usual without an update: from then on updates are not seen.
const UNSEEN: usize = 4;

/// Of these passes of a thread those that begin a turn, where most turns have several. Passes and the thread's `updates` are in order.
///
/// An update that itself calls for the last pass of a turn (a closure) comes before that one: then turns begin with their last
/// pass, and are as many and as long. Behind them stands the update of the last one, where no pass follows it.
pub(super) fn first_of_each(passes: &[u64], updates: &[u64]) -> Option<Vec<u64>> {
    let updated = |from: u64, to: u64| {
        let next = updates.partition_point(|at| *at < from);
        updates.get(next).is_some_and(|at| *at < to)
    };
    let begins: Vec<usize> = (1..passes.len())
        .filter(|n| updated(passes[n - 1], passes[*n]))
        .collect();
    let mut parts: Vec<usize> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
    parts.sort_unstable();
    let usual = *parts.get(parts.len() / 2)?;
    let several = parts.iter().filter(|parts| **parts > 1).count();
    let (first, last) = (*begins.first()?, *begins.last()?);
    let most = *parts.last()?.max(&first).max(&(passes.len() - last));
    let all = parts.len() >= MIN_STEPS && most <= UNSEEN * usual;
    let accumulate = several as f64 >= ACCUMULATE * parts.len() as f64;
    // The last turn has ended, too, when its update is there and no pass of the next one.
    let ended = updates.last().filter(|at| Some(*at) > passes.last());
    (all && accumulate).then(|| {
        let begins = begins.into_iter().map(|n| passes[n]);
        begins.chain(ended.copied()).collect()
    })
}

/// Whether next to all of these passes have an update of their own.
pub(super) fn each_is_updated(passes: &[u64], updates: &[u64]) -> bool {
    let updated = |pair: &&[u64]| {
        let next = updates.partition_point(|at| *at < pair[0]);
        updates.get(next).is_some_and(|at| *at < pair[1])
    };
    let with = passes.windows(2).filter(updated).count();
    passes.len() > MIN_STEPS && with as f64 >= EACH * (passes.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of so many passes each: passes at 10, 20, 30 and so on, and an update 3 after the last of each turn.
    fn turns(turns: &[usize]) -> (Vec<u64>, Vec<u64>) {
        let (mut passes, mut updates) = (Vec::new(), Vec::new());
        for parts in turns {
            let before = passes.len() as u64;
            passes.extend((1..=*parts as u64).map(|n| 10 * (before + n)));
            updates.extend(passes.last().map(|at| at + 3));
        }
        (passes, updates)
    }

    #[test]
    fn passes_up_to_an_update_are_one_turn() {
        let (passes, updates) = turns(&[4; 20]);
        let found = first_of_each(&passes, &updates).expect("turns");
        // The first turn may have begun before the watch.
        let first = passes.iter().copied().step_by(4).skip(1);
        assert_eq!(found, first.chain([803]).collect::<Vec<_>>());
        // The watch begins in the midst of one, and epochs end in the midst of one.
        let (passes, updates) = turns(&[3, 4, 4, 4, 1, 4, 4, 4, 2, 4]);
        let found = first_of_each(&passes, &updates).expect("turns");
        assert_eq!(found, [40, 80, 120, 160, 170, 210, 250, 290, 310, 343]);
    }

    #[test]
    fn an_update_that_calls_for_the_last_pass_counts_as_well() {
        let (passes, updates) = turns(&[4; 20]);
        let before: Vec<u64> = updates.iter().map(|at| at - 5).collect();
        let found = first_of_each(&passes, &before).expect("turns");
        assert_eq!(found.len(), 20);
        assert!(!each_is_updated(&passes, &before));
        let (passes, updates) = turns(&[1; 20]);
        assert!(each_is_updated(&passes, &updates));
        assert!(!each_is_updated(&passes[..5], &updates));
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] == 40));
    }

    #[test]
    fn passes_that_each_have_an_update_are_turns() {
        let none = |(passes, updates): (Vec<u64>, Vec<u64>)| {
            assert_eq!(first_of_each(&passes, &updates), None);
        };
        none(turns(&[1; 40]));
        none(turns(&[]));
        none(turns(&[4; 5]));
        // Now and then an update is left out; none is seen from some time on, or up to then.
        none(turns(&[1, 1, 1, 2, 1, 1, 1, 1, 1, 3, 1, 1]));
        none((turns(&[4; 40]).0, turns(&[4; 20]).1));
        none((turns(&[4; 40]).0, turns(&[4; 40]).1.split_off(20)));
        none((turns(&[4; 40]).0, Vec::new()));
    }
}
