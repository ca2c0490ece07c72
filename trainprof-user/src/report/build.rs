//! From a session to its report.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::loss::Loss;

use super::{
    Shown, alloc, gpu,
    io::{self, round},
    latency::Timed,
    memory::memory,
    model::{
        Cost, Coverage, Faults, Host, Job, LostWindow, Missing, ProcessRow, Report, RssBytes,
        SCHEMA, Shares, StorageBytes, Trainer, Workers,
    },
    threads::{Roles, threads, waits, waits_by_kind},
    why,
};
use crate::{
    analysis::{
        Analysis, analyse,
        walk::{HopKind, Leaf, What},
    },
    env::{cgroup::CgroupFacts, frameworks::FrameworkFacts},
    record::{alloc::SHED_CALLS, fact::StopReason},
    session::{
        Id, Process, Session, Thread,
        roles::{Role, Share, leading_thread, roles, share},
    },
    time::{KtimeNs, seconds},
};

/// Run time of the probes that was counted for less than this (ns) says too little: a job works in bursts.
const MIN_COUNTED_NS: u64 = 100_000_000;

/// Times with losses that are listed.
const LOST_WINDOWS: usize = 20;
/// Waits that are listed for one process.
const WAITS_OF_PROCESS: usize = 5;

/// Builds the report.
pub fn report(session: &Session, shown: Shown) -> Report {
    let analysis = analyse(session);
    let roles = match &analysis.trainer {
        Some(trainer) => trainer.cast.roles.clone(),
        None => roles(session),
    };
    let trainer = trainer(session, &roles, &analysis);
    let step_tid = trainer.as_ref().map(|trainer| trainer.tid);
    let mut job = job(session, &roles, trainer.as_ref().map(|trainer| trainer.pid));
    // One thread's time is told in one way.
    if let Some(trainer) = &trainer
        && let Some(row) = job.processes.iter_mut().find(|row| row.pid == trainer.pid)
    {
        row.share = trainer.share;
    }
    Report {
        schema: SCHEMA,
        host: host(session),
        job,
        duration_s: round(session.duration_s(), 6),
        ended: session.stop.as_ref().map(|stop| match stop.reason {
            StopReason::Duration => "duration",
            StopReason::Interrupted => "interrupted",
            StopReason::JobEnded => "job-ended",
        }),
        coverage: coverage(session),
        steps: why::steps(&analysis),
        trainer,
        workers: workers(session, &roles, &analysis),
        threads: threads(
            session,
            shown.top,
            &Roles {
                processes: &roles,
                loaders: &loaders(&analysis),
            },
            step_tid,
        ),
        gpu: gpu::gpu(session, &analysis),
        io: io::io(session, shown),
        memory: memory(session, shown.top),
        blame: why::blame(session, &analysis, shown.top),
        verdict: why::verdict(&analysis),
        findings: why::findings(&analysis),
        not_told: why::not_told(&analysis),
        cost: cost(session),
    }
}

fn host(session: &Session) -> Option<Host> {
    let host = &session.start.as_ref()?.host;
    Some(Host {
        kernel: host.kernel_release.clone(),
        architecture: host.architecture.clone(),
        hostname: host.hostname.clone(),
        cpu_model: host.cpu_model.clone(),
        cpus: host.cpus_online,
        memory_bytes: host.memory_bytes,
        virtualisation: host.virtualisation.clone(),
        clocksource: host.clocksource.clone(),
        lockdown: host.lockdown.clone(),
        gpu_driver: session
            .gpu
            .devices
            .values()
            .find_map(|device| device.driver.clone()),
        versions: BTreeMap::from([("trainprof", host.trainprof_version.clone())]),
    })
}

/// Threads through which batches come, by process, of all trainers.
fn loaders(analysis: &Analysis) -> BTreeSet<(u32, u32)> {
    let trainers = analysis.trainer.iter().chain(&analysis.others);
    let casts = trainers.map(|trainer| &trainer.cast);
    casts
        .flat_map(|cast| cast.loader_threads.iter().map(|tid| (cast.trainer, *tid)))
        .collect()
}

fn job(session: &Session, roles: &BTreeMap<u32, Role>, trainer: Option<Id>) -> Job {
    let pid = session
        .start
        .as_ref()
        .and_then(|start| start.targets.first().copied());
    let first = pid.and_then(|pid| session.processes.get(&pid));
    let facts = first.and_then(|process| process.seen.facts.as_ref());
    let trainer = trainer.and_then(|pid| session.processes.get(&pid.0));
    let timed = Timed::of(session);
    Job {
        pid: pid.map(Id),
        command: facts.map(|f| f.command.clone()).unwrap_or_default(),
        started: facts.and_then(|f| f.started_unix),
        cgroup: telling(first, trainer, cgroup_of, CgroupFacts::names_owner),
        frameworks: telling(first, trainer, frameworks_of, |loaded| {
            loaded.python.is_some() || loaded.trains()
        }),
        processes: session
            .processes
            .values()
            .map(|process| process_row(session, process, roles, &timed))
            .collect(),
    }
}

fn cgroup_of(process: &Process) -> Option<&CgroupFacts> {
    process.seen.facts.as_ref()?.cgroup.as_ref()
}

fn frameworks_of(process: &Process) -> Option<&FrameworkFacts> {
    process.seen.frameworks.as_ref()
}

/// Facts of the process that was named; where it is a launcher, of which they tell nothing, the trainer's.
fn telling<T: Clone>(
    first: Option<&Process>,
    trainer: Option<&Process>,
    of: fn(&Process) -> Option<&T>,
    tells: fn(&T) -> bool,
) -> Option<T> {
    let first = first.and_then(of);
    let others = trainer.and_then(of).filter(|facts| tells(facts));
    first
        .filter(|facts| tells(facts))
        .or(others)
        .or(first)
        .cloned()
}

fn process_row(
    session: &Session,
    process: &Process,
    roles: &BTreeMap<u32, Role>,
    timed: &Timed<'_>,
) -> ProcessRow {
    let threads: Vec<&Thread> = session.threads_of(process.pid).collect();
    let counters = || threads.iter().filter_map(|thread| thread.counters);
    let seen = counters().next().is_some();
    let facts = process.seen.facts.as_ref();
    let leading = leading_thread(session, process.pid);
    ProcessRow {
        pid: Id(process.pid),
        start_time: facts.map(|f| f.start_time_ticks),
        parent: Id(process.parent),
        role: roles
            .get(&process.pid)
            .copied()
            .unwrap_or(Role::Helper)
            .name(),
        name: leading_name(session, process),
        command: facts.map(|f| f.command.clone()).unwrap_or_default(),
        threads: threads.len(),
        ended: !threads.is_empty() && threads.iter().all(|thread| thread.until.is_some()),
        share: shares(
            leading
                .map(|thread| share(session, thread, roles))
                .unwrap_or_default(),
            roles.get(&process.pid),
        ),
        present_s: leading.map(|thread| seconds(thread.present_ns(session.until))),
        wait_s_by_kind: leading.map(waits_by_kind).unwrap_or_default(),
        waits: leading
            .map(|thread| waits(session, thread, WAITS_OF_PROCESS))
            .unwrap_or_default(),
        cpu_s: seconds(threads.iter().map(|thread| thread.run_ns).sum()),
        io: session
            .sees_files()
            .then(|| io::traffic_of(session, process.pid)),
        operations: io::operations_of(session, process.pid),
        latency_us: timed.of_process(process.pid),
        faults: (seen && session.counts_faults()).then(|| Faults {
            minor: counters().map(|c| c.minor_faults).sum(),
            major: counters().map(|c| c.major_faults).sum(),
        }),
        storage: (seen && session.counts_storage()).then(|| StorageBytes {
            read: counters().map(|c| c.storage_read_bytes).sum(),
            written: counters().map(|c| c.storage_write_bytes).sum(),
        }),
        rss_bytes: process.rss.map(|rss| RssBytes {
            first: rss.first,
            last: rss.last,
            max: rss.max,
        }),
    }
}

fn leading_name(session: &Session, process: &Process) -> String {
    session
        .thread(process.pid)
        .map_or_else(|| process.name.clone(), |thread| thread.name.clone())
}

fn shares(share: Share, role: Option<&Role>) -> Shares {
    let r = |value: f64| round(value, 6);
    Shares {
        on_cpu: r(share.on_cpu),
        runnable: r(share.runnable),
        data_wait: r(share.data_wait),
        io_wait: r(share.io_wait),
        gpu_wait: None,
        lock_wait: r(share.lock_wait),
        comm_wait: r(share.comm_wait),
        other_wait: r(share.other_wait),
        slot_wait: (role == Some(&Role::Worker)).then(|| r(share.slot_wait)),
    }
}

fn lost_windows(session: &Session) -> Vec<LostWindow> {
    let begun = session.start.as_ref().map_or(KtimeNs(0), |start| start.at);
    let mut windows: Vec<LostWindow> = session
        .lossy
        .iter()
        .map(|lossy| LostWindow {
            from_s: round(lossy.from.seconds_since(begun), 6),
            to_s: round(lossy.to.seconds_since(begun), 6),
            lost: lossy.lost,
        })
        .collect();
    windows.sort_by_key(|window| std::cmp::Reverse(window.lost));
    windows.truncate(LOST_WINDOWS);
    windows
}

fn coverage(session: &Session) -> Coverage {
    let mut lost_by_reason: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (number, count) in &session.lost {
        let name = Loss::ALL
            .get(*number as usize)
            .map_or("unknown", |reason| reason.name());
        *lost_by_reason.entry(name).or_default() += count;
    }
    if session.undecodable > 0 {
        lost_by_reason.insert("undecodable", session.undecodable);
    }
    let mut seen = BTreeSet::new();
    Coverage {
        events: session.facts,
        lost: lost_by_reason.values().sum(),
        lost_by_reason,
        lost_windows: lost_windows(session),
        calls_counted_share: session.calls_counted_share(),
        missing: session
            .missing
            .iter()
            .filter(|entry| seen.insert((*entry).clone()))
            .map(|(what, reason)| Missing {
                what: what.clone(),
                reason: reason.clone(),
            })
            .collect(),
    }
}

fn trainer(session: &Session, roles: &BTreeMap<u32, Role>, analysis: &Analysis) -> Option<Trainer> {
    let found = analysis.trainer.as_ref();
    let pid = found
        .map(|trainer| trainer.cast.trainer)
        .or_else(|| first_trainer(session, roles))?;
    let thread = leading_thread(session, pid)?;
    let mut share = shares(share(session, thread, roles), Some(&Role::Trainer));
    if let Some(found) = found {
        refine(&mut share, found, session);
    }
    Some(Trainer {
        pid: Id(pid),
        tid: Id(thread.key.tid),
        share,
    })
}

/// Without anything to walk: the trainer that used most CPU time.
fn first_trainer(session: &Session, roles: &BTreeMap<u32, Role>) -> Option<u32> {
    let cpu = |pid: &u32| session.threads_of(*pid).map(|t| t.run_ns).sum::<u64>();
    roles
        .iter()
        .filter(|(_, role)| **role == Role::Trainer)
        .map(|(pid, _)| *pid)
        .max_by_key(cpu)
}

/// What only the walk can tell apart: waits for own threads that a clock ended, since who wants Python's lock asks for it again
/// every 5 ms; waits for loader threads and for ranks among those for own threads; and waits for the GPU among running and waiting.
fn refine(share: &mut Shares, found: &crate::analysis::Trainer, session: &Session) {
    let wall = found.wall.max(1.0);
    let sum = |of: &dyn Fn(&Leaf) -> bool| -> f64 {
        found
            .walked
            .leaves
            .iter()
            .filter(|(leaf, _)| of(leaf))
            .map(|(_, spent)| spent.ns / wall)
            .sum()
    };
    let own = session.threads_of(found.cast.trainer);
    let own: BTreeSet<u32> = own.map(|thread| thread.key.tid).collect();
    let for_own = sum(&|leaf: &Leaf| {
        let first = leaf.hops.first().map(|hop| hop.how);
        matches!(first, Some(HopKind::HandOver | HopKind::Lock(_)))
            && leaf.next().is_some_and(|tid| own.contains(&tid))
    });
    let moved = (for_own - share.lock_wait).clamp(0.0, share.other_wait);
    share.lock_wait = round(share.lock_wait + moved, 6);
    share.other_wait = round(share.other_wait - moved, 6);
    if !found.cast.loader_threads.is_empty() {
        let fed = sum(&|leaf: &Leaf| {
            leaf.next()
                .is_some_and(|tid| found.cast.loader_threads.contains(&tid))
        });
        let moved = fed.min(share.lock_wait);
        share.data_wait = round(share.data_wait + moved, 6);
        share.lock_wait = round(share.lock_wait - moved, 6);
    }
    // Behind threads of its own that talk to other ranks.
    let for_ranks = sum(&|leaf: &Leaf| {
        let first = leaf.hops.first().map(|hop| hop.how);
        first.is_some_and(|how| how != HopKind::Rank)
            && leaf.hops.iter().any(|hop| hop.how == HopKind::Rank)
    });
    let moved = for_ranks.min(share.lock_wait);
    share.comm_wait = round(share.comm_wait + moved, 6);
    share.lock_wait = round(share.lock_wait - moved, 6);
    if found.gpu_calls {
        let gpu =
            sum(&|leaf: &Leaf| matches!(leaf.what, What::GpuCall { .. }) && leaf.hops.is_empty());
        // A call of the driver waits on a device, for a thread of its own, or spins.
        let mut left = gpu;
        for part in [
            &mut share.other_wait,
            &mut share.lock_wait,
            &mut share.on_cpu,
            &mut share.io_wait,
            &mut share.runnable,
        ] {
            let moved = left.min(*part);
            *part = round(*part - moved, 6);
            left -= moved;
        }
        share.gpu_wait = Some(round(gpu - left, 6));
    }
}

/// Worker processes; in a job without any, the loader threads of its trainer.
fn workers(session: &Session, roles: &BTreeMap<u32, Role>, analysis: &Analysis) -> Workers {
    let mut all: Vec<Share> = roles
        .iter()
        .filter(|(_, role)| **role == Role::Worker)
        .filter_map(|(pid, _)| Some(share(session, leading_thread(session, *pid)?, roles)))
        .collect();
    if all.is_empty()
        && let Some(trainer) = &analysis.trainer
    {
        all = trainer
            .cast
            .loader_threads
            .iter()
            .filter_map(|tid| Some(share(session, session.thread(*tid)?, roles)))
            .collect();
    }
    let mean = |part: fn(&Share) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
    Workers {
        count: all.len(),
        share: (!all.is_empty()).then(|| {
            let share = Share {
                on_cpu: mean(|s| s.on_cpu),
                runnable: mean(|s| s.runnable),
                data_wait: mean(|s| s.data_wait),
                io_wait: mean(|s| s.io_wait),
                lock_wait: mean(|s| s.lock_wait),
                comm_wait: mean(|s| s.comm_wait),
                other_wait: mean(|s| s.other_wait),
                slot_wait: mean(|s| s.slot_wait),
            };
            shares(share, Some(&Role::Worker))
        }),
    }
}

/// What was left out to keep the cost down.
fn shed(session: &Session) -> Vec<String> {
    let untimed = session.calls_untimed_s();
    let part = untimed / session.duration_s().max(untimed);
    let at_last: &[String] = match &session.alloc.governor {
        Some(governor) => &governor.shed,
        None => &[],
    };
    // What was taken up again.
    let before = session.alloc.shed_ns.iter();
    let before = before
        .filter(|(name, ns)| !at_last.contains(name) && **ns > 0)
        .map(|(name, ns)| {
            (
                name,
                format!("{name}: for {:.0} s, not at last", *ns as f64 / 1e9),
            )
        });
    (untimed > 0.0)
        .then(|| {
            format!(
                "call-latencies: a sample, beginnings of calls were hidden {:.1} % of the time",
                part * 100.0
            )
        })
        .into_iter()
        .chain(
            at_last
                .iter()
                .map(|name| (name, name.clone()))
                .chain(before)
                .filter(|(name, _)| *name != SHED_CALLS)
                .map(|(_, told)| told),
        )
        .chain((session.uncounted.seconds() > 0.0).then(|| {
            format!(
                "calls: counted {:.0} % of the time, so that numbers of files, calls and bytes are estimates",
                session.calls_counted_share() * 100.0
            )
        }))
        .collect()
}

fn cost(session: &Session) -> Cost {
    let cost = session.cost;
    let spin_ns = session.spin_cost.and_then(|cost| cost.bpf_ns);
    let governor = session.alloc.governor.as_ref();
    // Where the kernel never counted, what the governor knows of the probes is an estimate, or (in recordings of before) nothing.
    let counted = cost.is_some_and(|c| c.bpf_ns.is_some());
    Cost {
        slowdown_estimate_pct: cost
            .filter(|c| c.counted_ns >= MIN_COUNTED_NS)
            .and_then(|c| Some((c.bpf_ns?, c.host_busy_ns.filter(|busy| *busy > 0)?)))
            .map(|(bpf, busy)| {
                // What the governor knows has what sampling and uprobes take too. Recordings of before may have none of it.
                let works = bpf
                    .saturating_sub(spin_ns.unwrap_or(0))
                    .max(governor.map_or(0, |g| g.probes_ns));
                round(works as f64 / busy as f64 * 100.0, 3)
            }),
        bpf_ns: cost.and_then(|c| c.bpf_ns),
        bpf_runs: cost.and_then(|c| c.bpf_runs),
        bpf_spin_ns: spin_ns,
        collector_cpu_s: cost.map(|c| seconds(c.collector_cpu_ns)),
        start_cpu_s: session.start_cost_ns.map(seconds),
        collector_rss_max_bytes: cost.map(|c| c.collector_rss_max_bytes),
        attach_s: session.start.as_ref().map(|start| seconds(start.attach_ns)),
        shed: shed(session),
        budget: governor.map(|g| round(g.budget, 6)),
        spent_share: governor
            .filter(|g| g.job_ns > 0 && (counted || g.probes_ns > 0))
            .map(|g| {
                // Recordings of before tell nothing of the start.
                let start_ns = session.start_cost_ns.unwrap_or(0);
                let spent = start_ns + g.probes_ns + g.own_ns + g.windows_ns;
                round(spent as f64 / g.job_ns as f64, 6)
            }),
        estimated: !counted && governor.is_some_and(|g| g.probes_ns > 0),
        windows: alloc::window_cost(session),
    }
}
