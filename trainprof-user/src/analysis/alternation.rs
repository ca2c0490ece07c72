//! Two parts of each step of one thread, told apart by what clock samples hit: the framework's computing, and
//! everything else that lasts, such as making a batch without workers.
//!
//! A hidden Markov model of two states. Which modules belong to which part is learned from the thread's own samples
//! (Baum-Welch); only to begin with, a module counts as computing when it is one of a framework's.

use std::collections::BTreeMap;

use super::{facts::Facts, hidden::reveal};
use crate::{record::fact::PlaceClass, session::Session};

/// Samples that show a pattern.
const MIN_SAMPLES: usize = 150;
/// Turns that show one.
const MIN_TURNS: usize = 10;
/// Samples in the shorter part of a step, on average, at least: a part that falls between two samples is missed. The
/// second: for turns to be counted.
const MIN_PART: f64 = 1.2;
const MIN_COUNTED: f64 = 1.6;
/// Most samples in the framework's modules while it computes, hardly any while it does not.
const MIN_PURE: f64 = 0.6;
const MAX_IMPURE: f64 = 0.1;
/// Share of the turns between these factors of the usual one, at least.
const REGULAR: f64 = 0.93;
const SHORTEST: f64 = 0.45;
const LONGEST: f64 = 1.65;
/// Times between samples are uneven when the middle half of them spans this part of the usual one.
const UNEVEN: f64 = 0.1;
/// Rounds of learning.
const ROUNDS: usize = 12;
/// Samples that are taken to have been seen already, for each module: nothing is impossible.
const PRIOR: f64 = 0.5;

/// Beginnings of names of libraries that frameworks compute with.
const FRAMEWORKS: [&str; 29] = [
    "libtorch",
    "libc10",
    "_C.",
    "libblas",
    "libcblas",
    "libopenblas",
    "libmkl",
    "libdnnl",
    "libonednn",
    "libgomp",
    "libiomp",
    "libomp",
    "libcuda",
    "libcudart",
    "libcudnn",
    "libcublas",
    "libnccl",
    "libtensorflow",
    "_pywrap_tensorflow",
    "xla_extension",
    "libjax",
    "libmxnet",
    "libpaddle",
    "libtriton",
    "liblapack",
    "libgfortran",
    "libxgboost",
    "lib_lightgbm",
    "_catboost",
];

/// The parts of a thread's steps.
#[derive(Clone, Debug, Default)]
pub struct Alternation {
    /// Stretches that are not the framework's computing, in order.
    pub apart: Vec<(u64, u64)>,
    /// How finely their ends are known, ns: even samples this far apart would tell them as well.
    pub resolution_ns: u64,
    /// Whether turns can be counted. Samples at even intervals would show a loop that is faster than they are as a
    /// slower one, as a lamp does with a wheel; what they say about shares holds all the same.
    pub countable: bool,
}

/// A stretch of samples of one part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    /// 0 computing, 1 apart.
    pub state: u8,
    pub from: u64,
    pub to: u64,
    pub samples: usize,
}

/// What one sample shows.
#[derive(Clone, Copy)]
struct Shown {
    at: u64,
    /// Number of the module; `None`: code that either part may run.
    module: Option<usize>,
}

/// Finds two alternating parts in what a thread's samples hit outside of `without` (sorted); `None` when there are
/// none, or too short ones to be counted.
pub fn alternation(facts: &Facts, tid: u32, without: &[(u64, u64)]) -> Option<Alternation> {
    let (shown, computing) = shown(facts, tid, without);
    if shown.len() < MIN_SAMPLES || !computing.contains(&true) {
        return None;
    }
    let states = decode(&shown, &computing)?;
    build(facts, &shown, &computing, &states)
}

fn shown(facts: &Facts, tid: u32, without: &[(u64, u64)]) -> (Vec<Shown>, Vec<bool>) {
    let mut numbers = BTreeMap::<&str, usize>::new();
    let mut computing = Vec::new();
    let mut out = Vec::new();
    for sample in facts.samples(tid) {
        let at = sample.at.0;
        let next = without.partition_point(|span| span.1 <= at);
        if without.get(next).is_some_and(|span| span.0 <= at) {
            continue;
        }
        let place = facts.session.places.get(&sample.place);
        let name = place.and_then(|place| match place.class {
            PlaceClass::Other => place.module.as_deref().filter(|name| !runtime(name)),
            PlaceClass::Python => Some("interpreter"),
            PlaceClass::GpuDriver => Some("libcuda"),
            _ => None,
        });
        let module = name.map(|name| {
            *numbers.entry(name).or_insert_with(|| {
                computing.push(is_framework(name));
                computing.len() - 1
            })
        });
        out.push(Shown { at, module });
    }
    (out, computing)
}

/// Whether a module is a library that a framework computes with.
pub(super) fn is_framework(module: &str) -> bool {
    FRAMEWORKS.iter().any(|name| module.starts_with(name))
}

/// Whether a place lies in such a library.
pub fn of_framework(session: &Session, place: u32) -> bool {
    let module = session
        .places
        .get(&place)
        .and_then(|place| place.module.as_deref());
    module.is_some_and(is_framework)
}

/// Whether a module is CPython.
pub fn is_interpreter(module: &str) -> bool {
    module.starts_with("python3") || module.starts_with("libpython3")
}

/// Libraries that every kind of code calls.
fn runtime(module: &str) -> bool {
    [
        "libc.",
        "libc-",
        "ld-",
        "libm.",
        "libm-",
        "libpthread",
        "libstdc++",
        "libgcc",
        "[vdso]",
    ]
    .iter()
    .any(|name| module.starts_with(name))
}

/// State of each sample: 0 computing, 1 apart. `None` when the model falls to one state.
fn decode(shown: &[Shown], computing: &[bool]) -> Option<Vec<u8>> {
    let modules = computing.len();
    let mut emit: [Vec<f64>; 2] = [0, 1].map(|state| {
        computing
            .iter()
            .map(|computes| if *computes == (state == 0) { 0.9 } else { 0.1 })
            .collect()
    });
    let mut stay = [0.7, 0.7];
    for table in &mut emit {
        let sum: f64 = table.iter().sum();
        table.iter_mut().for_each(|p| *p /= sum);
    }
    let n = shown.len();
    let mut posterior = vec![[0.0; 2]; n];
    for _ in 0..ROUNDS {
        let p = |at: usize, state: usize| shown[at].module.map_or(1.0, |m| emit[state][m]);
        let step = |from: usize, to: usize| {
            if from == to {
                stay[from]
            } else {
                1.0 - stay[from]
            }
        };
        let mut forward = vec![[0.5 * p(0, 0), 0.5 * p(0, 1)]; n];
        for at in 0..n {
            if at > 0 {
                let before = forward[at - 1];
                forward[at] = [0, 1].map(|state| {
                    (before[0] * step(0, state) + before[1] * step(1, state)) * p(at, state)
                });
            }
            normalise(&mut forward[at]);
        }
        let mut backward = [1.0, 1.0];
        let mut moves = [[PRIOR; 2]; 2];
        let mut seen = [vec![PRIOR; modules], vec![PRIOR; modules]];
        for at in (0..n).rev() {
            let mut here = [forward[at][0] * backward[0], forward[at][1] * backward[1]];
            normalise(&mut here);
            posterior[at] = here;
            if let Some(module) = shown[at].module {
                seen[0][module] += here[0];
                seen[1][module] += here[1];
            }
            if at > 0 {
                let mut joint = [[0.0; 2]; 2];
                let mut sum = 0.0;
                for from in 0..2 {
                    for to in 0..2 {
                        joint[from][to] =
                            forward[at - 1][from] * step(from, to) * p(at, to) * backward[to];
                        sum += joint[from][to];
                    }
                }
                let mut next = [0.0; 2];
                for from in 0..2 {
                    for to in 0..2 {
                        moves[from][to] += joint[from][to] / sum.max(f64::MIN_POSITIVE);
                        next[from] += step(from, to) * p(at, to) * backward[to];
                    }
                }
                backward = next;
                normalise(&mut backward);
            }
        }
        for state in 0..2 {
            let total: f64 = seen[state].iter().sum();
            emit[state] = seen[state].iter().map(|count| count / total).collect();
            stay[state] = moves[state][state] / (moves[state][0] + moves[state][1]);
        }
    }
    if stay.iter().any(|p| !(0.05..0.999).contains(p)) {
        return None;
    }
    Some(posterior.iter().map(|p| u8::from(p[1] > p[0])).collect())
}

fn normalise(pair: &mut [f64; 2]) {
    let sum = pair[0] + pair[1];
    if sum > 0.0 {
        pair[0] /= sum;
        pair[1] /= sum;
    } else {
        *pair = [0.5, 0.5];
    }
}

/// An end lies anywhere between two samples, and rather between two that are far apart: off by g² / 12 in the mean square where they
/// are g apart, as it is g times as likely to be there. Longer gaps than twice the usual one are no gaps between samples.
fn resolution(gaps: &[u64], usual: u64) -> u64 {
    let gaps = gaps.iter().filter(|gap| **gap <= 2 * usual);
    let (cubes, sum) = gaps.fold((0.0_f64, 0.0_f64), |(cubes, sum), gap| {
        (cubes + (*gap as f64).powi(3), sum + *gap as f64)
    });
    (cubes / sum.max(1.0)).sqrt() as u64
}

fn build(facts: &Facts, shown: &[Shown], computing: &[bool], states: &[u8]) -> Option<Alternation> {
    let mut gaps: Vec<u64> = shown
        .windows(2)
        .map(|pair| pair[1].at - pair[0].at)
        .collect();
    gaps.sort_unstable();
    let step = gaps[gaps.len() / 2];
    let spread = gaps[gaps.len() * 3 / 4] - gaps[gaps.len() / 4];
    let uneven = spread as f64 >= UNEVEN * step as f64;
    let pure = |state: u8| {
        let mut counts = [0.0_f64; 2];
        for (sample, at) in shown.iter().zip(states) {
            if let (true, Some(module)) = (*at == state, sample.module) {
                counts[usize::from(computing[module])] += 1.0;
            }
        }
        counts[1] / (counts[0] + counts[1]).max(1.0)
    };
    if pure(0) < MIN_PURE || pure(1) > MAX_IMPURE {
        return None;
    }
    let mut runs: Vec<Run> = Vec::new();
    for (at, sample) in shown.iter().enumerate() {
        let before = if at > 0 { shown[at - 1].at } else { sample.at };
        let begin = before.midpoint(sample.at);
        match runs.last_mut() {
            Some(run) if run.state == states[at] => {
                run.to = sample.at;
                run.samples += 1;
            }
            last => {
                if let Some(run) = last {
                    run.to = begin;
                }
                runs.push(Run {
                    state: states[at],
                    from: begin,
                    to: sample.at,
                    samples: 1,
                });
            }
        }
    }
    let mut shortest = f64::INFINITY;
    for state in [0, 1] {
        let of: Vec<usize> = runs
            .iter()
            .filter(|run| run.state == state)
            .map(|run| run.samples)
            .collect();
        if of.len() < MIN_TURNS {
            return None;
        }
        shortest = shortest.min(of.iter().sum::<usize>() as f64 / of.len() as f64);
    }
    if shortest < MIN_PART {
        return None;
    }
    let apart = |runs: &[Run]| -> Vec<(u64, u64)> {
        let apart = runs.iter().filter(|run| run.state == 1);
        apart.map(|run| (run.from, run.to)).collect()
    };
    let turns: Vec<u64> = apart(&runs)
        .windows(2)
        .filter(|pair| {
            facts
                .spans
                .iter()
                .any(|(from, to)| *from <= pair[0].0 && pair[1].0 <= *to)
        })
        .map(|pair| pair[1].0 - pair[0].0)
        .collect();
    let mut sorted = turns.clone();
    sorted.sort_unstable();
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(0) as f64;
    let regular = turns
        .iter()
        .filter(|turn| (SHORTEST * usual..=LONGEST * usual).contains(&(**turn as f64)))
        .count();
    let times: Vec<u64> = shown.iter().map(|sample| sample.at).collect();
    (regular as f64 >= REGULAR * turns.len() as f64).then(|| Alternation {
        apart: apart(&reveal(&runs, &times)),
        resolution_ns: resolution(&gaps, step),
        countable: uneven && shortest >= MIN_COUNTED,
    })
}
