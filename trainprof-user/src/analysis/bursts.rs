//! A clock from reading in bursts: a step thread that makes its batches itself reads what it needs for one, and then computes.
//!
//! Between two bursts lies the step's own work, which is alike from step to step, while a read may take long or not, as a disk, a cache
//! or a server will have it. So intervals are those of the thread's own time on a CPU, waits left out. Where these are of two
//! kinds, plainly apart, the long ones part the bursts; files and sockets of a step may be others each time.

use trainprof_common::op::{Class, Op};

use super::{
    facts::Facts,
    pulse::{AGREE, MIN_STEPS, MOST_PER_S, calls_in_step, even, throughout},
    spans::overlap,
};

/// Long intervals are so many times the short ones, and at least this long (ns): less is no work of a step.
const APART: f64 = 3.0;
const LEAST_NS: u64 = 500_000;

/// Beginnings of steps by bursts of a thread's reads outside of `without` (sorted); `None` where there are none, or where files and
/// sockets disagree.
pub fn bursts(facts: &Facts, tid: u32, without: &[(u64, u64)]) -> Option<Vec<u64>> {
    let of = |class: Class| steps_of(facts, tid, &reads(facts, tid, class, without)?);
    match (of(Class::File), of(Class::Socket)) {
        (Some(files), Some(sockets)) => {
            let (few, many) = (
                files.len().min(sockets.len()),
                files.len().max(sockets.len()),
            );
            ((many - few) as f64 <= AGREE * many as f64).then_some(files)
        }
        (files, sockets) => files.or(sockets),
    }
}

/// When a thread read from things of one class.
fn reads(facts: &Facts, tid: u32, class: Class, without: &[(u64, u64)]) -> Option<Vec<u64>> {
    let is_read = |op: u8| op == Op::Read.number() || op == Op::UringRead.number();
    let times: Vec<u64> = facts
        .touches(tid)
        .iter()
        .filter(|touch| is_read(touch.op) && touch.object.class == class as u8)
        .map(|touch| touch.at.0)
        .filter(|at| overlap(without, *at, at + 1) == 0)
        .collect();
    let seconds = facts.walkable_ns() as f64 / 1e9;
    (times.len() > MIN_STEPS && times.len() as f64 <= MOST_PER_S * seconds).then_some(times)
}

fn steps_of(facts: &Facts, tid: u32, reads: &[u64]) -> Option<Vec<u64>> {
    let own = own_times(facts, tid, reads);
    let firsts = first_of_bursts(&own);
    let of_bursts: Vec<u64> = firsts.iter().map(|at| own[*at]).collect();
    // Several bursts in a step are at uneven distances.
    if of_bursts.len() <= MIN_STEPS || calls_in_step(&of_bursts) != Some(1) {
        return None;
    }
    let times: Vec<u64> = firsts.into_iter().map(|at| reads[at]).collect();
    let mut ran: Vec<u64> = of_bursts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    ran.sort_unstable();
    (even(&ran) && throughout(facts, &times)).then_some(times)
}

/// The time that a thread had spent on a CPU at each of these times (sorted), but for a constant. Between single waits it ran, but for
/// what sums of the interval tell of waits that were not recorded one by one.
pub(super) fn own_times(facts: &Facts, tid: u32, times: &[u64]) -> Vec<u64> {
    let mut items = facts.items(tid).iter().peekable();
    let (mut own, mut reached) = (0, times.first().copied().unwrap_or(0));
    times
        .iter()
        .map(|at| {
            while let Some(item) = items.next_if(|item| item.to <= *at) {
                own += facts.ran(tid, reached, item.from);
                reached = reached.max(item.to);
            }
            let until = items.peek().map_or(*at, |item| item.from.min(*at));
            own += facts.ran(tid, reached, until);
            reached = reached.max(until);
            own
        })
        .collect()
}

/// Which of the calls at these times are the first ones after a long interval; all of them when there are no two kinds of intervals.
fn first_of_bursts(own: &[u64]) -> Vec<usize> {
    let gap = |at: usize| own[at].saturating_sub(own[at - 1]).max(1);
    let mut sorted: Vec<u64> = (1..own.len()).map(gap).collect();
    sorted.sort_unstable();
    // Where the sorted intervals jump most, with enough of them above.
    let most = sorted.len().saturating_sub(MIN_STEPS);
    let jump = |at: usize| sorted[at] as f64 / sorted[at - 1] as f64;
    let split = (1..most)
        .filter(|at| sorted[*at] >= LEAST_NS)
        .max_by(|a, b| jump(*a).total_cmp(&jump(*b)))
        .filter(|at| jump(*at) >= APART);
    let limit = split.map_or(0, |at| sorted[at]);
    (1..own.len()).filter(|at| gap(*at) >= limit).collect()
}
