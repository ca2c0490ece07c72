//! How much faster the job could be without one cause, at most.
//!
//! With cause c gone a step still needs the trainer's own time, the producers' remaining work divided by how
//! many of them there are, the CPU time of all of them on the CPUs that there are, and the GPU's busy time.
//! The longest of these limits it. It bounds the gain from above: no more than c is taken away, but what c's
//! removal would newly expose is counted only as far as it was seen.

use super::{demand::Demand, kind::Kind};

/// Times are measured, and a step that is waited for less also finds its data in nearer caches: so much more may
/// be gained than they say.
const ALLOWANCE: f64 = 1.03;

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
    /// Of `own`: wanting a CPU. What is taken away leaves its CPU time to the step thread.
    pub own_crowded: f64,
    /// CPU time of the whole job, and of the cause.
    pub cpu: f64,
    pub cpu_of_cause: f64,
    /// CPUs that the job may use, by its quota, and those of the host.
    pub cpus: f64,
    pub host_cpus: f64,
    /// The GPU's busy time; 0 without one.
    pub gpu_busy: f64,
}

/// The factor by which the job could be faster at most, ≥ 1.
pub fn bound(kind: Kind, terms: &Terms, demand: &Demand) -> f64 {
    // Contention and throttling are among both.
    let crowded = match kind {
        Kind::CpuContention | Kind::CpuThrottled => {
            (terms.own_crowded - terms.own_of_cause).max(0.0)
        }
        _ => terms.own_crowded,
    };
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
    let cpu = (terms.cpu - terms.cpu_of_cause).max(0.0) / cpus.max(0.01);
    let mut least = own.max(supply).max(cpu).max(terms.gpu_busy);
    if kind != Kind::Serialization {
        // Taking away what the walk blamed on the cause is possible, whatever the model says.
        least = least.min(terms.wall - terms.own_of_cause - terms.stall_of_cause);
        least = least.max(terms.gpu_busy);
    }
    if least <= 0.0 {
        return f64::INFINITY;
    }
    (terms.wall / least * ALLOWANCE).max(1.0)
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

    #[test]
    fn the_next_bottleneck_limits_the_gain() {
        let (terms, demand) = readers();
        // Without reading: own time 100 against 50 for decoding.
        assert!((bound(Kind::StorageIo, &terms, &demand) - 2.0 * ALLOWANCE).abs() < 1e-9);
        // Without decoding: reading alone takes 150.
        let terms = Terms {
            stall_of_cause: 25.0,
            ..terms
        };
        assert!((bound(Kind::InputCpu, &terms, &demand) - 200.0 / 150.0 * ALLOWANCE).abs() < 1e-9);
    }

    #[test]
    fn the_gpu_and_the_cpus_limit_it_too() {
        let (mut terms, demand) = readers();
        terms.gpu_busy = 160.0;
        assert!((bound(Kind::StorageIo, &terms, &demand) - 1.25 * ALLOWANCE).abs() < 1e-9);
        terms.gpu_busy = 0.0;
        terms.stall_of_cause = 0.0;
        terms.cpu = 360.0;
        terms.own = 20.0;
        // 180 of CPU time for each of the two CPUs, but never less gain than what was blamed.
        let got = bound(Kind::StorageIo, &terms, &demand);
        assert!((got - 200.0 / 180.0 * ALLOWANCE).abs() < 1e-9, "{got}");
    }
}
