//! The fake GPU (`tests/workloads/gpu`, see `fake_gpu.h` there) and what a recording says of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trainprof_user::record::gpu::{GpuCallFact, GpuDeviceFact, GpuProcessFact, GpuSampleFact};
use trainprof_user::record::{Reader, Record};

/// A built file of the fake GPU.
pub fn fake(name: &str) -> PathBuf {
    let path = crate::workload::folder().join("gpu").join(name);
    assert!(path.is_file(), "no {}", path.display());
    path
}

/// What a recording says of GPUs.
#[derive(Debug, Default)]
pub struct Facts {
    pub devices: Vec<GpuDeviceFact>,
    pub samples: Vec<GpuSampleFact>,
    pub processes: Vec<GpuProcessFact>,
    pub functions: Vec<(u32, String, String)>,
    pub calls: Vec<GpuCallFact>,
    /// What, and why.
    pub lacks: Vec<(String, String)>,
    /// Begin and end of each interval of the collector, ns.
    pub intervals: Vec<(u64, u64)>,
}

impl Facts {
    pub fn read(recording: &Path) -> Self {
        let mut reader = Reader::open(recording).expect("a recording");
        let mut out = Self::default();
        for record in reader.records::<Record>() {
            match record.expect("a whole recording") {
                Record::GpuDevice(fact) => out.devices.push(fact),
                Record::GpuSample(fact) => out.samples.push(fact),
                Record::GpuProcess(fact) => out.processes.push(fact),
                Record::GpuFunction {
                    number,
                    library,
                    name,
                } => out.functions.push((number, library, name)),
                Record::GpuCall(fact) => {
                    assert!(
                        out.functions.iter().any(|(n, ..)| *n == fact.function),
                        "a call of a function that was not told: {fact:?}"
                    );
                    out.calls.push(fact);
                }
                Record::Missing { what, reason } => out.lacks.push((what, reason)),
                Record::Interval(interval) => {
                    out.intervals.push((interval.from.0, interval.to.0));
                }
                _ => {}
            }
        }
        out
    }

    pub fn calls_of(&self, name: &str) -> Vec<&GpuCallFact> {
        let numbers: Vec<u32> = self
            .functions
            .iter()
            .filter(|(_, _, n)| n == name)
            .map(|(number, ..)| *number)
            .collect();
        self.calls
            .iter()
            .filter(|call| numbers.contains(&call.function))
            .collect()
    }

    pub fn library_of(&self, name: &str) -> Option<&str> {
        self.functions
            .iter()
            .find(|(_, _, n)| n == name)
            .map(|(_, library, _)| library.as_str())
    }

    /// Reasons for which things whose name begins so are missing.
    pub fn missing(&self, what: &str) -> Vec<&str> {
        self.lacks
            .iter()
            .filter(|(w, _)| w.starts_with(what))
            .map(|(_, reason)| reason.as_str())
            .collect()
    }

    /// The newest fact of a device.
    pub fn device(&self, number: u32) -> &GpuDeviceFact {
        self.devices
            .iter()
            .rev()
            .find(|device| device.device == number)
            .unwrap_or_else(|| panic!("no device {number} in {:?}", self.devices))
    }
}

/// The code of a mapped library as a process has it: with the traps of probes.
pub fn text_of(pid: i32, library: &str) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut out = Vec::new();
    for line in maps.lines().filter(|line| line.ends_with(library)) {
        let mut fields = line.split_whitespace();
        let (range, access) = (
            fields.next().expect("a range"),
            fields.next().expect("access"),
        );
        if !access.contains('x') {
            continue;
        }
        let bounds: Vec<u64> = range
            .split('-')
            .map(|n| u64::from_str_radix(n, 16).expect("an address"))
            .collect();
        let mut bytes = vec![0; (bounds[1] - bounds[0]) as usize];
        memory
            .read_exact_at(&mut bytes, bounds[0])
            .expect("mapped code");
        out.extend(bytes);
    }
    assert!(!out.is_empty(), "{pid} has not mapped {library}");
    out
}
