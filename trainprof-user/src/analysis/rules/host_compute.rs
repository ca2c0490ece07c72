//! CPU work of the trainer while the GPU idles.

use super::{Answer, Look, look::rounded};
use crate::analysis::Kind;

const KIND: Kind = Kind::HostCompute;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        evidence.insert("synchronising_share", rounded(look.trainer.synchronising));
        (
            "the GPU had nothing to do while the trainer computed on the CPU: it is given work too slowly"
                .to_owned(),
            "launch larger or fewer kernels (larger batches, torch.compile, CUDA graphs, fused optimizers) and take Python out of the step".to_owned(),
        )
    })
}
