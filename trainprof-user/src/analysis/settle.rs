//! What keeps a likely cause from being the verdict, and what would settle it.

use std::collections::BTreeMap;

use trainprof_common::loss::Loss;

use super::{
    Kind, Trainer,
    confidence::{Claim, Doubt, SHED_SAMPLES, STACKS, lost_share},
    unclear, words,
};
use crate::session::Session;

/// In words, for the doubt that takes most away from how sure the claim is; `shares` are those of the time by cause.
pub fn told(
    session: &Session,
    trainer: &Trainer,
    claim: &Claim,
    shares: &BTreeMap<Kind, f64>,
    doubt: Doubt,
) -> String {
    match doubt {
        Doubt::Short => {
            let steps = trainer.steps.as_ref().map_or(0, |steps| steps.spans.len());
            format!(
                "only {} were seen{}; watch for ten seconds or more",
                words::time(trainer.wall / 1e9),
                if steps > 0 {
                    format!(", with {steps} steps")
                } else {
                    String::new()
                }
            )
        }
        Doubt::Unfollowed => {
            let (kind, share) = unclear::largest(shares);
            format!(
                "{} of the time could not be told, most of it {}; {}",
                words::percent(claim.blurred.max(share)),
                unclear::doing(kind),
                unclear::next(session, trainer, kind)
            )
        }
        Doubt::Rival => match claim.rival {
            Some((kind, share)) => format!(
                "{} is close behind with {}; watch longer: if it stays so, both have to go",
                kind.name(),
                words::percent(share)
            ),
            None => "something else is close behind; watch longer".to_owned(),
        },
        Doubt::Lost => format!(
            "{} of what happened was lost{}; watch fewer processes at a time (one rank), or while the host is less busy",
            words::percent(lost_share(session)),
            most_lost(session)
        ),
        Doubt::Uncounted => format!(
            "file operations were counted for {} of the time, to keep to the budget; raise --overhead-budget",
            words::percent(session.calls_counted_share())
        ),
        Doubt::Unsteady => {
            "its share changes much over the watch; watch longer (a minute or more)".to_owned()
        }
        Doubt::GpuUnseen => format!(
            "the GPU was not seen: {}; {}",
            trainer.gpu_use.why(),
            trainer.gpu_use.cure()
        ),
        Doubt::GpuCoarse => {
            "the GPU is busy for a part of nearly every sample, which does not tell when; watch longer, and with calls into its runtime (trainprof run as root)".to_owned()
        }
        Doubt::Guessed => format!(
            "nothing but its place in the loop tells what this work is for{}",
            because(session, STACKS).map_or_else(
                || {
                    if trainer.beside_model.is_empty() {
                        "; watch longer, so that its code is seen".to_owned()
                    } else {
                        ": you know what the function is for that it names".to_owned()
                    }
                },
                |reason| format!(
                    ": {STACKS} is missing: {reason}; `trainprof doctor` tells how to get it"
                )
            )
        ),
        Doubt::Missing(SHED_SAMPLES) => {
            "samples of what runs were given up to keep to the budget; raise --overhead-budget"
                .to_owned()
        }
        Doubt::Missing(what) => format!(
            "{what} is missing{}; run trainprof as root, or ask `trainprof doctor` how to get it",
            because(session, what).map_or_else(String::new, |reason| format!(": {reason}"))
        ),
    }
}

/// Why something is missing.
fn because<'a>(session: &'a Session, what: &str) -> Option<&'a str> {
    let mut missing = session.missing.iter();
    let (_, reason) = missing.find(|(missing, _)| missing == what)?;
    Some(reason)
}

/// The reason for which most was lost.
fn most_lost(session: &Session) -> String {
    let most = session.lost.iter().max_by_key(|(_, count)| **count);
    let name = most.and_then(|(number, _)| Loss::ALL.get(*number as usize));
    name.map_or_else(String::new, |reason| format!(" ({})", reason.name()))
}
