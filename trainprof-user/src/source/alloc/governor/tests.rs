//! The governor against a modelled job: whatever the job's rate does, what is spent stays within the budget.

mod shedding;

use proptest::prelude::*;

use super::{
    super::window::{Candidate, Outcome, Plan, Room, Wish, longest},
    windows::{HORIZON_NS, LENT_WINDOWS, TELLING, THREAD_SHARE},
    *,
};

const SECOND: u64 = 1_000_000_000;
const COSTS: Costs = Costs {
    emulated_ns: 670.0,
    stepped_ns: 9_100.0,
    return_ns: 490.0,
    run_ns: 200.0,
    pause_ns: 4_000_000,
    linger_ns: 0,
    removal_ns: 0,
    outside_ns: 20_000_000,
    own_ns: 1_000_000,
};

/// As measured where probes go all at once.
const TOGETHER: Costs = Costs {
    pause_ns: 100_000,
    outside_ns: 4_000_000,
    ..COSTS
};

/// What starting took, nanoseconds.
const START: u64 = 200_000_000;

/// One busy thread on one CPU that allocates at a rate which may change, calling every function equally often.
struct Job {
    now: u64,
    governor: Governor,
    costs: Costs,
    /// How many times as long as on our own process a hit takes.
    slower: f64,
    /// What hits took of the job, nanoseconds.
    took: f64,
    /// (end, what was added to the thread) of each window.
    added: Vec<(u64, u64)>,
    opened: u32,
    paired: u32,
    /// In every third window it does nothing but allocate.
    bursts: bool,
    /// Of a thousand clock samples, those in its allocator.
    in_allocator: u64,
    /// By how much the budget was overdrawn after a window that nothing was lent for, at most, nanoseconds.
    overdrawn: f64,
}

impl Job {
    fn new(budget: f64) -> Self {
        Self::with(budget, COSTS)
    }

    fn with(budget: f64, costs: Costs) -> Self {
        let mut governor = Governor::new(budget);
        governor.started(START);
        governor.calibrated(costs);
        Self {
            now: SECOND,
            governor,
            costs,
            slower: 1.0,
            took: 0.0,
            added: Vec::new(),
            opened: 0,
            paired: 0,
            bursts: false,
            in_allocator: 200,
            overdrawn: f64::NEG_INFINITY,
        }
    }

    /// Runs for so many seconds. `fixed`: share of a CPU that the watch takes beside windows.
    fn run(&mut self, seconds: u64, rate: f64, fixed: f64, stepped: bool, random: &mut u64) {
        for tick in 0..seconds * 4 {
            self.now += SECOND / 4;
            if tick % 4 == 3 {
                self.governor.interval(&Load {
                    seconds: 1.0,
                    job_cpu_ns: SECOND,
                    probes_ns: (fixed * 0.5e9) as u64,
                    own_ns: (fixed * 0.5e9) as u64,
                    samples: 99,
                    ..Load::default()
                });
            }
            *random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let candidate = Candidate {
                pid: 7,
                cpu_ns: self.now,
                cpus: 1.0,
                samples: 1_000,
                in_allocator: self.in_allocator,
                sites: 5,
                stepped: if stepped { 5 } else { 0 },
            };
            if let Some(plan) = self
                .governor
                .decide(KtimeNs(self.now), &[candidate], *random >> 33)
            {
                self.window(&plan, rate, stepped);
            }
        }
    }

    fn window(&mut self, plan: &Plan, rate: f64, stepped: bool) {
        let burst = self.bursts && self.opened % 3 == 2;
        let rate = if burst { 1e8 } else { rate };
        let costs = self.costs.where_hits_are(self.slower);
        let entry = if stepped {
            costs.stepped_ns
        } else {
            costs.emulated_ns
        };
        let call_ns = if plan.paired {
            2.0 * entry + costs.return_ns
        } else {
            entry
        };
        let trapped = rate / (1.0 + rate * call_ns / 1e9);
        let length = f64::from(plan.length_us) / 1e6;
        let functions = if plan.paired {
            1
        } else {
            u64::from(plan.max_sites)
        };
        let calls = ((trapped * length) as u64).min(plan.max_calls * functions);
        let outside = (trapped * self.costs.outside_ns as f64 / 1e9) as u64;
        let counted_s = (calls as f64 / trapped).min(length);
        let entries = (calls + outside) * if plan.paired { 2 } else { 1 };
        let outcome = Outcome {
            pid: plan.pid,
            counted_s,
            calls: if plan.paired { calls * 2 } else { calls },
            worst_calls: if plan.paired { calls * 2 } else { calls },
            emulated: if stepped { 0 } else { entries },
            stepped: if stepped { entries } else { 0 },
            returns: if plan.paired { calls + outside } else { 0 },
            run_ns: (!plan.paired).then_some(costs.run_ns * self.slower),
            sites: if plan.paired { 2 } else { plan.max_sites },
            own_ns: if self.opened == 0 {
                10_000_000
            } else {
                2_500_000
            },
            paired: plan.paired,
        };
        self.took += (calls + outside) as f64 * call_ns;
        self.now += 300_000_000;
        let spent = self.governor.closed(KtimeNs(self.now), &outcome);
        self.added.push((self.now, spent.thread_ns));
        self.opened += 1;
        self.paired += u32::from(plan.paired);
        if self.opened > LENT_WINDOWS {
            self.overdrawn = self.overdrawn.max(self.over());
        }
    }

    /// By how much the budget is overdrawn, nanoseconds.
    fn over(&self) -> f64 {
        self.spent() - self.governor.budget * self.governor.totals.job_ns as f64
    }

    /// The most that was added to the thread in any ten seconds.
    fn worst(&self) -> u64 {
        self.added
            .iter()
            .map(|(end, _)| {
                self.added
                    .iter()
                    .filter(|(at, _)| at <= end && end - at < HORIZON_NS)
                    .map(|(_, ns)| ns)
                    .sum()
            })
            .max()
            .unwrap_or(0)
    }

    /// What it all cost so far, nanoseconds.
    fn spent(&self) -> f64 {
        self.governor.totals.spent_ns() as f64
    }
}

#[test]
fn the_budget_holds_while_the_rate_rises_from_ten_thousand_to_five_million() {
    rising(COSTS, 15, 1);
    rising(TOGETHER, 60, 10);
}

#[test]
fn who_allocates_little_is_looked_at_until_its_rate_is_known_where_that_costs_little_of_the_budget()
{
    let mut generous = Job::new(0.25);
    generous.in_allocator = 5;
    generous.run(59, 3e5, 0.005, false, &mut 1);
    assert_eq!(generous.opened, TELLING);
    generous.run(121, 3e5, 0.005, false, &mut 1);
    assert_eq!(generous.opened, TELLING + 2, "then once a minute");
    let mut usual = Job::new(0.01);
    usual.in_allocator = 5;
    usual.run(30, 3e5, 0.008, false, &mut 1);
    assert_eq!(usual.opened, 1);
}

#[test]
fn what_the_jobs_own_data_makes_dearer_is_reckoned_with() {
    let mut job = Job::with(0.01, TOGETHER);
    job.slower = 1.8;
    job.run(120, 1e6, 0.002, false, &mut 1);
    let totals = &job.governor.totals;
    assert!(job.opened >= 10 && job.paired > 0, "{}", job.opened);
    assert!(
        totals.windows_ns as f64 > job.took,
        "{} of {}",
        totals.windows_ns,
        job.took
    );
    assert!(job.over() <= 0.0, "{}", job.over());
    assert!(job.worst() <= 100_000_000, "{}", job.worst());
}

#[test]
fn a_run_that_says_nothing_changes_no_cost() {
    for run_ns in [0.0, 50.0, COSTS.run_ns] {
        assert_eq!(COSTS.where_hits_are(COSTS.slower(run_ns)), COSTS);
    }
    assert_eq!(COSTS.slower(1.5 * COSTS.run_ns), 1.5);
    assert!(COSTS.slower(1e9) < 10.0);
}

/// `windows` and `paired`: how many there are at least.
fn rising(costs: Costs, windows: u32, paired: u32) {
    let mut job = Job::with(0.01, costs);
    let mut random = 1;
    for rate in [1e4, 1e5, 1e6, 2e6, 5e6] {
        job.run(60, rate, 0.002, false, &mut random);
        assert!(job.over() <= 0.0, "{} at {rate}", job.over());
    }
    assert!(job.worst() <= 100_000_000, "{}", job.worst());
    assert!(job.opened >= windows, "{} windows", job.opened);
    assert!(job.paired >= paired, "{} paired", job.paired);
}

#[test]
fn the_start_is_paid_for_and_then_the_sum_stays_below_the_budget() {
    for costs in [COSTS, TOGETHER] {
        for (rate, fixed) in [(1e4, 0.002), (1e6, 0.005), (5e6, 0.003)] {
            let mut job = Job::with(0.01, costs);
            let mut random = 3;
            let mut below = None;
            for second in 1..=400 {
                job.run(1, rate, fixed, false, &mut random);
                if below.is_some() {
                    assert!(job.over() <= 0.0, "{} after {second} s", job.over());
                } else if job.over() <= 0.0 {
                    below = Some(second);
                } else {
                    assert!(job.opened <= LENT_WINDOWS, "{second} s: {}", job.opened);
                }
                if second == 10 {
                    assert!(job.opened >= 1, "a short watch has a window");
                }
            }
            // The formula of docs/ARCHITECTURE.md.
            let owed = START as f64 / 1e9 + 0.01 * LENT_S;
            let soon = owed / (0.01 - fixed);
            let below = f64::from(below.expect("below the budget"));
            assert!(below <= soon + 1.0, "{below} s of {soon} s at {rate}");
            assert!(job.opened > 10, "{} at {rate}", job.opened);
        }
    }
}

#[test]
fn paying_for_the_start_gives_up_no_windows() {
    let mut governor = Governor::new(0.01);
    governor.started(2 * START);
    governor.calibrated(COSTS);
    let (all, part, rest) = (0.003, 0.25, 0.005);
    let mut counted_at_first = 1.0_f64;
    for second in 0..400 {
        let share = governor.calls_share();
        let calls = (share + (1.0 - share) * part) * all;
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: SECOND,
            probes_ns: (calls * 1e9) as u64,
            own_ns: (rest * 1e9) as u64,
            calls_ns: (calls * 1e9) as u64,
            all_calls_rate: Some(all * 1e9),
            hidden_calls: Some(part),
            ..Load::default()
        });
        assert!(!governor.shed().contains(&Shed::Windows), "{second} s");
        if second < 20 {
            counted_at_first = counted_at_first.min(governor.calls_share());
        }
    }
    assert!((0.1..0.9).contains(&counted_at_first), "{counted_at_first}");
    assert_eq!(governor.calls_share(), 1.0, "paid for");
}

#[test]
fn what_is_done_once_later_is_part_of_the_start() {
    let mut governor = Governor::new(0.01);
    governor.started(START);
    let load = Load {
        seconds: 1.0,
        job_cpu_ns: SECOND,
        own_ns: 2_000_000,
        ..Load::default()
    };
    governor.interval(&load);
    governor.interval(&Load {
        once_ns: 60_000_000,
        ..load
    });
    assert_eq!(governor.fixed_rate, 2e6, "says nothing of what follows");
    // A window under way: it tells itself what it took.
    for once_ns in [5_000_000, -5_000_000] {
        governor.interval(&Load { once_ns, ..load });
    }
    assert_eq!(governor.totals.own_ns, 68_000_000);
    assert_eq!(governor.start, 260e6);
    assert_eq!(governor.balance, 40e6 - 268e6);
}

#[test]
fn the_first_window_of_a_process_may_cost_twice_what_was_expected() {
    for costs in [COSTS, TOGETHER] {
        let mut governor = Governor::new(0.01);
        governor.calibrated(costs);
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: 100 * SECOND,
            ..Load::default()
        });
        let candidate = Candidate {
            pid: 1,
            cpu_ns: 100 * SECOND,
            cpus: 1.0,
            samples: 1_000,
            in_allocator: 500,
            sites: 5,
            stepped: 0,
        };
        let plan = governor.decide(KtimeNs(SECOND), &[candidate], 1);
        let plan = plan.expect("a window");
        let probes = u64::from(plan.max_sites);
        let added =
            u64::from(plan.length_us) * 1_000 + probes * (costs.outside_ns + costs.pause_ns);
        let limit = (THREAD_SHARE * HORIZON_NS as f64) as u64;
        assert!(2 * added <= limit, "{added} of {limit}: {plan:?}");
    }
}

/// The window on a process that calls so often, of whose five functions so many are single-stepped, where so much (ns) is left for its
/// thread.
fn planned(rate: f64, stepped: u32, left: f64) -> Option<Plan> {
    let chosen = Candidate {
        pid: 1,
        cpu_ns: 100 * SECOND,
        cpus: 1.0,
        samples: 1_000,
        in_allocator: 500,
        sites: 5,
        stepped,
    };
    let wish = Wish {
        rate: Some(rate),
        first: false,
        paired: false,
        stacks: false,
    };
    let room = Room {
        thread_limit: 1e8,
        thread_most: left,
        thread_left: left,
        saved: 1e12,
        outside_s: 0.0,
        beside: 0.0,
    };
    longest(&TOGETHER, &chosen, &wish, &room)
}

/// Were they to end by how much was called, they would last the longer the slower the job is just then: of windows that each see 4 000
/// calls, in a job that makes 400 000 a second and 40 000 by turns, one lasts 10 ms and one 100 ms, which is 73 000 a second.
#[test]
fn windows_end_by_time_while_the_job_does_what_it_did() {
    for rate in [1e4, 1e5, 3e5, 1e6, 5e6] {
        for left in [5e6, 20e6, 70e6] {
            let Some(plan) = planned(rate, 0, left) else {
                panic!("{rate} {left}");
            };
            let trapped = rate / (1.0 + rate * TOGETHER.emulated_ns / 1e9);
            let expected = trapped * f64::from(plan.length_us) / 1e6;
            let most = plan.max_calls as f64;
            assert!(
                expected <= 0.6 * most,
                "{rate} {left}: {expected}, {plan:?}"
            );
        }
    }
}

/// A thread that calls each function as often as it may.
#[test]
fn hits_of_one_window_are_capped_whatever_is_called() {
    for stepped in 0..=5 {
        for left in [5e6, 20e6, 40e6, 70e6] {
            let Some(plan) = planned(1e4, stepped, left) else {
                panic!("{stepped} {left}");
            };
            let dear = stepped.min(plan.max_sites);
            let cheap = plan.max_sites - dear;
            let each =
                f64::from(dear) * TOGETHER.stepped_ns + f64::from(cheap) * TOGETHER.emulated_ns;
            let hits = plan.max_calls as f64 * each;
            let added = hits.min(f64::from(plan.length_us) * 1e3);
            let pauses = (TOGETHER.pause_ns * u64::from(plan.max_sites)) as f64;
            assert!(
                added + pauses <= left,
                "{stepped}: {added} of {left}, {plan:?}"
            );
        }
    }
}

#[test]
fn no_part_of_a_step_is_seen_more_than_others() {
    let mut governor = Governor::new(1.0);
    governor.calibrated(TOGETHER);
    let candidate = Candidate {
        pid: 1,
        cpu_ns: 100 * SECOND,
        cpus: 1.0,
        samples: 1_000,
        in_allocator: 500,
        sites: 1,
        stepped: 0,
    };
    let mut jitter = crate::source::jitter::Jitter::new(5);
    let mut begins = Vec::new();
    // Looked at as the collector does, four times a second.
    for tick in 1..12_000 {
        let now = KtimeNs(tick * SECOND / 4);
        if tick % 4 == 0 {
            governor.interval(&Load {
                seconds: 1.0,
                job_cpu_ns: SECOND,
                ..Load::default()
            });
        }
        if let Some(plan) = governor.decide(now, &[candidate], jitter.number()) {
            begins.push(now.0 + u64::from(plan.delay_us) * 1_000);
            governor.closed(
                now,
                &Outcome {
                    pid: 1,
                    counted_s: 0.001,
                    calls: 100,
                    worst_calls: 100,
                    emulated: 100,
                    sites: 1,
                    ..Outcome::default()
                },
            );
        }
    }
    assert!(begins.len() > 1_000, "{}", begins.len());
    for steps in 1..=5 {
        let step = SECOND / 4 / steps;
        let mut seen = [0_usize; 8];
        for begin in &begins {
            seen[(begin % step * 8 / step) as usize] += 1;
        }
        let even = begins.len() / 8;
        assert!(
            seen.iter()
                .all(|n| (even * 7 / 10..even * 13 / 10).contains(n)),
            "{steps} steps: {seen:?}"
        );
    }
}

#[test]
fn what_costs_too_much_is_given_up_in_order() {
    let mut random = 1;
    let mut job = Job::new(0.01);
    job.run(120, 1e6, 0.02, false, &mut random);
    // Fixed costs alone are twice the budget: only the window that is granted in advance.
    assert!(job.opened <= 1, "{}", job.opened);
    assert_eq!(
        job.governor.shed(),
        [
            Shed::ShortIntervals,
            Shed::PairedWindows,
            Shed::Stacks,
            Shed::Windows
        ]
    );
    let mut roomy = Job::new(0.05);
    roomy.run(120, 1e6, 0.005, false, &mut random);
    assert_eq!(roomy.governor.shed(), []);
    assert!(roomy.opened > job.opened);
}

#[test]
fn nothing_opens_before_costs_are_known() {
    let mut governor = Governor::new(0.01);
    governor.interval(&Load {
        seconds: 1.0,
        job_cpu_ns: SECOND,
        ..Load::default()
    });
    let candidate = Candidate {
        pid: 1,
        cpu_ns: 100 * SECOND,
        cpus: 1.0,
        samples: 1_000,
        in_allocator: 500,
        sites: 1,
        stepped: 0,
    };
    assert_eq!(governor.decide(KtimeNs(SECOND), &[candidate], 1), None);
    governor.calibrated(COSTS);
    assert!(governor.decide(KtimeNs(SECOND), &[candidate], 1).is_some());
}

#[test]
fn what_is_done_once_is_no_reason_to_give_anything_up() {
    let mut governor = Governor::new(0.01);
    governor.calibrated(COSTS);
    for own_ns in [80_000_000, 4_000_000, 4_000_000] {
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: SECOND,
            own_ns,
            ..Load::default()
        });
        assert!(!governor.shed().contains(&Shed::Windows));
    }
    assert_eq!(governor.totals.own_ns, 88_000_000, "but it was spent");
}

#[test]
fn a_process_that_hardly_allocates_is_looked_at_seldom_once_its_rate_is_known() {
    let mut governor = Governor::new(0.01);
    governor.calibrated(COSTS);
    let idle = Candidate {
        pid: 1,
        cpu_ns: 100 * SECOND,
        cpus: 1.0,
        samples: 10_000,
        in_allocator: 3,
        sites: 5,
        stepped: 0,
    };
    let mut opened = 0;
    for second in 1..100 {
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: SECOND,
            ..Load::default()
        });
        let now = KtimeNs(second * SECOND);
        if governor.decide(now, &[idle], second).is_some() {
            opened += 1;
            let outcome = Outcome {
                pid: 1,
                counted_s: 0.02,
                calls: 10,
                worst_calls: 10,
                emulated: 12,
                sites: 5,
                ..Outcome::default()
            };
            governor.closed(now, &outcome);
        }
    }
    // Until its rate is known, and a minute later.
    assert_eq!(opened, TELLING + 1);
}

#[test]
fn traps_that_linger_are_paid_for() {
    let costs = Costs {
        linger_ns: 50_000_000,
        removal_ns: 110_000_000,
        ..COSTS
    };
    let limit = THREAD_SHARE * HORIZON_NS as f64;
    for (rate, windows, paired) in [
        (1e4, 10..160, true),
        (1e6, 5..40, false),
        (1e7, 1..40, false),
    ] {
        let mut job = Job::with(0.05, costs);
        job.run(120, rate, 0.0, false, &mut 7);
        assert!(windows.contains(&job.opened), "{} at {rate}", job.opened);
        assert_eq!(job.paired > 0, paired, "at {rate}");
        assert!(job.worst() as f64 <= limit, "{} at {rate}", job.worst());
    }
}

#[test]
fn processes_take_turns_by_what_their_allocators_take() {
    let mut governor = Governor::new(1.0);
    governor.calibrated(Costs {
        pause_ns: 1_000,
        ..COSTS
    });
    let candidate = |pid, in_allocator| Candidate {
        pid,
        cpu_ns: 100 * SECOND,
        cpus: 1.0,
        samples: 1_000,
        in_allocator,
        sites: 1,
        stepped: 0,
    };
    let both = [candidate(1, 300), candidate(2, 100)];
    let mut counts = BTreeMap::<u32, u32>::new();
    for second in 1..2_000 {
        governor.interval(&Load {
            seconds: 2.0,
            job_cpu_ns: 4 * SECOND,
            ..Load::default()
        });
        let now = KtimeNs(second * 2 * SECOND);
        if let Some(plan) = governor.decide(now, &both, second * 7) {
            *counts.entry(plan.pid).or_default() += 1;
            let outcome = Outcome {
                pid: plan.pid,
                counted_s: 0.01,
                calls: 100,
                worst_calls: 100,
                emulated: 100,
                sites: 1,
                ..Outcome::default()
            };
            governor.closed(now, &outcome);
        }
    }
    let ratio = f64::from(counts[&1]) / f64::from(counts[&2]);
    assert!((2.5..3.5).contains(&ratio), "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_sequence_of_rates_breaks_a_limit(
        rates in proptest::collection::vec(3.0_f64..7.0, 1..6),
        budget in 0.002_f64..0.05,
        fixed in 0.0_f64..0.02,
        stepped in any::<bool>(),
        together in any::<bool>(),
        bursts in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut job = Job::with(budget, if together { TOGETHER } else { COSTS });
        job.bursts = bursts;
        let mut random = seed;
        for rate in rates {
            job.run(40, 10_f64.powf(rate), fixed, stepped, &mut random);
        }
        let limit = THREAD_SHARE.min(budget) * HORIZON_NS as f64;
        prop_assert!(job.worst() as f64 <= limit, "{} of {limit}", job.worst());
        // Who begins to do nothing but allocate just when probes go in or are taken away may overdraw the sum by what that takes.
        let most = if bursts { job.costs.outside_ns as f64 } else { 0.0 };
        prop_assert!(job.overdrawn <= most, "{} after a window", job.overdrawn);
    }
}
