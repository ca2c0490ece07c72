//! Steps that take much longer than usual, and what they contain that the usual ones do not.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Answer, Finding, Look, look::rounded};
use crate::analysis::{Kind, words};

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
        .partition(|(from, to)| to - from >= limit);
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
    // Steps in which the model computes more: an evaluation, the end of an epoch.
    if worst.is_some_and(|(kind, _)| *kind == Kind::Compute) {
        return Answer::Clear;
    }
    let evidence = [
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
    let (name, advice) = match worst {
        Some((kind, ns)) => (
            format!(", {} more in {}", words::time(ns / 1e9), kind.name()),
            format!(
                "look at what {} does in these steps; the rest of them is as usual",
                kind.name()
            ),
        ),
        None => (
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
        advice,
    })
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
