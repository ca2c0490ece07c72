//! Steps that take much longer than usual, and what they contain that the usual ones do not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{Answer, Evidence, Finding, Look, look::rounded};
use crate::analysis::{Kind, alternation::is_interpreter, spans::overlap, words};

/// A step, from and to.
type Span = (u64, u64);

/// Steps that make a tail.
const MIN_STEPS: usize = 40;
/// The slowest twentieth takes at least this many times the usual.
const SLOW: f64 = 2.0;
/// What slow steps lose, as a share of all time.
const MIN_SHARE: f64 = 0.05;

pub(super) fn rule(look: &Look) -> Answer {
    let Some(steps) = &look.trainer.steps else {
        return Answer::NotEnough("no step clock");
    };
    if steps.spans.len() < MIN_STEPS {
        return Answer::NotEnough("too few steps");
    }
    let usual = steps.quantile_ns(0.5) as f64;
    let limit = (usual * SLOW) as u64;
    let (slow, normal): (Vec<Span>, Vec<Span>) = steps
        .spans
        .iter()
        // Those in which calls were counted, of a job that this slows down, would be quicker without.
        .partition(|(from, to)| to - from >= limit && overlap(&look.facts.slowed, *from, *to) == 0);
    let total: u64 = steps.spans.iter().map(|(from, to)| to - from).sum();
    let lost: f64 = slow
        .iter()
        .map(|(from, to)| (to - from) as f64 - usual)
        .sum();
    let share = lost / total.max(1) as f64;
    if slow.is_empty() || share < MIN_SHARE || slow.len() * 5 > steps.spans.len() {
        return Answer::Clear;
    }
    let more = difference(look, &slow, &normal);
    let worst = more.first();
    let computes = worst.is_some_and(|(kind, _)| matches!(kind, Kind::Compute | Kind::HostCompute));
    let code = computes
        .then(|| unusual_code(look, &slow, &normal))
        .flatten();
    // Steps in which the model computes more, of what it always does: an evaluation, the end of an epoch.
    let beside_gpu = look.trainer.gpu_use.used;
    let more_of_it = |kind: &Kind| *kind == Kind::Compute || computes && !beside_gpu;
    if worst.is_some_and(|(kind, _)| more_of_it(kind)) && code.is_none() {
        return Answer::Clear;
    }
    let mut evidence: Evidence = [
        ("slow_steps", json!(slow.len())),
        ("usual_ms", rounded(usual / 1e6)),
        ("p99_ms", rounded(steps.quantile_ns(0.99) as f64 / 1e6)),
        (
            "more_in_slow_steps",
            more.iter()
                .take(4)
                .map(|(kind, ns)| json!({"kind": kind.name(), "ms": (ns / 1e6).round()}))
                .collect(),
        ),
    ]
    .into();
    if let Some((name, _)) = &code {
        evidence.insert("code", json!(name));
    }
    let (name, advice) = match (worst, &code) {
        (Some((_, ns)), Some((name, share))) => (
            format!(
                ", {} more on the CPU in {name}",
                words::time(ns * share / 1e9)
            ),
            if is_interpreter(name) {
                "it is the Python interpreter's own work, which the other steps have little of: where that is collecting garbage, gc.freeze() after the start, or a higher gc.set_threshold(); else Python code that runs in these steps alone".to_owned()
            } else {
                format!(
                    "look at what calls {name} in these steps alone; the rest of them is as usual"
                )
            },
        ),
        (Some((kind, ns)), None) => (
            format!(", {} more in {}", words::time(ns / 1e9), kind.name()),
            format!(
                "look at what {} does in these steps; the rest of them is as usual",
                kind.name()
            ),
        ),
        (None, _) => (
            String::new(),
            "nothing else in them differs from the usual steps".to_owned(),
        ),
    };
    Answer::Found(Finding {
        kind: "tail-latency",
        share: Some(share),
        evidence,
        summary: format!(
            "{} of {} steps take more than twice the usual {}{name}",
            slow.len(),
            steps.spans.len(),
            words::time(usual / 1e9)
        ),
        advice: format!(
            "{advice}; as quick as the usual ones they would save at most {} of the time",
            words::percent(share)
        ),
        effect: None,
    })
}

/// Clock samples in slow steps that tell what they do.
const MIN_SAMPLES: usize = 20;
/// Code is unusual where its part of slow steps is so many times its part of normal ones.
const UNUSUAL: f64 = 1.5;

/// The module, with the function where one has most of it, that slow steps spend more time in than normal ones, and its part (0-1)
/// of all that they spend more. `None` when they do more of what is done anyway.
fn unusual_code(look: &Look, slow: &[Span], normal: &[Span]) -> Option<(String, f64)> {
    let samples = look.facts.samples(look.trainer.cast.step_tid);
    // Samples a step.
    let rates = |steps: &[Span]| {
        let mut out = BTreeMap::<u32, f64>::new();
        let mut count = 0;
        for (from, to) in steps {
            let first = samples.partition_point(|sample| sample.at.0 < *from);
            for sample in samples[first..].iter().take_while(|s| s.at.0 < *to) {
                *out.entry(sample.place).or_default() += 1.0 / steps.len() as f64;
                count += 1;
            }
        }
        (out, count)
    };
    let ((slow, count), (normal, _)) = (rates(slow), rates(normal));
    let (all_slow, all_normal): (f64, f64) = (slow.values().sum(), normal.values().sum());
    if count < MIN_SAMPLES || all_slow <= all_normal {
        return None;
    }
    let module = |place: &u32| look.session.places.get(place)?.module.as_deref();
    let of_module = |rates: &BTreeMap<u32, f64>, name: &str| -> f64 {
        let own = rates
            .iter()
            .filter(|(place, _)| module(place) == Some(name));
        own.map(|(_, rate)| rate).sum()
    };
    let modules: BTreeSet<&str> = slow.keys().filter_map(module).collect();
    let (name, more) = modules
        .into_iter()
        .map(|name| (name, of_module(&slow, name) - of_module(&normal, name)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    let part = more / (all_slow - all_normal);
    let usual = of_module(&normal, name) / all_normal.max(1e-9);
    if part < 0.5 || of_module(&slow, name) / all_slow < UNUSUAL * usual {
        return None;
    }
    let function = slow
        .iter()
        .filter(|(place, _)| module(place) == Some(name))
        .map(|(place, rate)| (place, rate - normal.get(place).copied().unwrap_or(0.0)))
        .find(|(_, own)| *own * 2.0 >= more)
        .and_then(|(place, _)| look.session.places.get(place)?.function.as_deref());
    let name = match function {
        Some(function) => format!("{name}:{}", words::function(function)),
        None => name.to_owned(),
    };
    Some((name, part.min(1.0)))
}

/// By how much a mean slow step exceeds a mean normal one, by cause, largest first (ns).
fn difference(look: &Look, slow: &[(u64, u64)], normal: &[(u64, u64)]) -> Vec<(Kind, f64)> {
    let sums = |steps: &[(u64, u64)]| {
        let mut out = BTreeMap::<Kind, f64>::new();
        let pieces = &look.trainer.walked.pieces;
        for (from, to) in steps {
            let first = pieces.partition_point(|piece| piece.from < *from);
            for piece in pieces[first..].iter().take_while(|piece| piece.from < *to) {
                for (kind, share) in &look.trainer.kinds_of_leaf[piece.leaf as usize] {
                    *out.entry(*kind).or_default() += piece.ns * share / steps.len() as f64;
                }
            }
        }
        out
    };
    let usual = sums(normal);
    let mut out: Vec<(Kind, f64)> = sums(slow)
        .into_iter()
        .map(|(kind, ns)| (kind, ns - usual.get(&kind).copied().unwrap_or(0.0)))
        .filter(|(_, ns)| *ns > 0.0)
        .collect();
    out.sort_by(|a, b| b.1.total_cmp(&a.1));
    out
}
