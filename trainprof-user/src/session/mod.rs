//! The job as the records tell it: who is in it, what each thread did with its time, and with which files.
//!
//! Synchronous, without a clock and without I/O: the same records give the same session, live or replayed.

pub mod activity;
pub mod alloc;
mod dearer;
mod few;
pub mod files;
pub mod gpu;
pub mod history;
pub mod host;
pub mod kind;
mod lives;
pub mod memory;
pub mod passing;
mod process_allocs;
pub mod python;
mod rates;
pub mod roles;
mod rss;
pub mod shares;
pub mod strata;
mod thread_files;
mod threads;
mod uncounted;
mod untimed;

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{loss::Loss, op::Op, thread::State};

use crate::{
    env::mounts::MountFacts,
    env::{FILE_OPERATIONS, kernel_member},
    record::{
        Record,
        fact::{
            CostSample, FilesetFact, Interval, OpSum, OpenThread, PassFact, PlaceFact, ProcessSeen,
            SpinCost, Start, Stop, ThreadSeen, ThreadTotals, WaitFact, WakerFact,
        },
    },
    time::KtimeNs,
};

pub use activity::{Activity, MIN_STATE_BYTES, WRITTEN};
pub use alloc::AllocSeen;
use files::on_memory;
pub use files::{Coarse, FileTotals, Histogram, OpKey, OpTotal};
pub use gpu::GpuSeen;
pub use history::{History, Segment};
pub use host::HostSeen;
pub use lives::Id;
use lives::Lives;
pub use memory::{MemorySeen, SeenFault};
pub use python::PythonSeen;
pub use rss::{JobRss, Rss};
pub use threads::{Thread, ThreadKey, WaitId, WaitTotal};
use uncounted::Uncounted;
use untimed::Untimed;

/// A process of the job: one life of a process id.
#[derive(Clone, Debug)]
pub struct Process {
    /// As all ids here one for this life alone, see [`Id`].
    pub pid: u32,
    pub since: KtimeNs,
    pub parent: u32,
    pub name: String,
    /// As last seen: after an exec, the program that was executed.
    pub seen: ProcessSeen,
    /// It executed a program while it was watched.
    pub executed: bool,
    /// Resident bytes over time: first, last, largest.
    pub rss: Option<Rss>,
}

/// Everything that was recorded, summed up.
#[derive(Default)]
pub struct Session {
    lives: Lives,
    pub start: Option<Start>,
    /// Resident memory of the job.
    pub rss: JobRss,
    pub stop: Option<Stop>,
    pub missing: Vec<(String, String)>,
    pub processes: BTreeMap<u32, Process>,
    pub threads: BTreeMap<ThreadKey, Thread>,
    /// Under an id that a thread takes over by executing a program, another one was before.
    current: BTreeMap<u32, ThreadKey>,
    /// By process: a job may have many that live for a moment each.
    of_process: BTreeMap<u32, BTreeSet<ThreadKey>>,
    pub filesets: BTreeMap<u32, FilesetFact>,
    pub mounts: Vec<MountFacts>,
    pub outsiders: BTreeMap<u32, (Option<u32>, Option<String>)>,
    pub files: FileTotals,
    /// Single facts, for the walk along wake-ups.
    pub history: History,
    pub places: BTreeMap<u32, PlaceFact>,
    pub gpu: GpuSeen,
    pub host: HostSeen,
    untimed: Untimed,
    pub uncounted: Uncounted,
    pub memory: MemorySeen,
    pub alloc: AllocSeen,
    pub python: PythonSeen,
    /// Lost facts by [`trainprof_common::loss::Loss`] number.
    pub lost: BTreeMap<u32, u64>,
    pub undecodable: u64,
    /// When facts were lost, for whatever reason.
    pub lossy: Vec<Lossy>,
    /// Single events and aggregated occurrences that were seen.
    pub facts: u64,
    pub cost: Option<CostSample>,
    pub spin_cost: Option<SpinCost>,
    /// CPU nanoseconds of trainprof until the watch began; `None`: not told.
    pub start_cost_ns: Option<u64>,
    /// Until when something was seen.
    pub until: KtimeNs,
}

/// A time in which facts were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lossy {
    pub from: KtimeNs,
    pub to: KtimeNs,
    /// How many.
    pub lost: u64,
}

impl Session {
    /// Takes one record in. Records come in the order in which they were written.
    pub fn apply(&mut self, record: &Record) {
        let record = self.lives.tell_apart(record);
        let record = record.as_ref();
        match record {
            Record::Start(start) => {
                self.until = start.at;
                self.start = Some(start.clone());
            }
            Record::Missing { what, reason } => self.missing.push((what.clone(), reason.clone())),
            Record::Process(seen) => self.process(seen),
            Record::Thread(seen) => self.thread_seen(seen),
            Record::Exec {
                at,
                pid,
                old_tid,
                name,
            } => {
                self.gpu.gone(*pid);
                self.exec(*at, *pid, *old_tid, name);
            }
            Record::Exit { at, tid, .. } => {
                if let Some(thread) = self.thread_mut(*tid) {
                    thread.until = Some(*at);
                }
            }
            Record::Mount(mount) => self.mounts.push(mount.clone()),
            Record::Fileset(fact) => {
                self.filesets.insert(fact.number, fact.clone());
            }
            // Their time is in the sums of their interval; one by one they are for the walk along wake-ups.
            Record::Wait(wait) => self.history.wait(*wait),
            Record::Touch(touch) => self.history.touch(*touch),
            Record::Sample(sample) => self.history.sample(*sample),
            Record::GpuCall(call) => self.history.call(call.clone()),
            Record::Backward(pass) => self.history.pass(PassFact::from(*pass)),
            Record::Pass(pass) => self.history.pass(*pass),
            Record::Update(update) => self.history.update(*update),
            Record::Execution(execution) => self.history.execution(*execution),
            Record::Place(place) => {
                self.places.insert(place.number, place.clone());
            }
            Record::Sampling(_) => {}
            Record::EntriesHidden { ns } => self.untimed.hidden(*ns),
            Record::OpLatencies(latencies) => self.files.add_latencies(latencies),
            Record::CallsHidden(hidden) => self.uncounted.hidden(hidden),
            Record::Frame(_)
            | Record::Stack(_)
            | Record::FaultSampling(_)
            | Record::Fault(_)
            | Record::PagesGone(_)
            | Record::HugePages(_)
            | Record::PyFault(_)
            | Record::FaultEdge { .. } => self.memory.apply(record),
            Record::GpuDevice(_)
            | Record::GpuSample(_)
            | Record::GpuProcess(_)
            | Record::GpuFunction { .. }
            | Record::GpuMemory(_)
            | Record::PyGpuMemory(_)
            | Record::GpuMemoryUntold => self.gpu.apply(record),
            Record::Quota(_)
            | Record::CgroupMemory(_)
            | Record::CgroupPressure(_)
            | Record::Host(_)
            | Record::ProcessMemory(_)
            | Record::Socket(_)
            | Record::OutsiderCommand { .. }
            | Record::OutsiderUse(_)
            | Record::Neighbours(_)
            | Record::OutOfMemory { .. }
            | Record::Affinity { .. } => self.host.apply(record),
            Record::AllocCalibration(_)
            | Record::OpeningPause { .. }
            | Record::Allocator(_)
            | Record::AllocWindow(_)
            | Record::AllocSite(_)
            | Record::Governor(_) => self.alloc.apply(record),
            Record::PyFunction(_)
            | Record::PyStack(_)
            | Record::PySample(_)
            | Record::PyThreadSample(_)
            | Record::PyRuntime(_) => {
                self.python.apply(record);
            }
            Record::Interval(interval) => self.interval(interval),
            Record::Outsider { tid, pid, name } => {
                self.outsiders.insert(*tid, (*pid, name.clone()));
            }
            Record::Memory { at, pid, rss_bytes } => {
                if let Some(process) = self.processes.get_mut(pid) {
                    let rss = process.rss.get_or_insert(Rss::new(*rss_bytes));
                    rss.add(*rss_bytes);
                    self.rss.add(*at, *rss_bytes);
                }
            }
            Record::Cost(cost) => self.cost = Some(*cost),
            Record::SpinCost(cost) => self.spin_cost = Some(*cost),
            Record::StartCost(cost) => self.start_cost_ns = Some(cost.own_ns),
            Record::Stop(stop) => self.finish(stop),
            Record::Frameworks { pid, frameworks } => {
                if let Some(process) = self.processes.get_mut(pid) {
                    process.seen.frameworks = Some(frameworks.clone());
                }
            }
        }
    }

    /// Length of the watch, seconds.
    pub fn duration_s(&self) -> f64 {
        self.start
            .as_ref()
            .map_or(0.0, |start| self.until.seconds_since(start.at))
    }

    /// For how long beginnings of system calls were hidden, seconds: the times of calls are then those of a sample.
    pub fn calls_untimed_s(&self) -> f64 {
        self.untimed.total_ns as f64 / 1e9
    }

    /// CPU seconds that a process used a second, over the whole watch.
    pub fn cpus_used(&self, pid: u32) -> f64 {
        let ns: u64 = self.threads_of(pid).map(|thread| thread.run_ns).sum();
        let duration = self.duration_s();
        if duration > 0.0 {
            ns as f64 / 1e9 / duration
        } else {
            0.0
        }
    }

    /// Whether the kernel has this member of its structures, by its name in
    /// [`trainprof_common::offsets::Offsets`].
    pub fn has_kernel_member(&self, name: &str) -> bool {
        self.sees(&kernel_member(name))
    }

    /// Whether this host lets us see something, by the name that a [`Record::Missing`] has for it.
    pub fn sees(&self, what: &str) -> bool {
        !self.missing.iter().any(|(missing, _)| missing == what)
    }

    /// Whether operations on files are seen, or were until they could not be any more.
    pub fn sees_files(&self) -> bool {
        let is_seen = |key: &OpKey| Op::is_call(key.op) && !on_memory(key.op);
        self.sees(FILE_OPERATIONS) || self.files.ops.keys().any(is_seen)
    }

    /// Share (0–1) of the watch in which the calls of the whole job were counted.
    pub fn calls_counted_share(&self) -> f64 {
        let uncounted = self.uncounted.seconds();
        1.0 - uncounted / self.duration_s().max(uncounted).max(f64::MIN_POSITIVE)
    }

    /// Whether the kernel counts page faults by thread.
    pub fn counts_faults(&self) -> bool {
        ["task_min_flt", "task_maj_flt"]
            .iter()
            .all(|name| self.has_kernel_member(name))
    }

    /// Whether it counts bytes of storage: those without task I/O accounting (CONFIG_TASK_IO_ACCOUNTING) do not.
    pub fn counts_storage(&self) -> bool {
        ["task_read_bytes", "task_write_bytes"]
            .iter()
            .all(|name| self.has_kernel_member(name))
    }

    /// Whether a process was made while the watch went on. One that was there before is followed from the first moments of it on.
    pub fn was_made(&self, pid: u32) -> bool {
        let first = ThreadKey {
            tid: pid,
            since: KtimeNs(0),
        };
        let mut main = self
            .threads
            .range(first..)
            .take_while(|(key, _)| key.tid == pid);
        main.any(|(_, thread)| thread.made)
    }

    /// The threads of a process, ended ones included, in order.
    pub fn threads_of(&self, pid: u32) -> impl Iterator<Item = &Thread> + Clone {
        let keys = self.of_process.get(&pid).into_iter().flatten();
        keys.filter_map(|key| self.threads.get(key))
    }

    /// The thread that a thread id stands for now.
    pub fn thread(&self, tid: u32) -> Option<&Thread> {
        self.threads.get(self.current.get(&tid)?)
    }

    fn thread_mut(&mut self, tid: u32) -> Option<&mut Thread> {
        self.threads.get_mut(self.current.get(&tid)?)
    }

    fn process(&mut self, seen: &ProcessSeen) {
        let process = Process {
            pid: seen.pid,
            since: seen.at,
            parent: seen.parent,
            name: seen.name.clone(),
            seen: seen.clone(),
            executed: false,
            rss: None,
        };
        let alive = self
            .threads_of(seen.pid)
            .any(|thread| thread.until.is_none());
        match self.processes.get_mut(&seen.pid) {
            // Another program in the same process: its parent and its beginning stay.
            Some(known) if alive => {
                known.name.clone_from(&seen.name);
                known.seen = ProcessSeen {
                    parent: known.parent,
                    ..seen.clone()
                };
            }
            _ => {
                self.processes.insert(seen.pid, process);
            }
        }
    }

    fn thread_seen(&mut self, seen: &ThreadSeen) {
        let key = ThreadKey {
            tid: seen.tid,
            since: seen.at,
        };
        let mut thread = Thread::new(seen.pid, key, seen.name.clone());
        thread.made = seen.parent_tid.is_some();
        self.threads.insert(key, thread);
        self.current.insert(seen.tid, key);
        self.of_process.entry(seen.pid).or_default().insert(key);
    }

    /// A thread that executes a program takes the id of its process over; all others of the process end.
    fn exec(&mut self, at: KtimeNs, pid: u32, old_tid: u32, name: &str) {
        if old_tid != pid
            && let Some(key) = self.current.remove(&old_tid)
        {
            if let Some(leader) = self.thread_mut(pid) {
                leader.until.get_or_insert(at);
            }
            if let Some(mut thread) = self.threads.remove(&key) {
                thread.key.tid = pid;
                self.current.insert(pid, thread.key);
                let threads = self.of_process.entry(thread.pid).or_default();
                threads.remove(&key);
                threads.insert(thread.key);
                self.threads.insert(thread.key, thread);
            }
        }
        if let Some(thread) = self.thread_mut(pid) {
            name.clone_into(&mut thread.name);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.executed = true;
            name.clone_into(&mut process.name);
        }
    }

    /// Adds the interval to the times in which facts were lost; such that follow each other are one.
    fn lossy(&mut self, interval: &Interval) {
        let lost = interval.lost.iter().map(|(_, count)| count).sum::<u64>() + interval.undecodable;
        if lost == 0 {
            return;
        }
        match self.lossy.last_mut() {
            Some(last) if last.to == interval.from => {
                last.to = interval.to;
                last.lost += lost;
            }
            _ => self.lossy.push(Lossy {
                from: interval.from,
                to: interval.to,
                lost,
            }),
        }
    }

    fn interval(&mut self, interval: &Interval) {
        self.until = self.until.max(interval.to);
        self.undecodable += interval.undecodable;
        self.facts += interval.events;
        for (reason, count) in &interval.lost {
            *self.lost.entry(*reason).or_default() += count;
            if [Loss::RingFull as u32, Loss::GpuCallsFull as u32].contains(reason) && *count > 0 {
                self.gpu.lost();
            }
        }
        self.lossy(interval);
        self.close_history(interval);
        // The ends first: they tell of threads whose beginning was lost.
        for end in &interval.ended {
            let key = ThreadKey {
                tid: end.tid,
                since: end.followed_since,
            };
            if !self.threads.contains_key(&key) {
                self.thread_seen(&ThreadSeen {
                    at: end.followed_since,
                    pid: end.pid,
                    tid: end.tid,
                    parent_tid: None,
                    name: end.name.clone(),
                });
            }
            // Not always the one that has the id now: another thread may have taken it over.
            if let Some(thread) = self.threads.get_mut(&key) {
                thread.until = Some(end.at);
                thread.set_totals(&end.totals);
                thread.counters = Some(end.counters);
                // Empty where the kernel's structures tell no name.
                if !end.name.is_empty() {
                    thread.name.clone_from(&end.name);
                }
            }
        }
        for totals in &interval.running {
            if let Some(thread) = self.thread_mut(totals.tid) {
                thread.set_totals(totals);
            }
        }
        for wait in &interval.waits {
            self.facts += wait.count;
            if let Some(thread) = self.thread_mut(wait.tid) {
                thread.add_wait(wait);
            }
        }
        let timed = self.untimed.complete(interval);
        self.facts += timed.iter().map(|op| op.count).sum::<u64>();
        let (threads, current) = (&self.threads, &self.current);
        let pid = |tid| Some(threads.get(current.get(&tid)?)?.pid);
        let ops = self.uncounted.complete(interval, timed, pid);
        self.operations(&ops);
        for hist in &interval.hists {
            let pid = self.thread_mut(hist.tid).map(|thread| {
                thread.files.add_histogram(hist);
                thread.pid
            });
            self.files.add_histogram(hist, pid);
        }
    }

    fn operations(&mut self, ops: &[OpSum]) {
        for op in ops {
            let pid = self.thread_mut(op.tid).map(|thread| {
                thread.activity.add(op);
                thread.files.add(op);
                thread.pid
            });
            self.files.add(op, pid);
        }
    }

    fn close_history(&mut self, interval: &Interval) {
        let threads = &self.threads;
        let current = &self.current;
        let whole = !self.uncounted.hides_trainers();
        let thinned = self.history.close(interval, whole, |tid| {
            let thread = threads.get(current.get(&tid)?)?;
            Some(ThreadTotals {
                tid,
                run_ns: thread.run_ns,
                preemptions: thread.preemptions,
                preempted_ns: thread.preempted_ns,
            })
        });
        if thinned {
            self.python.retain(&self.history.spans());
        }
    }

    fn finish(&mut self, stop: &Stop) {
        self.until = self.until.max(stop.at);
        let rest = self.uncounted.finish();
        self.operations(&rest);
        let waiting = |open: &&OpenThread| u32::from(open.state) == State::Wait as u32;
        self.history
            .unfinished(stop.threads.iter().filter(waiting).map(|open| WaitFact {
                tid: open.tid,
                from: open.since,
                wait_ns: stop.at.since(open.since),
                runnable_ns: 0,
                ran_before: 0,
                nr: open.nr,
                object: open.object,
                waker: WakerFact { kind: 0, tid: 0 },
                iowait: false,
            }));
        for open in &stop.threads {
            if let Some(thread) = self.thread_mut(open.tid) {
                thread.set_totals(&open.totals);
                thread.counters = open.counters.or(thread.counters);
                if !open.name.is_empty() {
                    thread.name.clone_from(&open.name);
                }
                thread.close(open, stop.at);
            }
        }
        self.stop = Some(stop.clone());
    }
}
