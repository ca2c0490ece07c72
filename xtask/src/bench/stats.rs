//! Medians, with the range beside them: a median alone hides how far runs lie apart.

/// Median, least and greatest of some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples
            .into_iter()
            .filter(|value| value.is_finite())
            // An empty sum is -0, which would be shown with its sign.
            .map(|value| value + 0.0)
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max })
    }

    /// Least and greatest value between which the median of what the samples were drawn from lies with at least 95 %
    /// confidence, whatever its distribution: order statistics (David and Nagaraja, Order Statistics, 7.1). `None`: too few.
    pub fn of_median(samples: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        // How likely fewer than `cut` of the samples lie below the median.
        let (mut tail, mut term) = (0.0, 0.5_f64.powi(n as i32));
        let mut cut = 0;
        while cut < n / 2 && tail + term <= 0.025 {
            tail += term;
            term *= (n - cut) as f64 / (cut + 1) as f64;
            cut += 1;
        }
        let below = cut.checked_sub(1)?;
        Some((sorted[below], sorted[n - 1 - below]))
    }

    /// `1.2 [0.8, 3.1]`, with that many decimals.
    pub fn show(spread: Option<Self>, decimals: usize) -> String {
        spread.map_or_else(
            || "–".to_owned(),
            |s| {
                format!(
                    "{:.decimals$} [{:.decimals$}, {:.decimals$}]",
                    s.median, s.min, s.max
                )
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn median_of_odd_and_even() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(
            odd,
            Some(Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
        assert_eq!(
            Spread::of([4.0, 1.0, 2.0, 3.0]).map(|s| s.median),
            Some(2.5)
        );
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn where_the_median_lies() {
        let numbers = |n: i32| (1..=n).map(f64::from);
        // 2 / 2^5 > 5 %, 2 / 2^6 < 5 %; tables give 2 and 9 of 10, 6 and 15 of 20.
        assert_eq!(Spread::of_median(numbers(5)), None);
        assert_eq!(Spread::of_median(numbers(6)), Some((1.0, 6.0)));
        assert_eq!(Spread::of_median(numbers(10)), Some((2.0, 9.0)));
        assert_eq!(Spread::of_median(numbers(20)), Some((6.0, 15.0)));
    }

    #[test]
    fn shown_with_its_range() {
        assert_eq!(
            Spread::show(Spread::of([1.0, 2.0, 4.0]), 1),
            "2.0 [1.0, 4.0]"
        );
        assert_eq!(Spread::show(None, 1), "–");
        assert_eq!(Spread::show(Spread::of([-0.0]), 0), "0 [0, 0]");
    }
}
