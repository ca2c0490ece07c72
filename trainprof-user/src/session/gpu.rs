//! What was seen of GPUs, by device.

use std::collections::BTreeMap;

use super::host::keep;
use crate::{
    record::{
        Record,
        fact::{GpuDeviceFact, GpuMemoryFact, GpuMetric, GpuProcessFact, GpuSampleFact},
    },
    time::KtimeNs,
};

/// Samples of one metric of one device that are kept; when more come, the oldest half goes.
const MAX_SAMPLES: usize = 40_000;

/// Allocations that are remembered until they are given back: with more at a time none are told any more.
const MAX_KEPT: usize = 65_536;

/// GPUs, their samples and their users.
#[derive(Default)]
pub struct GpuSeen {
    kept: Kept,
    pub devices: BTreeMap<u32, GpuDeviceFact>,
    pub samples: BTreeMap<(u32, GpuMetric), Vec<GpuSampleFact>>,
    /// By device and process: first, last and largest.
    pub processes: BTreeMap<(u32, u32), GpuProcessSeen>,
    /// Number → library and name.
    pub functions: BTreeMap<u32, (String, String)>,
}

/// What was allocated while we watched and not given back, on GPUs and pinned.
#[derive(Default)]
struct Kept {
    /// By process and address.
    blocks: BTreeMap<(u32, u64), KeptMemory>,
    /// Where a block is, by its number.
    places: BTreeMap<u32, (u32, u64)>,
    seen: bool,
    untold: bool,
}

/// Memory that was allocated while we watched, and not given back.
#[derive(Clone, Copy, Debug)]
pub struct KeptMemory {
    pub fact: GpuMemoryFact,
    /// Number of a stack of Python.
    pub python: Option<u32>,
}

impl Kept {
    fn memory(&mut self, fact: GpuMemoryFact) {
        self.seen = true;
        let place = (fact.pid, fact.address);
        // Who gives back is told when that is done: somebody may have got the place anew by then.
        let since = self.blocks.get(&place).map(|before| before.fact.at);
        if fact.bytes == 0 && since.is_some_and(|since| fact.at < since) {
            return;
        }
        if let Some(before) = self.blocks.remove(&place) {
            self.places.remove(&before.fact.number);
        }
        if fact.bytes == 0 || fact.address == 0 || self.untold {
            return;
        }
        if self.blocks.len() >= MAX_KEPT {
            self.end();
            return;
        }
        self.places.insert(fact.number, place);
        self.blocks.insert(place, KeptMemory { fact, python: None });
    }

    /// Told after its block, which may be gone by then.
    fn python(&mut self, number: u32, stack: u32) {
        let place = self.places.get(&number);
        if let Some(block) = place.and_then(|place| self.blocks.get_mut(place)) {
            block.python = Some(stack);
        }
    }

    /// Memory of a process is gone with its program.
    fn gone(&mut self, pid: u32) {
        self.places.retain(|_, place| place.0 != pid);
        self.blocks.retain(|place, _| place.0 != pid);
    }

    /// Nothing more is told of it.
    fn end(&mut self) {
        *self = Self {
            untold: true,
            ..Self::default()
        };
    }
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
            Record::GpuMemory(memory) => self.kept.memory(*memory),
            Record::PyGpuMemory(python) => self.kept.python(python.memory, python.stack),
            Record::GpuMemoryUntold => self.kept.end(),
            _ => {}
        }
    }

    /// A process executed another program. What one keeps that has ended was kept all the same.
    pub(super) fn gone(&mut self, pid: u32) {
        self.kept.gone(pid);
    }

    /// Some calls were not told.
    pub(super) fn lost(&mut self) {
        self.kept.end();
    }

    /// Memory of GPUs that was allocated while we watched and not given back; `None`: not all was seen.
    pub fn kept(&self) -> Option<impl Iterator<Item = &KeptMemory>> {
        // Pinned memory is the host's (`cudaHostAlloc`, `cuMemAllocHost`, `cudaMallocHost`).
        let is_hosts = |number: &u32| {
            let name = self.functions.get(number).map(|(_, name)| name.as_str());
            name.is_none_or(|name| name.contains("Host"))
        };
        let blocks = self.kept.blocks.values();
        (self.kept.seen && !self.kept.untold)
            .then(|| blocks.filter(move |kept| !is_hosts(&kept.fact.function)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fact::PyGpuMemoryFact;

    fn memory(number: u32, address: u64, bytes: u64, function: u32) -> Record {
        Record::GpuMemory(GpuMemoryFact {
            number,
            at: KtimeNs(u64::from(number)),
            tid: 11,
            pid: 10,
            address,
            bytes,
            function,
        })
    }

    fn stack(memory: u32, stack: u32) -> Record {
        Record::PyGpuMemory(PyGpuMemoryFact { memory, stack })
    }

    fn named(number: u32, name: &str) -> Record {
        Record::GpuFunction {
            number,
            library: "libcudart.so.12".into(),
            name: name.into(),
        }
    }

    /// Numbers and stacks of what is kept.
    fn kept(records: &[Record]) -> Option<Vec<(u32, Option<u32>)>> {
        let mut seen = GpuSeen::default();
        let names = [
            named(1, "cudaMalloc"),
            named(2, "cudaHostAlloc"),
            named(3, "cudaFree"),
        ];
        for record in names.iter().chain(records) {
            seen.apply(record);
        }
        let kept = seen.kept()?.map(|kept| (kept.fact.number, kept.python));
        Some(kept.collect())
    }

    #[test]
    fn what_was_given_back_is_not_kept() {
        let records = [
            memory(1, 0x100, 64, 1),
            memory(2, 0x200, 64, 1),
            stack(2, 7),
            memory(3, 0x100, 0, 3),
            // Of before the watch.
            memory(4, 0x900, 0, 3),
            // Of who had the place before, and is done with giving it back only now.
            memory(0, 0x200, 0, 3),
            memory(5, 0x100, 32, 1),
            // One of them of a block that is gone.
            stack(1, 9),
            stack(5, 8),
        ];
        assert_eq!(kept(&records), Some(vec![(5, Some(8)), (2, Some(7))]));
    }

    #[test]
    fn pinned_memory_is_none_of_the_gpus() {
        let records = [memory(1, 0x100, 64, 2), memory(2, 0x200, 64, 1)];
        assert_eq!(kept(&records), Some(vec![(2, None)]));
    }

    #[test]
    fn what_a_job_kept_is_told_when_it_has_ended() {
        let mut session = crate::session::Session::default();
        let (at, pid, tid) = (KtimeNs(9), 10, 10);
        for record in [
            named(1, "cudaMalloc"),
            memory(1, 0x100, 64, 1),
            Record::Exit { at, pid, tid },
        ] {
            session.apply(&record);
        }
        assert_eq!(session.gpu.kept().expect("all was seen").count(), 1);
    }

    #[test]
    fn what_a_program_had_is_gone_with_it() {
        let mut seen = GpuSeen::default();
        for record in [named(1, "cudaMalloc"), memory(1, 0x100, 64, 1)] {
            seen.apply(&record);
        }
        let count = |seen: &GpuSeen| seen.kept().expect("all was seen").count();
        seen.gone(11);
        assert_eq!(count(&seen), 1);
        seen.gone(10);
        assert_eq!(count(&seen), 0);
        seen.lost();
        assert!(seen.kept().is_none());
    }

    #[test]
    fn nothing_is_said_once_not_all_is_seen() {
        assert_eq!(kept(&[]), None);
        let records = [
            memory(1, 0x100, 64, 1),
            Record::GpuMemoryUntold,
            memory(2, 0x200, 64, 1),
        ];
        assert_eq!(kept(&records), None);
        let many: Vec<_> = (1..=MAX_KEPT as u32 + 1)
            .map(|number| memory(number, u64::from(number), 1, 1))
            .collect();
        assert_eq!(kept(&many), None);
        assert_eq!(kept(&many[1..]).map(|kept| kept.len()), Some(MAX_KEPT));
    }
}
