//! What Python code the main threads of processes were in, from sampled stacks: making input, computing with a framework, or
//! neither.
//!
//! A stack is told by the libraries that it goes through, and by Python's own protocols: what a loop draws its items from is a
//! generator, or has `__next__` or `__getitem__`.

mod beside;
mod marks;
mod saving;

use std::collections::{BTreeMap, BTreeSet};

use self::beside::near;
pub use self::marks::is_own;
use self::marks::{Doing, Mark, describes, is_wrapper, mark, marks_of, package, sources, tell};
use super::{
    facts::{Facts, is_on_purpose},
    spans::{overlap, union},
    timeline::Item,
};
use crate::{
    record::{fact::PyFunctionFact, touch::PlaceClass},
    session::kind::WaitKind,
};

/// Samples on a CPU that say something.
const MIN_SAMPLES: usize = 40;
/// So long (ns) before a sample a thread may have lost its CPU, at most, and count as running.
const TAKEN_FROM_NS: u64 = 1_000_000;
/// Samples that tell which function most of some time is spent in.
const MIN_PLACED: usize = 12;
/// A sample stands for this time before and after it at most, ns: between two of them that lie further apart nothing was seen.
const REACH_NS: u64 = 500_000_000;
/// Nearly all samples of a process are in the function that loops, whatever else that does.
const ALWAYS: f64 = 0.95;

/// Turns that show a pattern, and the part (0–1) of their halves that only one sample fell into: there will be others that none did.
const MIN_TURNS: usize = 10;
const MOST_SINGLE: f64 = 0.1;

/// Samples in a row that show the same half of a turn.
struct Part {
    input: bool,
    first: u64,
    last: u64,
    samples: usize,
}

/// Samples of waits that say something.
const MIN_WAITING: usize = 10;

/// How a main thread waits for another thread of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In code of the job's own, which calls nothing but C code for that: it takes a lock.
    ForALock,
    /// In Python's own code, of queues, futures and conditions: for what the other one brings.
    ForAnItem,
}

/// How the main thread `pid` waits where `waker` ends its waits; `None` where its stacks do not tell.
pub fn waits(facts: &Facts, pid: u32, waker: u32) -> Option<Waits> {
    let python = &facts.session.python;
    let items: Vec<_> = facts
        .items(pid)
        .iter()
        .filter(|item| item.waker.tid == waker && is_on_purpose(item.waker.kind))
        .collect();
    let (mut own, mut all) = (0, 0);
    for (at, stack) in facts.python_samples(pid) {
        let after = items.partition_point(|item| item.woken <= *at);
        let inside = items.get(after).is_some_and(|item| item.from <= *at);
        let innermost = python.stacks.get(stack).and_then(|stack| stack.first());
        if inside && let Some(function) = innermost.and_then(|n| python.functions.get(n)) {
            all += 1;
            own += usize::from(is_own(&function.file));
        }
    }
    if all < MIN_WAITING {
        return None;
    }
    Some(if own * 2 > all {
        Waits::ForALock
    } else {
        Waits::ForAnItem
    })
}

/// Stacks of the job, told apart.
pub struct Python<'a> {
    facts: &'a Facts<'a>,
    marks: BTreeMap<u32, Vec<Mark>>,
    doing: BTreeMap<u32, Doing>,
}

/// A function is where a part of the time goes when it is on so many times as large a part of the stacks then as at other times.
const OFTENER_INSIDE: f64 = 1.2;

/// A function, and its part (0–1) of the samples that were looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Place<'a> {
    pub function: &'a PyFunctionFact,
    pub share: f64,
}

impl Place<'_> {
    /// See [`function_name`].
    pub fn name(&self) -> String {
        function_name(self.function)
    }
}

/// A function's name and where it stands, as for a person: `load (train.py:12)`.
pub fn function_name(function: &PyFunctionFact) -> String {
    let PyFunctionFact {
        name, file, line, ..
    } = function;
    let file = file.rsplit('/').next().unwrap_or(file);
    // It begins with the file, which says nothing of where in it the time goes.
    if name == "<module>" {
        return format!("the top level of {file}");
    }
    format!("{name} ({file}:{line})")
}

impl<'a> Python<'a> {
    pub fn new(facts: &'a Facts<'a>) -> Self {
        let session = facts.session;
        let marks: BTreeMap<u32, Vec<Mark>> = session
            .python
            .stacks
            .iter()
            .map(|(number, functions)| {
                let known = &session.python.functions;
                let functions = functions.iter().map(|function| known.get(function));
                (*number, marks_of(functions))
            })
            .collect();
        let sources = sources(facts, &marks);
        let doing = session
            .python
            .stacks
            .iter()
            .map(|(number, functions)| (*number, tell(&marks[number], functions, &sources)))
            .collect();
        Self {
            facts,
            marks,
            doing,
        }
    }

    /// Samples of a thread, such as a process's main one, while it was on a CPU: when, and which stack. Or until just then: who takes samples
    /// often takes the CPU for that from the very thread.
    fn running(&self, tid: u32) -> Vec<(u64, u32)> {
        let items = self.facts.items(tid);
        let samples = self.facts.python_samples(tid).iter();
        let just_ran =
            |item: &Item, at: u64| item.kind() == WaitKind::None && at - item.from <= TAKEN_FROM_NS;
        samples
            .copied()
            .filter(|(at, _)| {
                let after = items.partition_point(|item| item.to <= *at);
                items
                    .get(after)
                    .is_none_or(|item| item.from > *at || just_ran(item, *at))
            })
            .collect()
    }

    /// When a process's main thread was seen to run the model's code.
    pub fn in_model(&self, pid: u32) -> Vec<u64> {
        let samples = self.running(pid).into_iter();
        samples
            .filter(|(_, stack)| self.doing.get(stack) == Some(&Doing::Model))
            .map(|(at, _)| at)
            .collect()
    }

    /// Stretches in which a process's main thread made input itself, each as long as the time between samples that show it;
    /// empty where that is less than `least` (0–1) of its time on a CPU, or where it was seen too little.
    pub fn input(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let is_input = |stack: u32| self.doing.get(&stack) == Some(&Doing::Input);
        self.stretches(&self.running(pid), least, &[], is_input)
    }

    /// The same in which records were kept, the running program was described, or files were written of the kind that loaders read, for no
    /// batch and no model.
    pub fn recording(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let records = |stack| {
            self.shows(stack, |marks| {
                marks.contains(&Mark::Recorder) || describes(marks)
            })
        };
        self.stretches(&self.running(pid), least, &[], records)
    }

    /// The same in which the running program was described alone.
    pub fn describing(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let describes = |stack| self.shows(stack, describes);
        self.stretches(&self.running(pid), least, &[], describes)
    }

    /// Whether a stack that is there for no batch and no model shows something.
    fn shows(&self, stack: u32, what: impl Fn(&[Mark]) -> bool) -> bool {
        self.doing.get(&stack) == Some(&Doing::Other)
            && self.marks.get(&stack).is_some_and(|marks| what(marks))
    }

    /// Whether at least `part` (0–1) of a process's samples on a CPU inside these stretches show that it describes itself.
    pub fn describes(&self, pid: u32, within: &[(u64, u64)], part: f64) -> bool {
        let samples = self.running(pid).into_iter();
        let inside: Vec<u32> = samples
            .filter(|(at, _)| overlap(within, *at, at + 1) > 0)
            .map(|(_, stack)| stack)
            .collect();
        let describing = inside.iter().filter(|stack| self.shows(**stack, describes));
        inside.len() >= MIN_PLACED && describing.count() as f64 >= part * inside.len() as f64
    }

    /// How far off (95 % confidence) a share (0–1) of a process's time on a CPU may be that as many samples tell as there are.
    pub fn share_error(&self, pid: u32, share: f64) -> f64 {
        let samples = self.running(pid).len().max(1) as f64;
        2.0 * (share * (1.0 - share) / samples).sqrt()
    }

    /// Stretches in which these samples show such a stack. None reaches over one of these times (sorted).
    fn stretches(
        &self,
        samples: &[(u64, u32)],
        least: f64,
        ends: &[u64],
        is_input: impl Fn(u32) -> bool,
    ) -> Vec<(u64, u64)> {
        let count = samples.iter().filter(|(_, stack)| is_input(*stack)).count();
        if samples.len() < MIN_SAMPLES || (count as f64) < least * samples.len() as f64 {
            return Vec::new();
        }
        let mut gaps: Vec<u64> = samples
            .windows(2)
            .map(|pair| pair[1].0.saturating_sub(pair[0].0))
            .collect();
        gaps.sort_unstable();
        let usual = gaps[gaps.len() / 2];
        let around = |n: usize| {
            let at = samples[n].0;
            let before = n.checked_sub(1).map(|n| samples[n].0);
            let after = samples.get(n + 1).map(|sample| sample.0);
            let reach = |gap: Option<u64>| (gap.unwrap_or(usual) / 2).min(REACH_NS);
            let next = ends.partition_point(|end| *end <= at);
            let last = next.checked_sub(1).map_or(0, |n| ends[n]);
            let next = ends.get(next).copied().unwrap_or(u64::MAX);
            (
                at.saturating_sub(reach(before.map(|before| at.saturating_sub(before))))
                    .max(last),
                at.saturating_add(reach(after.map(|after| after.saturating_sub(at))))
                    .min(next),
            )
        };
        union(
            (0..samples.len())
                .filter(|n| is_input(samples[*n].1))
                .map(around)
                .collect(),
        )
    }

    /// Stretches in which a process's main thread made input or waited for it, one for each turn of its loop, and how finely their
    /// ends are known (ns). `None` where turns are too short for the samples to show each of them.
    pub fn turns(&self, pid: u32) -> Option<(Vec<(u64, u64)>, u64)> {
        let samples = self.facts.python_samples(pid);
        if samples.is_empty() {
            return None;
        }
        let mut parts: Vec<Part> = Vec::new();
        let mut gaps: Vec<u64> = samples
            .windows(2)
            .map(|pair| pair[1].0.saturating_sub(pair[0].0))
            .collect();
        for (at, stack) in samples {
            let input = match self.doing.get(stack) {
                Some(Doing::Input) => true,
                Some(Doing::Model) => false,
                _ => continue,
            };
            match parts.last_mut() {
                Some(part) if part.input == input => {
                    part.last = *at;
                    part.samples += 1;
                }
                _ => parts.push(Part {
                    input,
                    first: *at,
                    last: *at,
                    samples: 1,
                }),
            }
        }
        // The first and the last one were cut off by the watch.
        let whole = parts.get(1..parts.len().saturating_sub(1))?;
        let single = whole.iter().filter(|part| part.samples < 2).count();
        if whole.len() < 2 * MIN_TURNS || single as f64 > MOST_SINGLE * whole.len() as f64 {
            return None;
        }
        gaps.sort_unstable();
        let middle = |a: u64, b: u64| a + (b - a) / 2;
        let turns = parts
            .windows(3)
            .filter(|around| around[1].input)
            .map(|around| {
                let [before, part, after] = around else {
                    return (0, 0);
                };
                (
                    middle(before.last, part.first),
                    middle(part.last, after.first),
                )
            })
            .collect();
        Some((turns, gaps[gaps.len() / 2]))
    }

    /// Functions of the job's own that these threads were in, most first; of libraries where no function
    /// of the job's own was. `within`: while that, or always.
    pub fn places(&self, tids: &[u32], within: Option<&[(u64, u64)]>) -> Vec<Place<'a>> {
        let inside = |_, at| within.is_none_or(|spans| overlap(spans, at, at + 1) > 0);
        self.counted(tids, inside, |_| true)
    }

    /// The same of threads while their clock samples show the interpreter: who computes in a library has mostly let go of its lock.
    pub fn interpreted(&self, tids: &[u32]) -> Vec<Place<'a>> {
        let places = &self.facts.session.places;
        let interprets = |tid: u32, at: u64| {
            let sample = near(self.facts.samples(tid), at);
            let place = sample.and_then(|sample| places.get(&sample.place));
            place.is_some_and(|place| place.class == PlaceClass::Python)
        };
        self.counted(tids, interprets, |_| true)
    }

    /// The same of threads, each within times of its own, for which it counts.
    pub fn places_in(&self, spans: &BTreeMap<u32, Vec<(u64, u64)>>) -> Vec<Place<'a>> {
        let length =
            |spans: &[(u64, u64)]| -> u64 { spans.iter().map(|(from, to)| to - from).sum() };
        let all: u64 = spans.values().map(|spans| length(spans)).sum();
        let mut shares = BTreeMap::<(&str, &str, u32), Place<'a>>::new();
        for (tid, spans) in spans {
            let weight = length(spans) as f64 / all.max(1) as f64;
            for Place { function, share } in self.places(&[*tid], Some(spans)) {
                let key = (
                    function.file.as_str(),
                    function.name.as_str(),
                    function.line,
                );
                let none = Place {
                    function,
                    share: 0.0,
                };
                shares.entry(key).or_insert(none).share += weight * share;
            }
        }
        let mut places: Vec<Place<'a>> = shares.into_values().collect();
        places.sort_by(|a, b| b.share.total_cmp(&a.share));
        places
    }

    /// The same, but for what a process does to make input.
    pub fn computing(&self, pid: u32) -> Vec<Place<'a>> {
        let makes_input = |stack| self.doing.get(&stack) == Some(&Doing::Input);
        self.counted(&[pid], |_, _| true, |stack| !makes_input(stack))
    }

    /// The innermost function of the job's own in which, or in what it calls, these threads were for this part (0–1) of what they ran at
    /// least; not the loop that calls everything. `within`: while that, or always.
    pub fn around(
        &self,
        tids: &[u32],
        within: Option<&[(u64, u64)]>,
        least: f64,
    ) -> Option<Place<'a>> {
        let python = &self.facts.session.python;
        // Samples inside, and in all: of each function, and of all.
        let mut counts = BTreeMap::<u32, [usize; 2]>::new();
        let mut all = [0; 2];
        for tid in tids {
            let running = self.running(*tid);
            let drivers = self.drivers(&running);
            let inside = |at: u64| within.is_none_or(|spans| overlap(spans, at, at + 1) > 0);
            for (at, stack) in &running {
                let inside = usize::from(inside(*at));
                all[0] += inside;
                all[1] += 1;
                let functions = python.stacks.get(stack).map_or(&[][..], Vec::as_slice);
                let called = functions.iter().filter(|function| {
                    !drivers.contains(function)
                        && python.functions.get(function).is_some_and(|found| {
                            found.name != "<module>"
                                && matches!(mark(found), Mark::Own | Mark::Source)
                        })
                });
                for function in called.collect::<BTreeSet<_>>() {
                    let counts = counts.entry(*function).or_default();
                    counts[0] += inside;
                    counts[1] += 1;
                }
            }
        }
        if all[0] < MIN_PLACED {
            return None;
        }
        let share = |counts: [usize; 2]| counts[0] as f64 / all[0] as f64;
        // What is on the stack as often at other times calls this and more.
        let outside = all[1] - all[0];
        let calls_all = |counts: [usize; 2]| {
            let elsewhere = (counts[1] - counts[0]) as f64 / outside.max(1) as f64;
            outside >= MIN_PLACED && share(counts) < OFTENER_INSIDE * elsewhere
        };
        // Who calls another one is seen at least as often.
        counts
            .into_iter()
            .filter(|(_, counts)| share(*counts) >= least && !calls_all(*counts))
            .min_by_key(|(function, counts)| (counts[0], *function))
            .and_then(|(function, counts)| {
                Some(Place {
                    function: python.functions.get(&function)?,
                    share: share(counts),
                })
            })
    }

    /// Functions by stacks that `count`, of those that are `seen` of a thread at some time: shares are of these.
    fn counted(
        &self,
        tids: &[u32],
        seen: impl Fn(u32, u64) -> bool,
        count: impl Fn(u32) -> bool,
    ) -> Vec<Place<'a>> {
        let python = &self.facts.session.python;
        let mut counts = BTreeMap::<u32, usize>::new();
        let mut all = 0;
        for tid in tids {
            let running = self.running(*tid);
            let drivers = self.drivers(&running);
            for (at, stack) in running {
                if !seen(*tid, at) {
                    continue;
                }
                all += 1;
                if count(stack)
                    && let Some(place) = python
                        .stacks
                        .get(&stack)
                        .and_then(|stack| self.place(stack, &drivers))
                {
                    *counts.entry(place).or_default() += 1;
                }
            }
        }
        let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(function, count)| (std::cmp::Reverse(*count), *function));
        if all < MIN_PLACED {
            return Vec::new();
        }
        counts
            .into_iter()
            .filter_map(|(function, count)| {
                Some(Place {
                    function: python.functions.get(&function)?,
                    share: count as f64 / all as f64,
                })
            })
            .collect()
    }

    /// Functions of the job's own that are on next to all of these stacks: they only call what does the work.
    fn drivers(&self, running: &[(u64, u32)]) -> BTreeSet<u32> {
        let python = &self.facts.session.python;
        let mut counts = BTreeMap::<u32, usize>::new();
        for (_, stack) in running {
            let functions = python.stacks.get(stack).map_or(&[][..], Vec::as_slice);
            for function in functions.iter().collect::<BTreeSet<_>>() {
                *counts.entry(*function).or_default() += 1;
            }
        }
        counts.retain(|_, count| *count as f64 > ALWAYS * running.len() as f64);
        counts.into_keys().collect()
    }

    /// The function that a stack's time is told by: the innermost of the job's own; of the script itself, what it called. Where that is a
    /// library to which the job leaves all of its training, the library's innermost; where it is a loader, what the loader ends up in.
    fn place(&self, stack: &[u32], drivers: &BTreeSet<u32>) -> Option<u32> {
        let functions = &self.facts.session.python.functions;
        let function = |at: usize| functions.get(stack.get(at)?);
        let own = |at: &usize| {
            function(*at).is_some_and(|found| matches!(mark(found), Mark::Own | Mark::Source))
        };
        let Some(at) = (0..stack.len()).find(own) else {
            return stack.first().copied();
        };
        let script = function(at)?.name == "<module>";
        let called = at.checked_sub(1);
        let left_to = called
            .and_then(function)
            .filter(|_| script || drivers.contains(&stack[at]))
            .map(|found| (mark(found), package(&found.file)));
        let inside = (0..at).find(|at| {
            let package = function(*at).and_then(|found| package(&found.file));
            package.is_some()
                && match left_to {
                    Some((Mark::Other, of)) => package == of,
                    Some((mark, _)) => mark == Mark::Loader,
                    None => false,
                }
        });
        let wraps = |at: &usize| function(*at).is_some_and(is_wrapper);
        let called = called
            .filter(|_| script)
            .map(|called| (0..=called).rev().find(|at| !wraps(at)).unwrap_or(called));
        stack.get(inside.or(called).unwrap_or(at)).copied()
    }
}
