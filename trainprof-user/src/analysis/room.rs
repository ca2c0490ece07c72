//! Threads of the trainer that wait until the step thread takes a batch: producers that are ahead of it.
//!
//! Such a thread sleeps on a futex of its own, which nobody else waits on, and the step thread wakes it when it has
//! made room. So each wake is a step, also where the step thread itself never waits.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::thread::WakerKind;

use super::{
    facts::Facts,
    locks::{Lock, LockId, lock_of},
    timeline::line,
};
use crate::{record::fact::PlaceClass, session::kind::WaitKind};

/// Share of the time that such a thread sleeps so at least, and the mean of these waits (ns).
const MIN_SHARE: f64 = 0.1;
const MIN_WAIT_NS: u64 = 1_000_000;
/// Waits that show a pattern.
const MIN_WAITS: usize = 5;
/// Wakes of several threads within this time are one.
const AT_ONCE_NS: u64 = 100_000;

/// When a thread waited for room, in order; empty when it does not wait for that.
pub fn room(
    facts: &Facts,
    locks: &BTreeMap<LockId, Lock>,
    tid: u32,
    step_tid: u32,
) -> Vec<(u64, u64)> {
    let woken = facts.items(tid).iter().filter(|item| {
        item.kind() == WaitKind::Futex
            && item.waker.kind == WakerKind::Thread as u8
            && item.waker.tid == step_tid
    });
    // Threads may be many that live for a moment: all of the process's waits are looked at for those alone that wait again and again.
    if woken.clone().count() < MIN_WAITS {
        return Vec::new();
    }
    let mut times = Vec::new();
    let mut ns = 0;
    let own = own_lines(facts, tid, |waker| waker == step_tid);
    let lines: BTreeSet<u64> = woken
        .filter(|item| lock_of(locks, facts, tid, line(&item.object)).is_none())
        .map(|item| line(&item.object))
        .filter(|at| own.contains(at))
        .collect();
    for item in facts.items(tid) {
        let here = item.kind() == WaitKind::Futex && lines.contains(&line(&item.object));
        if here && item.waker.tid == step_tid {
            ns += item.woken - item.from;
            times.push((item.from, item.woken));
        }
    }
    let enough = times.len() >= MIN_WAITS
        && ns as f64 >= MIN_SHARE * facts.walkable_ns() as f64
        && ns / times.len() as u64 >= MIN_WAIT_NS;
    if enough { times } else { Vec::new() }
}

/// Futexes that hardly anybody else of a thread's process waits on, and whose waits hardly anybody but `wakers` ends: addresses are used
/// again.
pub fn own_lines(facts: &Facts, tid: u32, wakers: impl Fn(u32) -> bool) -> BTreeSet<u64> {
    let pid = facts.pid(tid);
    let mut waits = BTreeMap::<u64, (u64, u64)>::new();
    for (other, items) in facts
        .waiting_threads()
        .filter(|(other, _)| facts.pid(*other) == pid)
    {
        for item in items.iter().filter(|item| item.kind() == WaitKind::Futex) {
            let (own, all) = waits.entry(line(&item.object)).or_default();
            *all += 1;
            *own += u64::from(other == tid && wakers(item.waker.tid));
        }
    }
    let own = waits
        .into_iter()
        .filter(|(_, (own, all))| own * 100 >= all * 95);
    own.map(|(at, _)| at).collect()
}

/// Whether a thread runs the interpreter, as those of a parallel region never do: it was seen there, or waits for
/// its lock as the step thread does.
pub fn interprets(facts: &Facts, tid: u32, step_tid: u32) -> bool {
    let seen = facts.samples(tid).iter().any(|sample| {
        facts
            .session
            .places
            .get(&sample.place)
            .is_some_and(|place| matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc))
    });
    let asks_again = |tid: u32| -> BTreeSet<u64> {
        facts
            .items(tid)
            .iter()
            .filter(|item| item.kind() == WaitKind::Futex && item.asked_again > 0)
            .map(|item| line(&item.object))
            .collect()
    };
    seen || !asks_again(tid).is_disjoint(&asks_again(step_tid))
}

/// Whether wakes of different threads come together: sorted times of all of them. So begins a parallel region.
pub fn together(times: &[u64]) -> bool {
    let close = times
        .windows(2)
        .filter(|pair| pair[1] - pair[0] <= AT_ONCE_NS)
        .count();
    close * 5 >= times.len()
}
