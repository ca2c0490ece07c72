//! Shares of what several functions did that were probed in different windows: each counts by how often it is called, not by how
//! often it was counted.

use std::collections::BTreeMap;

use super::{rates::Estimate, shares::Histogram};

/// Buckets of [`trainprof_common::hist::size_bucket`], the smallest first, with the calls that were counted and their share (0–1).
pub type Sizes = Vec<(u8, u64, Estimate)>;

/// Calls of one function.
pub struct Stratum<'a> {
    /// A second.
    pub rate: Estimate,
    pub sizes: &'a Histogram,
}

impl Estimate {
    /// A part (0–1) of it, as far off as either is.
    pub fn times(self, share: Self) -> Self {
        Self {
            value: self.value * share.value,
            error: (self.error * share.value).hypot(self.value * share.error),
        }
    }

    /// Its share (0–1) of the sum of both; `None`: both are nothing.
    pub fn share_beside(self, others: Self) -> Option<Self> {
        let all = self.value + others.value;
        (all > 0.0).then(|| {
            let share = self.value / all;
            let error = ((1.0 - share) * self.error).hypot(share * others.error) / all;
            Self {
                value: share,
                error,
            }
        })
    }
}

/// Sizes of the calls of all.
pub fn sizes<'a>(strata: impl Iterator<Item = Stratum<'a>>) -> Sizes {
    let strata: Vec<Stratum<'a>> = strata.filter(|stratum| stratum.rate.value > 0.0).collect();
    let all: f64 = strata.iter().map(|stratum| stratum.rate.value).sum();
    let mut rows = BTreeMap::<u8, (u64, f64)>::new();
    for stratum in &strata {
        for (bucket, count, share) in stratum.sizes.rows() {
            let row = rows.entry(bucket).or_default();
            row.0 += count;
            row.1 += share.value * stratum.rate.value / all;
        }
    }
    // Of each bucket, what each function's own share is off by, and its part of the calls.
    let mut squares: BTreeMap<u8, f64> = rows.keys().map(|bucket| (*bucket, 0.0)).collect();
    for stratum in &strata {
        let own: BTreeMap<u8, Estimate> = stratum
            .sizes
            .rows()
            .map(|(bucket, _, share)| (bucket, share))
            .collect();
        for (bucket, squares) in &mut squares {
            let own = own.get(bucket).copied().unwrap_or_default();
            let of_share = own.error * stratum.rate.value;
            let of_rate = (own.value - rows[bucket].1) * stratum.rate.error;
            *squares += (of_share.powi(2) + of_rate.powi(2)) / all.powi(2);
        }
    }
    rows.into_iter()
        .map(|(bucket, (count, value))| {
            let error = squares[&bucket].sqrt();
            (bucket, count, Estimate { value, error })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64, error: f64) -> Estimate {
        Estimate { value, error }
    }

    fn histogram(bucket: u8, windows: u32) -> Histogram {
        let mut out = Histogram::default();
        for _ in 0..windows {
            out.add(&[(bucket, 1_000)].into());
        }
        out
    }

    #[test]
    fn a_function_counts_by_how_often_it_is_called() {
        // Both are called as often; one was counted in six times as many windows.
        let (small, large) = (histogram(6, 60), histogram(12, 10));
        let strata = [(&small, 1e5), (&large, 1e5)].map(|(sizes, value)| Stratum {
            rate: rate(value, 0.1 * value),
            sizes,
        });
        let rows = sizes(strata.into_iter());
        let shares: Vec<(u8, u64, f64)> = rows.iter().map(|r| (r.0, r.1, r.2.value)).collect();
        assert_eq!(shares, [(6, 60_000, 0.5), (12, 10_000, 0.5)]);
        // Two rates that are each a tenth off.
        for (_, _, share) in rows {
            assert!(
                (share.error - 0.5 * 0.5 * 0.1 * 2_f64.sqrt()).abs() < 0.002,
                "{share:?}"
            );
        }
    }

    #[test]
    fn one_function_has_its_own_shares() {
        let sizes_of = histogram(6, 10);
        let stratum = Stratum {
            rate: rate(10.0, 5.0),
            sizes: &sizes_of,
        };
        let own: Sizes = sizes_of.rows().collect();
        let rows = sizes(std::iter::once(stratum));
        assert_eq!(rows[0].2.value, own[0].2.value);
        assert!((rows[0].2.error - own[0].2.error).abs() < 1e-12);
        assert_eq!(sizes(std::iter::empty()), []);
    }

    #[test]
    fn a_share_is_off_by_both_of_its_parts() {
        assert_eq!(rate(0.0, 0.0).share_beside(rate(0.0, 0.0)), None);
        let alone = rate(5.0, 2.0)
            .share_beside(rate(0.0, 0.0))
            .expect("a share");
        assert_eq!((alone.value, alone.error), (1.0, 0.0));
        let half = rate(1.0, 0.1)
            .share_beside(rate(1.0, 0.1))
            .expect("a share");
        assert!((half.error - 0.025 * 2_f64.sqrt()).abs() < 1e-9, "{half:?}");
    }
}
