//! Threads that exchange with other ranks for a step thread: what they do is the exchange itself.
//!
//! Libraries such as gloo have threads of their own that copy, add up and send what ranks exchange. On one host that is work of CPUs,
//! and nobody else is late.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    analysis::{
        cast::Cast,
        facts::{Facts, is_on_purpose},
    },
    session::Thread,
};

/// Hand-overs between a thread and those of other ranks that tell anything.
const MIN_HANDED: u64 = 50;
/// CPU time that a thread takes for each of them, ns: one that computes for longer in between has work of its own.
const EACH_NS: u64 = 3_000_000;

/// Threads of ranks, but for their first ones and what makes batches, that hand to threads of other ranks and take from them again and again.
pub fn exchangers(facts: &Facts, cast: &Cast) -> BTreeSet<u32> {
    if cast.ranks.is_empty() {
        return BTreeSet::new();
    }
    let session = facts.session;
    let ranks: BTreeSet<u32> = cast.ranks.iter().copied().chain([cast.trainer]).collect();
    let mut handed = BTreeMap::<u32, u64>::new();
    for pid in &ranks {
        for thread in session.threads_of(*pid) {
            for (id, total) in &thread.waits {
                let by = id.waker.tid;
                let other = facts
                    .pid(by)
                    .is_some_and(|by| by != *pid && ranks.contains(&by));
                if other && is_on_purpose(id.waker.kind) {
                    *handed.entry(thread.key.tid).or_default() += total.count;
                    *handed.entry(by).or_default() += total.count;
                }
            }
        }
    }
    let busy_with_it = |thread: &Thread, handed: u64| thread.run_ns <= handed * EACH_NS;
    handed.retain(|tid, handed| {
        let may = !ranks.contains(tid) && *tid != cast.step_tid && !cast.producers.contains(tid);
        let thread = session.thread(*tid);
        may && *handed >= MIN_HANDED && thread.is_some_and(|thread| busy_with_it(thread, *handed))
    });
    handed.into_keys().collect()
}
