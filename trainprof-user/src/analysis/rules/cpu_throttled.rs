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
    }) = blamed(look)
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
            let (of, who) = match held.first().filter(|_| held.len() == 1) {
                Some(pid) => (format!("process {pid} of the job alone"), "it uses while it is"),
                None => (
                    "a part of the job's processes".to_owned(),
                    "they use while they are",
                ),
            };
            (format!(", which holds {of},"), who)
        } else {
            (String::new(), "the job uses while it is")
        };
        (
            format!(
                "the cgroup {cgroup}{which} may use {cpus:.2} CPUs and was stopped in {} of its periods",
                words::percent(*periods)
            ),
            format!(
                "raise the quota from {cpus:.2} to about {wanted:.1} CPUs, which is what {who} not stopped (cpu.max; cpu.cfs_quota_us in control groups of version 1; the container's CPU limit)"
            ),
        )
    })
}

/// Of the quotas that were hit the one that holds most of what was stopped; of several the one that was hit most.
fn blamed<'a>(look: &Look<'a>) -> Option<&'a Quota> {
    let stopped = |quota: &Quota| -> f64 {
        look.parts(KIND)
            .filter(|share| {
                let pid = look.facts.pid(share.detail.tid);
                pid.is_some_and(|pid| quota.held.contains(&pid))
            })
            .map(|share| share.ns)
            .sum()
    };
    let order = |quota: &Quota| (stopped(quota), quota.periods);
    look.analysis.quotas.iter().max_by(|a, b| {
        let ((a_ns, a_hit), (b_ns, b_hit)) = (order(a), order(b));
        a_ns.total_cmp(&b_ns).then(a_hit.total_cmp(&b_hit))
    })
}

/// CPUs that this part of the job's CPU time takes in the time in which nobody is stopped whom the step thread waits for; no more than
/// the host has. Whoever is stopped has used its quota up.
fn wanted_cpus(look: &Look, quota: f64, part: f64) -> f64 {
    let terms = &look.trainer.terms;
    let going = (terms.wall - look.trainer.ns(KIND))
        .max(terms.wall * 0.05)
        .max(1.0);
    (terms.cpu * part)
        .max(quota * terms.wall)
        .min(terms.host_cpus * going)
        / going
}
