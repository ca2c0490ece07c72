//! Memory that is allocated and kept, step after step.

use serde_json::json;

use super::{Answer, Finding, Look, growth::steady_growth, look::rounded};
use crate::analysis::words;

/// Slower growth than this (bytes a second) takes days to matter.
const MIN_SLOPE: f64 = 64.0 * 1024.0;

pub(super) fn rule(look: &Look) -> Answer {
    let session = look.session;
    let Some(start) = &session.start else {
        return Answer::NotEnough("the watch has no beginning");
    };
    let mut worst: Option<(u32, super::growth::Growth, &'static str)> = None;
    let mut enough = false;
    for (pid, series) in &session.host.processes {
        enough |= series.len() >= 10;
        for (what, of) in [
            (
                "anonymous",
                (|s| s.anon_bytes + s.swap_bytes) as fn(&crate::record::fact::ProcessSample) -> u64,
            ),
            ("shared", |s| s.shmem_bytes),
        ] {
            let points: Vec<(f64, f64)> = series
                .iter()
                .map(|s| (s.at.seconds_since(start.at), of(s) as f64))
                .collect();
            if let Some(growth) = steady_growth(&points)
                && growth.slope >= MIN_SLOPE
                && growth.slope * session.duration_s() >= 0.01 * rss(series)
                && worst.is_none_or(|(_, w, _)| growth.slope > w.slope)
            {
                worst = Some((*pid, growth, what));
            }
        }
    }
    let Some((pid, growth, what)) = worst else {
        return if enough {
            Answer::Clear
        } else {
            Answer::NotEnough("memory was seen for less than ten seconds")
        };
    };
    let left = time_to_limit(look, growth.slope);
    let per_step = look.step_ms().map(|ms| growth.slope * ms / 1e3);
    let mut evidence: super::Evidence = [
        ("pid", json!(pid)),
        ("memory", json!(what)),
        ("bytes_per_s", rounded(growth.slope)),
        ("margin_bytes_per_s", rounded(growth.margin)),
    ]
    .into();
    if let Some(per_step) = per_step {
        evidence.insert("bytes_per_step", rounded(per_step));
    }
    if let Some(left) = left {
        evidence.insert("time_to_limit_s", rounded(left));
    }
    let role = session
        .processes
        .get(&pid)
        .map(|process| process.name.clone())
        .unwrap_or_default();
    let step = per_step.map_or_else(String::new, |n| format!(", {} a step", words::bytes(n)));
    let until = left.map_or_else(String::new, |s| {
        format!("; its limit is reached in {}", words::time(s))
    });
    Answer::Found(Finding {
        kind: "memory-growth",
        share: None,
        evidence,
        summary: format!(
            "process {pid} ({role}) keeps {} of {what} memory a second (± {}){step}{until}",
            words::bytes(growth.slope),
            words::bytes(growth.margin)
        ),
        advice: "look for what is kept from step to step: losses or outputs held with their graph (use .item() or .detach()), lists that grow, caches without a bound".to_owned(),
    })
}

/// What the process holds in memory, bytes.
fn rss(series: &[crate::record::fact::ProcessSample]) -> f64 {
    series.last().map_or(0.0, |s| {
        (s.anon_bytes + s.shmem_bytes + s.file_bytes) as f64
    })
}

/// Seconds until the tightest limit is reached at this pace: the cgroup's, or what the host has left.
pub fn time_to_limit(look: &Look, slope: f64) -> Option<f64> {
    let group = look
        .session
        .host
        .memory
        .values()
        .filter_map(|series| {
            let last = series.last()?;
            let limit = last.limit_bytes?;
            // Page cache gives way.
            let used = last
                .usage_bytes
                .saturating_sub(last.file_bytes.unwrap_or(0));
            Some(limit.saturating_sub(used) as f64)
        })
        .fold(f64::INFINITY, f64::min);
    let host = look
        .session
        .host
        .host
        .last()
        .and_then(|sample| sample.memory_available_bytes)
        .map_or(f64::INFINITY, |bytes| bytes as f64);
    let room = group.min(host);
    (room.is_finite() && slope > 0.0).then(|| room / slope)
}
