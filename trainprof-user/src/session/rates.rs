//! How often a process allocates, by what windows of probes counted of it.

use super::{
    dearer::{self, Dearer, Seen},
    few::residual_error,
};
use crate::record::fact::{AllocCallsFact, AllocWindowFact};

/// Relative error of one window, as long as there are too few to tell: among 11 windows of 5 ms, of a job that made a million
/// calls a second on a busy virtual machine, rates had a standard deviation of 0.35 of their mean; one beside other tests told half of the truth.
pub(super) const UNKNOWN_SPREAD: f64 = 0.5;
pub(super) const ENOUGH_WINDOWS: usize = 3;
/// A process is taken to have had at least this share of a window for itself.
const LEAST_OWN_SHARE: f64 = 0.05;
/// A number that was estimated, and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub error: f64,
}

/// What one window says of one function.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// CPU time of the process; or of the window, where that is not known.
    pub seen: Seen,
    /// Bytes of its calls.
    pub bytes: f64,
    by_cpu: bool,
    /// Every call was trapped two or three times.
    paired: bool,
}

impl Rates {
    /// Seconds that the process had for itself, where a hit costs so many times what was calibrated.
    fn own(&self, factor: f64) -> f64 {
        let Seen { time, lost, .. } = self.seen;
        (time - factor * lost).max(time * LEAST_OWN_SHARE)
    }
}

/// What a window says of a function: calls slowed their threads down, which would have made more of them.
pub fn rates(fact: &AllocWindowFact, function: &str, seconds: f64) -> Rates {
    let all: u64 = fact.calls.iter().map(|calls| calls.count).sum();
    let threads: std::collections::BTreeSet<u32> =
        fact.calls.iter().map(|calls| calls.tid).collect();
    let time = fact.cpu_ns.map_or(seconds, |ns| ns as f64 / 1e9);
    // Without CPU time, each thread is taken to have lost an equal part of the window.
    let hits = match fact.cpu_ns {
        Some(_) => all as f64,
        None => all as f64 / threads.len().max(1) as f64,
    };
    let lost = hits * fact.hit_ns / 1e9;
    let of = |count: fn(&AllocCallsFact) -> u64| {
        fact.calls
            .iter()
            .filter(|calls| calls.function == function && calls.allocates)
            .map(count)
            .sum::<u64>() as f64
    };
    Rates {
        seen: Seen {
            time,
            lost,
            hits: all as f64,
            calls: of(|calls| calls.count),
        },
        bytes: of(|calls| calls.bytes),
        by_cpu: fact.cpu_ns.is_some(),
        paired: fact.lifetimes.is_some(),
    }
}

/// A ratio estimate: what was counted over the time in which it was, by CPU time where that is known, since a window is too
/// short for a job's waiting to be typical in it.
///
/// Where calls are paired with releases, probes take most of the time, and what is left of it is as uncertain as what a hit costs: such windows say what that is,
/// and rates themselves only where no others counted any.
///
/// `dearer`: what a hit costs in the process.
pub fn estimate(
    rates: &[Rates],
    dearer: Dearer,
    cpus: f64,
    of: &impl Fn(&Rates) -> f64,
) -> Option<Estimate> {
    let plain: Vec<Rates> = rates.iter().copied().filter(|r| !r.paired).collect();
    let counted = |rates: &[Rates]| rates.iter().map(|rates| rates.seen.calls).sum::<f64>();
    let rates = if counted(&plain) > 0.0 { &plain } else { rates };
    let own = |rates: &Rates| rates.own(dearer.factor);
    let seconds: f64 = rates.iter().map(own).sum();
    if seconds <= 0.0 {
        return None;
    }
    let per_second = rates.iter().map(of).sum::<f64>() / seconds;
    let counted = counted(rates);
    let slowed = dearer.error * slowed(rates, dearer.factor);
    let by_cpu = rates.iter().all(|rates| rates.by_cpu);
    let spread = if rates.len() < ENOUGH_WINDOWS {
        UNKNOWN_SPREAD / (rates.len() as f64).sqrt()
    } else if per_second > 0.0 {
        let squares: f64 = rates
            .iter()
            .map(|rates| (of(rates) - per_second * own(rates)).powi(2))
            .sum();
        residual_error(squares, rates.len()) / (seconds * per_second)
    } else {
        0.0
    };
    let counting = 1.0 / counted.max(1.0).sqrt();
    let relative = (spread.powi(2) + counting.powi(2) + slowed.powi(2)).sqrt();
    let value = per_second * if by_cpu { cpus } else { 1.0 };
    Some(Estimate {
        value,
        error: value * relative,
    })
}

/// What a hit costs by the windows of a function.
pub fn dearer(rates: &[Rates]) -> Dearer {
    let seen: Vec<Seen> = rates.iter().map(|rates| rates.seen).collect();
    dearer::dearer(&seen)
}

/// What probes took by calibration, as a part of the time that was left where a hit costs so many times that.
pub fn slowed(rates: &[Rates], factor: f64) -> f64 {
    let lost: f64 = rates.iter().map(|rates| rates.seen.lost).sum();
    lost / rates.iter().map(|rates| rates.own(factor)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of so many seconds of a thread that calls 350 000 times a second of its own; each of `hits` hits a call costs it `truly`
    /// microseconds, where `reckoned` are known.
    fn window(seconds: f64, hits: f64, truly: f64, reckoned: f64) -> Rates {
        let calls = seconds / (1.0 / 350e3 + hits * truly * 1e-6);
        Rates {
            seen: Seen {
                time: seconds,
                lost: calls * hits * reckoned * 1e-6,
                hits: calls * hits,
                calls,
            },
            bytes: calls * 64.0,
            by_cpu: true,
            paired: hits > 1.0,
        }
    }

    #[test]
    fn windows_that_probes_take_most_of_tell_no_rates_beside_others() {
        // A paired call costs less than it is reckoned with, as often as not.
        let mut all = vec![window(0.1, 2.0, 1.1, 1.7), window(0.06, 2.0, 1.9, 1.7)];
        let told = |all: &[Rates]| {
            estimate(all, dearer(all), 1.0, &|rates| rates.seen.calls).expect("a rate")
        };
        let alone = told(&all);
        assert!((alone.value / 350e3 - 1.0).abs() > 0.1, "{alone:?}");
        // One in which it was not called does not tell that it never is.
        let mut empty = window(0.005, 1.0, 0.85, 0.85);
        (
            empty.seen.hits,
            empty.seen.calls,
            empty.seen.lost,
            empty.bytes,
        ) = (0.0, 0.0, 0.0, 0.0);
        let with_empty = told(&[&all[..], &[empty]].concat());
        assert!(with_empty.value > 100e3, "{with_empty:?}");
        let with_one = told(&[&all[..], &[window(0.005, 1.0, 0.85, 0.85)]].concat());
        assert!((with_one.value / 350e3 - 1.0).abs() < 0.1, "{with_one:?}");
        assert!(with_one.error > 0.4 * with_one.value, "{with_one:?}");
        for seconds in [0.005, 0.01, 0.009, 0.006] {
            all.push(window(seconds, 1.0, 0.85, 0.85));
        }
        let beside = told(&all);
        assert!((beside.value / 350e3 - 1.0).abs() < 0.1, "{beside:?}");
        assert!(beside.error < 0.2 * beside.value, "{beside:?}");
    }
}
