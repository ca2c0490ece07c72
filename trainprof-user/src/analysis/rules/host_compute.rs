//! CPU work of the trainer while the GPU idles; without a GPU, its work beside the model's.

use super::{
    Answer, Look,
    look::{python, rounded},
};
use crate::{
    analysis::{Kind, words::percent},
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
            let most = places.first().map_or_else(String::new, |place| {
                format!(", {} of it in {}", percent(place.share), place.name())
            });
            if !places.is_empty() {
                evidence.insert("python", places.iter().map(python).collect());
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
