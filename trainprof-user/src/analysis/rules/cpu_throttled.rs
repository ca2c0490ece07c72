//! The job's own cgroup CPU quota.

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::CpuThrottled;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let (cgroup, cpus, periods) =
            look.analysis
                .throttled
                .clone()
                .unwrap_or((String::new(), 0.0, 0.0));
        evidence.insert("cgroup", json!(cgroup));
        evidence.insert("quota_cpus", rounded(cpus));
        evidence.insert("throttled_periods_share", rounded(periods));
        let wanted = wanted_cpus(look, cpus);
        evidence.insert("wanted_cpus", rounded(wanted));
        (
            format!(
                "the cgroup {cgroup} may use {cpus:.2} CPUs and was stopped in {} of its periods",
                words::percent(periods)
            ),
            format!(
                "raise the quota from {cpus:.2} to about {wanted:.1} CPUs, which is what the job uses while it is not stopped (cpu.max; cpu.cfs_quota_us in control groups of version 1; the container's CPU limit)"
            ),
        )
    })
}

/// CPUs that the job uses in the time in which its step thread is not stopped; no more than the host has. Whoever is stopped has
/// used its quota up.
fn wanted_cpus(look: &Look, quota: f64) -> f64 {
    let terms = &look.trainer.terms;
    let going = (terms.wall - look.trainer.ns(KIND)).max(terms.wall * 0.05);
    (terms.cpu.max(quota * terms.wall) / going).min(terms.host_cpus)
}
