//! GPU memory of the job that grows steadily.

use serde_json::{Value, json};

use super::{
    Answer, Evidence, Finding, Look,
    growth::{Growth, steady_growth},
    look::rounded,
    memory_growth::role,
};
use crate::{
    analysis::{
        gpu_memory::{self, GpuSite},
        python, words,
    },
    record::fact::{GpuDeviceFact, GpuMetric, GpuSampleFact},
    session::Id,
    time::KtimeNs,
};

/// Slower growth than this (bytes a second) takes days to matter.
const MIN_SLOPE: f64 = 256.0 * 1024.0;
/// A function is named in words when it allocates so much of what is kept, and of what grows.
const MOST: f64 = 0.5;
/// Functions that are told.
const SITES: usize = 5;
/// Growth is the job's when its processes have at least this share of it.
const OWN: f64 = 0.5;

/// A device whose memory the job fills steadily.
struct Filling<'a> {
    device: &'a GpuDeviceFact,
    growth: Growth,
    /// Seconds until it is full; `None`: its size is not known.
    left_s: Option<f64>,
    /// The process of the job that grew most on it, as far as the driver tells.
    pid: Option<u32>,
    /// Processes of the job that grow steadily on it, the fastest first.
    growing: Vec<(u32, Growth)>,
}

pub(super) fn rule(look: &Look) -> Answer {
    let gpu = &look.session.gpu;
    let Some(start) = &look.session.start else {
        return Answer::NotEnough("the watch has no beginning");
    };
    let mut seen = false;
    let mut filling = Vec::new();
    let may_be_used = |device: &&GpuDeviceFact| device.used_by_job != Some(false);
    for device in gpu.devices.values().filter(may_be_used) {
        let metric = (device.device, GpuMetric::MemoryUsedBytes);
        if let Some(series) = gpu.samples.get(&metric) {
            seen = true;
            filling.extend(Filling::of(look, start.at, device, series));
        }
    }
    // The one that is full first ends the job.
    filling.sort_by(|a, b| {
        let left = |of: &Filling| of.left_s.unwrap_or(f64::INFINITY);
        let pace = |of: &Filling| of.growth.slope / of.growth.last.max(1.0);
        left(a)
            .total_cmp(&left(b))
            .then(pace(b).total_cmp(&pace(a)))
    });
    match filling.split_first() {
        Some((first, others)) => Answer::Found(first.finding(look, others)),
        None if seen => Answer::Clear,
        None => Answer::NotEnough("no GPU memory was seen"),
    }
}

impl<'a> Filling<'a> {
    /// `None` where the device does not fill, or others than the job fill it.
    fn of(
        look: &Look,
        begin: KtimeNs,
        device: &'a GpuDeviceFact,
        series: &[GpuSampleFact],
    ) -> Option<Self> {
        let points: Vec<(f64, f64)> = series
            .iter()
            .map(|s| (s.at.seconds_since(begin), s.value))
            .collect();
        let growth = steady_growth(&points).filter(|growth| growth.slope >= MIN_SLOPE)?;
        let of_job = |pid: &u32| look.session.processes.contains_key(pid);
        let mut grown = Vec::<(u32, f64)>::new();
        let mut growing = Vec::<(u32, Growth)>::new();
        let users = look.session.gpu.processes.iter();
        for ((_, pid), seen) in users.filter(|((of, _), _)| *of == device.device) {
            if let (Some(first), Some(last)) = (seen.first.memory_bytes, seen.last.memory_bytes) {
                grown.push((*pid, last as f64 - first as f64));
            }
            let points: Vec<(f64, f64)> = seen
                .memory
                .iter()
                .map(|(at, bytes)| (at.seconds_since(begin), *bytes as f64))
                .collect();
            growing.extend(steady_growth(&points).map(|growth| (*pid, growth)));
        }
        grown.sort_by(|a, b| b.1.total_cmp(&a.1));
        growing.retain(|(pid, _)| of_job(pid));
        growing.sort_by(|a, b| b.1.slope.total_cmp(&a.1.slope));
        let total: f64 = grown.iter().map(|(_, bytes)| bytes.max(0.0)).sum();
        let by_job: f64 = grown
            .iter()
            .filter(|(pid, _)| of_job(pid))
            .map(|(_, bytes)| bytes.max(0.0))
            .sum();
        if total > 0.0 && by_job < OWN * total {
            return None;
        }
        Some(Self {
            device,
            growth,
            left_s: device
                .memory_total_bytes
                .map(|total| (total as f64 - growth.last).max(0.0) / growth.slope),
            pid: grown
                .iter()
                .find(|(pid, bytes)| of_job(pid) && *bytes > 0.0)
                .map(|(pid, _)| *pid),
            growing,
        })
    }

    /// Where the growing processes allocated on GPUs what they have not given back, the most first; `None`: not all was seen. Which
    /// device it is on is not told.
    fn sites<'s>(&self, look: &Look<'s>) -> Option<Vec<GpuSite<'s>>> {
        let growing = self.growing.iter().map(|(pid, _)| *pid);
        gpu_memory::kept_sites(look.session, &growing.chain(self.pid).collect())
    }

    /// What is told of this device, and that these others fill as well.
    fn finding(&self, look: &Look, others: &[Self]) -> Finding {
        let (index, growth) = (self.device.index, &self.growth);
        let whose = self.pid.map_or_else(String::new, |pid| {
            format!(" of the {} (process {})", role(look, pid), Id(pid))
        });
        let (mut evidence, turn) = look.per_turn(growth);
        let left = self.left_s.map(words::time);
        let until = left
            .as_ref()
            .map_or_else(String::new, |left| format!("; it is full in {left}"));
        let spared = left.map_or_else(String::new, |left| {
            format!("; without that growth the GPU would not be full in {left}")
        });
        evidence.entry("bytes_per_step").or_insert(json!(null));
        let sites = self.sites(look);
        let first = sites.as_ref().and_then(|sites| sites.first());
        let most = first
            .filter(|site| site.share >= MOST && site.bytes_per_s >= MOST * growth.slope)
            .and_then(|site| site.function);
        let place = most.map_or_else(String::new, |function| {
            format!(
                "most of what is kept is allocated in {}; ",
                python::function_name(function)
            )
        });
        evidence.extend(self.numbers());
        evidence.extend([
            ("pid", json!(self.pid.map(Id))),
            ("processes", processes(&self.growing)),
            (
                "sites",
                sites.as_ref().map_or(Value::Null, |sites| {
                    sites.iter().take(SITES).map(site).collect()
                }),
            ),
            (
                "other_devices",
                others.iter().map(|other| json!(other.numbers())).collect(),
            ),
        ]);
        Finding {
            kind: "gpu-memory-growth",
            share: None,
            evidence,
            summary: format!(
                "memory in use{whose} on GPU {index} grows by {} a second (± {}){turn}{until}{}",
                words::bytes(growth.slope),
                words::bytes(growth.margin),
                likewise(others)
            ),
            advice: format!(
                "{place}look for tensors that are kept from step to step, with their graph: losses that are summed, outputs in lists{spared}"
            ),
            effect: None,
        }
    }

    /// What is told of every device that fills.
    fn numbers(&self) -> Evidence {
        [
            ("device", json!(self.device.index)),
            ("bytes_per_s", rounded(self.growth.slope)),
            ("margin_bytes_per_s", rounded(self.growth.margin)),
            ("time_to_limit_s", self.left_s.map_or(json!(null), rounded)),
        ]
        .into()
    }
}

/// Who allocates what is kept, as evidence.
fn site(site: &GpuSite) -> Value {
    json!({
        "python": site.function.map(|function| json!({
            "function": function.name,
            "file": function.file,
            "line": function.line,
        })),
        "kept_bytes_per_s": rounded(site.bytes_per_s),
        "share": rounded(site.share),
        "blocks": site.blocks,
    })
}

/// Which other devices fill, for the end of a sentence.
fn likewise(others: &[Filling]) -> String {
    let names: Vec<String> = others
        .iter()
        .map(|other| format!("GPU {}", other.device.index))
        .collect();
    match names.len() {
        0 => String::new(),
        1 => format!("; {} fills likewise", words::list(&names)),
        _ => format!("; {} fill likewise", words::list(&names)),
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
