//! Whether a clock that goes by waits misses steps: while nobody waits for the queue, it is not seen that a batch is taken.

use super::{bursts::own_times, clock::Steps, facts::Facts, spans::overlap};

/// A step of so many times the usual length, in so much of which (of the usual length) nobody waited, and in which the step thread had a CPU
/// for so many times as long as usual, may be two.
const LONGER: f64 = 1.7;
const UNSEEN: f64 = 0.8;
const RAN: f64 = 1.6;
/// So many of them (share) make a clock that skips.
const MOST: f64 = 0.02;
/// Whether it does. `waits`: in which somebody waited for the queue; sorted, without overlaps.
pub fn skips(facts: &Facts, tid: u32, steps: &Steps, waits: &[(u64, u64)]) -> bool {
    let lengths: Vec<u64> = steps.spans.iter().map(|(from, to)| to - from).collect();
    let ends: Vec<u64> = steps.spans.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let ran: Vec<u64> = own_times(facts, tid, &ends)
        .chunks_exact(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect();
    let (usual_length, usual_ran) = (middle(&lengths), middle(&ran));
    let may_be_two = |at: &usize| {
        let (from, to) = steps.spans[*at];
        let unseen = lengths[*at] - overlap(waits, from, to);
        lengths[*at] as f64 > LONGER * usual_length
            && unseen as f64 > UNSEEN * usual_length
            && ran[*at] as f64 > RAN * usual_ran
    };
    let skipped = (0..lengths.len()).filter(may_be_two).count();
    skipped as f64 > MOST * lengths.len() as f64
}

fn middle(of: &[u64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0) as f64
}
