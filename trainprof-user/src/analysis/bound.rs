//! How much faster the job could be without one cause, at most.
//!
//! With cause c gone a step still needs the trainer's own time, the producers' remaining work divided by how
//! many of them there are, the CPU time of all of them on the CPUs that there are, and the GPU's busy time.
//! The longest of these limits it. It bounds the gain from above: no more than c is taken away, but what c's
//! removal would newly expose is counted only as far as it was seen.

use super::{demand::Demand, kind::Kind, pace::Pace};

/// How exactly times of one run tell those of another one, at best.
const EXACT: f64 = 1.02;
/// When the cause took all of the time, what is left gets faster by this part: a thread that waits goes on with cold caches on a CPU
/// that slept, and one that works beside others shares caches, memory, clock and, with threads of one core, the core itself. The
/// model's own work takes 12 % less CPU time without the cause in the median of 31 runs, whatever the cause.
const RELIEF: f64 = 0.1;
/// A step thread that sleeps for this share (0–1) of the time goes on as cold as one that sleeps for all of it: how often it sleeps
/// counts, not how long. What seven jobs by others
/// computed took 15 % less time without waits of 0.36 to 0.67 of it (median; 2 to 26 %), whichever it was.
const SLEEPS: f64 = 0.25;

/// What of a cause is waited for, as a part (0–1) of the time, where it is what the step thread itself does.
const BESIDE: f64 = 0.01;

/// What the bound is computed from; times in ns of the walked part of the watch.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    pub wall: f64,
    /// The step thread's time outside stalls.
    pub own: f64,
    /// Of `own`, what the cause took.
    pub own_of_cause: f64,
    /// Of the stalls, what the cause took.
    pub stall_of_cause: f64,
    /// Of `own_of_cause`: waiting, for the step thread itself.
    pub own_asleep_of_cause: f64,
    /// Of what the cause took: others than the step thread asleep, or outside the job, which it waited for. Not of a GPU's work.
    pub asleep_of_cause: f64,
    /// Of `own`: wanting a CPU. What is taken away leaves its CPU time to the step thread.
    pub own_crowded: f64,
    /// Of `own_of_cause`: wanting a CPU that the cause had. Part of `own_crowded` too.
    pub own_crowded_by_cause: f64,
    /// CPU time of the whole job, of the cause, and of what no step needs: threads of the trainer that do nothing for it, and threads that
    /// give the CPU up again and again while they have nothing to do.
    pub cpu: f64,
    pub cpu_of_cause: f64,
    pub cpu_apart: f64,
    /// CPUs that the job may use, by affinity, cpuset and quota, and those of the host.
    pub cpus: f64,
    pub host_cpus: f64,
    /// CPUs that its processes are kept to, when that is fewer than the host has.
    pub pinned: Option<f64>,
    /// The GPU's busy time; 0 without one.
    pub gpu_busy: f64,
    /// Part (0–1) of it that may be pauses between small kernels.
    pub gpu_pauses: f64,
    /// What the ranks beside the one that is waited for most are busy themselves.
    pub other_ranks: f64,
    pub pace: Pace,
}

/// The factor by which the job could be faster at most, ≥ 1.
pub fn bound(kind: Kind, terms: &Terms, demand: &Demand) -> f64 {
    let crowded = (terms.own_crowded - terms.own_crowded_by_cause).max(0.0);
    let own = (terms.own - terms.own_of_cause - crowded).max(0.0);
    let gone = match kind {
        // A lock that is gone lets the others work; what they do under it stays.
        Kind::Serialization => demand.locked_out,
        kind => demand.by_kind.get(&kind).copied().unwrap_or(0.0),
    };
    let supply = if demand.parallel > 0.0 {
        (demand.busy - gone - demand.crowded).max(0.0) / demand.parallel
    } else {
        0.0
    };
    let cpus = if kind == Kind::CpuThrottled {
        terms.host_cpus
    } else {
        terms.cpus
    };
    // Work that was done one by one is still to be done.
    let cpu_gone = match kind {
        Kind::Serialization => 0.0,
        // What a rank does for longer than the others.
        Kind::Communication => terms.own_of_cause + terms.stall_of_cause,
        _ => terms.cpu_of_cause,
    };
    // What no step needs can be done elsewhere, or later.
    let cpu_gone = cpu_gone + terms.cpu_apart;
    let cpu = (terms.cpu - cpu_gone).max(0.0) / cpus.max(0.01);
    let gpu_busy = match kind {
        // What launches less also launches larger kernels.
        Kind::HostCompute => terms.gpu_busy * (1.0 - terms.gpu_pauses),
        _ => terms.gpu_busy,
    };
    let mut least = own.max(supply).max(cpu).max(gpu_busy);
    if kind != Kind::Serialization {
        // Taking away what the walk blamed on the cause is possible, whatever the model says: but for what the step thread alone does
        // while producers never rest. They make no more batches then.
        let without = terms.wall - terms.own_of_cause - terms.stall_of_cause;
        let rest =
            terms.stall_of_cause > BESIDE * terms.wall || !demand.never_rest(terms.wall, terms.own);
        least = least.min(if rest { without } else { without.max(supply) });
        least = least.max(gpu_busy);
    }
    if kind == Kind::Communication {
        least = least.max(terms.other_ranks);
    }
    if least <= 0.0 {
        return f64::INFINITY;
    }
    // Work of the GPU takes as long as it did.
    let relieved = if least > gpu_busy {
        RELIEF * relief(kind, terms)
    } else {
        0.0
    };
    // Steps that did not wait had the relief already.
    let rested = EXACT.max(terms.pace.undisturbed) * (1.0 + relieved);
    (terms.wall / least * rested.max(terms.pace.unstalled)).max(1.0)
}

/// The same where so many nanoseconds of the step are done beside it instead: they still need a CPU.
pub fn moved(terms: &Terms, ns: f64) -> f64 {
    let cpu = (terms.cpu - terms.cpu_apart).max(0.0) / terms.cpus.max(0.01);
    let least = (terms.wall - ns).max(cpu).max(terms.gpu_busy);
    if least <= 0.0 {
        return f64::INFINITY;
    }
    (terms.wall / least * EXACT.max(terms.pace.undisturbed)).max(1.0)
}

/// The same for work of others on the GPU, this share (0–1) of the time.
pub fn without(share: f64) -> f64 {
    EXACT / (1.0 - share).max(0.01)
}

/// Share (0–1) of the time in which what is left was slowed down by the cause.
fn relief(kind: Kind, terms: &Terms) -> f64 {
    match kind {
        // What was done late elsewhere is still done.
        Kind::Communication => 0.0,
        // So is what was done one by one: beside the step thread, as far as it takes a CPU.
        Kind::Serialization => {
            (terms.asleep_of_cause / SLEEPS / terms.wall.max(1.0)).clamp(0.0, 1.0)
        }
        // Who takes the CPU now has another one while the job runs.
        Kind::CpuContention => 1.0,
        _ => {
            // Who shares a CPU finds its caches as cold as who sleeps. Where a quota is used up nobody else has it.
            let shared = match kind {
                Kind::CpuThrottled => 0.0,
                _ => terms.own_crowded_by_cause,
            };
            let asleep = (terms.stall_of_cause + terms.own_asleep_of_cause + shared) / SLEEPS;
            let taken = terms.own_of_cause + terms.stall_of_cause;
            (asleep.max(taken) / terms.wall.max(1.0)).clamp(0.0, 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Two workers that read for 300 and decode for 100 of every 400 ms; the trainer needs 100 of 200 ms.
    fn readers() -> (Terms, Demand) {
        let terms = Terms {
            wall: 200.0,
            own: 100.0,
            stall_of_cause: 75.0,
            cpu: 150.0,
            cpus: 2.0,
            ..Terms::default()
        };
        let demand = Demand {
            busy: 400.0,
            by_kind: BTreeMap::from([(Kind::StorageIo, 300.0), (Kind::InputCpu, 100.0)]),
            parallel: 2.0,
            ..Demand::default()
        };
        (terms, demand)
    }

    /// The bound without what is added for a run that goes better.
    fn plain(kind: Kind, terms: &Terms, demand: &Demand) -> f64 {
        bound(kind, terms, demand) / EXACT / (1.0 + RELIEF * relief(kind, terms))
    }

    #[test]
    fn what_is_left_gets_faster_by_what_slowed_it_down() {
        let (terms, demand) = readers();
        // Asleep for 75 of 200 ms, or for 25, or busy for 75.
        let with = |stall: f64, own: f64| {
            let terms = Terms {
                stall_of_cause: stall,
                own_of_cause: own,
                ..terms.clone()
            };
            relief(Kind::StorageIo, &terms)
        };
        assert!((with(75.0, 0.0) - 1.0).abs() < 1e-9);
        assert!((with(25.0, 0.0) - 0.5).abs() < 1e-9);
        assert!((with(0.0, 75.0) - 0.375).abs() < 1e-9);
        assert!(relief(Kind::Serialization, &terms).abs() < 1e-9);
        assert!((relief(Kind::CpuContention, &terms) - 1.0).abs() < 1e-9);
        // Who has the lock sleeps for 25 of 200 ms of it; another has its CPU for as long, or the quota is used up.
        let slept = Terms {
            asleep_of_cause: 25.0,
            ..terms.clone()
        };
        assert!((relief(Kind::Serialization, &slept) - 0.5).abs() < 1e-9);
        let crowded = Terms {
            stall_of_cause: 0.0,
            own_of_cause: 25.0,
            own_crowded_by_cause: 25.0,
            ..terms.clone()
        };
        assert!((relief(Kind::InputCpu, &crowded) - 0.5).abs() < 1e-9);
        assert!((relief(Kind::CpuThrottled, &crowded) - 0.125).abs() < 1e-9);
        let ratio =
            bound(Kind::StorageIo, &terms, &demand) / plain(Kind::StorageIo, &terms, &demand);
        assert!((ratio - EXACT * 1.1).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn steps_that_did_not_wait_show_the_relief_already() {
        let (terms, demand) = readers();
        let pace = |undisturbed, unstalled| {
            let terms = Terms {
                pace: Pace {
                    undisturbed,
                    unstalled,
                },
                ..terms.clone()
            };
            bound(Kind::StorageIo, &terms, &demand) / 2.0
        };
        // Stretches in which the host is quieter have stalls as the others do.
        assert!((pace(1.1, 1.0) - 1.1 * 1.1).abs() < 1e-9);
        assert!((pace(1.0, 1.15) - 1.15).abs() < 1e-9);
        assert!((pace(1.1, 1.12) - 1.1 * 1.1).abs() < 1e-9);
    }

    #[test]
    fn the_next_bottleneck_limits_the_gain() {
        let (terms, demand) = readers();
        // Without reading: own time 100 against 50 for decoding.
        assert!((plain(Kind::StorageIo, &terms, &demand) - 2.0).abs() < 1e-9);
        // Without decoding: reading alone takes 150.
        let terms = Terms {
            stall_of_cause: 25.0,
            ..terms
        };
        assert!((plain(Kind::InputCpu, &terms, &demand) - 200.0 / 150.0).abs() < 1e-9);
    }

    #[test]
    fn producers_that_never_rest_make_no_more_batches() {
        // The only one works on batches all the time; of 200 ms the trainer waits for 100 and saves for 40.
        let with = |busy: f64, stall: f64| {
            let terms = Terms {
                wall: 200.0,
                own: 100.0,
                own_of_cause: 40.0,
                stall_of_cause: stall,
                cpu: 260.0,
                cpus: 2.0,
                ..Terms::default()
            };
            let demand = Demand {
                busy,
                by_kind: BTreeMap::from([(Kind::InputCpu, busy)]),
                parallel: 1.0,
                ..Demand::default()
            };
            plain(Kind::Checkpoint, &terms, &demand)
        };
        assert!((with(198.0, 0.0) - 200.0 / 198.0).abs() < 1e-9);
        // It rests while the trainer saves; or it is waited for then as well.
        assert!((with(160.0, 0.0) - 200.0 / 160.0).abs() < 1e-9);
        assert!((with(198.0, 20.0) - 200.0 / 140.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_done_one_by_one_is_still_to_be_done() {
        // One of three works at a time, for 90 of 100 ms; the host has two CPUs.
        let terms = Terms {
            wall: 100.0,
            own: 10.0,
            stall_of_cause: 90.0,
            cpu: 120.0,
            cpu_of_cause: 90.0,
            cpus: 2.0,
            host_cpus: 2.0,
            ..Terms::default()
        };
        let demand = Demand {
            busy: 300.0,
            by_kind: BTreeMap::from([(Kind::Serialization, 290.0)]),
            locked_out: 200.0,
            parallel: 3.0,
            ..Demand::default()
        };
        let got = plain(Kind::Serialization, &terms, &demand);
        assert!((got - 100.0 / 60.0).abs() < 1e-9, "{got}");
    }

    #[test]
    fn waiting_for_a_cpu_is_taken_away_once() {
        // 60 of 100 ms outside stalls, 30 of them behind the workers' decoding.
        let terms = Terms {
            wall: 100.0,
            own: 60.0,
            own_of_cause: 30.0,
            own_crowded: 30.0,
            own_crowded_by_cause: 30.0,
            stall_of_cause: 40.0,
            cpus: 4.0,
            host_cpus: 4.0,
            cpu: 30.0,
            ..Terms::default()
        };
        let got = plain(Kind::InputCpu, &terms, &Demand::default());
        assert!((got - 100.0 / 30.0).abs() < 1e-9, "{got}");
    }

    #[test]
    fn the_gpu_and_the_cpus_limit_it_too() {
        let (mut terms, demand) = readers();
        terms.gpu_busy = 160.0;
        // What slowed the host down did not slow the GPU down.
        let got = bound(Kind::StorageIo, &terms, &demand) / EXACT;
        assert!((got - 1.25).abs() < 1e-9, "{got}");
        terms.gpu_busy = 0.0;
        terms.stall_of_cause = 0.0;
        terms.cpu = 360.0;
        terms.own = 20.0;
        // 180 of CPU time for each of the two CPUs, but never less gain than what was blamed.
        let got = plain(Kind::StorageIo, &terms, &demand);
        assert!((got - 200.0 / 180.0).abs() < 1e-9, "{got}");
    }

    #[test]
    fn what_is_moved_is_still_done() {
        // 15 of 100 ms make batches, 84 allocate for them, on two CPUs.
        let terms = Terms {
            wall: 100.0,
            own: 100.0,
            cpu: 100.0,
            cpus: 2.0,
            ..Terms::default()
        };
        assert!((moved(&terms, 99.0) - 2.0 * EXACT).abs() < 1e-9);
        // With CPUs enough the rest of the step limits it.
        let many = Terms { cpus: 8.0, ..terms };
        assert!((moved(&many, 50.0) - 2.0 * EXACT).abs() < 1e-9);
    }
}
