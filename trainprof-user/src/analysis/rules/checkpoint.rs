//! Writes, fsync and rename of state between steps.

use serde_json::{Value, json};

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, checkpoints::WRITES_APART_NS, words};

const KIND: Kind = Kind::Checkpoint;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let bursts = whole(&look.trainer.checkpoints);
        let longest = bursts.iter().map(|(from, to)| to - from).max().unwrap_or(0) as f64 / 1e9;
        evidence.insert("count", json!(bursts.len()));
        evidence.insert("longest_s", rounded(longest));
        let between = bursts
            .windows(2)
            .map(|pair| (pair[1].0 - pair[0].0) as f64 / 1e9)
            .sum::<f64>()
            / (bursts.len().max(2) - 1) as f64;
        let took = look.wall_share(KIND) * look.trainer.wall / 1e9;
        if !bursts.is_empty() {
            evidence.insert("seconds_each", rounded(took / bursts.len() as f64));
        }
        let steps = look.trainer.steps.as_ref().map(|steps| steps.spans.len());
        let per_step = steps
            .filter(|steps| *steps > 0)
            .map(|steps| took / steps as f64);
        evidence.insert(
            "added_ms_per_step",
            per_step.map_or(Value::Null, |seconds| rounded(seconds * 1e3)),
        );
        let adds = per_step.map_or_else(String::new, |seconds| {
            format!(", which adds {} to a step on average", words::time(seconds))
        });
        let places = look.places(KIND);
        let to = if places.is_empty() {
            String::new()
        } else {
            format!(" to {}", words::list(&places))
        };
        let how_often = if bursts.len() >= 2 {
            format!(
                " {} times, every {}, up to {} each",
                bursts.len(),
                words::time(between),
                words::time(longest)
            )
        } else {
            String::new()
        };
        let in_background = in_background(look);
        evidence.insert("in_background", json!(in_background));
        if in_background {
            return (
                format!("the trainer waited for who writes its state{to} in the background{adds}"),
                "write state less often, or less of it, or to faster storage: it is still being written when the trainer waits for that to be done"
                    .to_owned(),
            );
        }
        (
            format!("the trainer stood still to write state{to}{how_often}{adds}"),
            advice(between, bursts.len() >= 2, look),
        )
    })
}

/// Checkpoints from stretches of writing, sorted: one may have others between its files, or before it goes on.
fn whole(stretches: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (from, to) in stretches {
        match out.last_mut() {
            Some(last) if from.saturating_sub(last.1) <= WRITES_APART_NS => last.1 = *to,
            _ => out.push((*from, *to)),
        }
    }
    out
}

/// Whether another thread does most of the writing: nothing is gained by giving it to one.
fn in_background(look: &Look) -> bool {
    let step_tid = look.trainer.cast.step_tid;
    let (mut all, mut others) = (0.0, 0.0);
    for part in look.parts(KIND) {
        let (way, _) = &look.trainer.walked.leaves[part.leaf as usize];
        all += part.ns;
        if way.what.tid() != step_tid {
            others += part.ns;
        }
    }
    2.0 * others > all
}

/// Half the number of checkpoints takes half of the time; what is written by somebody else takes none of it.
fn advice(between_s: f64, repeated: bool, look: &Look) -> String {
    let trainer = look.trainer;
    if trainer.demand.never_rest(trainer.wall, trainer.terms.own) {
        return "first let batches be made faster: who makes them works all the while, also on those that are taken once this is written"
            .to_owned();
    }
    let background =
        "copy the state to memory and let a thread or process write it while training goes on";
    if !repeated {
        return format!("{background}, or write to faster storage");
    }
    let saved = words::percent(look.wall_share(KIND) / 2.0);
    format!(
        "{background}; or write every {} instead of every {}, which saves {saved} of the time; or to faster storage",
        words::time(between_s * 2.0),
        words::time(between_s)
    )
}
