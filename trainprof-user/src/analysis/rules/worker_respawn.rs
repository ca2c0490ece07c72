//! Workers that are made anew each epoch.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Answer, Finding, Look, look::rounded};
use crate::analysis::{Kind, python::Python, words};

/// A function that new workers are in for so much (0–1) of their start is what it takes.
const MOST_OF_IT: f64 = 0.4;

/// Workers that ended, for each that lives at a time.
const GENERATIONS: f64 = 2.0;

pub(super) fn rule(look: &Look) -> Answer {
    let session = look.session;
    // A program that is run for each file ends with it.
    let makers = look.trainer.cast.makers.iter();
    let workers: Vec<u32> = makers
        .copied()
        .filter(|pid| !look.is_other_program(*pid))
        .collect();
    if workers.is_empty() || look.makers_are_programs() {
        return Answer::Clear;
    }
    if session.start.is_none() {
        return Answer::NotEnough("the watch has no beginning");
    }
    let born: Vec<u32> = workers
        .iter()
        .copied()
        .filter(|pid| session.was_made(*pid))
        .collect();
    let ended = workers
        .iter()
        .filter(|pid| {
            session
                .threads_of(**pid)
                .all(|thread| thread.until.is_some())
        })
        .count();
    let at_once = look.trainer.demand.parallel.max(1.0);
    if (born.len() as f64) < GENERATIONS * at_once || (ended as f64) < GENERATIONS * at_once {
        return Answer::Clear;
    }
    let generations = sets(look, &born);
    let every = session.duration_s() / generations;
    let waited = look.trainer.ns(Kind::WorkerStart) / look.trainer.wall;
    let saved = if waited > 0.0 {
        format!(
            "that saves up to {} every {}",
            words::time(waited * every),
            words::time(every)
        )
    } else {
        "the trainer hardly waited for that here, so no step gets much shorter".to_owned()
    };
    Answer::Found(Finding {
        kind: "worker-respawn",
        share: Some(waited),
        evidence: [
            ("workers_started", json!(born.len())),
            ("workers_ended", json!(ended)),
            ("every_s", rounded(every)),
        ]
        .into(),
        summary: format!(
            "{} workers were started and {ended} ended in {}: a new set about every {}",
            born.len(),
            words::time(session.duration_s()),
            words::time(every)
        ),
        advice: format!(
            "keep them: persistent_workers=True; each start costs a fork, the imports, and an empty queue{}; {saved}",
            started_in(look, &born, waited * every)
        ),
        effect: None,
    })
}

/// The function that new workers are in for most of the first `seconds`, as a part of a sentence.
fn started_in(look: &Look, born: &[u32], seconds: f64) -> String {
    let spans: BTreeMap<u32, Vec<(u64, u64)>> = born
        .iter()
        .filter_map(|pid| {
            let since = look.session.processes.get(pid)?.since.0;
            Some((*pid, vec![(since, since + (seconds * 1e9) as u64)]))
        })
        .collect();
    let places = Python::new(look.facts).places_in(&spans);
    places
        .first()
        .filter(|place| place.share >= MOST_OF_IT)
        .map_or_else(String::new, |place| {
            format!(
                ", and what each does anew in {}: do that once, before they are made",
                place.name()
            )
        })
}

/// How many sets of workers were made: those of one set follow each other closely.
fn sets(look: &Look, born: &[u32]) -> f64 {
    let begun = |pid: &u32| Some(look.session.processes.get(pid)?.since.0);
    let mut times: Vec<u64> = born.iter().filter_map(begun).collect();
    times.sort_unstable();
    let apart = look.session.duration_s() * 1e9 / times.len().max(1) as f64 / 2.0;
    let others = times
        .windows(2)
        .filter(|pair| (pair[1] - pair[0]) as f64 > apart);
    1.0 + others.count() as f64
}
