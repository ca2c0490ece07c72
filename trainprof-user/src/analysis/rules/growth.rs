//! Whether a series grows steadily: not a step, not a curve that levels off.

/// A straight line through a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Units a second.
    pub slope: f64,
    /// 95 % confidence: slope ± this.
    pub margin: f64,
    pub last: f64,
}

/// Points that make a line.
const MIN_POINTS: usize = 8;
/// Seconds that make a line.
const MIN_SECONDS: f64 = 8.0;
/// The later half must still grow at this share of the whole's pace, and so must the last third.
const STEADY: f64 = 0.6;

/// The growth of (seconds, value) points; `None` when there are too few, or when it does not grow steadily.
pub fn steady_growth(points: &[(f64, f64)]) -> Option<Growth> {
    // The beginning is warming up.
    let skip = points.len() / 5;
    let points = &points[skip..];
    if points.len() < MIN_POINTS || points[points.len() - 1].0 - points[0].0 < MIN_SECONDS {
        return None;
    }
    let whole = line(points)?;
    let half = line(&points[points.len() / 2..])?;
    let third = line(&points[points.len() * 2 / 3..])?;
    let steady = whole.slope > 0.0
        && whole.slope > whole.margin
        && half.slope >= STEADY * whole.slope
        && third.slope >= STEADY * whole.slope;
    steady.then_some(whole)
}

/// Least squares, with an error that reckons with points that hang together.
fn line(points: &[(f64, f64)]) -> Option<Growth> {
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
            ("falls", series(|t| 300.0 - t)),
        ] {
            assert_eq!(steady_growth(&values), None, "{name}");
        }
    }
}
