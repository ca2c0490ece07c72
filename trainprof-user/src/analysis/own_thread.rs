//! Waits of the step thread for a thread of its own process that does a part of each step, and nothing else.
//!
//! Where the model runs on a GPU, PyTorch's `backward()` is done by a thread of its engine for that device: the thread that called it sleeps
//! on a condition variable until all kernels of the backward pass are launched. XLA, likewise, lets threads of its own copy and wait. So
//! whoever computes on a GPU without ever waiting for it shows its steps all the same.

use std::collections::BTreeMap;

use trainprof_common::thread::WakerKind;

use super::{
    apart::{after_work, apart},
    cast::Cast,
    clock::MIN_STEPS,
    facts::Facts,
    locks::{LockId, Locks, lock_of},
    room::own_lines,
    timeline::line,
};
use crate::session::kind::WaitKind;

/// When the step thread, which drives a GPU, was done waiting for such a thread; `None` where there is none.
///
/// Without a GPU these are threads that compute together with it, many times in a step.
pub(super) fn own_thread(facts: &Facts, cast: &Cast, locks: &Locks) -> Option<Vec<u64>> {
    if !drives_gpu(facts, cast) {
        return None;
    }
    let serves = |tid: u32| {
        tid != cast.step_tid
            && facts.pid(tid) == Some(cast.trainer)
            && !cast.producers.contains(&tid)
    };
    let own = own_lines(facts, cast.step_tid, serves);
    let mut waits = BTreeMap::<LockId, (u64, Vec<u64>)>::new();
    for item in facts.items(cast.step_tid).iter().filter(|item| {
        item.kind() == WaitKind::Futex
            && item.waker.kind == WakerKind::Thread as u8
            && serves(item.waker.tid)
    }) {
        let at = line(&item.object);
        if !own.contains(&at) || lock_of(locks, facts, cast.step_tid, at).is_some() {
            continue;
        }
        let id = LockId {
            pid: cast.trainer,
            line: at,
        };
        let (ns, times) = waits.entry(id).or_default();
        *ns += item.woken - item.from;
        times.push(item.woken);
    }
    // It may wait for several: for what takes longest.
    let (_, times) = waits
        .into_values()
        .filter(|(_, times)| times.len() >= MIN_STEPS)
        .max_by_key(|(ns, _)| *ns)?;
    // Updates between which little is done, after much that was done for all of them, are one step.
    Some(after_work(facts, cast.step_tid, &times).unwrap_or_else(|| apart(times)))
}

fn drives_gpu(facts: &Facts, cast: &Cast) -> bool {
    let mut on_devices = facts.session.gpu.processes.keys();
    on_devices.any(|(_, pid)| *pid == cast.trainer) || !facts.calls(cast.step_tid).is_empty()
}
