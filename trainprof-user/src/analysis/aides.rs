//! Threads of the trainer that work for those that make batches: a codec's, a reader's, a pool's. What they do is done for a batch.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cast::{Cast, hand_overs},
    facts::Facts,
    locks::Locks,
    pools::compiled,
};

/// Of the time for which the one that waits longest for a thread and all who make no batches wait for it, the former's is so much (0–1) at
/// least: where a pool serves the model too, many loaders would outvote the one step thread.
const MOSTLY: f64 = 0.9;
/// Waits that show that, of each and of all together: a codec's threads may be made anew for each film.
const MIN_EACH: u64 = 2;
const MIN_WAITS: u64 = 20;

/// Finds them.
pub fn aides(facts: &Facts, locks: &Locks, cast: &Cast) -> BTreeSet<u32> {
    let compiled = compiled(facts, cast.trainer);
    // For whom: how often, and for how long each waited.
    let mut waited_for = BTreeMap::<u32, Vec<(u32, u64, u64)>>::new();
    // For how long each waited itself: for the step thread, and in all.
    let mut waits = BTreeMap::<u32, (u64, u64)>::new();
    for ((by, waiter), handed) in hand_overs(facts, locks, cast.trainer, &cast.workers) {
        let own = waits.entry(waiter).or_default();
        own.0 += if by == cast.step_tid { handed.ns } else { 0 };
        own.1 += handed.ns;
        let is_known =
            by == cast.step_tid || cast.producers.contains(&by) || compiled.contains(&by);
        if by != waiter && !is_known && facts.pid(by) == Some(cast.trainer) {
            let waits = waited_for.entry(by).or_default();
            waits.push((waiter, handed.count, handed.ns));
        }
    }
    // Who waits for the step thread brings that one what the loaders made.
    waited_for.retain(|tid, _| waits.get(tid).is_none_or(|(step, all)| step * 2 <= *all));
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
            let (mut longest, mut others) = (0, 0);
            for (waiter, _, ns) in &waited_for[tid] {
                if producers.contains(waiter) || all.contains(waiter) {
                    longest = longest.max(*ns);
                } else {
                    others += ns;
                }
            }
            longest as f64 >= MOSTLY * (longest + others) as f64
        };
        let left: BTreeSet<u32> = all.iter().copied().filter(works_for_them).collect();
        if left.len() == all.len() {
            break;
        }
        all = left;
    }
    let mut out = BTreeSet::new();
    loop {
        let waits = |tid: &u32| -> u64 {
            let waits = waited_for[tid].iter();
            let of_these = waits.filter(|(by, ..)| producers.contains(by) || out.contains(by));
            of_these.map(|(_, count, _)| count).sum()
        };
        let reached: BTreeSet<u32> = all
            .iter()
            .copied()
            .filter(|tid| waits(tid) >= MIN_EACH)
            .collect();
        if reached.len() > out.len() {
            out = reached;
            continue;
        }
        let shown: u64 = out.iter().map(waits).sum();
        return if shown >= MIN_WAITS {
            out
        } else {
            BTreeSet::new()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_works_for_producers_where_they_wait_for_it_if_only_through_others() {
        const STEP: u32 = 1;
        const LOADER: u32 = 2;
        let producers = BTreeSet::from_iter((100..110).chain([LOADER]));
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
            // Once.
            (16, vec![(LOADER, 1, 100)]),
            // A pool that ten loaders wait for, and the step thread as long as each of them.
            (
                17,
                (0..10)
                    .map(|n| (100 + n, 50, 100))
                    .chain([(STEP, 50, 100)])
                    .collect(),
            ),
        ]);
        assert_eq!(chosen(&waited_for, &producers), BTreeSet::from([10, 11]));
        assert_eq!(chosen(&waited_for, &BTreeSet::new()), BTreeSet::new());
        // Threads that live for one film each: few waits of each, many of all.
        let brief = |n| (0..n).map(|tid| (tid, vec![(LOADER, 3, 30)])).collect();
        assert_eq!(chosen(&brief(10), &producers).len(), 10);
        assert_eq!(chosen(&brief(3), &producers).len(), 0);
    }
}
