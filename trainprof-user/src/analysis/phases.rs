//! Stretches of the step thread's time that one kind of activity fills: making workers, reading a batch itself. The latter are found
//! from its noted system calls: calls close together are one stretch.

use trainprof_common::op::{Class, Op};

use super::{
    cast::Cast,
    checkpoints::{is_open, is_written},
    facts::Facts,
    running::split_of,
    spans::{overlap, union},
    timeline::Item,
};
use crate::session::kind::WaitKind;

/// Longest that a step thread makes workers before it waits for a batch, ns.
const MAX_START_NS: u64 = 2_000_000_000;
/// A thread whose end is waited for is gone so long after that wait at most, ns, or while it lasts: it wakes us as one of the
/// last things it does.
const ENDS_WITHIN_NS: u64 = 5_000_000;
/// Files are read in batches when the time between two batches is at least so many times the usual time
/// between two files of one batch.
const BATCH_GAP: f64 = 3.0;
/// Samples that tell what is done between batches, and the share of them in calls for files that a model does not make.
const MIN_SAMPLES: usize = 25;
const BUSY_WITH_FILES: f64 = 0.25;
/// Files that show a pattern.
const MIN_FILES: usize = 20;

/// Stretches in which the step thread was busy making workers: from the birth of one, while that thread ran, until it waits for
/// a batch. Until then it has none to compute on.
pub fn worker_starts(facts: &Facts, cast: &Cast) -> Vec<(u64, u64)> {
    let session = facts.session;
    let items = facts.items(cast.step_tid);
    let births = cast.workers.iter().filter_map(|pid| {
        let worker = session.processes.get(pid)?;
        (worker.seen.parent == cast.trainer && session.was_made(*pid)).then_some(worker.since.0)
    });
    let stretch = |born: u64| {
        let at = items.partition_point(|item| item.from < born);
        let ran = at.checked_sub(1).is_none_or(|at| items[at].to <= born);
        // One that it starts a program in wakes it when that has begun (vfork): others may be to come.
        let fed = |item: &&Item| cast.fed(item) && item.kind() != WaitKind::Other;
        let waits = items[at..].iter().find(fed)?;
        (ran && waits.from - born <= MAX_START_NS).then_some((born, waits.from))
    };
    union(births.filter_map(stretch).collect())
}

/// Stretches in which the step thread made workers in place of others, from when it began to wait for the end of those.
pub fn renewals(facts: &Facts, cast: &Cast) -> Vec<(u64, u64)> {
    let ends: Vec<&Item> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| {
            let ended = facts
                .session
                .thread(item.waker.tid)
                .filter(|thread| cast.workers.contains(&thread.pid))
                .and_then(|thread| thread.until);
            ended.is_some_and(|ended| ended.0 <= item.woken + ENDS_WITHIN_NS)
        })
        .collect();
    let mut begun = 0;
    let mut out = Vec::new();
    for (from, to) in worker_starts(facts, cast) {
        let upto = ends.partition_point(|item| item.from < from);
        let began = ends[..upto]
            .iter()
            .rev()
            .take_while(|item| item.from >= begun && from - item.from <= MAX_START_NS)
            .last()
            .map_or(from, |item| item.from);
        out.push((began, to));
        begun = to;
    }
    union(out)
}

/// Stretches in which a thread without producers made a batch itself: from the first file of a batch to the
/// last one, and as long after that as it takes for one more. Time in `checkpoints` does not part them. Empty where no batches can
/// be told.
pub fn own_batches(facts: &Facts, tid: u32, checkpoints: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let touches = facts.touches(tid);
    let opened = touches.iter().filter(|touch| is_open(touch)).count();
    let mut opens: Vec<u64> = touches
        .iter()
        .enumerate()
        .filter(|(n, touch)| is_open(touch) && !is_written(&touches[n + 1..], touch.object.id))
        .map(|(_, touch)| touch.at.0)
        .collect();
    if opened < MIN_FILES {
        // Files that stay open: the reads tell.
        opens = touches
            .iter()
            .filter(|touch| {
                touch.op == Op::Read.number() && touch.object.class == Class::File as u8
            })
            .map(|touch| touch.at.0)
            .collect();
    }
    if opens.len() < MIN_FILES {
        return Vec::new();
    }
    let apart = |from: u64, to: u64| to - from - overlap(checkpoints, from, to);
    let mut gaps: Vec<u64> = opens
        .windows(2)
        .map(|pair| apart(pair[0], pair[1]))
        .collect();
    gaps.sort_unstable();
    let Some(limit) = natural_break(&gaps) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let mut first = opens[0];
    let mut last = opens[0];
    let mut count = 1_u64;
    for at in opens.iter().skip(1).copied().chain([u64::MAX]) {
        if at == u64::MAX || apart(last, at) > limit {
            let per_file = if count > 1 {
                (last - first) / (count - 1)
            } else {
                0
            };
            out.push((first, (last + per_file).min(at)));
            first = at;
            count = 0;
        }
        last = at;
        count += 1;
    }
    union(out)
}

/// Whether the thread is busy with files outside of these stretches too: then a list of them is read there, say, and the
/// model is computed inside, between one file and the next.
pub fn apart_are_files(facts: &Facts, tid: u32, batches: &[(u64, u64)]) -> bool {
    let apart = facts
        .samples(tid)
        .iter()
        .filter(|sample| overlap(batches, sample.at.0, sample.at.0 + 1) == 0);
    let split = split_of(facts.session, apart);
    split.samples >= MIN_SAMPLES && split.file_meta + split.read >= BUSY_WITH_FILES
}

/// Where sorted gaps fall apart into short and long ones: the widest jump between neighbours, when it is wide
/// and the long ones are fewer.
pub fn natural_break(sorted: &[u64]) -> Option<u64> {
    let half = sorted.len() / 2;
    let (at, ratio) = (half..sorted.len().saturating_sub(3))
        .map(|at| (at, sorted[at + 1] as f64 / sorted[at].max(1) as f64))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    let median = sorted[half].max(1) as f64;
    let long = sorted[at + 1] as f64;
    (ratio > 1.3 && long >= BATCH_GAP * median).then(|| ((sorted[at] as f64) * ratio.sqrt()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_fall_apart_or_do_not() {
        let mut gaps: Vec<u64> = (0..70).map(|n| 1000 + n * 5).collect();
        gaps.extend((0..10).map(|n| 40_000 + n * 200));
        gaps.sort_unstable();
        let limit = natural_break(&gaps).expect("two groups");
        assert!((1345..40_000).contains(&limit), "{limit}");
        let even: Vec<u64> = (0..80).map(|n| 1000 + n * 20).collect();
        assert_eq!(natural_break(&even), None);
    }
}
