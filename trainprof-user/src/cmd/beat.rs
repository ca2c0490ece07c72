//! When what was counted is collected, and when the probes' run time is counted: in drains of the ring. Pure.

/// Drains in an interval.
const DRAINS: u64 = 4;
/// Intervals after which run time is counted only in every so many-th, unless drains are seldom: by then the mean is known.
const COUNTED_AT_FIRST: u64 = 10;
const COUNTED_EVERY: u64 = 4;

/// What is due at a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// Counting the probes' run time for the first time, at once.
    CountNow,
    Count,
    /// The interval is over.
    Interval,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Beat {
    /// Intervals that are over, and drains of the present one.
    intervals: u64,
    drains: u64,
}

impl Beat {
    /// At one more drain. `seldom`: they come a fourth as often.
    pub fn drained(&mut self, seldom: bool) -> Due {
        self.drains += 1;
        if self.drains == DRAINS {
            self.drains = 0;
            self.intervals += 1;
            return Due::Interval;
        }
        if self.drains != 1 {
            return Due::Nothing;
        }
        match self.intervals {
            0 => Due::CountNow,
            n if seldom || n < COUNTED_AT_FIRST || n.is_multiple_of(COUNTED_EVERY) => Due::Count,
            _ => Due::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is due at so many drains.
    fn drains(beat: &mut Beat, n: usize, seldom: bool) -> Vec<Due> {
        (0..n).map(|_| beat.drained(seldom)).collect()
    }

    fn count(due: &[Due], of: Due) -> usize {
        due.iter().filter(|due| **due == of).count()
    }

    #[test]
    fn the_first_interval_counts_at_once_and_later_ones_every_fourth() {
        let mut beat = Beat::default();
        assert_eq!(
            drains(&mut beat, 5, false),
            [
                Due::CountNow,
                Due::Nothing,
                Due::Nothing,
                Due::Interval,
                Due::Count
            ]
        );
        let mut beat = Beat::default();
        let first = drains(&mut beat, 40, false);
        assert_eq!(count(&first, Due::Interval), 10);
        assert_eq!(count(&first, Due::Count), 9);
        let later = drains(&mut beat, 160, false);
        assert_eq!(count(&later, Due::Interval), 40);
        assert_eq!(count(&later, Due::Count), 10);
    }

    #[test]
    fn seldom_drains_count_in_each_interval() {
        let mut beat = Beat::default();
        drains(&mut beat, 80, false);
        let seldom = drains(&mut beat, 40, true);
        assert_eq!(count(&seldom, Due::Interval), 10);
        assert_eq!(count(&seldom, Due::Count), 10);
    }
}
