//! Threads of a trainer that live for a moment, as those of a pool that is made anew for each step: what each takes in is too little to
//! tell what it is there for, what all of them take in is not.

use std::collections::BTreeSet;

use crate::session::{Session, Thread, activity::Activity};

/// Such a thread is there for this part (0–1) of the watch at most.
const MOMENT: f64 = 0.1;
/// Threads that show a habit.
const MANY: usize = 20;

/// Those of the threads `of` that bring data in together, where they are many.
pub(super) fn brief_loaders(session: &Session, of: &BTreeSet<u32>) -> BTreeSet<u32> {
    let most = MOMENT * session.duration_s() * 1e9;
    let brief: Vec<&Thread> = of
        .iter()
        .filter_map(|tid| session.thread(*tid))
        .filter(|thread| {
            let ended = thread.until.is_some();
            ended && thread.present_ns(session.until) as f64 <= most
        })
        .collect();
    let mut all = Activity::default();
    brief.iter().for_each(|thread| all.merge(&thread.activity));
    if brief.len() < MANY || !all.takes_input() {
        return BTreeSet::new();
    }
    brief
        .into_iter()
        .filter(|thread| thread.activity.any_input())
        .map(|thread| thread.key.tid)
        .collect()
}
