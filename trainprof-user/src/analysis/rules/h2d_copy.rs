//! Blocking copies between host and device.

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::{
    analysis::{Kind, gpu, words},
    record::fact::GpuCallKind,
};

const KIND: Kind = Kind::H2dCopy;
/// A copy of so many bytes at most moves a result, and no batch.
const SMALL_BYTES: u64 = 4096;

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
        if waited_behind(look) {
            let seconds = look.facts.walkable_ns() as f64 / 1e9;
            let copies = gpu::copies(look.facts, look.trainer.cast.trainer);
            let bytes: u64 = copies.iter().map(|(_, bytes)| bytes).sum();
            let rate = bytes as f64 / seconds.max(1e-9);
            evidence.insert("bytes_per_s", rounded(rate));
            return (
                format!(
                    "it waits for copies that were begun before the kernels queued behind them: {} a second in {:.0} of them",
                    words::bytes(rate),
                    copies.len() as f64 / seconds.max(1e-9)
                ),
                "copy the next batch on a stream of its own while this one is computed; send less (uint8 or bfloat16 instead of float32, converted on the GPU), or keep on the GPU what comes again".to_owned(),
            );
        }
        if read_back(look) {
            return (
                format!(
                    "the trainer reads small results back from the GPU {} times, and waits {} each time until the GPU is done with all before it",
                    copies.len(),
                    words::time(mean)
                ),
                "read results back less often (.item(), .cpu(), a loss that is printed each step): keep them on the GPU and fetch many at once".to_owned(),
            );
        }
        (
            format!(
                "the trainer stands still in {} copies between host and GPU, {} each",
                copies.len(),
                words::time(mean)
            ),
            "copy from pinned memory without blocking (pin_memory=True, non_blocking=True) and prefetch the next batch on a stream of its own".to_owned(),
        )
    })
}

/// Whether the GPU mostly stood still for copies that the trainer did not wait for itself.
fn waited_behind(look: &Look) -> bool {
    let idle = &look.trainer.idle;
    let copies = idle.by_kind.get(&KIND).copied().unwrap_or(0.0);
    idle.behind_copies_s * 2.0 > copies
}

/// Whether most time in copies is in such as move next to nothing.
fn read_back(look: &Look) -> bool {
    let segments = look.session.history.segments();
    let copies = segments.flat_map(|segment| &segment.calls).filter(|call| {
        call.tid == look.trainer.cast.step_tid
            && matches!(call.kind, GpuCallKind::Copy | GpuCallKind::CopyAsync)
    });
    let (mut small, mut all) = (0, 0);
    for call in copies {
        all += call.ns;
        if (1..=SMALL_BYTES).contains(&call.bytes) {
            small += call.ns;
        }
    }
    small * 2 > all
}
