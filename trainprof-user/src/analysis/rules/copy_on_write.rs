//! Forked workers that copy the trainer's memory page by page, because reference counts are written.

use std::collections::BTreeSet;

use serde_json::json;

use super::{
    Answer, Finding, Look,
    look::rounded,
    memory_growth::{role, site},
};
use crate::{
    analysis::{memory, words},
    record::fact::PageKind,
    session::Id,
};

/// Slower growth than this (bytes a second, all processes) does not matter.
const MIN_SLOPE: f64 = 512.0 * 1024.0;
/// Call sites that are told.
const SITES: usize = 5;

pub(super) fn rule(look: &Look) -> Answer {
    let Some(copying) = memory::copiers(look.session) else {
        return Answer::NotEnough("memory was seen for less than ten seconds");
    };
    let slope: f64 = copying.iter().map(|grower| grower.growth.slope).sum();
    if slope < MIN_SLOPE {
        return Answer::Clear;
    }
    let pids: BTreeSet<u32> = copying.iter().map(|grower| grower.pid).collect();
    let sites = memory::kept_sites(look.session, Some(&pids), &[PageKind::CopyOnWrite]);
    let workers = pids.iter().all(|pid| role(look, *pid) == "worker");
    Answer::Found(Finding {
        kind: "copy-on-write",
        share: None,
        evidence: [
            ("workers", pids.iter().map(|pid| json!(Id(*pid))).collect()),
            ("bytes_per_s", rounded(slope)),
            ("sites", sites.iter().take(SITES).map(site).collect()),
        ]
        .into(),
        summary: format!(
            "{} {} {} a second of {} memory their own, by writing to it",
            pids.len(),
            match (workers, pids.len()) {
                (true, 1) => "worker makes",
                (true, _) => "workers make",
                (false, 1) => "forked process makes",
                (false, _) => "forked processes make",
            },
            words::bytes(slope),
            if workers {
                "the trainer's"
            } else {
                "their parent's"
            },
        ),
        advice: format!(
            "keep the data set's index in numpy arrays or Arrow tables instead of Python lists and dicts: reading a Python object writes its reference count, which copies the page; that keeps {} a minute from being copied",
            words::bytes(60.0 * slope)
        ),
        effect: None,
    })
}
