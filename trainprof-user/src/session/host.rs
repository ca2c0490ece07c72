//! What the kernel keeps anyway: quotas, pressure, memory, descriptors, far ends of sockets.

use std::collections::BTreeMap;

use crate::{
    record::{
        Record,
        fact::{
            CgroupMemorySample, CgroupPressureSample, HostSample, NeighboursFact, OutsiderUse,
            ProcessSample, QuotaSample, SocketFact,
        },
    },
    time::KtimeNs,
};

/// Samples of one thing that are kept; when more come, every second one goes.
const MAX_SERIES: usize = 2048;

/// Polled facts, in the order in which they came.
#[derive(Default)]
pub struct HostSeen {
    /// By cgroup.
    pub quotas: BTreeMap<String, Vec<QuotaSample>>,
    pub memory: BTreeMap<String, Vec<CgroupMemorySample>>,
    pub pressure: BTreeMap<String, Vec<CgroupPressureSample>>,
    pub host: Vec<HostSample>,
    /// By process.
    pub processes: BTreeMap<u32, Vec<ProcessSample>>,
    /// By inode.
    pub sockets: BTreeMap<u64, SocketFact>,
    /// By process.
    pub outsiders: BTreeMap<u32, Vec<String>>,
    /// What they used, as of the last look.
    pub outsiders_use: BTreeMap<u32, OutsiderUse>,
    pub neighbours: NeighboursFact,
    /// Processes that were killed when memory ran out, and when the first of their threads had ended.
    pub out_of_memory: BTreeMap<u32, KtimeNs>,
    /// CPUs that each process may use, as a list.
    pub allowed_cpus: BTreeMap<u32, String>,
}

impl HostSeen {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Quota(sample) => keep(
                self.quotas.entry(sample.cgroup.clone()).or_default(),
                sample.clone(),
            ),
            Record::CgroupMemory(sample) => keep(
                self.memory.entry(sample.cgroup.clone()).or_default(),
                sample.clone(),
            ),
            Record::CgroupPressure(sample) => keep(
                self.pressure.entry(sample.cgroup.clone()).or_default(),
                sample.clone(),
            ),
            Record::Host(sample) => keep(&mut self.host, *sample),
            Record::ProcessMemory(sample) => {
                keep(self.processes.entry(sample.pid).or_default(), *sample);
            }
            Record::Socket(socket) => {
                self.sockets.insert(socket.inode, socket.clone());
            }
            Record::OutsiderCommand { pid, command } => {
                self.outsiders.insert(*pid, command.clone());
            }
            Record::OutsiderUse(used) => {
                self.outsiders_use.insert(used.pid, *used);
            }
            Record::Neighbours(fact) => self.neighbours.clone_from(fact),
            Record::OutOfMemory { at, pid } => {
                self.out_of_memory.entry(*pid).or_insert(*at);
            }
            Record::Affinity { pid, cpus } => {
                self.allowed_cpus.insert(*pid, cpus.clone());
            }
            _ => {}
        }
    }
}

impl NeighboursFact {
    /// By process the CPUs that it had, most first.
    pub fn cpus(&self) -> impl Iterator<Item = (u32, f64)> {
        let looked = self.looked_ns.max(1) as f64;
        let most = self.most.iter();
        most.map(move |(pid, ns)| (*pid, *ns as f64 / looked))
    }
}

/// Adds to a series and keeps it bounded and evenly spread.
pub(super) fn keep<T>(series: &mut Vec<T>, sample: T) {
    if series.len() >= MAX_SERIES {
        let mut at = 0;
        series.retain(|_| {
            at += 1;
            at % 2 == 1
        });
    }
    series.push(sample);
}
