//! One thread of the job that several producers wait for.

use std::collections::{BTreeMap, BTreeSet};

use super::Scene;
use crate::analysis::{
    cast::Cast,
    facts::{Facts, is_on_purpose},
    kind::Kind,
    locks::{Locks, is_interpreters},
    walk::{Hop, Leaf, What},
};

/// A thread of the job that at least two producers wait for this share of the time feeds them all.
const CHOKE_SHARE: f64 = 0.15;

impl Scene<'_> {
    /// The thread that producers on the way waited for.
    pub(super) fn choke_on_way(&self, leaf: &Leaf) -> Option<u32> {
        // Threads of a pool take turns at waiting for the network, and wake each other: what they all wait for is the network.
        if let What::Wait {
            tid,
            nr,
            object,
            waker,
        } = leaf.what
            && self.waiting(tid, nr, object, waker).0 == Kind::NetworkIo
        {
            return None;
        }
        let behind = |at: usize, hop: &Hop| {
            at > 0
                && self.chokes.contains(&hop.tid)
                && self.cast.producers.contains(&leaf.hops[at - 1].tid)
        };
        leaf.hops
            .iter()
            .enumerate()
            .find(|(at, hop)| behind(*at, hop))
            .map(|(_, hop)| hop.tid)
            .or_else(|| {
                let last = leaf.hops.last()?;
                let tid = leaf.what.tid();
                (self.chokes.contains(&tid) && self.cast.producers.contains(&last.tid))
                    .then_some(tid)
            })
            .filter(|choke| !self.always_works(leaf, self.facts.pid(*choke).unwrap_or(0)))
    }
}

/// Threads that at least two producers of different threads wait for, much of the time. Those of a process that take turns on its
/// interpreter's lock count as one: a manager has one for each of its clients, and only one of them can go on.
pub(super) fn chokes(facts: &Facts, cast: &Cast, locks: &Locks) -> BTreeSet<u32> {
    let interpreters = locks
        .iter()
        .filter(|(id, _)| id.pid != cast.trainer && is_interpreters(facts, **id));
    let as_one: BTreeMap<u32, u32> = interpreters
        .flat_map(|(id, lock)| lock.threads.iter().map(|tid| (*tid, id.pid)))
        .collect();
    let one = |tid: u32| as_one.get(&tid).copied().unwrap_or(tid);
    let wall = facts.walkable_ns() as f64;
    let mut waited = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
    for (tid, items) in facts.waiting_threads() {
        if !cast.producers.contains(&tid) {
            continue;
        }
        for item in items {
            let waker = item.waker;
            if !is_on_purpose(waker.kind) || waker.tid == tid {
                continue;
            }
            // What a trainer's own thread hands out is no input.
            if facts.pid(waker.tid) == Some(cast.trainer) && !cast.producers.contains(&waker.tid) {
                continue;
            }
            // A thread of the trainer that passes on what workers made comes after them, and is not fed by them.
            if cast.loader_threads.contains(&tid)
                && facts
                    .pid(waker.tid)
                    .is_some_and(|pid| cast.workers.contains(&pid))
            {
                continue;
            }
            *waited
                .entry(one(waker.tid))
                .or_default()
                .entry(tid)
                .or_default() += item.woken - item.from;
        }
    }
    // Threads of one worker wait for each other as a matter of course: they count as one.
    let side = |tid: u32| {
        if cast.loader_threads.contains(&tid) {
            (cast.trainer, tid)
        } else {
            (facts.pid(tid).unwrap_or(0), 0)
        }
    };
    let waits = |waker: u32, waiter: u32| {
        let ns = waited.get(&waker).and_then(|waiters| waiters.get(&waiter));
        *ns.unwrap_or(&0) as f64 >= CHOKE_SHARE * wall
    };
    let found: BTreeSet<u32> = waited
        .iter()
        .filter(|(waker, waiters)| {
            let own = side(**waker);
            let sides: BTreeSet<(u32, u32)> = waiters
                .keys()
                // Threads of a pool, of which now one makes a batch and now another, wait for each other.
                .filter(|tid| waits(**waker, **tid) && !waits(**tid, **waker))
                .map(|tid| side(*tid))
                .filter(|side| *side != own)
                .collect();
            facts.session.thread(**waker).is_some() && sides.len() >= 2
        })
        .map(|(waker, _)| *waker)
        .collect();
    let others = as_one.iter().filter(|(_, pid)| found.contains(pid));
    let others: BTreeSet<u32> = others.map(|(tid, _)| *tid).collect();
    found.union(&others).copied().collect()
}
