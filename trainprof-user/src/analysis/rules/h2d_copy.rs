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
/// So many copies a step, of less than so many bytes each, had better be one.
const MANY_A_STEP: f64 = 3.5;
const FEW_BYTES: f64 = 65_536.0;

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
        let per_step = look.a_step(|call| {
            matches!(call.kind, GpuCallKind::Copy | GpuCallKind::CopyAsync)
        });
        if let Some(n) = per_step {
            evidence.insert("copies_per_step", rounded(n));
        }
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
                    "the trainer reads small results back from the GPU {} times{}, and waits {} each time until the GPU is done with all before it",
                    copies.len(),
                    a_step(per_step),
                    words::time(mean)
                ),
                "read results back less often (.item(), .cpu(), a loss that is printed each step): keep them on the GPU and fetch those of many steps at once".to_owned(),
            );
        }
        let bytes = copies.iter().map(|call| call.bytes).sum::<u64>() as f64;
        let each = bytes / copies.len().max(1) as f64;
        let rate = bytes / (total as f64 / 1e9).max(1e-9);
        if bytes > 0.0 {
            evidence.insert("mean_bytes", rounded(each));
            evidence.insert("bytes_per_s", rounded(rate));
        }
        let sizes = if bytes > 0.0 {
            format!(" of {}, at {} a second", words::bytes(each), words::bytes(rate))
        } else {
            String::new()
        };
        // Each costs more to begin than to move.
        let together = match per_step {
            Some(n) if n >= MANY_A_STEP && bytes > 0.0 && each < FEW_BYTES => {
                format!("put the {n:.0} small copies of a step into one, ")
            }
            _ => String::new(),
        };
        (
            format!(
                "the trainer stands still in {} copies between host and GPU{}{sizes}, {} each",
                copies.len(),
                a_step(per_step),
                words::time(mean)
            ),
            format!("{together}copy from pinned memory without blocking (pin_memory=True, non_blocking=True) and prefetch the next batch on a stream of its own, while this one is computed"),
        )
    })
}

fn a_step(per_step: Option<f64>) -> String {
    per_step
        .filter(|n| *n >= 1.5)
        .map_or_else(String::new, |n| format!(" ({n:.0} a step)"))
}

/// Whether the GPU mostly stood still for copies that the trainer did not wait for itself.
fn waited_behind(look: &Look) -> bool {
    let idle = &look.trainer.idle;
    let copies = idle.by_kind.get(&KIND).copied().unwrap_or(0.0);
    idle.behind_copies_s * 2.0 > copies
}

/// Whether most time in copies is in such as move next to nothing.
fn read_back(look: &Look) -> bool {
    let copies = look.facts.gpu_calls().filter(|call| {
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
