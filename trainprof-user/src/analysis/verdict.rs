//! The verdict: the one cause that bounds the step, or that it cannot be told.

use std::collections::BTreeMap;

use super::{
    Analysis, Finding, Kind, Trainer,
    confidence::{Claim, confidence},
    settle, unclear, words,
};
use crate::session::Session;

/// A cause that can be fixed is the verdict from this share of the wall time on; a smaller one is a finding
/// beside `compute`.
pub(super) const MIN_SHARE: f64 = 0.15;
/// Every program allocates: that is the verdict from this share on.
const MIN_CHURN: f64 = 0.2;
/// Computing is the verdict from this share of the wall time on.
const MIN_COMPUTE: f64 = 0.5;
/// As long as no more than this part of it went to what cannot be told: that might be what could be fixed.
const MOST_BLURRED: f64 = 0.5;
/// Seconds of walking below which nothing is told.
const MIN_S: f64 = 2.0;
/// A verdict that is surer than this is one.
const MIN_CONFIDENCE: f64 = 0.3;
/// A bound below this is told as next to nothing.
const HARDLY: f64 = 1.02;

/// What bounds the job.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Name of a [`Kind`], or `inconclusive`.
    pub bottleneck: &'static str,
    /// Share (0–1) of what `share_of` says; `None` when inconclusive.
    pub share: Option<f64>,
    /// `trainer-wall-time`, `gpu-idle-time`, or `gpu-time` for computing on a GPU that is sampled.
    pub share_of: &'static str,
    /// How much faster the job could be without it, at most; `None` when not bounded or inconclusive.
    pub speedup_bound: Option<f64>,
    pub summary: String,
    /// 0–1.
    pub confidence: f64,
}

/// Judges one trainer.
pub fn verdict(session: &Session, analysis: &Analysis, trainer: &Trainer) -> Verdict {
    let by_gpu = trainer.idle.seen_s > 0.0;
    let mut shares = wall_shares(trainer, by_gpu);
    // Making workers is work of the input side.
    if let Some(start) = shares.remove(&Kind::WorkerStart) {
        *shares.entry(Kind::InputCpu).or_default() += start;
    }
    let of = |kind: Kind| shares.get(&kind).copied().unwrap_or(0.0);
    let busy_gpu = if by_gpu {
        1.0 - trainer.idle.idle_s / trainer.idle.seen_s
    } else {
        0.0
    };
    let compute = of(Kind::Compute).max(busy_gpu);
    let blurred: f64 = [
        Kind::Unknown,
        Kind::Sleep,
        Kind::Stopped,
        Kind::Helper,
        Kind::NotAsked,
        Kind::WorkerStart,
    ]
    .into_iter()
    .map(of)
    .sum();
    let mut fixable: Vec<(Kind, f64)> = shares
        .iter()
        .filter(|(kind, _)| kind.can_be_fixed())
        .map(|(kind, share)| (*kind, *share))
        .collect();
    fixable.sort_by(|a, b| b.1.total_cmp(&a.1));
    let seen = trainer.wall / 1e9;
    if seen < MIN_S {
        return inconclusive(
            by_gpu,
            0.0,
            format!(
                "only {} were seen; watch for ten seconds or more",
                words::time(seen)
            ),
        );
    }
    let mut likely = fixable
        .iter()
        .filter(|(kind, share)| *kind != Kind::AllocationChurn || *share >= MIN_CHURN)
        .copied();
    let first = likely.next();
    let second = likely.next();
    let (kind, share, rival) = match first {
        Some((kind, share)) if share >= MIN_SHARE && share >= blurred => (kind, share, second),
        Some((_, share)) if share >= MIN_SHARE => {
            return inconclusive(
                by_gpu,
                0.2,
                unclear::told(session, trainer, &shares, blurred),
            );
        }
        _ if compute >= MIN_COMPUTE && blurred <= MOST_BLURRED * compute => {
            (Kind::Compute, compute, first)
        }
        _ => {
            return inconclusive(
                by_gpu,
                0.2,
                unclear::told(session, trainer, &shares, blurred),
            );
        }
    };
    let claim = Claim {
        kind,
        share,
        rival,
        blurred,
        by_gpu,
    };
    let confidence = confidence(session, trainer, &claim);
    if confidence.value < MIN_CONFIDENCE {
        return inconclusive(
            by_gpu,
            confidence.value,
            format!(
                "{} looks likely ({} of the time), but not surely: {}",
                kind.name(),
                words::percent(share),
                settle::told(session, trainer, &claim, &shares, confidence.doubt)
            ),
        );
    }
    let found = |kind: Kind| {
        let mut findings = analysis.findings.iter();
        findings.find(|finding| finding.kind == kind.name())
    };
    let bound = if kind == Kind::Compute {
        // Everything but computing can be gone at best, and so can each cause that was found.
        let causes = fixable.iter().filter(|(kind, _)| found(*kind).is_some());
        causes
            .map(|(kind, _)| trainer.bound(*kind))
            .filter(|bound| bound.is_finite())
            .chain(trainer.bound_alone())
            .fold(1.0 / share.max(0.01), f64::max)
    } else {
        trainer.bound(kind)
    };
    let finding = match trainer.bound_alone() {
        Some(_) if kind == Kind::Compute => analysis
            .findings
            .iter()
            .find(|finding| finding.kind == "gpu-shared"),
        _ => found(kind),
    };
    Verdict {
        bottleneck: kind.name(),
        share: Some(if by_gpu && kind != Kind::Compute {
            share * trainer.idle.seen_s / trainer.idle.idle_s.max(1e-9)
        } else {
            share
        }),
        share_of: if by_gpu && kind == Kind::Compute {
            "gpu-time"
        } else {
            share_of(by_gpu)
        },
        speedup_bound: bound.is_finite().then_some(bound),
        summary: summary(trainer, kind, share, bound, finding, by_gpu),
        confidence: confidence.value,
    }
}

fn share_of(by_gpu: bool) -> &'static str {
    if by_gpu {
        "gpu-idle-time"
    } else {
        "trainer-wall-time"
    }
}

/// Shares of the wall time by cause; where a GPU is sampled, only what it idled for.
fn wall_shares(trainer: &Trainer, by_gpu: bool) -> BTreeMap<Kind, f64> {
    if by_gpu {
        trainer
            .idle
            .by_kind
            .iter()
            .map(|(kind, s)| (*kind, s / trainer.idle.seen_s))
            .collect()
    } else {
        trainer
            .by_kind()
            .into_iter()
            .map(|(kind, ns)| (kind, ns / trainer.wall.max(1.0)))
            .collect()
    }
}

fn inconclusive(by_gpu: bool, confidence: f64, summary: String) -> Verdict {
    Verdict {
        bottleneck: "inconclusive",
        share: None,
        share_of: share_of(by_gpu),
        speedup_bound: None,
        summary: format!("inconclusive: {summary}"),
        confidence,
    }
}

fn summary(
    trainer: &Trainer,
    kind: Kind,
    share: f64,
    bound: f64,
    finding: Option<&Finding>,
    by_gpu: bool,
) -> String {
    let what = finding.map_or_else(String::new, |finding| finding.summary.clone());
    if kind == Kind::Compute {
        let rest = if bound < HARDLY {
            format!(
                "without all the rest it would gain less than {}",
                words::percent(HARDLY - 1.0)
            )
        } else {
            format!(
                "with all the rest gone the job would be at most {} as fast",
                words::factor(bound)
            )
        };
        if trainer.bound_alone().is_some() && !what.is_empty() {
            return format!(
                "compute: the GPU is busy {} of the time, but not for this job alone: {what}; alone on it the job would be at most {} as fast",
                words::percent(share),
                words::factor(bound)
            );
        }
        return format!(
            "compute: nothing around the model is what holds this job back; {} of the time is {}{}; {rest}",
            words::percent(share),
            if by_gpu || trainer.gpu_calls {
                "work on the GPU"
            } else {
                "the model's own work on the CPU"
            },
            if by_gpu {
                format!(
                    " (the GPU idles {})",
                    words::percent(trainer.idle.idle_s / trainer.idle.seen_s)
                )
            } else {
                String::new()
            },
        );
    }
    let of = if by_gpu {
        "the GPU idled for it"
    } else {
        "it took"
    };
    let then = match &trainer.steps {
        Some(steps) if bound.is_finite() => {
            let step = steps.mean_ns() / 1e9;
            format!(
                " Without it a step would fall from {} to no less than {} (≤ {}).",
                words::time(step),
                words::time(step / bound),
                words::factor(bound)
            )
        }
        _ => format!(
            " Without it the job would be at most {} as fast.",
            words::factor(bound)
        ),
    };
    format!(
        "{}: {of} {} of the time; {what}.{then}",
        kind.name(),
        words::percent(share)
    )
}
