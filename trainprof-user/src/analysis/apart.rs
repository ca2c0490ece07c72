//! Times of one step that lie close together: by the clock, and by what the step thread does between them.

use super::{bursts::own_times, clock::MIN_STEPS, facts::Facts, phases::natural_break};

/// Steps that take their batch in pieces do so much (0–1) of their work when they have all of them.
pub(super) const MOST_OF_WORK: f64 = 0.7;
/// The work after all pieces of a batch is plainly more than after one of them: so many times.
const PLAIN_WORK: u64 = 8;
/// What is more than so much (0–1) of the usual work is the work on one batch.
const GOOD_PART: f64 = 0.6;
/// No step computes for less than this between two exchanges, but one parameter's mean is taken in it, ns.
const NEXT_TO_NOTHING_NS: u64 = 1_000_000;

/// Hand-overs of which several make a batch, such as results of a pool's tasks: the step thread goes on to work only when it has them all.
/// Gives the first of each batch; `None` where it works after each.
pub(super) fn after_work(facts: &Facts, tid: u32, times: &[u64]) -> Option<Vec<u64>> {
    firsts(facts, tid, times, u64::MAX)
}

/// Exchanges of a step of which each is waited for, one after the other: between two of them next to nothing is done. Gives the first of
/// each step; `None` where they are no such.
pub(super) fn one_by_one(facts: &Facts, tid: u32, times: &[u64]) -> Option<Vec<u64>> {
    firsts(facts, tid, times, NEXT_TO_NOTHING_NS)
}

/// Times before which the thread plainly worked for longer than before most others, which is `short_ns` at most.
fn firsts(facts: &Facts, tid: u32, times: &[u64], short_ns: u64) -> Option<Vec<u64>> {
    let own = own_times(facts, tid, times);
    let worked: Vec<u64> = own
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).max(1))
        .collect();
    let mut sorted = worked.clone();
    sorted.sort_unstable();
    let limit = natural_break(&sorted)?;
    let short = sorted[sorted.partition_point(|ns| *ns <= limit) / 2];
    let long: u64 = worked.iter().filter(|ns| **ns > limit).sum();
    let all: u64 = worked.iter().sum();
    let firsts: Vec<u64> = times
        .iter()
        .skip(1)
        .zip(&worked)
        .filter(|(_, worked)| **worked > limit)
        .map(|(at, _)| *at)
        .collect();
    let plain = short <= short_ns
        && limit >= PLAIN_WORK * short
        && long as f64 >= MOST_OF_WORK * all as f64;
    (plain && firsts.len() > MIN_STEPS).then_some(firsts)
}

/// Drops what comes much sooner than usual after the one before: several wakes of one step.
pub(super) fn apart(times: Vec<u64>) -> Vec<u64> {
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() * 3 / 4).copied().unwrap_or(0);
    let mut out: Vec<u64> = Vec::with_capacity(times.len());
    for at in times {
        if out.last().is_none_or(|last| at - last >= usual / 5) {
            out.push(at);
        }
    }
    out
}

/// Drops those before which the thread has worked much less than usual: an exchange of one step that was waited for in parts.
pub(super) fn apart_by_work(facts: &Facts, tid: u32, times: &[u64]) -> Vec<u64> {
    worked_for(facts, tid, times, 3.0 / 4.0, 1.0 / 5.0)
}

/// Drops those before which the thread has done less than a good part of its usual work: it waited in the midst of that.
pub(super) fn undivided(facts: &Facts, tid: u32, times: &[u64]) -> Vec<u64> {
    worked_for(facts, tid, times, 1.0 / 2.0, GOOD_PART)
}

/// Times before which the thread worked for at least this part (0–1) of what it usually does since the one before: this quantile (0–1).
fn worked_for(facts: &Facts, tid: u32, times: &[u64], quantile: f64, part: f64) -> Vec<u64> {
    let own = own_times(facts, tid, times);
    let mut sorted: Vec<u64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * quantile) as usize;
    let least = part * sorted.get(at).copied().unwrap_or(0) as f64;
    let mut last = None;
    let mut out = Vec::with_capacity(times.len());
    for (at, own) in times.iter().zip(own) {
        if last.is_none_or(|last| (own - last) as f64 >= least) {
            last = Some(own);
            out.push(*at);
        }
    }
    out
}
