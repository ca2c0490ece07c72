//! How evenly the same work is done within one watch: what else runs on the machine, its clock and its caches make the steps
//! of one minute faster than those of the next. A run without a cause may fall into a better time than the one that
//! was watched, so the bound has to leave room for that. And a step that waited long goes on with cold caches, on a CPU that
//! slept: those that did not wait tell how fast it goes when nobody waits any more.

use super::{spans::overlap, steps::Steps};

/// Stretches that a watch is cut into, and steps in each at least: single steps differ by what is in them.
const STRETCHES: usize = 16;
const MIN_STEPS: usize = 8;
/// Of the stretches' means, the one that counts as undisturbed: a quarter are faster still.
const UNDISTURBED: f64 = 0.25;
/// The part of the steps that waited least, and how little that must be of what all waited on average.
const LEAST_STALLED: f64 = 0.25;
const HARDLY: f64 = 0.2;
/// A step that works for more than so many times as long as usual has more in it than a step: an evaluation.
const ALIKE: f64 = 3.0;
/// More than this is no disturbance but work that differs.
const MOST: f64 = 1.2;

/// The steps' mean time outside stalls by that of those that went well, 1 to 1.2. 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// By that in undisturbed stretches of the watch.
    pub undisturbed: f64,
    /// By that in steps that hardly waited: what waiting itself costs is in it, and what disturbs.
    pub unstalled: f64,
}

/// Measures it. `stalls`, and what else is no work of a step's, such as checkpoints: sorted, without overlaps.
pub fn pace(steps: &Steps, stalls: &[(u64, u64)]) -> Pace {
    let mut parts: Vec<(f64, f64)> = steps
        .spans
        .iter()
        .map(|(from, to)| {
            let stalled = overlap(stalls, *from, *to);
            (stalled as f64, (to - from - stalled) as f64)
        })
        .collect();
    let mut sorted: Vec<f64> = parts.iter().map(|(_, own)| *own).collect();
    sorted.sort_by(f64::total_cmp);
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    parts.retain(|(_, own)| *own <= ALIKE * usual);
    let own: Vec<f64> = parts.iter().map(|(_, own)| *own).collect();
    Pace {
        undisturbed: undisturbed(&own),
        unstalled: unstalled(&mut parts),
    }
}

/// The mean of all by that of those that hardly stalled; (stall, own time) of each step.
fn unstalled(parts: &mut [(f64, f64)]) -> f64 {
    let count = (parts.len() as f64 * LEAST_STALLED) as usize;
    if count < MIN_STEPS {
        return 1.0;
    }
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |parts: &[(f64, f64)]| {
        let sum = parts
            .iter()
            .fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        (sum.0 / parts.len() as f64, sum.1 / parts.len() as f64)
    };
    let ((stalled, own), (least_stalled, least)) = (mean(parts), mean(&parts[..count]));
    if stalled <= 0.0 || least_stalled > HARDLY * stalled || least <= 0.0 {
        return 1.0;
    }
    (own / least).clamp(1.0, MOST)
}

/// The mean of all stretches by that of an undisturbed one. Means of a few steps differ by chance too, as far as the steps in them differ
/// from each other: only the part of their deviation beyond that is a disturbance.
fn undisturbed(own: &[f64]) -> f64 {
    let each = own.len().div_ceil(STRETCHES).max(MIN_STEPS);
    let (mut means, by_chance): (Vec<f64>, Vec<f64>) = own
        .chunks_exact(each)
        .map(|stretch| {
            let (mean, variance) = mean_and_variance(stretch);
            (mean, variance / each as f64)
        })
        .unzip();
    if means.len() < 4 {
        return 1.0;
    }
    means.sort_by(f64::total_cmp);
    let (mean, variance) = mean_and_variance(&means);
    let (by_chance, _) = mean_and_variance(&by_chance);
    let real = ((variance - by_chance).max(0.0) / variance.max(f64::MIN_POSITIVE)).sqrt();
    let quicker = mean - means[(means.len() as f64 * UNDISTURBED) as usize];
    let undisturbed = mean - quicker * real;
    if undisturbed <= 0.0 {
        return 1.0;
    }
    (mean / undisturbed).clamp(1.0, MOST)
}

/// The mean, and the variance that a sample of these tells (by n − 1).
fn mean_and_variance(of: &[f64]) -> (f64, f64) {
    let mean = of.iter().sum::<f64>() / of.len() as f64;
    let squares: f64 = of.iter().map(|one| (one - mean).powi(2)).sum();
    (mean, squares / (of.len() as f64 - 1.0).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::steps::Clock;

    fn steps(lengths: impl Iterator<Item = u64>) -> Steps {
        let mut now = 0;
        let spans = lengths
            .map(|length| {
                now += length;
                (now - length, now)
            })
            .collect();
        Steps {
            clock: Clock::OwnCalls,
            spans,
            confidence: 1.0,
            parts: 1.0,
            within_ns: 0,
            others: Vec::new(),
        }
    }

    #[test]
    fn disturbed_stretches_show_and_uneven_steps_do_not() {
        // Every second step is longer: no stretch is.
        let even = steps((0..320).map(|step| 100 + 40 * (step % 2)));
        assert!((pace(&even, &[]).undisturbed - 1.0).abs() < 1e-9);
        // Half of the watch is 20 % slower.
        let half = steps((0..320).map(|step| if step < 160 { 100 } else { 120 }));
        assert!((pace(&half, &[]).undisturbed - 1.1).abs() < 1e-9);
        // Stalls are not the trainer's own time.
        let waits = steps((0..320).map(|step| if step < 160 { 100 } else { 120 }));
        let stalls: Vec<(u64, u64)> = waits.spans[160..]
            .iter()
            .map(|(_, to)| (to - 20, *to))
            .collect();
        assert!((pace(&waits, &stalls).undisturbed - 1.0).abs() < 1e-9);
        assert!((pace(&steps((0..10).map(|_| 100)), &[]).undisturbed - 1.0).abs() < 1e-9);
    }

    #[test]
    fn stretches_that_differ_as_their_steps_let_expect_are_not_disturbed() {
        // Steps of 20 to 180, in no order; in the mean of many watches.
        let mut state = 1_u64;
        let mut uneven = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            20 + (state >> 33) % 160
        };
        let watches: Vec<Vec<u64>> = (0..50)
            .map(|_| (0..320).map(|_| uneven()).collect())
            .collect();
        let mean = |slower: u64| {
            let told = watches.iter().map(|watch| {
                let scale = |(at, step): (usize, &u64)| step * if at < 160 { 100 } else { slower };
                pace(&steps(watch.iter().enumerate().map(scale)), &[]).undisturbed
            });
            told.sum::<f64>() / watches.len() as f64
        };
        assert!(mean(100) < 1.025, "{}", mean(100));
        // The second half takes a third longer, which is 1.165; a part of that may be chance.
        assert!((1.1..1.17).contains(&mean(133)), "{}", mean(133));
    }

    #[test]
    fn work_between_the_steps_is_no_disturbance() {
        // An evaluation every 13 steps: some stretches have two, some one.
        let evaluated = steps((0..320).map(|step| if step % 13 == 12 { 900 } else { 100 }));
        assert_eq!(pace(&evaluated, &[]).undisturbed, 1.0);
    }

    #[test]
    fn steps_that_did_not_wait_tell_how_fast_the_others_would_be() {
        // Every second step waits for 50, and then takes 110 instead of 100.
        let mixed = steps((0..160).map(|step| if step % 2 == 0 { 100 } else { 160 }));
        let stalls: Vec<(u64, u64)> = mixed
            .spans
            .iter()
            .skip(1)
            .step_by(2)
            .map(|(from, _)| (*from, from + 50))
            .collect();
        assert!((pace(&mixed, &stalls).unstalled - 1.05).abs() < 1e-9);
        // All wait alike: none tells.
        let stalls: Vec<(u64, u64)> = mixed
            .spans
            .iter()
            .map(|(from, _)| (*from, from + 50))
            .collect();
        assert!((pace(&mixed, &stalls).unstalled - 1.0).abs() < 1e-9);
    }
}
