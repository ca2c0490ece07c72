//! Which life of an id a fact is about: the kernel gives the ids of processes and threads out again.
//!
//! The first life of an id goes by the id itself, each later one by a number that no id can be. Records are put into these terms before
//! anything is derived from them; everything later takes the numbers for ids, and only an [`Id`] shows them as the kernel has them.
//! Facts are known to be of a life by their time, since they may come after the next life has begun.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};

use crate::{
    record::{
        Record,
        fact::{Interval, WaitFact},
    },
    time::KtimeNs,
};

/// Ids are below 2^22 (PID_MAX_LIMIT in include/linux/threads.h).
const ID_BITS: u32 = 22;
/// Lives of one id that are told apart; all that come after them count as the last one.
const MOST_LIVES: usize = 1 << (u32::BITS - ID_BITS);

/// A process or thread as people and programs are told of it: by the id that the kernel gave it. Two lives of an id read alike and are
/// not equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

impl Id {
    /// What the kernel calls it.
    pub const fn of_kernel(self) -> u32 {
        self.0 & ((1 << ID_BITS) - 1)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of_kernel().fmt(f)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.of_kernel())
    }
}

/// From when to when an id stood for the same thread, and the process that it is the first thread of.
#[derive(Clone, Copy, Debug)]
struct Life {
    since: KtimeNs,
    until: Option<KtimeNs>,
    /// When another thread of the process took the id over: what ended before that is not this life.
    taken_over: KtimeNs,
    /// Its final account is there.
    accounted: bool,
}

impl Life {
    fn new(since: KtimeNs) -> Self {
        Self {
            since,
            until: None,
            taken_over: since,
            accounted: false,
        }
    }

    fn ns_within(&self, from: KtimeNs, to: KtimeNs) -> u64 {
        let end = self.until.map_or(to, |until| until.min(to));
        end.since(self.since.max(from))
    }
}

/// The lives of all ids.
#[derive(Default)]
pub(super) struct Lives {
    /// By id, in the order in which they began.
    known: BTreeMap<u32, Vec<Life>>,
    /// An id was given out again.
    again: bool,
    /// When the last window on an allocator began: its sites are told after it.
    window: KtimeNs,
}

impl Lives {
    /// A record in terms of lives; itself as long as no id was given out again.
    pub(super) fn tell_apart<'a>(&mut self, record: &'a Record) -> Cow<'a, Record> {
        self.learn(record);
        if !self.again {
            return Cow::Borrowed(record);
        }
        let mut record = record.clone();
        self.put(&mut record);
        Cow::Owned(record)
    }

    fn learn(&mut self, record: &Record) {
        match record {
            Record::Process(seen) => self.begin(seen.pid, seen.at),
            Record::Thread(seen) => self.begin(seen.tid, seen.at),
            Record::Exec {
                at, pid, old_tid, ..
            } if old_tid != pid => {
                self.end(*old_tid, *at);
                self.take_over(*pid, *at);
            }
            Record::Exec { at, pid, .. } => self.begin(*pid, *at),
            Record::Exit { at, tid, .. } => {
                self.end(*tid, *at);
            }
            // They tell of threads whose beginning, or whose end, was lost.
            Record::Interval(interval) => {
                for end in &interval.ended {
                    self.begin(end.tid, end.followed_since);
                    if let Some(life) = self.end(end.tid, end.at) {
                        life.accounted = true;
                    }
                }
            }
            Record::Stop(stop) => {
                for open in &stop.threads {
                    self.begin(open.tid, open.followed_since);
                }
            }
            Record::AllocWindow(window) => self.window = window.from,
            _ => {}
        }
    }

    /// Somebody has this id since then: of a life that is known, unless that one has ended before.
    fn begin(&mut self, id: u32, since: KtimeNs) {
        let lives = self.known.entry(id).or_default();
        let full = lives.len() == MOST_LIVES;
        match lives.last_mut() {
            Some(last) if since <= last.since || last.until.is_none_or(|until| since < until) => {}
            Some(last) if full => {
                last.until = None;
                last.accounted = false;
            }
            Some(_) => {
                lives.push(Life::new(since));
                self.again = true;
            }
            None => lives.push(Life::new(since)),
        }
    }

    /// The id stands for nobody from then on. `None`: the thread that ended had handed it on.
    fn end(&mut self, id: u32, at: KtimeNs) -> Option<&mut Life> {
        let life = number_at(self.known.get(&id)?, at);
        let life = self.known.get_mut(&id)?.get_mut(life)?;
        if at < life.taken_over {
            return None;
        }
        life.until = Some(at);
        Some(life)
    }

    /// A thread that executes a program goes on under the id of its process, whose first thread has ended.
    fn take_over(&mut self, id: u32, at: KtimeNs) {
        let lives = self.known.entry(id).or_default();
        match lives.last_mut() {
            Some(last) => {
                last.until = None;
                last.taken_over = at;
            }
            None => lives.push(Life::new(at)),
        }
    }

    /// Who had an id at a time. What a thread does on its way out, such as waking who waits for it, comes after its end.
    fn at(&self, id: u32, at: KtimeNs) -> u32 {
        let lives = self.known.get(&id);
        lives.map_or(id, |lives| numbered(id, number_at(lives, at)))
    }

    /// Who has it now.
    fn now(&self, id: u32) -> u32 {
        self.at(id, KtimeNs(u64::MAX))
    }

    /// Who had an id for most of a time: sums of a thread id do not tell two lives apart.
    fn within(&self, id: u32, from: KtimeNs, to: KtimeNs) -> u32 {
        let Some(lives) = self.known.get(&id) else {
            return id;
        };
        let by_time = |(_, life): &(usize, &Life)| life.ns_within(from, to);
        let most = lives.iter().enumerate().max_by_key(by_time);
        match most.filter(|most| by_time(most) > 0) {
            Some((number, _)) => numbered(id, number),
            None => self.at(id, to),
        }
    }

    /// Who of those that had an id was there at a time and has not given its final account.
    fn unaccounted(&self, id: u32, at: KtimeNs) -> u32 {
        let there = |life: &Life| !life.accounted && life.until.is_none_or(|until| until > at);
        let number = self
            .known
            .get(&id)
            .and_then(|lives| lives.iter().position(there));
        number.map_or_else(|| self.now(id), |number| numbered(id, number))
    }

    /// Puts lives in the place of ids.
    fn put(&self, record: &mut Record) {
        let at = |id: &mut u32, when: KtimeNs| *id = self.at(*id, when);
        let now = |id: &mut u32| *id = self.now(*id);
        match record {
            Record::Process(seen) => {
                at(&mut seen.pid, seen.at);
                at(&mut seen.parent, seen.at);
            }
            Record::Thread(seen) => {
                at(&mut seen.pid, seen.at);
                at(&mut seen.tid, seen.at);
                if let Some(parent) = &mut seen.parent_tid {
                    at(parent, seen.at);
                }
            }
            Record::Exec {
                at: when,
                pid,
                old_tid,
                ..
            } => {
                at(pid, *when);
                at(old_tid, *when);
            }
            Record::Exit { at: when, pid, tid } => {
                at(pid, *when);
                at(tid, *when);
            }
            Record::Wait(wait) => self.put_wait(wait),
            Record::Interval(interval) => self.put_interval(interval),
            Record::Memory { at: when, pid, .. } | Record::OutOfMemory { at: when, pid } => {
                at(pid, *when);
            }
            Record::Stop(stop) => {
                for open in &mut stop.threads {
                    at(&mut open.pid, stop.at);
                    at(&mut open.tid, stop.at);
                    open.totals.tid = open.tid;
                }
            }
            Record::Frameworks { pid, .. } | Record::Affinity { pid, .. } => now(pid),
            Record::Touch(touch) => at(&mut touch.tid, touch.at),
            Record::Sample(sample) => at(&mut sample.tid, sample.at),
            Record::GpuProcess(process) => at(&mut process.pid, process.at),
            Record::GpuCall(call) => at(&mut call.tid, call.from),
            Record::Backward(pass) => at(&mut pass.tid, pass.at),
            Record::Pass(pass) => at(&mut pass.tid, pass.at),
            Record::Update(update) => at(&mut update.tid, update.at),
            Record::Execution(execution) => at(&mut execution.tid, execution.at),
            Record::ProcessMemory(sample) => at(&mut sample.pid, sample.at),
            Record::Fault(fault) => {
                at(&mut fault.pid, fault.at);
                at(&mut fault.tid, fault.at);
            }
            Record::Allocator(allocator) => now(&mut allocator.pid),
            Record::AllocWindow(window) => {
                at(&mut window.pid, window.from);
                for calls in &mut window.calls {
                    at(&mut calls.tid, window.from);
                }
            }
            Record::AllocSite(site) => at(&mut site.pid, self.window),
            Record::GpuMemory(memory) => {
                at(&mut memory.tid, memory.at);
                at(&mut memory.pid, memory.at);
            }
            Record::PySample(sample) => at(&mut sample.pid, sample.at),
            Record::PyThreadSample(sample) => at(&mut sample.tid, sample.at),
            Record::PyRuntime(runtime) => now(&mut runtime.pid),
            Record::CallsHidden(hidden) => {
                for pid in hidden.counted.iter_mut().flatten() {
                    *pid = self.within(*pid, hidden.from, hidden.to);
                }
            }
            // Of nobody, or of who is outside the job: of those only the id is known.
            Record::Start(_)
            | Record::Missing { .. }
            | Record::Mount(_)
            | Record::Fileset(_)
            | Record::Outsider { .. }
            | Record::Cost(_)
            | Record::Sampling(_)
            | Record::Place(_)
            | Record::GpuDevice(_)
            | Record::GpuSample(_)
            | Record::GpuFunction { .. }
            | Record::Quota(_)
            | Record::CgroupMemory(_)
            | Record::Host(_)
            | Record::Socket(_)
            | Record::OutsiderCommand { .. }
            | Record::OutsiderUse(_)
            | Record::Neighbours(_)
            | Record::EntriesHidden { .. }
            | Record::OpLatencies(_)
            | Record::Frame(_)
            | Record::Stack(_)
            | Record::FaultSampling(_)
            | Record::PagesGone(_)
            | Record::HugePages(_)
            | Record::PyFault(_)
            | Record::PyGpuMemory(_)
            | Record::GpuMemoryUntold
            | Record::OpeningPause { .. }
            | Record::AllocCalibration(_)
            | Record::Governor(_)
            | Record::PyFunction(_)
            | Record::PyStack(_)
            | Record::SpinCost(_)
            | Record::CgroupPressure(_)
            | Record::StartCost(_)
            | Record::FaultEdge { .. } => {}
        }
    }

    fn put_wait(&self, wait: &mut WaitFact) {
        let woken = KtimeNs(wait.from.0.saturating_add(wait.wait_ns));
        let back = KtimeNs(woken.0.saturating_add(wait.runnable_ns));
        wait.tid = self.at(wait.tid, wait.from);
        wait.waker.tid = self.at(wait.waker.tid, woken);
        wait.ran_before = self.at(wait.ran_before, back);
    }

    fn put_interval(&self, interval: &mut Interval) {
        let (from, to) = (interval.from, interval.to);
        let within = |id: &mut u32| *id = self.within(*id, from, to);
        for op in &mut interval.ops {
            within(&mut op.tid);
        }
        for hist in &mut interval.hists {
            within(&mut hist.tid);
        }
        for wait in &mut interval.waits {
            within(&mut wait.tid);
            within(&mut wait.waker.tid);
        }
        for end in &mut interval.ended {
            end.pid = self.at(end.pid, end.at);
            end.tid = self.at(end.tid, end.at);
            end.totals.tid = end.tid;
        }
        for totals in &mut interval.running {
            totals.tid = self.unaccounted(totals.tid, to);
        }
    }
}

/// Which of an id's lives it was at a time: the last that had begun.
fn number_at(lives: &[Life], at: KtimeNs) -> usize {
    lives
        .partition_point(|life| life.since <= at)
        .saturating_sub(1)
}

/// What a life of an id goes by.
fn numbered(id: u32, number: usize) -> u32 {
    id | (number as u32) << ID_BITS
}

#[cfg(test)]
mod tests;
