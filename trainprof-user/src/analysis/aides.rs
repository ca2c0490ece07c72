//! Threads of the trainer that work for those that make batches: a codec's, a reader's, a pool's. What they do is done for a batch.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cast::{Cast, hand_overs},
    facts::Facts,
    locks::Locks,
};

/// Of the time for which others wait for a thread, so much (0–1) is producers' at least, or of others that work for these.
const MOSTLY: f64 = 0.9;
/// Waits of producers, or of others that work for these, that show it.
const MIN_WAITS: u64 = 20;

/// Finds them.
pub fn aides(facts: &Facts, locks: &Locks, cast: &Cast) -> BTreeSet<u32> {
    // For whom: how often, and for how long each waited.
    let mut waited_for = BTreeMap::<u32, Vec<(u32, u64, u64)>>::new();
    for ((by, waiter), handed) in hand_overs(facts, locks, cast.trainer, &cast.workers) {
        let is_known = by == cast.step_tid || cast.producers.contains(&by);
        if by != waiter && !is_known && facts.pid(by) == Some(cast.trainer) {
            let waits = waited_for.entry(by).or_default();
            waits.push((waiter, handed.count, handed.ns));
        }
    }
    chosen(&waited_for, &cast.producers)
}

/// Those that hardly anybody else waits for than `producers` and each other, and that a producer waits for, if only through others.
fn chosen(
    waited_for: &BTreeMap<u32, Vec<(u32, u64, u64)>>,
    producers: &BTreeSet<u32>,
) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = waited_for.keys().copied().collect();
    // Each that works for somebody else may have been taken for the reason that another works for a batch.
    loop {
        let works_for_them = |tid: &u32| {
            let (mut theirs, mut whole) = (0, 0);
            for (waiter, _, ns) in &waited_for[tid] {
                whole += ns;
                if producers.contains(waiter) || all.contains(waiter) {
                    theirs += ns;
                }
            }
            theirs as f64 >= MOSTLY * whole as f64
        };
        let left: BTreeSet<u32> = all.iter().copied().filter(works_for_them).collect();
        if left.len() == all.len() {
            break;
        }
        all = left;
    }
    let mut out = BTreeSet::new();
    loop {
        let is_reached = |tid: &&u32| {
            let waits = waited_for[*tid].iter();
            let of_these = waits.filter(|(by, ..)| producers.contains(by) || out.contains(by));
            of_these.map(|(_, count, _)| count).sum::<u64>() >= MIN_WAITS
        };
        let reached: BTreeSet<u32> = all.iter().filter(is_reached).copied().collect();
        if reached.len() == out.len() {
            return out;
        }
        out = reached;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_works_for_producers_where_they_wait_for_it_if_only_through_others() {
        const STEP: u32 = 1;
        const LOADER: u32 = 2;
        let producers = BTreeSet::from([LOADER]);
        let waited_for = BTreeMap::from([
            // A codec's threads: one that the loader waits for, one that this one waits for.
            (10, vec![(LOADER, 100, 900), (11, 50, 500)]),
            (11, vec![(10, 100, 700)]),
            // The step thread waits for it too.
            (12, vec![(LOADER, 100, 500), (STEP, 100, 500)]),
            // They wait for each other alone.
            (13, vec![(14, 100, 100)]),
            (14, vec![(13, 100, 100)]),
            // It works for one that works for the step thread too.
            (15, vec![(12, 100, 100)]),
            // Now and then.
            (16, vec![(LOADER, 3, 100)]),
        ]);
        assert_eq!(chosen(&waited_for, &producers), BTreeSet::from([10, 11]));
        assert_eq!(chosen(&waited_for, &BTreeSet::new()), BTreeSet::new());
    }
}
