//! How evenly the same work is done within one watch: what else runs on the machine, its clock and its caches make the steps
//! of one minute faster than those of the next. A run without a cause may fall into a better time than the one that
//! was watched, so the bound has to leave room for that.

use super::{spans::overlap, steps::Steps};

/// Stretches that a watch is cut into, and steps in each at least: single steps differ by what is in them.
const STRETCHES: usize = 16;
const MIN_STEPS: usize = 8;
/// Of the stretches' means, the one that counts as undisturbed: a quarter are faster still.
const UNDISTURBED: f64 = 0.25;
/// More than this is no disturbance but work that differs.
const MOST: f64 = 1.15;

/// The steps' mean time outside stalls by that in undisturbed stretches: 1 to 1.15. `stalls`: sorted, without overlaps.
pub fn pace(steps: &Steps, stalls: &[(u64, u64)]) -> f64 {
    let own: Vec<f64> = steps
        .spans
        .iter()
        .map(|(from, to)| (to - from - overlap(stalls, *from, *to)) as f64)
        .collect();
    let each = own.len().div_ceil(STRETCHES).max(MIN_STEPS);
    let mut means: Vec<f64> = own
        .chunks_exact(each)
        .map(|stretch| stretch.iter().sum::<f64>() / each as f64)
        .collect();
    if means.len() < 4 {
        return 1.0;
    }
    means.sort_by(f64::total_cmp);
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let undisturbed = means[(means.len() as f64 * UNDISTURBED) as usize];
    if undisturbed <= 0.0 {
        return 1.0;
    }
    (mean / undisturbed).clamp(1.0, MOST)
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
            within_ns: 0,
        }
    }

    #[test]
    fn disturbed_stretches_show_and_uneven_steps_do_not() {
        // Every second step is longer: no stretch is.
        let even = steps((0..320).map(|step| 100 + 40 * (step % 2)));
        assert!((pace(&even, &[]) - 1.0).abs() < 1e-9);
        // Half of the watch is 20 % slower.
        let half = steps((0..320).map(|step| if step < 160 { 100 } else { 120 }));
        assert!((pace(&half, &[]) - 1.1).abs() < 1e-9);
        // Stalls are not the trainer's own time.
        let waits = steps((0..320).map(|step| if step < 160 { 100 } else { 120 }));
        let stalls: Vec<(u64, u64)> = waits.spans[160..]
            .iter()
            .map(|(_, to)| (to - 20, *to))
            .collect();
        assert!((pace(&waits, &stalls) - 1.0).abs() < 1e-9);
        assert!((pace(&steps((0..10).map(|_| 100)), &[]) - 1.0).abs() < 1e-9);
    }
}
