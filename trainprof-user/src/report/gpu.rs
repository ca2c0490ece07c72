//! The GPUs' part of the report.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    io::round,
    memory::series,
    model::{Gpu, GpuCallRow, GpuDevice, GpuProcess, IdleRow},
};
use crate::{
    analysis::{Analysis, idle},
    record::fact::{GpuDeviceFact, GpuMetric, GpuSampleFact},
    session::{Id, Session},
};

pub fn gpu(session: &Session, analysis: &Analysis) -> Gpu {
    let trainers = analysis.trainer.iter().chain(&analysis.others);
    let idle = idle::of_job(trainers.map(|trainer| &trainer.idle));
    let mut idle_blame: Vec<IdleRow> = idle
        .by_kind
        .iter()
        .filter(|(_, seconds)| **seconds > 0.0)
        .map(|(kind, seconds)| IdleRow {
            kind: kind.name(),
            seconds: round(*seconds, 6),
            share: round(seconds / idle.idle_s.max(1e-9), 4),
        })
        .collect();
    idle_blame.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Gpu {
        available: !session.gpu.devices.is_empty(),
        devices: session
            .gpu
            .devices
            .values()
            .map(|fact| device(session, fact))
            .collect(),
        idle_blame,
        idle_uncertainty_s: (idle.seen_s > 0.0).then(|| round(idle.uncertain_s, 6)),
        calls: calls(session),
    }
}

/// Names of NVML's clock-throttle reasons (nvmlClocksThrottleReason* in nvml.h), by bit.
const REASONS: [&str; 9] = [
    "gpu-idle",
    "applications-clocks",
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal-slowdown",
    "hw-thermal-slowdown",
    "hw-power-brake-slowdown",
    "display-clocks",
];

fn names(bits: u64) -> Vec<&'static str> {
    let set = REASONS.iter().enumerate();
    set.filter(|(bit, _)| bits & (1 << bit) != 0)
        .map(|(_, name)| *name)
        .collect()
}

fn device(session: &Session, fact: &GpuDeviceFact) -> GpuDevice {
    let of = |metric: GpuMetric| -> &[GpuSampleFact] {
        session
            .gpu
            .samples
            .get(&(fact.device, metric))
            .map_or(&[], Vec::as_slice)
    };
    let mean = |metric: GpuMetric| {
        let all = of(metric);
        (!all.is_empty()).then(|| {
            let sum: f64 = all.iter().map(|sample| sample.value).sum();
            round(sum / all.len() as f64, 4)
        })
    };
    let max = |metric: GpuMetric| {
        of(metric)
            .iter()
            .map(|sample| sample.value)
            .max_by(f64::total_cmp)
    };
    let (mut seen, mut busy) = (0.0, 0.0);
    for sample in of(GpuMetric::Utilisation) {
        let length = sample.span_ns as f64 / 1e9;
        seen += length;
        busy += length * sample.value.clamp(0.0, 1.0);
    }
    let reasons = of(GpuMetric::ThrottleReasons);
    let reasons = (!reasons.is_empty()).then(|| {
        reasons
            .iter()
            .fold(0, |bits, sample| bits | sample.value as u64)
    });
    GpuDevice {
        index: fact.index,
        mig: fact.mig,
        uuid: fact.uuid.clone(),
        name: fact.name.clone(),
        used_by_job: fact.used_by_job,
        sampled_s: round(seen, 6),
        util_mean: (seen > 0.0).then(|| round(busy / seen, 4)),
        idle_s: (seen > 0.0).then(|| round(seen - busy, 6)),
        memory_total_bytes: fact.memory_total_bytes,
        memory_max_bytes: max(GpuMetric::MemoryUsedBytes).map(|bytes| bytes as u64),
        power_mean_w: mean(GpuMetric::PowerWatts),
        sm_clock_mean_mhz: mean(GpuMetric::SmClockMhz),
        temperature_max_c: max(GpuMetric::TemperatureC),
        sm_activity_mean: mean(GpuMetric::SmActivity),
        throttle_reasons: reasons,
        throttle_reason_names: reasons.map(names),
        memory_util_mean: mean(GpuMetric::MemoryUtilisation),
        memory_clock_mean_mhz: mean(GpuMetric::MemoryClockMhz),
        sm_occupancy_mean: mean(GpuMetric::SmOccupancy),
        tensor_activity_mean: mean(GpuMetric::TensorActivity),
        pcie_rx_bytes_per_s: mean(GpuMetric::PcieRxBytesPerS),
        pcie_tx_bytes_per_s: mean(GpuMetric::PcieTxBytesPerS),
        ecc_errors: max(GpuMetric::EccErrors).map(|count| count as u64),
        xids: of(GpuMetric::Xid)
            .iter()
            .map(|sample| sample.value as u64)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        processes: session
            .gpu
            .processes
            .iter()
            .filter(|((device, _), _)| *device == fact.device)
            .map(|((_, pid), seen)| {
                let (sum, count) = seen.utilisation;
                GpuProcess {
                    pid: Id(*pid),
                    name: seen.last.name.clone(),
                    in_job: session.processes.contains_key(pid),
                    memory_max_bytes: seen.memory_max_bytes,
                    memory_bytes: series(session, seen.memory.iter().copied()),
                    util_mean: (count > 0).then(|| round(sum / f64::from(count), 4)),
                }
            })
            .collect(),
    }
}

fn calls(session: &Session) -> Vec<GpuCallRow> {
    let mut sums = BTreeMap::<u32, (u64, u64, u64)>::new();
    for segment in session.history.segments() {
        for call in &segment.calls {
            let sum = sums.entry(call.function).or_default();
            sum.0 += 1;
            sum.1 += call.ns;
            sum.2 += call.bytes;
        }
    }
    let mut out: Vec<GpuCallRow> = sums
        .into_iter()
        .map(|(function, (count, ns, bytes))| {
            let (library, name) = session
                .gpu
                .functions
                .get(&function)
                .cloned()
                .unwrap_or_default();
            GpuCallRow {
                function: name,
                library,
                count,
                seconds: round(ns as f64 / 1e9, 6),
                bytes,
            }
        })
        .collect();
    out.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    out
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn reasons_have_names() {
        assert_eq!(names(0x44), ["sw-power-cap", "hw-thermal-slowdown"]);
        assert_eq!(names(0x1), ["gpu-idle"]);
        assert!(names(1 << 40).is_empty());
    }
}
