//! Turns between two that were seen: whoever takes a batch that is there already waits for nobody, and shows nothing. What is done
//! with each batch takes about as long, so a turn in which a thread ran twice as long as usual was two.

use super::{bursts::own_times, facts::Facts};

/// Of the turns, sorted by how long the thread ran: the one that stands for a single one; the latter where most are several.
const SINGLE: [f64; 2] = [0.5, 0.25];
/// A turn is a whole number of single ones when it differs from that by no more than this part of a single one, and so many (0–1) of
/// them must be, and of those that are longer than a single one: by this part of it at least.
const WHOLE: f64 = 0.25;
const LONGER: f64 = 0.5;
const MOSTLY: f64 = 0.9;
const MOSTLY_OF_LONG: f64 = 0.7;
/// Turns that stand for several, as a part (0–1) of all and in number, from which on they are no chance.
const SEVERAL: f64 = 0.05;
const LEAST_SEVERAL: usize = 5;
/// A thread that runs for less than this in a turn is not told by it, ns.
const LEAST_NS: u64 = 1_000_000;
/// Turns that one running time stands for at most: what is longer is a hole in what is known.
const MOST_TURNS: f64 = 100.0;

/// `times` (sorted) at which batches were waited for, and when the ones between them were taken; as they are where turns are not
/// multiples of a single one.
pub fn filled(facts: &Facts, tid: u32, times: Vec<u64>) -> Vec<u64> {
    let own = own_times(facts, tid, &times);
    let ran: Vec<u64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let Some(turns) = multiples(&ran) else {
        return times;
    };
    let mut out = Vec::with_capacity(times.len());
    for (pair, (ran, turns)) in times.windows(2).zip(ran.into_iter().zip(turns)) {
        out.push(pair[0]);
        let within = (1..turns).map(|n| having_run(facts, tid, pair[0], n * ran / turns));
        out.extend(within.filter(|at| *at < pair[1]));
    }
    out.extend(times.last());
    out
}

/// For how many turns each of these running times stands, where several do for more than one. A CPU that is slow now and then makes turns of
/// any length, not twice as long ones.
fn multiples(ran: &[u64]) -> Option<Vec<u64>> {
    let mut sorted = ran.to_vec();
    sorted.sort_unstable();
    SINGLE.into_iter().find_map(|part| {
        let single = *sorted.get((sorted.len() as f64 * part) as usize)?;
        multiples_of(single, ran)
    })
}

fn multiples_of(single: u64, ran: &[u64]) -> Option<Vec<u64>> {
    if single < LEAST_NS {
        return None;
    }
    let turns = |ran: u64| ran as f64 / single as f64;
    let part_whole = |from: f64| {
        let those = || {
            ran.iter()
                .map(|ran| turns(*ran))
                .filter(|turns| *turns >= from)
        };
        let whole = those().filter(|turns| (turns - turns.round()).abs() <= WHOLE);
        whole.count() as f64 / those().count().max(1) as f64
    };
    let several = ran.iter().filter(|ran| turns(**ran) >= 2.0 - WHOLE);
    let several = several.count();
    let enough = several >= LEAST_SEVERAL && several as f64 >= SEVERAL * ran.len() as f64;
    let whole = part_whole(0.0) >= MOSTLY && part_whole(1.0 + LONGER) >= MOSTLY_OF_LONG;
    (enough && whole).then(|| {
        ran.iter()
            .map(|ran| turns(*ran).round().clamp(1.0, MOST_TURNS) as u64)
            .collect()
    })
}

/// When a thread had run for so long since `from`.
fn having_run(facts: &Facts, tid: u32, from: u64, ns: u64) -> u64 {
    let items = facts.items(tid);
    let (mut at, mut left) = (from, ns);
    for item in &items[items.partition_point(|item| item.to <= from)..] {
        let ran = facts.ran(tid, at, item.from);
        if left <= ran {
            let part = left as f64 / ran.max(1) as f64;
            return at + (part * item.from.saturating_sub(at) as f64) as u64;
        }
        left -= ran;
        at = at.max(item.to);
    }
    at + left
}

#[cfg(test)]
mod tests {
    use super::multiples;

    const MS: u64 = 1_000_000;

    #[test]
    fn turns_that_nobody_saw_are_multiples_of_a_single_one() {
        let ran: Vec<u64> = (0..100)
            .map(|n| {
                let turns = if n % 10 == 3 { 2 } else { 1 + n / 99 * 2 };
                turns * 7 * MS + n % 7 * MS / 10
            })
            .collect();
        let turns = multiples(&ran).expect("multiples");
        assert_eq!(turns.iter().sum::<u64>(), 100 + 10 + 2);
    }

    #[test]
    fn turns_that_differ_a_little_are_single_ones_all_the_same() {
        // Seen with a pool's tasks: one in eight turns is a fifth longer than usual, which has no part in how many are several.
        let ran: Vec<u64> = (0..200)
            .map(|n| {
                let turns = if n % 16 == 3 { 2 } else { 1 };
                (turns * 36 + n % 7 + if n % 8 == 5 { 8 } else { 0 }) * MS / 10
            })
            .collect();
        let turns = multiples(&ran).expect("multiples");
        assert_eq!(turns.iter().sum::<u64>(), 200 + 13);
    }

    #[test]
    fn a_hole_stands_for_few_turns() {
        let mut ran: Vec<u64> = (0..66)
            .map(|n| if n % 11 == 3 { 20 * MS } else { 10 * MS })
            .collect();
        ran.push(1_000_000_000_000 * MS);
        let turns = multiples(&ran).expect("multiples");
        assert_eq!(turns.iter().max(), Some(&100));
    }

    #[test]
    fn a_cpu_that_is_slow_now_and_then_makes_no_multiples() {
        // Seen with four threads that took turns at the interpreter's lock: 33 steps of 411 were made up.
        let ran: Vec<u64> = (0..100)
            .map(|n| 7 * MS + n.max(88_u64).saturating_sub(88) * MS)
            .collect();
        assert!(ran[99] > 2 * ran[0]);
        assert_eq!(multiples(&ran), None);
    }
}
