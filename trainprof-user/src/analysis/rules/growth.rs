//! Whether a series grows steadily: not a step, not a curve that levels off, not a saw.

/// A straight line through a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Units a second.
    pub slope: f64,
    /// 95 % confidence: slope ± this.
    pub margin: f64,
    pub last: f64,
}

impl Growth {
    /// How much that is in so many seconds, which are known with an error, and its 95 % confidence.
    pub fn over(&self, seconds: f64, error_s: f64) -> (f64, f64) {
        let margin = (self.margin * seconds).hypot(self.slope * error_s);
        (self.slope * seconds, margin)
    }
}

/// Points that make a line.
const MIN_POINTS: usize = 8;
/// Seconds that make a line.
const MIN_SECONDS: f64 = 8.0;
/// The later half, and the last third, must still grow at this share of the whole's pace.
const STEADY: f64 = 0.6;
/// The later half must grow at this share of the earlier half's pace: what fills up slows down.
const NOT_FILLING: f64 = 0.7;
/// The tail must still grow at this share of the whole's pace: what fills up and then stays may have been full for that long alone.
const STILL: f64 = 0.5;
/// The tail is as long as the line takes for so many times what points lie beside it, and at least so many points, and such a part of all: a job that
/// pauses does not grow.
const TAIL_NOISE: f64 = 8.0;
const MIN_TAIL: usize = 4;
const MIN_TAIL_PART: f64 = 1.0 / 12.0;
/// What is never given back again must grow in the earlier half already, at this share of the whole's pace: a saw's
/// last tooth alone says nothing.
const FLOOR: f64 = 0.4;

/// The growth of (seconds, value) points; `None` when there are too few, or when it does not grow steadily.
pub fn steady_growth(points: &[(f64, f64)]) -> Option<Growth> {
    // The beginning is warming up.
    let skip = points.len() / 5;
    let points = &points[skip..];
    if points.len() < MIN_POINTS || points[points.len() - 1].0 - points[0].0 < MIN_SECONDS {
        return None;
    }
    let middle = points.len() / 2;
    let whole = line(points)?;
    let early = line(&points[..middle + 1])?;
    let half = line(&points[middle..])?;
    let third = line(&points[points.len() * 2 / 3..])?;
    let tail = tail(points).map_or(Some(whole), line)?;
    let floor = floor(points);
    let floor_early = line(&floor[..middle + 1])?;
    let steady = whole.slope > 0.0
        && whole.slope > whole.margin
        && half.slope >= STEADY * whole.slope
        && third.slope >= STEADY * whole.slope
        && tail.slope >= STILL * whole.slope
        && half.slope >= NOT_FILLING * early.slope
        && floor_early.slope >= FLOOR * whole.slope;
    steady.then_some(whole)
}

/// The last points: the fewest that tell whether it still grows. `None` where that takes more than a third of them.
fn tail(points: &[(f64, f64)]) -> Option<&[(f64, f64)]> {
    let before = &points[..points.len() * 2 / 3];
    let line = line(before)?;
    let value = |t: f64| line.last + line.slope * (t - before[before.len() - 1].0);
    let mean = before.iter().map(|(t, v)| v - value(*t)).sum::<f64>() / before.len() as f64;
    let squares = before.iter().map(|(t, v)| (v - value(*t) - mean).powi(2));
    let noise = (squares.sum::<f64>() / (before.len() - 2) as f64).sqrt();
    let spacing = (points[points.len() - 1].0 - points[0].0) / (points.len() - 1) as f64;
    let least = (points.len() as f64 * MIN_TAIL_PART).max(MIN_TAIL as f64);
    let wanted = (TAIL_NOISE * noise / (line.slope * spacing)).max(least);
    (line.slope > 0.0 && wanted <= points.len() as f64 / 3.0)
        .then(|| &points[points.len() - wanted.ceil() as usize..])
}

/// At each point the least value from there on: what was not given back.
fn floor(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut least = f64::INFINITY;
    let mut out: Vec<(f64, f64)> = points
        .iter()
        .rev()
        .map(|(t, value)| {
            least = least.min(*value);
            (*t, least)
        })
        .collect();
    out.reverse();
    out
}

/// Least squares, with an error that reckons with points that hang together.
pub fn line(points: &[(f64, f64)]) -> Option<Growth> {
    let n = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean_t = points.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_v = points.iter().map(|p| p.1).sum::<f64>() / n;
    let spread: f64 = points.iter().map(|p| (p.0 - mean_t).powi(2)).sum();
    if spread <= 0.0 {
        return None;
    }
    let slope = points
        .iter()
        .map(|p| (p.0 - mean_t) * (p.1 - mean_v))
        .sum::<f64>()
        / spread;
    let residuals: f64 = points
        .iter()
        .map(|p| (p.1 - mean_v - slope * (p.0 - mean_t)).powi(2))
        .sum();
    let error = (residuals / (n - 2.0) / spread).sqrt();
    Some(Growth {
        slope,
        margin: 4.0 * error,
        last: points[points.len() - 1].1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..60)
            .map(|n| (f64::from(n), value(f64::from(n))))
            .collect()
    }

    #[test]
    fn a_leak_grows_and_a_cache_levels_off() {
        let wobble = |t: f64| (t * 1.7).sin() * 2.0;
        let leak = steady_growth(&series(|t| 100.0 + 3.0 * t + wobble(t))).expect("a leak");
        assert!((leak.slope - 3.0).abs() < 0.2, "{leak:?}");
        let collected = steady_growth(&series(|t| 100.0 + 3.0 * t + (t % 7.0) * 2.0));
        let slope = collected.expect("a leak below a saw").slope;
        assert!((slope - 3.0).abs() < 0.3, "{slope}");
        let paused: Vec<_> = (0..600)
            .map(|n| (f64::from(n), f64::from(n.min(596)) * 3.0))
            .collect();
        assert!(
            steady_growth(&paused).is_some(),
            "a leak of a job that pauses in the end"
        );
        for phase in 0..7 {
            // Whatever part of a tooth comes last.
            let saw = series(|t| 100.0 + 3.0 * t + ((t + f64::from(phase)) % 7.0) * 2.0);
            assert!(steady_growth(&saw).is_some(), "phase {phase} of a saw");
        }
        for (name, values) in [
            (
                "levels off",
                series(|t| 100.0 + 100.0 * (1.0 - (-t / 8.0).exp()) + wobble(t)),
            ),
            ("flat", series(|t| 100.0 + wobble(t))),
            (
                "steps once",
                series(|t| if t < 30.0 { 100.0 } else { 200.0 }),
            ),
            ("saw", series(|t| 100.0 + (t % 20.0) * 3.0)),
            // Three quarters of the watch are one tooth.
            ("last tooth", series(|t| 100.0 + ((t + 5.0) % 25.0) * 3.0)),
            (
                "fills slowly",
                series(|t| 100.0 + 100.0 * (1.0 - (-t / 50.0).exp())),
            ),
            ("falls", series(|t| 300.0 - t)),
            ("full in the end", series(|t| 100.0 + t.min(54.0))),
            (
                "full in the end, with noise",
                series(|t| 100.0 + 3.0 * t.min(50.0) + wobble(t)),
            ),
        ] {
            assert_eq!(steady_growth(&values), None, "{name}");
        }
    }
}
