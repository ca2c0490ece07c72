//! Batches that come to the step thread in pieces: it goes on to work only when it has all of one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    apart::{MOST_OF_WORK, after_work, undivided},
    bursts::own_times,
    cast::Cast,
    clock::MIN_STEPS,
    facts::Facts,
    locks::{Locks, lock_of},
    messages::{Channel, is_one_of, reads},
    multiples::filled,
    phases::natural_break,
    spans::{overlap, union},
    timeline::line,
};
use crate::session::kind::WaitKind;

/// Pieces for each batch, on average, at least; and the share (0–1) of the batches that are worked on for as long as the usual one, to a
/// quarter.
const PIECES: f64 = 1.5;
const ALIKE: f64 = 0.8;
/// Work on a batch is done without a wait, but for this part (0–1) of the batches at most.
const DIVIDED: f64 = 0.125;
/// Part (0–1) of the messages that are of whole batches, where each channel brings a part of them.
const IN_ROUNDS: f64 = 0.95;

/// Batches that a helper thread takes in pieces and hands to the step thread, which goes on to work only when it has all of one: when
/// that one began to wait for the first piece of each. `None` where it works after each of the pieces `taken`, or not on all batches for
/// about as long: who is mostly ahead waits now and then.
pub(super) fn whole_from_helper(
    facts: &Facts,
    cast: &Cast,
    locks: &Locks,
    channels: &[Channel],
    taken: &[u64],
) -> Option<Vec<u64>> {
    let takers: BTreeSet<u32> = facts
        .touching_threads()
        .filter(|(tid, touches)| {
            facts.pid(*tid) == Some(cast.trainer)
                && touches.iter().any(|touch| reads(touch, channels))
        })
        .map(|(tid, _)| tid)
        .collect();
    let times: Vec<u64> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| takers.contains(&item.waker.tid) && item.kind() == WaitKind::Futex)
        .filter(|item| lock_of(locks, facts, cast.step_tid, line(&item.object)).is_none())
        .map(|item| item.from)
        .collect();
    let firsts = after_work(facts, cast.step_tid, &times)?;
    let undivided = undivided(facts, cast.step_tid, &firsts);
    if (undivided.len() as f64) < (1.0 - DIVIDED) * firsts.len() as f64 {
        return None;
    }
    let whole = filled(facts, cast.step_tid, undivided);
    let own = own_times(facts, cast.step_tid, &whole);
    let mut worked: Vec<u64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
    worked.sort_unstable();
    let usual = *worked.get(worked.len() / 2)?;
    let alike = worked
        .iter()
        .filter(|ns| ns.abs_diff(usual) * 4 <= usual)
        .count();
    let in_pieces = taken.len() as f64 >= PIECES * whole.len() as f64;
    (in_pieces && alike as f64 >= ALIKE * worked.len() as f64).then_some(whole)
}

/// Batches to which each of several channels brings a part: environments that are stepped together, say. The step thread goes on to work
/// only when it has all parts. Gives when it took the last part of each; `None` where they do not come one from each, or it works
/// after each of them.
pub(super) fn one_from_each(
    facts: &Facts,
    cast: &Cast,
    handed: &BTreeMap<Channel, Vec<u64>>,
) -> Option<Vec<u64>> {
    if handed.len() < 2 {
        return None;
    }
    let mut messages: Vec<(u64, Channel)> = handed
        .iter()
        .flat_map(|(channel, times)| times.iter().map(|at| (*at, *channel)))
        .collect();
    messages.sort_unstable();
    let mut begun = BTreeSet::new();
    let mut first = 0;
    // First and last part of each.
    let mut whole = Vec::new();
    for (at, channel) in &messages {
        if begun.contains(channel) {
            begun.clear();
        }
        if begun.is_empty() {
            first = *at;
        }
        begun.insert(*channel);
        if begun.len() == handed.len() {
            whole.extend([first, *at]);
            begun.clear();
        }
    }
    let in_rounds = whole.len() / 2 * handed.len();
    if whole.len() / 2 < MIN_STEPS || (in_rounds as f64) < IN_ROUNDS * messages.len() as f64 {
        return None;
    }
    let own = own_times(facts, cast.step_tid, &whole);
    let inside: u64 = own.chunks_exact(2).map(|pair| pair[1] - pair[0]).sum();
    let all = own[own.len() - 1] - own[0];
    ((all - inside) as f64 >= MOST_OF_WORK * all as f64)
        .then(|| whole.chunks_exact(2).map(|pair| pair[1]).collect())
}

/// Batches that come in pieces from one process, in order: the step thread goes on to work only when it has the last one. Gives
/// when it took the first piece of each; `None` where it works after each piece.
pub(super) fn whole_batches(
    facts: &Facts,
    cast: &Cast,
    channels: &[Channel],
    taken: &[u64],
) -> Option<Vec<u64>> {
    let waits: Vec<(u64, u64)> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| is_one_of(&item.object, channels))
        .map(|item| (item.from, item.to))
        .collect();
    let waits = union(waits);
    let worked: Vec<u64> = taken
        .windows(2)
        .map(|pair| pair[1] - pair[0] - overlap(&waits, pair[0], pair[1]))
        .collect();
    let mut sorted = worked.clone();
    sorted.sort_unstable();
    let limit = natural_break(&sorted)?;
    let all: u64 = worked.iter().sum();
    let long: u64 = worked.iter().filter(|ns| **ns > limit).sum();
    let firsts = taken.iter().skip(1).zip(worked);
    (long as f64 >= MOST_OF_WORK * all as f64).then(|| {
        firsts
            .filter(|(_, worked)| *worked > limit)
            .map(|(at, _)| *at)
            .collect()
    })
}
