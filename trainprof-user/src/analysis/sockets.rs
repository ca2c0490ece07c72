//! Which sockets batches come through.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::op::{Class, Op};

use super::{
    facts::{Facts, is_on_purpose},
    timeline::Item,
};
use crate::record::fact::TouchFact;

/// A socket that batches come through is used for this part (0–1) of the watch at least.
const LASTS: f64 = 0.2;
/// The step thread takes about as much itself as other threads do where it is this part of that or more.
const ITSELF: f64 = 0.66;

/// Sockets on which producers ended waits of the trainer's threads again and again. Memory that a batch lies in is handed over through a
/// socket of its own, that lives for that alone (multiprocessing/resource_sharer.py). Where the step thread takes about as much from pipes
/// and sockets itself, what only other threads read is for others: one that serves metrics, say.
pub(super) fn sockets(
    facts: &Facts,
    trainer: u32,
    step_tid: u32,
    producers: &BTreeSet<u32>,
) -> BTreeSet<u64> {
    let fed = |item: &&Item| {
        item.object.class == Class::Socket as u8
            && is_on_purpose(item.waker.kind)
            && producers.contains(&item.waker.tid)
    };
    let mut lasted = BTreeMap::<u64, (u64, u64)>::new();
    let threads = facts.waiting_threads();
    let threads = threads.filter(|(tid, _)| facts.pid(*tid) == Some(trainer));
    for item in threads.flat_map(|(_, items)| items.iter().filter(fed)) {
        let (first, last) = lasted.entry(item.object.id).or_insert((item.woken, 0));
        *first = item.woken.min(*first);
        *last = item.woken.max(*last);
    }
    let least = LASTS * facts.walkable_ns() as f64;
    lasted.retain(|_, (first, last)| (*last - *first) as f64 >= least);
    let sockets: BTreeSet<u64> = lasted.into_keys().collect();
    let read = |touch: &&TouchFact| touch.op == Op::Read.number() && touch.bytes > 0;
    let on = |touch: &TouchFact, inode: u64| {
        touch.object.class == Class::Socket as u8 && touch.object.id == inode
    };
    // What the trainer writes itself into a pipe comes from nobody else.
    let of_trainer = || {
        let threads = facts.touching_threads();
        threads.filter(|(tid, _)| facts.pid(*tid) == Some(trainer))
    };
    let own: BTreeSet<u64> = of_trainer()
        .flat_map(|(_, touches)| touches)
        .filter(|touch| is_pipe(touch) && touch.op == Op::Write.number())
        .map(|touch| touch.object.id)
        .collect();
    let taken = |touch: &&TouchFact| {
        is_pipe(touch) && !own.contains(&touch.object.id)
            || sockets.iter().any(|socket| on(touch, *socket))
    };
    let itself = facts.touches(step_tid).iter().filter(read);
    let itself = itself.filter(taken).count() as f64;
    let is_served = |inode: u64| {
        let mut reads = 0_usize;
        for (tid, touches) in of_trainer() {
            let count = touches.iter().filter(read).filter(|t| on(t, inode)).count();
            if tid == step_tid && count > 0 {
                return false;
            }
            reads += count;
        }
        reads > 0 && itself >= ITSELF * reads as f64
    };
    sockets.iter().copied().filter(|s| !is_served(*s)).collect()
}

fn is_pipe(touch: &TouchFact) -> bool {
    touch.object.class == Class::Pipe as u8
}
