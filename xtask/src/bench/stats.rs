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
    fn shown_with_its_range() {
        assert_eq!(
            Spread::show(Spread::of([1.0, 2.0, 4.0]), 1),
            "2.0 [1.0, 4.0]"
        );
        assert_eq!(Spread::show(None, 1), "–");
        assert_eq!(Spread::show(Spread::of([-0.0]), 0), "0 [0, 0]");
    }
}
