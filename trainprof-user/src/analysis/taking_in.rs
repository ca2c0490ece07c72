//! Stretches in which a step thread with workers takes a batch in: from the message that brings it until it asks for the next one.
//! It unpickles what it got, opens the shared memory behind it, and draws the numbers of the samples to ask for.

use super::{
    alternation::of_framework,
    cast::Cast,
    facts::Facts,
    locks::{Locks, lock_of},
    messages::{hand_overs, requests},
    spans::overlap,
    timeline::{Item, LINE, line},
};
use crate::session::kind::WaitKind;

/// Batches that show a pattern.
const MIN_BATCHES: usize = 10;
/// Less than this share of the time is not worth telling.
const MIN_SHARE: f64 = 0.03;
/// Samples that tell what is done in these stretches, and beside them.
const MIN_SAMPLES: usize = 20;
/// A framework's libraries have at most this share of the time in these stretches, and of what they have beside them: else the
/// model is computed before the next batch is asked for.
const MOST_COMPUTING: f64 = 0.35;
const AGAINST_REST: f64 = 0.5;
/// Beside these stretches they have this share at least: else they are not what it computes with.
const MIN_COMPUTING: f64 = 0.1;

/// Finds them; empty where the step thread does not read the messages itself, does not ask for batches one by one, or computes
/// in between.
pub fn taking_in(facts: &Facts, cast: &Cast, locks: &Locks) -> Vec<(u64, u64)> {
    let taken = read(facts, cast);
    let requests = requests(facts, cast, locks);
    let mut out = Vec::new();
    for (n, from) in taken.iter().enumerate() {
        let next = taken.get(n + 1).copied().unwrap_or(u64::MAX);
        let first = requests.partition_point(|at| at <= from);
        if let Some(asked) = requests.get(first).filter(|asked| **asked < next) {
            out.push((*from, *asked));
        }
    }
    let seconds = facts.walkable_ns() as f64;
    let length: u64 = out.iter().map(|(from, to)| to - from).sum();
    if out.len() < MIN_BATCHES
        || (length as f64) < MIN_SHARE * seconds
        || computes(facts, cast, &out)
    {
        return Vec::new();
    }
    out
}

/// When a step thread with producers took batches: read their messages, or was handed them.
pub fn taken(facts: &Facts, cast: &Cast, locks: &Locks) -> Vec<u64> {
    let mut out = read(facts, cast);
    if out.is_empty() {
        out.extend(handed(facts, cast, locks).map(|item| item.woken));
    }
    out
}

/// Waits of the step thread in which producers handed something over, in order. One that gives the interpreter's lock back hands
/// nothing over.
pub fn handed<'f>(
    facts: &'f Facts,
    cast: &'f Cast,
    locks: &'f Locks,
) -> impl Iterator<Item = &'f Item> {
    let interpreters = facts.session.python.lock_of(cast.trainer);
    let is_lock = move |item: &Item| {
        let at = line(&item.object);
        item.kind() == WaitKind::Futex
            && (interpreters.is_some_and(|address| address >> LINE == at)
                || lock_of(locks, facts, cast.step_tid, at).is_some())
    };
    let fed = facts.items(cast.step_tid).iter();
    fed.filter(move |item| cast.fed(item) && !is_lock(item))
}

/// When a step thread read messages that bring batches, in order.
fn read(facts: &Facts, cast: &Cast) -> Vec<u64> {
    let messages = hand_overs(facts, cast, |tid| tid == cast.step_tid);
    let mut out: Vec<u64> = messages.into_values().flatten().collect();
    out.sort_unstable();
    out
}

/// Whether the model is computed in these stretches, as far as samples tell.
fn computes(facts: &Facts, cast: &Cast, stretches: &[(u64, u64)]) -> bool {
    // Of samples inside and beside: all, and those in a framework.
    let mut counts = [(0_usize, 0_usize); 2];
    for sample in facts.samples(cast.step_tid) {
        let inside = overlap(stretches, sample.at.0, sample.at.0 + 1) > 0;
        let (all, framework) = &mut counts[usize::from(!inside)];
        *all += 1;
        *framework += usize::from(of_framework(facts.session, sample.place));
    }
    let share = |(all, framework): (usize, usize)| framework as f64 / all.max(1) as f64;
    let (inside, beside) = (counts[0], counts[1]);
    inside.0 < MIN_SAMPLES
        || share(beside) < MIN_COMPUTING
        || share(inside) > MOST_COMPUTING
        || share(inside) > AGAINST_REST * share(beside)
}
