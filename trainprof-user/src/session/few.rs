//! How far off a ratio of sums may be that few windows tell.

/// Of two of these, one on either side, 95 in 100 hold the truth where there are many.
const Z: f64 = 1.96;

/// Standard error of a ratio of two sums over `n` windows (two or more), times the sum below: `squares` is the sum of the squares of what each window has
/// more or less than the ratio says (Cochran, Sampling Techniques, 6.4).
///
/// Few windows tell as little of how much they differ as of the ratio. So it is wider for them by what Student's t is wider than the normal distribution:
/// twice of it on either side holds the truth as often as for many.
pub fn residual_error(squares: f64, n: usize) -> f64 {
    deviation(squares, n) * widened(n)
}

/// The same as for many.
pub fn deviation(squares: f64, n: usize) -> f64 {
    let n = n as f64;
    (squares.max(0.0) * n / (n - 1.0)).sqrt()
}

/// How many times as wide an error is that so few windows tell.
pub fn widened(n: usize) -> f64 {
    student(n as f64 - 1.0)
}

/// The 97.5th percentile of Student's t at so many degrees of freedom, by that of the normal distribution: exact for one and two, else within 1 % (Cornish
/// and Fisher; Abramowitz and Stegun, 26.7.5).
fn student(freedom: f64) -> f64 {
    if freedom <= 1.0 {
        return 12.706 / Z;
    }
    if freedom <= 2.0 {
        return 4.303 / Z;
    }
    let z2 = Z * Z;
    let first = (z2 + 1.0) / 4.0;
    let second = (5.0 * z2 * z2 + 16.0 * z2 + 3.0) / 96.0;
    let third = (3.0 * z2.powi(3) + 19.0 * z2 * z2 + 17.0 * z2 - 15.0) / 384.0;
    1.0 + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_students() {
        for (freedom, t) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (5, 2.571),
            (9, 2.262),
            (30, 2.042),
        ] {
            let found = student(f64::from(freedom)) * Z;
            assert!((found / t - 1.0).abs() < 0.01, "{freedom}: {found} for {t}");
        }
    }

    /// Uniform numbers (Knuth's generator), twelve of which make a normal one.
    fn normal(state: &mut u64) -> f64 {
        let mut one = || {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (*state >> 11) as f64 / (1_u64 << 53) as f64
        };
        (0..12).map(|_| one()).sum::<f64>() - 6.0
    }

    #[test]
    fn twice_of_it_holds_as_often_for_few_as_for_many() {
        let mut state = 1;
        for n in [2, 3, 4, 8, 40] {
            let held = (0..4_000)
                .filter(|_| {
                    let windows: Vec<f64> =
                        (0..n).map(|_| 100.0 + 20.0 * normal(&mut state)).collect();
                    let mean = windows.iter().sum::<f64>() / n as f64;
                    let squares = windows.iter().map(|seen| (seen - mean).powi(2)).sum();
                    let error = residual_error(squares, n) / n as f64;
                    (mean - 100.0).abs() <= 2.0 * error
                })
                .count();
            assert!((3_760..=3_860).contains(&held), "{n}: {held} of 4000");
        }
    }
}
