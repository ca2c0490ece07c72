//! When beginnings of system calls are shown. To show them costs each call of the host as much as to count it, so they
//! are shown for a short time again and again, the more rarely the more calls the job makes. Counts and bytes are exact at
//! any time: calls are counted at their end. Only their lengths in time are then those of a sample.

/// So many calls and switches of the job are timed in a second, on average: enough to tell percentiles of their lengths
/// within seconds, at some 0.2 % of a CPU.
const TIMED: u64 = 3_000;
/// Above so many calls and switches in a second beginnings are hidden at once, and looks lie close together.
const MANY: u64 = 150_000;
/// Below so many for [`QUIET`] looks in a row looks may lie farther apart again.
const FEW: u64 = 100_000;
const QUIET: u32 = 6;
/// Beginnings are shown from one look to the next once in so many looks, at least. Odd numbers of looks are no divisors
/// of a second: the cost of the probes is measured once a second, and must not meet the same state each time.
const RAREST: u64 = 59;
/// After so many looks at few calls, looks may lie farther apart.
const CALM_AFTER: u32 = 25;
const SECOND_NS: u64 = 1_000_000_000;

/// Decides at looks: some 40 ms apart while there are very many calls, 250 ms otherwise.
#[derive(Debug, Default)]
pub struct Entries {
    /// Kernel time and number of calls at the last look.
    last: Option<(u64, u64)>,
    /// Whether there are very many calls.
    many: bool,
    quiet: u32,
    /// Looks since there were many, or since the beginning.
    calm: u32,
    /// Looks since beginnings were last shown.
    since_shown: u64,
    hidden: bool,
    /// Only some calls are counted, and told until this time.
    paused: Option<u64>,
    /// The kernel would not show them again.
    refused: bool,
    /// Nanoseconds for which they were hidden since [`Self::take_hidden`].
    hidden_ns: u64,
}

impl Entries {
    /// `calls` were made until `at` (kernel time, ns). Whether beginnings are to be shown from now on.
    pub fn look(&mut self, at: u64, calls: u64) -> bool {
        if let Some(then) = self.paused.take() {
            self.hidden_ns += at.saturating_sub(then);
        }
        let Some((then, before)) = self.last.replace((at, calls)) else {
            return !self.hidden;
        };
        let ns = at.saturating_sub(then);
        if ns == 0 {
            return !self.hidden;
        }
        if self.hidden {
            self.hidden_ns += ns;
        }
        let rate = calls.saturating_sub(before).saturating_mul(SECOND_NS) / ns;
        self.quiet = if rate < FEW { self.quiet + 1 } else { 0 };
        self.many = rate > MANY || (self.many && self.quiet < QUIET);
        self.calm = if self.many {
            0
        } else {
            self.calm.saturating_add(1)
        };
        self.since_shown += 1;
        self.hidden = self.refused || self.since_shown < self.one_in(rate);
        if !self.hidden {
            self.since_shown = 0;
        }
        !self.hidden
    }

    /// At such a rate beginnings are shown from one look to the next once in so many looks.
    fn one_in(&self, rate: u64) -> u64 {
        if !self.many && !self.calm() {
            return 1;
        }
        match rate / TIMED {
            0 | 1 => 1,
            times => (times | 1).min(RAREST),
        }
    }

    /// Not all calls are counted from `at` on: they tell no rate, and none is timed. `some`: some are counted.
    pub fn pause(&mut self, at: u64, some: bool) {
        let since = self
            .paused
            .or(self.last.map(|(then, _)| then).filter(|_| self.hidden));
        if let Some(then) = since {
            self.hidden_ns += at.saturating_sub(then);
        }
        self.last = None;
        self.paused = some.then_some(at);
    }

    /// Whether there are very many calls.
    pub fn many(&self) -> bool {
        self.many
    }

    /// Whether there have not been very many calls for a while: then looks may lie farther apart.
    pub fn calm(&self) -> bool {
        self.calm >= CALM_AFTER
    }

    /// Beginnings could not be shown: they stay hidden.
    pub fn refused(&mut self) {
        self.refused = true;
        self.hidden = true;
    }

    /// For how many nanoseconds beginnings were hidden since the last call, up to the last look.
    pub fn take_hidden(&mut self) -> u64 {
        std::mem::take(&mut self.hidden_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 40_000_000;

    /// Looks at a steady rate; what was decided each time.
    fn looks(entries: &mut Entries, now: &mut (u64, u64), rate: u64, n: usize) -> Vec<bool> {
        (0..n)
            .map(|_| {
                now.0 += LOOK;
                now.1 += rate * LOOK / SECOND_NS;
                entries.look(now.0, now.1)
            })
            .collect()
    }

    #[test]
    fn few_calls_are_shown_whole() {
        let (mut entries, mut now) = (Entries::default(), (0, 0));
        assert!(
            looks(&mut entries, &mut now, 2 * TIMED - 1, 200)
                .iter()
                .all(|shown| *shown)
        );
        assert_eq!(entries.take_hidden(), 0);
        assert!(entries.calm());
    }

    #[test]
    fn what_was_refused_stays_hidden() {
        let (mut entries, mut now) = (Entries::default(), (0, 0));
        looks(&mut entries, &mut now, 1_000_000, 2);
        entries.refused();
        let shown = looks(&mut entries, &mut now, 1_000, 100);
        assert!(!shown.iter().any(|shown| *shown));
        assert_eq!(entries.take_hidden(), 100 * LOOK);
    }

    #[test]
    fn the_more_calls_the_more_rarely_they_are_timed() {
        let shown_of = |rate: u64| {
            let (mut entries, mut now) = (Entries::default(), (0, 0));
            let start = looks(&mut entries, &mut now, rate, CALM_AFTER as usize);
            assert_eq!(start.iter().all(|shown| *shown), rate < MANY, "{rate}");
            let looks = looks(&mut entries, &mut now, rate, 59 * 20);
            looks.iter().filter(|shown| **shown).count()
        };
        assert_eq!(shown_of(5_000), 59 * 20);
        // 17 000 / 3 000, made odd.
        assert_eq!(shown_of(17_000), 59 * 20 / 5);
        assert_eq!(shown_of(120_000), 59 * 20 / 41);
        assert_eq!(shown_of(1_200_000), 20);
    }

    #[test]
    fn a_pause_tells_no_rate_and_hides_nothing() {
        let (mut entries, mut now) = (Entries::default(), (0, 0));
        looks(&mut entries, &mut now, 1_000_000, 3);
        assert_eq!(entries.take_hidden(), LOOK);
        entries.pause(now.0 + LOOK, false);
        assert_eq!(entries.take_hidden(), LOOK, "until it began");
        now.0 += 100 * LOOK;
        entries.pause(now.0, false);
        let shown = looks(&mut entries, &mut now, 1_000_000, 2);
        assert_eq!((shown, entries.many()), (vec![false, false], true));
        assert_eq!(entries.take_hidden(), LOOK);
    }

    #[test]
    fn what_is_counted_in_a_pause_is_not_timed() {
        let (mut entries, mut now) = (Entries::default(), (0, 0));
        looks(&mut entries, &mut now, 1_000, 3);
        for _ in 0..4 {
            now.0 += LOOK;
            entries.pause(now.0, true);
        }
        assert_eq!(entries.take_hidden(), 3 * LOOK);
        assert_eq!(looks(&mut entries, &mut now, 1_000, 1), [true]);
        assert_eq!(entries.take_hidden(), LOOK);
    }

    #[test]
    fn many_are_sampled_until_there_are_few() {
        let (mut entries, mut now) = (Entries::default(), (0, 0));
        let shown = looks(&mut entries, &mut now, 1_000_000, 1 + 10 * RAREST as usize);
        assert_eq!(shown[..2], [true, false], "the first look has no rate");
        assert!(!entries.calm());
        assert_eq!(shown.iter().filter(|shown| **shown).count(), 1 + 10);
        assert_eq!(
            entries.take_hidden(),
            LOOK * (10 * RAREST - 1 - 9),
            "all but the look that hid them and those of the sample"
        );
        looks(&mut entries, &mut now, 120_000, 3);
        assert!(!entries.calm(), "between the rates");
        let shown = looks(&mut entries, &mut now, 1_000, QUIET as usize);
        assert!(shown.iter().all(|shown| *shown), "few enough for each");
        looks(&mut entries, &mut now, 1_000, CALM_AFTER as usize);
        assert!(entries.calm());
    }
}
