//! A team of threads that compute together: who is done first spins until the last one is. While that one has no CPU, spinning is
//! waiting for one.

use std::collections::BTreeMap;

use trainprof_common::arch;

use super::{cast::Cast, facts::Facts, running::yielding, spans::union, timeline::Item};
use crate::record::touch::{PlaceClass, SampleFact};

/// Fewer samples than this say nothing about a stretch.
const MIN_SAMPLES: usize = 25;

/// Beginnings of names of OpenMP runtimes: what samples see of them is waiting for the team.
const RUNTIMES: [&str; 3] = ["libgomp", "libiomp", "libomp"];

/// Spinning for somebody who wanted a CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Spun {
    /// Share (0–1) of the running that it was.
    pub share: f64,
    /// The thread that was spun for most, and who had its CPU.
    pub mate: u32,
    pub by: u32,
    /// When it wanted one.
    pub wanted: Vec<(u64, u64)>,
}

/// Threads of the trainer that compute with its step thread.
pub fn team(facts: &Facts, cast: &Cast) -> Vec<u32> {
    facts
        .waiting_threads()
        .map(|(mate, _)| mate)
        .filter(|mate| *mate != cast.step_tid && facts.pid(*mate) == Some(cast.trainer))
        .filter(|mate| !cast.producers.contains(mate) && in_team(facts, *mate))
        .collect()
}

/// What of the step thread's running inside the windows was spinning for threads of its team that had no CPU.
pub fn spun(facts: &Facts, tid: u32, team: &[u32], windows: &[(u64, u64)]) -> Option<Spun> {
    if team.is_empty() {
        return None;
    }
    let all = facts.samples(tid);
    let mut seen = 0;
    let mut found = BTreeMap::<(u32, u32), Vec<(u64, u64)>>::new();
    for (from, to) in windows {
        let first = all.partition_point(|sample| sample.at.0 < *from);
        for sample in all[first..].iter().take_while(|sample| sample.at.0 < *to) {
            seen += 1;
            if !waits_here(facts, sample.place) {
                continue;
            }
            let late = team
                .iter()
                .filter_map(|mate| Some((*mate, wanting(facts.items(*mate), sample.at.0)?)))
                .min_by_key(|(_, item)| item.woken);
            if let Some((mate, item)) = late {
                found
                    .entry((mate, item.ran_before))
                    .or_default()
                    .push((item.woken, item.to));
            }
        }
    }
    if seen < MIN_SAMPLES {
        return None;
    }
    let spun: usize = found.values().map(Vec::len).sum();
    let ((mate, by), wanted) = found.into_iter().max_by_key(|(_, wanted)| wanted.len())?;
    Some(Spun {
        share: spun as f64 / seen as f64,
        mate,
        by,
        wanted: union(wanted),
    })
}

/// A thread with so much (0–1) of its running spent on looking for work mostly does nothing else.
const MOSTLY: f64 = 0.5;

/// Threads of the trainer, no producers, that mostly look for work, and the part (0–1) of their running that it is: in a runtime, in a
/// loop that spins, giving up the CPU again and again, or going to sleep and being woken.
pub fn idlers(facts: &Facts, cast: &Cast) -> BTreeMap<u32, f64> {
    let looks = |tid: u32| {
        let samples = facts.samples(tid);
        let sleeps = |nr: i16| arch::syscall_name(nr) == Some("futex");
        let found = samples
            .iter()
            .filter(|sample| waits_here(facts, sample.place) || sleeps(sample.nr))
            .count();
        let share = found as f64 / samples.len().max(1) as f64 + yielding(samples);
        (samples.len() >= MIN_SAMPLES && share >= MOSTLY).then_some((tid, share.min(1.0)))
    };
    let threads = facts.session.threads.values();
    threads
        .filter(|thread| thread.pid == cast.trainer && thread.key.tid != cast.step_tid)
        .filter(|thread| !cast.producers.contains(&thread.key.tid))
        .filter_map(|thread| looks(thread.key.tid))
        .collect()
}

/// The share (0–1) of a thread's running that it spent on waiting for others on the CPU.
pub fn spinning(facts: &Facts, tid: u32) -> f64 {
    let samples = facts.samples(tid);
    let spins = |sample: &&SampleFact| {
        let place = facts.session.places.get(&sample.place);
        place.is_some_and(|place| place.class == PlaceClass::Spinning)
    };
    let found = samples.iter().filter(spins).count();
    (found as f64 / samples.len().max(1) as f64 + yielding(samples)).min(1.0)
}

/// Whether a thread was ever seen to wait there itself: others of the process are not what the team waits for.
fn in_team(facts: &Facts, tid: u32) -> bool {
    let mut samples = facts.samples(tid).iter();
    samples.any(|sample| waits_here(facts, sample.place))
}

/// In such a runtime, or in a loop that spins: libraries have barriers of their own (oneDNN's are code made at run time).
fn waits_here(facts: &Facts, place: u32) -> bool {
    let of_runtime = |module: &str| RUNTIMES.iter().any(|name| module.starts_with(name));
    facts.session.places.get(&place).is_some_and(|place| {
        place.class == PlaceClass::Spinning || place.module.as_deref().is_some_and(of_runtime)
    })
}

/// The stretch in which a thread wanted a CPU at `at`.
fn wanting(items: &[Item], at: u64) -> Option<&Item> {
    let item = items[..items.partition_point(|item| item.from <= at)].last()?;
    (item.woken <= at && at < item.to).then_some(item)
}
