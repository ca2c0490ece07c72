//! What a probe's hit costs in the job, against what calibration on our own process says.
//!
//! Windows on allocations alone and on allocations and releases differ in how often a call is trapped. The calls of a CPU second without probes are
//! the same for both, so that both together tell what a hit costs: were it as calibrated, and is it more, those with more hits
//! a call would show fewer calls.

use super::few::{deviation, widened};

/// What one window counted of a function.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Seconds of CPU time, those that hits took by calibration among them.
    pub time: f64,
    pub lost: f64,
    /// Hits of all probes.
    pub hits: f64,
    /// Calls of the function.
    pub calls: f64,
}

/// How many times as much as calibrated a hit costs, and the standard error of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dearer {
    pub factor: f64,
    pub error: f64,
}

/// Where windows tell nothing. From the same to 2.2 times as much was measured, by hosts and hours (a numpy loop whose arrays fill the first cache took
/// 0.84 us a hit for 0.43 reckoned): after each trap a job's branches and data are found again more slowly than in our own short loop. The root mean
/// square of what is added is that.
pub(super) const UNTOLD: Dearer = Dearer {
    factor: 1.0,
    error: 0.7,
};
/// What is not known better in any case: calibration and windows may have met a host that was busy in another way, and plain hits differ from paired ones. Of 15
/// runs beside other tests and alone two were 2.2 and 2.4 of their errors off with 0.3 here.
const LEAST_ERROR: f64 = 0.4;
/// Factors that were seen, with room. Below 1 where something disturbed calibration, or the window's own measure of what slows hits down.
const FACTORS: std::ops::RangeInclusive<f64> = 0.4..=2.5;
/// Windows of each kind, hits a call of one kind against the other's.
const ENOUGH: usize = 2;
const APART: f64 = 1.5;

/// What the windows of a function tell.
pub fn dearer(windows: &[Seen]) -> Dearer {
    fitted(windows).unwrap_or(UNTOLD)
}

fn fitted(windows: &[Seen]) -> Option<Dearer> {
    let counted = windows.iter().copied().filter(|seen| seen.calls > 0.0);
    let each = |seen: &Seen| seen.hits / seen.calls;
    let fewest = counted
        .clone()
        .map(|seen| each(&seen))
        .fold(f64::INFINITY, f64::min);
    let (few, many): (Vec<Seen>, Vec<Seen>) = counted.partition(|seen| each(seen) < APART * fewest);
    if few.len() < ENOUGH || many.len() < ENOUGH {
        return None;
    }
    let (few, many) = (Sum::of(&few), Sum::of(&many));
    // The factor at which both show as many calls for each second of their own.
    let across = few.calls * many.time;
    let differ = few.calls * many.lost - many.calls * few.lost;
    if differ <= 0.0 {
        return None;
    }
    let factor = (across - many.calls * few.time) / differ;
    let noise = few.error.hypot(many.error) * across / differ;
    let widened = (few.error * few.widened).hypot(many.error * many.widened) * across / differ;
    // The less the windows tell, the more it is what is so without them.
    let (known, noise) = (UNTOLD.error.powi(2), noise.powi(2));
    let weight = known / (known + noise);
    let factor = UNTOLD.factor + (factor - UNTOLD.factor) * weight;
    let widened = widened.powi(2);
    let error = (known * widened / (known + widened)).sqrt();
    Some(Dearer {
        factor: factor.clamp(*FACTORS.start(), *FACTORS.end()),
        error: error.clamp(LEAST_ERROR, UNTOLD.error),
    })
}

/// Windows of one kind together.
struct Sum {
    time: f64,
    lost: f64,
    calls: f64,
    /// Standard error of their calls a second, as a part of these.
    error: f64,
    /// What it is wider by, being of so few.
    widened: f64,
}

impl Sum {
    fn of(windows: &[Seen]) -> Sum {
        let sum = |of: fn(&Seen) -> f64| windows.iter().map(of).sum::<f64>();
        let (time, lost, calls) = (sum(|s| s.time), sum(|s| s.lost), sum(|s| s.calls));
        let off = |seen: &Seen| (seen.calls - calls / time * seen.time).powi(2);
        let squares: f64 = windows.iter().map(off).sum();
        let spread = deviation(squares, windows.len()) / calls;
        Sum {
            time,
            lost,
            calls,
            error: spread.hypot(1.0 / calls.sqrt()),
            widened: widened(windows.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of a second in which calls are 1 us apart, by calibration of 0.4 us a hit, each really `factor` times as much.
    fn window(hits_a_call: f64, factor: f64, pace: f64) -> Seen {
        let calls = pace * 1e6 / (1.0 + hits_a_call * 0.4 * factor);
        Seen {
            time: 1.0,
            lost: calls * hits_a_call * 0.4e-6,
            hits: calls * hits_a_call,
            calls,
        }
    }

    #[test]
    fn windows_of_two_kinds_tell_what_a_hit_costs() {
        for factor in [1.0, 1.5, 2.2] {
            let of = |paces: [f64; 4]| {
                let hits = [1.0, 2.3, 1.0, 2.3];
                let windows = [0, 1, 2, 3].map(|i| window(hits[i], factor, paces[i]));
                dearer(&windows)
            };
            let even = of([1.0; 4]);
            assert!((even.factor - factor).abs() < 0.02, "{factor}: {even:?}");
            assert_eq!(even.error, LEAST_ERROR);
            // Where they differ among themselves, less is known, and told.
            let uneven = of([0.5, 0.6, 1.5, 1.4]);
            assert!(
                (1.0..factor.max(1.3)).contains(&uneven.factor),
                "{uneven:?}"
            );
            assert!(uneven.error > 0.5, "{uneven:?}");
        }
    }

    #[test]
    fn windows_of_one_kind_tell_nothing() {
        let alike = [1.0, 1.1, 1.2].map(|hits| window(hits, 2.0, 1.0));
        assert_eq!(dearer(&alike), UNTOLD);
        let one = [1.0, 1.0, 2.3].map(|hits| window(hits, 2.0, 1.0));
        assert_eq!(dearer(&one), UNTOLD);
        assert_eq!(dearer(&[]), UNTOLD);
    }
}
