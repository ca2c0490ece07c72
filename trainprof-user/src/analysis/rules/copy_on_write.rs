//! Forked workers that copy the trainer's memory page by page, because reference counts are written.

use serde_json::json;

use super::{Answer, Finding, Look, growth::steady_growth, look::rounded};
use crate::analysis::words;

/// Slower growth than this (bytes a second, all workers) does not matter.
const MIN_SLOPE: f64 = 512.0 * 1024.0;

pub(super) fn rule(look: &Look) -> Answer {
    let Some(start) = &look.session.start else {
        return Answer::NotEnough("the watch has no beginning");
    };
    let workers = &look.trainer.cast.workers;
    let mut growing = Vec::new();
    let mut enough = false;
    for pid in workers {
        let Some(series) = look.session.host.processes.get(pid) else {
            continue;
        };
        enough |= series.len() >= 10;
        // What becomes private without any new memory being asked for was shared with the parent.
        let asked: u64 = look
            .session
            .files
            .ops
            .iter()
            .filter(|(key, _)| {
                key.pid == Some(*pid)
                    && matches!(
                        trainprof_common::op::Op::try_from(key.op),
                        Ok(trainprof_common::op::Op::Mmap | trainprof_common::op::Op::Brk)
                    )
                    && key.class == trainprof_common::op::Class::Memory as u8
            })
            .map(|(_, total)| total.bytes)
            .sum();
        let points: Vec<(f64, f64)> = series
            .iter()
            .map(|s| (s.at.seconds_since(start.at), s.anon_bytes as f64))
            .collect();
        if let Some(growth) = steady_growth(&points) {
            let grown = growth.slope * look.session.duration_s();
            if (asked as f64) < 0.5 * grown {
                growing.push((*pid, growth.slope));
            }
        }
    }
    let slope: f64 = growing.iter().map(|(_, slope)| slope).sum();
    if growing.is_empty() || slope < MIN_SLOPE {
        return if enough {
            Answer::Clear
        } else {
            Answer::NotEnough("no workers, or seen for less than ten seconds")
        };
    }
    Answer::Found(Finding {
        kind: "copy-on-write",
        share: None,
        evidence: [
            ("workers", json!(growing.iter().map(|(pid, _)| pid).collect::<Vec<_>>())),
            ("bytes_per_s", rounded(slope)),
        ]
        .into(),
        summary: format!(
            "{} workers make {} a second of the trainer's memory their own, without asking for any",
            growing.len(),
            words::bytes(slope)
        ),
        advice: "keep the data set's index in numpy arrays or Arrow tables instead of Python lists and dicts: reading a Python object writes its reference count, which copies the page".to_owned(),
    })
}
