//! Memory of a GPU that is taken from the driver and given back again and again.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Evidence, Look, look::rounded};
use crate::{
    analysis::{Kind, words},
    record::fact::GpuCallKind,
};

/// Such calls are what allocating is from this part (0–1) of its time on.
const MOST: f64 = 0.5;
/// Functions that are named.
const NAMED: usize = 3;

/// What the calls say and what helps, where most of the trainer's allocating is in them.
pub(super) fn taken_again(look: &Look, evidence: &mut Evidence) -> Option<(String, String)> {
    let facts = look.facts;
    let mut by_function = BTreeMap::<u32, (u64, u64, u64)>::new();
    for call in facts.gpu_calls().filter(|call| {
        call.tid == look.trainer.cast.step_tid
            && matches!(call.kind, GpuCallKind::Allocate | GpuCallKind::Free)
    }) {
        let (count, ns, bytes) = by_function.entry(call.function).or_default();
        *count += 1;
        *ns += call.ns;
        *bytes += call.bytes;
    }
    let seconds = facts.walkable_ns() as f64 / 1e9;
    let all: u64 = by_function.values().map(|(_, ns, _)| ns).sum();
    let time = all as f64 / 1e9 / seconds.max(1e-9);
    if time < MOST * look.wall_share(Kind::AllocationChurn) {
        return None;
    }
    let mut by_function: Vec<_> = by_function.into_iter().collect();
    by_function.sort_by_key(|(_, (_, ns, _))| std::cmp::Reverse(*ns));
    let name = |function: u32| {
        let known = look.session.gpu.functions.get(&function);
        known.map_or("a call of the runtime", |(_, name)| name.as_str())
    };
    evidence.insert(
        "gpu_memory_calls",
        by_function
            .iter()
            .map(|(function, (count, ns, bytes))| {
                json!({"function": name(*function), "per_s": rounded(*count as f64 / seconds),
                       "share": rounded(*ns as f64 / 1e9 / seconds), "mean_bytes": bytes / count})
            })
            .collect(),
    );
    let told: Vec<String> = by_function
        .iter()
        .take(NAMED)
        .map(|(function, (count, _, bytes))| {
            let size = match bytes / count {
                0 => String::new(),
                mean => format!(", {} each", words::bytes(mean as f64)),
            };
            format!(
                "{} ({:.0} a second{size})",
                name(*function),
                *count as f64 / seconds
            )
        })
        .collect();
    Some((
        format!(
            "the trainer stands still {} of the time while the driver takes memory of the GPU and gives it back: {}",
            words::percent(time),
            words::list(&told)
        ),
        "keep the GPU's memory in the framework's cache: no torch.cuda.empty_cache() in the loop; where the cache is emptied because memory is short or in pieces, smaller batches or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(),
    ))
}
