//! What watching costs so far: the probes by the kernel's count, ourselves, and the host beside us.

use crate::{
    kernel::{Counted as CallsCounted, Probes, RunStats},
    record::{
        Record,
        fact::{CostSample, SpinCost},
    },
    source::own,
    time::KtimeNs,
};

use super::estimate::Estimate;

/// Run time of the probes, counted by the kernel in short windows.
pub struct Cost {
    /// CPU time that the host had used when the watch began.
    host_busy_ns: Option<u64>,
    window: Option<(KtimeNs, RunStats)>,
    /// Of all probes but those on system calls; and of these while all calls are counted, and while only some are: each on a clock of
    /// its own, which stands still while the other one goes.
    rest: Spread,
    calls: [Spread; 2],
    /// What those on system calls cost until the last sample, working nanoseconds.
    calls_ns: u64,
    windows_of_some: u32,
    /// What the probes cost from the beginning of the watch until the last sample, extrapolated.
    probes: Counted,
    /// Nanoseconds for a call that is not counted, once that was measured.
    ignored_call_ns: Option<f64>,
    /// What the estimate said, of all and of those on calls, when the kernel began to count no more.
    estimated_from: Option<(u64, u64)>,
}

/// What the probes cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub ns: u64,
    pub runs: u64,
    /// Of `ns`, in calls by which a thread gave up the CPU: time in which it had nothing to do. Libraries for linear algebra have
    /// their threads make a million such calls a second while they wait for the next product.
    pub spin_ns: u64,
}

impl Counted {
    /// What was counted between two readings: at system calls, and elsewhere.
    fn between(before: &RunStats, after: &RunStats, ignored_call_ns: Option<f64>) -> (Self, Self) {
        let more = |of: fn(&RunStats) -> u64| of(after).saturating_sub(of(before));
        let (ns, ends) = (more(|stats| stats.calls_ns), more(|stats| stats.ends));
        let beginnings = more(|stats| stats.beginnings);
        // Their beginnings were seen as often as those of other calls.
        let seen = 1.0 + beginnings as f64 / ends.max(1) as f64;
        // Who gave up the CPU to another thread made way for it; who had it again at once had nothing to do.
        let spun = more(|stats| stats.yields).saturating_sub(more(|stats| stats.switches));
        let ignored = ignored_call_ns.unwrap_or(0.0) * seen;
        let mut spin = spun as f64 * ignored;
        // Of a million such calls a second a few nanoseconds each are more than all the others take.
        if ignored > 0.0 && spun as f64 > SPINS * ends as f64 {
            let others = ends.saturating_sub(spun) as f64 * DEAREST_CALL * ignored;
            spin = spin.max(ns as f64 - others);
        }
        let calls = Self {
            ns,
            runs: ends + beginnings,
            spin_ns: (spin as u64).min(ns),
        };
        let rest = Self {
            ns: more(|stats| stats.ns).saturating_sub(ns),
            runs: more(|stats| stats.runs).saturating_sub(calls.runs),
            spin_ns: 0,
        };
        (calls, rest)
    }

    /// What lengthens work.
    pub fn working_ns(&self) -> u64 {
        self.ns.saturating_sub(self.spin_ns)
    }
}

impl std::ops::Add for Counted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            ns: self.ns + other.ns,
            runs: self.runs + other.runs,
            spin_ns: self.spin_ns + other.spin_ns,
        }
    }
}

/// For how long not all calls were counted until some time, nanoseconds; and in which of that time some were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    pub ns: u64,
    pub some_ns: u64,
}

impl Hidden {
    /// What came after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            ns: self.ns.saturating_sub(before.ns),
            some_ns: self.some_ns.saturating_sub(before.some_ns),
        }
    }

    /// The clocks of the two ways of counting calls at `now`.
    fn clocks(self, now: KtimeNs) -> [KtimeNs; 2] {
        [
            KtimeNs(now.0.saturating_sub(self.ns)),
            KtimeNs(self.some_ns),
        ]
    }
}

/// Where more than this part of the calls only give up the CPU, what they cost is not told exactly from what the others do; a call
/// costs no more than so many that are not counted (450 ns, with cold caches, for 45).
const SPINS: f64 = 0.2;
const DEAREST_CALL: f64 = 10.0;

/// A window renews a mean rate by this part: each is 20 ms of a job that may work in bursts.
const RENEWED: f64 = 0.3;

/// Windows of counting, each spread over the time since the one before: a busy moment at the beginning, where windows
/// are close together, does not stand for all of the watch.
#[derive(Debug)]
struct Spread {
    /// Until where `sum` goes.
    until: KtimeNs,
    sum: Counted,
    /// The last window, and its length in nanoseconds.
    last: Counted,
    last_ns: u64,
    counted_ns: u64,
    /// Working nanoseconds a second over the last windows.
    rate: Option<f64>,
}

impl Spread {
    fn from(at: KtimeNs) -> Self {
        Self {
            until: at,
            sum: Counted::default(),
            last: Counted::default(),
            last_ns: 0,
            counted_ns: 0,
            rate: None,
        }
    }

    fn window(&mut self, at: KtimeNs, counted: Counted, length_ns: u64) {
        if length_ns == 0 {
            return;
        }
        self.counted_ns += length_ns;
        (self.last, self.last_ns) = (counted, length_ns);
        let rate = counted.working_ns() as f64 * 1e9 / length_ns as f64;
        self.rate = Some(
            self.rate
                .map_or(rate, |mean| mean + RENEWED * (rate - mean)),
        );
        self.sum = self.at(at);
        self.until = at;
    }

    /// The sum until `at`, the last window's rate going on.
    fn at(&self, at: KtimeNs) -> Counted {
        let more = |n: u64| {
            let all = u128::from(n) * u128::from(at.since(self.until));
            (all / u128::from(self.last_ns.max(1))) as u64
        };
        Counted {
            ns: self.sum.ns + more(self.last.ns),
            runs: self.sum.runs + more(self.last.runs),
            spin_ns: self.sum.spin_ns + more(self.last.spin_ns),
        }
    }
}

impl Cost {
    /// Of a watch that began at `started`.
    pub fn begin(started: KtimeNs) -> Self {
        Self {
            host_busy_ns: own::host_busy_ns(),
            window: None,
            rest: Spread::from(started),
            calls: [Spread::from(started), Spread::from(KtimeNs(0))],
            calls_ns: 0,
            windows_of_some: 0,
            probes: Counted::default(),
            ignored_call_ns: None,
            estimated_from: None,
        }
    }

    /// The kernel counts from now on.
    pub fn begin_window(&mut self, probes: &Probes) {
        if self.ignored_call_ns.is_none() {
            self.ignored_call_ns = probes.ignored_call_ns();
        }
        self.window = Some((own::now(), probes.run_stats()));
    }

    /// How many windows told what calls cost while only some were counted.
    pub fn windows_of_some(&self) -> u32 {
        self.windows_of_some
    }

    /// It does so no longer; false when it did not. `counted`: which calls were counted all through the window.
    pub fn end_window(&mut self, after: RunStats, hidden: Hidden, counted: CallsCounted) -> bool {
        let Some((from, before)) = self.window.take() else {
            return false;
        };
        let (calls, rest) = Counted::between(&before, &after, self.ignored_call_ns);
        let now = own::now();
        let length = now.since(from);
        self.rest.window(now, rest, length);
        let way = match counted {
            CallsCounted::All => 0,
            CallsCounted::Touched => 1,
            CallsCounted::None => return true,
        };
        self.calls[way].window(hidden.clocks(now)[way], calls, length);
        // Beside threads that spin what is left is not exact.
        self.windows_of_some += u32::from(way == 1 && calls.spin_ns < calls.ns / 5);
        true
    }

    /// What they cost by the last windows while all, and while some are counted, working nanoseconds a second.
    pub fn call_rates(&self) -> [Option<f64>; 2] {
        self.calls.each_ref().map(|calls| calls.rate)
    }

    /// From now on the kernel counts no more.
    pub fn counts_no_more(&mut self, estimate: &Estimate) {
        self.estimated_from = Some(estimate.ns());
    }

    /// What the probes cost so far, and of that those on calls, working nanoseconds: by what the kernel counted, or as long as it
    /// counted nothing, and when it does no more, by an estimate.
    pub fn spent(&self, estimate: &Estimate) -> (u64, u64) {
        let estimated = estimate.ns();
        if self.rest.counted_ns == 0 {
            return estimated;
        }
        let counted = (self.probes.working_ns(), self.calls_ns);
        match self.estimated_from {
            Some(from) => (
                counted.0 + estimated.0.saturating_sub(from.0),
                counted.1 + estimated.1.saturating_sub(from.1),
            ),
            None => counted,
        }
    }

    /// What watching costs so far; of the probes what the windows of counting tell. `helpers_ns`: CPU time of our processes beside
    /// this one.
    pub fn sample(&mut self, hidden: Hidden, helpers_ns: u64) -> [Record; 2] {
        self.sample_at(own::now(), hidden, helpers_ns)
    }

    fn sample_at(&mut self, at: KtimeNs, hidden: Hidden, helpers_ns: u64) -> [Record; 2] {
        let counted_ns = self.rest.counted_ns;
        let [all, some] = hidden.clocks(at);
        let calls = self.calls[0].at(all) + self.calls[1].at(some);
        self.calls_ns = calls.working_ns();
        let known = (counted_ns > 0).then(|| self.rest.at(at) + calls);
        self.probes = known.unwrap_or_default();
        let (collector_cpu_ns, collector_rss_max_bytes) = own::usage();
        let spin = SpinCost {
            at,
            bpf_ns: self.ignored_call_ns.and(known).map(|probes| probes.spin_ns),
        };
        let cost = CostSample {
            at,
            bpf_ns: known.map(|probes| probes.ns),
            bpf_runs: known.map(|probes| probes.runs),
            counted_ns,
            host_busy_ns: own::host_busy_ns()
                .zip(self.host_busy_ns)
                .map(|(now, then)| now.saturating_sub(then)),
            collector_cpu_ns: collector_cpu_ns + helpers_ns,
            collector_rss_max_bytes,
        };
        [Record::SpinCost(spin), Record::Cost(cost)]
    }
}

#[cfg(test)]
mod tests {
    use super::{super::estimate::Seen, *};

    #[test]
    fn a_window_stands_for_the_time_since_the_one_before() {
        let at = |ms: u64| KtimeNs(ms * 1_000_000);
        let counted = |ns, runs| Counted {
            ns,
            runs,
            spin_ns: ns / 2,
        };
        let mut spread = Spread::from(at(1_000));
        // 20 ms of each: a busy one after a quarter of a second, then quiet ones.
        spread.window(at(1_250), counted(10_000_000, 10_000), 20_000_000);
        spread.window(at(2_250), counted(20_000, 20), 20_000_000);
        spread.window(at(6_250), counted(20_000, 20), 20_000_000);
        let sum = spread.at(at(11_250));
        assert_eq!(sum.ns, 125_000_000 + 1_000_000 + 4_000_000 + 5_000_000);
        assert_eq!(sum.runs, 125_000 + 1_000 + 4_000 + 5_000);
        assert_eq!(sum.spin_ns * 2, sum.ns);
        assert_eq!(spread.counted_ns, 60_000_000);
        spread.window(at(11_250), counted(1, 1), 0);
        assert_eq!(spread.at(at(11_250)).ns, sum.ns, "no time, no count");
    }

    #[test]
    fn what_calls_cost_that_only_give_up_the_cpu_lengthens_no_work() {
        let before = RunStats::default();
        let after = RunStats {
            ns: 2_300_000,
            runs: 31_000,
            ends: 20_000,
            beginnings: 10_000,
            yields: 16_500,
            switches: 500,
            calls_ns: 2_000_000,
        };
        let (calls, rest) = Counted::between(&before, &after, Some(50.0));
        // Half of their beginnings were seen too.
        assert_eq!(calls.spin_ns, 16_000 * 75);
        assert_eq!(calls.working_ns(), 800_000);
        assert_eq!((rest.ns, rest.runs, rest.spin_ns), (300_000, 1_000, 0));
        // Most of them spin: 3 500 others cost no more than 750 ns each.
        let spinning = RunStats {
            calls_ns: 5_000_000,
            ns: 5_300_000,
            ..after
        };
        let (calls, _) = Counted::between(&before, &spinning, Some(50.0));
        assert_eq!(calls.working_ns(), 4_000 * 750);
        let (unknown, _) = Counted::between(&before, &after, None);
        assert_eq!((unknown.spin_ns, unknown.working_ns()), (0, 2_000_000));
        let (dear, _) = Counted::between(&before, &after, Some(500.0));
        assert_eq!(dear.working_ns(), 0, "no more than all of it");
    }

    #[test]
    fn calls_cost_by_whether_they_are_counted() {
        let at = |ms: u64| KtimeNs(ms * 1_000_000);
        let stats = |calls_us: u64, all_us: u64| RunStats {
            ns: all_us * 1_000,
            calls_ns: calls_us * 1_000,
            ..RunStats::default()
        };
        let mut cost = Cost::begin(at(0));
        let hidden_for = |ms: u64| Hidden {
            ns: ms * 1_000_000,
            some_ns: ms * 1_000_000,
        };
        let mut window = |end_ms: u64, calls_us, hidden_ms: u64, hidden: usize| {
            let (calls, rest) =
                Counted::between(&stats(0, 0), &stats(calls_us, calls_us + 100), None);
            cost.rest.window(at(end_ms), rest, 20_000_000);
            let clocks = hidden_for(hidden_ms).clocks(at(end_ms));
            cost.calls[hidden].window(clocks[hidden], calls, 20_000_000);
        };
        // 20 ms each: half of a CPU while all are counted, a tenth while some are; 0.5 % for the rest.
        window(1_000, 10_000, 0, 0);
        window(3_000, 2_000, 1_000, 1);
        // Of 4 s, 1.5 s were hidden.
        let records = cost.sample_at(at(4_000), hidden_for(1_500), 1_000_000_000_000);
        let calls_ns = 2_500_000_000 / 2 + 150_000_000;
        assert_eq!(cost.calls_ns, calls_ns);
        assert_eq!(
            cost.spent(&Estimate::default()),
            (20_000_000 + calls_ns, calls_ns)
        );
        let Record::Cost(sample) = &records[1] else {
            panic!("{records:?}")
        };
        assert!(sample.collector_cpu_ns > 1_000_000_000_000, "{sample:?}");
        assert_eq!(cost.call_rates(), [Some(5e8), Some(1e8)]);
        assert_eq!(cost.probes.ns, 20_000_000 + calls_ns);
    }

    #[test]
    fn what_the_kernel_did_not_count_is_estimated_and_not_told_as_counted() {
        let mut cost = Cost::begin(KtimeNs(0));
        let mut estimate = Estimate::default();
        estimate.interval(&Seen {
            ns: 1_000_000_000,
            pace: 1_000,
            ..Seen::default()
        });
        let [_, Record::Cost(sample)] = cost.sample_at(KtimeNs(1), Hidden::default(), 0) else {
            panic!("no cost")
        };
        assert_eq!((sample.bpf_ns, sample.bpf_runs), (None, None));
        assert_eq!(cost.spent(&estimate), estimate.ns());
        assert!(cost.spent(&estimate).0 > 0);
    }
}
