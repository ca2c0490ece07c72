//! The job's own cgroup CPU quota.

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, Quota, cpus::share_of_cpu, words};

const KIND: Kind = Kind::CpuThrottled;
/// CPU time of the job: what a quota does not hold is told where it is more than this part of it.
const HOLDS_ALL: f64 = 0.95;

pub(super) fn rule(look: &Look) -> Answer {
    let Some(Quota {
        cgroup,
        cpus,
        periods,
        held,
    }) = &look.analysis.throttled
    else {
        // No time can be blamed on a quota that was not hit: only whether enough was seen is left to say.
        return look.cause(KIND, |_| Default::default());
    };
    look.cause(KIND, |evidence| {
        let part = share_of_cpu(look.facts, held);
        let wanted = wanted_cpus(look, *cpus, part);
        evidence.insert("cgroup", json!(cgroup));
        evidence.insert("quota_cpus", rounded(*cpus));
        evidence.insert("throttled_periods_share", rounded(*periods));
        evidence.insert("wanted_cpus", rounded(wanted));
        let (which, who) = if part < HOLDS_ALL {
            let count = held.len();
            let of = match held.first().filter(|_| count == 1) {
                Some(pid) => format!("process {pid} of the job alone"),
                None => format!("{count} processes of the job and not the others"),
            };
            (format!(", which holds {of},"), "these use")
        } else {
            (String::new(), "the job uses")
        };
        (
            format!(
                "the cgroup {cgroup}{which} may use {cpus:.2} CPUs and was stopped in {} of its periods",
                words::percent(*periods)
            ),
            format!(
                "raise the quota from {cpus:.2} to about {wanted:.1} CPUs, which is what {who} while not stopped (cpu.max; cpu.cfs_quota_us in control groups of version 1; the container's CPU limit)"
            ),
        )
    })
}

/// CPUs that this part of the job's CPU time takes in the time in which nobody is stopped whom the step thread waits for; no more than
/// the host has. Whoever is stopped has used its quota up.
fn wanted_cpus(look: &Look, quota: f64, part: f64) -> f64 {
    let terms = &look.trainer.terms;
    let going = (terms.wall - look.trainer.ns(KIND)).max(terms.wall * 0.05);
    (terms.cpu * part)
        .max(quota * terms.wall)
        .min(terms.host_cpus * going)
        / going
}
