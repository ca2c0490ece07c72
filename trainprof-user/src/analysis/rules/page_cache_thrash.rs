//! Files that are dropped from the page cache and read again.

use serde_json::json;

use super::{Answer, Finding, Look, look::rounded};
use crate::analysis::{Kind, words};

/// Pages brought back a second that matter.
const MIN_PAGES_PER_S: f64 = 500.0;
const PAGE: f64 = 4096.0;

pub(super) fn rule(look: &Look) -> Answer {
    let session = look.session;
    let duration = session.duration_s().max(1e-9);
    let group = session.host.memory.values().find_map(|series| {
        let (first, last) = (series.first()?, series.last()?);
        let pages = last.refaults_file?.saturating_sub(first.refaults_file?);
        Some((pages, last.usage_bytes, last.limit_bytes))
    });
    let host = || {
        let (first, last) = (session.host.host.first()?, session.host.host.last()?);
        let pages = last.refaults_file?.saturating_sub(first.refaults_file?);
        Some((pages, 0, None))
    };
    let Some((pages, usage, limit)) = group.or_else(host) else {
        return Answer::NotEnough("the kernel does not count refaults");
    };
    let rate = pages as f64 / duration;
    let waits = look.wall_share(Kind::StorageIo) + look.wall_share(Kind::SmallFiles);
    if rate < MIN_PAGES_PER_S || waits < 0.05 {
        return Answer::Clear;
    }
    Answer::Found(Finding {
        kind: "page-cache-thrash",
        share: None,
        evidence: [
            ("refaults_per_s", rounded(rate)),
            ("cgroup_bytes", json!(usage)),
            ("cgroup_limit_bytes", json!(limit)),
        ]
        .into(),
        summary: format!(
            "{} a second were read again after they had been dropped from memory",
            words::bytes(rate * PAGE)
        ),
        advice: format!(
            "the data set does not fit into the memory that is left for the page cache: give the job more memory, read in an order that reuses what is there, or store the data smaller; that spares storage up to {} a second",
            words::bytes(rate * PAGE)
        ),
        effect: None,
    })
}
