//! How much of the time at most one of several threads could go on: the others waited for what it had, or for what it made.

use super::Look;
use crate::analysis::{
    spans::{overlap, union},
    timeline::Item,
};

/// Share (0–1) of the walked time in which at least one thread of the job was in such a wait (its thread id, and the wait), and
/// of all threads that have such waits no more than one was there and not blocked, by that or by something else.
pub(super) fn share(look: &Look, is_such: impl Fn(u32, &Item) -> bool) -> f64 {
    let mut edges = Vec::new();
    let mut threads = 0;
    for (tid, items) in look.facts.waiting_threads() {
        let such: Vec<bool> = items.iter().map(|item| is_such(tid, item)).collect();
        if !such.contains(&true) {
            continue;
        }
        threads += 1;
        // Before it was there, and from its end on, it does not go on either.
        if let Some(thread) = look.session.thread(tid) {
            edges.extend([(0, 1, 0), (thread.key.since.0, -1, 0)]);
            edges.extend(thread.until.map(|until| (until.0, 1, 0)));
        }
        let blocked = items
            .iter()
            .zip(such)
            .filter(|(item, _)| item.woken > item.from);
        for (item, such) in blocked {
            edges.push((item.from, 1, i32::from(such)));
            edges.push((item.woken, -1, -i32::from(such)));
        }
    }
    edges.sort_unstable();
    let (mut blocked, mut waiting) = (0, 0);
    let mut alone = Vec::new();
    for (n, (at, more_blocked, more_waiting)) in edges.iter().enumerate() {
        blocked += more_blocked;
        waiting += more_waiting;
        if waiting > 0
            && threads - blocked <= 1
            && let Some((next, ..)) = edges.get(n + 1)
        {
            alone.push((*at, *next));
        }
    }
    let alone = union(alone);
    let spans = &look.trainer.walked.spans;
    let inside: u64 = spans
        .iter()
        .map(|(from, to)| overlap(&alone, *from, *to))
        .sum();
    inside as f64 / look.trainer.wall.max(1.0)
}
