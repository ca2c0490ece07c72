//! CPU work of the trainer while the GPU idles; without a GPU, its work beside the model's.

use super::{
    Answer, Evidence, Look,
    look::{python, rounded},
};
use crate::{
    analysis::{
        Kind,
        words::{self, percent},
    },
    record::fact::GpuCallKind,
};

const KIND: Kind = Kind::HostCompute;
/// Who waits for the GPU more seldom, on average, does not do so in each step.
const ONCE_A_STEP: f64 = 0.75;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        if !look.trainer.beside_model.is_empty() {
            let within = Some(look.trainer.beside_model.as_slice());
            let places = look.in_python(&[look.trainer.cast.trainer], within);
            let most = look.mostly_in_python(&places, &[look.trainer.cast.trainer], within);
            let most = most.as_ref().or(places.first()).map_or_else(String::new, |place| {
                let called = match places.contains(place) {
                    true => "",
                    false => " and what it calls",
                };
                format!(", {} of it in {}{called}", percent(place.share), place.name())
            });
            if !places.is_empty() {
                evidence.insert("python", places.iter().map(python).collect());
            }
            if let Some(told) = garbage(look, evidence) {
                return told;
            }
            if look.trainer.describes {
                return (
                    format!("the trainer describes itself: stacks, sources or warnings for who looks for a mistake{most}"),
                    "turn off what asks for that when no mistake is looked for: anomaly detection (torch.autograd.set_detect_anomaly, detect_anomaly), a profiler with stacks, a debugger, warnings in the loop".to_owned(),
                );
            }
            return (
                format!("the trainer does other work than its model's and its input's{most}"),
                "if that is a metric or a log, do it less often, on a part of the data, or in another process; if the model needs it (a loss), let the framework compute it".to_owned(),
            );
        }
        evidence.insert("synchronising_share", rounded(look.trainer.synchronising));
        let places = look.computing_in_python();
        if !places.is_empty() {
            evidence.insert("python", places.iter().map(python).collect());
        }
        let first = places.first().map_or_else(String::new, |place| {
            format!(
                "; look first at {} ({} of its samples)",
                place.name(),
                percent(place.share)
            )
        });
        let waits = look.a_step(|call| call.kind == GpuCallKind::Synchronise);
        let waits = waits.filter(|waits| *waits >= ONCE_A_STEP).map_or_else(
            String::new,
            |waits| {
                evidence.insert("synchronised_per_step", rounded(waits));
                let often = match waits.round() as u64 {
                    0 | 1 => "in each step".to_owned(),
                    times => format!("{times} times a step"),
                };
                format!("; and do not wait for it {often} (.item(), .cpu(), a loss that is printed): each time it runs dry")
            },
        );
        (
            "the GPU had nothing to do while the trainer computed on the CPU: it is given work too slowly"
                .to_owned(),
            format!("give the GPU more to do at a time (larger batches, torch.compile, CUDA graphs, fused optimizers), and take Python out of the step{first}{waits}"),
        )
    })
}

/// What is to be said where the work beside the model's is mostly the collecting of garbage.
fn garbage(look: &Look, evidence: &mut Evidence) -> Option<(String, String)> {
    if !look.trainer.garbage {
        return None;
    }
    let stretches = &look.trainer.beside_model;
    let ns: u64 = stretches.iter().map(|(from, to)| to - from).sum();
    let each_ms = ns as f64 / 1e6 / stretches.len() as f64;
    let a_minute = stretches.len() as f64 * 60e9 / look.facts.walkable_ns().max(1) as f64;
    evidence.insert("collections_per_minute", rounded(a_minute));
    evidence.insert("collection_ms", rounded(each_ms));
    Some((
        format!(
            "Python collects garbage in the trainer, {} at a time, some {a_minute:.0} times a minute",
            words::time(each_ms / 1e3)
        ),
        "take what stays for good out of it (gc.collect() and gc.freeze() once, when the data is there), collect less often (a higher gc.set_threshold(), no gc.collect() in the loop), or keep the data in arrays in place of many small objects".to_owned(),
    ))
}
