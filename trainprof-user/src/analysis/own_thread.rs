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
    clock::{MIN_STEPS, SAME},
    facts::Facts,
    locks::{Locks, lock_of},
    room::own_lines,
    spans::share_inside,
    timeline::line,
};
use crate::session::kind::WaitKind;

/// Part (0–1) of all time that the step thread sleeps for a pool that computes the model, at least, and that it may run itself; and how long
/// (ns) it sleeps each time, on average: threads that compute together with it are waited for more often, and for less.
const SLEEPS: f64 = 0.5;
const RUNS: f64 = 0.25;
const MIN_SLEEP_NS: u64 = 2_000_000;
/// Waits of less than this part (0–1) of the usual length, where they are many, are for something else that the pool does.
const SHORT: f64 = 0.2;
/// Calls of the pool that a turn may have, and by which part (0–1) calls of the same kind differ of what neighbours differ by.
const MOST_CALLS: usize = 4;
const ALIKE: f64 = 0.5;
/// Turns that show this.
const MIN_TURNS: usize = 20;

/// When the step thread, which drives a GPU, was done waiting for such a thread; `None` where there is none.
pub(super) fn own_thread(facts: &Facts, cast: &Cast, locks: &Locks) -> Option<Vec<u64>> {
    if !drives_gpu(facts, cast) {
        return None;
    }
    let times: Vec<u64> = waits(facts, cast, locks, |_| false)?
        .iter()
        .map(|wait| wait.1)
        .collect();
    // Updates between which little is done, after much that was done for all of them, are one step.
    Some(after_work(facts, cast.step_tid, &times).unwrap_or_else(|| apart(times)))
}

/// When the step thread was done waiting for threads that do all of its computing: TensorFlow's and JAX's pools without a GPU. `None` where
/// it computes itself: there, threads compute together with it, many times in a step. `made`: when it made batches itself, which is no such
/// computing. It may wait for those who make batches on the same semaphore, of its own, as for the pool.
pub(super) fn pool(
    facts: &Facts,
    cast: &Cast,
    locks: &Locks,
    made: &[(u64, u64)],
) -> Option<Vec<u64>> {
    if drives_gpu(facts, cast) {
        return None;
    }
    let mut waits = waits(facts, cast, locks, |tid| cast.producers.contains(&tid))?;
    let mut sorted: Vec<u64> = waits.iter().map(|(from, woken)| woken - from).collect();
    sorted.sort_unstable();
    let usual = sorted[sorted.len() / 2] as f64;
    let is_short = |length: u64| (length as f64) < SHORT * usual;
    let short = sorted.iter().filter(|length| is_short(**length)).count();
    if short as f64 > SAME * sorted.len() as f64 {
        waits.retain(|(from, woken)| !is_short(woken - from));
    }
    let lengths: Vec<u64> = waits.iter().map(|(from, woken)| woken - from).collect();
    let slept: u64 = lengths.iter().sum();
    let all = facts.walkable_ns() as f64;
    let thread = facts.session.thread(cast.step_tid)?;
    // All of the watch, of which not all may be kept.
    let ran = thread.run_ns as f64 / thread.present_ns(facts.session.until) as f64;
    let making = share_inside(&facts.spans, made);
    let rest = 1.0 - making;
    if (slept as f64) < SLEEPS * rest * all
        || ran - making > RUNS * rest
        || slept < MIN_SLEEP_NS * waits.len() as u64
    {
        return None;
    }
    let each = calls_in_a_turn(&lengths);
    Some(waits.iter().step_by(each).map(|wait| wait.1).collect())
}

/// After how many calls those of the same length come again, 1 to [`MOST_CALLS`]: a turn may have several, of two models, say.
fn calls_in_a_turn(lengths: &[u64]) -> usize {
    let differ = |by: usize| {
        let pairs = lengths.iter().zip(lengths.iter().skip(by));
        let mut differences: Vec<u64> = pairs.map(|(a, b)| a.abs_diff(*b)).collect();
        differences.sort_unstable();
        differences.get(differences.len() / 2).copied().unwrap_or(0) as f64
    };
    let neighbours = differ(1);
    (2..=MOST_CALLS)
        .find(|each| lengths.len() >= MIN_TURNS * each && differ(*each) < ALIKE * neighbours)
        .unwrap_or(1)
}

/// Waits for threads of its own process that make no batches, where it waits longest, in order: since when, until when. `others`: who else
/// may end waits in the same places.
fn waits(
    facts: &Facts,
    cast: &Cast,
    locks: &Locks,
    others: impl Fn(u32) -> bool,
) -> Option<Vec<(u64, u64)>> {
    let serves = |tid: u32| {
        tid != cast.step_tid
            && facts.pid(tid) == Some(cast.trainer)
            && !cast.producers.contains(&tid)
    };
    let own = own_lines(facts, cast.step_tid, |tid| serves(tid) || others(tid));
    let mut waits = BTreeMap::<u64, (u64, Vec<(u64, u64)>)>::new();
    for item in facts.items(cast.step_tid).iter().filter(|item| {
        item.kind() == WaitKind::Futex
            && item.waker.kind == WakerKind::Thread as u8
            && serves(item.waker.tid)
    }) {
        let at = line(&item.object);
        if !own.contains(&at) || lock_of(locks, facts, cast.step_tid, at).is_some() {
            continue;
        }
        let (ns, waits) = waits.entry(at).or_default();
        *ns += item.woken - item.from;
        waits.push((item.from, item.woken));
    }
    // It may wait for several: for what takes longest.
    let (_, waits) = waits
        .into_values()
        .filter(|(_, waits)| waits.len() >= MIN_STEPS)
        .max_by_key(|(ns, _)| *ns)?;
    Some(waits)
}

fn drives_gpu(facts: &Facts, cast: &Cast) -> bool {
    let mut on_devices = facts.session.gpu.processes.keys();
    on_devices.any(|(_, pid)| *pid == cast.trainer) || !facts.calls(cast.step_tid).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_turn_are_told_by_their_lengths() {
        let mut seed = 1_u64;
        let mut noisy = |ms: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ms * 1_000_000 + (seed >> 33) % 1_500_000
        };
        let mut calls = |turn: &[u64]| {
            let calls = turn.iter().cycle().take(400);
            calls_in_a_turn(&calls.map(|ms| noisy(*ms)).collect::<Vec<_>>())
        };
        assert_eq!(calls(&[12]), 1);
        assert_eq!(calls(&[12, 16]), 2);
        assert_eq!(calls(&[12, 16, 30]), 3);
        assert_eq!(calls_in_a_turn(&[5, 5, 5, 5]), 1);
        assert_eq!(calls_in_a_turn(&[]), 1);
    }
}
