//! What the probes cost where the kernel does not tell: by how often they ran. Pure.

use super::Hidden;

/// A counted call, its end alone; a beginning that is shown costs as much again. A quarter more or less: docs/BENCHMARKS.md, `tiny`.
const CALL_NS: f64 = 250.0;
/// A switch of a followed thread, with what wakes it: between 320 (yield) and 690 (futex) there.
const SWITCH_NS: f64 = 330.0;
/// A call that is not counted while others are, as a part of one that is.
const UNCOUNTED_CALL: f64 = 0.5;
/// What is learned of the rates renews them by this part in an interval.
const RENEWED: f64 = 0.3;
/// Nothing is learned of an interval in which all calls were counted for less than this part of it.
const ENOUGH: f64 = 0.1;

/// What the probes saw in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Its length.
    pub ns: u64,
    /// Calls that were counted: of processes whose calls are noted one by one, and of all.
    pub touched: u64,
    pub all: u64,
    /// Counted calls and switches together.
    pub pace: u64,
    /// For how long not all calls were counted.
    pub hidden: Hidden,
    /// For how long beginnings of calls were hidden, nanoseconds.
    pub untimed_ns: u64,
}

/// Sums since the beginning, nanoseconds. Calls of processes outside the job, which cost them some 50 ns each, are not in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    probes: f64,
    calls: f64,
    /// What counting all calls takes, nanoseconds a second, and calls a second of those whose are not noted.
    all_rate: Option<f64>,
    others: f64,
}

impl Estimate {
    pub fn interval(&mut self, seen: &Seen) {
        let ns = seen.ns as f64;
        if ns <= 0.0 {
            return;
        }
        let counted = (ns - seen.hidden.ns as f64).max(0.0);
        let some = (seen.hidden.some_ns as f64).min(ns - counted);
        let shown = 1.0 - (seen.untimed_ns as f64 / ns).min(1.0);
        let call_ns = CALL_NS * (1.0 + shown);
        let others = seen.all.saturating_sub(seen.touched) as f64;
        if counted >= ENOUGH * ns {
            let touched_rate = seen.touched as f64 / (counted + some);
            let others_rate = others / counted;
            let rate = (touched_rate + others_rate) * 1e9 * call_ns;
            self.all_rate = Some(
                self.all_rate
                    .map_or(rate, |mean| mean + RENEWED * (rate - mean)),
            );
            self.others = others_rate;
        }
        let calls = seen.all as f64 * call_ns + self.others * some * UNCOUNTED_CALL * CALL_NS;
        let switches = seen.pace.saturating_sub(seen.all) as f64;
        self.calls += calls;
        self.probes += calls + switches * SWITCH_NS;
    }

    /// What all probes cost so far, and of that those on calls.
    pub fn ns(&self) -> (u64, u64) {
        (self.probes as u64, self.calls as u64)
    }

    /// What counting all calls takes, nanoseconds a second; `None`: not seen yet.
    pub fn all_calls_rate(&self) -> Option<f64> {
        self.all_rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A second of a job whose trainer makes 1 000 calls and whose others make a million, and of 10 000 switches.
    fn second(counted: f64, some: bool) -> Seen {
        let hidden = ((1.0 - counted) * SECOND as f64) as u64;
        let touched = if some {
            1_000
        } else {
            (1_000.0 * counted) as u64
        };
        let all = touched + (1e6 * counted) as u64;
        Seen {
            ns: SECOND,
            touched,
            all,
            pace: all + 10_000,
            hidden: Hidden {
                ns: hidden,
                some_ns: if some { hidden } else { 0 },
            },
            untimed_ns: SECOND,
        }
    }

    #[test]
    fn calls_and_switches_cost_by_their_number() {
        let mut estimate = Estimate::default();
        estimate.interval(&second(1.0, true));
        let calls = 1_001_000 * 250;
        assert_eq!(estimate.ns(), (calls + 10_000 * 330, calls));
        let rate = estimate.all_calls_rate().expect("a rate");
        assert!((rate - calls as f64).abs() < 1.0, "{rate}");
        // Where each beginning is shown, a call costs twice.
        let mut timed = Estimate::default();
        timed.interval(&Seen {
            untimed_ns: 0,
            ..second(1.0, true)
        });
        assert_eq!(timed.ns().1, 2 * calls);
    }

    #[test]
    fn in_turns_what_all_would_cost_stays_known() {
        for some in [true, false] {
            let mut estimate = Estimate::default();
            estimate.interval(&second(1.0, some));
            let whole = estimate.ns().1;
            let rate = estimate.all_calls_rate().expect("a rate");
            estimate.interval(&second(0.2, some));
            let part = (estimate.ns().1 - whole) as f64 / whole as f64;
            let expected = if some { 0.2 + 0.8 * 0.5 } else { 0.2 };
            assert!((part - expected).abs() < 0.01, "{some}: {part}");
            let after = estimate.all_calls_rate().expect("a rate");
            assert!((after / rate - 1.0).abs() < 0.01, "{some}: {after} {rate}");
            // Hardly counted: nothing is learned.
            estimate.interval(&Seen {
                all: 0,
                touched: 0,
                ..second(0.0, some)
            });
            assert_eq!(estimate.all_calls_rate(), Some(after));
        }
    }

    #[test]
    fn no_time_tells_nothing() {
        let mut estimate = Estimate::default();
        estimate.interval(&Seen::default());
        assert_eq!(estimate.ns(), (0, 0));
        assert_eq!(estimate.all_calls_rate(), None);
    }
}
