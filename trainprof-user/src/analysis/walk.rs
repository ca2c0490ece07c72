//! The walk: where the time of a stretch of the step thread's life went, back along wake-ups.
//!
//! Pieces are disjoint and sum to the stretch. A wait that a thread of the job ended on purpose is explained
//! by what that thread did meanwhile, and so on; what nobody of the job ended is explained by what was waited
//! for. After Giraldeau and Dagenais, "Wait analysis of distributed systems using kernel tracing" (2016), and
//! Zhou et al., "wPerf" (OSDI 2018).

use std::collections::{BTreeMap, HashMap};

use trainprof_common::{
    op::Class,
    thread::{NR_PREEMPTED, NR_STOPPED, NR_UNSEEN, WakerKind},
};

use super::{
    cast::Cast,
    facts::{Facts, is_on_purpose},
    locks::{Lock, LockId, lock_of},
    timeline::{Item, line},
};
use crate::{
    record::fact::{GpuCallKind, ObjectFact, WakerFact},
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
/// Length of one walk at most.
const STRETCH_NS: u64 = 1_000_000_000;
/// Different leaves that are kept apart.
const MAX_LEAVES: usize = 20_000;
/// Windows of running that are kept for one leaf, to find its samples.
const MAX_WINDOWS: usize = 20_000;
/// Two waits of the step thread for the same object with less than this between them are one stall: a batch
/// came that was not the next in order.
const ONE_STALL_NS: u64 = 2_000_000;

/// A stall of at least this share of the time that a batch takes sees it made.
const MOST_OF_BATCH: f64 = 0.7;

/// How the walk got from a waiting thread to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HopKind {
    /// The other thread handed something over, or ended.
    HandOver,
    /// The other thread gave a lock back.
    Lock(LockId),
    /// The other thread gave a lock of the kernel back: of a directory, a file, the address space.
    KernelLock,
    /// The other thread belongs to another trainer.
    Rank,
}

/// One wait on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Who waited.
    pub tid: u32,
    pub wait: WaitKind,
    pub how: HopKind,
    /// File set of a kernel lock.
    pub fileset: u32,
}

/// What a piece of time was spent with, at the end of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// On a CPU.
    Run { tid: u32 },
    /// Inside a call into the GPU's runtime, on a CPU or not.
    GpuCall { tid: u32, kind: GpuCallKind },
    /// Wanted a CPU; `by` had it (0: nobody that was seen).
    Runnable { tid: u32, by: u32 },
    /// Waited, and nobody of the job ended it.
    Wait {
        tid: u32,
        nr: i16,
        object: ObjectFact,
        waker: WakerFact,
    },
    /// A producer that had nothing to do: the step thread's side had asked for nothing.
    Idle { tid: u32 },
    /// The thread was not there yet, or no more.
    Absent { tid: u32 },
    /// Not seen: the walk was too long, or went in a circle.
    Unknown { tid: u32 },
}

impl What {
    /// The thread at the end of the way.
    pub const fn tid(&self) -> u32 {
        match self {
            Self::Run { tid }
            | Self::GpuCall { tid, .. }
            | Self::Runnable { tid, .. }
            | Self::Wait { tid, .. }
            | Self::Idle { tid }
            | Self::Absent { tid }
            | Self::Unknown { tid } => *tid,
        }
    }
}

/// A way and its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf {
    pub hops: Vec<Hop>,
    pub what: What,
}

impl Leaf {
    /// The thread that the first one waited for.
    pub fn next(&self) -> Option<u32> {
        (!self.hops.is_empty()).then(|| self.hops.get(1).map_or(self.what.tid(), |hop| hop.tid))
    }
}

/// All time that went one way.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    pub ns: f64,
    /// Stretches of running, waiting or being runnable on the leaf's own thread: where its samples are, and what it held.
    pub windows: Vec<(u64, u64)>,
}

/// A piece of the step thread's time: `ns` of the stretch from `from` to `to`.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: u64,
    pub to: u64,
    pub ns: f64,
    pub leaf: u32,
}

/// The result of walking.
#[derive(Default)]
pub struct Walked {
    pub leaves: Vec<(Leaf, Spent)>,
    index: HashMap<Leaf, u32>,
    /// In the step thread's time.
    pub pieces: Vec<Piece>,
    /// Nanoseconds at the end that were left out: a wait for a batch that the end cut off.
    pub cut: u64,
    /// What was walked of the step thread's time.
    pub spans: Vec<(u64, u64)>,
    /// Stretches in which the step thread waited for a producer.
    pub stalls: Vec<(u64, u64)>,
}

impl Walked {
    fn leaf(&mut self, leaf: Leaf) -> u32 {
        if let Some(number) = self.index.get(&leaf) {
            return *number;
        }
        let leaf = if self.leaves.len() >= MAX_LEAVES {
            Leaf {
                hops: Vec::new(),
                what: What::Unknown {
                    tid: leaf.what.tid(),
                },
            }
        } else {
            leaf
        };
        if let Some(number) = self.index.get(&leaf) {
            return *number;
        }
        let number = self.leaves.len() as u32;
        self.leaves.push((leaf.clone(), Spent::default()));
        self.index.insert(leaf, number);
        number
    }

    fn add(&mut self, part: Part, stretch: (u64, u64), ns: f64) {
        let window = part.window;
        // Of waiting and being runnable that is known from sums alone, no single piece is known.
        let whole = part.ns >= 0.99 * (window.1 - window.0) as f64;
        let kept = match part.leaf.what {
            What::Run { .. } => true,
            What::Runnable { .. } | What::Wait { .. } => whole,
            _ => false,
        };
        let number = self.leaf(part.leaf);
        let spent = &mut self.leaves[number as usize].1;
        spent.ns += ns;
        if kept && spent.windows.len() < MAX_WINDOWS {
            spent.windows.push(window);
        }
        self.pieces.push(Piece {
            from: stretch.0,
            to: stretch.1,
            ns,
            leaf: number,
        });
    }
}

/// A piece on its way out: where it lies in time, and how much of it counts.
struct Part {
    leaf: Leaf,
    window: (u64, u64),
    ns: f64,
}

/// Walks for one trainer.
pub struct Walker<'a> {
    pub facts: &'a Facts<'a>,
    pub cast: &'a Cast,
    pub locks: &'a BTreeMap<LockId, Lock>,
    /// How far back a producer's work on one batch reaches at most, ns.
    pub batch_ns: u64,
    steps: u32,
    depth: u32,
}

impl<'a> Walker<'a> {
    pub fn new(
        facts: &'a Facts<'a>,
        cast: &'a Cast,
        locks: &'a BTreeMap<LockId, Lock>,
        batch_ns: u64,
    ) -> Self {
        Self {
            facts,
            cast,
            locks,
            batch_ns,
            steps: 0,
            depth: 0,
        }
    }

    /// Explains the step thread's time in all spans.
    pub fn explain(&mut self) -> Walked {
        let mut out = Walked::default();
        for (from, to) in self.facts.spans_of(self.cast.step_tid) {
            let end = self.without_cut(from, to);
            out.cut += to - end;
            out.spans.push((from, end));
            self.span(from, end, &mut out);
        }
        out.pieces.sort_by_key(|piece| piece.from);
        out.stalls.sort_unstable();
        out
    }

    /// Where a span ends without a wait for a batch that its end cuts off: who was to end that is not known, and those that were
    /// seen whole tell the same. One that is longer than all of them is another matter.
    fn without_cut(&self, from: u64, to: u64) -> u64 {
        let items = self.facts.items(self.cast.step_tid);
        let upto = items.partition_point(|item| item.from < to);
        let Some((last, before)) = items[..upto].split_last() else {
            return to;
        };
        let cut = last.woken >= to && last.waker.kind == WakerKind::Unknown as u8;
        let like = before
            .iter()
            .filter(|item| item.from >= from && self.cast.fed(item))
            .filter(|item| item.nr == last.nr && line(&item.object) == line(&last.object))
            .map(|item| item.woken - item.from)
            .max();
        match like {
            Some(longest) if cut && last.woken - last.from <= longest => last.from.max(from),
            _ => to,
        }
    }

    /// Explains a producer's time in all spans: work, and being idle.
    pub fn producer(&mut self, tid: u32) -> Walked {
        let mut out = Walked::default();
        for (from, to) in self.facts.spans.clone() {
            let mut end = to;
            while end > from {
                let begin = end.saturating_sub(STRETCH_NS).max(from);
                self.steps = 0;
                let mut parts = Vec::new();
                self.walk(tid, begin, end, &mut Vec::new(), true, &mut parts);
                for part in parts {
                    let (stretch, ns) = (part.window, part.ns);
                    out.add(part, stretch, ns);
                }
                end = begin;
            }
        }
        out
    }

    /// Explains one stretch of the step thread's time.
    fn span(&mut self, from: u64, to: u64, out: &mut Walked) {
        let tid = self.cast.step_tid;
        let mut end = to;
        while end > from {
            self.steps = 0;
            let Some((stall, items)) = self.last_stall(tid, from, end) else {
                self.plain(tid, from, end, out);
                return;
            };
            // Behind the stall, the step thread's own time.
            self.plain(tid, stall.1, end, out);
            self.stall(tid, stall, &items, out);
            end = stall.0;
        }
    }

    /// Time without stalls.
    fn plain(&mut self, tid: u32, from: u64, to: u64, out: &mut Walked) {
        let mut end = to;
        while end > from {
            let begin = end.saturating_sub(STRETCH_NS).max(from);
            self.steps = 0;
            let mut parts = Vec::new();
            self.walk(tid, begin, end, &mut Vec::new(), false, &mut parts);
            for part in parts {
                let (stretch, ns) = (part.window, part.ns);
                out.add(part, stretch, ns);
            }
            end = begin;
        }
    }

    /// The last stall that ends at or before `end`: waits of the step thread that a producer ended. Several on
    /// one object with hardly any time between are one.
    fn last_stall(&self, tid: u32, from: u64, end: u64) -> Option<((u64, u64), Vec<Item>)> {
        let items = self.facts.items(tid);
        let mut at = items.partition_point(|item| item.from < end);
        let mut found: Option<((u64, u64), Vec<Item>)> = None;
        while at > 0 {
            at -= 1;
            let item = &items[at];
            if item.to <= from {
                break;
            }
            match &mut found {
                None => {
                    if self.cast.fed(item) {
                        let stretch = (item.from.max(from), item.woken.min(end));
                        if stretch.1 > stretch.0 {
                            found = Some((stretch, vec![*item]));
                        }
                    }
                }
                Some((stretch, group)) => {
                    let first = &group[group.len() - 1];
                    let again = stretch.0.saturating_sub(item.to) <= ONE_STALL_NS
                        && item.nr == first.nr
                        && line(&item.object) == line(&first.object)
                        && self.cast.fed(item);
                    if !again {
                        break;
                    }
                    stretch.0 = item.from.max(from);
                    group.push(*item);
                }
            }
        }
        found
    }

    /// One stall: explained by what its last waker and those behind it did, in the time that a batch takes.
    fn stall(&mut self, tid: u32, stall: (u64, u64), items: &[Item], out: &mut Walked) {
        out.stalls.push(stall);
        let last = items[0];
        let mut hops = vec![self.hop(tid, &last, last.waker.tid)];
        let mut parts = Vec::new();
        // What the step thread itself did between the waits that make up one stall.
        let mut own = 0;
        for pair in items.windows(2) {
            let (later, earlier) = (pair[0], pair[1]);
            own += later.from.saturating_sub(earlier.woken);
            self.walk(
                tid,
                earlier.woken,
                later.from,
                &mut Vec::new(),
                false,
                &mut parts,
            );
        }
        for part in parts.drain(..) {
            let (stretch, ns) = (part.window, part.ns);
            out.add(part, stretch, ns);
        }
        let waited = (stall.1 - stall.0).saturating_sub(own);
        self.walk(
            last.waker.tid,
            stall.0,
            stall.1,
            &mut hops,
            false,
            &mut parts,
        );
        let walked: f64 = parts.iter().map(|part| part.ns).sum();
        if walked <= 0.0 {
            let leaf = self.leaf(&hops, What::Unknown { tid });
            let part = Part {
                leaf,
                window: stall,
                ns: waited as f64,
            };
            out.add(part, stall, waited as f64);
            return;
        }
        let scale = waited as f64 / walked;
        // What the producers did on the way is typical of the stall's end alone: a batch takes longer to make
        // than is waited for it. So their part is told by what they did for the whole batch.
        let mut pooled = Vec::new();
        for part in parts {
            if self.is_busy_producer(&part.leaf) {
                pooled.push(part);
            } else {
                let ns = part.ns * scale;
                out.add(part, stall, ns);
            }
        }
        if pooled.is_empty() {
            return;
        }
        let pooled_ns: f64 = pooled.iter().map(|part| part.ns * scale).sum();
        // Where nearly all of it is waited for, that is what was waited for.
        if (stall.1 - stall.0) as f64 >= MOST_OF_BATCH * self.batch_ns as f64 {
            for part in pooled {
                let ns = part.ns * scale;
                out.add(part, stall, ns);
            }
            return;
        }
        let begin = stall.1.saturating_sub(self.batch_ns).min(stall.0);
        let begin = begin.max(self.span_start(stall.0));
        let mut batch = Vec::new();
        self.walk(last.waker.tid, begin, stall.1, &mut hops, true, &mut batch);
        // Where a producer stood back for the step thread, that one did not wait for it.
        let stood_back = |leaf: &Leaf| matches!(leaf.what, What::Runnable { by, .. } if by == tid);
        batch.retain(|part| self.is_busy_producer(&part.leaf) && !stood_back(&part.leaf));
        if batch.is_empty() {
            batch = pooled;
        }
        let total: f64 = batch.iter().map(|part| part.ns).sum();
        for part in batch {
            let ns = pooled_ns * part.ns / total;
            out.add(part, stall, ns);
        }
    }

    fn span_start(&self, at: u64) -> u64 {
        self.facts
            .spans
            .iter()
            .rev()
            .find(|(from, _)| *from <= at)
            .map_or(at, |(from, _)| *from)
    }

    /// Whether a leaf is work of a producer, in whatever form.
    fn is_busy_producer(&self, leaf: &Leaf) -> bool {
        self.cast.producers.contains(&leaf.what.tid())
            && !matches!(leaf.what, What::Idle { .. } | What::Absent { .. })
    }

    fn hop(&self, tid: u32, item: &Item, waker: u32) -> Hop {
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
    fn walk(
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
                self.wait(tid, &item, start, end, hops, whole_batch, out);
                end = start;
            }
        }
        if begin > from {
            self.emit(hops, What::Absent { tid }, from, begin, out);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one stretch of one walk")]
    fn wait(
        &mut self,
        tid: u32,
        item: &Item,
        from: u64,
        to: u64,
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
        let follow = is_on_purpose(waker.kind)
            && waker.tid != tid
            && self.facts.session.thread(waker.tid).is_some()
            && !self.served(item);
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
        if hops.len() >= MAX_HOPS || self.depth >= MAX_DEPTH || self.steps >= MAX_STEPS {
            self.emit(hops, What::Unknown { tid }, from, to, out);
            return;
        }
        let hop = self.hop(tid, item, waker.tid);
        // A lock that goes round is one hop, however often it changed hands.
        let same = matches!(hop.how, HopKind::Lock(_))
            && hops.last().is_some_and(|last| last.how == hop.how);
        if !same {
            hops.push(hop);
        }
        self.depth += 1;
        self.walk(waker.tid, from, to, hops, whole_batch, out);
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
                && !self.cast.producers.contains(&item.waker.tid);
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
    fn in_call(&self, tid: u32, from: u64, to: u64) -> Option<super::facts::Call> {
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
        let mut hops = hops.to_vec();
        hops.push(Hop {
            tid,
            wait: wait_kind(id),
            how: if self.is_other_rank(tid, id.waker.tid) {
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

    fn leaf(&self, hops: &[Hop], what: What) -> Leaf {
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
