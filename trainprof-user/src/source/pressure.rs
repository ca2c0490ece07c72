//! Facts that the kernel keeps anyway: quota, memory and pressure, read at each interval or more seldom.
//!
//! Each kind has a pace of its own: a round whose reading was dear makes the next one come later.

mod groups;
mod host;
mod memory;
mod neighbours;
mod pace;
mod process;
mod quota;
mod sockets;
mod stalls;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use self::{
    groups::Groups, neighbours::Neighbours, pace::Pace, process::Processes, sockets::Sockets,
};
use super::{outsiders::Outsiders, own};
use crate::{record::Record, time::KtimeNs};

const SECOND: u64 = 1_000_000_000;

/// What is known of the job when its surroundings are read.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    /// Resident bytes of each process.
    pub resident: &'a BTreeMap<u32, u64>,
    /// CPU nanoseconds of its threads that are alive, since each is followed.
    pub ran_ns: u64,
}

/// What is polled for one job.
pub(super) struct Pressure {
    groups: Groups,
    processes: Processes,
    sockets: Sockets,
    neighbours: Neighbours,
    membership: Pace,
    quota: Pace,
    memory: Pace,
    host: Pace,
    stalls: Pace,
    /// Their CPU time.
    outsiders: Pace,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            groups: Groups::default(),
            processes: Processes::default(),
            sockets: Sockets::default(),
            neighbours: Neighbours::default(),
            membership: Pace::every(SECOND),
            quota: Pace::every(SECOND),
            memory: Pace::every(2 * SECOND),
            host: Pace::every(SECOND),
            stalls: Pace::every(SECOND),
            outsiders: Pace::sparing(2 * SECOND),
        }
    }
}

impl Pressure {
    /// Reads what is due.
    pub(super) fn poll(
        &mut self,
        at: KtimeNs,
        Job { resident, ran_ns }: Job,
        outsiders: &mut Outsiders,
        out: &mut Vec<Record>,
    ) {
        let groups = &mut self.groups;
        self.membership.round(at, || groups.follow(resident.keys()));
        let groups = &self.groups;
        self.quota.round(at, || {
            let samples = groups.cpu().filter_map(|group| quota::read(at, group));
            out.extend(samples.map(Record::Quota));
        });
        self.memory.round(at, || {
            out.extend(memory::read(at, groups).map(Record::CgroupMemory));
        });
        self.host.round(at, || {
            let host = host::read(at);
            if let Some(host) = &host {
                self.neighbours.host(host, ran_ns);
            }
            out.extend(host.map(Record::Host));
        });
        let is_own = |pid| resident.contains_key(&pid);
        for pid in self.neighbours.poll(at, is_own, out) {
            outsiders.meet(pid, out);
        }
        self.outsiders.round(at, || outsiders.tell_use(at, out));
        self.stalls.round(at, || {
            out.extend(stalls::read(at, groups).map(Record::CgroupPressure));
        });
        self.processes.poll(at, resident, out);
    }

    /// Reads once more at the end of the watch, due or not, so that differences cover all of it.
    pub(super) fn last(
        &mut self,
        at: KtimeNs,
        job: Job,
        outsiders: &mut Outsiders,
        out: &mut Vec<Record>,
    ) {
        for pace in [
            &mut self.membership,
            &mut self.quota,
            &mut self.memory,
            &mut self.host,
            &mut self.stalls,
            &mut self.outsiders,
        ] {
            pace.now();
        }
        self.processes.now();
        self.neighbours.now();
        self.poll(at, job, outsiders, out);
        if self.sockets.has_new() {
            self.sockets.now();
            self.sockets.resolve(at, out);
        }
    }

    /// A thread of process `pid` waited on the socket with this inode for so many nanoseconds.
    pub(super) fn socket(&mut self, pid: u32, inode: u64, waited_ns: u64) {
        self.sockets.meet(pid, inode, waited_ns);
    }

    /// Finds the far ends of sockets that are new.
    pub(super) fn resolve_sockets(&mut self, out: &mut Vec<Record>) {
        if self.sockets.has_new() {
            self.sockets.resolve(own::now(), out);
        }
    }
}

/// Pids of a map of sizes, the largest first.
fn largest_first(resident: &BTreeMap<u32, u64>) -> Vec<u32> {
    let mut pids: Vec<(u64, u32)> = resident.iter().map(|(pid, bytes)| (*bytes, *pid)).collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter().map(|(_, pid)| pid).collect()
}

/// Keeps what belongs to processes that are still there.
fn retain<V>(of: &mut BTreeMap<u32, V>, alive: &BTreeSet<u32>) {
    of.retain(|pid, _| alive.contains(pid));
}
