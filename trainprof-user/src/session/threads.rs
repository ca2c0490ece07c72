//! One thread's time.

use std::collections::BTreeMap;

use trainprof_common::{op::Class, thread::State};

use super::{
    activity::Activity,
    kind::{WaitKind, wait_kind},
    thread_files::ThreadFiles,
};
use crate::{
    record::fact::{Counters, ObjectFact, OpenThread, ThreadTotals, WaitFact, WaitSum, WakerFact},
    time::KtimeNs,
};

/// Different waits that are kept apart for one thread; the rest are told apart by kind and waker alone.
const MAX_WAITS: usize = 4096;

/// Identity of a thread. Its id is one of its own life, but a thread that executes a program takes its process's over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadKey {
    pub tid: u32,
    pub since: KtimeNs,
}

/// Waits that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId {
    /// System call, or a `NR_*` number of [`trainprof_common::thread`].
    pub nr: i16,
    pub object: ObjectFact,
    pub waker: WakerFact,
}

impl WaitId {
    /// What a single wait counts as in the sums: files are told apart by their file set alone.
    pub fn of_single(wait: &WaitFact) -> Self {
        let in_fileset = matches!(
            Class::try_from(wait.object.class),
            Ok(Class::File | Class::Directory | Class::Tmpfs)
        );
        let mut object = wait.object;
        if in_fileset {
            object.id = 0;
        }
        Self {
            nr: wait.nr,
            object,
            waker: wait.waker,
        }
    }
}

/// How often and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotal {
    pub count: u64,
    pub wait_ns: u64,
    /// From the wake-up until on a CPU.
    pub runnable_ns: u64,
    pub iowait_ns: u64,
    pub max_ns: u64,
}

/// One thread of the job.
#[derive(Clone, Debug)]
pub struct Thread {
    pub pid: u32,
    pub key: ThreadKey,
    pub name: String,
    /// Its beginning was seen: it was not there before the watch.
    pub made: bool,
    /// When it ended; `None` while it lives.
    pub until: Option<KtimeNs>,
    pub run_ns: u64,
    /// Nanoseconds from being put off the CPU until back on one, and how often.
    pub preempted_ns: u64,
    pub preemptions: u32,
    pub waits: BTreeMap<WaitId, WaitTotal>,
    pub counters: Option<Counters>,
    pub activity: Activity,
    pub files: ThreadFiles,
}

impl Thread {
    pub(super) fn new(pid: u32, key: ThreadKey, name: String) -> Self {
        Self {
            pid,
            key,
            name,
            made: false,
            until: None,
            run_ns: 0,
            preempted_ns: 0,
            preemptions: 0,
            waits: BTreeMap::new(),
            counters: None,
            activity: Activity::default(),
            files: ThreadFiles::default(),
        }
    }

    pub(super) fn set_totals(&mut self, totals: &ThreadTotals) {
        self.run_ns = totals.run_ns;
        self.preempted_ns = totals.preempted_ns;
        self.preemptions = totals.preemptions;
    }

    pub(super) fn add_wait(&mut self, wait: &WaitSum) {
        let total = self.wait_entry(wait.nr, wait.object, wait.waker);
        total.count += wait.count;
        total.wait_ns += wait.wait_ns;
        total.runnable_ns += wait.runnable_ns;
        total.iowait_ns += wait.iowait_ns;
        total.max_ns = total.max_ns.max(wait.max_ns);
    }

    fn wait_entry(&mut self, nr: i16, object: ObjectFact, waker: WakerFact) -> &mut WaitTotal {
        let mut id = WaitId { nr, object, waker };
        if self.waits.len() >= MAX_WAITS && !self.waits.contains_key(&id) {
            id.object.id = 0;
        }
        self.waits.entry(id).or_default()
    }

    /// Counts the state that the thread is still in when the watch ends.
    pub(super) fn close(&mut self, open: &OpenThread, at: KtimeNs) {
        let ns = at.since(open.since.max(self.key.since));
        let waker = WakerFact { kind: 0, tid: 0 };
        if u32::from(open.state) == State::Wait as u32 {
            let total = self.wait_entry(open.nr, open.object, waker);
            total.count += 1;
            total.wait_ns += ns;
            total.max_ns = total.max_ns.max(ns);
        } else if u32::from(open.state) == State::Preempted as u32 {
            self.preemptions += 1;
            self.preempted_ns += ns;
        }
    }

    /// Nanoseconds that the thread was there while it was watched, until `end` at most.
    pub fn present_ns(&self, end: KtimeNs) -> u64 {
        self.until.unwrap_or(end).since(self.key.since)
    }

    /// Nanoseconds blocked, until woken.
    pub fn wait_ns(&self) -> u64 {
        self.waits.values().map(|w| w.wait_ns).sum()
    }

    /// Nanoseconds that it wanted a CPU and had none.
    pub fn runnable_ns(&self) -> u64 {
        self.preempted_ns + self.waits.values().map(|w| w.runnable_ns).sum::<u64>()
    }

    /// Nanoseconds blocked in waits of one kind.
    pub fn wait_ns_of(&self, kind: WaitKind) -> u64 {
        self.waits
            .iter()
            .filter(|(id, _)| wait_kind(id) == kind)
            .map(|(_, w)| w.wait_ns)
            .sum()
    }
}
