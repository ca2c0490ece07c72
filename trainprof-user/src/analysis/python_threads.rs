//! Threads of TensorFlow that run Python: what a pipeline calls back for (`from_generator`, `py_function`). The model is compiled, and its
//! threads run none.

use std::collections::BTreeSet;

use super::{alternation::is_framework, facts::Facts};
use crate::record::fact::PlaceClass;

/// Samples that show what a thread does.
const MIN_SAMPLES: usize = 20;
/// Part (0–1) of them that the interpreter has at least, and that it and libraries of no framework have.
const IN_PYTHON: f64 = 0.02;
const OUTSIDE: f64 = 0.5;

/// Such threads of the trainer.
pub(super) fn feeders(facts: &Facts, trainer: u32, step_tid: u32) -> BTreeSet<u32> {
    let process = facts.session.processes.get(&trainer);
    let loaded = process.and_then(|process| process.seen.frameworks.as_ref());
    if !loaded.is_some_and(|loaded| loaded.has("tensorflow")) {
        return BTreeSet::new();
    }
    let threads = facts.session.threads_of(trainer);
    threads
        .map(|thread| thread.key.tid)
        .filter(|tid| *tid != step_tid && feeds(facts, *tid))
        .collect()
}

fn feeds(facts: &Facts, tid: u32) -> bool {
    let (mut python, mut outside, mut all) = (0, 0, 0);
    for sample in facts.samples(tid) {
        let Some(place) = facts.session.places.get(&sample.place) else {
            continue;
        };
        let runs_python = matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc);
        let other = place.class == PlaceClass::Other
            && place
                .module
                .as_deref()
                .is_some_and(|name| !is_framework(name));
        all += 1;
        python += usize::from(runs_python);
        outside += usize::from(runs_python || other);
    }
    let part = |count: usize| count as f64 / all as f64;
    all >= MIN_SAMPLES && part(python) >= IN_PYTHON && part(outside) >= OUTSIDE
}
