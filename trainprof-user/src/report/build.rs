//! From a session to its report.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{loss::Loss, op::Class, thread::WakerKind};

use super::{
    Shown, alloc, gpu,
    io::{self, round},
    memory::memory,
    model::{
        Cost, Coverage, Faults, Host, Job, Missing, ProcessRow, Report, RssBytes, SCHEMA, Shares,
        StorageBytes, ThreadTime, Trainer, WaitRow, Waker, Workers,
    },
    why,
};
use crate::{
    analysis::{
        Analysis, analyse,
        walk::{Leaf, What},
    },
    record::{alloc::SHED_CALLS, fact::StopReason},
    session::{
        Process, Session, Thread, WaitId, WaitTotal,
        kind::{WaitKind, syscall_name, wait_kind},
        roles::{Role, Share, leading_thread, roles, share},
    },
    time::seconds,
};

/// Waits that are listed for one thread.
const WAITS_SHOWN: usize = 12;

/// Run time of the probes that was counted for less than this (ns) says too little: a job works in bursts.
const MIN_COUNTED_NS: u64 = 100_000_000;

/// Builds the report.
pub fn report(session: &Session, shown: Shown) -> Report {
    let analysis = analyse(session);
    let roles = match &analysis.trainer {
        Some(trainer) => trainer.cast.roles.clone(),
        None => roles(session),
    };
    Report {
        schema: SCHEMA,
        host: host(session),
        job: job(session, &roles),
        duration_s: round(session.duration_s(), 6),
        ended: session.stop.as_ref().map(|stop| match stop.reason {
            StopReason::Duration => "duration",
            StopReason::Interrupted => "interrupted",
            StopReason::JobEnded => "job-ended",
        }),
        coverage: coverage(session),
        steps: why::steps(&analysis),
        trainer: trainer(session, &roles, &analysis),
        workers: workers(session, &roles, &analysis),
        threads: threads(session, shown.top, &roles),
        gpu: gpu::gpu(session, &analysis),
        io: io::io(session, shown),
        memory: memory(session, shown.top),
        blame: why::blame(session, &analysis, shown.top),
        verdict: why::verdict(&analysis),
        findings: why::findings(&analysis),
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

fn job(session: &Session, roles: &BTreeMap<u32, Role>) -> Job {
    let pid = session
        .start
        .as_ref()
        .and_then(|start| start.targets.first().copied());
    let first = pid.and_then(|pid| session.processes.get(&pid));
    let facts = first.and_then(|process| process.seen.facts.as_ref());
    Job {
        pid,
        command: facts.map(|f| f.command.clone()).unwrap_or_default(),
        started: facts.and_then(|f| f.started_unix),
        cgroup: facts.and_then(|f| f.cgroup.clone()),
        frameworks: first.and_then(|process| process.seen.frameworks.clone()),
        processes: session
            .processes
            .values()
            .map(|process| process_row(session, process, roles))
            .collect(),
    }
}

fn process_row(session: &Session, process: &Process, roles: &BTreeMap<u32, Role>) -> ProcessRow {
    let threads: Vec<&Thread> = session
        .threads
        .values()
        .filter(|thread| thread.pid == process.pid)
        .collect();
    let counters = || threads.iter().filter_map(|thread| thread.counters);
    let seen = counters().next().is_some();
    let facts = process.seen.facts.as_ref();
    let leading = leading_thread(session, process.pid);
    ProcessRow {
        pid: process.pid,
        start_time: facts.map(|f| f.start_time_ticks),
        parent: process.parent,
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
        cpu_s: seconds(threads.iter().map(|thread| thread.run_ns).sum()),
        io: io::traffic(session, Some(process.pid)),
        faults: seen.then(|| Faults {
            minor: counters().map(|c| c.minor_faults).sum(),
            major: counters().map(|c| c.major_faults).sum(),
        }),
        storage: (seen && storage_is_counted(session)).then(|| StorageBytes {
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

/// Kernels without task I/O accounting (CONFIG_TASK_IO_ACCOUNTING) do not count bytes of storage.
fn storage_is_counted(session: &Session) -> bool {
    ["task_read_bytes", "task_write_bytes"]
        .iter()
        .all(|name| session.has_kernel_member(name))
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
        calls_counted_share: calls_counted(session),
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
        refine(&mut share, found);
    }
    Some(Trainer {
        pid,
        tid: thread.key.tid,
        share,
    })
}

/// Without anything to walk: the trainer that used most CPU time.
fn first_trainer(session: &Session, roles: &BTreeMap<u32, Role>) -> Option<u32> {
    let cpu = |pid: &u32| {
        session
            .threads
            .values()
            .filter(|t| t.pid == *pid)
            .map(|t| t.run_ns)
            .sum::<u64>()
    };
    roles
        .iter()
        .filter(|(_, role)| **role == Role::Trainer)
        .map(|(pid, _)| *pid)
        .max_by_key(cpu)
}

/// What only the walk can tell apart: waits for loader threads among those for own threads, and waits for the
/// GPU among running and waiting.
fn refine(share: &mut Shares, found: &crate::analysis::Trainer) {
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
    if !found.cast.loader_threads.is_empty() {
        let fed = sum(&|leaf: &Leaf| {
            leaf.next()
                .is_some_and(|tid| found.cast.loader_threads.contains(&tid))
        });
        let moved = fed.min(share.lock_wait);
        share.data_wait = round(share.data_wait + moved, 6);
        share.lock_wait = round(share.lock_wait - moved, 6);
    }
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

/// Threads by the CPU time that they used or wanted, and by their identity.
fn threads(session: &Session, top: usize, roles: &BTreeMap<u32, Role>) -> Vec<ThreadTime> {
    let mut threads: Vec<&Thread> = session.threads.values().collect();
    threads.sort_by_key(|t| (std::cmp::Reverse(t.run_ns + t.runnable_ns()), t.key));
    threads.truncate(top.max(1));
    threads
        .into_iter()
        .map(|thread| thread_time(session, thread, roles))
        .collect()
}

fn thread_time(session: &Session, thread: &Thread, roles: &BTreeMap<u32, Role>) -> ThreadTime {
    let leads = leading_thread(session, thread.pid).is_some_and(|leader| leader.key == thread.key);
    let role = if leads { roles.get(&thread.pid) } else { None };
    let present = thread.present_ns(session.until);
    let seen = thread.run_ns + thread.wait_ns() + thread.runnable_ns();
    ThreadTime {
        role: role.copied().unwrap_or(Role::Helper).name(),
        pid: thread.pid,
        tid: thread.key.tid,
        name: thread.name.clone(),
        present_s: seconds(present),
        on_cpu_s: seconds(thread.run_ns),
        runnable_s: seconds(thread.runnable_ns()),
        wait_s: seconds(thread.wait_ns()),
        unseen_s: seconds(present.saturating_sub(seen)),
        waits: waits(session, thread),
    }
}

/// A futex that was waited on no more often than this is one of many, such as that of a thread's end: what counts is whose they are.
const PASSING: u64 = 2;

/// A thread's longest waits, those that read alike put together.
fn waits(session: &Session, thread: &Thread) -> Vec<WaitRow> {
    type Alike = (WaitKind, i16, Option<String>, u8, u32, bool);
    let mut alike = BTreeMap::<Alike, WaitTotal>::new();
    for (id, total) in &thread.waits {
        let kind = wait_kind(id);
        if kind == WaitKind::None {
            continue;
        }
        let passing = kind == WaitKind::Futex && total.count <= PASSING;
        let key = if passing {
            let process = session.thread(id.waker.tid).map(|thread| thread.pid);
            let waker = process.unwrap_or(id.waker.tid);
            (kind, id.nr, None, id.waker.kind, waker, true)
        } else {
            let object = object(session, id, kind);
            (kind, id.nr, object, id.waker.kind, id.waker.tid, false)
        };
        let sum = alike.entry(key).or_default();
        sum.count += total.count;
        sum.wait_ns += total.wait_ns;
        sum.runnable_ns += total.runnable_ns;
        sum.max_ns = sum.max_ns.max(total.max_ns);
    }
    let mut rows: Vec<(Alike, WaitTotal)> = alike.into_iter().collect();
    rows.sort_by(|a, b| b.1.wait_ns.cmp(&a.1.wait_ns).then_with(|| a.0.cmp(&b.0)));
    rows.truncate(WAITS_SHOWN);
    rows.into_iter()
        .map(
            |((kind, nr, object, waker_kind, waker, passing), total)| WaitRow {
                kind: kind.name(),
                syscall: syscall_name(nr),
                object,
                seconds: seconds(total.wait_ns),
                runnable_s: seconds(total.runnable_ns),
                count: total.count,
                max_s: seconds(total.max_ns),
                waker: Waker {
                    tid: (!passing && waker != 0).then_some(waker),
                    ..describe_waker(session, waker_kind, waker)
                },
            },
        )
        .collect()
}

fn object(session: &Session, id: &WaitId, kind: WaitKind) -> Option<String> {
    if let Some(fileset) = session.filesets.get(&id.object.fileset) {
        return fileset.directory.clone();
    }
    match Class::try_from(id.object.class) {
        Ok(Class::Pipe) => Some(format!("pipe:[{}]", id.object.id)),
        Ok(Class::Socket) => Some(format!("socket:[{}]", id.object.id)),
        _ if kind == WaitKind::Futex && id.object.id != 0 => Some(format!("{:#x}", id.object.id)),
        _ => None,
    }
}

fn describe_waker(session: &Session, kind: u8, tid: u32) -> Waker {
    let kind = match WakerKind::try_from(kind) {
        Ok(WakerKind::Thread | WakerKind::Sender) => "thread",
        Ok(WakerKind::Interrupt | WakerKind::Softirq) => "interrupt",
        Ok(WakerKind::Kernel) => "kernel",
        Ok(WakerKind::Unknown) | Err(_) => "unknown",
    };
    let inside = session
        .thread(tid)
        .map(|thread| (Some(thread.pid), Some(thread.name.clone())));
    let (pid, name) = inside
        .or_else(|| session.outsiders.get(&tid).cloned())
        .unwrap_or_default();
    Waker {
        kind,
        pid,
        tid: (tid != 0).then_some(tid),
        name,
    }
}

/// Part (0–1) of the watch in which all system calls were counted.
fn calls_counted(session: &Session) -> f64 {
    let uncounted = session.uncounted.seconds();
    1.0 - uncounted / session.duration_s().max(uncounted).max(f64::MIN_POSITIVE)
}

/// What was left out to keep the cost down.
fn shed(session: &Session) -> Vec<String> {
    let untimed = session.calls_untimed_s();
    let part = untimed / session.duration_s().max(untimed);
    (untimed > 0.0)
        .then(|| {
            format!(
                "call-latencies: a sample, beginnings of calls were hidden {:.1} % of the time",
                part * 100.0
            )
        })
        .into_iter()
        .chain(
            session
                .alloc
                .governor
                .iter()
                .flat_map(|governor| governor.shed.clone())
                .filter(|shed| shed != SHED_CALLS),
        )
        .chain((session.uncounted.seconds() > 0.0).then(|| {
            format!(
                "calls: counted {:.0} % of the time, so that numbers of files, calls and bytes are estimates",
                calls_counted(session) * 100.0
            )
        }))
        .collect()
}

fn cost(session: &Session) -> Cost {
    let cost = session.cost;
    let spin_ns = session.spin_cost.and_then(|cost| cost.bpf_ns);
    let governor = session.alloc.governor.as_ref();
    Cost {
        slowdown_estimate_pct: cost
            .filter(|c| c.counted_ns >= MIN_COUNTED_NS)
            .and_then(|c| Some((c.bpf_ns?, c.host_busy_ns.filter(|busy| *busy > 0)?)))
            .map(|(bpf, busy)| {
                let works = bpf.saturating_sub(spin_ns.unwrap_or(0));
                round(works as f64 / busy as f64 * 100.0, 3)
            }),
        bpf_ns: cost.and_then(|c| c.bpf_ns),
        bpf_runs: cost.and_then(|c| c.bpf_runs),
        bpf_spin_ns: spin_ns,
        collector_cpu_s: cost.map(|c| seconds(c.collector_cpu_ns)),
        collector_rss_max_bytes: cost.map(|c| c.collector_rss_max_bytes),
        attach_s: session.start.as_ref().map(|start| seconds(start.attach_ns)),
        shed: shed(session),
        budget: governor.map(|g| round(g.budget, 6)),
        spent_share: governor.filter(|g| g.job_ns > 0).map(|g| {
            let spent = g.probes_ns + g.own_ns + g.windows_ns;
            round(spent as f64 / g.job_ns as f64, 6)
        }),
        windows: alloc::window_cost(session),
    }
}
