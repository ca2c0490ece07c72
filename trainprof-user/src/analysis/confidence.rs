//! How sure a verdict is.

use super::{Kind, Trainer};
use crate::session::Session;

/// Seconds of walking, or steps, that make a verdict.
const ENOUGH_S: f64 = 10.0;
const ENOUGH_STEPS: f64 = 20.0;
/// How sure it is that work between what a framework computes makes batches, where nothing else tells: it might collect garbage.
const GUESSED: f64 = 0.6;
/// Stretches of the watch whose shares are compared.
const PARTS: usize = 10;

/// From how much was explained, for how long, how evenly over time, and how far ahead of the next cause.
pub fn confidence(
    session: &Session,
    trainer: &Trainer,
    kind: Kind,
    share: f64,
    rival: f64,
    blurred: f64,
    by_gpu: bool,
) -> f64 {
    let seconds = trainer.wall / 1e9 / ENOUGH_S;
    let steps = trainer
        .steps
        .as_ref()
        .map_or(0.0, |steps| steps.spans.len() as f64 / ENOUGH_STEPS);
    let enough = seconds.max(steps).min(1.0).sqrt();
    let explained = (1.0 - blurred).clamp(0.0, 1.0);
    let ahead = if kind == Kind::Compute {
        ((share - rival) / share.max(0.01)).clamp(0.0, 1.0)
    } else {
        (0.5 + (share - rival) / share.max(0.01)).clamp(0.0, 1.0)
    };
    let lost: u64 = session.lost.values().sum::<u64>() + session.undecodable;
    let kept = 1.0 - lost as f64 / (session.facts + lost).max(1) as f64;
    let uncertain = if by_gpu {
        1.0 - 0.5 * (trainer.idle.uncertain_s / trainer.idle.seen_s.max(1e-9)).min(1.0)
    } else {
        1.0
    };
    let sure = if kind == Kind::InputCpu && trainer.own_batches_guessed {
        GUESSED
    } else {
        1.0
    };
    enough * explained * ahead * kept * uncertain * sure * steadiness(trainer, kind, share)
}

/// How alike the cause's share is in equal parts of the watch: 1 − its standard error relative to itself.
fn steadiness(trainer: &Trainer, kind: Kind, share: f64) -> f64 {
    let pieces = &trainer.walked.pieces;
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return 1.0;
    };
    let width = ((last.to - first.from) / PARTS as u64).max(1);
    let mut sums = [(0.0, 0.0); PARTS];
    for piece in pieces {
        let at = (((piece.from - first.from) / width) as usize).min(PARTS - 1);
        sums[at].1 += piece.ns;
        for (other, part) in &trainer.kinds_of_leaf[piece.leaf as usize] {
            if *other == kind {
                sums[at].0 += piece.ns * part;
            }
        }
    }
    let shares: Vec<f64> = sums
        .iter()
        .filter(|(_, all)| *all > 0.0)
        .map(|(of, all)| of / all)
        .collect();
    let n = shares.len() as f64;
    if n < 3.0 {
        return 0.8;
    }
    let mean = shares.iter().sum::<f64>() / n;
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    (1.0 - error / share.max(0.01)).clamp(0.3, 1.0)
}
