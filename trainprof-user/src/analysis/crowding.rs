//! Threads of the job that wait for a CPU behind each other, because others have the CPUs that they could use: the scheduler may
//! give a stranger one of two CPUs, and both of the job's threads the other.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;

/// CPU time of others that is there on any host, as a share (0–1) of its CPUs.
const USUAL: f64 = 0.05;

/// Part (0–1) of the waits in which somebody was seen to have the CPU, from which on that is likely who has the others.
const WORTH_NAMING: f64 = 0.05;

/// What others have to do with waits of the job's threads for each other's CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Crowding {
    /// Share (0–1) of those waits that is due to them.
    pub share: f64,
    /// The thread outside the job, or apart in it, that most was waited for; 0: none was seen.
    pub by: u32,
}

impl Crowding {
    /// `free`: whether the job may use all CPUs of the host, of which there are `cpus`; `apart`: threads of it that no step needs,
    /// which are strangers to the others.
    pub fn new(facts: &Facts, cpus: f64, free: bool, apart: &BTreeSet<u32>) -> Self {
        let session = facts.session;
        let (Some(first), Some(last)) = (session.host.host.first(), session.host.host.last())
        else {
            return Self::default();
        };
        let sampled = last.at.0.saturating_sub(first.at.0) as f64;
        let watched = session.duration_s() * 1e9;
        if !free || sampled <= 0.0 || watched <= 0.0 {
            return Self::default();
        }
        let (mut ran, mut wanted) = (0, 0);
        let needed = |tid: &u32| !apart.contains(tid);
        for thread in session.threads.values().filter(|t| needed(&t.key.tid)) {
            ran += thread.run_ns;
            wanted += thread.preempted_ns;
            wanted += thread
                .waits
                .values()
                .map(|total| total.runnable_ns)
                .sum::<u64>();
        }
        let own = session.cost.map_or(0, |cost| cost.collector_cpu_ns);
        let busy = last.busy_ns.saturating_sub(first.busy_ns) as f64 / sampled;
        let idle = last.idle_ns.saturating_sub(first.idle_ns) as f64 / sampled;
        let others = busy - (ran + own) as f64 / watched - USUAL * cpus;
        Self {
            share: share(wanted as f64 / watched, others, idle),
            by: most(facts, wanted, apart),
        }
    }
}

/// All in CPUs: what threads wanted and did not get, what others had, and what nobody had. What idle CPUs could have given is not
/// missing because of others.
fn share(wanted: f64, others: f64, idle: f64) -> f64 {
    let missing = (wanted - idle).max(0.0);
    if wanted <= 0.0 {
        return 0.0;
    }
    others.clamp(0.0, missing) / wanted
}

/// Who the job's threads were seen to wait for most, of all that they waited (ns), where that is enough to name somebody. Where it is known
/// whose processes used CPU time, one of theirs.
fn most(facts: &Facts, wanted: u64, apart: &BTreeSet<u32>) -> u32 {
    let mut waited = BTreeMap::<u32, u64>::new();
    let session = facts.session;
    let busy: Vec<u32> = session.host.neighbours.cpus().map(|(pid, _)| pid).collect();
    let is_busy = |tid: u32| {
        let process = session.outsiders.get(&tid).and_then(|(pid, _)| *pid);
        busy.is_empty() || process.is_some_and(|pid| busy.contains(&pid))
    };
    let stranger = |tid: u32| session.thread(tid).is_none() && is_busy(tid) || apart.contains(&tid);
    for (_, items) in facts
        .waiting_threads()
        .filter(|(tid, _)| !apart.contains(tid))
    {
        for item in items.iter().filter(|item| item.ran_before != 0) {
            if stranger(item.ran_before) {
                *waited.entry(item.ran_before).or_default() += item.to - item.woken;
            }
        }
    }
    waited
        .into_iter()
        .max_by_key(|(_, ns)| *ns)
        .filter(|(_, ns)| *ns as f64 >= WORTH_NAMING * wanted as f64)
        .map_or(0, |(tid, _)| tid)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn what_others_had_is_theirs_and_what_was_idle_is_nobodys() {
        // Two threads on one CPU, a stranger on the other.
        assert_eq!(share(1.0, 1.0, 0.0), 1.0);
        // More threads than CPUs, and nobody else.
        assert_eq!(share(2.0, 0.0, 0.0), 0.0);
        assert_eq!(share(2.0, 0.5, 0.0), 0.25);
        // A large host with room.
        assert_eq!(share(0.2, 10.0, 40.0), 0.0);
        assert_eq!(share(0.0, 1.0, 0.0), 0.0);
    }
}
