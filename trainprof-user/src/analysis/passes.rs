//! Backward passes that are none of another's: what is recomputed for a checkpointed part of a model has a pass of its own inside the
//! step's. And of several losses of a turn, one.

use std::collections::BTreeMap;

use super::clock::MIN_STEPS;
use crate::record::fact::PassFact;

/// Part (0–1) of the steps that wait for their batch where such waits tell when steps begin.
const WAITED: f64 = 0.1;
/// Passes after this part (0–1) of which comes one from deeper in the stack have such inside, where they are steps at all.
const INSIDE: f64 = 0.5;
/// Part (0–1) of the turns that have one pass each of what is a loss of each turn.
const EACH: f64 = 0.95;
/// By which part (0–1) times before passes differ that have other work before them.
const ANOTHER: f64 = 0.1;

/// The outer ones of a thread's passes, in order.
pub(super) fn outer(mut passes: Vec<PassFact>) -> Vec<PassFact> {
    passes.sort_by_key(|pass| pass.at);
    // By stack pointer: how many there are, and after how many comes a deeper one.
    let mut levels = BTreeMap::<u64, (usize, usize)>::new();
    for (at, pass) in passes.iter().enumerate() {
        let deeper = passes.get(at + 1).is_some_and(|next| next.sp < pass.sp);
        let level = levels.entry(pass.sp).or_default();
        level.0 += 1;
        level.1 += usize::from(deeper);
    }
    let has_inside = |sp: u64| {
        let (all, deeper) = levels[&sp];
        all >= MIN_STEPS && deeper as f64 >= INSIDE * all as f64
    };
    let mut out = Vec::with_capacity(passes.len());
    let mut around: Option<u64> = None;
    for pass in passes {
        if around.is_some_and(|around| pass.sp < around) {
            continue;
        }
        around = has_inside(pass.sp).then_some(pass.sp);
        out.push(pass);
    }
    out
}

/// What called for a pass is known of so much (0–1) of them at least where it tells something: not at once when a watch begins.
const KNOWN: f64 = 0.9;

/// Whether they all come from one place of the program, as far as that is known.
pub(super) fn are_of_one_place(passes: &[PassFact]) -> bool {
    let mut known = passes
        .iter()
        .map(|pass| pass.path)
        .filter(|path| *path != 0);
    let count = known.clone().count() as f64;
    let first = known.next();
    count >= KNOWN * passes.len() as f64 && known.all(|path| Some(path) == first)
}

/// When the thread began passes, of which each turn has one: where it begins one of each of several losses in turn, as of a network that
/// makes pictures and of another that judges them, those of the most frequent. Other places of the program begin the others: one pass in
/// each turn, or in each second or third, and then after other work than those of the most frequent have before them. All `passes`, which
/// are in order and none inside another, where nothing tells that. Where several passes come from one place, or now one and now another
/// after the same work, they may be parts of a batch, each a turn by itself.
pub(super) fn of_one_loss(passes: &[PassFact]) -> Vec<u64> {
    let mut places = BTreeMap::<u64, Vec<usize>>::new();
    for (at, pass) in passes.iter().enumerate() {
        places.entry(pass.path).or_default().push(at);
    }
    places.remove(&0);
    let most = places.values().map(Vec::len).max().unwrap_or(0);
    let main = passes
        .iter()
        .map(|pass| pass.path)
        .find(|path| places.get(path).is_some_and(|found| found.len() == most));
    let Some((main, turns)) = main.and_then(|main| places.remove_entry(&main)) else {
        return passes.iter().map(|pass| pass.at.0).collect();
    };
    let pairs = turns.len().saturating_sub(1);
    let mut in_each = true;
    places.retain(|place, found| {
        let inside = |pair: &[usize]| {
            let after = |at| found.partition_point(|n| *n < at);
            after(pair[1]) - after(pair[0])
        };
        let counts: Vec<usize> = turns.windows(2).map(inside).collect();
        let part = |of: &dyn Fn(usize) -> bool| {
            let count = counts.iter().filter(|count| of(**count)).count();
            count as f64 >= EACH * pairs as f64
        };
        if pairs < MIN_STEPS || found.len() > pairs + 2 {
            return false;
        }
        let one = part(&|count| count == 1);
        let other = one || part(&|count| count <= 1) && differs(passes, main, *place);
        in_each &= one || !other;
        other
    });
    // Before its stack could be read each turn had as many.
    let each = 1 + places.len();
    let first = turns.first().copied().unwrap_or(0);
    let begins = |at: usize, pass: &PassFact| {
        let unknown = pass.path == 0 && at < first;
        let known = !places.contains_key(&pass.path) && !unknown;
        known || unknown && in_each && (first - at).is_multiple_of(each)
    };
    let passes = passes.iter().enumerate();
    passes
        .filter(|(at, pass)| begins(*at, pass))
        .map(|(_, pass)| pass.at.0)
        .collect()
}

/// Whether it takes another time from a pass of the `main` place to one of this `place` than to the next of its own, in nearly all turns.
fn differs(passes: &[PassFact], main: u64, place: u64) -> bool {
    let quartiles = |to: u64| {
        let mut gaps: Vec<u64> = passes
            .windows(2)
            .filter(|pair| pair[0].path == main && pair[1].path == to)
            .map(|pair| pair[1].at.0 - pair[0].at.0)
            .collect();
        gaps.sort_unstable();
        let at = |part: usize| gaps[gaps.len() * part / 4];
        (gaps.len() >= MIN_STEPS).then(|| [at(1), at(2), at(3)])
    };
    let (Some(own), Some(other)) = (quartiles(main), quartiles(place)) else {
        return false;
    };
    let apart = own[2] < other[0] || other[2] < own[0];
    apart && own[1].abs_diff(other[1]) as f64 > ANOTHER * own[1] as f64
}

/// When the steps of these passes began, and the last one ended: where the thread began to wait for the step's batch. One that was
/// there is taken as long after the pass before, or after the `checkpoints` that follow it, as others are. As the passes are, where
/// few steps wait. `waits` and `checkpoints` are in order.
pub(super) fn from_batches(passes: &[u64], waits: &[u64], checkpoints: &[(u64, u64)]) -> Vec<u64> {
    let saved = |from: u64, to: u64| {
        let after = checkpoints.partition_point(|saving| saving.1 <= from);
        let within = checkpoints[after..]
            .iter()
            .take_while(|saving| saving.0 < to);
        within.map(|saving| saving.1).filter(|end| *end < to).last()
    };
    let turns: Vec<(u64, u64, Option<u64>)> = passes
        .windows(2)
        .map(|pair| {
            let (from, to) = (pair[0], pair[1]);
            let first = waits.partition_point(|at| *at <= from);
            let waited = waits.get(first).copied().filter(|at| *at < to);
            (saved(from, to).unwrap_or(from), to, waited)
        })
        .collect();
    let mut after: Vec<u64> = turns
        .iter()
        .filter_map(|(from, _, waited)| waited.map(|at| at.saturating_sub(*from)))
        .collect();
    if (after.len() as f64) < WAITED * turns.len() as f64 {
        return passes.to_vec();
    }
    after.sort_unstable();
    let usual = after[after.len() / 2];
    let begins = |(from, to, waited): &(u64, u64, Option<u64>)| match waited {
        Some(at) => *at,
        None => (from + usual).min(*to),
    };
    // The first step's wait, and what follows the last one's, may be in the watch or not.
    let first = waits.partition_point(|at| *at < passes[0]).checked_sub(1);
    let last = waits.partition_point(|at| *at <= passes[passes.len() - 1]);
    let first = first.map(|n| waits[n]);
    let between = turns.iter().map(begins);
    first
        .into_iter()
        .chain(between)
        .chain(waits.get(last).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::KtimeNs;

    fn passes(told: &[(u64, u64)]) -> Vec<PassFact> {
        told.iter()
            .map(|(at, sp)| PassFact {
                at: KtimeNs(*at),
                tid: 1,
                sp: *sp,
                path: 0,
            })
            .collect()
    }

    fn times(passes: &[PassFact]) -> Vec<u64> {
        passes.iter().map(|pass| pass.at.0).collect()
    }

    /// Passes at 0, 1, 2 and so on, from these places.
    fn from_places(paths: impl IntoIterator<Item = u64>) -> Vec<PassFact> {
        let pass = |(at, path)| PassFact {
            at: KtimeNs(at),
            tid: 1,
            sp: 900,
            path,
        };
        (0..).zip(paths).map(pass).collect()
    }

    #[test]
    fn of_several_losses_in_turn_one_tells_the_steps() {
        let turns = |n: usize| [7, 8, 9].into_iter().cycle().take(3 * n);
        let found = of_one_loss(&from_places(turns(20)));
        assert_eq!(found, (0..20).map(|n| 3 * n).collect::<Vec<_>>());
        // The watch begins and ends in the midst of a turn; the first passes are not told by place.
        let cut = turns(20).skip(1).take(56).enumerate();
        let cut = cut.map(|(at, path)| if at < 10 { 0 } else { path });
        let found = of_one_loss(&from_places(cut));
        assert_eq!(found.len(), 19, "{found:?}");
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] == 3));
    }

    #[test]
    fn a_loss_that_not_each_turn_has_is_known_by_the_work_before_it() {
        // An actor learns in each second turn, after 3 of 10.
        let turns = |before: u64| {
            let mut passes = from_places([7, 7, 8].repeat(20));
            let mut now = 0;
            for pass in &mut passes {
                now += if pass.path == 8 { before } else { 10 };
                pass.at = KtimeNs(now);
            }
            of_one_loss(&passes).len()
        };
        assert_eq!(turns(3), 40);
        // As parts of a batch have, the last of which begins elsewhere.
        assert_eq!(turns(10), 60);
    }

    #[test]
    fn passes_that_may_be_turns_of_their_own_all_count() {
        let all = |paths: &[u64]| {
            let passes = from_places(paths.iter().copied());
            assert_eq!(of_one_loss(&passes), times(&passes), "{paths:?}");
        };
        // From one place; from nobody knows where; one loss for a while, then another.
        all(&[7; 40]);
        all(&[0; 40]);
        all(&[[7; 30], [8; 30]].concat());
        // Parts of a batch, the last of which another place begins; one that is learned from in each second turn.
        all(&[7, 7, 7, 8].repeat(15));
        all(&[7, 7, 8].repeat(15));
        // Too few to tell.
        all(&[7, 8, 7, 8]);
    }

    #[test]
    fn passes_inside_another_are_none_of_their_own() {
        // Two checkpointed parts, the second of which has one itself; the watch began in the midst of a step.
        let step = [(0, 900), (1, 700), (2, 700), (3, 500), (4, 700)];
        let later = |n: u64| step.iter().map(move |(at, sp)| (at + 10 * n, *sp));
        let told: Vec<_> = later(0).skip(2).chain((1..6).flat_map(later)).collect();
        let found = times(&outer(passes(&told)));
        assert!(found.ends_with(&[4, 10, 20, 30, 40, 50]), "{found:?}");
    }

    #[test]
    fn steps_begin_with_the_wait_for_their_batch() {
        let passes: Vec<u64> = (0..9).map(|n| 1000 * n + 500).collect();
        // 100 after each pass; none before the fourth. A checkpoint before the sixth, whose batch comes late; one before the eighth, whose
        // batch is there.
        let waits = [400, 600, 1600, 3600, 4900, 5600, 7600, 8650, 9000];
        let checkpoints = [(4550, 4800), (6550, 6800)];
        let found = from_batches(&passes, &waits, &checkpoints);
        assert_eq!(
            found,
            [400, 600, 1600, 2600, 3600, 4900, 5600, 6900, 7600, 8650]
        );
        // Nothing is waited for.
        assert_eq!(from_batches(&passes, &[], &checkpoints), passes);
    }

    #[test]
    fn loops_at_several_depths_count_all() {
        // One step to warm up, then a loop in a function, then one deeper still.
        let told: Vec<_> = [(0, 900)]
            .into_iter()
            .chain((1..50).map(|at| (at, 700)))
            .chain((50..60).map(|at| (at, 500)))
            .collect();
        let found = outer(passes(&told));
        assert_eq!(found.len(), 60);
    }
}
