//! A process outside the job uses its GPU.

use serde_json::{Value, json};

use super::{Answer, Finding, Look, look::rounded};
use crate::{analysis::words, session::Id};

/// Less use than this (0–1) is a desktop or a monitor.
const MIN_USE: f64 = 0.02;

pub(super) fn rule(look: &Look) -> Answer {
    let gpu = &look.session.gpu;
    if gpu.devices.is_empty() {
        return Answer::NotEnough("no GPU was seen");
    }
    let mut others = Vec::new();
    for ((device, pid), seen) in &gpu.processes {
        let ours = look.session.processes.contains_key(pid);
        let used = gpu
            .devices
            .get(device)
            .is_some_and(|device| device.used_by_job != Some(false));
        // Told only of those that used it, of all of them at the same times.
        let on_it = gpu.processes.iter().filter(|((at, _), _)| at == device);
        let times = on_it.map(|(_, seen)| seen.utilisation.1).max().unwrap_or(0);
        let mean = (seen.utilisation.1 > 0).then(|| seen.utilisation.0 / f64::from(times));
        let matters = mean.map_or(
            seen.memory_max_bytes.is_some_and(|bytes| bytes > 64 << 20),
            |mean| mean >= MIN_USE,
        );
        if !ours && used && matters {
            others.push((
                *device,
                *pid,
                seen.last.name.clone(),
                mean,
                seen.memory_max_bytes,
            ));
        }
    }
    let Some((device, pid, name, mean, memory)) = others.first().cloned() else {
        return Answer::Clear;
    };
    let mut what = Vec::new();
    if let Some(mean) = mean {
        what.push(format!("{} of its time", words::percent(mean)));
    }
    if let Some(bytes) = memory {
        what.push(format!("{} of its memory", words::bytes(bytes as f64)));
    }
    let alone = look.trainer.bound_alone();
    Answer::Found(Finding {
        kind: "gpu-shared",
        share: None,
        evidence: [
            (
                "processes",
                others
                    .iter()
                    .map(|(device, pid, name, mean, memory)| {
                        json!({"device": device, "pid": Id(*pid), "name": name,
                               "utilisation": mean.map(rounded), "memory_bytes": memory})
                    })
                    .collect(),
            ),
            ("speedup_bound", alone.map_or(Value::Null, rounded)),
        ]
        .into(),
        summary: format!(
            "process {}{} outside the job uses GPU {device}: {}",
            Id(pid),
            name.map_or_else(String::new, |name| format!(" ({name})")),
            words::list(&what)
        ),
        advice: format!(
            "run it elsewhere, or give the job a GPU of its own: that frees {}",
            words::list(&what)
        ),
        effect: alone
            .map(|bound| format!("the job would be at most {} as fast", words::factor(bound))),
    })
}
