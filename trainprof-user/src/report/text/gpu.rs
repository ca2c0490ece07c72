//! The GPUs: how busy, and what the host did while they idled.

use std::fmt::Write as _;

use super::units::{Page, bytes, percent, wrapped};
use crate::report::model::{GpuDevice, Report};

/// Causes of idling that are listed, and the part (0–1) of it that each must have.
const CAUSES: usize = 4;
const MIN_PART: f64 = 0.01;

pub fn gpu(out: &mut Page, report: &Report) -> std::fmt::Result {
    let devices: Vec<&GpuDevice> = report
        .gpu
        .devices
        .iter()
        .filter(|device| device.used_by_job != Some(false))
        .collect();
    if devices.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    for device in devices {
        let mig = device
            .mig
            .map_or_else(String::new, |slice| format!(", slice {slice}"));
        let name = device.name.as_deref().unwrap_or("unnamed");
        let mark = format!("GPU {}: ", device.index);
        wrapped(out, &mark, &format!("{name}{mig}: {}", told(device)))?;
    }
    let causes: Vec<String> = report
        .gpu
        .idle_blame
        .iter()
        .filter(|row| row.share >= MIN_PART)
        .take(CAUSES)
        .map(|row| format!("{} {:.1} s ({})", row.kind, row.seconds, percent(row.share)))
        .collect();
    if !causes.is_empty() {
        let mut text = causes.join(", ");
        if let Some(seconds) = report.gpu.idle_uncertainty_s.filter(|s| *s >= 0.05) {
            let _ = write!(text, "; {seconds:.1} s of it may belong to another cause");
        }
        wrapped(out, "  idle while the host was held up by: ", &text)?;
    }
    Ok(())
}

fn told(device: &GpuDevice) -> String {
    let mut facts = Vec::new();
    match (device.util_mean, device.idle_s) {
        (Some(busy), Some(idle)) => facts.push(format!(
            "busy {} of the {:.1} s that samples cover, idle {idle:.1} s",
            percent(busy),
            device.sampled_s
        )),
        _ => facts.push("no samples of how busy it was".to_owned()),
    }
    match (device.memory_max_bytes, device.memory_total_bytes) {
        (Some(most), Some(all)) => {
            facts.push(format!(
                "memory up to {} of {}",
                bytes(most as f64),
                bytes(all as f64)
            ));
        }
        (Some(most), None) => facts.push(format!("memory up to {}", bytes(most as f64))),
        _ => {}
    }
    if let Some(watts) = device.power_mean_w {
        facts.push(format!("{watts:.0} W"));
    }
    if let Some(mhz) = device.sm_clock_mean_mhz {
        facts.push(format!("{mhz:.0} MHz"));
    }
    // An idle GPU lowers its clocks, and applications may set them: neither slows anything down that was meant to be faster.
    let slowed: Vec<&str> = device
        .throttle_reason_names
        .iter()
        .flatten()
        .copied()
        .filter(|name| name.contains("slowdown") || name.contains("cap"))
        .collect();
    if !slowed.is_empty() {
        facts.push(format!("slowed down by {}", slowed.join(", ")));
    }
    if let Some(errors) = device.ecc_errors.filter(|errors| *errors > 0) {
        facts.push(format!("{errors} uncorrected memory errors"));
    }
    if !device.xids.is_empty() {
        let xids: Vec<String> = device.xids.iter().map(u64::to_string).collect();
        facts.push(format!("driver errors (XID) {}", xids.join(", ")));
    }
    facts.join(", ")
}
