//! GPU memory of the job that grows steadily.

use serde_json::json;

use super::{Answer, Finding, Look, growth::steady_growth, look::rounded};
use crate::{analysis::words, record::fact::GpuMetric};

/// Slower growth than this (bytes a second) takes days to matter.
const MIN_SLOPE: f64 = 256.0 * 1024.0;

pub(super) fn rule(look: &Look) -> Answer {
    let gpu = &look.session.gpu;
    let Some(start) = &look.session.start else {
        return Answer::NotEnough("the watch has no beginning");
    };
    let mut seen = false;
    for device in gpu.devices.values() {
        if device.used_by_job == Some(false) {
            continue;
        }
        let Some(series) = gpu
            .samples
            .get(&(device.device, GpuMetric::MemoryUsedBytes))
        else {
            continue;
        };
        seen = true;
        let points: Vec<(f64, f64)> = series
            .iter()
            .map(|s| (s.at.seconds_since(start.at), s.value))
            .collect();
        let Some(growth) = steady_growth(&points).filter(|growth| growth.slope >= MIN_SLOPE) else {
            continue;
        };
        let left = device
            .memory_total_bytes
            .map(|total| (total as f64 - growth.last).max(0.0) / growth.slope);
        let until = left.map_or_else(String::new, |s| {
            format!("; it is full in {}", words::time(s))
        });
        return Answer::Found(Finding {
            kind: "gpu-memory-growth",
            share: None,
            evidence: [
                ("device", json!(device.index)),
                ("bytes_per_s", rounded(growth.slope)),
                ("margin_bytes_per_s", rounded(growth.margin)),
                ("time_to_limit_s", left.map_or(json!(null), rounded)),
            ]
            .into(),
            summary: format!(
                "memory in use on GPU {} grows by {} a second{until}",
                device.index,
                words::bytes(growth.slope)
            ),
            advice: "look for tensors that are kept from step to step, with their graph: losses that are summed, outputs in lists".to_owned(),
        });
    }
    if seen {
        Answer::Clear
    } else {
        Answer::NotEnough("no GPU memory was seen")
    }
}
