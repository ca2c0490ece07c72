//! Whether a job is told by all of the watch, or by the time alone in which its trainer's calls were counted.
//!
//! Where counting calls costs much, nobody's are counted most of the time. Counting them slows such a job down: steps and shares of that
//! time alone are those of a slower job, and few. But checkpoints, epochs, batches that the step thread makes itself and most clocks are
//! found by calls. So all of the watch tells only of a job that shows next to none of these while calls are counted, but for batches that stacks
//! of its code show as well, and whose backward passes, which are seen with calls or without, are one to each step.

use super::{
    causes::{making_by_stacks, taking_in_by_stacks},
    clock::MIN_STEPS,
    facts::Facts,
    spans::{overlap, share_inside, union, without},
    trainer::Trainer,
};
use crate::session::kind::WaitKind;

/// Part (0–1) of the steps that have one pass each.
const EACH: f64 = 0.95;
/// Part (0–1) of the time in which passes are seen at the least: one is followed by the next within so many times the usual time.
const SEEN: f64 = 0.9;
const FOLLOWED: u64 = 3;
/// Step threads that wait for files for more of the time (0–1) write or read something there.
const ON_FILES: f64 = 0.02;
/// Part (0–1) of the time about which it does not matter that only calls tell what it is for.
const BY_CALLS: f64 = 0.02;
/// Parts of the time (0–1) in which stacks, and calls, show the step thread at its batches differ by this at most: stacks are few.
const STACKS_OFF: f64 = 0.2;

/// Whether time without calls may tell as much of a trainer with one pass to each step as `counted`, by which it was found.
pub(super) fn may_tell(counted: &Facts, trainer: &Trainer) -> bool {
    trainer.cast.ranks.is_empty()
        && trainer.epochs.is_none()
        && trainer.beside_model.is_empty()
        && known_by_calls(counted, trainer) <= BY_CALLS
}

/// Whether `all`, in a part of which no calls were counted, does.
pub(super) fn tells(counted: &Facts, all: &Facts, trainer: &Trainer) -> bool {
    batches_are_seen(counted, all, trainer)
        && passes_all_through(all, trainer.cast.step_tid)
        && on_files(all, trainer.cast.step_tid) <= ON_FILES
}

/// Whether others make its batches, or stacks of its code show the making, and show as much as its calls do.
fn batches_are_seen(counted: &Facts, all: &Facts, trainer: &Trainer) -> bool {
    if !trainer.cast.producers.is_empty() {
        return true;
    }
    let tid = trainer.cast.step_tid;
    let seen = |facts: &Facts| share_inside(&facts.spans, &making_by_stacks(facts, tid));
    let share = share_inside(&counted.spans, &trainer.own_batches);
    let as_much = (seen(counted) - share).abs() <= STACKS_OFF;
    !trainer.own_batches_guessed && as_much && seen(all) > 0.0
}

/// Part (0–1) of the time in which it writes checkpoints, or takes batches in as only its calls tell.
fn known_by_calls(facts: &Facts, trainer: &Trainer) -> f64 {
    let by_stacks = taking_in_by_stacks(facts, &trainer.cast);
    let taking_in = without(&trainer.taking_in, &by_stacks);
    share_inside(
        &facts.spans,
        &union([taking_in, trainer.checkpoints.clone()].concat()),
    )
}

/// Without that, time without calls tells nothing of steps.
pub(super) fn one_pass_each(facts: &Facts, trainer: &Trainer) -> bool {
    let passes = facts.losses(trainer.cast.step_tid);
    let before = |at: u64| passes.partition_point(|pass| *pass < at);
    let Some(steps) = &trainer.steps else {
        return false;
    };
    let with_one = |(from, to): &&(u64, u64)| before(*to) - before(*from) == 1;
    let ones = steps.spans.iter().filter(with_one).count();
    steps.spans.len() >= MIN_STEPS && ones as f64 >= EACH * steps.spans.len() as f64
}

/// Whether passes tell the number of steps, and how long they were, whatever else is known by calls alone.
pub(super) fn passes_all_through(facts: &Facts, step_tid: u32) -> bool {
    let passes = facts.losses(step_tid).windows(2);
    let between: Vec<u64> = passes.clone().map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = between.clone();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
    let seen: u64 = passes
        .zip(between)
        .filter(|(_, length)| *length <= FOLLOWED * usual)
        .map(|(pair, _)| overlap(&facts.spans, pair[0], pair[1]))
        .sum();
    seen as f64 >= SEEN * facts.walkable_ns() as f64
}

/// Part (0–1) of the time that it waits for files.
fn on_files(facts: &Facts, step_tid: u32) -> f64 {
    let items = facts.items(step_tid).iter();
    let of_files = items.filter(|item| item.kind() == WaitKind::File);
    let waited: u64 = of_files.map(|item| item.woken - item.from).sum();
    waited as f64 / facts.walkable_ns().max(1) as f64
}
