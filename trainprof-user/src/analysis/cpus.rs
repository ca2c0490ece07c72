//! CPUs: those that a job may use, and what its threads use of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{facts::Facts, groups::held, spinning::spinning};
use crate::{env::host::cpu_list, session::Session};

/// CPU time beside what was walked may make a job seem to use a little more than it may.
const MORE_THAN_ALLOWED: f64 = 1.05;
/// Part of the job's CPU time: who uses less does not matter.
const LITTLE: f64 = 0.05;

/// CPU time of these threads of the job in what can be walked, ns.
pub fn cpu_ns(facts: &Facts, of: impl Fn(u32) -> bool) -> f64 {
    facts
        .residuals()
        .filter(|(tid, _)| of(*tid))
        .map(|(_, residual)| residual.run_ns as f64)
        .sum()
}

/// CPU time that threads of the job, but for `without`, spent on waiting for others on the CPU in what can be walked, ns.
pub fn spun_ns(facts: &Facts, without: &BTreeSet<u32>) -> f64 {
    let mut ran = BTreeMap::<u32, f64>::new();
    for (tid, residual) in facts.residuals() {
        *ran.entry(tid).or_default() += residual.run_ns as f64;
    }
    ran.into_iter()
        .filter(|(tid, _)| !without.contains(tid))
        .map(|(tid, ns)| ns * spinning(facts, tid))
        .sum()
}

/// CPUs that the job may use: those of the host, or fewer by affinity, cpuset or quota. What holds a part of the job alone leaves the
/// others theirs.
pub fn cpus(facts: &Facts, pinned: Option<f64>) -> f64 {
    let session = facts.session;
    let used = cpu_by_process(facts);
    let little = used.values().sum::<f64>() * LITTLE;
    let mut cpusets = BTreeMap::<&str, f64>::new();
    for (pid, process) in &session.processes {
        let cgroup = process.seen.facts.as_ref().and_then(|f| f.cgroup.as_ref());
        if let Some(list) = cgroup.and_then(|cgroup| cgroup.cpuset.as_deref()) {
            *cpusets.entry(list).or_default() += used.get(pid).copied().unwrap_or(0.0);
        }
    }
    let by_cpuset: BTreeSet<u32> = cpusets
        .into_iter()
        .filter(|(_, used)| *used >= little)
        .filter_map(|(list, _)| cpu_list(list))
        .flatten()
        .collect();
    let by_cpuset = (!by_cpuset.is_empty()).then_some(by_cpuset.len() as f64);
    let host = host_cpus(session);
    by_cpuset
        .into_iter()
        .chain(by_quotas(facts, &used, little))
        .fold(pinned.unwrap_or(host), f64::min)
}

/// CPUs that quotas leave the job; `None` where they leave a part of it all. A process has what the tightest one that holds it gives; of
/// groups side by side the job has the sum, and never more than one gives that holds all.
fn by_quotas(facts: &Facts, used: &BTreeMap<u32, f64>, little: f64) -> Option<f64> {
    let quotas = quotas(facts);
    let mut tightest = BTreeMap::<usize, f64>::new();
    let mut free = 0.0;
    for (pid, ns) in used {
        let holding = quotas
            .iter()
            .enumerate()
            .filter(|(_, (held, _))| held.contains(pid));
        match holding.min_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)) {
            Some((at, _)) => *tightest.entry(at).or_default() += ns,
            None => free += ns,
        }
    }
    if free > little || tightest.is_empty() {
        return None;
    }
    let sum: f64 = tightest.keys().map(|at| quotas[*at].1).sum();
    let of_all = quotas.iter().filter(|(held, _)| {
        let outside = used.iter().filter(|(pid, _)| !held.contains(pid));
        outside.map(|(_, ns)| ns).sum::<f64>() <= little
    });
    Some(of_all.map(|(_, cpus)| *cpus).fold(sum, f64::min))
}

/// What each quota holds, and the CPUs that it gives.
fn quotas(facts: &Facts) -> Vec<(BTreeSet<u32>, f64)> {
    let quotas = facts.session.host.quotas.iter();
    quotas
        .filter_map(|(group, series)| {
            let last = series.last()?;
            let cpus = last.quota_us as f64 / last.period_us.max(1) as f64;
            Some((held(facts.session, group), cpus))
        })
        .collect()
}

/// CPUs that quotas leave unused for any of these processes; `None` where none holds them.
pub fn left_by_quotas(facts: &Facts, of: &BTreeSet<u32>) -> Option<f64> {
    let used = cpu_by_process(facts);
    let wall = (facts.walkable_ns() as f64).max(1.0);
    quotas(facts)
        .into_iter()
        .filter(|(held, _)| !held.is_disjoint(of))
        .map(|(held, cpus)| {
            let inside = used.iter().filter(|(pid, _)| held.contains(pid));
            cpus - inside.map(|(_, ns)| ns).sum::<f64>() / wall
        })
        .min_by(f64::total_cmp)
}

/// Part (0–1) of the job's CPU time in what can be walked that these processes used.
pub fn share_of_cpu(facts: &Facts, of: &BTreeSet<u32>) -> f64 {
    let used = cpu_by_process(facts);
    let inside: f64 = used
        .iter()
        .filter(|(pid, _)| of.contains(pid))
        .map(|(_, ns)| ns)
        .sum();
    let all: f64 = used.values().sum();
    if all > 0.0 { inside / all } else { 1.0 }
}

/// CPU time of each process of the job in what can be walked, ns.
fn cpu_by_process(facts: &Facts) -> BTreeMap<u32, f64> {
    let mut out = BTreeMap::new();
    for (tid, residual) in facts.residuals() {
        if let Some(pid) = facts.pid(tid) {
            *out.entry(pid).or_default() += residual.run_ns as f64;
        }
    }
    out
}

/// CPUs that the job's processes may use together, when that is fewer than the host has. It is known of their first
/// threads alone: `None` where the job used more than that.
pub fn allowed_cpus(facts: &Facts) -> Option<f64> {
    let session = facts.session;
    let lists = session.host.allowed_cpus.values();
    let lists: BTreeSet<&str> = lists.map(String::as_str).collect();
    let allowed: BTreeSet<u32> = lists.into_iter().filter_map(cpu_list).flatten().collect();
    let count = allowed.len() as f64;
    let used = cpu_ns(facts, |_| true) / (facts.walkable_ns() as f64).max(1.0);
    (count > 0.0 && count < host_cpus(session) && used <= count * MORE_THAN_ALLOWED)
        .then_some(count)
}

/// CPUs of the host.
pub fn host_cpus(session: &Session) -> f64 {
    session
        .start
        .as_ref()
        .map_or(1.0, |start| f64::from(start.host.cpus_online.max(1)))
}

/// Threads outside the job of whose process no command is known.
pub fn kernel_threads(session: &Session) -> BTreeSet<u32> {
    let runs = |pid: &u32| {
        let command = session.host.outsiders.get(pid);
        command.is_some_and(|words| words.iter().any(|word| !word.is_empty()))
    };
    session
        .outsiders
        .iter()
        .filter(|(_, (pid, _))| pid.as_ref().is_some_and(|pid| !runs(pid)))
        .map(|(tid, _)| *tid)
        .collect()
}
