//! A team of threads that compute together: who is done first spins until the last one is. While that one has no CPU, spinning is
//! waiting for one.

use std::collections::BTreeMap;

use super::{cast::Cast, facts::Facts, spans::union, timeline::Item};

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

/// What of the step thread's running inside the windows was spinning for threads of its process that had no CPU.
pub fn spun(facts: &Facts, cast: &Cast, windows: &[(u64, u64)]) -> Option<Spun> {
    let tid = cast.step_tid;
    let pid = facts.pid(tid)?;
    let mates: Vec<(u32, &[Item])> = facts
        .waiting_threads()
        .filter(|(mate, _)| *mate != tid && facts.pid(*mate) == Some(pid))
        .filter(|(mate, _)| !cast.producers.contains(mate) && in_team(facts, *mate))
        .collect();
    if mates.is_empty() {
        return None;
    }
    let all = facts.samples(tid);
    let mut seen = 0;
    let mut found = BTreeMap::<(u32, u32), Vec<(u64, u64)>>::new();
    for (from, to) in windows {
        let first = all.partition_point(|sample| sample.at.0 < *from);
        for sample in all[first..].iter().take_while(|sample| sample.at.0 < *to) {
            seen += 1;
            if !in_runtime(facts, sample.place) {
                continue;
            }
            let late = mates
                .iter()
                .filter_map(|(mate, items)| Some((*mate, wanting(items, sample.at.0)?)))
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

/// Whether a thread was ever seen in such a runtime itself: others of the process are not what the team waits for.
fn in_team(facts: &Facts, tid: u32) -> bool {
    let mut samples = facts.samples(tid).iter();
    samples.any(|sample| in_runtime(facts, sample.place))
}

fn in_runtime(facts: &Facts, place: u32) -> bool {
    facts
        .session
        .places
        .get(&place)
        .and_then(|place| place.module.as_deref())
        .is_some_and(|module| RUNTIMES.iter().any(|name| module.starts_with(name)))
}

/// The stretch in which a thread wanted a CPU at `at`.
fn wanting(items: &[Item], at: u64) -> Option<&Item> {
    let item = items[..items.partition_point(|item| item.from <= at)].last()?;
    (item.woken <= at && at < item.to).then_some(item)
}
