//! Every rule has a story in which it finds something, one in which it finds nothing, though it has seen enough, and one in which it
//! cannot tell.

mod causes;
mod gpu;
mod memory;
mod others;

pub(super) use gpu::{device, device_of, sample, sample_of};

use crate::{
    analysis::{
        analyse,
        facts::Facts,
        rules::{Evidence, Finding, Look, RULES, Rule, Told, told},
    },
    session::Session,
};

/// What a rule says in three stories.
struct Story {
    rule: &'static str,
    found: fn() -> Session,
    clear: fn() -> Session,
    /// One in which it cannot tell, and what it says then.
    lacks: (fn() -> Session, &'static str),
    /// The finding's share (0–1), within two points.
    share: Option<f64>,
    /// Whether the evidence is what the story tells.
    proves: fn(&Evidence) -> bool,
    /// What the advice, with its effect, says among other things.
    advice: &'static [&'static str],
}

fn stories() -> impl Iterator<Item = Story> {
    causes::stories()
        .into_iter()
        .chain(gpu::stories())
        .chain(others::stories())
        .chain(memory::stories())
}

/// A number of the evidence, close to what it should be.
fn is(evidence: &Evidence, key: &str, expected: f64) -> bool {
    let found = evidence.get(key).and_then(serde_json::Value::as_f64);
    found.is_some_and(|found| (found - expected).abs() <= 0.05 * expected.abs())
}

fn answer(name: &str, rule: Rule, session: &Session) -> Told {
    let analysis = analyse(session);
    let facts = Facts::new(session);
    let look = Look {
        session,
        facts: &facts,
        analysis: &analysis,
        trainer: analysis.trainer.as_ref().expect("a trainer"),
    };
    told(&look, name, rule)
}

/// What is wrong with a finding.
fn misses(story: &Story, found: &Finding) -> Vec<String> {
    let mut out = Vec::new();
    if found.kind != story.rule {
        out.push(format!("found {}", found.kind));
    }
    let close = match (found.share, story.share) {
        (Some(found), Some(expected)) => (found - expected).abs() <= 0.02,
        (found, expected) => found.is_none() && expected.is_none(),
    };
    if !close {
        out.push(format!("share {:?} of {:?}", found.share, story.share));
    }
    if !(story.proves)(&found.evidence) {
        out.push(format!("evidence {:?}", found.evidence));
    }
    let advice = match &found.effect {
        Some(effect) => format!("{}; without this {effect}", found.advice),
        None => found.advice.clone(),
    };
    for said in story.advice {
        if !advice.contains(said) {
            out.push(format!("no \"{said}\" in: {advice}"));
        }
    }
    out
}

#[test]
fn every_rule_finds_its_story_is_clear_in_another_and_cannot_tell_in_a_third() {
    let mut wrong = Vec::new();
    let mut told = 0;
    for (name, rule) in RULES {
        let before = told;
        for story in stories().filter(|story| story.rule == *name) {
            told += 1;
            wrong.extend(misses_of(&story, name, *rule));
        }
        if told == before {
            wrong.push(format!("{name}: no story"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(told, stories().count(), "a story of no rule");
}

/// What is wrong in the three tellings of a story.
fn misses_of(story: &Story, name: &str, rule: Rule) -> Vec<String> {
    let mut wrong = match answer(name, rule, &(story.found)()) {
        Told::Found(found) => misses(story, &found),
        other => vec![format!("{other:?} instead of a finding")],
    };
    let clear = answer(name, rule, &(story.clear)());
    if !matches!(clear, Told::Clear) {
        wrong.push(format!("{clear:?} instead of clear"));
    }
    let (lacks, reason) = story.lacks;
    match answer(name, rule, &lacks()) {
        Told::NotEnough(told) if told.contains(reason) => {}
        other => wrong.push(format!("{other:?} instead of what it lacks")),
    }
    wrong
        .into_iter()
        .map(|miss| format!("{name}: {miss}"))
        .collect()
}

#[test]
fn what_a_job_does_not_have_is_clear() {
    // Nothing of a GPU is seen, and none is used.
    let session = causes::alone(|_, _| ());
    for (name, rule) in RULES {
        if [
            "host-compute",
            "h2d-copy",
            "gpu-memory-growth",
            "gpu-shared",
        ]
        .contains(name)
        {
            let told = answer(name, *rule, &session);
            assert!(matches!(told, Told::Clear), "{name}: {told:?}");
        }
    }
}
