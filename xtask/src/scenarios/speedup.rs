//! How much quicker a job is without the fault, from what both timed. Pure functions.

use serde_json::Value;

use super::gain::Gain;

/// Step time with the fault over step time without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speedup {
    pub all: f64,
    /// The least and the greatest of the slices
    pub range: [f64; 2],
}

impl Speedup {
    /// As it was timed, in slices that took turns. Where the cause lets the CPU sleep, a host that shares its CPUs runs
    /// the model's own work slower than without the cause, and then that is part of it.
    pub fn as_timed(gain: &Gain) -> Option<Self> {
        let (with, without) = (turns(&gain.truth_with)?, turns(&gain.truth_without)?);
        let of_pairs = with
            .iter()
            .zip(&without)
            .map(|(with, without)| with.0 / without.0);
        Self::of(mean(&with).0 / mean(&without).0, of_pairs)
    }

    /// With the model's work at the speed that it had while the job was watched (truth of that watch): what goes is the
    /// time that the cause took. The report was made at that speed, and machines change theirs within seconds.
    pub fn at_one_speed(watch: &Value, gain: &Gain) -> Option<Self> {
        let (turn, model) = mean(&turns(watch)?);
        let without = turns(&gain.truth_without)?;
        let against = |other: (f64, f64)| turn / (other.0 - other.1 + model);
        Self::of(
            against(mean(&without)),
            without.iter().copied().map(against),
        )
    }

    fn of(all: f64, parts: impl Iterator<Item = f64>) -> Option<Self> {
        let range = parts.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], part| {
            [low.min(part), high.max(part)]
        });
        all.is_finite().then_some(Self { all, range })
    }
}

/// Of each window the mean time of a turn and the CPU time of the model's work in it (ms).
fn turns(truth: &Value) -> Option<Vec<(f64, f64)>> {
    let of = |key: &str| -> Option<Vec<f64>> {
        truth[key].as_array()?.iter().map(Value::as_f64).collect()
    };
    let turns: Vec<_> = of("turn_ms")?.into_iter().zip(of("model_ms")?).collect();
    (!turns.is_empty()).then_some(turns)
}

/// All windows are of one length, and the time of a turn counts by turns elsewhere: this is by time.
fn mean(turns: &[(f64, f64)]) -> (f64, f64) {
    let count = turns.len() as f64;
    let sum = turns
        .iter()
        .fold((0.0, 0.0), |sum, turn| (sum.0 + turn.0, sum.1 + turn.1));
    (sum.0 / count, sum.1 / count)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(turn_ms: &[f64], model_ms: &[f64]) -> Value {
        json!({"turn_ms": turn_ms, "model_ms": model_ms})
    }

    #[test]
    fn as_timed_is_of_all_slices() {
        let gain = Gain {
            truth_with: told(&[100.0, 140.0], &[40.0, 40.0]),
            truth_without: told(&[50.0, 50.0], &[40.0, 40.0]),
        };
        let speedup = Speedup::as_timed(&gain).unwrap();
        assert_eq!(
            speedup,
            Speedup {
                all: 2.4,
                range: [2.0, 2.8]
            }
        );
    }

    /// The machine was slow in the watch, and in one of the slices.
    #[test]
    fn one_speed() {
        let gain = Gain {
            truth_with: told(&[], &[]),
            truth_without: told(&[30.0, 50.0], &[20.0, 40.0]),
        };
        let speedup = Speedup::at_one_speed(&told(&[100.0], &[40.0]), &gain).unwrap();
        assert_eq!(
            speedup,
            Speedup {
                all: 2.0,
                range: [2.0, 2.0]
            }
        );
        assert_eq!(Speedup::as_timed(&gain), None);
    }

    #[test]
    fn a_slice_without_a_turn_tells_nothing() {
        let gain = Gain {
            truth_with: told(&[100.0], &[20.0]),
            truth_without: json!({"turn_ms": [null], "model_ms": [0.0]}),
        };
        assert_eq!(Speedup::as_timed(&gain), None);
    }
}
