//! Threads of frameworks' pools. They are called in turn, so no wake tells for whom one works: clock samples do.

use std::collections::BTreeSet;

use super::{alternation::is_framework, facts::Facts};
use crate::record::fact::{PlaceClass, PlaceFact};

/// Samples that show what a thread does.
const MIN_SAMPLES: usize = 20;
/// Beginnings of names of libraries with XLA in them.
const XLA: [&str; 2] = ["libjax", "xla_extension"];
/// Part (0–1) of a thread's samples that such a library has at least, and that it has together with what it compiled, which is in no file.
const IN_XLA: f64 = 0.2;
const COMPILED: f64 = 0.7;
/// Part of them that the interpreter has at least, and that it and libraries of no framework have.
const IN_PYTHON: f64 = 0.02;
const OUTSIDE: f64 = 0.5;

/// Threads of a trainer that run what JAX compiled: they are part of the model.
pub(super) fn compiled(facts: &Facts, trainer: u32) -> BTreeSet<u32> {
    let xla = |place: &PlaceFact| {
        let module = place.module.as_deref();
        module.is_some_and(|name| XLA.iter().any(|of| name.starts_with(of)))
    };
    let in_no_file = |place: &PlaceFact| place.class == PlaceClass::Other && place.module.is_none();
    threads(facts, trainer, "jaxlib", |tid| {
        part(facts, tid, &xla) >= IN_XLA
            && part(facts, tid, &|place| xla(place) || in_no_file(place)) >= COMPILED
    })
}

/// Threads of a trainer on TensorFlow that run Python: what its pipeline calls back for (`from_generator`, `py_function`). The model is
/// compiled, and its threads run none.
pub(super) fn feeders(facts: &Facts, trainer: u32, step_tid: u32) -> BTreeSet<u32> {
    let python =
        |place: &PlaceFact| matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc);
    let other = |place: &PlaceFact| {
        let module = place.module.as_deref();
        place.class == PlaceClass::Other && module.is_some_and(|name| !is_framework(name))
    };
    threads(facts, trainer, "tensorflow", |tid| {
        tid != step_tid
            && part(facts, tid, &python) >= IN_PYTHON
            && part(facts, tid, &|place| python(place) || other(place)) >= OUTSIDE
    })
}

/// Threads of a process that are such, where it has the framework loaded.
fn threads(facts: &Facts, pid: u32, framework: &str, are: impl Fn(u32) -> bool) -> BTreeSet<u32> {
    let process = facts.session.processes.get(&pid);
    let loaded = process.and_then(|process| process.seen.frameworks.as_ref());
    if !loaded.is_some_and(|loaded| loaded.has(framework)) {
        return BTreeSet::new();
    }
    let threads = facts.session.threads_of(pid);
    threads
        .map(|thread| thread.key.tid)
        .filter(|tid| are(*tid))
        .collect()
}

/// Part of a thread's samples that are of such places; 0 where there are too few.
fn part(facts: &Facts, tid: u32, of: &dyn Fn(&PlaceFact) -> bool) -> f64 {
    let samples = facts.samples(tid).iter();
    let places: Vec<_> = samples
        .filter_map(|sample| facts.session.places.get(&sample.place))
        .collect();
    if places.len() < MIN_SAMPLES {
        return 0.0;
    }
    let count = places.iter().filter(|place| of(place)).count();
    count as f64 / places.len() as f64
}
