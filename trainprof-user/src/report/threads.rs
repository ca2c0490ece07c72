//! Where the time of each thread went, its waits and its files.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{op::Class, thread::WakerKind};

use super::{
    io::{by_operation, round, traffic},
    latency::Timed,
    model::{Operations, ThreadIo, ThreadTime, Traffic, WaitRow, Waker},
};
use crate::{
    session::{
        Id, Session, Thread, WaitId, WaitTotal,
        kind::{WaitKind, syscall_name, wait_kind},
        roles::{Role, leading_thread},
    },
    time::seconds,
};

/// Waits that are listed for one thread.
const WAITS_SHOWN: usize = 12;

/// A thread of the trainer's own that makes batches, or passes on those that workers made (a pinning thread).
const LOADER: &str = "loader";

/// Who is what.
pub struct Roles<'a> {
    pub processes: &'a BTreeMap<u32, Role>,
    /// Threads of trainers through which batches come, each behind its process.
    pub loaders: &'a BTreeSet<(u32, u32)>,
}

/// Threads by the CPU time that they used or wanted, and by their identity; the trainer's among them, however little it used.
pub fn threads(
    session: &Session,
    top: usize,
    cast: &Roles,
    trainer: Option<Id>,
) -> Vec<ThreadTime> {
    let mut threads: Vec<&Thread> = session.threads.values().collect();
    threads.sort_by_key(|t| (std::cmp::Reverse(t.run_ns + t.runnable_ns()), t.key));
    keep(&mut threads, top, |t| {
        Some(t.key.tid) == trainer.map(|tid| tid.0)
    });
    let timed = Timed::of(session);
    threads
        .into_iter()
        .map(|thread| thread_time(session, thread, cast, &timed))
        .collect()
}

/// Keeps the first `top` rows, at least one; in place of the last of them one that always stays, if it is not among them.
pub fn keep<T: Copy>(rows: &mut Vec<T>, top: usize, stays: impl Fn(&T) -> bool) {
    let last = top.max(1) - 1;
    if let Some(at) = rows.iter().position(stays)
        && at > last
    {
        rows[last] = rows[at];
    }
    rows.truncate(last + 1);
}

fn thread_time(session: &Session, thread: &Thread, cast: &Roles, timed: &Timed<'_>) -> ThreadTime {
    let leads = leading_thread(session, thread.pid).is_some_and(|leader| leader.key == thread.key);
    let role = if leads {
        cast.processes.get(&thread.pid).map(|role| role.name())
    } else if cast.loaders.contains(&(thread.pid, thread.key.tid)) {
        Some(LOADER)
    } else {
        None
    };
    let operations = by_operation(session, thread.files.ops.iter());
    let present = thread.present_ns(session.until);
    let seen = thread.run_ns + thread.wait_ns() + thread.runnable_ns();
    ThreadTime {
        role: role.unwrap_or(Role::Helper.name()),
        pid: Id(thread.pid),
        tid: Id(thread.key.tid),
        name: thread.name.clone(),
        present_s: seconds(present),
        on_cpu_s: seconds(thread.run_ns),
        runnable_s: seconds(thread.runnable_ns()),
        wait_s: seconds(thread.wait_ns()),
        wait_s_by_kind: waits_by_kind(thread),
        unseen_s: seconds(present.saturating_sub(seen)),
        io: session
            .sees_files()
            .then(|| thread_io(&operations, &traffic(session, thread.files.ops.iter()))),
        operations,
        latency_us: timed.of_thread(thread),
        waits: waits(session, thread, WAITS_SHOWN),
    }
}

fn thread_io(operations: &BTreeMap<&'static str, Operations>, traffic: &Traffic) -> ThreadIo {
    let seconds_in = |names: &[&str]| {
        let of = names.iter().filter_map(|name| operations.get(name));
        round(of.filter_map(|sum| sum.seconds).sum(), 9)
    };
    ThreadIo {
        opens: operations.get("open").map_or(0, |sum| sum.count),
        reads: traffic.reads,
        bytes_read: traffic.bytes_read,
        bytes_written: traffic.bytes_written,
        meta_s: seconds_in(&["open", "stat", "getdents", "close"]),
        read_s: seconds_in(&["read", "copy"]),
        write_s: seconds_in(&["write", "fsync", "rename"]),
    }
}

/// All of a thread's waiting, seconds, by its kind.
pub fn waits_by_kind(thread: &Thread) -> BTreeMap<&'static str, f64> {
    let mut ns = BTreeMap::<WaitKind, u64>::new();
    for (id, total) in &thread.waits {
        *ns.entry(wait_kind(id)).or_default() += total.wait_ns;
    }
    let waited = ns.into_iter().filter(|(_, ns)| *ns > 0);
    waited
        .map(|(kind, ns)| (kind.name(), seconds(ns)))
        .collect()
}

/// A futex that was waited on no more often than this is one of many, such as that of a thread's end: what counts is whose they are.
const PASSING: u64 = 2;

/// A thread's longest waits, `most` at most, those that read alike put together.
pub fn waits(session: &Session, thread: &Thread, most: usize) -> Vec<WaitRow> {
    type Alike = (WaitKind, i16, Option<String>, u8, u32, bool);
    let mut alike = BTreeMap::<Alike, WaitTotal>::new();
    // A server's threads, each of which answers some of the calls, are one waker.
    let mut servers = BTreeMap::<u32, u32>::new();
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
            let server = outside(session, thread, id.waker.tid).filter(|_| kind == WaitKind::File);
            let waker = server.map_or(id.waker.tid, |pid| {
                *servers.entry(pid).or_insert(id.waker.tid)
            });
            (kind, id.nr, object, id.waker.kind, waker, server.is_some())
        };
        let sum = alike.entry(key).or_default();
        sum.count += total.count;
        sum.wait_ns += total.wait_ns;
        sum.runnable_ns += total.runnable_ns;
        sum.iowait_ns += total.iowait_ns;
        sum.max_ns = sum.max_ns.max(total.max_ns);
    }
    let mut rows: Vec<(Alike, WaitTotal)> = alike.into_iter().collect();
    rows.sort_by(|a, b| b.1.wait_ns.cmp(&a.1.wait_ns).then_with(|| a.0.cmp(&b.0)));
    rows.truncate(most);
    rows.into_iter()
        .map(
            |((kind, nr, object, waker_kind, waker, by_process), total)| WaitRow {
                kind: kind.name(),
                syscall: syscall_name(nr),
                object,
                seconds: seconds(total.wait_ns),
                runnable_s: seconds(total.runnable_ns),
                count: total.count,
                iowait_s: seconds(total.iowait_ns),
                max_s: seconds(total.max_ns),
                waker: Waker {
                    tid: (!by_process && waker != 0).then_some(Id(waker)),
                    ..describe_waker(session, waker_kind, waker)
                },
            },
        )
        .collect()
}

/// The process of a waker, where it is known and another one than the thread's.
fn outside(session: &Session, thread: &Thread, waker: u32) -> Option<u32> {
    let inside = session.thread(waker).map(|waker| waker.pid);
    let pid = inside.or_else(|| session.outsiders.get(&waker)?.0)?;
    (pid != thread.pid).then_some(pid)
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
        pid: pid.map(Id),
        tid: (tid != 0).then_some(Id(tid)),
        name,
    }
}
