//! Shares of what windows counted, and how far they may be from those of the whole watch.

use std::collections::BTreeMap;

use super::{
    few::residual_error,
    rates::{ENOUGH_WINDOWS, Estimate, UNKNOWN_SPREAD},
};

/// What each window counted in all: their number, sum and squares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole {
    windows: usize,
    sum: f64,
    squares: f64,
}

impl Whole {
    /// A window that counted so much.
    pub fn add(&mut self, counted: f64) {
        if counted > 0.0 {
            self.windows += 1;
            self.sum += counted;
            self.squares += counted * counted;
        }
    }
}

/// What each window counted of one kind. Windows that had none of it need not be told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    sum: f64,
    squares: f64,
    cross: f64,
}

impl Part {
    /// A window in which so much of `whole` was of the kind.
    pub fn add(&mut self, part: f64, whole: f64) {
        self.sum += part;
        self.squares += part * part;
        self.cross += part * whole;
    }

    /// The share (0–1) with its standard error; `calls`: how many were counted in all. `None` for parts of nothing.
    ///
    /// Calls of one window are more alike than calls of the whole watch, so windows are what was drawn: the error is that of a
    /// ratio of their sums, and no less than that of as many calls drawn one by one.
    pub fn of(&self, whole: &Whole, calls: u64) -> Option<Estimate> {
        if whole.sum <= 0.0 {
            return None;
        }
        let share = (self.sum / whole.sum).min(1.0);
        let n = whole.windows as f64;
        let between = if whole.windows < ENOUGH_WINDOWS {
            // Of the kind, and of what is not, each as far off as the rate of any window.
            share * (1.0 - share) * (2.0 / n).sqrt() * UNKNOWN_SPREAD
        } else {
            let squares = self.squares - 2.0 * share * self.cross + share * share * whole.squares;
            residual_error(squares, whole.windows) / whole.sum
        };
        Some(Estimate {
            value: share,
            error: between.max(drawn(share, calls as f64)),
        })
    }
}

/// Standard error of a share (0–1) that was found among `drawn` ones.
///
/// Half of the way to the further end of Wilson's interval (1927) at two of them: that of few, all of which or none of which are of
/// the kind, is not zero, as the share that was found would have it.
pub fn drawn(share: f64, drawn: f64) -> f64 {
    const Z: f64 = 2.0;
    let n = drawn.max(1.0);
    let (all, shift) = (1.0 + Z * Z / n, Z * Z / (2.0 * n));
    let middle = (share + shift) / all;
    let half = Z / all * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    (share - (middle - half)).max(middle + half - share) / Z
}

/// How often calls asked for which size.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    whole: Whole,
    calls: u64,
    /// By bucket of [`trainprof_common::hist::size_bucket`].
    buckets: BTreeMap<u8, (u64, Part)>,
}

impl Histogram {
    /// One window's calls by bucket.
    pub fn add(&mut self, window: &BTreeMap<u8, u64>) {
        let all: u64 = window.values().sum();
        self.whole.add(all as f64);
        self.calls += all;
        for (bucket, count) in window {
            let (sum, part) = self.buckets.entry(*bucket).or_default();
            *sum += count;
            part.add(*count as f64, all as f64);
        }
    }

    /// Buckets with the calls that were counted and their share, the smallest first.
    pub fn rows(&self) -> impl Iterator<Item = (u8, u64, Estimate)> {
        self.buckets.iter().map(|(bucket, (count, part))| {
            let share = part.of(&self.whole, self.calls).unwrap_or_default();
            (*bucket, *count, share)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(windows: &[(f64, f64)]) -> Estimate {
        let (mut whole, mut part) = (Whole::default(), Part::default());
        for (of_kind, all) in windows {
            whole.add(*all);
            part.add(*of_kind, *all);
        }
        part.of(&whole, 1_000_000).expect("a share")
    }

    #[test]
    fn a_share_is_as_uncertain_as_windows_differ() {
        let alike = share(&[(300.0, 1_000.0); 10]);
        assert!((alike.value - 0.3).abs() < 1e-9);
        // A million calls drawn one by one.
        assert!(
            (alike.error - (0.21_f64 / 1e6).sqrt()).abs() < 1e-5,
            "{alike:?}"
        );
        // As many windows of 0.1 as of 0.5: a standard deviation of 0.2 among ten.
        let mut unlike = [(100.0, 1_000.0); 10];
        unlike[5..].fill((500.0, 1_000.0));
        let unlike = share(&unlike);
        assert!((unlike.value - 0.3).abs() < 1e-9);
        // Student's t of ten against that of many.
        let truly = 0.2 / 9_f64.sqrt() * 2.262 / 1.96;
        assert!((unlike.error / truly - 1.0).abs() < 0.01, "{unlike:?}");
        // One window says nothing of others.
        assert!(share(&[(300.0, 1_000.0)]).error > 0.1);
        assert_eq!(Part::default().of(&Whole::default(), 0), None);
    }

    #[test]
    fn two_errors_of_a_share_hold_its_truth_nineteen_times_in_twenty() {
        for n in [8_u32, 32, 100, 400] {
            for truth in [0.01_f64, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99] {
                // Chance of each number that can be found (binomial), from that of none on; its logarithm, since that is small.
                let mut chance = f64::from(n) * (1.0 - truth).ln();
                let mut held = 0.0;
                for found in 0..=n {
                    let share = f64::from(found) / f64::from(n);
                    if (share - truth).abs() <= 2.0 * drawn(share, f64::from(n)) {
                        held += chance.exp();
                    }
                    let odds = truth / (1.0 - truth);
                    chance += (f64::from(n - found) / f64::from(found + 1) * odds).ln();
                }
                assert!(held > 0.925, "{n} of {truth}: {held}");
            }
        }
    }

    #[test]
    fn what_windows_lack_counts_as_none_of_it() {
        let mut sizes = Histogram::default();
        for bucket in [6, 6, 12, 6] {
            sizes.add(&[(bucket, 100)].into());
        }
        let rows: Vec<(u8, u64, Estimate)> = sizes.rows().collect();
        assert_eq!((rows[0].0, rows[0].1, rows[1].1), (6, 300, 100));
        assert!((rows[0].2.value - 0.75).abs() < 1e-9, "{rows:?}");
        // The two shares add up to 1: what is wrong with one is wrong with the other.
        // Student's t of four windows against that of many.
        let truly = 0.25 * 3.182 / 1.96;
        for row in &rows {
            assert!((row.2.error / truly - 1.0).abs() < 0.01, "{rows:?}");
        }
    }
}
