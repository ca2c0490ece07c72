//! Time on a CPU, or wanting one: what it went into.

use std::collections::{BTreeMap, BTreeSet};

use super::{Detail, Scene, file_faults::FileFaults};
use crate::{
    analysis::{
        facts::Facts,
        helpers::Task,
        kind::Kind,
        running::split,
        spans::{share_inside, union, without},
        spinning::spun,
        walk::{Leaf, What},
    },
    session::{
        Thread, WaitId,
        kind::{WaitKind, wait_kind},
    },
};

/// Every program takes memory and gives it back: up to so much (0–1) of a thread's running that is part of what it does.
const ORDINARY: f64 = 0.2;
/// Of the model's own computing the kernel's part of it, pages that are taken from it anew, is worth telling from so much on.
const TAKEN_ANEW: f64 = 0.1;

/// Opening, looking at and listing files for so much (0–1) of a thread's running is no by-product of what it computes.
const LOOKS: f64 = 0.1;

/// Files of which this part (0–1) of the bytes at most had to be fetched, and that are waited for for less than this part of the time in
/// which they are read, are in the page cache.
const FETCHED: f64 = 0.02;
const WAITED: f64 = 0.05;

/// Whoever opens less than this part (0–1) of the files that it looks up looks for something else than what they hold.
const OPENED: f64 = 0.1;

/// Less than so many bytes a second through pipes is talk, not data.
const MIN_PIPED_PER_S: f64 = 1e6;

/// Threads that spend more than an ordinary part of their running on memory.
pub(super) fn churning(facts: &Facts, file_faults: &FileFaults) -> BTreeSet<u32> {
    let churns = |thread: &&Thread| {
        let tid = thread.key.tid;
        let split = split(facts, tid, &[]);
        split.churn() - split.fault * file_faults.share(tid) >= ORDINARY
    };
    let threads = facts.session.threads.values();
    threads
        .filter(churns)
        .map(|thread| thread.key.tid)
        .collect()
}

/// Nanoseconds for which each thread waited for files.
pub(super) fn file_waits(facts: &Facts) -> BTreeMap<u32, u64> {
    let waited = |thread: &Thread| {
        let for_file = |id: &WaitId| match wait_kind(id) {
            WaitKind::Fault => id.object.fileset != 0,
            kind => kind == WaitKind::File,
        };
        let waits = thread.waits.iter().filter(|(id, _)| for_file(id));
        waits.map(|(_, total)| total.wait_ns).sum()
    };
    let threads = facts.session.threads.values();
    threads
        .filter(|thread| {
            facts.session.thread(thread.key.tid).map(|now| now.key) == Some(thread.key)
        })
        .map(|thread| (thread.key.tid, waited(thread)))
        .collect()
}

impl Scene<'_> {
    /// Whether what a thread reads comes through pipes rather than from files.
    fn reads_pipes(&self, tid: u32) -> bool {
        self.facts.session.thread(tid).is_some_and(|thread| {
            let activity = &thread.activity;
            let seconds = self.facts.session.duration_s();
            activity.pipe_read_bytes as f64 >= MIN_PIPED_PER_S * seconds
                && activity.pipe_read_bytes > activity.file_read_bytes
        })
    }

    /// Whether what a thread reads was in the page cache: by what was fetched into it, and by how long the thread waited for files beside
    /// the part (0–1) of its running in which it reads.
    fn reads_cache(&self, tid: u32, reading: f64) -> bool {
        let files = self.files.time(self.files.main_of_thread(tid));
        let Some(thread) = self.facts.session.thread(tid) else {
            return false;
        };
        let waited = self.file_waits.get(&tid).copied().unwrap_or(0);
        let fetched = files.filled_bytes as f64 > FETCHED * files.read_bytes as f64;
        !fetched && (waited as f64) < WAITED * reading * thread.run_ns as f64
    }

    /// Whether a thread opens few of the files that it looks up.
    fn opens_few(&self, tid: u32) -> bool {
        let thread = self.facts.session.thread(tid);
        thread.is_some_and(|thread| {
            let activity = &thread.activity;
            activity.file_opens as f64 <= OPENED * activity.file_meta_calls as f64
        })
    }

    /// What writing is that samples of a thread show: they do not tell what is written to, so what its process writes most to counts.
    fn written_to(&self, tid: u32) -> Kind {
        let pid = self.facts.pid(tid);
        let (mut files, mut sockets) = (0, 0);
        for thread in self.facts.session.threads.values() {
            if Some(thread.pid) == pid {
                files += thread.activity.file_write_bytes;
                sockets += thread.activity.socket_write_bytes;
            }
        }
        if files >= sockets || self.checkpoints.are_handed_over() {
            Kind::Checkpoint
        } else if self.cast.ranks.is_empty() {
            Kind::NetworkIo
        } else {
            // Sending to other ranks is part of the step's work: nobody is waited for.
            Kind::Compute
        }
    }

    pub(super) fn running(
        &self,
        leaf: &Leaf,
        tid: u32,
        windows: &[(u64, u64)],
        out: &mut Vec<(Kind, Detail, f64)>,
    ) {
        let producer = self.cast.makes_batches(tid);
        let mut detail = Detail {
            tid,
            ..Detail::default()
        };
        if let Some(task) = self.helper(tid) {
            let kind = match task {
                // A process that samples are taken from: a manager's, a program that a worker started.
                Task::Input => Kind::InputCpu,
                // State that is handed to another process to be written.
                Task::State => Kind::Checkpoint,
                Task::Apart | Task::Other => Kind::Helper,
            };
            if task != Task::Input {
                detail.outsider = tid;
            }
            out.push((kind, detail, 1.0));
            return;
        }
        let mut left = 1.0;
        if self.overstaffed
            && let Some(idle) = self.idlers.get(&tid)
        {
            let outsider = tid;
            out.push((Kind::CpuContention, Detail { outsider, ..detail }, *idle));
            left -= idle;
        }
        // While it ran, others of the job waited for a lock that it hands on.
        if producer {
            for (id, lock) in self.locks {
                if lock.threads.contains(&tid) && self.counts(*id) {
                    let waits = &self.lock_waits[id];
                    let held = share_inside(windows, waits).min(left);
                    out.push((
                        Kind::Serialization,
                        Detail {
                            lock: Some(*id),
                            ..detail
                        },
                        held,
                    ));
                    left -= held;
                }
            }
        }
        if let Some(held) = self.file_locked(tid, windows) {
            let held = held.min(left);
            out.push((Kind::Serialization, detail, held));
            left -= held;
        }
        let own = tid == self.cast.step_tid && leaf.hops.is_empty();
        let checkpoints = self.checkpoints.of(self.cast, tid);
        let passed = &*without(self.passing.of(tid), checkpoints);
        if !passed.is_empty() {
            let looked = share_inside(windows, passed).min(left);
            let (kind, rank) = match producer {
                true => (Kind::NetworkIo, 0),
                false => (Kind::Communication, self.passing.late()),
            };
            out.push((kind, Detail { rank, ..detail }, looked));
            left -= looked;
        }
        if !checkpoints.is_empty() {
            let written = share_inside(windows, checkpoints).min(left);
            out.push((Kind::Checkpoint, detail, written));
            left -= written;
        }
        if own && !self.worker_starts.is_empty() {
            let begun = share_inside(windows, &self.worker_starts).min(left);
            out.push((Kind::WorkerStart, detail, begun));
            left -= begun;
        }
        if own && !self.taking_in.is_empty() {
            let took = share_inside(windows, &self.taking_in).min(left);
            out.push((Kind::InputCpu, detail, took));
            left -= took;
        }
        if own && !self.beside_model.is_empty() {
            let other = share_inside(windows, &self.beside_model).min(left);
            out.push((Kind::HostCompute, detail, other));
            left -= other;
        }
        // What it wrote, took in and did beside its model has had its part.
        let apart = match own {
            true => union([checkpoints, passed, &self.taking_in, &self.beside_model].concat()),
            false => union([checkpoints, passed].concat()),
        };
        let windows = &*without(windows, &apart);
        let mut split = split(self.facts, tid, windows);
        if own && self.describes && self.opens_few(tid) {
            // Sources, for lines of stacks: samples of these are not all at the time of their calls.
            out.push((Kind::HostCompute, detail, left * split.file_meta));
            split.file_meta = 0.0;
        }
        let (meta, read) = self.files.of_thread(tid);
        // Faults on mapped files read them.
        let file_fault = split.fault * self.file_faults.share(tid);
        let fault = split.fault - file_fault;
        let mut user = split.user + split.other_calls;
        let churn = split.churn() - split.fault + fault;
        if self.churning.contains(&tid) {
            out.push((Kind::AllocationChurn, detail, left * churn));
        } else if own && fault + split.memory_calls >= TAKEN_ANEW {
            // What making batches takes is part of making them.
            let apart = 1.0 - share_inside(windows, &self.own_batches.spans).min(1.0);
            let anew = apart * (fault + split.memory_calls);
            out.push((Kind::AllocationChurn, detail, left * anew));
            user += churn - anew;
        } else {
            user += churn;
        }
        let reads_files = producer
            || self
                .facts
                .session
                .thread(tid)
                .is_some_and(|thread| thread.activity.takes_input());
        if own && let Some(spun) = spun(self.facts, tid, &self.team, windows) {
            let share = spun.share.min(split.user);
            let mut wanting = Vec::new();
            if spun.by == tid && self.overstaffed {
                let outsider = spun.mate;
                wanting.push((Kind::CpuContention, Detail { outsider, ..detail }, 1.0));
            } else if spun.by == tid {
                // More team than CPUs, unless others have them.
                wanting.push(self.crowded(tid));
            } else {
                self.runnable(spun.mate, spun.by, &spun.wanted, &mut wanting);
            }
            for (kind, detail, of) in wanting {
                out.push((kind, detail, left * share * of));
                user -= share * of;
            }
        }
        // Batches that come through a pipe are copied out of it, piece by piece: the price of how they are made.
        let piped = if own && self.reads_pipes(tid) {
            split.read
        } else {
            0.0
        };
        out.push((Kind::InputCpu, detail, left * piped));
        let read_calls = split.read - piped;
        out.push((Kind::WorkerStart, detail, left * split.processes));
        let around = self
            .around_calls
            .share(tid, split.file_meta, split.interpreter)
            .min(user);
        let per_file = split.file_meta + around;
        let mut told = 0.0;
        let mut on_files = 0.0;
        if reads_files {
            let fileset = self.files.main_of_thread(tid);
            let files = Detail { fileset, ..detail };
            out.push((meta, files, left * per_file));
            told = around;
            on_files = split.file_meta + read_calls + file_fault + split.socket;
            // What is there already is copied, or mapped: that takes a CPU, and no storage.
            let read = match read {
                Kind::StorageIo if self.reads_cache(tid, read_calls + file_fault) => Kind::InputCpu,
                read => read,
            };
            out.push((read, files, left * (read_calls + file_fault)));
            out.push((Kind::NetworkIo, detail, left * split.socket));
        } else {
            // Opening what is written, which cuts off what it held before.
            let thread = self.facts.session.thread(tid);
            if thread.is_some_and(|thread| thread.activity.writes_state()) {
                out.push((Kind::Checkpoint, detail, left * split.file_meta));
            } else if own && self.cast.producers.is_empty() && split.file_meta >= LOOKS {
                // It reads none of the files that it looks at. One with workers opens what they hand over in shared memory.
                let fileset = self.files.main_of_thread(tid);
                let files = Detail { fileset, ..detail };
                out.push((Kind::SmallFiles, files, left * per_file));
                told = around;
                on_files = split.file_meta;
            } else {
                user += split.file_meta;
            }
            user += read_calls + split.socket + file_fault;
        }
        if producer {
            user += split.write;
        } else if split.write > 0.0 {
            out.push((self.written_to(tid), detail, left * split.write));
        }
        user = (user - told) * left;
        told = left * (told + on_files + piped);
        let driver = left * split.gpu_driver;
        if producer {
            out.push((
                Kind::InputCpu,
                detail,
                user + driver + left * split.decoders,
            ));
            return;
        }
        // A trainer that nobody makes batches for decodes them itself; where its batches can be told from its
        // computing, what else it decodes is none of theirs.
        // A library's own threads decode for it.
        let theirs = !own && self.facts.pid(tid) == Some(self.cast.trainer);
        let decodes = if own {
            self.own_batches.spans.is_empty()
        } else {
            theirs
        };
        if decodes && self.cast.producers.is_empty() {
            out.push((Kind::InputCpu, detail, left * split.decoders));
        } else {
            user += left * split.decoders;
        }
        let batches = if own {
            Some(&self.own_batches.spans)
        } else {
            self.ranks_batches.get(&tid)
        };
        if let Some(batches) = batches.filter(|spans| !spans.is_empty()) {
            // Of these, calls on files have had their part.
            let made = share_inside(windows, batches).min(1.0) * (user + told);
            // Rounding may leave less than nothing of it.
            let input = (made - told).clamp(0.0, user.max(0.0));
            out.push((Kind::InputCpu, detail, input));
            user -= input;
        }
        // While the GPU idles, the host's computing is what keeps it waiting. In the driver it may wait for the GPU, unless such calls are
        // seen, but not while that idles: then it launches work.
        let waits = if self.gpu.waits_seen || self.gpu.sampled() {
            0.0
        } else {
            driver
        };
        let launches = user + driver - waits;
        let host = self.gpu.idle_while_running(windows) * launches;
        detail.outsider = 0;
        out.push((Kind::HostCompute, detail, host));
        out.push((Kind::Compute, detail, launches - host + waits));
    }

    /// What it is that threads of the kernel send and receive for the job.
    fn packets(&self, tid: u32) -> (Kind, Detail) {
        let kind = self.network(tid, 0);
        let detail = Detail {
            tid,
            doing: (kind == Kind::Communication).then_some(kind),
            ..Detail::default()
        };
        (kind, detail)
    }

    /// The part of a wait for another CPU of the job's own that is due to others.
    fn crowded(&self, tid: u32) -> (Kind, Detail, f64) {
        let detail = Detail {
            tid,
            outsider: self.crowding.by,
            ..Detail::default()
        };
        (Kind::CpuContention, detail, self.crowding.share)
    }

    pub(super) fn runnable(
        &self,
        tid: u32,
        by: u32,
        windows: &[(u64, u64)],
        out: &mut Vec<(Kind, Detail, f64)>,
    ) {
        let detail = Detail {
            tid,
            ..Detail::default()
        };
        let ours = self.facts.session.thread(by).is_some();
        let throttled = self.throttled.share(self.facts, tid, by, windows);
        out.push((Kind::CpuThrottled, detail, throttled));
        let left = 1.0 - throttled;
        // Behind a thread that it shares a lock with, while somebody wants that lock: that one was woken for it, or has not
        // let go of the CPU. While nobody wants it, no lock is in the way.
        let lock = ours.then(|| self.shared_lock(tid, by)).flatten();
        let locked = lock.map_or(0.0, |id| share_inside(windows, &self.lock_turns[&id]));
        out.push((
            Kind::Serialization,
            Detail { lock, ..detail },
            left * locked,
        ));
        let mut left = left * (1.0 - locked);
        if let Some(id) = self.services.asked(self.facts, tid, by) {
            let (kind, detail, _) = self.waiting(tid, id.nr, id.object, id.waker);
            out.push((kind, detail, left));
            return;
        }
        if self.own_packets.contains(&by) {
            let (kind, detail) = self.packets(tid);
            out.push((kind, detail, left));
            return;
        }
        let apart = self.helper(by) == Some(Task::Apart);
        if by != 0 && (!ours || apart) {
            let outsider = by;
            out.push((Kind::CpuContention, Detail { outsider, ..detail }, left));
            return;
        }
        let (kind, others, share) = self.crowded(tid);
        out.push((kind, others, left * share));
        left *= 1.0 - share;
        // A thread of its own that looks for work has the CPU for nothing.
        if let Some(idle) = self.idlers.get(&by).filter(|_| !self.overstaffed) {
            let outsider = by;
            let detail = Detail { outsider, ..detail };
            out.push((Kind::CpuContention, detail, left * idle));
            left *= 1.0 - idle;
        }
        // Time that a thread of the job took is what that thread did with it.
        let doer = if ours { by } else { tid };
        let mut doing = Vec::new();
        let leaf = Leaf {
            hops: Vec::new(),
            what: What::Run { tid: doer },
        };
        self.running(&leaf, doer, windows, &mut doing);
        // The lock has had its part.
        let (same, doing): (Vec<_>, Vec<_>) = doing
            .into_iter()
            .partition(|(kind, detail, _)| *kind == Kind::Serialization && detail.lock == lock);
        let same: f64 = same.iter().map(|(_, _, share)| share).sum();
        let left = if same < 1.0 { left / (1.0 - same) } else { 0.0 };
        for (kind, detail, share) in doing {
            let kind = match kind {
                // The GPU's driver apart, computing that is in the way is the model's own.
                Kind::HostCompute => Kind::Compute,
                kind => kind,
            };
            out.push((kind, Detail { tid, ..detail }, left * share));
        }
    }
}
