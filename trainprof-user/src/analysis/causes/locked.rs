//! Locks: on the way to a piece of time, and held while others waited.

use std::collections::{BTreeMap, BTreeSet};

use super::Scene;
use crate::{
    analysis::{
        cast::Cast,
        cpus::cpu_ns,
        facts::{Facts, is_on_purpose},
        locks::{Lock, LockId},
        python::{self, Waits},
        running::locks_files,
        spans::{share_inside, union},
        timeline::{Item, line},
        walk::{HopKind, Leaf, What},
    },
    session::kind::{WaitKind, wait_kind},
};
use trainprof_common::thread::WakerKind;

/// So much (0–1) of the work of all threads of a lock, done by one of them, leaves nothing that could be done at once; and so much of the
/// time, worked by one thread, leaves it no time to do more.
const NEARLY_ALL: f64 = 0.85;
/// CPUs of which this part (0–1) is in use leave next to nothing to be gained by working at once.
const USED_UP: f64 = 0.87;

impl Scene<'_> {
    /// A lock that others than the step thread's own helpers contend for.
    pub(super) fn lock_on_way(&self, leaf: &Leaf) -> Option<LockId> {
        leaf.hops.iter().find_map(|hop| match hop.how {
            HopKind::Lock(id) if self.counts(id) && !self.always_works(leaf, id.pid) => Some(id),
            _ => None,
        })
    }

    /// Whether what a process (0: several) has to wait for at the end of the way is a thread of another one that works all the time: that
    /// one would do no more if nobody had to wait for anybody in this one.
    pub(super) fn always_works(&self, leaf: &Leaf, pid: u32) -> bool {
        let works = matches!(leaf.what, What::Run { .. } | What::Runnable { .. });
        let tid = leaf.what.tid();
        works && pid != 0 && self.busy.contains(&tid) && self.facts.pid(tid) != Some(pid)
    }

    /// The part (0–1) of these windows in which the step thread wants a lock for work beside its model, and a thread of its own process that
    /// makes no batches has it: without that work it would not want it.
    pub(super) fn wanted_beside(&self, leaf: &Leaf, windows: &[(u64, u64)]) -> f64 {
        let tid = leaf.what.tid();
        let own = self.is_waited_for(leaf)
            && !self.cast.makes_batches(tid)
            && self.facts.pid(tid) == Some(self.cast.trainer);
        if own {
            share_inside(windows, &self.waits_beside)
        } else {
            0.0
        }
    }

    /// Who does most of the work of a lock on the way that keeps nobody from working.
    pub(super) fn only_worker(&self, leaf: &Leaf) -> Option<u32> {
        leaf.hops.iter().find_map(|hop| match hop.how {
            HopKind::Lock(id) => self.idle_locks.get(&id).copied(),
            _ => None,
        })
    }

    pub(super) fn counts(&self, id: LockId) -> bool {
        self.locks.get(&id).is_some_and(|lock| {
            !self.idle_locks.contains_key(&id)
                && (lock.asks_again
                    || lock
                        .threads
                        .iter()
                        .any(|tid| self.cast.producers.contains(tid)))
        })
    }

    /// A lock that both threads take turns on.
    pub(super) fn shared_lock(&self, a: u32, b: u32) -> Option<LockId> {
        self.locks
            .iter()
            .find(|(id, lock)| {
                lock.threads.contains(&a) && lock.threads.contains(&b) && self.counts(**id)
            })
            .map(|(id, _)| *id)
    }

    pub(super) fn kernel_lock_on_way(&self, leaf: &Leaf) -> Option<u32> {
        leaf.hops
            .iter()
            .find(|hop| hop.how == HopKind::KernelLock)
            .map(|hop| hop.fileset)
    }

    /// Whether what the step thread waits for another thread of its process for is a lock: by its stacks, where the other one hardly
    /// ever waits for it itself.
    pub(super) fn holds_a_lock(&self, leaf: &Leaf) -> bool {
        let (step_tid, tid) = (self.cast.step_tid, leaf.what.tid());
        self.is_waited_for(leaf)
            && !self.cast.makes_batches(tid)
            && step_tid == self.cast.trainer
            && self.facts.pid(tid) == Some(self.cast.trainer)
            && python::waits(self.facts, step_tid, tid) == Some(Waits::ForALock)
    }

    /// Whether the step thread waits in memory for whoever does this, with nobody between them.
    pub(super) fn is_waited_for(&self, leaf: &Leaf) -> bool {
        let [hop] = leaf.hops.as_slice() else {
            return false;
        };
        hop.tid == self.cast.step_tid && hop.wait == WaitKind::Futex
    }

    /// The share (0–1) of these windows in which others waited for a lock on a file that a producer has.
    pub(super) fn file_locked(&self, tid: u32, windows: &[(u64, u64)]) -> Option<f64> {
        let waits = self
            .file_locks
            .get(&tid)
            .filter(|_| self.cast.makes_batches(tid))?;
        Some(share_inside(windows, waits)).filter(|share| *share > 0.0)
    }

    /// The lock that a producer held for the largest share (0–1) of these windows: others waited for it until this
    /// thread handed it on.
    pub(super) fn held_while(&self, tid: u32, windows: &[(u64, u64)]) -> Option<(LockId, f64)> {
        if !self.cast.makes_batches(tid) {
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
}

/// Locks that keep nobody from working, and the producer that does most of the work under them:
/// - inside a process, between producers of which one does nearly all the work: the others pass on what it makes. They wait for the lock
///   while it makes the next, and without the lock it would make no more of them;
/// - where those who take turns on it, the producers and the step thread use up the `cpus` that the job may use: who waits for the lock would
///   have no CPU without it either.
pub(super) fn idle_locks(
    facts: &Facts,
    cast: &Cast,
    locks: &BTreeMap<LockId, Lock>,
    cpus: f64,
) -> BTreeMap<LockId, u32> {
    let walkable = facts.walkable_ns() as f64;
    let most = |id: &LockId, lock: &Lock| {
        let works = lock.threads.iter().map(|tid| (*tid, work(facts, *tid)));
        let all: u64 = works.clone().map(|(_, ns)| ns).sum();
        let (tid, ns) = works.max_by_key(|(_, ns)| *ns)?;
        let of_one = id.pid != 0
            && !lock.threads.contains(&cast.step_tid)
            && ns as f64 >= NEARLY_ALL * all as f64;
        let used = cpu_ns(facts, |tid| {
            lock.threads.contains(&tid) || cast.producers.contains(&tid) || tid == cast.step_tid
        });
        let idle = of_one || used >= USED_UP * cpus * walkable;
        (ns > 0 && idle && cast.producers.contains(&tid)).then_some(tid)
    };
    locks
        .iter()
        .filter_map(|(id, lock)| Some((*id, most(id, lock)?)))
        .collect()
}

/// Threads that have something to do nearly all the time.
pub(super) fn busy(facts: &Facts) -> BTreeSet<u32> {
    let walkable = facts.walkable_ns() as f64;
    let mut works = BTreeMap::<u32, u64>::new();
    for (tid, residual) in facts.residuals() {
        *works.entry(tid).or_default() += residual.run_ns + residual.runnable_ns;
    }
    let mut busy = BTreeSet::new();
    for (tid, mut ns) in works {
        let runnable = facts.items(tid).iter().map(|item| item.to - item.woken);
        ns += runnable.sum::<u64>();
        if ns as f64 >= NEARLY_ALL * walkable {
            busy.insert(tid);
        }
    }
    busy
}

/// Nanoseconds for which a thread ran, or waited for what no thread of the job did.
fn work(facts: &Facts, tid: u32) -> u64 {
    let Some(thread) = facts.session.thread(tid) else {
        return 0;
    };
    let outside = thread.waits.iter().filter(|(id, _)| {
        let by_own = is_on_purpose(id.waker.kind) && facts.session.thread(id.waker.tid).is_some();
        let for_others = matches!(
            wait_kind(id),
            WaitKind::Futex | WaitKind::Poll | WaitKind::Pipe
        );
        !by_own && !for_others
    });
    thread.run_ns + outside.map(|(_, total)| total.wait_ns).sum::<u64>()
}

/// When others waited for a lock on a file that a thread then gave back.
pub(super) fn file_locks(facts: &Facts) -> BTreeMap<u32, Vec<(u64, u64)>> {
    let mut out = BTreeMap::<u32, Vec<(u64, u64)>>::new();
    for (_, items) in facts.waiting_threads() {
        let waits = items
            .iter()
            .filter(|item| locks_files(item.nr) && is_on_purpose(item.waker.kind));
        for item in waits {
            out.entry(item.waker.tid)
                .or_default()
                .push((item.from, item.woken));
        }
    }
    out.into_iter()
        .map(|(tid, waits)| (tid, union(waits)))
        .collect()
}

/// When anybody waited for each lock; `span`: which part of a wait counts.
pub(super) fn waits(
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
pub(super) fn handed_on(
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
