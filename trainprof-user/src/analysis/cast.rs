//! Who plays which part, thread by thread: the step thread, those that make batches for it, other ranks.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::thread::{NR_PREEMPTED, WakerKind};

use super::{
    aides::aides,
    brief::brief_loaders,
    facts::{Facts, interpreters, is_on_purpose},
    locks::{Lock, LockId, lock_of},
    polling::is_polled,
    pools::{compiled, feeders},
    python::{self, Waits},
    room::{interprets, room, together},
    sockets::sockets,
    spans::{overlap, share_inside, union},
    timeline::{Item, line},
};
use crate::session::{
    Session, Thread,
    kind::{WaitKind, wait_kind},
    roles::{Role, is_ancestor, leading_thread, roles},
};

/// A thread that the step thread starts anew at least this often, for each time that it waits for it, works on
/// the step thread's behalf: a thread of a parallel region.
const DRIVEN: f64 = 0.5;
/// A thread that is idle for this share of the step thread's own time, until that one wakes it, is called for each piece.
const CALLED: f64 = 0.8;
/// Who sleeps for more than this part (0–1) of the time in which another one waits for it does not work for that one.
const NAPS: f64 = 0.5;
/// A thread without input of its own makes batches only when the step thread waits for it at least this share
/// of the time, and this long (ns) on average: the end of a parallel region is waited for in shorter pieces.
const WAITED_FOR: f64 = 0.1;
const MIN_WAIT_NS: u64 = 1_000_000;
/// Hand-overs that show a pattern.
const MIN_HAND_OVERS: u64 = 3;

/// One trainer and those around it.
#[derive(Clone, Debug)]
pub struct Cast {
    /// The trainer's process.
    pub trainer: u32,
    /// The thread that runs the training loop.
    pub step_tid: u32,
    /// Worker processes of this trainer.
    pub workers: BTreeSet<u32>,
    /// Those of them that make whole batches: not below another worker, which a program that it started works for.
    pub makers: BTreeSet<u32>,
    /// Threads that make batches: those of the workers, and loader threads of the trainer.
    pub producers: BTreeSet<u32>,
    /// Loader threads among them: those in the trainer's own process.
    pub loader_threads: BTreeSet<u32>,
    /// Those among these that live for a moment: of a pool that is made anew again and again.
    pub brief: BTreeSet<u32>,
    /// Threads of the trainer that work for those that make batches.
    pub aides: BTreeSet<u32>,
    /// Threads of the trainer's own that sleep while they have a lock that the step thread waits for.
    pub sleepers: BTreeSet<u32>,
    /// Ends of sockets on which threads of the trainer waited for producers again and again, by inode.
    pub sockets: BTreeSet<u64>,
    /// The other trainers.
    pub ranks: BTreeSet<u32>,
    pub roles: BTreeMap<u32, Role>,
}

impl Cast {
    /// Whether a producer ended a wait by handing something over.
    pub fn fed(&self, item: &Item) -> bool {
        item.nr != NR_PREEMPTED
            && is_on_purpose(item.waker.kind)
            && self.producers.contains(&item.waker.tid)
            && !matches!(item.kind(), WaitKind::File | WaitKind::Fault)
    }

    /// Whether a thread works for the input side: a producer, or one that works for these.
    pub fn makes_batches(&self, tid: u32) -> bool {
        self.producers.contains(&tid) || self.aides.contains(&tid)
    }

    /// All threads that do.
    pub fn batch_makers(&self) -> impl Iterator<Item = u32> {
        self.producers.union(&self.aides).copied()
    }

    /// How many producers there are at once, on average: of those that live for a moment there may be thousands in all.
    pub fn at_once(&self, facts: &Facts) -> f64 {
        let session = facts.session;
        let present = |thread: &Thread| thread.present_ns(session.until);
        let lived: u64 = if self.workers.is_empty() {
            let threads = self.loader_threads.iter();
            threads
                .filter_map(|tid| session.thread(*tid))
                .map(present)
                .sum()
        } else {
            let longest = |pid: &u32| session.threads_of(*pid).map(present).max();
            self.makers.iter().filter_map(longest).sum()
        };
        (lived as f64 / (session.duration_s() * 1e9).max(1.0)).max(1.0)
    }

    /// How many batches can be in the making at once.
    pub fn parallel(&self) -> usize {
        if self.workers.is_empty() {
            self.loader_threads.len()
        } else {
            self.makers.len()
        }
    }
}

/// Where a thread takes so much (a part of what it hands on) from other ranks, it hands on what these computed.
const FROM_RANKS: f64 = 0.5;

/// The cast of every trainer of the job, by process id.
pub fn casts(facts: &Facts, locks: &BTreeMap<LockId, Lock>) -> Vec<Cast> {
    let session = facts.session;
    let mut roles = roles(session);
    let trainers: BTreeSet<u32> = roles
        .iter()
        .filter(|(_, role)| **role == Role::Trainer)
        .map(|(pid, _)| *pid)
        .collect();
    for trainer in &trainers {
        for pid in polled(facts, *trainer, &roles) {
            roles.insert(pid, Role::Worker);
        }
    }
    trainers
        .iter()
        .filter_map(|trainer| {
            let step_tid = leading_thread(session, *trainer)?.key.tid;
            let workers: BTreeSet<u32> = roles
                .iter()
                .filter(|(pid, role)| {
                    **role == Role::Worker && nearest(session, **pid, &trainers) == Some(*trainer)
                })
                .map(|(pid, _)| *pid)
                .collect();
            let sleepers = sleepers(facts, *trainer, step_tid);
            let mut loader_threads =
                loader_threads(facts, locks, *trainer, step_tid, &workers, &trainers);
            loader_threads.retain(|tid| !sleepers.contains(tid));
            loader_threads.extend(feeders(facts, *trainer, step_tid));
            let mut producers = loader_threads.clone();
            for thread in session.threads.values() {
                if workers.contains(&thread.pid) {
                    producers.insert(thread.key.tid);
                }
            }
            let makers = workers
                .iter()
                .copied()
                .filter(|pid| {
                    !workers
                        .iter()
                        .any(|other| is_ancestor(session, *other, *pid))
                })
                .collect();
            let sockets = sockets(facts, *trainer, step_tid, &producers);
            let mut cast = Cast {
                trainer: *trainer,
                step_tid,
                makers,
                workers,
                producers,
                brief: brief_loaders(session, &loader_threads),
                loader_threads,
                sleepers,
                sockets,
                ranks: trainers.iter().copied().filter(|p| p != trainer).collect(),
                roles: roles.clone(),
                aides: BTreeSet::new(),
            };
            cast.aides = aides(facts, locks, &cast);
            Some(cast)
        })
        .collect()
}

/// Processes whose batches a trainer polls for in shared memory: they hand nothing over that could be seen.
fn polled(facts: &Facts, trainer: u32, roles: &BTreeMap<u32, Role>) -> BTreeSet<u32> {
    let mut counts = BTreeMap::<u32, u64>::new();
    let step_tid = leading_thread(facts.session, trainer).map_or(trainer, |thread| thread.key.tid);
    for item in facts.items(step_tid).iter().filter(|item| is_polled(item)) {
        if let Some(pid) = facts.pid(item.waker.tid) {
            *counts.entry(pid).or_default() += 1;
        }
    }
    let makes = |(pid, count): &(u32, u64)| {
        *count >= MIN_HAND_OVERS
            && roles.get(pid) == Some(&Role::Helper)
            && is_ancestor(facts.session, trainer, *pid)
    };
    counts
        .into_iter()
        .filter(makes)
        .map(|(pid, _)| pid)
        .collect()
}

/// The trainer that a worker belongs to: its nearest ancestor among them.
fn nearest(session: &Session, pid: u32, trainers: &BTreeSet<u32>) -> Option<u32> {
    let mut best: Option<u32> = None;
    for trainer in trainers {
        if is_ancestor(session, *trainer, pid)
            && best.is_none_or(|best| is_ancestor(session, best, *trainer))
        {
            best = Some(*trainer);
        }
    }
    best
}

/// Threads of the trainer's process that bring data in: they take input themselves or are fed by those that do,
/// and the step thread does not start them for each piece of work.
fn loader_threads(
    facts: &Facts,
    locks: &BTreeMap<LockId, Lock>,
    trainer: u32,
    step_tid: u32,
    workers: &BTreeSet<u32>,
    ranks: &BTreeSet<u32>,
) -> BTreeSet<u32> {
    let session = facts.session;
    let compiled = compiled(facts, trainer);
    let own: BTreeSet<u32> = session
        .threads
        .values()
        .filter(|thread| thread.pid == trainer && thread.key.tid != step_tid)
        .map(|thread| thread.key.tid)
        .filter(|tid| !compiled.contains(tid))
        .collect();
    let brief = brief_loaders(session, &own);
    let own: Vec<u32> = own.into_iter().collect();
    let handed = hand_overs(facts, locks, trainer, workers);
    let count = |from: u32, to: u32| handed.get(&(from, to)).copied().unwrap_or_default();
    let mut out: BTreeSet<u32> = own
        .iter()
        .copied()
        .filter(|tid| {
            let Some(thread) = session.thread(*tid) else {
                return false;
            };
            let to_step = count(*tid, step_tid);
            let ranks = from_ranks(session, thread, ranks);
            // What it hands on is what other ranks computed.
            if ranks > 0 && ranks as f64 >= FROM_RANKS * to_step.count as f64 {
                return brief.contains(tid);
            }
            let input = thread.activity.takes_input() && ranks == 0;
            let from_step = count(step_tid, *tid);
            let undriven = to_step.count >= MIN_HAND_OVERS
                && (from_step.count as f64) < DRIVEN * to_step.count as f64
                && to_step.ns as f64 >= WAITED_FOR * facts.walkable_ns() as f64
                && to_step.ns / to_step.count >= MIN_WAIT_NS
                && (busy(session, *tid) || brings(facts, *tid, trainer, step_tid))
                && !called(facts, locks, *tid, step_tid)
                && !saves(facts, *tid, trainer, step_tid);
            input || undriven || brief.contains(tid)
        })
        .collect();
    out.extend(ahead(facts, locks, &own, step_tid));
    let mut wakers = BTreeMap::<u32, Vec<(u32, u64)>>::new();
    for ((from, to), handed) in &handed {
        wakers.entry(*to).or_default().push((*from, handed.count));
    }
    // Whoever is fed by a worker, or by a loader thread, passes batches on.
    loop {
        let fed: Vec<u32> = own
            .iter()
            .copied()
            .filter(|tid| !out.contains(tid))
            .filter(|tid| {
                let feeds = |from: &u32| {
                    out.contains(from) || facts.pid(*from).is_some_and(|pid| workers.contains(&pid))
                };
                let wakers = wakers.get(tid).into_iter().flatten();
                let by_workers: u64 = wakers
                    .filter(|(from, _)| feeds(from))
                    .map(|(_, count)| count)
                    .sum();
                by_workers >= MIN_HAND_OVERS
                    && by_workers > count(step_tid, *tid).count
                    && count(*tid, step_tid).count > 0
            })
            .collect();
        if fed.is_empty() {
            return out;
        }
        out.extend(fed);
    }
}

/// How many of a thread's waits other trainers end, where they end most of those that others do: it takes what they computed, and no data.
fn from_ranks(session: &Session, thread: &Thread, trainers: &BTreeSet<u32>) -> u64 {
    let (mut ranks, mut all) = (0, 0);
    for (id, total) in &thread.waits {
        if !is_on_purpose(id.waker.kind) || !handed_over(wait_kind(id)) {
            continue;
        }
        let waker = session.thread(id.waker.tid).map_or(0, |waker| waker.pid);
        if waker == thread.pid {
            continue;
        }
        all += total.count;
        if trainers.contains(&waker) {
            ranks += total.count;
        }
    }
    if ranks >= MIN_HAND_OVERS && ranks * 2 > all {
        ranks
    } else {
        0
    }
}

/// Threads of the trainer that contend with its step thread for the interpreter's lock and hand nothing to anybody there, nor
/// are they handed anything: no step needs what they do.
pub fn apart(facts: &Facts, locks: &BTreeMap<LockId, Lock>, cast: &Cast) -> BTreeSet<u32> {
    let handed = hand_overs(facts, locks, cast.trainer, &cast.workers);
    let tied = |tid: u32| {
        handed.iter().any(|((from, to), handed)| {
            (*from == tid || *to == tid)
                && handed.count >= MIN_HAND_OVERS
                && handed.ns / handed.count >= MIN_WAIT_NS
        })
    };
    locks
        .values()
        .filter(|lock| lock.asks_again && lock.threads.contains(&cast.step_tid))
        .flat_map(|lock| &lock.threads)
        .copied()
        .filter(|tid| *tid != cast.step_tid && !cast.producers.contains(tid) && !tied(*tid))
        .collect()
}

/// Whether a thread is idle until the step thread calls it, while that one works: it does a part of the step in turn with it
/// and makes nothing in advance. Counting wakes alone does not tell: the interpreter's lock may add one to each.
fn called(facts: &Facts, locks: &BTreeMap<LockId, Lock>, tid: u32, step_tid: u32) -> bool {
    let pid = facts.pid(tid);
    let stalls = union(
        facts
            .items(step_tid)
            .iter()
            .filter(|item| item.waker.tid != step_tid && facts.pid(item.waker.tid) == pid)
            .map(|item| (item.from, item.to))
            .collect(),
    );
    // A wait of which the end was not seen goes on as it began.
    let unseen = |item: &Item| item.waker.kind == WakerKind::Unknown as u8;
    let idle = union(
        facts
            .items(tid)
            .iter()
            .filter(|item| item.waker.tid == step_tid || unseen(item))
            .filter(|item| handed_over(item.kind()))
            .filter(|item| lock_of(locks, facts, tid, line(&item.object)).is_none())
            .map(|item| (item.from, item.woken))
            .collect(),
    );
    let length = |set: &[(u64, u64)]| set.iter().map(|(from, to)| to - from).sum::<u64>();
    let in_stalls: u64 = idle
        .iter()
        .map(|(from, to)| overlap(&stalls, *from, *to))
        .sum();
    let working = facts.walkable_ns().saturating_sub(length(&stalls));
    let asleep = length(&idle) - in_stalls;
    // Busy also while the step thread works, it would be behind; busy mostly then, ahead.
    let alone = working.saturating_sub(asleep);
    let waited_for = length(&stalls).saturating_sub(in_stalls);
    asleep as f64 >= CALLED * working as f64
        && waited_for as f64 >= CALLED * (waited_for + alone) as f64
}

/// Threads of the interpreter that wait for room most of the time: they are ahead of the step thread. What they
/// write tells those apart that the step thread hands something to.
fn ahead(facts: &Facts, locks: &BTreeMap<LockId, Lock>, own: &[u32], step_tid: u32) -> Vec<u32> {
    let mut times = Vec::new();
    let mut found = Vec::new();
    let mut sure = false;
    for tid in own {
        if facts.session.thread(*tid).is_none_or(writes) || !busy(facts.session, *tid) {
            continue;
        }
        let of_thread = room(facts, locks, *tid, step_tid);
        if !of_thread.is_empty() && !called(facts, locks, *tid, step_tid) {
            times.extend(of_thread.iter().map(|(_, woken)| *woken));
            found.push(*tid);
            // One of several alike that was seen there is enough.
            sure |= interprets(facts, *tid, step_tid);
        }
    }
    times.sort_unstable();
    if sure && !together(&times) {
        found
    } else {
        Vec::new()
    }
}

/// A thread that does next to nothing hands nothing over of its own.
fn busy(session: &Session, tid: u32) -> bool {
    session.thread(tid).is_some_and(|thread| {
        thread.run_ns as f64 >= 0.01 * thread.present_ns(session.until) as f64
    })
}

/// Whether the main thread takes what another one brings from a queue, though that one hardly runs: it waits for something itself.
fn brings(facts: &Facts, tid: u32, trainer: u32, step_tid: u32) -> bool {
    step_tid == trainer && python::waits(facts, step_tid, tid) == Some(Waits::ForAnItem)
}

/// Whether a thread writes somewhere what the main thread shares with it under a lock: state that is saved or published, say.
fn saves(facts: &Facts, tid: u32, trainer: u32, step_tid: u32) -> bool {
    step_tid == trainer
        && facts.session.thread(tid).is_some_and(writes)
        && python::waits(facts, step_tid, tid) == Some(Waits::ForALock)
}

/// Threads that sleep most of the time for which the main thread waits for a lock that they have.
fn sleepers(facts: &Facts, trainer: u32, step_tid: u32) -> BTreeSet<u32> {
    let session = facts.session;
    let least = WAITED_FOR * facts.walkable_ns() as f64;
    let own = session.threads_of(trainer).map(|thread| thread.key.tid);
    own.filter(|tid| *tid != step_tid && step_tid == trainer)
        .filter(|tid| naps(facts, *tid, step_tid, least))
        .filter(|tid| python::waits(facts, step_tid, *tid) == Some(Waits::ForALock))
        .collect()
}

/// Whether a thread sleeps most of the time for which another one waits for it, where that is `least` or more (ns).
fn naps(facts: &Facts, tid: u32, waiting: u32, least: f64) -> bool {
    let spans = |items: &[Item], count: &dyn Fn(&Item) -> bool| {
        let items = items.iter().filter(|item| count(item));
        union(items.map(|item| (item.from, item.woken)).collect())
    };
    let asleep = spans(facts.items(tid), &|item| item.kind() == WaitKind::Sleep);
    let waited = spans(facts.items(waiting), &|item| item.waker.tid == tid);
    let length: u64 = waited.iter().map(|(from, to)| to - from).sum();
    length as f64 >= least && share_inside(&waited, &asleep) > NAPS
}

/// Whether it writes to files, sockets or pipes.
fn writes(thread: &Thread) -> bool {
    let activity = &thread.activity;
    activity.file_write_bytes + activity.socket_write_bytes + activity.pipe_write_bytes > 0
}

/// How often one thread ended another's waits, and how long those were (ns).
#[derive(Clone, Copy, Default)]
pub(super) struct Handed {
    pub count: u64,
    pub ns: u64,
}

/// Waits between threads of the trainer, and from its workers: (waker, woken) → count.
pub(super) fn hand_overs(
    facts: &Facts,
    locks: &BTreeMap<LockId, Lock>,
    trainer: u32,
    workers: &BTreeSet<u32>,
) -> BTreeMap<(u32, u32), Handed> {
    let mut out = BTreeMap::new();
    for thread in facts.session.threads.values() {
        if thread.pid != trainer {
            continue;
        }
        for (id, total) in &thread.waits {
            if !is_on_purpose(id.waker.kind) || !handed_over(wait_kind(id)) {
                continue;
            }
            // Giving a lock back hands no work over.
            let tid = thread.key.tid;
            let at = line(&interpreters(facts.session, tid, &id.object));
            if wait_kind(id) == WaitKind::Futex && lock_of(locks, facts, tid, at).is_some() {
                continue;
            }
            let from = facts.pid(id.waker.tid);
            if from.is_some_and(|pid| pid == trainer || workers.contains(&pid)) {
                let handed: &mut Handed = out.entry((id.waker.tid, tid)).or_default();
                handed.count += total.count;
                handed.ns += total.wait_ns;
            }
        }
    }
    out
}

/// Kinds of waits that another thread ends with work in hand.
pub fn handed_over(kind: WaitKind) -> bool {
    matches!(
        kind,
        WaitKind::Pipe | WaitKind::Socket | WaitKind::Poll | WaitKind::Futex | WaitKind::Other
    )
}
