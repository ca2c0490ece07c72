//! Turns between two that were seen: whoever takes a batch that is there already waits for nobody, and shows nothing. What is done
//! with each batch takes about as long, so a turn in which a thread ran twice as long as usual was two.

use super::{bursts::own_times, facts::Facts};

/// Of the turns, sorted by how long the thread ran: the one that stands for a single one.
const SINGLE: f64 = 0.25;
/// A turn is a whole number of single ones when it differs from that by no more than this part of a single one, and so many (0–1) of
/// them must be.
const WHOLE: f64 = 0.2;
const MOSTLY: f64 = 0.9;
/// Turns that stand for several, as a part (0–1) of all, from which on they are no chance.
const SEVERAL: f64 = 0.05;
/// A thread that runs for less than this in a turn is not told by it, ns.
const LEAST_NS: u64 = 1_000_000;

/// `times` (sorted) at which batches were waited for, and when the ones between them were taken; as they are where turns are not
/// multiples of a single one.
pub fn filled(facts: &Facts, tid: u32, times: Vec<u64>) -> Vec<u64> {
    let own = own_times(facts, tid, &times);
    let ran: Vec<u64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = ran.clone();
    sorted.sort_unstable();
    let single = sorted.get((sorted.len() as f64 * SINGLE) as usize).copied();
    let Some(single) = single.filter(|ns| *ns >= LEAST_NS) else {
        return times;
    };
    let turns = |ran: u64| ran as f64 / single as f64;
    let whole = |ran: &&u64| (turns(**ran) - turns(**ran).round()).abs() <= WHOLE;
    let several = ran.iter().filter(|ran| turns(**ran) >= 2.0 - WHOLE).count() as f64;
    let count = ran.len() as f64;
    if several < SEVERAL * count || (ran.iter().filter(whole).count() as f64) < MOSTLY * count {
        return times;
    }
    let mut out = Vec::with_capacity(times.len());
    for (pair, ran) in times.windows(2).zip(ran) {
        let turns = turns(ran).round().max(1.0) as u64;
        out.push(pair[0]);
        let within = (1..turns).map(|n| having_run(facts, tid, pair[0], n * ran / turns));
        out.extend(within.filter(|at| *at < pair[1]));
    }
    out.extend(times.last());
    out
}

/// When a thread had run for so long since `from`.
fn having_run(facts: &Facts, tid: u32, from: u64, ns: u64) -> u64 {
    let items = facts.items(tid);
    let (mut at, mut left) = (from, ns);
    for item in &items[items.partition_point(|item| item.to <= from)..] {
        let ran = item.from.saturating_sub(at);
        if left <= ran {
            break;
        }
        left -= ran;
        at = item.to;
    }
    at + left
}
