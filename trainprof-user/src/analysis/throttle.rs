//! When the job's own CPU quota kept it off the CPU.
//!
//! A thread that waits for a CPU looks the same whether a quota or a neighbour keeps it from it. Told apart are they by how long it
//! waits at a time, by who has the CPU meanwhile, and by the kernel's own account of how long the group was throttled.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    facts::Facts,
    groups::held,
    spans::{overlap, union},
    timeline::Item,
};
use crate::record::fact::QuotaSample;

/// A piece of being runnable that is shorter than this is no throttling: a period is 100 ms as a rule.
const MIN_PIECE_NS: u64 = 2_000_000;
/// Somebody was seen to have the CPU, of the job or not: then only a piece this long is throttling. Who shares a CPU gets it back after a
/// few milliseconds.
const MIN_PIECE_BESIDE_NS: u64 = 10_000_000;
/// Periods that were throttled, of all: fewer are noise.
const MIN_PERIODS: f64 = 0.05;

/// Who had the CPU while a thread wanted it: the likelier that it was the quota, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Nobody = 0,
    Ours = 1,
    Others = 2,
}

/// A stretch of readings of a quota between which it was hit, each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    from: u64,
    to: u64,
    /// For how long (ns) run queues of the group were throttled, all CPUs together; `None` where the kernel does not tell.
    throttled_ns: Option<u64>,
}

/// Stretches between readings of a quota in which it was hit.
pub struct Throttled {
    /// By the quotas that hold a process, as they are numbered.
    stretches: BTreeMap<Vec<usize>, Vec<Stretch>>,
    /// Processes that a quota holds which was hit, each with those quotas.
    held: BTreeMap<u32, Vec<usize>>,
    /// By thread and stretch: what part (0–1) of its long pieces was throttling, by who had the CPU.
    parts: BTreeMap<(u32, usize), [f64; 3]>,
    /// Those that were hit.
    pub quotas: Vec<Quota>,
}

/// A quota that was hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    pub cgroup: String,
    /// In CPUs.
    pub cpus: f64,
    /// Share (0–1) of the periods of the watch that were throttled.
    pub periods: f64,
    /// What it holds of the job.
    pub held: BTreeSet<u32>,
}

impl Throttled {
    pub fn new(facts: &Facts) -> Self {
        let mut out = Self {
            stretches: BTreeMap::new(),
            held: BTreeMap::new(),
            parts: BTreeMap::new(),
            quotas: Vec::new(),
        };
        let mut hits = Vec::new();
        for (cgroup, series) in &facts.session.host.quotas {
            let hit: Vec<_> = series
                .windows(2)
                .filter(|pair| share_of_periods(&pair[0], &pair[1]) >= MIN_PERIODS)
                .map(|pair| {
                    let ns = pair[1].throttled_ns.saturating_sub(pair[0].throttled_ns);
                    (pair[0].at.0, pair[1].at.0, ns)
                })
                .collect();
            let Some(last) = series.last().filter(|_| !hit.is_empty()) else {
                continue;
            };
            let of_pairs = |of: fn(&QuotaSample) -> u64| -> f64 {
                let pairs = series.windows(2);
                pairs
                    .map(|pair| of(&pair[1]).saturating_sub(of(&pair[0])) as f64)
                    .sum()
            };
            let held = held(facts.session, cgroup);
            for pid in &held {
                out.held.entry(*pid).or_default().push(hits.len());
            }
            hits.push(hit);
            out.quotas.push(Quota {
                cgroup: cgroup.clone(),
                cpus: last.quota_us as f64 / last.period_us.max(1) as f64,
                periods: of_pairs(|q| q.throttled_periods) / of_pairs(|q| q.periods).max(1.0),
                held,
            });
        }
        for quotas in out.held.values() {
            if !out.stretches.contains_key(quotas) {
                let hit: Vec<_> = quotas.iter().flat_map(|at| &hits[*at]).copied().collect();
                out.stretches.insert(quotas.clone(), stretches(&hit));
            }
        }
        for (tid, items) in facts.waiting_threads() {
            out.account(facts, tid, items);
        }
        out
    }

    /// Stretches in which a quota was hit that holds this thread.
    fn of(&self, facts: &Facts, tid: u32) -> &[Stretch] {
        facts
            .pid(tid)
            .and_then(|pid| self.stretches.get(self.held.get(&pid)?))
            .map_or(&[], Vec::as_slice)
    }

    /// A thread is not throttled for longer than its group: what is left goes to whoever had the CPU.
    fn account(&mut self, facts: &Facts, tid: u32, items: &[Item]) {
        let mut told = Vec::new();
        for (number, stretch) in self.of(facts, tid).iter().enumerate() {
            let Some(left) = stretch.throttled_ns else {
                continue;
            };
            let mut left = left as f64;
            let mut wanted = [0.0; 3];
            let first = items.partition_point(|item| item.to <= stretch.from);
            for item in items[first..].iter().take_while(|i| i.from < stretch.to) {
                let by = who(facts, item.ran_before);
                if item.to - item.woken >= least(by) {
                    let set = [(stretch.from, stretch.to)];
                    wanted[by as usize] += overlap(&set, item.woken, item.to) as f64;
                }
            }
            let parts = wanted.map(|wanted| {
                let given = wanted.min(left);
                left -= given;
                if wanted > 0.0 { given / wanted } else { 1.0 }
            });
            told.push(((tid, number), parts));
        }
        self.parts.extend(told);
    }

    /// Share (0–1) of pieces of being runnable of a thread that were throttling. `by`: the thread that had the CPU, 0 where none
    /// was seen.
    pub fn share(&self, facts: &Facts, tid: u32, by: u32, pieces: &[(u64, u64)]) -> f64 {
        let by = who(facts, by);
        let all_stretches = self.of(facts, tid);
        let (mut all, mut hit) = (0, 0.0);
        for (from, to) in pieces {
            all += to - from;
            if to - from < least(by) {
                continue;
            }
            let first = all_stretches.partition_point(|s| s.to <= *from);
            let stretches = all_stretches.iter().enumerate().skip(first);
            for (number, stretch) in stretches.take_while(|(_, s)| s.from < *to) {
                let inside = overlap(&[(stretch.from, stretch.to)], *from, *to);
                let parts = self.parts.get(&(tid, number));
                hit += inside as f64 * parts.map_or(1.0, |parts| parts[by as usize]);
            }
        }
        if all == 0 { 0.0 } else { hit / all as f64 }
    }
}

const fn least(by: By) -> u64 {
    match by {
        By::Nobody => MIN_PIECE_NS,
        By::Ours | By::Others => MIN_PIECE_BESIDE_NS,
    }
}

fn who(facts: &Facts, by: u32) -> By {
    match by {
        0 => By::Nobody,
        tid if facts.session.thread(tid).is_some() => By::Ours,
        _ => By::Others,
    }
}

/// Share (0–1) of the periods between two readings that were throttled.
fn share_of_periods(a: &QuotaSample, b: &QuotaSample) -> f64 {
    let periods = b.periods.saturating_sub(a.periods);
    let hit = b.throttled_periods.saturating_sub(a.throttled_periods);
    if periods == 0 {
        0.0
    } else {
        hit as f64 / periods as f64
    }
}

/// Readings (from, to, throttled ns) put together where they touch: being throttled is counted when it ends, which may be after the next
/// reading. Of several groups one above the other the time adds up: any of them may throttle the job.
fn stretches(hit: &[(u64, u64, u64)]) -> Vec<Stretch> {
    let spans = union(hit.iter().map(|(from, to, _)| (*from, *to)).collect());
    spans
        .into_iter()
        .map(|(from, to)| {
            let inside = hit.iter().filter(|one| one.0 >= from && one.1 <= to);
            let ns: u64 = inside.map(|(_, _, ns)| ns).sum();
            Stretch {
                from,
                to,
                // Periods that were hit for no time: it is not counted.
                throttled_ns: (ns > 0).then_some(ns),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_that_touch_are_one_stretch() {
        let stretch = |from, to, throttled_ns| Stretch {
            from,
            to,
            throttled_ns,
        };
        assert_eq!(
            stretches(&[(0, 10, 3), (10, 20, 4), (30, 40, 0)]),
            [stretch(0, 20, Some(7)), stretch(30, 40, None)]
        );
        assert_eq!(stretches(&[]), []);
    }
}
