//! From ways to causes: every leaf of the walk gets the causes that its mechanism stands for.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{op::Class, thread::WakerKind};

use super::{
    alternation::alternation,
    cast::Cast,
    facts::{Facts, is_on_purpose},
    files::FileKinds,
    gpu::GpuTime,
    helpers::{Helpers, Task},
    kind::Kind,
    locks::{Lock, LockId},
    phases,
    running::{Call, call, split},
    spans::{share_inside, union},
    taking_in::taking_in,
    throttle::Throttled,
    timeline::{Item, line},
    walk::{Hop, HopKind, Leaf, Spent, Walked, What},
};
use crate::{
    record::fact::{GpuCallKind, ObjectFact, WakerFact},
    session::kind::{WaitKind, wait_kind},
    session::{Session, WaitId},
};

/// A thread of the job that at least two producers wait for this share of the time feeds them all.
const CHOKE_SHARE: f64 = 0.15;

/// A thread that so much was fetched for in page faults reads files by mapping them.
const MAPPED_BYTES: u64 = 1 << 20;

/// Less than so many bytes a second through pipes is talk, not data.
const MIN_PIPED_PER_S: f64 = 1e6;

/// What is known about a cause beyond its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Detail {
    /// Files.
    pub fileset: u32,
    /// The thread whose doing it was.
    pub tid: u32,
    /// A thread outside the job that it was waited for, or that had the CPU.
    pub outsider: u32,
    /// Another trainer.
    pub rank: u32,
    pub lock: Option<LockId>,
    /// Inode of a socket.
    pub socket: u64,
}

/// Time that went to one cause on one way.
#[derive(Clone, Debug)]
pub struct Share {
    pub leaf: u32,
    pub kind: Kind,
    pub detail: Detail,
    /// Share of the leaf's time, 0–1.
    pub of_leaf: f64,
    pub ns: f64,
    /// Behind a hop to a producer.
    pub in_stall: bool,
}

/// What the classification looks at.
pub struct Scene<'a> {
    pub facts: &'a Facts<'a>,
    pub cast: &'a Cast,
    pub locks: &'a BTreeMap<LockId, Lock>,
    pub files: &'a FileKinds,
    pub throttled: &'a Throttled,
    pub gpu: &'a GpuTime,
    /// Threads that feed several producers.
    chokes: BTreeSet<u32>,
    checkpoints: Vec<(u64, u64)>,
    worker_starts: Vec<(u64, u64)>,
    own_batches: Vec<(u64, u64)>,
    /// How finely the ends of `own_batches` are known, ns.
    own_batches_within: u64,
    own_batches_countable: bool,
    lock_waits: BTreeMap<LockId, Vec<(u64, u64)>>,
    taking_in: Vec<(u64, u64)>,
    helpers: Helpers,
    /// As `lock_waits`, with the time in which somebody had been woken for it and had no CPU yet.
    lock_turns: BTreeMap<LockId, Vec<(u64, u64)>>,
    handed_on: BTreeMap<(LockId, u32), Vec<(u64, u64)>>,
}

impl<'a> Scene<'a> {
    pub fn new(
        facts: &'a Facts<'a>,
        cast: &'a Cast,
        locks: &'a BTreeMap<LockId, Lock>,
        files: &'a FileKinds,
        throttled: &'a Throttled,
        gpu: &'a GpuTime,
    ) -> Self {
        let checkpoints = phases::checkpoints(facts, cast.step_tid);
        let mut own_batches = Vec::new();
        let mut own_batches_within = 0;
        let mut own_batches_countable = true;
        if cast.producers.is_empty() {
            own_batches = phases::own_batches(facts, cast.step_tid);
            if phases::apart_are_files(facts, cast.step_tid, &own_batches) {
                own_batches.clear();
            }
            if own_batches.is_empty()
                && let Some(found) = alternation(facts, cast.step_tid, &checkpoints)
            {
                own_batches = found.apart;
                own_batches_within = found.resolution_ns;
                own_batches_countable = found.countable;
            }
        }
        Self {
            chokes: chokes(facts, cast),
            helpers: Helpers::new(facts, cast),
            checkpoints,
            worker_starts: phases::worker_starts(facts, cast),
            taking_in: if cast.producers.is_empty() {
                Vec::new()
            } else {
                taking_in(facts, cast, locks)
            },
            own_batches,
            own_batches_within,
            own_batches_countable,
            lock_waits: lock_waits(facts, locks, |item| (item.from, item.woken)),
            lock_turns: lock_waits(facts, locks, |item| (item.from, item.to)),
            handed_on: handed_on(facts, locks),
            facts,
            cast,
            locks,
            files,
            throttled,
            gpu,
        }
    }

    /// Stretches in which the step thread, having no producers, made batches itself.
    pub fn own_batches(&self) -> &[(u64, u64)] {
        &self.own_batches
    }

    /// Processes that are neither trainer nor worker.
    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Stretches in which the step thread, having producers, took a batch in.
    pub fn taking_in(&self) -> &[(u64, u64)] {
        &self.taking_in
    }

    /// Whether [`Self::own_batches`] are one a step: else only their share of the time is known.
    pub fn own_batches_countable(&self) -> bool {
        self.own_batches_countable
    }

    /// How finely the ends of [`Self::own_batches`] are known, ns: 0 where they were seen as calls.
    pub fn own_batches_within(&self) -> u64 {
        self.own_batches_within
    }

    /// Stretches in which the step thread wrote a checkpoint.
    pub fn checkpoints(&self) -> &[(u64, u64)] {
        &self.checkpoints
    }

    /// All time that was walked, by cause.
    pub fn shares(&self, walked: &Walked) -> Vec<Share> {
        let mut out = Vec::new();
        for (number, (leaf, spent)) in walked.leaves.iter().enumerate() {
            let in_stall = self.in_stall(leaf);
            let mut parts = Vec::new();
            self.classify(leaf, spent, &mut parts);
            for (kind, detail, of_leaf) in parts {
                if of_leaf > 0.0 {
                    out.push(Share {
                        leaf: number as u32,
                        kind,
                        detail,
                        of_leaf,
                        ns: spent.ns * of_leaf,
                        in_stall,
                    });
                }
            }
        }
        out
    }

    /// Whether the way leads through a wait for a producer.
    fn in_stall(&self, leaf: &Leaf) -> bool {
        leaf.hops
            .iter()
            .skip(1)
            .map(|hop| hop.tid)
            .chain([leaf.what.tid()])
            .any(|tid| self.cast.producers.contains(&tid))
            && !leaf.hops.is_empty()
    }

    fn classify(&self, leaf: &Leaf, spent: &Spent, out: &mut Vec<(Kind, Detail, f64)>) {
        let tid = leaf.what.tid();
        let detail = Detail {
            tid,
            ..Detail::default()
        };
        if let Some(rank) = self.rank_on_way(leaf) {
            out.push((Kind::Communication, Detail { rank, ..detail }, 1.0));
            return;
        }
        if let Some(lock) = self.lock_on_way(leaf) {
            let detail = Detail {
                lock: Some(lock),
                ..detail
            };
            out.push((Kind::Serialization, detail, 1.0));
            return;
        } else if let Some(fileset) = self.kernel_lock_on_way(leaf) {
            let kind = if fileset == 0 {
                Kind::AllocationChurn
            } else {
                Kind::Serialization
            };
            out.push((kind, Detail { fileset, ..detail }, 1.0));
            return;
        } else if let Some(choke) = self.choke_on_way(leaf) {
            out.push((
                Kind::Serialization,
                Detail {
                    tid: choke,
                    ..detail
                },
                1.0,
            ));
            return;
        }
        match leaf.what {
            What::Run { tid } => self.running(leaf, tid, &spent.windows, out),
            What::GpuCall { kind, .. } => out.push((
                match kind {
                    GpuCallKind::Synchronise => Kind::Compute,
                    GpuCallKind::Copy | GpuCallKind::CopyAsync => Kind::H2dCopy,
                    GpuCallKind::Allocate | GpuCallKind::Free => Kind::AllocationChurn,
                },
                detail,
                1.0,
            )),
            What::Runnable { tid, by } => self.runnable(tid, by, &spent.windows, out),
            What::Wait {
                tid,
                nr,
                object,
                waker,
            } => {
                let (kind, detail, mut left) = self.waiting(tid, nr, object, waker);
                if let Some((lock, held)) = self.held_while(tid, &spent.windows) {
                    let lock = Detail {
                        lock: Some(lock),
                        ..detail
                    };
                    out.push((Kind::Serialization, lock, held));
                    left -= held;
                }
                out.push((kind, detail, left));
            }
            What::Idle { .. } => out.push((Kind::NotAsked, detail, 1.0)),
            What::Absent { .. } => out.push((Kind::WorkerStart, detail, 1.0)),
            What::Unknown { .. } => out.push((Kind::Unknown, detail, 1.0)),
        }
    }

    fn rank_on_way(&self, leaf: &Leaf) -> Option<u32> {
        let at = leaf.hops.iter().position(|hop| hop.how == HopKind::Rank)?;
        let next = leaf.hops.get(at + 1).map_or(leaf.what.tid(), |hop| hop.tid);
        self.facts.pid(next)
    }

    /// A lock that others than the step thread's own helpers contend for.
    fn lock_on_way(&self, leaf: &Leaf) -> Option<LockId> {
        leaf.hops.iter().find_map(|hop| match hop.how {
            HopKind::Lock(id) if self.counts(id) => Some(id),
            _ => None,
        })
    }

    fn counts(&self, id: LockId) -> bool {
        self.locks.get(&id).is_some_and(|lock| {
            lock.asks_again
                || lock
                    .threads
                    .iter()
                    .any(|tid| self.cast.producers.contains(tid))
        })
    }

    /// A lock that both threads take turns on.
    fn shared_lock(&self, a: u32, b: u32) -> Option<LockId> {
        self.locks
            .iter()
            .find(|(id, lock)| {
                lock.threads.contains(&a) && lock.threads.contains(&b) && self.counts(**id)
            })
            .map(|(id, _)| *id)
    }

    fn kernel_lock_on_way(&self, leaf: &Leaf) -> Option<u32> {
        leaf.hops
            .iter()
            .find(|hop| hop.how == HopKind::KernelLock)
            .map(|hop| hop.fileset)
    }

    fn choke_on_way(&self, leaf: &Leaf) -> Option<u32> {
        let behind = |at: usize, hop: &Hop| {
            at > 0
                && self.chokes.contains(&hop.tid)
                && self.cast.producers.contains(&leaf.hops[at - 1].tid)
        };
        leaf.hops
            .iter()
            .enumerate()
            .find(|(at, hop)| behind(*at, hop))
            .map(|(_, hop)| hop.tid)
            .or_else(|| {
                let last = leaf.hops.last()?;
                let tid = leaf.what.tid();
                (self.chokes.contains(&tid) && self.cast.producers.contains(&last.tid))
                    .then_some(tid)
            })
    }

    /// The lock that a producer held for the largest share (0–1) of these windows: others waited for it until this
    /// thread handed it on.
    fn held_while(&self, tid: u32, windows: &[(u64, u64)]) -> Option<(LockId, f64)> {
        if !self.is_producer(tid) {
            return None;
        }
        self.locks
            .keys()
            .filter(|id| self.counts(**id))
            .filter_map(|id| {
                let waits = self.handed_on.get(&(*id, tid))?;
                Some((*id, share_inside(windows, waits)))
            })
            .filter(|(_, share)| *share > 0.0)
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Whether a thread works for the input side: a producer, or the step thread when it has none.
    fn is_producer(&self, tid: u32) -> bool {
        self.cast.producers.contains(&tid)
    }

    /// What a thread's process is there for, where it is neither a trainer nor a worker.
    fn helper(&self, tid: u32) -> Option<Task> {
        self.helpers.task(self.facts.pid(tid)?)
    }

    /// Whether what a thread reads comes through pipes rather than from files.
    fn reads_pipes(&self, tid: u32) -> bool {
        self.facts.session.thread(tid).is_some_and(|thread| {
            let activity = &thread.activity;
            let seconds = self.facts.session.duration_s();
            activity.pipe_read_bytes as f64 >= MIN_PIPED_PER_S * seconds
                && activity.pipe_read_bytes > activity.file_read_bytes
        })
    }

    fn running(
        &self,
        leaf: &Leaf,
        tid: u32,
        windows: &[(u64, u64)],
        out: &mut Vec<(Kind, Detail, f64)>,
    ) {
        let producer = self.is_producer(tid);
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
        let own = tid == self.cast.step_tid && leaf.hops.is_empty();
        if own && !self.checkpoints.is_empty() {
            let written = share_inside(windows, &self.checkpoints).min(left);
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
        let split = split(self.facts, tid, windows);
        let (meta, read) = self.files.of_thread(tid);
        // Faults on mapped files read them.
        let mapped = self
            .facts
            .session
            .thread(tid)
            .is_some_and(|thread| thread.activity.fault_bytes >= MAPPED_BYTES);
        let (file_fault, fault) = if mapped {
            (split.fault, 0.0)
        } else {
            (0.0, split.fault)
        };
        let churn = split.churn() - split.fault + fault;
        out.push((Kind::AllocationChurn, detail, left * churn));
        let reads_files = producer
            || self
                .facts
                .session
                .thread(tid)
                .is_some_and(|thread| thread.activity.takes_input());
        let mut user = split.user + split.other_calls;
        // Batches that come through a pipe are copied out of it, piece by piece: the price of how they are made.
        let piped = if own && self.reads_pipes(tid) {
            split.read
        } else {
            0.0
        };
        out.push((Kind::InputCpu, detail, left * piped));
        let read_calls = split.read - piped;
        out.push((Kind::WorkerStart, detail, left * split.processes));
        if reads_files {
            let fileset = self.files.main_of_thread(tid);
            let files = Detail { fileset, ..detail };
            out.push((meta, files, left * split.file_meta));
            out.push((read, files, left * (read_calls + file_fault)));
            out.push((Kind::NetworkIo, detail, left * split.socket));
        } else {
            user += split.file_meta + read_calls + split.socket + file_fault;
        }
        if producer {
            user += split.write;
        } else {
            out.push((Kind::Checkpoint, detail, left * split.write));
        }
        user *= left;
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
        if own && self.cast.producers.is_empty() && self.own_batches.is_empty() {
            out.push((Kind::InputCpu, detail, left * split.decoders));
        } else {
            user += left * split.decoders;
        }
        if own && !self.own_batches.is_empty() {
            let input = share_inside(windows, &self.own_batches).min(1.0) * user;
            out.push((Kind::InputCpu, detail, input));
            user -= input;
        }
        // While the GPU idles, the host's computing is what keeps it waiting.
        let host = self.gpu.idle_while_running(windows) * user;
        detail.outsider = 0;
        out.push((Kind::HostCompute, detail, host));
        out.push((Kind::Compute, detail, user - host + driver));
    }

    fn runnable(
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
        let throttled = self.throttled.share(windows, ours);
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
        let left = left * (1.0 - locked);
        let apart = self.helper(by) == Some(Task::Apart);
        if by != 0 && (!ours || apart) {
            let outsider = by;
            out.push((Kind::CpuContention, Detail { outsider, ..detail }, left));
            return;
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

    fn waiting(
        &self,
        tid: u32,
        nr: i16,
        object: ObjectFact,
        waker: WakerFact,
    ) -> (Kind, Detail, f64) {
        let session = self.facts.session;
        let id = WaitId { nr, object, waker };
        let outsider = if is_on_purpose(waker.kind) && session.thread(waker.tid).is_none() {
            waker.tid
        } else {
            0
        };
        let mut detail = Detail {
            fileset: object.fileset,
            tid,
            outsider,
            ..Detail::default()
        };
        let producer = self.is_producer(tid);
        let kind = match wait_kind(&id) {
            WaitKind::File | WaitKind::Uring if call(nr) == Call::Write && !producer => {
                Kind::Checkpoint
            }
            WaitKind::File | WaitKind::Uring => self.files.of(object.fileset, tid),
            WaitKind::Fault if object.fileset != 0 => self.files.of(object.fileset, tid),
            WaitKind::Fault => Kind::AllocationChurn,
            WaitKind::Sleep => Kind::Sleep,
            WaitKind::Stopped => Kind::Stopped,
            // A time-out on what nobody of the job ends is a pause; else it would be idle.
            WaitKind::Futex if producer && waker.kind == WakerKind::Interrupt as u8 => Kind::Sleep,
            WaitKind::Socket => {
                detail.socket = object.id;
                self.network(tid, outsider)
            }
            WaitKind::Poll | WaitKind::Other
                if waker.kind == WakerKind::Softirq as u8
                    || object.class == Class::Socket as u8
                    || waker.kind == WakerKind::Sender as u8 =>
            {
                if object.class == Class::Socket as u8 {
                    detail.socket = object.id;
                }
                self.network(tid, outsider)
            }
            // Who is slow to take what is written makes no batches.
            WaitKind::Pipe if call(nr) == Call::Write => Kind::Unknown,
            WaitKind::Pipe | WaitKind::Poll | WaitKind::Futex if outsider != 0 && !producer => {
                if self.is_twin(outsider) {
                    Kind::Communication
                } else {
                    Kind::InputCpu
                }
            }
            _ => Kind::Unknown,
        };
        (kind, detail, 1.0)
    }

    /// Sockets: with another rank when as much goes out as comes in, else with a store of data.
    fn network(&self, tid: u32, outsider: u32) -> Kind {
        let session = self.facts.session;
        if self.is_producer(tid) {
            return Kind::NetworkIo;
        }
        if !self.cast.ranks.is_empty() || self.is_twin(outsider) {
            return Kind::Communication;
        }
        let (mut read, mut written) = (0, 0);
        for thread in session.threads.values() {
            if thread.pid == self.cast.trainer && !self.is_producer(thread.key.tid) {
                read += thread.activity.socket_read_bytes;
                written += thread.activity.socket_write_bytes;
            }
        }
        if read > 0 && written * 2 >= read {
            Kind::Communication
        } else {
            Kind::NetworkIo
        }
    }

    /// Whether a thread outside the job runs the trainer's own command: another rank.
    fn is_twin(&self, outsider: u32) -> bool {
        let session = self.facts.session;
        let Some((Some(pid), _)) = session.outsiders.get(&outsider) else {
            return false;
        };
        let own = session
            .processes
            .get(&self.cast.trainer)
            .and_then(|process| process.seen.facts.as_ref())
            .map(|facts| &facts.command);
        match (session.host.outsiders.get(pid), own) {
            (Some(theirs), Some(own)) => {
                !own.is_empty() && theirs.first() == own.first() && program(theirs) == program(own)
            }
            _ => false,
        }
    }
}

/// The first argument that names a program or module, options left out.
fn program(command: &[String]) -> Option<&String> {
    command.iter().skip(1).find(|word| !word.starts_with('-'))
}

/// Threads that at least two producers of different threads wait for, much of the time.
fn chokes(facts: &Facts, cast: &Cast) -> BTreeSet<u32> {
    let wall = facts.walkable_ns() as f64;
    let mut waited = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
    for (tid, items) in facts.waiting_threads() {
        if !cast.producers.contains(&tid) {
            continue;
        }
        for item in items {
            let waker = item.waker;
            let on_purpose =
                waker.kind == WakerKind::Thread as u8 || waker.kind == WakerKind::Sender as u8;
            if !on_purpose || waker.tid == tid {
                continue;
            }
            // What a trainer's own thread hands out is no input.
            if facts.pid(waker.tid) == Some(cast.trainer) && !cast.producers.contains(&waker.tid) {
                continue;
            }
            // A thread of the trainer that passes on what workers made comes after them, and is not fed by them.
            if cast.loader_threads.contains(&tid)
                && facts
                    .pid(waker.tid)
                    .is_some_and(|pid| cast.workers.contains(&pid))
            {
                continue;
            }
            *waited.entry(waker.tid).or_default().entry(tid).or_default() += item.woken - item.from;
        }
    }
    // Threads of one worker wait for each other as a matter of course: they count as one.
    let side = |tid: u32| {
        if cast.loader_threads.contains(&tid) {
            (cast.trainer, tid)
        } else {
            (facts.pid(tid).unwrap_or(0), 0)
        }
    };
    waited
        .into_iter()
        .filter(|(waker, waiters)| {
            let own = side(*waker);
            let sides: BTreeSet<(u32, u32)> = waiters
                .iter()
                .filter(|(_, ns)| **ns as f64 >= CHOKE_SHARE * wall)
                .map(|(tid, _)| side(*tid))
                .filter(|side| *side != own)
                .collect();
            facts.session.thread(*waker).is_some() && sides.len() >= 2
        })
        .map(|(waker, _)| waker)
        .collect()
}

/// When anybody waited for each lock; `span`: which part of a wait counts.
fn lock_waits(
    facts: &Facts,
    locks: &BTreeMap<LockId, Lock>,
    span: impl Fn(&Item) -> (u64, u64),
) -> BTreeMap<LockId, Vec<(u64, u64)>> {
    locks
        .iter()
        .map(|(id, lock)| {
            let mut waits = Vec::new();
            for tid in &lock.threads {
                for item in facts.items(*tid) {
                    if item.kind() == WaitKind::Futex && line(&item.object) == id.line {
                        waits.push(span(item));
                    }
                }
            }
            (*id, union(waits))
        })
        .collect()
}

/// When others waited for a lock that a thread then handed to them.
fn handed_on(
    facts: &Facts,
    locks: &BTreeMap<LockId, Lock>,
) -> BTreeMap<(LockId, u32), Vec<(u64, u64)>> {
    let mut out = BTreeMap::<(LockId, u32), Vec<(u64, u64)>>::new();
    for (id, lock) in locks {
        for tid in &lock.threads {
            for item in facts.items(*tid) {
                if item.kind() == WaitKind::Futex
                    && line(&item.object) == id.line
                    && item.waker.kind == WakerKind::Thread as u8
                {
                    out.entry((*id, item.waker.tid))
                        .or_default()
                        .push((item.from, item.woken));
                }
            }
        }
    }
    out.into_iter()
        .map(|(key, waits)| (key, union(waits)))
        .collect()
}

/// The process of a thread outside the job, or of a helper of it, and its command.
pub fn outsider(session: &Session, tid: u32) -> Option<(u32, String)> {
    if let Some(thread) = session.thread(tid) {
        let process = session.processes.get(&thread.pid)?;
        let command = process
            .seen
            .facts
            .as_ref()
            .map(|facts| facts.command.join(" "));
        let command = command.filter(|command| !command.is_empty());
        return Some((thread.pid, command.unwrap_or_else(|| process.name.clone())));
    }
    let (pid, name) = session.outsiders.get(&tid)?;
    let pid = pid.unwrap_or(tid);
    let command = session
        .host
        .outsiders
        .get(&pid)
        .filter(|command| !command.is_empty())
        .map(|command| command.join(" "));
    Some((pid, command.or_else(|| name.clone())?))
}
