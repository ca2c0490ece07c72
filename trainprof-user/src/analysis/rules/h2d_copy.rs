//! Blocking copies between host and device.

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::{
    analysis::{Kind, words},
    record::fact::GpuCallKind,
};

const KIND: Kind = Kind::H2dCopy;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let copies: Vec<_> = look
            .facts
            .calls(look.trainer.cast.step_tid)
            .iter()
            .filter(|call| matches!(call.kind, GpuCallKind::Copy | GpuCallKind::CopyAsync))
            .collect();
        let total: u64 = copies.iter().map(|call| call.to - call.from).sum();
        let mean = total as f64 / copies.len().max(1) as f64 / 1e9;
        evidence.insert("copies", json!(copies.len()));
        evidence.insert("mean_s", rounded(mean));
        (
            format!(
                "the trainer stands still in {} copies between host and GPU, {} each",
                copies.len(),
                words::time(mean)
            ),
            format!(
                "copy from pinned memory without blocking (pin_memory=True, non_blocking=True) and prefetch the next batch on a stream of its own; without these copies {}",
                look.effect(KIND)
            ),
        )
    })
}
