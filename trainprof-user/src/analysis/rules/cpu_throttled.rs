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
        (
            format!(
                "the cgroup {cgroup} may use {cpus:.2} CPUs and was stopped in {} of its periods",
                words::percent(periods)
            ),
            "raise the quota (cpu.max, or the container's CPU limit)".to_owned(),
        )
    })
}
