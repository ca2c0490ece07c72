//! GPU memory of the job that grows steadily.

use serde_json::{Value, json};

use super::{
    Answer, Finding, Look,
    growth::{Growth, steady_growth},
    look::rounded,
    memory_growth::role,
};
use crate::{analysis::words, record::fact::GpuMetric, session::Id};

/// Slower growth than this (bytes a second) takes days to matter.
const MIN_SLOPE: f64 = 256.0 * 1024.0;
/// Growth is the job's when its processes have at least this share of it.
const OWN: f64 = 0.5;

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
        // Which process it is, as far as the driver tells of each.
        let mut grown = Vec::<(u32, f64)>::new();
        let mut growing = Vec::<(u32, Growth)>::new();
        for ((_, pid), seen) in gpu
            .processes
            .iter()
            .filter(|((of, _), _)| *of == device.device)
        {
            if let (Some(first), Some(last)) = (seen.first.memory_bytes, seen.last.memory_bytes) {
                grown.push((*pid, last as f64 - first as f64));
            }
            let points: Vec<(f64, f64)> = seen
                .memory
                .iter()
                .map(|(at, bytes)| (at.seconds_since(start.at), *bytes as f64))
                .collect();
            growing.extend(steady_growth(&points).map(|growth| (*pid, growth)));
        }
        grown.sort_by(|a, b| b.1.total_cmp(&a.1));
        growing.retain(|(pid, _)| look.session.processes.contains_key(pid));
        growing.sort_by(|a, b| b.1.slope.total_cmp(&a.1.slope));
        let total: f64 = grown.iter().map(|(_, bytes)| bytes.max(0.0)).sum();
        let of_job = |pid: &u32| look.session.processes.contains_key(pid);
        let by_job: f64 = grown
            .iter()
            .filter(|(pid, _)| of_job(pid))
            .map(|(_, bytes)| bytes.max(0.0))
            .sum();
        if total > 0.0 && by_job < OWN * total {
            continue;
        }
        let pid = grown
            .iter()
            .find(|(pid, bytes)| of_job(pid) && *bytes > 0.0)
            .map(|(pid, _)| *pid);
        let whose = pid.map_or_else(String::new, |pid| {
            format!(" of the {} (process {})", role(look, pid), Id(pid))
        });
        let (mut evidence, turn) = look.per_turn(&growth);
        let left = device
            .memory_total_bytes
            .map(|total| (total as f64 - growth.last).max(0.0) / growth.slope);
        let until = left.map_or_else(String::new, |s| {
            format!("; it is full in {}", words::time(s))
        });
        let spared = left.map_or_else(String::new, |s| {
            let left = words::time(s);
            format!("; without that growth the GPU would not be full in {left}")
        });
        evidence.entry("bytes_per_step").or_insert(json!(null));
        evidence.extend([
            ("device", json!(device.index)),
            ("bytes_per_s", rounded(growth.slope)),
            ("margin_bytes_per_s", rounded(growth.margin)),
            ("time_to_limit_s", left.map_or(json!(null), rounded)),
            ("pid", json!(pid.map(Id))),
            ("processes", processes(&growing)),
        ]);
        return Answer::Found(Finding {
            kind: "gpu-memory-growth",
            share: None,
            evidence,
            summary: format!(
                "memory in use{whose} on GPU {} grows by {} a second (± {}){turn}{until}",
                device.index,
                words::bytes(growth.slope),
                words::bytes(growth.margin)
            ),
            advice: format!(
                "look for tensors that are kept from step to step, with their graph: losses that are summed, outputs in lists{spared}"
            ),
            effect: None,
        });
    }
    if seen {
        Answer::Clear
    } else {
        Answer::NotEnough("no GPU memory was seen")
    }
}

/// Processes of the job that grow steadily on the device.
fn processes(growing: &[(u32, Growth)]) -> Value {
    growing
        .iter()
        .map(|(pid, growth)| {
            json!({
                "pid": Id(*pid),
                "bytes_per_s": rounded(growth.slope),
                "margin_bytes_per_s": rounded(growth.margin),
            })
        })
        .collect()
}
