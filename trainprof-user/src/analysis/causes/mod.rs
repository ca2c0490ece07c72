//! From ways to causes: every leaf of the walk gets the causes that its mechanism stands for.

mod around_calls;
mod chokes;
mod exchange;
mod file_faults;
mod locked;
mod off_cpu;
mod on_cpu;
mod outside;
mod own_batches;
mod packets;
mod passing;
mod services;
mod slack;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cast::Cast,
    checkpoints::Checkpoints,
    collecting::collecting,
    crowding::Crowding,
    facts::Facts,
    files::FileKinds,
    gpu::GpuTime,
    gpu_use::{self, GpuUse},
    helpers::{Helpers, Task},
    kind::Kind,
    locks::{Lock, LockId},
    phases,
    python::Python,
    running::{Call, call},
    spans::{share_inside, union, without},
    spinning::{idlers, team},
    taking_in::{taken, taking_in},
    throttle::Throttled,
    walk::{HopKind, Leaf, Spent, Walked, What},
};
use crate::record::fact::GpuCallKind;
pub use around_calls::AroundCalls;
use file_faults::FileFaults;
pub use outside::outsider;
use own_batches::OwnBatches;
use packets::own_packets;
use passing::Passing;
use services::Services;
use slack::Slack;

/// A smaller part (0–1) of what a step thread runs is no making of batches, and no taking them in, that is worth telling.
const MAKES: f64 = 0.05;
const TAKES: f64 = 0.15;
/// The same of its other work, which its model does not need.
const BESIDE: f64 = 0.15;
/// The same where nothing but that it runs Python code of its own tells of such work: a model may have a little of that.
const INTERPRETS: f64 = 0.3;
/// So much (0–1) of what a trainer does beside its model is most of it.
const MOSTLY: f64 = 0.5;
/// What stacks of its code show of that is more than what its calls show from so many times as much on.
const MORE: f64 = 1.5;

/// What is known about a cause beyond its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Detail {
    /// Files.
    pub fileset: u32,
    /// The thread whose doing it was.
    pub tid: u32,
    /// A thread outside the job that it was waited for, or that had the CPU.
    pub outsider: u32,
    /// Another trainer, and what it was busy with.
    pub rank: u32,
    pub doing: Option<Kind>,
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
    crowding: Crowding,
    /// Threads that feed several producers.
    chokes: BTreeSet<u32>,
    checkpoints: Checkpoints,
    worker_starts: Vec<(u64, u64)>,
    own_batches: OwnBatches,
    /// Stretches in which the main threads of other ranks made batches themselves, by pid.
    ranks_batches: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Threads that spend more on memory than their work needs.
    churning: BTreeSet<u32>,
    file_faults: FileFaults,
    around_calls: AroundCalls,
    /// For how long each thread waited for files, ns.
    file_waits: BTreeMap<u32, u64>,
    /// Threads of the trainer that mostly look for work, and the part (0–1) of their running that it is.
    idlers: BTreeMap<u32, f64>,
    /// Threads that compute with the step thread.
    team: Vec<u32>,
    /// The idlers and the step thread are more than the CPUs that they may use: what they wait for is a CPU.
    overstaffed: bool,
    /// Locks that keep nobody from working, and whose work is done while others wait for them.
    idle_locks: BTreeMap<LockId, u32>,
    /// Threads that have something to do nearly all the time.
    busy: BTreeSet<u32>,
    lock_waits: BTreeMap<LockId, Vec<(u64, u64)>>,
    taking_in: Vec<(u64, u64)>,
    /// Stretches in which a step thread without a GPU did other work than its model's and its input's.
    beside_model: Vec<(u64, u64)>,
    /// That is mostly for who looks for a mistake, or for what takes long: the program describes itself.
    describes: bool,
    /// The same with the waits in it, where stacks show that.
    waits_beside: Vec<(u64, u64)>,
    helpers: Helpers,
    passing: Passing,
    services: Services,
    /// Threads of ranks that exchange with other ranks.
    exchangers: BTreeSet<u32>,
    /// Threads of the kernel that send and receive packets for the job.
    own_packets: BTreeSet<u32>,
    file_locks: BTreeMap<u32, Vec<(u64, u64)>>,
    /// As `lock_waits`, with the time in which somebody had been woken for it and had no CPU yet.
    lock_turns: BTreeMap<LockId, Vec<(u64, u64)>>,
    handed_on: BTreeMap<(LockId, u32), Vec<(u64, u64)>>,
}

impl<'a> Scene<'a> {
    /// CPUs of the host, and how many of them the job may use.
    pub fn new(
        facts: &'a Facts<'a>,
        cast: &'a Cast,
        locks: &'a BTreeMap<LockId, Lock>,
        files: &'a FileKinds,
        throttled: &'a Throttled,
        gpu: &'a GpuTime,
        (cpus, may_use): (f64, f64),
    ) -> Self {
        let helpers = Helpers::new(facts, cast);
        let apart = helpers.threads_apart(facts.session);
        // What is found by calls is found where they were counted all through.
        let checkpoints = if facts.with_calls {
            Checkpoints::new(facts, cast, &helpers)
        } else {
            Checkpoints::default()
        };
        let mut own_batches = if cast.producers.is_empty() {
            OwnBatches::new(facts, cast.step_tid, &checkpoints.own)
        } else {
            OwnBatches::default()
        };
        let file_faults = FileFaults::new(facts);
        let taking_in = if cast.producers.is_empty() {
            Vec::new()
        } else if facts.with_calls {
            takes_in(facts, cast, locks)
        } else {
            taking_in_by_stacks(facts, cast)
        };
        // Between two sets of workers a sampler may draw for long.
        let worker_starts = without(&phases::worker_starts(facts, cast), &taking_in);
        // What is done beside a GPU, or while it idles, its samples tell.
        let on_gpu = GpuUse::new(facts, cast, gpu).used
            || gpu_use::may_use_another(facts.session, cast.trainer);
        let mut waits_beside = Vec::new();
        let beside_model = if on_gpu || !facts.with_calls {
            Vec::new()
        } else if cast.producers.is_empty() {
            let called_back = Python::new(facts).called_back(cast.step_tid, BESIDE);
            let mut found = own_batches.after_steps(facts, cast.step_tid);
            if !found.is_empty() || own_batches.guessed && !called_back.is_empty() {
                own_batches = OwnBatches::default();
            }
            found.extend(without(&called_back, &own_batches.spans));
            let recording = Python::new(facts).recording(cast.step_tid, BESIDE);
            found.extend(without(&recording, &own_batches.spans));
            // Garbage that is collected while a batch is made is mostly that batch's.
            let collecting = collecting(facts, cast.step_tid, BESIDE);
            let collecting = without(&collecting, &own_batches.spans);
            if share_inside(&facts.spans, &collecting) >= BESIDE {
                found.extend(collecting);
            }
            if found.is_empty() && own_batches.spans.is_empty() {
                found = Python::new(facts).interpreting(cast.step_tid, INTERPRETS);
            }
            without(&union(found), &checkpoints.own)
        } else {
            let taken = taken(facts, cast, locks);
            let passes = facts.passes(cast.step_tid);
            let mut apart = Python::new(facts).apart(cast.step_tid, BESIDE, &taken, passes);
            apart
                .running
                .extend(collecting(facts, cast.step_tid, BESIDE));
            apart
                .running
                .extend(Python::new(facts).describing(cast.step_tid, BESIDE));
            let told = union([&*taking_in, &worker_starts, &checkpoints.own].concat());
            waits_beside = without(&apart.with_waits, &told);
            without(&union(apart.running), &told)
        };
        let idlers = idlers(facts, cast);
        let passing = Passing::new(facts, cast);
        let passed = passing.of(cast.step_tid);
        let worker_starts = without(&worker_starts, passed);
        let taking_in = without(&taking_in, passed);
        let beside_model = without(&beside_model, passed);
        own_batches.spans = without(&own_batches.spans, passed);
        Self {
            passing,
            chokes: chokes::chokes(facts, cast, locks),
            helpers,
            services: Services::new(facts),
            exchangers: exchange::exchangers(facts, cast),
            own_packets: own_packets(facts),
            file_locks: locked::file_locks(facts),
            checkpoints,
            overstaffed: (idlers.len() + 1) as f64 > may_use,
            idlers,
            team: team(facts, cast),
            worker_starts,
            taking_in,
            describes: Python::new(facts).describes(cast.step_tid, &beside_model, MOSTLY),
            beside_model,
            waits_beside,
            own_batches,
            ranks_batches: ranks_batches(facts, cast),
            churning: on_cpu::churning(facts, &file_faults),
            file_faults,
            file_waits: on_cpu::file_waits(facts),
            around_calls: AroundCalls::new(facts),
            busy: locked::busy(facts),
            idle_locks: locked::idle_locks(facts, cast, locks, may_use),
            lock_waits: locked::waits(facts, locks, |item| (item.from, item.woken)),
            lock_turns: locked::waits(facts, locks, |item| (item.from, item.to)),
            handed_on: locked::handed_on(facts, locks),
            facts,
            cast,
            locks,
            files,
            throttled,
            gpu,
            crowding: Crowding::new(facts, cpus, may_use >= cpus, &apart),
        }
    }

    /// Stretches in which the step thread, having no producers, made batches itself.
    pub fn own_batches(&self) -> &[(u64, u64)] {
        &self.own_batches.spans
    }

    /// Whether that these stretches are for batches is known only from what they alternate with.
    pub fn own_batches_guessed(&self) -> bool {
        self.own_batches.guessed
    }

    /// Threads of the trainer that mostly look for work.
    pub fn idlers(&self) -> impl Iterator<Item = u32> {
        self.idlers.keys().copied()
    }

    /// What the interpreter does around calls on files.
    pub fn around_calls(&self) -> &AroundCalls {
        &self.around_calls
    }

    /// Processes that are neither trainer nor worker.
    pub fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// Stretches in which the step thread, having producers, took a batch in.
    pub fn taking_in(&self) -> &[(u64, u64)] {
        &self.taking_in
    }

    /// Whether what it did beside its model was mostly to describe itself.
    pub fn describes(&self) -> bool {
        self.describes
    }

    /// Stretches in which it did other work than its model's and its input's.
    pub fn beside_model(&self) -> &[(u64, u64)] {
        &self.beside_model
    }

    /// Those of them, or such as fall together with them, that are one a step, and how finely their ends are known, ns: 0
    /// where they were seen as calls.
    pub fn own_turns(&self) -> Option<(&[(u64, u64)], u64)> {
        let (turns, within) = self.own_batches.turns.as_ref()?;
        Some((turns, *within))
    }

    /// Stretches in which the step thread wrote a checkpoint.
    pub fn checkpoints(&self) -> &[(u64, u64)] {
        &self.checkpoints.own
    }

    /// All time that was walked, by cause.
    pub fn shares(&self, walked: &Walked) -> Vec<Share> {
        let mut out = Vec::new();
        let slack = Slack::new(self.facts, self.cast, walked);
        for (number, (leaf, spent)) in walked.leaves.iter().enumerate() {
            let in_stall = self.in_stall(leaf);
            let mut parts = Vec::new();
            self.classify(leaf, spent, &mut parts);
            if let (Some(slack), What::Runnable { tid, .. }, []) =
                (slack, &leaf.what, leaf.hops.as_slice())
            {
                parts
                    .iter_mut()
                    .for_each(|part| part.2 *= 1.0 - slack.share);
                let detail = Detail {
                    tid: *tid,
                    rank: slack.rank,
                    ..Detail::default()
                };
                parts.push((Kind::Communication, detail, slack.share));
            }
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

    /// Whether a way ends with the trainer's waiting for another rank, wherever that runs.
    pub fn is_communication(&self, leaf: &Leaf, spent: &Spent) -> bool {
        if !matches!(leaf.what, What::Wait { .. }) {
            return false;
        }
        let mut parts = Vec::new();
        self.classify(leaf, spent, &mut parts);
        let all_of = parts
            .iter()
            .filter(|(kind, _, _)| *kind == Kind::Communication);
        all_of.map(|(_, _, part)| part).sum::<f64>() > 0.5
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
        let Some(rank) = self.rank_on_way(leaf) else {
            return self.cause(leaf, spent, out);
        };
        let mut causes = Vec::new();
        self.cause(leaf, spent, &mut causes);
        let tid = leaf.what.tid();
        out.extend(causes.into_iter().map(|(kind, _, part)| {
            let doing = Some(kind);
            let detail = Detail {
                tid,
                rank,
                doing,
                ..Detail::default()
            };
            (Kind::Communication, detail, part)
        }));
    }

    /// What a leaf's own mechanism stands for.
    fn cause(&self, leaf: &Leaf, spent: &Spent, out: &mut Vec<(Kind, Detail, f64)>) {
        let from = out.len();
        self.cause_of_any(leaf, spent, out);
        let works = matches!(leaf.what, What::Run { .. } | What::Runnable { .. });
        if works && !leaf.hops.is_empty() && self.exchangers.contains(&leaf.what.tid()) {
            for (kind, detail, _) in &mut out[from..] {
                if *kind == Kind::Compute {
                    *kind = Kind::Communication;
                    detail.doing = Some(Kind::Communication);
                }
            }
        }
    }

    fn cause_of_any(&self, leaf: &Leaf, spent: &Spent, out: &mut Vec<(Kind, Detail, f64)>) {
        let tid = leaf.what.tid();
        let detail = Detail {
            tid,
            ..Detail::default()
        };
        if let Some(lock) = self.lock_on_way(leaf) {
            let beside = self.wanted_beside(leaf, &spent.windows);
            let detail = Detail {
                lock: Some(lock),
                ..detail
            };
            out.push((Kind::HostCompute, detail, beside));
            out.push((Kind::Serialization, detail, 1.0 - beside));
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
            What::Run { tid } if self.cast.sleepers.contains(&tid) && self.is_waited_for(leaf) => {
                out.push((Kind::Serialization, detail, 1.0));
            }
            What::Run { tid } => self.running(leaf, tid, &spent.windows, out),
            What::GpuCall { tid, kind } => {
                let kind = match kind {
                    GpuCallKind::Synchronise => Kind::Compute,
                    GpuCallKind::Copy | GpuCallKind::CopyAsync => Kind::H2dCopy,
                    GpuCallKind::Allocate | GpuCallKind::Free => Kind::AllocationChurn,
                };
                // What it fetches from the GPU between opening a file and writing that, it fetches to write it.
                let checkpoints = self.checkpoints.of(self.cast, tid);
                let written = share_inside(&spent.windows, checkpoints);
                if written > 0.0 {
                    out.push((Kind::Checkpoint, detail, written));
                }
                out.push((kind, detail, 1.0 - written));
            }
            What::Runnable { tid, by } => self.runnable(tid, by, &spent.windows, out),
            What::Wait {
                tid,
                nr,
                object,
                waker,
            } => {
                let (mut kind, detail, mut left) = self.waiting(tid, nr, object, waker);
                if matches!(kind, Kind::Sleep | Kind::Checkpoint) && self.holds_a_lock(leaf) {
                    kind = Kind::Serialization;
                }
                if let Some((lock, held)) = self.held_while(tid, &spent.windows) {
                    let lock = Detail {
                        lock: Some(lock),
                        ..detail
                    };
                    out.push((Kind::Serialization, lock, held));
                    left -= held;
                } else if let Some(held) = self.file_locked(tid, &spent.windows) {
                    out.push((Kind::Serialization, detail, held));
                    left -= held;
                } else if matches!(kind, Kind::StorageIo | Kind::SmallFiles)
                    && call(nr) == Call::Meta
                {
                    // What waits for a file to be given back, or for another to be made, waits to write it.
                    let checkpoints = self.checkpoints.of(self.cast, tid);
                    let written = share_inside(&spent.windows, checkpoints) * left;
                    if written > 0.0 {
                        out.push((Kind::Checkpoint, detail, written));
                        left -= written;
                    }
                }
                out.push((kind, detail, left));
            }
            What::Idle { .. } => out.push((Kind::NotAsked, detail, 1.0)),
            What::Absent { .. } => out.push((Kind::WorkerStart, detail, 1.0)),
            What::Unknown { .. } => match self.only_worker(leaf) {
                // After a time-out the lock was free: what it was held for is what its holder does.
                Some(tid) => self.running(leaf, tid, &spent.windows, out),
                None => out.push((Kind::Unknown, detail, 1.0)),
            },
        }
    }

    fn rank_on_way(&self, leaf: &Leaf) -> Option<u32> {
        let at = leaf.hops.iter().position(|hop| hop.how == HopKind::Rank)?;
        let next = leaf.hops.get(at + 1).map_or(leaf.what.tid(), |hop| hop.tid);
        self.facts.pid(next)
    }

    /// What a thread's process is there for, where it is neither a trainer nor a worker.
    fn helper(&self, tid: u32) -> Option<Task> {
        self.helpers.task(self.facts.pid(tid)?)
    }
}

/// Stretches in which a step thread with producers took a batch in, or did some of their work itself: between its calls, or in code that
/// does so.
fn takes_in(facts: &Facts, cast: &Cast, locks: &BTreeMap<LockId, Lock>) -> Vec<(u64, u64)> {
    let found = taking_in(facts, cast, locks);
    let python = Python::new(facts);
    let told = taking_in_by_stacks(facts, cast);
    let part = |spans: &[(u64, u64)]| share_inside(&facts.spans, spans);
    let taking = if part(&told) > MORE * part(&found) {
        told
    } else {
        found
    };
    let prepared = python.prepares(cast.step_tid, TAKES, &taken(facts, cast, locks));
    union([taking, prepared].concat())
}

/// What stacks of its code alone tell of that, which are seen whether calls are counted or not.
pub(super) fn taking_in_by_stacks(facts: &Facts, cast: &Cast) -> Vec<(u64, u64)> {
    Python::new(facts).input(cast.step_tid, TAKES)
}

/// What these tell of batches that a step thread without producers makes itself.
pub(super) fn making_by_stacks(facts: &Facts, step_tid: u32) -> Vec<(u64, u64)> {
    Python::new(facts).input(step_tid, MAKES)
}

/// Stretches in which the main threads of other ranks made batches themselves, by pid; as far as stacks of their code tell.
fn ranks_batches(facts: &Facts, cast: &Cast) -> BTreeMap<u32, Vec<(u64, u64)>> {
    if cast.ranks.is_empty() {
        return BTreeMap::new();
    }
    let python = Python::new(facts);
    let ranks = cast.ranks.iter();
    ranks.map(|pid| (*pid, python.input(*pid, MAKES))).collect()
}
