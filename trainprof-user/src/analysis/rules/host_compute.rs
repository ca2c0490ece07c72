//! CPU work of the trainer while the GPU idles; without a GPU, its work beside the model's.

use super::{
    Answer, Look,
    look::{python, rounded},
};
use crate::analysis::{Kind, words::percent};

const KIND: Kind = Kind::HostCompute;

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
        (
            "the GPU had nothing to do while the trainer computed on the CPU: it is given work too slowly"
                .to_owned(),
            "launch larger or fewer kernels (larger batches, torch.compile, CUDA graphs, fused optimizers) and take Python out of the step".to_owned(),
        )
    })
}
