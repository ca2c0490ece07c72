//! When the GPU was busy, as finely as samples and calls tell.

use std::collections::BTreeMap;

use super::{cast::Cast, facts::Facts};
use crate::{
    record::fact::{GpuCallKind, GpuMetric},
    session::Session,
};

/// A trainer that waits for the GPU at least this share of its time is kept waiting by it, not the other way
/// round.
const GPU_BOUND: f64 = 0.3;
/// Calls that show that the GPU is used.
const MIN_CALLS: usize = 20;
/// No link of a GPU to its host but NVLink moves more bytes a nanosecond (PCIe 5.0 with 16 lanes, PCI Express Base Specification).
const FASTEST_LINK: f64 = 63.0;
/// How much of a device's time in kernels can be small ones that a launch of fewer, larger kernels saves, where they use hardly any of it:
/// its counters take the pauses between them for work. 2767 kernels in 37 ms, 0.11 of the time, counted as 0.16 to 0.20.
const IN_PAUSES: f64 = 0.5;

/// A stretch of a sample, with the share of it in which the GPU was idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleSpan {
    pub from: u64,
    pub to: u64,
    pub idle: f64,
    /// Bytes that went between the device and its host in it, where that is counted.
    pub traffic: f64,
}

/// What is known of the GPU's time.
pub struct GpuTime {
    /// Idle shares over time, of all of `devices`; empty without samples.
    pub spans: Vec<IdleSpan>,
    /// Whether the trainer calls the GPU's runtime.
    pub calls: bool,
    /// Whether all calls in which the trainer waits for the GPU are seen.
    pub waits_seen: bool,
    /// Share (0–1) of the step thread's time inside synchronising calls.
    pub synchronising: f64,
    /// Devices that the trainer uses; where the driver lists it on none, those that the job uses.
    pub devices: Vec<u32>,
    /// Whether the driver lists the trainer on them.
    pub own: bool,
    /// How many of them gave samples of their use.
    pub sampled_devices: usize,
    /// Copies that its process began and did not wait for: when, and their bytes. In order. Copies inside the GPU may be among them.
    pub copies: Vec<(u64, u64)>,
    /// Share (0–1) of the devices' use that is the job's own, as far as the driver tells it by process; 1 where it does not.
    pub ours: f64,
    /// Share (0–1) of its multiprocessors that worked while kernels ran; 1 where that is not counted.
    pub filled: f64,
}

impl GpuTime {
    pub fn new(facts: &Facts, cast: &Cast) -> Self {
        let seen = &facts.session.gpu;
        let any_known = seen
            .devices
            .values()
            .any(|device| device.used_by_job == Some(true));
        let mut devices: Vec<u32> = seen
            .devices
            .values()
            .filter(|device| {
                device.used_by_job == Some(true) || (device.used_by_job.is_none() && !any_known)
            })
            .map(|device| device.device)
            .collect();
        // Each rank has a GPU of its own, as a rule: where the driver tells which, the others' idling is not this trainer's.
        let is_own = |device: &u32| seen.processes.contains_key(&(*device, cast.trainer));
        let own = devices.iter().any(is_own);
        if own {
            devices.retain(is_own);
        }
        let mut spans = Vec::new();
        let mut sampled_devices = 0;
        for device in &devices {
            let Some(series) = seen.samples.get(&(*device, GpuMetric::Utilisation)) else {
                continue;
            };
            sampled_devices += 1;
            let rates = [GpuMetric::PcieRxBytesPerS, GpuMetric::PcieTxBytesPerS]
                .into_iter()
                .filter_map(|metric| seen.samples.get(&(*device, metric)))
                .flatten();
            let mut traffic = BTreeMap::<u64, f64>::new();
            for sample in rates {
                let bytes = sample.value * sample.span_ns as f64 / 1e9;
                *traffic.entry(sample.at.0).or_default() += bytes;
            }
            let mut before = None;
            for sample in series {
                let to = sample.at.0;
                let from = if sample.span_ns > 0 {
                    to.saturating_sub(sample.span_ns)
                } else {
                    before.unwrap_or(to)
                };
                before = Some(to);
                if to > from {
                    spans.push(IdleSpan {
                        from,
                        to,
                        idle: 1.0 - sample.value.clamp(0.0, 1.0),
                        traffic: traffic.get(&to).copied().unwrap_or(0.0),
                    });
                }
            }
        }
        spans.sort_by_key(|span| span.from);
        let calls = facts.calls(cast.step_tid);
        let waited: u64 = calls
            .iter()
            .filter(|call| call.kind == GpuCallKind::Synchronise)
            .map(|call| call.to - call.from)
            .sum();
        let mean = |metric: GpuMetric| {
            let of = |device: &u32| seen.samples.get(&(*device, metric));
            let series: Vec<f64> = devices
                .iter()
                .filter_map(of)
                .flatten()
                .map(|sample| sample.value)
                .collect();
            series.iter().sum::<f64>() / series.len().max(1) as f64
        };
        let (active, busy) = (mean(GpuMetric::SmActivity), mean(GpuMetric::Utilisation));
        Self {
            copies: copies(facts, cast.trainer),
            ours: ours(facts.session, &devices),
            filled: if active > 0.0 && busy > 0.0 {
                (active / busy).min(1.0)
            } else {
                1.0
            },
            spans,
            calls: calls.len() >= MIN_CALLS,
            waits_seen: calls.len() >= MIN_CALLS && !any_let_go(facts.session),
            synchronising: waited as f64 / facts.walkable_ns().max(1) as f64,
            devices,
            own,
            sampled_devices,
        }
    }

    /// Part (0–1) of the time in kernels that may be pauses between small ones.
    pub fn in_pauses(&self) -> f64 {
        IN_PAUSES * (1.0 - self.filled)
    }

    /// Nanoseconds for which copies that were begun in a span move bytes at least: as many as went over the link, those of one device among
    /// several and none inside it. 0 where the device does not count them: there its samples take copies for work.
    pub fn copying(&self, span: &IdleSpan) -> f64 {
        let first = self.copies.partition_point(|copy| copy.0 < span.from);
        let begun = self.copies[first..]
            .iter()
            .take_while(|copy| copy.0 < span.to);
        let bytes: u64 = begun.map(|copy| copy.1).sum();
        (bytes as f64).min(span.traffic) / FASTEST_LINK
    }

    /// Whether samples of the GPU's use are there.
    pub fn sampled(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Mean share of a stretch in which the GPU was idle; `None` where no sample tells.
    pub fn idle(&self, from: u64, to: u64) -> Option<f64> {
        // A sample is a second long at most.
        let first = self
            .spans
            .partition_point(|span| span.to.saturating_add(2_000_000_000) <= from);
        let (mut seen, mut idle) = (0.0, 0.0);
        for span in self.spans[first..].iter().take_while(|span| span.from < to) {
            let lower = span.from.max(from);
            let upper = span.to.min(to);
            if upper > lower {
                seen += (upper - lower) as f64;
                idle += (upper - lower) as f64 * span.idle;
            }
        }
        (seen > 0.0).then(|| idle / seen)
    }

    /// Share (0–1) of the step thread's running in which the GPU had nothing to do; 0 without a GPU.
    pub fn idle_while_running(&self, windows: &[(u64, u64)]) -> f64 {
        if self.sampled() {
            let (mut all, mut idle) = (0.0, 0.0);
            for (from, to) in windows {
                if let Some(share) = self.idle(*from, *to) {
                    all += (to - from) as f64;
                    idle += (to - from) as f64 * share;
                }
            }
            return if all > 0.0 { idle / all } else { 0.0 };
        }
        // Without samples: who hardly waits for the GPU keeps it waiting.
        if self.calls && self.synchronising < GPU_BOUND {
            1.0
        } else {
            0.0
        }
    }

    /// Seconds in which the GPU was idle, and seconds that samples tell about.
    pub fn idle_s(&self) -> (f64, f64) {
        let mut idle = 0.0;
        let mut seen = 0.0;
        for span in &self.spans {
            let length = (span.to - span.from) as f64 / 1e9;
            seen += length;
            idle += length * span.idle;
        }
        (idle, seen)
    }
}

/// Share (0–1) of the use of these devices that is the job's own.
fn ours(session: &Session, devices: &[u32]) -> f64 {
    let (mut own, mut all) = (0.0, 0.0);
    let processes = session.gpu.processes.iter();
    for ((_, pid), seen) in processes.filter(|((device, _), _)| devices.contains(device)) {
        // Told only of those that used it, all at the same times.
        let used = seen.utilisation.0;
        all += used;
        if session.processes.contains_key(pid) {
            own += used;
        }
    }
    if own > 0.0 { own / all } else { 1.0 }
}

/// Whether calls into the runtime were not watched all the time, or not all of them.
fn any_let_go(session: &Session) -> bool {
    let mut missing = session.missing.iter();
    missing.any(|(what, _)| what.starts_with("gpu-calls"))
}

/// Copies that a process began and did not wait for: one that is over when the call ends took the calling thread's time.
pub(super) fn copies(facts: &Facts, pid: u32) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = facts
        .calling_threads()
        .filter(|(tid, _)| facts.pid(*tid) == Some(pid))
        .flat_map(|(_, calls)| calls)
        .filter(|call| call.kind == GpuCallKind::CopyAsync)
        .filter(|call| ((call.to - call.from) as f64) < call.bytes as f64 / FASTEST_LINK)
        .map(|call| (call.from, call.bytes))
        .collect();
    out.sort_by_key(|copy| copy.0);
    out
}
