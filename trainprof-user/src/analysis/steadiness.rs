//! How alike the share of a cause is from step to step: its standard error by resampling the steps.
//!
//! Steps that follow each other are alike (a slow disk is slow for a while, an epoch turns every hundred of them), so
//! whole blocks of them are drawn, round the end: the circular block bootstrap (Politis and Romano, 1992). The draws are
//! always the same ones: one watch gives one confidence.

use super::{Kind, Trainer};

/// Steps from which on they are drawn; below that, and where steps are little of the time, equal parts of the watch are compared.
const MIN_STEPS: usize = 20;
const MOST_OF_TIME: f64 = 0.5;
/// Draws, which know the standard error to a twentieth, and where their numbers begin.
const DRAWS: usize = 200;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// Stretches of the watch whose shares are compared.
const PARTS: usize = 10;
/// What is known of a cause of which fewer than three parts tell.
const HARDLY_ANY: f64 = 0.8;
/// However much it varies, something was seen of it.
const LEAST: f64 = 0.3;

/// A part of the watch: what a cause took of it, and all of it (ns).
type Part = (f64, f64);

/// 1 − the standard error of a cause's share, relative to that.
pub fn steadiness(trainer: &Trainer, kind: Kind, share: f64) -> f64 {
    let error = match by_step(trainer, kind) {
        Some(steps) => bootstrap(&steps),
        None => match error_of_mean(&by_time(trainer, kind)) {
            Some(error) => error,
            None if trainer.walked.pieces.is_empty() => return 1.0,
            None => return HARDLY_ANY,
        },
    };
    (1.0 - error / share.max(0.01)).clamp(LEAST, 1.0)
}

/// What each step has of a cause. `None`: there are too few, or they are too little of the time.
fn by_step(trainer: &Trainer, kind: Kind) -> Option<Vec<Part>> {
    let spans = &trainer.steps.as_ref()?.spans;
    let inside: u64 = spans.iter().map(|(from, to)| to - from).sum();
    if spans.len() < MIN_STEPS || (inside as f64) < MOST_OF_TIME * trainer.wall {
        return None;
    }
    let mut parts = vec![(0.0, 0.0); spans.len()];
    for (piece, of_kind) in pieces(trainer, kind) {
        let length = (piece.1 - piece.0).max(1) as f64;
        let first = spans.partition_point(|span| span.1 <= piece.0);
        for (span, part) in spans[first..].iter().zip(&mut parts[first..]) {
            if span.0 >= piece.1 {
                break;
            }
            let inside = (span.1.min(piece.1) - span.0.max(piece.0)) as f64 / length;
            part.0 += of_kind.0 * inside;
            part.1 += of_kind.1 * inside;
        }
    }
    parts.retain(|part| part.1 > 0.0);
    (parts.len() >= MIN_STEPS).then_some(parts)
}

/// The same of equal parts of the watch.
fn by_time(trainer: &Trainer, kind: Kind) -> Vec<Part> {
    let all = &trainer.walked.pieces;
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Vec::new();
    };
    let width = ((last.to - first.from) / PARTS as u64).max(1);
    let mut parts = vec![(0.0, 0.0); PARTS];
    for (piece, of_kind) in pieces(trainer, kind) {
        let at = (((piece.0 - first.from) / width) as usize).min(PARTS - 1);
        parts[at].0 += of_kind.0;
        parts[at].1 += of_kind.1;
    }
    parts.retain(|part| part.1 > 0.0);
    parts
}

/// Pieces of the walk, with what a cause took of each.
fn pieces(trainer: &Trainer, kind: Kind) -> impl Iterator<Item = ((u64, u64), Part)> {
    trainer.walked.pieces.iter().map(move |piece| {
        let kinds = &trainer.kinds_of_leaf[piece.leaf as usize];
        let of_kind = kinds.iter().filter(|(other, _)| *other == kind);
        let share: f64 = of_kind.map(|(_, share)| share).sum();
        ((piece.from, piece.to), (piece.ns * share, piece.ns))
    })
}

/// The standard error of the mean share; `None` with fewer than three.
fn error_of_mean(parts: &[Part]) -> Option<f64> {
    let n = parts.len() as f64;
    if parts.len() < 3 {
        return None;
    }
    let shares = || parts.iter().map(|(of, all)| of / all);
    let mean = shares().sum::<f64>() / n;
    let variance = shares().map(|share| (share - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((variance / n).sqrt())
}

/// The standard error of the share of all steps together, from draws of blocks of steps.
fn bootstrap(steps: &[Part]) -> f64 {
    let length = (steps.len() as f64).sqrt().round() as usize;
    let blocks = steps.len().div_ceil(length);
    let mut numbers = Numbers(SEED);
    let shares: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (mut of, mut all) = (0.0, 0.0);
            for _ in 0..blocks {
                // Round the end: the first and the last steps are drawn as often as all others.
                let begin = numbers.below(steps.len());
                for step in steps.iter().cycle().skip(begin).take(length) {
                    of += step.0;
                    all += step.1;
                }
            }
            of / all.max(1.0)
        })
        .collect();
    let n = DRAWS as f64;
    let mean = shares.iter().sum::<f64>() / n;
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    variance.sqrt()
}

/// Numbers that look random: xorshift64* (Vigna, 2016).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        ((high * most as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of one length with these shares.
    fn steps(shares: impl Iterator<Item = f64>) -> Vec<Part> {
        shares.map(|share| (share * 100.0, 100.0)).collect()
    }

    #[test]
    fn steps_that_are_alike_have_no_error() {
        assert!(bootstrap(&steps((0..50).map(|_| 0.4))) < 1e-9);
    }

    #[test]
    fn independent_steps_have_the_error_of_their_mean() {
        let mut numbers = Numbers(7);
        let drawn = std::iter::repeat_with(|| numbers.below(1000) as f64 / 1000.0);
        let all = steps(drawn.take(400));
        // Of what is spread evenly from 0 to 1: √(1 ÷ 12 ÷ 400).
        let expected = (1.0_f64 / 12.0 / 400.0).sqrt();
        let found = bootstrap(&all);
        assert!(
            (found / expected - 1.0).abs() < 0.35,
            "{found} of {expected}"
        );
        assert_eq!(found, bootstrap(&all), "the same draws");
    }

    #[test]
    fn steps_that_hang_together_have_a_larger_error() {
        // Half of them have all of it: one by one in turn, and all in the first half of the watch.
        let turns = bootstrap(&steps((0..100).map(|n| f64::from(n % 2))));
        let halves = bootstrap(&steps((0..100).map(|n| f64::from(u8::from(n < 50)))));
        assert!(turns < 0.02, "{turns}");
        assert!(halves > 0.1, "{halves}");
    }

    #[test]
    fn long_steps_count_for_more() {
        // Of equal shares of time, not of steps.
        let mut all = steps((0..99).map(|_| 0.0));
        all.push((9_900.0, 9_900.0));
        assert!(bootstrap(&all) > 0.2);
    }

    #[test]
    fn fewer_than_three_parts_tell_nothing() {
        assert_eq!(error_of_mean(&[(1.0, 2.0), (1.0, 2.0)]), None);
        let error = error_of_mean(&[(1.0, 2.0), (2.0, 2.0), (0.0, 2.0)]);
        assert!((error.expect("an error") - (0.25_f64 / 3.0).sqrt()).abs() < 1e-9);
    }
}
