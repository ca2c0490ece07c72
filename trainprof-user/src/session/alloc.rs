//! What windows on the allocators of a job tell: of each process, and lifetimes and call sites.

use std::collections::BTreeMap;

pub use super::{
    process_allocs::{ProcessAllocs, ThreadAllocs},
    rates::Estimate,
};
use super::{
    shares::{Part, Whole},
    strata::{Sizes, sizes},
};
use crate::record::{
    Record,
    fact::{
        AllocCalibrationFact, AllocFrame, AllocLifetimesFact, AllocSiteFact, AllocWindowFact,
        AllocatorFact, GovernorFact,
    },
};

/// Call sites that are kept; when there are more, the smaller half goes.
const MOST_SITES: usize = 4_096;

/// What windows saw of blocks that were followed.
#[derive(Clone, Copy, Debug, Default)]
struct Lived {
    /// Blocks and bytes.
    whole: (Whole, Whole),
    quick: (Part, Part),
    freed: (Part, Part),
    /// Blocks that were followed, each once.
    blocks: u64,
}

impl Lived {
    fn add(&mut self, fact: &AllocLifetimesFact) {
        // Each stands for so many.
        let times = f64::from(fact.one_in.max(1));
        let (blocks, bytes) = (
            fact.tracked as f64 * times,
            fact.tracked_bytes as f64 * times,
        );
        self.whole.0.add(blocks);
        self.whole.1.add(bytes);
        self.quick.0.add(fact.quick as f64 * times, blocks);
        self.quick.1.add(fact.quick_bytes as f64 * times, bytes);
        self.freed.0.add(fact.freed as f64 * times, blocks);
        self.freed.1.add(fact.freed_bytes as f64 * times, bytes);
        self.blocks += fact.tracked;
    }
}

/// Shares (0–1) of blocks, and of their bytes, that did not live long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShortLived {
    /// Given back within a millisecond.
    pub quick: Estimate,
    pub quick_bytes: Estimate,
    /// Given back before the window ended.
    pub freed: Estimate,
    pub freed_bytes: Estimate,
}

/// Sampled calls that came the same way.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiteSum {
    pub calls: u64,
    pub bytes: u64,
    /// Of the bytes of each call, all calls of one fact counting as equally large.
    pub squares: f64,
}

impl SiteSum {
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.squares += other.squares;
    }

    fn of(fact: &AllocSiteFact) -> Self {
        Self {
            calls: fact.count,
            bytes: fact.bytes,
            squares: (fact.bytes as f64).powi(2) / fact.count.max(1) as f64,
        }
    }
}

/// Where sampled calls came from: process, function, frames.
pub type SiteKey = (u32, String, Vec<AllocFrame>);

/// See the module.
#[derive(Default)]
pub struct AllocSeen {
    pub calibration: Option<AllocCalibrationFact>,
    /// For how long putting one probe in stops a thread; `None`: not told.
    pub opening_ns: Option<u64>,
    pub allocators: BTreeMap<u32, AllocatorFact>,
    pub processes: BTreeMap<u32, ProcessAllocs>,
    pub lifetimes: AllocLifetimesFact,
    lived: Lived,
    /// How many functions paired windows of each process probed, at most.
    followed: BTreeMap<u32, usize>,
    /// Bucket of nanoseconds to how many.
    pub lifetime_ns: BTreeMap<u8, u64>,
    pub sites: BTreeMap<SiteKey, SiteSum>,
    /// Of each process and function, those whose site is no longer kept too.
    pub sampled: BTreeMap<(u32, String), SiteSum>,
    pub governor: Option<GovernorFact>,
    /// What was left out at some time, and for how many nanoseconds.
    pub shed_ns: BTreeMap<String, u64>,
    pub windows: u32,
    /// Of these, those that ended early because a thread had called often enough.
    pub capped: u32,
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
            Record::OpeningPause { ns } => self.opening_ns = Some(*ns),
            Record::Allocator(fact) => {
                self.allocators.insert(fact.pid, fact.clone());
            }
            Record::AllocWindow(fact) => self.window(fact),
            Record::AllocSite(fact) => self.site(fact),
            Record::Governor(fact) => self.governor(fact),
            _ => {}
        }
    }

    /// What a fact tells holds until the next one.
    fn governor(&mut self, fact: &GovernorFact) {
        if let Some(before) = &self.governor {
            for name in &before.shed {
                *self.shed_ns.entry(name.clone()).or_default() += fact.at.since(before.at);
            }
        }
        self.governor = Some(fact.clone());
    }

    fn window(&mut self, fact: &AllocWindowFact) {
        if self.last_window != Some(fact.number) {
            self.windows += 1;
            self.capped += u32::from(fact.full);
            self.pause_ns += fact.pause_ns;
            self.last_window = Some(fact.number);
        }
        self.hits += fact.hits;
        self.job_ns += fact.job_ns;
        self.own_ns += fact.own_ns;
        self.lost += fact.lost;
        if let Some(lifetimes) = &fact.lifetimes {
            self.paired_windows += 1;
            self.follows(fact.pid, fact.functions.len());
            self.lived(lifetimes);
        }
        self.processes.entry(fact.pid).or_default().window(fact);
    }

    /// A paired window probes so many functions of a process. It is learned by windows which functions ask for much: those that followed fewer
    /// than this one tell of a part of the blocks only, and no longer count.
    fn follows(&mut self, pid: u32, functions: usize) {
        let most = self.followed.entry(pid).or_default();
        if functions > *most && *most > 0 {
            self.lived = Lived::default();
            self.lifetimes = AllocLifetimesFact::default();
            self.lifetime_ns.clear();
        }
        *most = (*most).max(functions);
    }

    fn lived(&mut self, fact: &AllocLifetimesFact) {
        self.lived.add(fact);
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
        let sampled = SiteSum::of(fact);
        let of = self.sampled.entry((fact.pid, fact.function.clone()));
        of.or_default().add(&sampled);
        let key = (fact.pid, fact.function.clone(), fact.frames.clone());
        self.sites.entry(key).or_default().add(&sampled);
        if self.sites.len() > MOST_SITES {
            let mut counts: Vec<u64> = self.sites.values().map(|sum| sum.calls).collect();
            counts.sort_unstable();
            let median = counts[counts.len() / 2];
            self.sites.retain(|_, sum| sum.calls > median);
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

    /// How often calls of the whole job asked for which size.
    pub fn sizes(&self, cpus: impl Fn(u32) -> f64) -> Sizes {
        let processes = self.processes.iter();
        // What a hit costs is another matter in each process.
        let compared = self.processes.len() == 1;
        sizes(processes.flat_map(|(pid, process)| process.size_strata(cpus(*pid), compared)))
    }

    /// Of the blocks that were followed; `None`: none was.
    pub fn short_lived(&self) -> Option<ShortLived> {
        let lived = &self.lived;
        let (blocks, bytes) = (&lived.whole.0, &lived.whole.1);
        let quick = lived.quick.0.of(blocks, lived.blocks)?;
        let freed = lived.freed.0.of(blocks, lived.blocks)?;
        // Blocks of no bytes have no share of them.
        let of_bytes = |part: &Part| part.of(bytes, lived.blocks).unwrap_or_default();
        Some(ShortLived {
            quick,
            quick_bytes: of_bytes(&lived.quick.1),
            freed,
            freed_bytes: of_bytes(&lived.freed.1),
        })
    }

    /// Share (0–1) of the bytes followed that were given back before their window ended.
    pub fn churn_share(&self) -> Option<Estimate> {
        let bytes = &self.lived.whole.1;
        self.lived.freed.1.of(bytes, self.lived.blocks)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::fact::AllocCallsFact, time::KtimeNs};

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
        assert!((0.42e6..0.44e6).contains(&rate.error), "{rate:?}");
        assert!((seen.bytes_per_s(|_| 0.5).expect("bytes").value - 0.5e8).abs() < 100.0);
        for number in 2..20 {
            seen.apply(&Record::AllocWindow(window(number, 5_000, 1_000.0)));
        }
        let many = seen.allocs_per_s(|_| 0.5).expect("a rate");
        // What is left is that the probes' cost is not known better.
        assert!((0.34e6..0.36e6).contains(&many.error), "{many:?}");
    }

    #[test]
    fn a_thread_has_its_part_of_each_function() {
        let mut seen = AllocSeen::default();
        // Two threads, one of which asks for larger blocks and calls half as often; functions are probed in turn.
        for number in 0..10 {
            let function = ["malloc", "calloc"][number as usize % 2];
            let mut fact = window(number, 4_000, 0.0);
            fact.functions = vec![function.to_owned()];
            fact.calls[0].function = function.to_owned();
            let mut other = fact.calls[0].clone();
            (other.tid, other.count, other.bytes) = (8, 2_000, 2_000 * 1_000);
            other.sizes = vec![(10, 2_000)];
            fact.calls.push(other);
            seen.apply(&Record::AllocWindow(fact));
        }
        let process = &seen.processes[&7];
        for (tid, calls, bytes, bucket) in [(7, 0.4e6, 0.4e8, 7), (8, 0.2e6, 2e8, 10)] {
            let thread = &process.threads[&tid];
            let rate = |of: Option<Estimate>| of.expect("a rate");
            // Each of two functions, at half of a CPU.
            let told = rate(process.thread_allocs_per_s(thread, 0.5));
            assert!((told.value / calls - 1.0).abs() < 1e-6, "{tid}: {told:?}");
            assert!(told.error > 0.0 && told.error < 0.05 * calls, "{told:?}");
            let told = rate(process.thread_bytes_per_s(thread, 0.5));
            assert!((told.value / bytes - 1.0).abs() < 1e-6, "{tid}: {told:?}");
            let sizes: Vec<(u8, u64, Estimate)> = process.thread_sizes(thread, 0.5);
            assert_eq!((sizes.len(), sizes[0].0), (1, bucket));
        }
        let shares: Vec<f64> = process.sizes(0.5).iter().map(|row| row.2.value).collect();
        assert!((shares[0] - 2.0 / 3.0).abs() < 1e-9, "{shares:?}");
        assert_eq!(seen.sizes(|_| 0.5).len(), 2);
    }

    #[test]
    fn lifetimes_are_of_windows_that_follow_all_that_asks_for_much() {
        let mut seen = AllocSeen::default();
        let mut add = |number, functions: &[&str], quick| {
            let lifetimes = AllocLifetimesFact {
                tracked: 100,
                tracked_bytes: 6_400,
                quick,
                one_in: 1,
                ..AllocLifetimesFact::default()
            };
            seen.apply(&Record::AllocWindow(AllocWindowFact {
                functions: functions.iter().map(|f| (*f).to_owned()).collect(),
                lifetimes: Some(lifetimes),
                ..window(number, 100, 0.0)
            }));
            seen.short_lived().expect("blocks").quick.value
        };
        // What lives long comes from malloc, and what does not from another function, which is not known at first.
        assert_eq!(add(1, &["malloc", "free"], 0), 0.0);
        let both = ["malloc", "mallocx", "free", "dallocx"];
        assert_eq!(add(2, &both, 75), 0.75);
        assert_eq!(add(3, &both, 75), 0.75);
        // It asked for less than one part in a hundred for a while.
        assert_eq!(add(4, &["malloc", "free"], 75), 0.75);
    }

    #[test]
    fn windows_that_a_thread_filled_are_counted() {
        let mut seen = AllocSeen::default();
        for (number, full) in [(1, false), (2, true), (2, true), (3, false)] {
            let fact = AllocWindowFact {
                full,
                ..window(number, 4_000, 0.0)
            };
            seen.apply(&Record::AllocWindow(fact));
        }
        assert_eq!((seen.windows, seen.capped), (3, 1));
    }

    #[test]
    fn nothing_seen_is_no_rate() {
        let seen = AllocSeen::default();
        assert_eq!(seen.allocs_per_s(|_| 1.0), None);
        assert_eq!(seen.churn_share(), None);
    }
}
