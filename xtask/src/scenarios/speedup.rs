//! How much quicker a job is without the fault, from what both timed. Pure functions.

use serde_json::Value;

use super::gain::Gain;

/// Step time with the fault over step time without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speedup {
    pub all: f64,
    /// Standard error, from how far the pairs of slices lie apart; `None`: one pair
    pub error: Option<f64>,
    /// The least and the greatest of the pairs
    pub range: [f64; 2],
}

/// What a turn of the loop took on average in one window (ms).
#[derive(Clone, Copy)]
struct Turn {
    all: f64,
    /// CPU time of the model's work within; 0: the script notes none
    model: f64,
    /// Time within that is the same on a CPU of another speed: asleep for a disk or a server
    fixed: f64,
}

impl Turn {
    /// On a CPU that takes so many times as long.
    fn at(self, slower: f64) -> f64 {
        self.fixed + slower * (self.all - self.fixed)
    }
}

impl Speedup {
    /// What a user gains, at the speed that the machine had in the watch (`watch`: truth of it), of which the report
    /// tells. Work with the fault then and in a slice is alike, so its CPU time tells the machine's speed in both. Slices
    /// of a pair follow each other: one speed is taken for both, and what the model's work gains when the cause is gone
    /// stays in.
    pub fn at_speed_of_watch(watch: &Value, gain: &Gain) -> Option<Self> {
        let watched = mean(&turns(watch)?);
        let pairs = pairs(gain)?.into_iter().map(|(with, without)| {
            let slower = watched.model / with.model;
            let slower = if slower.is_finite() && slower > 0.0 {
                slower
            } else {
                1.0
            };
            (with.at(slower), without.at(slower))
        });
        Self::of(&pairs.collect::<Vec<_>>())
    }

    /// As it was timed, in slices that took turns.
    pub fn as_timed(gain: &Gain) -> Option<Self> {
        let pairs = pairs(gain)?
            .into_iter()
            .map(|(with, without)| (with.all, without.all));
        Self::of(&pairs.collect::<Vec<_>>())
    }

    /// With the CPU time of the model's work set to that of the watch, with and without the fault alike. That takes out what
    /// the machine's speed did, and also what the model's work really gains when the cause is gone.
    pub fn at_one_speed(watch: &Value, gain: &Gain) -> Option<Self> {
        let watched = mean(&turns(watch)?);
        let pairs = turns(&gain.truth_without)?
            .into_iter()
            .map(|without| (watched.all, without.all - without.model + watched.model));
        Self::of(&pairs.collect::<Vec<_>>())
    }

    /// Of the sums over pairs: all slices are of about one length. The error is that of a ratio of means (Cochran, Sampling
    /// Techniques, 6.4).
    fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let count = pairs.len() as f64;
        let (with, without) = pairs
            .iter()
            .fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        let all = with / without;
        let squares: f64 = pairs
            .iter()
            .map(|pair| (pair.0 - all * pair.1).powi(2))
            .sum();
        let range = pairs
            .iter()
            .map(|pair| pair.0 / pair.1)
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], part| {
                [low.min(part), high.max(part)]
            });
        all.is_finite().then_some(Self {
            all,
            error: (pairs.len() > 1)
                .then(|| (squares * count / (count - 1.0)).sqrt() / without.abs()),
            range,
        })
    }
}

/// Slices that followed each other, with the fault and without.
fn pairs(gain: &Gain) -> Option<Vec<(Turn, Turn)>> {
    let with = turns(&gain.truth_with)?;
    Some(with.into_iter().zip(turns(&gain.truth_without)?).collect())
}

/// The turns of each window.
fn turns(truth: &Value) -> Option<Vec<Turn>> {
    let of = |key: &str| -> Option<Vec<f64>> {
        truth[key].as_array()?.iter().map(Value::as_f64).collect()
    };
    let turns: Vec<_> = of("turn_ms")?
        .into_iter()
        .zip(of("model_ms")?)
        .zip(of("fixed_ms")?)
        .map(|((all, model), fixed)| Turn { all, model, fixed })
        .collect();
    (!turns.is_empty()).then_some(turns)
}

fn mean(turns: &[Turn]) -> Turn {
    let mean = |of: fn(&Turn) -> f64| turns.iter().map(of).sum::<f64>() / turns.len() as f64;
    Turn {
        all: mean(|turn| turn.all),
        model: mean(|turn| turn.model),
        fixed: mean(|turn| turn.fixed),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(turn_ms: &[f64], model_ms: &[f64], fixed_ms: &[f64]) -> Value {
        json!({"turn_ms": turn_ms, "model_ms": model_ms, "fixed_ms": fixed_ms})
    }

    fn near(speedup: Option<Speedup>, all: f64) {
        let found = speedup.unwrap().all;
        assert!((found - all).abs() < 1e-9, "{found} is not {all}");
    }

    /// A disk is waited for, 60 of 100 ms, and then 10 of 40; the model's work takes 30 ms, 20 without the fault.
    fn disk() -> Gain {
        Gain {
            truth_with: told(&[100.0, 100.0], &[30.0, 30.0], &[60.0, 60.0]),
            truth_without: told(&[40.0, 40.0], &[20.0, 20.0], &[10.0, 10.0]),
        }
    }

    #[test]
    fn as_timed_is_of_all_slices() {
        let gain = Gain {
            truth_with: told(&[100.0, 140.0], &[40.0, 40.0], &[0.0, 0.0]),
            truth_without: told(&[50.0, 50.0], &[40.0, 40.0], &[0.0, 0.0]),
        };
        let speedup = Speedup::as_timed(&gain).unwrap();
        assert_eq!(speedup.all, 2.4);
        assert_eq!(speedup.range, [2.0, 2.8]);
    }

    #[test]
    fn a_machine_of_one_speed_leaves_what_was_timed() {
        let watch = told(&[100.0], &[30.0], &[60.0]);
        near(Speedup::at_speed_of_watch(&watch, &disk()), 2.5);
        assert_eq!(
            Speedup::at_speed_of_watch(&watch, &disk()),
            Speedup::as_timed(&disk())
        );
    }

    /// It was half as fast in the watch: 60 + 2 * 40 over 10 + 2 * 30.
    #[test]
    fn sleeping_takes_as_long_on_a_slow_machine() {
        let watch = told(&[140.0], &[60.0], &[60.0]);
        near(Speedup::at_speed_of_watch(&watch, &disk()), 2.0);
    }

    #[test]
    fn where_nothing_sleeps_speed_does_not_matter() {
        let gain = Gain {
            truth_with: told(&[100.0, 120.0], &[40.0, 40.0], &[0.0, 0.0]),
            truth_without: told(&[50.0, 50.0], &[40.0, 40.0], &[0.0, 0.0]),
        };
        for model in [20.0, 40.0, 90.0] {
            let watch = told(&[100.0], &[model], &[0.0]);
            near(Speedup::at_speed_of_watch(&watch, &gain), 2.2);
        }
    }

    /// The model's work takes half of its CPU time without the fault, and that is part of the gain.
    #[test]
    fn relief_of_the_model_is_kept() {
        let gain = Gain {
            truth_with: told(&[100.0], &[40.0], &[60.0]),
            truth_without: told(&[20.0], &[20.0], &[0.0]),
        };
        let watch = told(&[100.0], &[40.0], &[60.0]);
        near(Speedup::at_speed_of_watch(&watch, &gain), 5.0);
        near(Speedup::at_one_speed(&watch, &gain), 2.5);
    }

    /// It was slow in the second pair, and then twice as slow in the slice with the fault as in the watch.
    #[test]
    fn each_pair_has_a_speed_of_its_own() {
        let gain = Gain {
            truth_with: told(&[100.0, 140.0], &[40.0, 80.0], &[60.0, 60.0]),
            truth_without: told(&[40.0, 80.0], &[40.0, 80.0], &[0.0, 0.0]),
        };
        let watch = told(&[100.0], &[40.0], &[60.0]);
        let speedup = Speedup::at_speed_of_watch(&watch, &gain).unwrap();
        assert_eq!(speedup.all, 2.5);
        assert_eq!(speedup.error, Some(0.0));
    }

    #[test]
    fn the_error_is_that_of_the_pairs() {
        let gain = Gain {
            truth_with: told(&[90.0, 110.0], &[0.0, 0.0], &[0.0, 0.0]),
            truth_without: told(&[50.0, 50.0], &[0.0, 0.0], &[0.0, 0.0]),
        };
        let watch = told(&[100.0], &[0.0], &[0.0]);
        let speedup = Speedup::at_speed_of_watch(&watch, &gain).unwrap();
        // 1.8 and 2.2: their standard deviation is 0.283, over the root of 2.
        assert_eq!(speedup.all, 2.0);
        assert!((speedup.error.unwrap() - 0.2).abs() < 1e-9);
        let alone = Gain {
            truth_with: told(&[90.0], &[0.0], &[0.0]),
            truth_without: told(&[50.0], &[0.0], &[0.0]),
        };
        assert_eq!(Speedup::as_timed(&alone).unwrap().error, None);
    }

    /// The machine was slow in the watch, and in one of the slices.
    #[test]
    fn one_speed() {
        let gain = Gain {
            truth_with: told(&[], &[], &[]),
            truth_without: told(&[30.0, 50.0], &[20.0, 40.0], &[0.0, 0.0]),
        };
        let watch = told(&[100.0], &[40.0], &[0.0]);
        let speedup = Speedup::at_one_speed(&watch, &gain).unwrap();
        assert_eq!(speedup.all, 2.0);
        assert_eq!(speedup.range, [2.0, 2.0]);
        assert_eq!(Speedup::as_timed(&gain), None);
    }

    #[test]
    fn a_slice_without_a_turn_tells_nothing() {
        let gain = Gain {
            truth_with: told(&[100.0], &[20.0], &[0.0]),
            truth_without: json!({"turn_ms": [null], "model_ms": [0.0], "fixed_ms": [0.0]}),
        };
        assert_eq!(Speedup::as_timed(&gain), None);
    }
}
