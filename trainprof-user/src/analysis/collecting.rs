//! Stretches in which a Python interpreter collects garbage: no part of a model, nor of the making of batches.

use super::{facts::Facts, spans::share_inside};
use crate::{record::fact::PlaceClass, session::Session};

/// Functions of CPython's collector (Modules/gcmodule.c, Python/gc.c), as far as compilers leave them apart; 3.8 to 3.14.
const COLLECTOR: [&str; 22] = [
    "collect",
    "deduce_unreachable",
    "delete_garbage",
    "finalize_garbage",
    "gc_collect_full",
    "gc_collect_generations",
    "gc_collect_increment",
    "gc_collect_main",
    "gc_collect_region",
    "gc_collect_with_callback",
    "gc_collect_young",
    "handle_weakrefs",
    "mark_all_reachable",
    "move_legacy_finalizer_reachable",
    "move_unreachable",
    "subtract_refs",
    "untrack_dicts",
    "untrack_tuples",
    "update_refs",
    "visit_decref",
    "visit_move",
    "visit_reachable",
];
/// What goes through an object's members for it: `list_traverse`, `tupletraverse`.
const TRAVERSES: &str = "traverse";

/// Samples of one collection are so far apart (ns) at most, with so few others in between: it calls functions of the interpreter that others
/// call as well.
const SAME_NS: u64 = 50_000_000;
const MOST_OTHERS: usize = 2;
/// Stretches of which it is this part (0–1) are there for it.
const MOSTLY: f64 = 0.5;

/// Stretches in which a thread did so, where that is at least this part (0–1) of the time; each from half the time since the sample before
/// it to half of that until the next one after it, as far as these belong to it.
pub(super) fn collecting(facts: &Facts, tid: u32, least: f64) -> Vec<(u64, u64)> {
    let samples = facts.samples(tid);
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut last = None;
    let mut others = 0;
    for (n, sample) in samples.iter().enumerate() {
        let Some(collects) = collects(facts.session, sample.place) else {
            last = None;
            continue;
        };
        if !collects {
            others += 1;
            if others > MOST_OTHERS {
                last = None;
            }
            continue;
        }
        others = 0;
        let at = sample.at.0;
        let half = |gap: u64| gap.min(SAME_NS) / 2;
        let before = n.checked_sub(1).map_or(at, |n| samples[n].at.0);
        let after = samples.get(n + 1).map_or(at, |next| next.at.0);
        let to = at + half(after - at);
        match out.last_mut() {
            Some(open) if last.is_some_and(|last| at - last <= SAME_NS) => open.1 = to,
            _ => out.push((at - half(at - before), to)),
        }
        last = Some(at);
    }
    if share_inside(&facts.spans, &out) < least {
        out.clear();
    }
    out
}

/// Whether these stretches (sorted, without overlaps) are mostly such.
pub(super) fn mostly_collects(facts: &Facts, tid: u32, stretches: &[(u64, u64)]) -> bool {
    share_inside(stretches, &collecting(facts, tid, 0.0)) >= MOSTLY
}

/// Whether a place is in the collector; `None` where it is not in the interpreter at all.
fn collects(session: &Session, place: u32) -> Option<bool> {
    let place = session.places.get(&place)?;
    if !matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc) {
        return None;
    }
    let name = place.function.as_deref().unwrap_or("");
    // Parts of a function that a compiler has set apart: `gc_collect_main.constprop.0`.
    let name = name.split('.').next().unwrap_or(name);
    Some(COLLECTOR.contains(&name) || name.ends_with(TRAVERSES))
}
