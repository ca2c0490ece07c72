//! Batches that came before their turn: the trainer puts them aside, takes the next message, and later works on them without
//! taking anything. So several messages at once, and then as much work as several batches make, are several steps.

use super::spans::overlap;

/// A step whose own work is less than this share of the mean hardly has any: its batch was put aside.
const HARDLY: f64 = 0.2;
/// Steps with a message of their own that show how much work a batch is: the nearest ones, since a machine does not run at one
/// speed for long.
const MIN_SINGLE: usize = 5;

/// Spreads the work on batches that were put aside over their steps. `without`: stretches that are no work on a batch; sorted,
/// without overlaps.
pub fn spread(spans: &mut [(u64, u64)], without: &[(u64, u64)]) {
    let own: Vec<u64> = spans
        .iter()
        .map(|(from, to)| to - from - overlap(without, *from, *to))
        .collect();
    let mean = own.iter().sum::<u64>() as f64 / own.len().max(1) as f64;
    let hardly = |at: usize| (own[at] as f64) < HARDLY * mean;
    // (Place, own work) of those with a message of their own.
    let single: Vec<(usize, u64)> = (0..own.len())
        .filter(|at| !hardly(*at) && (*at == 0 || !hardly(at - 1)))
        .map(|at| (at, own[at]))
        .collect();
    if single.len() < MIN_SINGLE {
        return;
    }
    let mut first = 0;
    for at in 0..spans.len() {
        // A group has no hole.
        if at > first && spans[at].0 != spans[at - 1].1 {
            first = at;
        }
        if hardly(at) {
            continue;
        }
        let count = at + 1 - first;
        let worked: u64 = own[first..=at].iter().sum();
        if count > 1 && worked as f64 >= (count as f64 - 0.5) * usual(&single, at) {
            let (from, to) = spans[at];
            let begin = from + overlap(without, from, to);
            let mut before = spans[first].0;
            for step in 1..=count {
                let end = begin + (to - begin) * step as u64 / count as u64;
                spans[first + step - 1] = (before, end);
                before = end;
            }
        }
        first = at + 1;
    }
}

/// The usual work on a batch around a place.
fn usual(single: &[(usize, u64)], place: usize) -> f64 {
    let next = single.partition_point(|(at, _)| *at < place);
    let from = next
        .saturating_sub(MIN_SINGLE / 2)
        .min(single.len() - MIN_SINGLE);
    let mut near: Vec<u64> = single[from..from + MIN_SINGLE]
        .iter()
        .map(|(_, own)| *own)
        .collect();
    near.sort_unstable();
    near[MIN_SINGLE / 2] as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_batches_that_were_put_aside_is_theirs() {
        // Steps of 30; in the fourth the message for the fifth comes first, after a stall of 10.
        let mut spans: Vec<(u64, u64)> = (0..10).map(|n| (30 * n, 30 * n + 30)).collect();
        spans[3] = (90, 101);
        spans[4] = (101, 160);
        spans[5] = (160, 180);
        let without = [(90, 100), (101, 102)];
        let mut found = spans.clone();
        spread(&mut found, &without);
        assert_eq!(found[3..5], [(90, 131), (131, 160)]);
        assert_eq!(found[..3], spans[..3]);
        assert_eq!(found[5..], spans[5..]);
    }

    #[test]
    fn short_steps_stay_short() {
        // Every second batch has next to no work, the others no more than usual.
        let spans: Vec<(u64, u64)> = (0..20)
            .flat_map(|n| [(40 * n, 40 * n + 2), (40 * n + 2, 40 * n + 40)])
            .collect();
        let mut found = spans.clone();
        spread(&mut found, &[]);
        assert_eq!(found, spans);
        // One is short, in a loop of even ones.
        let mut spans: Vec<(u64, u64)> = (0..10).map(|n| (30 * n, 30 * n + 30)).collect();
        spans[4].1 = 122;
        spans
            .iter_mut()
            .skip(5)
            .for_each(|span| *span = (span.0 - 28, span.1 - 28));
        let mut found = spans.clone();
        spread(&mut found, &[]);
        assert_eq!(found, spans);
        spread(&mut [], &[]);
    }
}
