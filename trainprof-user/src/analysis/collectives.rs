//! When the exchanges with other ranks ended: one or several a step.
//!
//! The step thread waits for an exchange, but not always: where the other ranks were first, it is over by the time the step
//! thread asks for it. Most libraries have a thread of their own for exchanges, which sleeps until the step thread calls it and
//! goes back to sleep when it is done. It tells of all of them, waited for or not.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::op::Class;

use super::{
    cast::Cast,
    causes::Scene,
    facts::{Facts, is_on_purpose},
    locks::{Lock, LockId, lock_of},
    spans::union,
    timeline::{Item, line},
    walk::{HopKind, Leaf, Walked, What},
};
use crate::session::kind::WaitKind;

/// What belongs to one wait comes in pieces, with less than this between two.
const ONE_WAIT_NS: u64 = 400_000;
/// A thread that exchanges goes back to sleep this long after it woke the step thread, at most.
const BACK_TO_SLEEP_NS: u64 = 2_000_000;
/// Calls that show that a thread exchanges for the step thread.
const MIN_CALLS: usize = 5;
/// Of the waits on one futex, the share that is those threads', ended by the step thread.
const OWN: f64 = 0.95;
/// Exchanges that are waited for at least, as a share of those that there would be with the usual number for each wait: fewer
/// say nothing of how many belong together.
const WAITED_FOR: f64 = 0.5;

/// Ends of exchanges, several of one step left together: where one is waited for, the end of the wait.
pub fn collectives(facts: &Facts, cast: &Cast, scene: &Scene, walked: &Walked) -> Vec<u64> {
    let of_rank = of_rank(facts, cast, scene, walked);
    let waited = waited_for(walked, &of_rank);
    let exchanges = exchanges(facts, cast, scene.locks, walked, &of_rank);
    together(&waited, &exchanges).unwrap_or(waited)
}

/// Whether the way of a leaf leads to another rank, here or elsewhere, or ends at a socket that another rank sends on: what it sent may
/// have been delivered by an interrupt.
fn of_rank(facts: &Facts, cast: &Cast, scene: &Scene, walked: &Walked) -> Vec<bool> {
    let by_rank = |item: &&Item| {
        let sender = facts.pid(item.waker.tid);
        is_on_purpose(item.waker.kind) && sender.is_some_and(|pid| cast.ranks.contains(&pid))
    };
    let sockets: BTreeSet<u64> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| item.object.class == Class::Socket as u8)
        .filter(by_rank)
        .map(|item| item.object.id)
        .collect();
    let to_rank = |how: HopKind| how == HopKind::Rank;
    let on_its_socket = |leaf: &Leaf| match leaf.what {
        What::Wait { object, .. } => {
            leaf.hops.is_empty()
                && object.class == Class::Socket as u8
                && sockets.contains(&object.id)
        }
        _ => false,
    };
    walked
        .leaves
        .iter()
        .map(|(leaf, spent)| {
            leaf.hops.iter().any(|hop| to_rank(hop.how))
                || on_its_socket(leaf)
                || scene.is_communication(leaf, spent)
        })
        .collect()
}

/// Ends of the step thread's waits for other ranks.
fn waited_for(walked: &Walked, of_rank: &[bool]) -> Vec<u64> {
    let waits = walked
        .pieces
        .iter()
        .filter(|piece| of_rank[piece.leaf as usize])
        .map(|piece| (piece.from, piece.to + ONE_WAIT_NS))
        .collect();
    union(waits)
        .into_iter()
        .map(|(_, to)| to - ONE_WAIT_NS)
        .collect()
}

/// When threads of the trainer exchanged with other ranks for the step thread, in order.
fn exchanges(
    facts: &Facts,
    cast: &Cast,
    locks: &BTreeMap<LockId, Lock>,
    walked: &Walked,
    of_rank: &[bool],
) -> Vec<(u64, u64)> {
    let threads: BTreeSet<u32> = walked
        .leaves
        .iter()
        .zip(of_rank)
        .filter(|(_, of_rank)| **of_rank)
        .filter_map(|((leaf, _), _)| leaf.next())
        .filter(|tid| *tid != cast.step_tid && facts.pid(*tid) == Some(cast.trainer))
        .filter(|tid| !cast.loader_threads.contains(tid))
        .collect();
    // They may sleep on one futex, all of them.
    let mut seen = BTreeMap::<u64, (usize, usize)>::new();
    for (tid, items) in facts.waiting_threads() {
        if facts.pid(tid) != Some(cast.trainer) {
            continue;
        }
        for item in items.iter().filter(|item| item.kind() == WaitKind::Futex) {
            let counts = seen.entry(line(&item.object)).or_default();
            counts.0 += usize::from(threads.contains(&tid) && item.waker.tid == cast.step_tid);
            counts.1 += 1;
        }
    }
    let lines: BTreeSet<u64> = seen
        .into_iter()
        .filter(|(_, (own, all))| *own >= MIN_CALLS && *own as f64 >= OWN * *all as f64)
        .map(|(line, _)| line)
        .collect();
    let busy = threads.iter().flat_map(|tid| {
        let sleeps: Vec<&Item> = facts
            .items(*tid)
            .iter()
            .filter(|item| item.kind() == WaitKind::Futex && lines.contains(&line(&item.object)))
            .filter(|item| lock_of(locks, facts, *tid, line(&item.object)).is_none())
            .collect();
        let pairs: Vec<(u64, u64)> = sleeps
            .windows(2)
            .filter(|pair| pair[0].waker.tid == cast.step_tid)
            .map(|pair| (pair[0].woken, pair[1].from))
            .collect();
        pairs
    });
    union(busy.collect())
}

/// Puts waits and exchanges together; `None` where the exchanges do not go with the waits. `waited`: ends of waits.
///
/// Where usually k exchanges go by until one is waited for, k are a step, and two times k are two of them.
fn together(waited: &[u64], exchanges: &[(u64, u64)]) -> Option<Vec<u64>> {
    // For each exchange, the end of the wait for it.
    let ends: Vec<Option<u64>> = exchanges
        .iter()
        .map(|(from, to)| {
            let at = waited.partition_point(|end| *end <= *from);
            let upto = waited.partition_point(|end| *end <= to + BACK_TO_SLEEP_NS);
            (at < upto).then(|| waited[upto - 1])
        })
        .collect();
    let mut sizes: Vec<usize> = ends
        .split_inclusive(Option::is_some)
        .filter(|group| group.last().is_some_and(Option::is_some))
        .map(<[_]>::len)
        .collect();
    sizes.sort_unstable();
    // Those after which none went unwaited are the smaller ones.
    let usual = *sizes.get(sizes.len() / 4)?;
    if ((sizes.len() * usual) as f64) < WAITED_FOR * exchanges.len() as f64
        || (sizes.len() as f64) < WAITED_FOR * waited.len() as f64
    {
        return None;
    }
    // Before the first exchange that was seen whole, and after the last one, there are the waits.
    let (head, tail) = (exchanges.first()?.0, exchanges.last()?.1 + BACK_TO_SLEEP_NS);
    let seen = waited.partition_point(|end| *end <= head);
    let unseen = waited.partition_point(|end| *end <= tail);
    let mut out = waited[..seen].to_vec();
    let mut first = 0;
    for at in 0..ends.len() {
        let last = at + 1 == ends.len();
        let (end, count) = match ends[at] {
            Some(end) => (Some(end), (at + 1 - first) as f64 / usual as f64),
            // What was not waited for by the end may go on.
            None if last => (None, ((at + 1 - first) / usual) as f64),
            None => continue,
        };
        // A half is left to the next wait.
        let steps = (count - 0.5).ceil().max(0.0) as usize;
        for step in 1..=steps {
            // The last one may have fewer.
            let own = exchanges[(first + step * usual - 1).min(at)].1;
            out.push(end.filter(|_| step == steps).unwrap_or(own));
        }
        if steps > 0 {
            first = at + 1;
        }
    }
    out.extend(&waited[unseen.max(seen)..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Exchanges of 2 ms that end at these times, ms.
    fn until(ends: &[u64]) -> Vec<(u64, u64)> {
        ends.iter()
            .map(|end| ((end - 2) * MS, end * MS + MS / 10))
            .collect()
    }

    fn waits(ends: &[u64]) -> Vec<u64> {
        ends.iter().map(|end| end * MS).collect()
    }

    fn ms(found: Option<Vec<u64>>) -> Option<Vec<u64>> {
        found.map(|ends| ends.iter().map(|end| end / MS).collect())
    }

    #[test]
    fn an_exchange_that_was_not_waited_for_is_a_step_too() {
        let exchanges = until(&[10, 20, 31, 40, 50, 60]);
        let found = together(&waits(&[10, 20, 40, 50]), &exchanges);
        assert_eq!(ms(found), Some(vec![10, 20, 31, 40, 50, 60]));
    }

    #[test]
    fn waits_around_the_exchanges_that_were_seen_are_steps() {
        let found = together(&waits(&[10, 20, 30, 40, 50, 60]), &until(&[30, 40, 50]));
        assert_eq!(ms(found), Some(vec![10, 20, 30, 40, 50, 60]));
    }

    #[test]
    fn several_exchanges_for_each_wait_are_one_step() {
        // Three in each step, the last of which is waited for; not so in the third step.
        let ends: Vec<u64> = (1..=6)
            .flat_map(|s| [30 * s - 15, 30 * s - 8, 30 * s])
            .collect();
        let found = together(&waits(&[30, 60, 120, 150, 180]), &until(&ends));
        assert_eq!(ms(found), Some(vec![30, 60, 90, 120, 150, 180]));
        // The first of the third step is waited for by itself.
        let found = together(&waits(&[30, 60, 75, 90, 120, 150, 180]), &until(&ends));
        assert_eq!(ms(found), Some(vec![30, 60, 90, 120, 150, 180]));
        // The last step was seen in part.
        let found = together(&waits(&[30, 60, 90, 120, 150, 173]), &until(&ends[..17]));
        assert_eq!(ms(found), Some(vec![30, 60, 90, 120, 150, 173]));
    }

    #[test]
    fn exchanges_that_hardly_anybody_waits_for_tell_nothing() {
        let many: Vec<u64> = (1..60).map(|n| 10 * n).collect();
        // As many go on in the background as come.
        assert_eq!(together(&waits(&[10, 20, 590]), &until(&many)), None);
        // Waits for something else.
        let other: Vec<u64> = (1..60).map(|n| 10 * n + 5).collect();
        assert_eq!(together(&waits(&other), &until(&many)), None);
        assert_eq!(together(&waits(&[10, 20]), &[]), None);
    }
}
