//! The retained past, indexed for the walk: timelines, samples and calls by thread.

use std::collections::{HashMap, HashSet};

use trainprof_common::{op::Class, thread::WakerKind};

use super::{
    passes::{are_of_one_place, of_one_loss, outer},
    polling::put_together,
    spans::union,
    timeline::{Item, line, timeline},
    updates::{each_is_updated, first_of_each},
};
use crate::{
    record::fact::{
        ExecutionFact, GpuCallFact, GpuCallKind, ObjectFact, PassFact, SampleFact, TouchFact,
    },
    session::{Segment, Session, Thread, history::Residual},
};

/// Waits are recorded one by one again, or no more, so long (ns) after an interval began at the latest.
const CHANGES_WITHIN_NS: u64 = 60_000_000;

/// A call into the GPU's runtime, as an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub from: u64,
    pub to: u64,
    pub kind: GpuCallKind,
    /// Bytes copied or allocated; 0 when not known.
    pub bytes: u64,
}

/// Everything that the analysis looks up by thread and time (kernel time, ns).
pub struct Facts<'a> {
    pub session: &'a Session,
    segments: Vec<&'a Segment>,
    timelines: HashMap<u32, Vec<Item>>,
    calls: HashMap<u32, Vec<Call>>,
    passes: HashMap<u32, Vec<u64>>,
    executions: HashMap<u32, Vec<ExecutionFact>>,
    parts: HashMap<u32, Vec<u64>>,
    turns: HashMap<u32, Vec<u64>>,
    single: HashSet<u32>,
    samples: HashMap<u32, Vec<SampleFact>>,
    touches: HashMap<u32, Vec<TouchFact>>,
    python: HashMap<u32, Vec<(u64, u32)>>,
    /// What threads of the job ended each other's waits on.
    handed: HashSet<(u32, u64)>,
    /// Stretches of time without a hole.
    pub spans: Vec<(u64, u64)>,
    /// Calls of trainers were counted all through them. Else what is found by calls is found in a part of the time only.
    pub with_calls: bool,
    /// Of them, those in which trainers' calls were counted while in others they were not: counting slows such a job down.
    pub slowed: Vec<(u64, u64)>,
}

impl<'a> Facts<'a> {
    /// Of the time in which calls of trainers were counted: waits without calls tell half of what a thread did.
    pub fn new(session: &'a Session) -> Self {
        let segments = session.history.segments();
        let with_calls: Vec<&Segment> = segments.filter(|segment| segment.with_calls).collect();
        Self::of(session, with_calls)
    }

    /// Of all time; `None` where calls of trainers were counted all through it.
    pub fn of_all_time(session: &'a Session) -> Option<Self> {
        let segments: Vec<&Segment> = session.history.segments().collect();
        let without_calls = segments.iter().any(|segment| !segment.with_calls);
        without_calls.then(|| Self::of(session, segments))
    }

    fn of(session: &'a Session, segments: Vec<&'a Segment>) -> Self {
        let mut waits = HashMap::<u32, Vec<_>>::new();
        let mut calls = HashMap::<u32, Vec<Call>>::new();
        let mut passes = HashMap::<u32, Vec<PassFact>>::new();
        let mut updates = HashMap::<u32, Vec<u64>>::new();
        let mut executions = HashMap::<u32, Vec<ExecutionFact>>::new();
        let mut samples = HashMap::<u32, Vec<SampleFact>>::new();
        let mut touches = HashMap::<u32, Vec<TouchFact>>::new();
        for segment in &segments {
            for wait in &segment.waits {
                let mut wait = *wait;
                wait.object = interpreters(session, wait.tid, &wait.object);
                waits.entry(wait.tid).or_default().push(wait);
            }
            for pass in &segment.passes {
                passes.entry(pass.tid).or_default().push(*pass);
            }
            for execution in &segment.executions {
                executions
                    .entry(execution.tid)
                    .or_default()
                    .push(*execution);
            }
            for update in &segment.updates {
                updates.entry(update.tid).or_default().push(update.at.0);
            }
            for call in &segment.calls {
                calls.entry(call.tid).or_default().push(Call {
                    from: call.from.0,
                    to: call.from.0.saturating_add(call.ns),
                    kind: call.kind,
                    bytes: call.bytes,
                });
            }
            for sample in &segment.samples {
                samples.entry(sample.tid).or_default().push(*sample);
            }
            for touch in &segment.touches {
                touches.entry(touch.tid).or_default().push(*touch);
            }
        }
        calls.values_mut().for_each(outermost);
        updates
            .values_mut()
            .for_each(|updates| updates.sort_unstable());
        let (mut all, mut parts, mut turns) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut single = HashSet::new();
        for (tid, passes) in passes {
            let passes = outer(passes);
            let of_one = of_one_loss(&passes);
            let updated = updates.get(&tid).map_or(&[][..], Vec::as_slice);
            if let Some(firsts) = first_of_each(&of_one, updated) {
                turns.insert(tid, firsts);
            }
            if are_of_one_place(&passes) && each_is_updated(&of_one, updated) {
                single.insert(tid);
            }
            parts.insert(tid, of_one);
            all.insert(tid, passes.iter().map(|pass| pass.at.0).collect());
        }
        executions
            .values_mut()
            .for_each(|executions| executions.sort_by_key(|execution| execution.at));
        samples
            .values_mut()
            .for_each(|samples| samples.sort_by_key(|sample| sample.at));
        touches
            .values_mut()
            .for_each(|touches| touches.sort_by_key(|touch| touch.at));
        let mut timelines: HashMap<u32, Vec<Item>> = waits
            .into_iter()
            .map(|(tid, waits)| (tid, timeline(waits)))
            .collect();
        put_together(session, &mut timelines);
        let with_calls = segments.iter().all(|segment| segment.with_calls);
        Self {
            session,
            timelines,
            calls,
            passes: all,
            executions,
            parts,
            turns,
            single,
            samples,
            touches,
            python: python(session, &segments),
            handed: handed(session),
            spans: spans(&segments, |_| true),
            slowed: if with_calls {
                Vec::new()
            } else {
                spans(&segments, |segment| segment.with_calls)
            },
            with_calls,
            segments,
        }
    }

    /// Threads that call the GPU's runtime, with their calls.
    pub fn calling_threads(&self) -> impl Iterator<Item = (u32, &[Call])> {
        self.calls.iter().map(|(tid, calls)| (*tid, &**calls))
    }

    /// Nanoseconds of the watch that can be walked.
    pub fn walkable_ns(&self) -> u64 {
        self.spans.iter().map(|(from, to)| to - from).sum()
    }

    /// The spans, cut to the life of a thread.
    pub fn spans_of(&self, tid: u32) -> Vec<(u64, u64)> {
        let Some(thread) = self.session.thread(tid) else {
            return self.spans.clone();
        };
        let born = thread.key.since.0;
        let gone = thread.until.map_or(u64::MAX, |until| until.0);
        self.spans
            .iter()
            .map(|(from, to)| ((*from).max(born), (*to).min(gone)))
            .filter(|(from, to)| to > from)
            .collect()
    }

    /// A thread's single waits, in order.
    pub fn items(&self, tid: u32) -> &[Item] {
        self.timelines.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// Whether a thread of the job ever ended another one's wait on an object. True where the object is not known, and for pipes:
    /// nobody but processes fills them.
    pub fn is_handed(&self, tid: u32, object: &ObjectFact) -> bool {
        let pid = self.pid(tid).unwrap_or(0);
        object.id == 0
            || object.class == Class::Pipe as u8
            || self.handed.contains(&place(pid, object))
    }

    /// Threads that have single waits.
    pub fn waiting_threads(&self) -> impl Iterator<Item = (u32, &[Item])> {
        self.timelines
            .iter()
            .map(|(tid, items)| (*tid, items.as_slice()))
    }

    /// A thread's calls into the GPU's runtime, in order, none inside another.
    pub fn calls(&self, tid: u32) -> &[Call] {
        self.calls.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// What a thread had its framework compute as a whole, in order.
    pub fn executions(&self, tid: u32) -> &[ExecutionFact] {
        self.executions.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// When a thread began its backward passes, in order, none inside another.
    pub fn passes(&self, tid: u32) -> &[u64] {
        self.passes.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// When a thread began its backward passes of one loss, where each turn has several losses: of the work on each batch one.
    pub fn parts(&self, tid: u32) -> &[u64] {
        self.parts.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// Of [`Self::parts`] the first of each turn of the loop, where gradients of several of them are accumulated.
    pub fn accumulated(&self, tid: u32) -> Option<&[u64]> {
        self.turns.get(&tid).map(Vec::as_slice)
    }

    /// Whether a thread's passes are all of one loss, and the model is updated after each of them.
    pub fn each_is_updated(&self, tid: u32) -> bool {
        self.single.contains(&tid)
    }

    /// When the turns' backward passes began, one of each turn.
    pub fn losses(&self, tid: u32) -> &[u64] {
        self.accumulated(tid).unwrap_or_else(|| self.parts(tid))
    }

    /// A thread's samples, in order.
    pub fn samples(&self, tid: u32) -> &[SampleFact] {
        self.samples.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// Whether any thread was sampled.
    pub fn sampled(&self) -> bool {
        !self.samples.is_empty()
    }

    /// A thread's noted system calls, in order.
    pub fn touches(&self, tid: u32) -> &[TouchFact] {
        self.touches.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// Threads with noted system calls.
    pub fn touching_threads(&self) -> impl Iterator<Item = (u32, &[TouchFact])> {
        self.touches
            .iter()
            .map(|(tid, touches)| (*tid, touches.as_slice()))
    }

    /// Samples of a thread's Python program, a process's main one having its number, in order: when, and the number of the stack.
    pub fn python_samples(&self, tid: u32) -> &[(u64, u32)] {
        self.python.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// The same of all threads that have some.
    pub fn all_python_samples(&self) -> impl Iterator<Item = &[(u64, u32)]> {
        self.python.values().map(Vec::as_slice)
    }

    /// What threads did while no single wait of theirs was recorded, by interval.
    pub fn residuals(&self) -> impl Iterator<Item = (u32, &Residual)> {
        let segments = self.segments.iter();
        segments
            .flat_map(|segment| &segment.residuals)
            .map(|(tid, residual)| (*tid, residual))
    }

    /// Calls into the GPU's runtime, in the order in which they were seen.
    pub fn gpu_calls(&self) -> impl Iterator<Item = &GpuCallFact> {
        self.segments.iter().flat_map(|segment| &segment.calls)
    }

    /// What the thread did around `at` while no single wait was recorded, and the beginning of the interval
    /// that this is known for.
    pub fn residual(&self, tid: u32, at: u64) -> (Option<&'a Residual>, u64) {
        let next = self.segments.partition_point(|segment| segment.to.0 <= at);
        match self.segments.get(next) {
            Some(segment) if segment.from.0 <= at => (segment.residuals.get(&tid), segment.from.0),
            _ => (None, at),
        }
    }

    /// Nanoseconds that a thread ran between two times in which no single wait was recorded: all of it, but for its part of the waits
    /// that only the sums of an interval tell.
    pub fn ran(&self, tid: u32, from: u64, to: u64) -> u64 {
        let part = |at: usize| {
            let residual = self.segments[at].residuals.get(&tid);
            let known = residual.filter(|residual| residual.total_ns() > 0);
            known.map_or(1.0, |sums| sums.run_ns as f64 / sums.total_ns() as f64)
        };
        let mut out = 0.0;
        let mut at = from;
        while at < to {
            let next = self.segments.partition_point(|segment| segment.to.0 <= at);
            let known = self.segments.get(next).map(|segment| segment.from.0);
            let (end, ran) = match known {
                Some(known) if known > at => (known, 1.0),
                None => (to, 1.0),
                Some(known) if at < known + CHANGES_WITHIN_NS => {
                    let before = next.checked_sub(1).map_or(1.0, part);
                    (known + CHANGES_WITHIN_NS, part(next).min(before))
                }
                Some(_) => (self.segments[next].to.0, part(next)),
            };
            let end = end.min(to);
            out += (end - at) as f64 * ran;
            at = end;
        }
        out as u64
    }

    /// Process of a thread of the job.
    pub fn pid(&self, tid: u32) -> Option<u32> {
        self.session.thread(tid).map(|thread| thread.pid)
    }
}

/// Stretches of time without a hole that such segments cover.
fn spans(segments: &[&Segment], of: impl Fn(&Segment) -> bool) -> Vec<(u64, u64)> {
    let these = segments.iter().filter(|segment| of(segment));
    union(
        these
            .map(|segment| (segment.from.0, segment.to.0))
            .collect(),
    )
}

/// Samples of Python programs that lie in these segments, or after all that history keeps; in order, whatever order they were recorded in.
fn python(session: &Session, segments: &[&Segment]) -> HashMap<u32, Vec<(u64, u32)>> {
    let end = session.history.segments().last();
    let end = end.map_or(0, |segment| segment.to.0);
    let told = |at: u64| {
        let next = segments.partition_point(|segment| segment.to.0 < at);
        at > end
            || segments
                .get(next)
                .is_some_and(|segment| segment.from.0 <= at)
    };
    let samples = session.python.samples.iter();
    samples
        .map(|(pid, samples)| {
            let of_these = samples.iter().filter(|(at, _)| told(*at));
            let mut of_these: Vec<_> = of_these.copied().collect();
            of_these.sort_unstable();
            (*pid, of_these)
        })
        .collect()
}

/// What a thread waited on, all futexes of its interpreter being one: its lock is a mutex and two condition variables.
pub fn interpreters(session: &Session, tid: u32, object: &ObjectFact) -> ObjectFact {
    let lock = session
        .thread(tid)
        .and_then(|thread| session.python.lock(thread.pid, object));
    ObjectFact {
        id: lock.unwrap_or(object.id),
        ..*object
    }
}

/// Futexes are a process's own, other objects have identities of their own.
fn place(pid: u32, object: &ObjectFact) -> (u32, u64) {
    (if object.class == 0 { pid } else { 0 }, line(object))
}

fn handed(session: &Session) -> HashSet<(u32, u64)> {
    let ended = |thread: &Thread| {
        let (pid, own) = (thread.pid, thread.key.tid);
        thread
            .waits
            .keys()
            .filter(move |id| {
                let waker = id.waker;
                is_on_purpose(waker.kind) && waker.tid != own && session.thread(waker.tid).is_some()
            })
            .map(move |id| place(pid, &id.object))
            .collect::<Vec<_>>()
    };
    session.threads.values().flat_map(ended).collect()
}

/// Whether a thread ended a wait from its own context, or by sending.
pub fn is_on_purpose(kind: u8) -> bool {
    kind == WakerKind::Thread as u8 || kind == WakerKind::Sender as u8
}

/// Keeps the outermost of nested calls.
fn outermost(calls: &mut Vec<Call>) {
    calls.sort_by_key(|call| (call.from, std::cmp::Reverse(call.to)));
    let mut end = 0;
    calls.retain(|call| {
        let keep = call.from >= end;
        if keep {
            end = call.to;
        }
        keep
    });
}
