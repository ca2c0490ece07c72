//! What was seen of GPUs, by device.

use std::collections::BTreeMap;

use super::host::keep;
use crate::{
    record::{
        Record,
        fact::{GpuDeviceFact, GpuMetric, GpuProcessFact, GpuSampleFact},
    },
    time::KtimeNs,
};

/// Samples of one metric of one device that are kept; when more come, the oldest half goes.
const MAX_SAMPLES: usize = 40_000;

/// GPUs, their samples and their users.
#[derive(Default)]
pub struct GpuSeen {
    pub devices: BTreeMap<u32, GpuDeviceFact>,
    pub samples: BTreeMap<(u32, GpuMetric), Vec<GpuSampleFact>>,
    /// By device and process: first, last and largest.
    pub processes: BTreeMap<(u32, u32), GpuProcessSeen>,
    /// Number → library and name.
    pub functions: BTreeMap<u32, (String, String)>,
}

/// A process on a GPU over time.
#[derive(Clone, Debug)]
pub struct GpuProcessSeen {
    pub first: GpuProcessFact,
    pub last: GpuProcessFact,
    pub memory_max_bytes: Option<u64>,
    /// Bytes, whenever they were told.
    pub memory: Vec<(KtimeNs, u64)>,
    /// Sum and number of utilisations.
    pub utilisation: (f64, u32),
}

impl GpuSeen {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::GpuDevice(device) => {
                self.devices.insert(device.device, device.clone());
            }
            Record::GpuSample(sample) => {
                let series = self
                    .samples
                    .entry((sample.device, sample.metric))
                    .or_default();
                if series.len() >= MAX_SAMPLES {
                    series.drain(..MAX_SAMPLES / 2);
                }
                series.push(*sample);
            }
            Record::GpuProcess(process) => {
                let seen = self
                    .processes
                    .entry((process.device, process.pid))
                    .or_insert_with(|| GpuProcessSeen {
                        first: process.clone(),
                        last: process.clone(),
                        memory_max_bytes: None,
                        memory: Vec::new(),
                        utilisation: (0.0, 0),
                    });
                seen.last = process.clone();
                seen.memory_max_bytes = seen.memory_max_bytes.max(process.memory_bytes);
                if let Some(bytes) = process.memory_bytes {
                    keep(&mut seen.memory, (process.at, bytes));
                }
                if let Some(utilisation) = process.utilisation {
                    seen.utilisation.0 += utilisation;
                    seen.utilisation.1 += 1;
                }
            }
            Record::GpuFunction {
                number,
                library,
                name,
            } => {
                self.functions
                    .insert(*number, (library.clone(), name.clone()));
            }
            _ => {}
        }
    }
}
