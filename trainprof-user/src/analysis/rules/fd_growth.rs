//! Descriptors that are opened and never closed.

use serde_json::json;

use super::{Answer, Finding, Look, growth::steady_growth, look::rounded};
use crate::{analysis::words, session::Id};

/// Slower growth than this (descriptors a second) takes days to matter.
const MIN_SLOPE: f64 = 0.2;
/// Soft limit that Linux starts with (getrlimit(2), INR_OPEN_CUR in include/uapi/linux/fs.h).
const USUAL_LIMIT: f64 = 1024.0;

pub(super) fn rule(look: &Look) -> Answer {
    let Some(start) = &look.session.start else {
        return Answer::NotEnough("the watch has no beginning");
    };
    let mut enough = false;
    for (pid, series) in &look.session.host.processes {
        let points: Vec<(f64, f64)> = series
            .iter()
            .filter_map(|s| Some((s.at.seconds_since(start.at), f64::from(s.descriptors?))))
            .collect();
        enough |= points.len() >= 10;
        if let Some(growth) = steady_growth(&points).filter(|growth| growth.slope >= MIN_SLOPE) {
            return Answer::Found(Finding {
                kind: "fd-growth",
                share: None,
                evidence: [
                    ("pid", json!(Id(*pid))),
                    ("descriptors", rounded(growth.last)),
                    ("descriptors_per_s", rounded(growth.slope)),
                ]
                .into(),
                summary: format!(
                    "process {} opens {:.1} descriptors a second more than it closes; it has {:.0}",
                    Id(*pid),
                    growth.slope,
                    growth.last
                ),
                advice: format!(
                    "close files, or let a with-statement do it; tensors passed between processes hold one each (torch.multiprocessing.set_sharing_strategy). It will have {USUAL_LIMIT:.0}, the usual limit (ulimit -n), {}",
                    when(growth.last, growth.slope)
                ),
                effect: None,
            });
        }
    }
    if enough {
        Answer::Clear
    } else {
        Answer::NotEnough("descriptors were counted for less than ten seconds")
    }
}

/// When that limit is reached at this pace.
fn when(now: f64, per_s: f64) -> String {
    if now >= USUAL_LIMIT {
        "already: how many it may have stands in /proc/PID/limits".to_owned()
    } else {
        format!("in {}", words::time((USUAL_LIMIT - now) / per_s))
    }
}
