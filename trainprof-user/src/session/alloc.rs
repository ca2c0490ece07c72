//! What windows on allocators tell: rates with their error, sizes, lifetimes and call sites.

use std::collections::BTreeMap;

use crate::record::{
    Record,
    fact::{
        AllocCalibrationFact, AllocCallsFact, AllocFrame, AllocLifetimesFact, AllocSiteFact,
        AllocWindowFact, AllocatorFact, GovernorFact,
    },
};

/// By how much a probe's cost on the job may differ from what was measured on our own process: after each trap, Python's
/// many branches and a job's data are found again more slowly than in our own short loop (up to a third was seen; half, once, on a busy host).
const CALIBRATION_ERROR: f64 = 0.3;
/// Relative error of one window, as long as there are too few to tell: among 11 windows of 5 ms, of a job that made a million
/// calls a second on a busy virtual machine, rates had a standard deviation of 0.35 of their mean.
const UNKNOWN_SPREAD: f64 = 0.35;
const ENOUGH_WINDOWS: usize = 3;
/// A process is taken to have had at least this share of a window for itself.
const LEAST_OWN_SHARE: f64 = 0.05;
/// Call sites that are kept; when there are more, the smaller half goes.
const MOST_SITES: usize = 4_096;

/// A number that was estimated, and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub error: f64,
}

/// What one window says of one function, had it slowed nothing down.
#[derive(Clone, Copy, Debug)]
struct Rates {
    /// Seconds of CPU time that the process had for itself; or of the window, where that is not known.
    seconds: f64,
    /// Calls and bytes in them.
    calls: f64,
    bytes: f64,
    /// Relative error that slowing down leaves.
    slowed: f64,
    by_cpu: bool,
}

/// Windows of one process.
#[derive(Clone, Debug, Default)]
pub struct ProcessAllocs {
    /// Of the windows that probed it, by function.
    rates: BTreeMap<String, Vec<Rates>>,
    /// (Calls, bytes) of allocating functions by name, as counted.
    pub functions: BTreeMap<String, (u64, u64)>,
    pub sizes: BTreeMap<u8, u64>,
    /// (Calls, bytes) by thread.
    pub threads: BTreeMap<u32, (u64, u64)>,
    pub windows: u32,
    pub seconds: f64,
}

impl ProcessAllocs {
    fn estimate(&self, cpus: f64, of: impl Fn(&Rates) -> f64) -> Option<Estimate> {
        let functions = self.rates.values();
        functions
            .filter_map(|rates| estimate(rates, cpus, &of))
            .reduce(|sum, next| Estimate {
                value: sum.value + next.value,
                // They were seen in the same windows: what was wrong for one was so for all.
                error: sum.error + next.error,
            })
    }

    /// Allocations a second; `cpus`: CPU seconds that the process used a second, over the whole watch.
    pub fn allocs_per_s(&self, cpus: f64) -> Option<Estimate> {
        self.estimate(cpus, |rates| rates.calls)
    }

    pub fn bytes_per_s(&self, cpus: f64) -> Option<Estimate> {
        self.estimate(cpus, |rates| rates.bytes)
    }
}

/// A ratio estimate: what was counted over the time in which it was, by CPU time where that is known, since a window is too
/// short for a job's waiting to be typical in it.
fn estimate(rates: &[Rates], cpus: f64, of: &impl Fn(&Rates) -> f64) -> Option<Estimate> {
    let seconds: f64 = rates.iter().map(|rates| rates.seconds).sum();
    if seconds <= 0.0 {
        return None;
    }
    let per_second = rates.iter().map(of).sum::<f64>() / seconds;
    let counted: f64 = rates.iter().map(|rates| rates.calls).sum();
    let mean = |value: &dyn Fn(&Rates) -> f64| {
        rates.iter().map(|r| value(r) * r.seconds).sum::<f64>() / seconds
    };
    let slowed = mean(&|rates| rates.slowed);
    let by_cpu = rates.iter().all(|rates| rates.by_cpu);
    let spread = if rates.len() < ENOUGH_WINDOWS {
        UNKNOWN_SPREAD / (rates.len() as f64).sqrt()
    } else if per_second > 0.0 {
        // Standard error of a ratio (Cochran, Sampling Techniques, 6.4).
        let n = rates.len() as f64;
        let squares: f64 = rates
            .iter()
            .map(|rates| (of(rates) - per_second * rates.seconds).powi(2))
            .sum();
        (squares * n / (n - 1.0)).sqrt() / (seconds * per_second)
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

/// Where sampled calls came from: process, function, frames.
pub type SiteKey = (u32, String, Vec<AllocFrame>);

/// See the module.
#[derive(Default)]
pub struct AllocSeen {
    pub calibration: Option<AllocCalibrationFact>,
    pub allocators: BTreeMap<u32, AllocatorFact>,
    pub processes: BTreeMap<u32, ProcessAllocs>,
    pub lifetimes: AllocLifetimesFact,
    /// Bucket of nanoseconds to how many.
    pub lifetime_ns: BTreeMap<u8, u64>,
    /// Sampled (calls, bytes).
    pub sites: BTreeMap<SiteKey, (u64, u64)>,
    /// Sampled (calls, bytes) of each process, those whose site is no longer kept too.
    pub sampled: BTreeMap<u32, (u64, u64)>,
    pub governor: Option<GovernorFact>,
    pub windows: u32,
    pub paired_windows: u32,
    pub hits: u64,
    /// CPU time that hits took from the job, pauses at the closing of windows, CPU time of ours: nanoseconds.
    pub job_ns: u64,
    pub pause_ns: u64,
    pub own_ns: u64,
    pub lost: u64,
    last_window: Option<u32>,
}

impl AllocSeen {
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::AllocCalibration(fact) => self.calibration = Some(*fact),
            Record::Allocator(fact) => {
                self.allocators.insert(fact.pid, fact.clone());
            }
            Record::AllocWindow(fact) => self.window(fact),
            Record::AllocSite(fact) => self.site(fact),
            Record::Governor(fact) => self.governor = Some(fact.clone()),
            _ => {}
        }
    }

    fn window(&mut self, fact: &AllocWindowFact) {
        if self.last_window != Some(fact.number) {
            self.windows += 1;
            self.pause_ns += fact.pause_ns;
            self.last_window = Some(fact.number);
        }
        self.hits += fact.hits;
        self.job_ns += fact.job_ns;
        self.own_ns += fact.own_ns;
        self.lost += fact.lost;
        if let Some(lifetimes) = &fact.lifetimes {
            self.paired_windows += 1;
            self.lived(lifetimes);
        }
        let process = self.processes.entry(fact.pid).or_default();
        let seconds = fact.to.seconds_since(fact.from);
        process.windows += 1;
        process.seconds += seconds;
        for calls in fact.calls.iter().filter(|calls| calls.allocates) {
            let sums = [
                process.functions.entry(calls.function.clone()).or_default(),
                process.threads.entry(calls.tid).or_default(),
            ];
            for sum in sums {
                sum.0 += calls.count;
                sum.1 += calls.bytes;
            }
            for (bucket, count) in &calls.sizes {
                *process.sizes.entry(*bucket).or_default() += u64::from(*count);
            }
        }
        // A window in which the process had no CPU says nothing.
        if seconds > 0.0 && fact.cpu_ns != Some(0) {
            for function in &fact.functions {
                process
                    .rates
                    .entry(function.clone())
                    .or_default()
                    .push(rates(fact, function, seconds));
            }
        }
    }

    fn lived(&mut self, fact: &AllocLifetimesFact) {
        let sum = &mut self.lifetimes;
        let times = u64::from(fact.one_in.max(1));
        sum.tracked += fact.tracked * times;
        sum.tracked_bytes += fact.tracked_bytes * times;
        sum.freed += fact.freed * times;
        sum.freed_bytes += fact.freed_bytes * times;
        sum.quick += fact.quick * times;
        sum.quick_bytes += fact.quick_bytes * times;
        for (bucket, count) in &fact.ns {
            *self.lifetime_ns.entry(*bucket).or_default() += u64::from(*count) * times;
        }
    }

    fn site(&mut self, fact: &AllocSiteFact) {
        let all = self.sampled.entry(fact.pid).or_default();
        all.0 += fact.count;
        all.1 += fact.bytes;
        let key = (fact.pid, fact.function.clone(), fact.frames.clone());
        let sum = self.sites.entry(key).or_default();
        sum.0 += fact.count;
        sum.1 += fact.bytes;
        if self.sites.len() > MOST_SITES {
            let mut counts: Vec<u64> = self.sites.values().map(|(count, _)| *count).collect();
            counts.sort_unstable();
            let median = counts[counts.len() / 2];
            self.sites.retain(|_, (count, _)| *count > median);
        }
    }

    /// Of the whole job, as far as windows were opened. `cpus` gives the CPU seconds that a process used a second.
    pub fn allocs_per_s(&self, cpus: impl Fn(u32) -> f64) -> Option<Estimate> {
        sum(self
            .processes
            .iter()
            .filter_map(|(pid, process)| process.allocs_per_s(cpus(*pid))))
    }

    pub fn bytes_per_s(&self, cpus: impl Fn(u32) -> f64) -> Option<Estimate> {
        sum(self
            .processes
            .iter()
            .filter_map(|(pid, process)| process.bytes_per_s(cpus(*pid))))
    }

    /// Share (0–1) of the bytes followed that were given back before their window ended.
    pub fn churn_share(&self) -> Option<f64> {
        share(self.lifetimes.freed_bytes, self.lifetimes.tracked_bytes)
    }
}

/// `None` for parts of nothing.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64).min(1.0))
}

fn sum(estimates: impl Iterator<Item = Estimate>) -> Option<Estimate> {
    estimates.fold(None, |sum, next| {
        let sum: Estimate = sum.unwrap_or_default();
        Some(Estimate {
            value: sum.value + next.value,
            error: sum.error.hypot(next.error),
        })
    })
}

/// What a window says of a function: calls slowed their threads down, which would have made more of them.
fn rates(fact: &AllocWindowFact, function: &str, seconds: f64) -> Rates {
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
    let own = (time - lost).max(time * LEAST_OWN_SHARE);
    let of = |count: fn(&AllocCallsFact) -> u64| {
        fact.calls
            .iter()
            .filter(|calls| calls.function == function && calls.allocates)
            .map(count)
            .sum::<u64>() as f64
    };
    Rates {
        seconds: own,
        calls: of(|calls| calls.count),
        bytes: of(|calls| calls.bytes),
        slowed: CALIBRATION_ERROR * lost / own,
        by_cpu: fact.cpu_ns.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::KtimeNs;

    fn window(number: u32, count: u64, hit_ns: f64) -> AllocWindowFact {
        AllocWindowFact {
            number,
            pid: 7,
            from: KtimeNs(1_000),
            to: KtimeNs(10_001_000),
            full: false,
            hit_ns,
            functions: vec!["malloc".into()],
            cpu_ns: Some(10_000_000),
            calls: vec![AllocCallsFact {
                tid: 7,
                function: "malloc".into(),
                allocates: true,
                count,
                bytes: count * 100,
                sizes: vec![(7, count as u32)],
            }],
            stack_every: 64,
            lifetimes: None,
            lost: 0,
            sites: 5,
            hits: count,
            job_ns: 0,
            pause_ns: 1,
            own_ns: 0,
        }
    }

    #[test]
    fn what_probes_slowed_down_is_reckoned_back() {
        let mut seen = AllocSeen::default();
        // A million a CPU second, each 1 us longer: half of them; the process is on a CPU half of the time.
        seen.apply(&Record::AllocWindow(window(1, 5_000, 1_000.0)));
        let rate = seen.allocs_per_s(|_| 0.5).expect("a rate");
        assert!((rate.value - 0.5e6).abs() < 1.0, "{rate:?}");
        assert!((0.2e6..0.25e6).contains(&rate.error), "{rate:?}");
        assert!((seen.bytes_per_s(|_| 0.5).expect("bytes").value - 0.5e8).abs() < 100.0);
        for number in 2..20 {
            seen.apply(&Record::AllocWindow(window(number, 5_000, 1_000.0)));
        }
        let many = seen.allocs_per_s(|_| 0.5).expect("a rate");
        // What is left is that the probes' cost is not known better.
        assert!((0.14e6..0.16e6).contains(&many.error), "{many:?}");
    }

    #[test]
    fn nothing_seen_is_no_rate() {
        let seen = AllocSeen::default();
        assert_eq!(seen.allocs_per_s(|_| 1.0), None);
        assert_eq!(seen.churn_share(), None);
    }
}
