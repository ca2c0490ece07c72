//! Checkpoints: stretches in which state is written to files, by the step thread, by another thread of the trainer that it waits for, or by
//! a process that it is handed to. They are found from noted system calls: calls close together are one stretch.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{
    arch,
    op::{Class, Op},
};

use super::{
    cast::Cast,
    facts::{Facts, is_on_purpose},
    helpers::{Helpers, Task},
    python::Python,
    running::{Call, call},
    spans::{union, without},
    timeline::Item,
};
use crate::{
    record::fact::{GpuCallKind, TouchFact},
    session::{MIN_STATE_BYTES, Thread, kind::WaitKind, roles::MIN_BYTES_PER_S},
};

/// Time between two writes of one checkpoint at most, ns: what is written is made in between.
pub const WRITES_APART_NS: u64 = 50_000_000;
/// Time between a write and the opening of the next file at most, ns: in more something else is done.
const FILES_APART_NS: u64 = 300_000;
/// Time between two calls by which state is handed over at most, ns, and between taking memory and writing what was made in it.
const HANDED_APART_NS: u64 = 5_000_000;
/// A thread that writes a checkpoint for this share of its life is there for nothing else.
const LIVES_FOR_IT: f64 = 0.5;
/// Memory of this part of what is handed over or written, taken just before: what is written was made in it.
const MADE_IN: u64 = 4;
/// What is done around a sync without waiting, ns at most: more is a loop that syncs its log now and then.
const MAX_AROUND_SYNC_NS: u64 = 100_000_000;
/// Files of which each is synced are written one after the other as long as so much lies between two syncs on average, ns at most.
const BETWEEN_SYNCS_NS: u64 = 1_000_000;
/// Calls after a file was opened among which it is looked for what is done with it.
const LOOKED_AT: usize = 16;

/// The checkpoints of one trainer.
#[derive(Default)]
pub struct Checkpoints {
    /// Stretches in which the step thread wrote one, or handed it to a process that does and waited for that.
    pub own: Vec<(u64, u64)>,
    /// The same of the other threads of its process.
    others: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Whether any of the former were handed to another process.
    hands_over: bool,
}

impl Checkpoints {
    pub fn new(facts: &Facts, cast: &Cast, helpers: &Helpers) -> Self {
        let threads = facts.session.threads.values();
        let others = threads
            .filter(|thread| thread.pid == cast.trainer && thread.key.tid != cast.step_tid)
            .filter(|thread| !cast.producers.contains(&thread.key.tid))
            .map(|thread| (thread.key.tid, of_helper(facts, thread)))
            .filter(|(_, spans)| !spans.is_empty())
            .collect();
        let mut own = written(facts, cast.step_tid);
        if !own.is_empty() {
            own.extend(Python::new(facts).saving(cast.step_tid, &own, WRITES_APART_NS));
        }
        let handed = handed_over(facts, cast.step_tid, helpers);
        let hands_over = !handed.is_empty();
        own.extend(handed);
        Self {
            own: union(own),
            others,
            hands_over,
        }
    }

    /// Stretches in which a thread of the trainer wrote one.
    pub fn of(&self, cast: &Cast, tid: u32) -> &[(u64, u64)] {
        if tid == cast.step_tid {
            &self.own
        } else {
            self.others.get(&tid).map_or(&[], Vec::as_slice)
        }
    }

    /// Whether the step thread hands its state to another process.
    pub fn are_handed_over(&self) -> bool {
        self.hands_over
    }
}

/// The checkpoints of a thread beside the step thread: all of its life where it is there for nothing else.
fn of_helper(facts: &Facts, thread: &Thread) -> Vec<(u64, u64)> {
    let spans = written(facts, thread.key.tid);
    let until = thread.until.unwrap_or(facts.session.until);
    let lived = thread.present_ns(until);
    let wrote: u64 = spans.iter().map(|(from, to)| to - from).sum();
    if wrote > 0 && wrote as f64 >= LIVES_FOR_IT * lived as f64 {
        vec![(until.0.saturating_sub(lived), until.0)]
    } else {
        spans
    }
}

/// Stretches in which a thread handed state to a process that writes it: calls on what that one answers on, and waits for it.
fn handed_over(facts: &Facts, tid: u32, helpers: &Helpers) -> Vec<(u64, u64)> {
    let keeps = |tid: u32| {
        let pid = facts.pid(tid);
        pid.is_some_and(|pid| helpers.task(pid) == Some(Task::State))
    };
    let waits = facts.items(tid).iter().filter(|item| keeps(item.waker.tid));
    let objects: BTreeSet<u64> = waits
        .clone()
        .map(|item| item.object.id)
        .filter(|id| *id != 0)
        .collect();
    let mut marks: Vec<(u64, u64, u64)> = waits.map(|item| (item.from, item.to, 0)).collect();
    if marks.is_empty() {
        return Vec::new();
    }
    let calls = facts.touches(tid).iter();
    marks.extend(
        calls
            .filter(|touch| objects.contains(&touch.object.id))
            .map(|touch| (touch.at.0, touch.at.0, touch.bytes)),
    );
    marks.sort_unstable();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for (from, to, bytes) in marks {
        match out.last_mut() {
            Some(last) if from.saturating_sub(last.1) <= HANDED_APART_NS => {
                last.1 = last.1.max(to);
                last.2 += bytes;
            }
            _ => out.push((from, to, bytes)),
        }
    }
    out.into_iter()
        .map(|(from, to, bytes)| (from_made(facts, tid, from, bytes), to + 1))
        .collect()
}

/// When a thread that handed over or wrote `bytes` from `from` on began to take the memory that it made them in.
fn from_made(facts: &Facts, tid: u32, from: u64, bytes: u64) -> u64 {
    let touches = facts.touches(tid);
    let before = touches.partition_point(|touch| touch.at.0 < from);
    let takes = |touch: &&TouchFact| {
        matches!(Op::try_from(touch.op), Ok(Op::Mmap | Op::Brk | Op::Mremap))
            && touch.object.class == Class::Memory as u8
            && touch.bytes >= MIN_STATE_BYTES.max(bytes / MADE_IN)
    };
    let memory = touches[..before].iter().rev().take(LOOKED_AT).filter(takes);
    memory.fold(from, |from, touch| {
        if from - touch.at.0 <= HANDED_APART_NS {
            touch.at.0
        } else {
            from
        }
    })
}

/// Stretches in which a thread wrote state to files.
fn written(facts: &Facts, tid: u32) -> Vec<(u64, u64)> {
    let mut marks: Vec<Burst> = Vec::new();
    for touch in facts.touches(tid) {
        let (Ok(op), Ok(class)) = (Op::try_from(touch.op), Class::try_from(touch.object.class))
        else {
            continue;
        };
        let synced = matches!(op, Op::Fsync | Op::Rename);
        let writes = matches!(op, Op::Write | Op::UringWrite | Op::CopyOut) && class == Class::File;
        if synced || writes {
            marks.push(Burst {
                from: touch.at.0,
                to: touch.at.0,
                bytes: touch.bytes,
                waited: 0,
                syncs: [synced.into(), 0],
            });
        }
    }
    for item in facts.items(tid) {
        if item.kind() == WaitKind::File && (call(item.nr) == Call::Write || lets_go(item.nr)) {
            marks.push(Burst {
                from: item.from,
                to: item.to,
                bytes: 0,
                waited: item.to - item.from,
                syncs: [0, is_sync(item.nr).into()],
            });
        }
    }
    marks.sort_by_key(|mark| (mark.from, mark.to));
    let openings = openings(facts, tid);
    // State that lies on a GPU is fetched part by part.
    let apart = |from: u64, to: u64| {
        let apart = to.saturating_sub(from);
        if apart > WRITES_APART_NS {
            apart - copied(facts, tid, from, to)
        } else {
            apart
        }
    };
    let mut bursts: Vec<Burst> = Vec::new();
    // Until the next file is opened, something else is done.
    let mut between = Vec::new();
    for mark in marks {
        match bursts.last_mut() {
            Some(last) if apart(last.to, mark.from) <= WRITES_APART_NS => {
                let next = openings.partition_point(|at| *at <= last.to);
                if let Some(at) = openings.get(next).filter(|at| **at <= mark.from) {
                    let begun = from_made(
                        facts,
                        tid,
                        from_opening(facts, tid, mark.from).min(*at),
                        mark.bytes,
                    );
                    if begun > last.to + FILES_APART_NS {
                        between.push((last.to, begun));
                    }
                }
                let copied = copied(facts, tid, last.to, mark.from);
                last.to = last.to.max(mark.to);
                last.bytes += mark.bytes;
                last.waited += mark.waited + copied;
                for (syncs, more) in last.syncs.iter_mut().zip(mark.syncs) {
                    *syncs += more;
                }
            }
            _ => bursts.push(mark),
        }
    }
    let whole = union(
        bursts
            .into_iter()
            .filter(Burst::is_checkpoint)
            .map(|burst| {
                let from = from_opening(facts, tid, burst.from);
                (from_made(facts, tid, from, burst.bytes), burst.to)
            })
            .collect(),
    );
    without(&whole, &union(between))
}

/// Nanoseconds for which a thread stood still in copies from or to a GPU in a stretch of time.
fn copied(facts: &Facts, tid: u32, from: u64, to: u64) -> u64 {
    if to <= from {
        return 0;
    }
    let calls = facts.calls(tid);
    let first = calls.partition_point(|call| call.to <= from);
    calls[first..]
        .iter()
        .take_while(|call| call.from < to)
        .filter(|call| matches!(call.kind, GpuCallKind::Copy | GpuCallKind::CopyAsync))
        .map(|call| call.to.min(to) - call.from.max(from))
        .sum()
}

/// When a thread opened files that it wrote to next.
fn openings(facts: &Facts, tid: u32) -> Vec<u64> {
    let touches = facts.touches(tid);
    touches
        .iter()
        .enumerate()
        .filter(|(n, touch)| is_open(touch) && is_written(&touches[n + 1..], touch.object.id))
        .map(|(_, touch)| touch.at.0)
        .collect()
}

/// When a thread that began to write at `from` began to wait for the file to be opened: what it held before is cut off then, and
/// may have to be written first. What it computed since then without waiting for anybody is what it wrote: compressed, say.
fn from_opening(facts: &Facts, tid: u32, from: u64) -> u64 {
    let touches = facts.touches(tid);
    let before = touches.partition_point(|touch| touch.at.0 <= from);
    let opened = touches[..before]
        .iter()
        .enumerate()
        .rev()
        // Memory is taken for what is made meanwhile, as often as it takes.
        .filter(|(_, touch)| !is_memory(touch))
        .take(LOOKED_AT)
        .find(|(n, touch)| is_open(touch) && is_written(&touches[n + 1..], touch.object.id))
        .map(|(n, touch)| (touch.at.0, &touches[n + 1..before]));
    let Some((opened, since)) = opened else {
        return from;
    };
    let apart = from - opened > WRITES_APART_NS;
    if apart && !is_alone(facts, tid, (opened, from), since) {
        return from;
    }
    if apart {
        return opened;
    }
    let items = facts.items(tid);
    let waited = items[..items.partition_point(|item| item.from < opened)].last();
    waited
        .filter(|item| item.kind() == WaitKind::File && call(item.nr) == Call::Meta)
        .filter(|item| opened.saturating_sub(item.to) <= WRITES_APART_NS)
        .map_or(from, |item| item.from)
}

/// Whether a thread that opened a file did nothing but compute until it began to write: it took nothing in, and no other process
/// handed it anything. `calls`: its calls meanwhile.
fn is_alone(facts: &Facts, tid: u32, (from, to): (u64, u64), calls: &[TouchFact]) -> bool {
    let is_write = |touch: &TouchFact| touch.op == Op::Write.number() && touch.at.0 >= to;
    let items = facts.items(tid);
    let meanwhile = &items[items.partition_point(|item| item.from < from)..];
    let handed =
        |item: &Item| is_on_purpose(item.waker.kind) && facts.pid(item.waker.tid) != facts.pid(tid);
    calls.iter().all(|call| is_memory(call) || is_write(call))
        && !meanwhile
            .iter()
            .take_while(|item| item.from < to)
            .any(handed)
}

/// Writes close together.
struct Burst {
    from: u64,
    to: u64,
    bytes: u64,
    waited: u64,
    /// Syncs and renames that were noted, and syncs that were waited for: where there are many calls, few of them are noted.
    syncs: [u64; 2],
}

impl Burst {
    fn is_checkpoint(&self) -> bool {
        let busy = (self.to - self.from).saturating_sub(self.waited);
        let rate = self.bytes as f64 / (busy as f64 / 1e9 + 0.001);
        let much = self.bytes >= MIN_STATE_BYTES && rate >= MIN_BYTES_PER_S;
        let syncs = self.syncs[0].max(self.syncs[1]);
        much || syncs > 0 && busy <= MAX_AROUND_SYNC_NS.max(syncs * BETWEEN_SYNCS_NS)
    }
}

/// Whether a call waits until what was written lies on storage.
fn is_sync(nr: i16) -> bool {
    matches!(
        arch::syscall_name(nr),
        Some("fsync" | "fdatasync" | "sync_file_range" | "syncfs")
    )
}

/// Whether a call gives a file back, which then has to be written or whose storage is freed.
fn lets_go(nr: i16) -> bool {
    matches!(
        arch::syscall_name(nr),
        Some("close" | "unlink" | "unlinkat" | "rmdir")
    )
}

fn is_memory(touch: &TouchFact) -> bool {
    touch.object.class == Class::Memory as u8
}

pub fn is_open(touch: &TouchFact) -> bool {
    touch.op == Op::Open.number() && touch.object.class == Class::File as u8
}

/// Whether the first thing that is done with a file after it was opened is to write to it.
pub fn is_written(after: &[TouchFact], id: u64) -> bool {
    let moves =
        |touch: &&TouchFact| touch.op == Op::Read.number() || touch.op == Op::Write.number();
    let of_file = after
        .iter()
        .filter(|touch| !is_memory(touch))
        .take(LOOKED_AT)
        .filter(|touch| touch.object.id == id);
    of_file
        .into_iter()
        .find(moves)
        .is_some_and(|touch| touch.op == Op::Write.number())
}
