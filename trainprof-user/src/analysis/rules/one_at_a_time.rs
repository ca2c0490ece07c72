//! How much of the time only one of several threads could go on: the others waited for what it had, or for what it made.

use super::Look;
use crate::analysis::{
    spans::{overlap, union},
    timeline::Item,
};

/// Share (0–1) of the walked time in which at least one thread of the job was in such a wait (its thread id, and the wait).
pub(super) fn share(look: &Look, is_such: impl Fn(u32, &Item) -> bool) -> f64 {
    let mut waiting = Vec::new();
    for (tid, items) in look.facts.waiting_threads() {
        let such = items.iter().filter(|item| is_such(tid, item));
        waiting.extend(such.map(|item| (item.from, item.woken)));
    }
    let waiting = union(waiting);
    let spans = &look.trainer.walked.spans;
    let inside: u64 = spans
        .iter()
        .map(|(from, to)| overlap(&waiting, *from, *to))
        .sum();
    inside as f64 / look.trainer.wall.max(1.0)
}
