//! Functions of the job's own under which its framework never computes: no model, and it is not known what for.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use super::{ALWAYS, Doing, Mark, Python};
use crate::{
    analysis::{alternation::of_framework, spans::overlap},
    record::{
        fact::{PyFunctionFact, SampleFact},
        touch::PlaceClass,
    },
    session::Session,
};

/// A framework that clock samples see less than this part (0–1) of a thread's time trains nothing there.
const LEAST_MODEL: f64 = 0.02;
/// A clock sample this close to a stack, ns, shows what that stack ran.
const NEAR_NS: u64 = 2_500_000;
/// Stacks and clock samples that tell what a function does, and the part of the latter that its framework may have at most.
const MIN_ASIDE: usize = 10;
const MOST_COMPUTING: f64 = 0.3;
/// Part of the samples of a function's own code in which the interpreter runs, and not a library that it calls, where it is that.
const INTERPRETED: f64 = 0.7;

/// Parts of paths of packages whose own loops train, and call functions of the job's own in each round: a metric, a callback. And the name of
/// those that such a package draws its data from (XGBoost's `DataIter`).
const BOOSTERS: [&str; 3] = [
    "-packages/xgboost/",
    "-packages/lightgbm/",
    "-packages/catboost/",
];
const DRAWN: &str = "next";

/// Samples that tell what a function does with a batch, the part of them that its framework may have, and the chance (0–1) that
/// computing comes later in its turn than the function: a half if neither came first.
const MIN_PREPARING: usize = 20;
const MOST_PREPARING: f64 = 0.5;
const BEFORE: f64 = 0.7;
/// The same of a function that runs when the model has computed: that is no part of it, as a loss between two halves of it would be.
const AFTER: f64 = 0.3;
/// The same where a turn begins with its backward pass: what runs when that one and the optimiser are through has the next forward pass
/// after it. A loss has nothing after it, and what is done to the gradients has the optimiser as well.
const BETWEEN_PASSES: RangeInclusive<f64> = 0.2..=0.6;
/// The same where hardly any computing follows until the next backward pass: some of the loss at most.
const HARDLY: f64 = 0.1;
/// With so many times as many backward passes as hand-overs, several batches are handed over at once.
const AT_ONCE: f64 = 1.5;
/// Samples in a turn that show where in it something begins and ends.
const EACH: usize = 4;
/// Samples of drawing batches that tell when in a turn that is.
const MIN_DRAWN: usize = 3;
/// Part (0–1) of a function's samples in which it calls a framework, and is no model all the same: it takes a tensor's values over.
const CALLS: f64 = 0.05;
/// Part of the samples that show a framework's own Python code where there is a model made of it.
const MADE_OF_IT: f64 = 0.02;

/// Stretches of a trainer's own work beside its model.
pub struct Apart {
    /// As the samples on a CPU show it.
    pub running: Vec<(u64, u64)>,
    /// As all samples do.
    pub with_waits: Vec<(u64, u64)>,
}

/// What was seen of a function of the job's own.
#[derive(Default)]
struct Aside {
    samples: usize,
    /// Of these, with a framework's code called by it.
    computed: usize,
    /// Clock samples close to them, and those in a framework's libraries.
    near: usize,
    near_computing: usize,
}

impl Aside {
    fn is_no_model(&self, calls: f64, most: f64) -> bool {
        self.samples >= MIN_ASIDE
            && self.computed as f64 <= calls * self.samples as f64
            && self.near >= MIN_ASIDE
            && self.near_computing as f64 <= most * self.near as f64
    }
}

impl Python<'_> {
    /// Stretches in which a process's main thread was in functions of the job's own under which its framework never computes, neither by
    /// stacks nor by clock samples at about the same times: what they do is no model, and it is not known what it is for. Empty as
    /// `input` is.
    pub fn beside(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let session = self.facts.session;
        let computes = |place| of_framework(session, place);
        let mut functions = self.asides(pid, &self.running(pid), 0.0, MOST_COMPUTING, computes);
        functions.retain(|function| !self.is_called(*function));
        self.stretches_under(pid, least, &[], &functions)
    }

    /// The same of a process that others make input for: in such functions as run when the framework has computed in a turn, and are
    /// never called by it; what they do to make input is not counted. It is the trainer's own work beside its model: a metric, say, or a log.
    /// `taken` (sorted): when batches were, and so turns began, or `passes`, where a turn's backward pass does.
    pub fn apart(&self, pid: u32, least: f64, taken: &[u64], passes: &[u64]) -> Apart {
        let (turns, after) = if passes.len() as f64 > AT_ONCE * taken.len() as f64 {
            (passes, BETWEEN_PASSES)
        } else {
            (taken, 0.0..=AFTER)
        };
        let running = self.running(pid);
        let functions = self.no_models(pid, &running);
        let computing = self.computing_times(pid);
        let mut functions = later(self.facts.session, &running, &functions, turns, &computing);
        functions.retain(|_, mean| after.contains(mean));
        let functions = functions.into_keys().collect();
        let ends = self.ends(pid, turns);
        let found = self.under(&running, least, ends, &functions);
        let with_waits = if found.is_empty() {
            Vec::new()
        } else {
            self.under(self.facts.python_samples(pid), 0.0, ends, &functions)
        };
        Apart {
            running: found,
            with_waits,
        }
    }

    /// The same of a process that nobody makes input for, where code is seen that draws its batches: in such functions as run between a
    /// turn's backward pass and the drawing of the next batch. Empty where that is seen too seldom.
    pub fn after_steps(&self, pid: u32, least: f64, passes: &[u64]) -> Vec<(u64, u64)> {
        let running = self.running(pid);
        let is_input = |stack: &u32| self.doing.get(stack) == Some(&Doing::Input);
        let drawn = running.iter().filter(|(_, stack)| is_input(stack));
        let drawn: Vec<u64> = drawn.map(|(at, _)| *at).collect();
        if drawn.len() < MIN_DRAWN {
            return Vec::new();
        }
        let functions = self.no_models(pid, &running);
        let mut functions = later(self.facts.session, &running, &functions, passes, &drawn);
        functions.retain(|_, mean| *mean >= BEFORE);
        let ends = self.ends(pid, passes);
        self.under(&running, least, ends, &functions.into_keys().collect())
    }

    /// Part (0–1) of the samples in these stretches that are in such functions as have next to no computing after them until the next
    /// backward pass: they are for the loss that it begins at. What makes a batch has the forward pass after it.
    pub fn for_loss(&self, pid: u32, within: &[(u64, u64)], passes: &[u64]) -> f64 {
        let running = self.running(pid);
        let functions = self.no_models(pid, &running);
        let computing = self.computing_times(pid);
        let mut functions = later(self.facts.session, &running, &functions, passes, &computing);
        functions.retain(|_, mean| *mean <= HARDLY);
        let functions = functions.into_keys().collect();
        let inside = |(at, _): &&(u64, u32)| overlap(within, *at, *at + 1) > 0;
        let inside: Vec<_> = running.iter().filter(inside).collect();
        let such = inside
            .iter()
            .filter(|(_, stack)| self.is_under(*stack, &functions));
        such.count() as f64 / inside.len().max(1) as f64
    }

    /// Functions of the job's own that are no part of a model that is made of a framework; none where it is not seen to be.
    fn no_models(&self, pid: u32, running: &[(u64, u32)]) -> BTreeSet<u32> {
        let shows = |stack| {
            self.marks
                .get(stack)
                .is_some_and(|marks| marks.contains(&Mark::Framework))
        };
        let made_of_it = running.iter().filter(|(_, stack)| shows(stack)).count();
        if (made_of_it as f64) < MADE_OF_IT * running.len() as f64 || made_of_it == 0 {
            return BTreeSet::new();
        }
        let session = self.facts.session;
        // What is compiled at run time may be the model, and the kernel works for whoever calls it.
        let may_compute = |place| {
            let known = session.places.get(&place);
            known.is_none_or(|place| place.module.is_none() || place.class == PlaceClass::Kernel)
                || of_framework(session, place)
        };
        let mut functions = self.asides(pid, running, CALLS, MOST_COMPUTING, may_compute);
        functions.retain(|function| !self.is_called(*function));
        functions
    }

    /// Stretches in which these samples show any of these functions, but for what is done to make input; `ends` as of `stretches`.
    fn under(
        &self,
        samples: &[(u64, u32)],
        least: f64,
        ends: &[u64],
        functions: &BTreeSet<u32>,
    ) -> Vec<(u64, u64)> {
        self.stretches(samples, least, ends, |stack| {
            self.doing.get(&stack) != Some(&Doing::Input) && self.is_under(stack, functions)
        })
    }

    /// No stretch reaches over the beginning of a turn where turns are seen several times each: else samples stand for turns in which there was
    /// none, too.
    fn ends<'t>(&self, pid: u32, turns: &'t [u64]) -> &'t [u64] {
        if self.facts.python_samples(pid).len() >= EACH * turns.len() {
            turns
        } else {
            &[]
        }
    }

    /// When clock samples show the framework's computing.
    fn computing_times(&self, pid: u32) -> Vec<u64> {
        let clock = self.facts.samples(pid).iter();
        clock
            .filter(|sample| of_framework(self.facts.session, sample.place))
            .map(|sample| sample.at.0)
            .collect()
    }

    /// Whether a framework calls a function, or another one of the same class: then it is part of the model. (It calls the first half of an
    /// `autograd.Function` from C, which leaves no frame, and the second one from Python.)
    fn is_called(&self, function: u32) -> bool {
        let python = &self.facts.session.python;
        self.marks.iter().any(|(stack, marks)| {
            let functions = python.stacks.get(stack).map_or(&[][..], Vec::as_slice);
            let depth = functions
                .iter()
                .position(|other| self.are_kin(*other, function));
            depth.is_some_and(|depth| marks[depth + 1..].contains(&Mark::Framework))
        })
    }

    /// Whether two functions are the same one, or of one class.
    fn are_kin(&self, one: u32, other: u32) -> bool {
        let functions = &self.facts.session.python.functions;
        let class = |number| {
            let function: &PyFunctionFact = functions.get(&number)?;
            let (class, _) = function.name.rsplit_once('.')?;
            // What is defined in a function is of no class.
            (!class.ends_with("<locals>")).then_some((&function.file, class))
        };
        one == other || class(one).is_some_and(|of| class(other) == Some(of))
    }

    /// The same, in such functions as run before the framework computes in a turn, and not after it: they prepare the batch that
    /// was taken, which may take some of the framework too. `taken` (sorted): when turns began.
    pub fn prepares(&self, pid: u32, least: f64, taken: &[u64]) -> Vec<(u64, u64)> {
        let running = self.running(pid);
        let session = self.facts.session;
        let computes = |place| of_framework(session, place);
        let functions = self.asides(pid, &running, 0.0, MOST_PREPARING, computes);
        let computing = self.computing_times(pid);
        let functions = later(session, &running, &functions, taken, &computing)
            .into_iter()
            .filter(|(function, mean)| *mean >= BEFORE && !self.is_called(*function))
            .map(|(function, _)| function)
            .collect();
        self.stretches_under(pid, least, taken, &functions)
    }

    /// Stretches in any of these functions; `ends` as of `stretches`.
    fn stretches_under(
        &self,
        pid: u32,
        least: f64,
        ends: &[u64],
        functions: &BTreeSet<u32>,
    ) -> Vec<(u64, u64)> {
        let running = self.running(pid);
        self.stretches(&running, least, ends, |stack| {
            self.is_under(stack, functions)
        })
    }

    /// Whether a stack goes through any of these functions.
    pub(super) fn is_under(&self, stack: u32, functions: &BTreeSet<u32>) -> bool {
        let stack = self.facts.session.python.stacks.get(&stack);
        stack.is_some_and(|stack| stack.iter().any(|f| functions.contains(f)))
    }

    /// Stretches in which a process's main thread was in functions of the job's own that a library which trains calls back, and that hardly
    /// compute with any framework: metrics of each round, say. Empty as `input` is.
    pub fn called_back(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let (session, clock) = (self.facts.session, self.facts.samples(pid));
        if !self.computes(pid) {
            return Vec::new();
        }
        let file_has = |function: &u32, parts: &[&str]| {
            let function = session.python.functions.get(function);
            function.is_some_and(|function| parts.iter().any(|part| function.file.contains(part)))
        };
        let is_drawn = |function: &u32| {
            let function = session.python.functions.get(function);
            function.is_some_and(|function| function.name.rsplit('.').next() == Some(DRAWN))
        };
        let running = self.running(pid);
        let mut functions = BTreeMap::<u32, Aside>::new();
        let mut called_back = BTreeMap::<u32, Vec<u32>>::new();
        for (at, number) in &running {
            let (Some(marks), Some(stack)) =
                (self.marks.get(number), session.python.stacks.get(number))
            else {
                continue;
            };
            let called = (1..stack.len()).find(|caller| {
                marks[caller - 1] == Mark::Own
                    && file_has(&stack[*caller], &BOOSTERS)
                    && !is_drawn(&stack[caller - 1])
            });
            let Some(caller) = called else { continue };
            called_back
                .entry(stack[caller - 1])
                .or_default()
                .push(*number);
            // What is called may compute itself, as for a prediction, and call what works on that.
            let near = near(clock, *at);
            let own = (0..caller).filter(|depth| marks[*depth] == Mark::Own);
            for depth in own {
                let aside = functions.entry(stack[depth]).or_default();
                aside.samples += 1;
                aside.computed += usize::from(marks[..depth].contains(&Mark::Framework));
                if let Some(sample) = near {
                    aside.near += 1;
                    aside.near_computing += usize::from(of_framework(session, sample.place));
                }
            }
        }
        functions.retain(|_, aside| aside.is_no_model(CALLS, MOST_COMPUTING));
        let mut functions: BTreeSet<u32> = functions.into_keys().collect();
        // What one that does mostly such things has computed is for these.
        called_back.retain(|_, stacks| {
            let such = |stack: &&u32| self.is_under(**stack, &functions);
            2 * stacks.iter().filter(such).count() > stacks.len()
        });
        functions.extend(called_back.into_keys());
        self.stretches(&running, least, &[], |stack| {
            self.is_under(stack, &functions)
        })
    }

    /// Stretches in which a process's main thread ran the bytecode of functions of the job's own, or what the interpreter itself has for them
    /// (collecting garbage, strings, dictionaries), with no function of anybody else between: no framework computes there, whatever else it
    /// does for the same function. Empty as `input` is.
    pub fn interpreting(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        if !self.trains(pid) {
            return Vec::new();
        }
        let (session, clock) = (self.facts.session, self.facts.samples(pid));
        let running = self.running(pid);
        // The function that runs, where it is one of the job's own.
        let own = |stack: &u32| match self.marks.get(stack)?.first()? {
            Mark::Own => session.python.stacks.get(stack)?.first().copied(),
            _ => None,
        };
        let interprets = |place: u32| {
            let place = session.places.get(&place);
            place.is_some_and(|place| {
                matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc)
            })
        };
        let mut functions = BTreeMap::<u32, (usize, usize)>::new();
        for (at, stack) in &running {
            if let (Some(function), Some(sample)) = (own(stack), near(clock, *at)) {
                let (near, interpreted) = functions.entry(function).or_default();
                *near += 1;
                *interpreted += usize::from(interprets(sample.place));
            }
        }
        functions.retain(|function, (near, interpreted)| {
            *near >= MIN_ASIDE
                && *interpreted as f64 >= INTERPRETED * *near as f64
                && !self.is_called(*function)
        });
        self.stretches(&running, least, &[], |stack| {
            own(&stack).is_some_and(|function| functions.contains_key(&function))
        })
    }

    /// Whether a process trains something with a framework, as its libraries and its main thread's clock samples show.
    fn trains(&self, pid: u32) -> bool {
        let session = self.facts.session;
        let loaded = session
            .processes
            .get(&pid)
            .and_then(|process| process.seen.frameworks.as_ref())
            .is_some_and(|loaded| loaded.trains());
        loaded && self.computes(pid)
    }

    /// Whether a process's main thread computes with a framework's libraries, by its clock samples.
    fn computes(&self, pid: u32) -> bool {
        let clock = self.facts.samples(pid);
        let of_model = |sample: &&SampleFact| of_framework(self.facts.session, sample.place);
        let seen = clock.iter().filter(of_model).count();
        seen > 0 && seen as f64 >= LEAST_MODEL * clock.len() as f64
    }

    /// Functions of the job's own under which its framework computes in no more than the part `calls` of these stacks, and for no more than
    /// the part `most` of the time by clock samples, of places that `computes`.
    fn asides(
        &self,
        pid: u32,
        running: &[(u64, u32)],
        calls: f64,
        most: f64,
        computes: impl Fn(u32) -> bool,
    ) -> BTreeSet<u32> {
        let session = self.facts.session;
        let clock = self.facts.samples(pid);
        if !self.trains(pid) {
            return BTreeSet::new();
        }
        let mut functions = BTreeMap::<u32, Aside>::new();
        for (at, stack) in running {
            let (Some(marks), Some(stack)) =
                (self.marks.get(stack), session.python.stacks.get(stack))
            else {
                continue;
            };
            let near = near(clock, *at);
            for (depth, function) in stack.iter().enumerate() {
                if !matches!(marks[depth], Mark::Own | Mark::Source | Mark::Recorder) {
                    continue;
                }
                let aside = functions.entry(*function).or_default();
                aside.samples += 1;
                aside.computed += usize::from(marks[..depth].contains(&Mark::Framework));
                if let Some(sample) = near {
                    aside.near += 1;
                    aside.near_computing += usize::from(computes(sample.place));
                }
            }
        }
        let always = ALWAYS * running.len() as f64;
        functions
            .retain(|_, aside| aside.is_no_model(calls, most) && (aside.samples as f64) <= always);
        functions.into_keys().collect()
    }
}

/// The clock sample that shows what a stack of this time ran.
pub(super) fn near(clock: &[SampleFact], at: u64) -> Option<&SampleFact> {
    let after = clock.partition_point(|sample| sample.at.0 < at);
    clock[after.saturating_sub(1)..]
        .iter()
        .take(2)
        .min_by_key(|sample| sample.at.0.abs_diff(at))
        .filter(|sample| sample.at.0.abs_diff(at) <= NEAR_NS)
}

/// The chance (0–1) that what happens at these times comes later in its turn than each of these functions; only of those that were seen
/// often enough.
fn later(
    session: &Session,
    running: &[(u64, u32)],
    functions: &BTreeSet<u32>,
    turns: &[u64],
    times: &[u64],
) -> BTreeMap<u32, f64> {
    let since = |at: u64| {
        let before = turns.partition_point(|from| *from <= at).checked_sub(1)?;
        Some(at.saturating_sub(turns[before]))
    };
    let mut times: Vec<u64> = times.iter().filter_map(|at| since(*at)).collect();
    times.sort_unstable();
    let mut later = BTreeMap::<u32, Vec<f64>>::new();
    for (at, stack) in running {
        let stack = session.python.stacks.get(stack).into_iter().flatten();
        let Some(since) = since(*at) else {
            continue;
        };
        let before = times.partition_point(|other| *other <= since);
        let part = (times.len() - before) as f64 / times.len().max(1) as f64;
        for function in stack.filter(|function| functions.contains(function)) {
            later.entry(*function).or_default().push(part);
        }
    }
    later
        .into_iter()
        .filter(|(_, parts)| parts.len() >= MIN_PREPARING)
        .map(|(function, parts)| {
            let mean = parts.iter().sum::<f64>() / parts.len() as f64;
            (function, mean)
        })
        .collect()
}
