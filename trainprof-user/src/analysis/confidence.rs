//! How sure a verdict is, and what keeps it from being surer.

use super::{Kind, Trainer, steadiness::steadiness};
use crate::{
    env::{CACHE_HITS, FILE_OPERATIONS},
    session::Session,
};

/// Seconds of walking, or steps, that make a verdict.
pub(super) const ENOUGH_S: f64 = 10.0;
pub(super) const ENOUGH_STEPS: f64 = 20.0;
/// How sure it is that work between what a framework computes makes batches, where nothing else tells: it might collect garbage.
const GUESSED: f64 = 0.6;
/// Computing while a GPU is used of which nothing is seen may be a wait for it, which spins: that is no verdict. Whatever else holds the
/// step back, the GPU may be busy meanwhile.
const GPU_UNSEEN: f64 = 0.25;
const BESIDE_GPU_UNSEEN: f64 = 0.8;
/// Waits that cannot be told from those that an interrupt ended.
const NO_INTERRUPTS: f64 = 0.8;
/// Files of which a part of the calls was not seen.
const NO_FILES: f64 = 0.6;
/// What is taken away where calls of files were hardly counted at all: what was counted stands for the rest.
const HARDLY_COUNTED: f64 = 0.3;
/// Reads of which it is not known whether they came from the page cache.
const NO_CACHE: f64 = 0.8;
/// Computing of a trainer that has nobody to make its batches, without stacks of its code.
const NO_STACKS: f64 = 0.5;
/// The same of one that has: it may do other work than its model's.
const NO_STACKS_BESIDE: f64 = 0.9;

/// What is claimed: shares are of the time that the verdict goes by.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub kind: Kind,
    pub share: f64,
    /// The next cause that could be fixed, and its share.
    pub rival: Option<(Kind, f64)>,
    /// Share of what cannot be told.
    pub blurred: f64,
    /// Shares are of what a sampled GPU did.
    pub by_gpu: bool,
}

/// What takes away from how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Little was seen.
    Short,
    /// Much could not be followed to a cause.
    Unfollowed,
    /// Another cause is close behind.
    Rival,
    /// Facts were lost.
    Lost,
    /// The share differs over the watch.
    Unsteady,
    /// A GPU is used and nothing of it was seen.
    GpuUnseen,
    /// Samples of the GPU are longer than what the host does.
    GpuCoarse,
    /// Nothing but its place in the loop tells what some work is for.
    Guessed,
    /// Calls were counted for a part of the time.
    Uncounted,
    /// Something that the cause is told by is missing, by its name in [`Session::missing`] or among what was given up.
    Missing(&'static str),
}

/// 0–1, with what takes most away from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    pub value: f64,
    pub doubt: Doubt,
}

/// From how much was explained, for how long, how evenly over time, how far ahead of the next cause, and what was not seen.
pub fn confidence(session: &Session, trainer: &Trainer, claim: &Claim) -> Confidence {
    let mut factors = vec![
        (Doubt::Short, enough(trainer)),
        (Doubt::Unfollowed, (1.0 - claim.blurred).clamp(0.0, 1.0)),
        (Doubt::Rival, ahead(claim)),
        (Doubt::Lost, 1.0 - lost_share(session)),
        (Doubt::GpuCoarse, fine(trainer, claim)),
        (
            Doubt::Uncounted,
            counted(claim.kind, session.calls_counted_share()),
        ),
        (
            Doubt::Guessed,
            match claim.kind {
                Kind::InputCpu if trainer.own_batches_guessed => GUESSED,
                Kind::HostCompute
                    if !trainer.beside_model.is_empty()
                        && !trainer.garbage
                        && !trainer.describes =>
                {
                    GUESSED
                }
                _ => 1.0,
            },
        ),
        (
            Doubt::Unsteady,
            steadiness(trainer, claim.kind, claim.share),
        ),
    ];
    if trainer.gpu_use.unseen() {
        let left = match claim.kind {
            Kind::Compute => GPU_UNSEEN,
            _ => BESIDE_GPU_UNSEEN,
        };
        factors.push((Doubt::GpuUnseen, left));
    }
    factors.extend(
        missing(session, trainer, claim.kind)
            .into_iter()
            .map(|(what, left)| (Doubt::Missing(what), left)),
    );
    product(&factors)
}

fn product(factors: &[(Doubt, f64)]) -> Confidence {
    let least = factors.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    Confidence {
        value: factors.iter().map(|(_, left)| left).product(),
        doubt: least.map_or(Doubt::Short, |(doubt, _)| *doubt),
    }
}

fn enough(trainer: &Trainer) -> f64 {
    let seconds = trainer.wall / 1e9 / ENOUGH_S;
    let steps = trainer
        .steps
        .as_ref()
        .map_or(0.0, |steps| steps.spans.len() as f64 / ENOUGH_STEPS);
    seconds.max(steps).min(1.0).sqrt()
}

fn ahead(claim: &Claim) -> f64 {
    let rival = claim.rival.map_or(0.0, |(_, share)| share);
    let lead = (claim.share - rival) / claim.share.max(0.01);
    let ahead = if claim.kind == Kind::Compute {
        lead
    } else {
        0.5 + lead
    };
    ahead.clamp(0.0, 1.0)
}

/// Share (0–1) of all facts that was lost.
pub(super) fn lost_share(session: &Session) -> f64 {
    let lost: u64 = session.lost.values().sum::<u64>() + session.undecodable;
    lost as f64 / (session.facts + lost).max(1) as f64
}

fn of_files(kind: Kind) -> bool {
    matches!(kind, Kind::StorageIo | Kind::SmallFiles | Kind::Checkpoint)
}

/// When calls were counted for this share (0–1) of the time.
fn counted(kind: Kind, share: f64) -> f64 {
    if of_files(kind) {
        1.0 - HARDLY_COUNTED * (1.0 - share)
    } else {
        1.0
    }
}

fn fine(trainer: &Trainer, claim: &Claim) -> f64 {
    if claim.by_gpu {
        1.0 - 0.5 * (trainer.idle.uncertain_s / trainer.idle.seen_s.max(1e-9)).min(1.0)
    } else {
        1.0
    }
}

/// What a cause is told by and this watch lacks, with how sure (0–1) it leaves it.
fn missing(session: &Session, trainer: &Trainer, kind: Kind) -> Vec<(&'static str, f64)> {
    let alone = trainer.cast.producers.is_empty();
    let lacks = |what: &str| session.missing.iter().any(|(missing, _)| missing == what);
    let mut out = Vec::new();
    let mut lack = |what, left| out.push((what, left));
    // What running goes into is told by samples: of what was walked of threads that have none.
    let by_samples = match kind {
        Kind::AllocationChurn => 0.5,
        Kind::Compute if alone => 0.5,
        Kind::InputCpu => 0.3,
        Kind::Compute => 0.2,
        _ => 0.0,
    };
    let left = 1.0 - by_samples * trainer.unsampled;
    if lacks(SAMPLES) {
        lack(SAMPLES, left);
    } else if given_up(session, SHED_SAMPLES) {
        // What a thread that works alone does is told by nothing else, and for no longer than there are samples.
        let told = if alone && by_samples > 0.0 {
            1.0 - trainer.behind_samples
        } else {
            1.0
        };
        lack(SHED_SAMPLES, left.min(told));
    }
    if kind == Kind::Compute && lacks(STACKS) {
        lack(STACKS, if alone { NO_STACKS } else { NO_STACKS_BESIDE });
    }
    let by_wakers = matches!(
        kind,
        Kind::StorageIo
            | Kind::SmallFiles
            | Kind::NetworkIo
            | Kind::Serialization
            | Kind::Communication
    );
    if by_wakers && lacks(INTERRUPTS) {
        lack(INTERRUPTS, NO_INTERRUPTS);
    }
    if of_files(kind) && lacks(FILE_OPERATIONS) {
        lack(FILE_OPERATIONS, NO_FILES);
    }
    if kind == Kind::StorageIo && lacks(CACHE_HITS) {
        lack(CACHE_HITS, NO_CACHE);
    }
    out
}

/// Names of what may be missing, as the sources give them.
pub(super) const SAMPLES: &str = "samples";
pub(super) const STACKS: &str = "python-stacks";
const INTERRUPTS: &str = "wake-ups by interrupts told apart from those by threads";
/// What is given up for the budget's sake.
pub(super) const SHED_SAMPLES: &str = "clock-samples";

/// Whether something was given up to keep to the budget.
pub(super) fn given_up(session: &Session, what: &str) -> bool {
    let governor = session.alloc.governor.as_ref();
    governor.is_some_and(|governor| governor.shed.iter().any(|shed| shed == what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_factor_is_the_doubt() {
        let found = product(&[
            (Doubt::Short, 0.9),
            (Doubt::Lost, 0.5),
            (Doubt::Missing(SAMPLES), 0.6),
        ]);
        assert!((found.value - 0.27).abs() < 1e-9);
        assert_eq!(found.doubt, Doubt::Lost);
    }

    #[test]
    fn files_whose_calls_were_hardly_counted_are_less_sure() {
        assert_eq!(counted(Kind::SmallFiles, 1.0), 1.0);
        assert!((counted(Kind::SmallFiles, 0.1) - 0.73).abs() < 1e-9);
        assert_eq!(counted(Kind::InputCpu, 0.1), 1.0);
    }

    #[test]
    fn a_cause_close_behind_takes_half_of_another_one_and_all_of_computing() {
        let claim = |kind, rival| Claim {
            kind,
            share: 0.4,
            rival: Some((Kind::NetworkIo, rival)),
            blurred: 0.0,
            by_gpu: false,
        };
        for (kind, rival, expected) in [
            (Kind::StorageIo, 0.4, 0.5),
            (Kind::StorageIo, 0.2, 1.0),
            (Kind::StorageIo, 0.3, 0.75),
            (Kind::Compute, 0.4, 0.0),
            (Kind::Compute, 0.2, 0.5),
        ] {
            let found = ahead(&claim(kind, rival));
            assert!((found - expected).abs() < 1e-9, "{kind:?} {rival}: {found}");
        }
    }
}
