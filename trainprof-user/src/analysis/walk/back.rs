//! Backwards through one thread's time, and on through that of whoever ended its waits.

use trainprof_common::{
    op::Class,
    thread::{NR_PREEMPTED, NR_STOPPED, NR_UNSEEN},
};

use super::{Hop, HopKind, Leaf, Part, Walker, What};
use crate::{
    analysis::{
        facts::{Call, interpreters, is_on_purpose},
        locks::{Lock, lock_of},
        timeline::{Item, line},
    },
    record::fact::ObjectFact,
    session::{
        WaitId,
        kind::{WaitKind, wait_kind},
        roles::Role,
    },
};

/// Different hops on one way, after which the walk gives up.
const MAX_HOPS: usize = 24;
/// Walks inside walks: a lock that goes round makes one for each time that it changes hands.
const MAX_DEPTH: u32 = 600;
/// Steps of one walk over a stretch: what is left then is unknown.
const MAX_STEPS: u32 = 20_000;

impl Walker<'_> {
    pub(super) fn hop(&self, tid: u32, item: &Item, waker: u32) -> Hop {
        let kind = item.kind();
        let how = if kind == WaitKind::Futex
            && let Some(lock) = lock_of(self.locks, self.facts, tid, line(&item.object))
            && (lock.threads.contains(&waker) || self.of_interpreter(lock, waker))
        {
            HopKind::Lock(lock.id)
        } else if self.is_other_rank(tid, waker) {
            HopKind::Rank
        } else if matches!(kind, WaitKind::File | WaitKind::Fault) || memory_call(item.nr) {
            HopKind::KernelLock
        } else {
            HopKind::HandOver
        };
        Hop {
            tid,
            wait: kind,
            how,
            fileset: if how == HopKind::KernelLock {
                item.object.fileset
            } else {
                0
            },
        }
    }

    /// Whether a thread can only have had a lock that it hands on: an interpreter's, which each of its threads needs. One that
    /// hardly ever waits for it itself is not known as one of those that contend for it.
    fn of_interpreter(&self, lock: &Lock, waker: u32) -> bool {
        lock.asks_again && self.facts.pid(waker) == Some(lock.id.pid)
    }

    fn is_other_rank(&self, tid: u32, waker: u32) -> bool {
        let (Some(from), Some(to)) = (self.facts.pid(waker), self.facts.pid(tid)) else {
            return false;
        };
        from != to
            && self.cast.roles.get(&from) == Some(&Role::Trainer)
            && self.cast.roles.get(&to) == Some(&Role::Trainer)
    }

    /// What `tid` did in [from, to), backwards; `whole_batch`: a producer's waits for its consumer are idle.
    pub(super) fn walk(
        &mut self,
        tid: u32,
        from: u64,
        to: u64,
        hops: &mut Vec<Hop>,
        whole_batch: bool,
        out: &mut Vec<Part>,
    ) {
        let facts = self.facts;
        if to <= from {
            return;
        }
        let Some(thread) = facts.session.thread(tid) else {
            self.emit(hops, What::Unknown { tid }, from, to, out);
            return;
        };
        let born = thread.key.since.0;
        let mut end = to;
        if let Some(until) = thread.until
            && until.0 < end
        {
            let gone = until.0.max(from);
            self.emit(hops, What::Absent { tid }, gone, end, out);
            end = gone;
        }
        let begin = from.max(born.min(end));
        let items = facts.items(tid);
        let mut at = items.partition_point(|item| item.from < end);
        let mut later = None;
        while end > begin {
            self.steps += 1;
            let item = match at.checked_sub(1).map(|last| items[last]) {
                Some(item) if item.to > begin => item,
                _ => {
                    self.gap(tid, begin, end, hops, out);
                    break;
                }
            };
            at -= 1;
            if item.to < end {
                self.gap(tid, item.to.max(begin), end, hops, out);
                end = item.to;
            }
            if item.woken < end {
                let start = item.woken.max(begin);
                self.runnable(tid, &item, start, end, hops, out);
                end = start;
            }
            if item.nr != NR_PREEMPTED && item.from < end {
                let start = item.from.max(begin);
                let by = self.awaited(&item, hops, later);
                self.wait(tid, &item, by, (start, end), hops, whole_batch, out);
                later = by.filter(|by| *by != tid).or(later);
                end = start;
            }
        }
        if begin > from {
            self.emit(hops, What::Absent { tid }, from, begin, out);
        }
    }

    /// Whose doing the end of a wait is to be told by, where a thread of the job ended it on purpose. One on the way to here waits itself all
    /// the while, though it looks up now and then (time-outs): what it asked for then ended none of these waits. What this thread was handed
    /// `later` did.
    fn awaited(&self, item: &Item, hops: &[Hop], later: Option<u32>) -> Option<u32> {
        let waker = item.waker;
        if !is_on_purpose(waker.kind) || self.facts.session.thread(waker.tid).is_none() {
            return None;
        }
        let on_way = |tid: u32| {
            let mut before = hops.iter();
            before.any(|hop| hop.tid == tid && hop.how == HopKind::HandOver)
        };
        let waits = |tid: u32| {
            let items = self.facts.items(tid);
            let next = items.partition_point(|other| other.woken <= item.woken);
            items
                .get(next)
                .is_some_and(|other| other.asked_again > 0 && other.from < item.woken)
        };
        if on_way(waker.tid) && waits(waker.tid) {
            later.filter(|tid| !on_way(*tid))
        } else {
            Some(waker.tid)
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one stretch of one walk")]
    fn wait(
        &mut self,
        tid: u32,
        item: &Item,
        by: Option<u32>,
        (from, to): (u64, u64),
        hops: &mut Vec<Hop>,
        whole_batch: bool,
        out: &mut Vec<Part>,
    ) {
        // A wait inside a call into the GPU's runtime is a wait for the GPU.
        if self.in_call(tid, from, to).is_some() {
            self.gap(tid, from, to, hops, out);
            return;
        }
        let waker = item.waker;
        let producer = self.cast.producers.contains(&tid);
        if producer && self.is_idle(tid, item) {
            if whole_batch {
                self.emit(hops, What::Idle { tid }, from, to, out);
                return;
            }
            if item.timed_out() {
                self.emit(hops, What::Idle { tid }, from, to, out);
                return;
            }
        }
        let on_purpose =
            is_on_purpose(waker.kind) && self.facts.session.thread(waker.tid).is_some();
        let follow = on_purpose && waker.tid != tid && !self.served(item);
        if !follow || matches!(item.nr, NR_UNSEEN | NR_STOPPED) {
            // Whoever looks after a time-out and finds the lock free was woken by nobody, and has waited for it.
            let lock = (item.kind() == WaitKind::Futex)
                .then(|| lock_of(self.locks, self.facts, tid, line(&item.object)))
                .flatten();
            if let Some(lock) = lock {
                hops.push(Hop {
                    tid,
                    wait: WaitKind::Futex,
                    how: HopKind::Lock(lock.id),
                    fileset: 0,
                });
                self.emit(hops, What::Unknown { tid }, from, to, out);
                hops.pop();
                return;
            }
            let what = What::Wait {
                tid,
                nr: item.nr,
                object: leaf_object(item),
                waker,
            };
            self.emit(hops, what, from, to, out);
            return;
        }
        let too_far = hops.len() >= MAX_HOPS || self.depth >= MAX_DEPTH || self.steps >= MAX_STEPS;
        let Some(by) = by.filter(|_| !too_far) else {
            self.emit(hops, What::Unknown { tid }, from, to, out);
            return;
        };
        let hop = self.hop(tid, item, by);
        // A lock that goes round is one hop, however often it changed hands.
        let same = matches!(hop.how, HopKind::Lock(_))
            && hops.last().is_some_and(|last| last.how == hop.how);
        if !same {
            hops.push(hop);
        }
        self.depth += 1;
        self.walk(by, from, to, hops, whole_batch, out);
        self.depth -= 1;
        if !same {
            hops.pop();
        }
    }

    /// Whether a wait for a file was ended by the process that serves the file system.
    fn served(&self, item: &Item) -> bool {
        matches!(item.kind(), WaitKind::File | WaitKind::Fault)
            && self
                .facts
                .session
                .filesets
                .get(&item.object.fileset)
                .and_then(|fileset| fileset.fs_type.as_deref())
                .is_some_and(is_served)
    }

    /// Whether a producer's wait was for work: ended by the consumer's side, or timed out on a queue: on something that others of
    /// the job put work into.
    fn is_idle(&self, tid: u32, item: &Item) -> bool {
        let kind = item.kind();
        if !matches!(
            kind,
            WaitKind::Poll | WaitKind::Pipe | WaitKind::Futex | WaitKind::Socket
        ) {
            return false;
        }
        if is_on_purpose(item.waker.kind) {
            return self.facts.pid(item.waker.tid) == Some(self.cast.trainer)
                && !self.cast.makes_batches(item.waker.tid);
        }
        item.timed_out()
            && matches!(kind, WaitKind::Poll | WaitKind::Futex | WaitKind::Pipe)
            && self.facts.is_handed(tid, &item.object)
    }

    fn runnable(
        &mut self,
        tid: u32,
        item: &Item,
        from: u64,
        to: u64,
        hops: &[Hop],
        out: &mut Vec<Part>,
    ) {
        if self.in_call(tid, from, to).is_some() {
            self.gap(tid, from, to, hops, out);
            return;
        }
        let by = item.ran_before;
        self.emit(hops, What::Runnable { tid, by }, from, to, out);
    }

    /// The call into the GPU's runtime that covers a stretch.
    fn in_call(&self, tid: u32, from: u64, to: u64) -> Option<Call> {
        let calls = self.facts.calls(tid);
        let next = calls.partition_point(|call| call.to <= from);
        calls
            .get(next)
            .copied()
            .filter(|call| call.from <= from && call.to >= to)
    }

    /// Time without a single wait: calls into the GPU's runtime, and between them running and short waits in
    /// the proportion of the interval.
    fn gap(&mut self, tid: u32, from: u64, to: u64, hops: &[Hop], out: &mut Vec<Part>) {
        let calls = self.facts.calls(tid);
        let mut at = calls.partition_point(|call| call.from < to);
        let mut end = to;
        while end > from {
            let call = at.checked_sub(1).map(|last| calls[last]);
            match call {
                Some(call) if call.to > from => {
                    at -= 1;
                    let upper = call.to.min(end);
                    self.split(tid, upper, end, hops, out);
                    let lower = call.from.max(from);
                    let kind = call.kind;
                    self.emit(hops, What::GpuCall { tid, kind }, lower, upper, out);
                    end = lower;
                }
                _ => {
                    self.split(tid, from, end, hops, out);
                    end = from;
                }
            }
        }
    }

    fn split(&mut self, tid: u32, from: u64, to: u64, hops: &[Hop], out: &mut Vec<Part>) {
        let mut end = to;
        while end > from {
            let (residual, start) = self.facts.residual(tid, end - 1);
            let begin = start.max(from).min(end - 1);
            let length = end - begin;
            let total = residual.map_or(0, |r| r.total_ns());
            let Some(residual) = residual.filter(|_| total > 0) else {
                // It did not run, and the wait that it was in is not among the facts.
                self.emit(hops, What::Unknown { tid }, begin, end, out);
                end = begin;
                continue;
            };
            let mut give = |leaf: Leaf, ns: u64| {
                if ns > 0 {
                    out.push(Part {
                        leaf,
                        window: (begin, end),
                        ns: length as f64 * ns as f64 / total as f64,
                    });
                }
            };
            give(self.leaf(hops, What::Run { tid }), residual.run_ns);
            give(
                self.leaf(hops, What::Runnable { tid, by: 0 }),
                residual.runnable_ns,
            );
            for (id, ns) in &residual.waits {
                give(self.short_wait(tid, id, hops), *ns);
            }
            end = begin;
        }
    }

    /// A wait that is known from sums alone: when a thread of the job ended it, that thread's running.
    fn short_wait(&self, tid: u32, id: &WaitId, hops: &[Hop]) -> Leaf {
        let follow = is_on_purpose(id.waker.kind)
            && self.facts.session.thread(id.waker.tid).is_some()
            && !matches!(wait_kind(id), WaitKind::File | WaitKind::Fault);
        if !follow {
            let what = What::Wait {
                tid,
                nr: id.nr,
                object: id.object,
                waker: id.waker,
            };
            return self.leaf(hops, what);
        }
        let lock = line(&interpreters(self.facts.session, tid, &id.object));
        let lock = lock_of(self.locks, self.facts, tid, lock)
            .filter(|lock| self.of_interpreter(lock, id.waker.tid));
        let mut hops = hops.to_vec();
        hops.push(Hop {
            tid,
            wait: wait_kind(id),
            how: if let Some(lock) = lock {
                HopKind::Lock(lock.id)
            } else if self.is_other_rank(tid, id.waker.tid) {
                HopKind::Rank
            } else {
                HopKind::HandOver
            },
            fileset: 0,
        });
        self.leaf(&hops, What::Run { tid: id.waker.tid })
    }

    fn emit(&self, hops: &[Hop], what: What, from: u64, to: u64, out: &mut Vec<Part>) {
        if to > from {
            out.push(Part {
                leaf: self.leaf(hops, what),
                window: (from, to),
                ns: (to - from) as f64,
            });
        }
    }

    pub(super) fn leaf(&self, hops: &[Hop], what: What) -> Leaf {
        Leaf {
            hops: hops.to_vec(),
            what,
        }
    }
}

/// Sockets and pipes are told apart; files by their file set alone; memory not at all.
fn leaf_object(item: &Item) -> ObjectFact {
    let kept = matches!(
        Class::try_from(item.object.class),
        Ok(Class::Socket | Class::Pipe | Class::Device)
    );
    ObjectFact {
        id: if kept { item.object.id } else { 0 },
        ..item.object
    }
}

/// File systems whose operations are served by a process, or by another host.
pub fn is_served(fs_type: &str) -> bool {
    fs_type.starts_with("fuse")
        || fs_type.starts_with("nfs")
        || fs_type == "9p"
        || fs_type == "cifs"
}

/// Calls that wait for the address space's lock.
fn memory_call(nr: i16) -> bool {
    matches!(
        trainprof_common::arch::syscall_name(nr),
        Some("mmap" | "munmap" | "brk" | "madvise" | "mprotect" | "mremap")
    )
}
