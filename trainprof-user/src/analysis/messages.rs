//! Messages through pipes between the trainer and its workers: batches that it took, and its asking for more.

use std::collections::BTreeMap;

use trainprof_common::op::{Class, Op};

use super::{
    cast::Cast,
    facts::Facts,
    locks::{Locks, lock_of},
    timeline::line,
};
use crate::session::kind::WaitKind;

/// Reads of one message on a pipe that follow each other within this time are one hand-over.
const ONE_MESSAGE_NS: u64 = 400_000;

/// Messages that some threads took from pipes, by pipe.
pub fn hand_overs(facts: &Facts, by: impl Fn(u32) -> bool) -> BTreeMap<u64, Vec<u64>> {
    let mut out = BTreeMap::<u64, Vec<u64>>::new();
    for (tid, touches) in facts.touching_threads() {
        if !by(tid) {
            continue;
        }
        let mut last = BTreeMap::<u64, u64>::new();
        for touch in touches {
            if touch.op != Op::Read.number()
                || touch.object.class != Class::Pipe as u8
                || touch.bytes == 0
            {
                continue;
            }
            let at = touch.at.0;
            let before = last.insert(touch.object.id, at);
            if before.is_none_or(|before| at - before > ONE_MESSAGE_NS) {
                out.entry(touch.object.id).or_default().push(at);
            }
        }
    }
    for times in out.values_mut() {
        times.sort_unstable();
    }
    out.retain(|_, times| times.len() >= 2);
    out
}

/// Writes of the trainer's own threads, other than those that make batches, on pipes: each at the time when the step thread
/// asked for it.
pub fn requests(facts: &Facts, cast: &Cast, locks: &Locks) -> Vec<u64> {
    let mut out = Vec::new();
    for (tid, touches) in facts.touching_threads() {
        if facts.pid(tid) != Some(cast.trainer) || cast.loader_threads.contains(&tid) {
            continue;
        }
        let writes: Vec<u64> = touches
            .iter()
            .filter(|touch| {
                touch.op == Op::Write.number() && touch.object.class == Class::Pipe as u8
            })
            .map(|touch| touch.at.0)
            .collect();
        out.extend(when_asked(facts, cast, locks, tid, writes));
    }
    out.sort_unstable();
    out
}

/// A helper thread that writes for the step thread does so late: it has to get a CPU and the interpreter's lock first, which
/// the step thread holds while it computes. So its write counts from when the step thread ended its longest sleep since the
/// write before.
fn when_asked(facts: &Facts, cast: &Cast, locks: &Locks, tid: u32, writes: Vec<u64>) -> Vec<u64> {
    if tid == cast.step_tid {
        return writes;
    }
    let sleeps: Vec<(u64, u64)> = facts
        .items(tid)
        .iter()
        .filter(|item| item.waker.tid == cast.step_tid && item.kind() == WaitKind::Futex)
        .filter(|item| lock_of(locks, facts, tid, line(&item.object)).is_none())
        .map(|item| (item.from, item.woken))
        .collect();
    let mut before = 0;
    writes
        .into_iter()
        .map(|at| {
            let first = sleeps.partition_point(|(from, _)| *from < before);
            before = at;
            sleeps[first..]
                .iter()
                .take_while(|(_, woken)| *woken <= at)
                .max_by_key(|(from, woken)| woken - from)
                .map_or(at, |(_, woken)| *woken)
        })
        .collect()
}
