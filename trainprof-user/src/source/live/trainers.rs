//! Who trains, as far as it is known: whose calls are noted one by one.

use std::collections::{BTreeMap, BTreeSet};

use super::Live;
use crate::{env::clock::process_cpu_ns, kernel::touch_slot, record::Record, source::own};

/// Processes below those that were named whose calls are noted until it is known who trains.
const TOUCHED_FIRST: usize = 32;

/// Who trains is asked at the end of each of so many intervals, of every so many-th after that, and when processes came.
const TRAINERS_AT_FIRST: u32 = 10;
const TRAINERS_EVERY: u32 = 5;

/// Who uses so many times less of the CPUs than another process of the job does not train.
const IDLE: u64 = 10;

impl Live {
    /// Who may train, until the first interval tells who does: the processes that were named, and below a launcher those that have
    /// a framework loaded while their parents have none.
    pub(super) fn first_trainers(&self) -> BTreeSet<u32> {
        let seen: BTreeMap<u32, (u32, bool)> = self
            .out
            .iter()
            .filter_map(|record| match record {
                Record::Process(process) => {
                    let trains = process
                        .frameworks
                        .as_ref()
                        .is_some_and(|loaded| loaded.trains());
                    Some((process.pid, (process.parent, trains)))
                }
                _ => None,
            })
            .collect();
        let trains = |pid: &u32| seen.get(pid).is_some_and(|(_, trains)| *trains);
        let below = seen
            .iter()
            .filter(|(_, (parent, own))| *own && !trains(parent));
        let below = below.map(|(pid, _)| *pid).take(TOUCHED_FIRST);
        self.targets.iter().copied().chain(below).collect()
    }

    /// Whether it is time to ask who trains, and to tell [`Self::set_touched`].
    pub fn may_have_other_trainers(&self) -> bool {
        self.came
            || self.intervals <= TRAINERS_AT_FIRST
            || self.intervals.is_multiple_of(TRAINERS_EVERY)
    }

    /// Notes the calls of these processes one by one from now on, and of no other.
    pub fn set_touched(&mut self, pids: &BTreeSet<u32>) {
        if self.touched == *pids {
            return;
        }
        let slowed = self.slowed_by_counting();
        self.turns
            .tell(own::now(), &self.touched, slowed, &mut self.out);
        let slots = |pids: &BTreeSet<u32>| -> BTreeSet<u32> {
            pids.iter().map(|pid| touch_slot(*pid)).collect()
        };
        let (before, after) = (slots(&self.touched), slots(pids));
        for slot in before.symmetric_difference(&after) {
            if let Err(error) = self.probes.touch(*slot, after.contains(slot)) {
                tracing::warn!(%error, "whose calls are noted could not be changed");
            }
        }
        self.touched.clone_from(pids);
    }
}

/// CPU nanoseconds that processes have used so far.
pub(super) fn used(pids: BTreeSet<u32>) -> BTreeMap<u32, u64> {
    let used = |pid: u32| Some((pid, process_cpu_ns(pid as i32)?));
    pids.into_iter().filter_map(used).collect()
}

/// Who used CPUs between two readings, where those that were named did not: they only started the others.
pub(super) fn busy_below(
    targets: &[u32],
    before: &BTreeMap<u32, u64>,
    after: &BTreeMap<u32, u64>,
) -> BTreeSet<u32> {
    let used: BTreeMap<u32, u64> = after
        .iter()
        .filter_map(|(pid, ns)| Some((*pid, ns.saturating_sub(*before.get(pid)?))))
        .collect();
    let most = used.values().copied().max().unwrap_or(0);
    let idle = |pid: &u32| used.get(pid).is_none_or(|ns| *ns * IDLE < most);
    if !targets.iter().all(idle) {
        return BTreeSet::new();
    }
    let busy = used.iter().filter(|(_, ns)| **ns * IDLE >= most);
    busy.map(|(pid, _)| *pid).take(TOUCHED_FIRST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_are_noted_first_where_those_that_were_named_only_started_them() {
        let before = BTreeMap::from([(1, 3_000), (2, 500), (3, 100), (4, 70)]);
        let after = BTreeMap::from([(1, 3_001), (2, 580), (3, 179), (4, 71), (5, 90)]);
        assert_eq!(busy_below(&[1], &before, &after), BTreeSet::from([2, 3]));
        // Who trains itself, and nobody at work.
        assert!(busy_below(&[2], &before, &after).is_empty());
        assert!(busy_below(&[1, 2], &before, &after).is_empty());
        assert!(busy_below(&[1], &before, &before).is_empty());
    }
}
