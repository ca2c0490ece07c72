//! Who is who, from who hands what to whom. Names are no evidence.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::thread::WakerKind;

use super::{
    Session, Thread,
    kind::{WaitKind, wait_kind},
};

/// The part that a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Consumes batches and computes.
    Trainer,
    /// Makes batches for a trainer.
    Worker,
    /// Neither: launchers, resource trackers.
    Helper,
}

impl Role {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Worker => "worker",
            Self::Helper => "helper",
        }
    }
}

/// A descendant has handed over work when it ended so many of an ancestor's waits.
const MIN_HAND_OVERS: u64 = 3;

/// The role of every process.
///
/// A worker ends waits of one of its ancestors, on a pipe, a socket, a poll set or a futex, again and again;
/// that ancestor is a trainer. Without any such pair, the process that used most CPU time is the trainer.
pub fn roles(session: &Session) -> BTreeMap<u32, Role> {
    let mut roles: BTreeMap<u32, Role> = session
        .processes
        .keys()
        .map(|pid| (*pid, Role::Helper))
        .collect();
    let mut fed = BTreeSet::new();
    for ((from, to), count) in hand_overs(session) {
        if count >= MIN_HAND_OVERS && is_ancestor(session, to, from) {
            roles.insert(from, Role::Worker);
            fed.insert(to);
        }
    }
    // A worker that is itself fed by its children is still a worker.
    for pid in fed {
        if roles.get(&pid) != Some(&Role::Worker) {
            roles.insert(pid, Role::Trainer);
        }
    }
    if !roles.values().any(|role| *role == Role::Trainer)
        && let Some(busiest) = busiest_process(session)
    {
        roles.insert(busiest, Role::Trainer);
    }
    roles
}

/// How many waits of one process another one ended: (from, to) → count.
pub fn hand_overs(session: &Session) -> BTreeMap<(u32, u32), u64> {
    let mut out = BTreeMap::new();
    for thread in session.threads.values() {
        for (id, total) in &thread.waits {
            let handed = matches!(
                wait_kind(id),
                WaitKind::Pipe
                    | WaitKind::Socket
                    | WaitKind::Poll
                    | WaitKind::Futex
                    | WaitKind::Other
            );
            if handed
                && let Some(from) = waker_process(session, id.waker.kind, id.waker.tid)
                && from != thread.pid
            {
                *out.entry((from, thread.pid)).or_default() += total.count;
            }
        }
    }
    out
}

/// Process of a waker that woke on purpose and belongs to the job.
pub fn waker_process(session: &Session, kind: u8, tid: u32) -> Option<u32> {
    let on_purpose = kind == WakerKind::Thread as u8 || kind == WakerKind::Sender as u8;
    if on_purpose {
        session.thread(tid).map(|thread| thread.pid)
    } else {
        None
    }
}

fn is_ancestor(session: &Session, ancestor: u32, pid: u32) -> bool {
    let mut at = pid;
    for _ in 0..64 {
        let Some(process) = session.processes.get(&at) else {
            return false;
        };
        if process.parent == ancestor {
            return true;
        }
        at = process.parent;
    }
    false
}

fn busiest_process(session: &Session) -> Option<u32> {
    let mut cpu = BTreeMap::<u32, u64>::new();
    for thread in session.threads.values() {
        *cpu.entry(thread.pid).or_default() += thread.run_ns;
    }
    cpu.into_iter()
        .max_by_key(|(pid, ns)| (*ns, std::cmp::Reverse(*pid)))
        .map(|(pid, _)| pid)
}

/// The thread that a process's time is told by: its main thread, or, when that did nothing but wait for the
/// process to end, the one that used most CPU time.
pub fn leading_thread(session: &Session, pid: u32) -> Option<&Thread> {
    let threads = || session.threads.values().filter(|thread| thread.pid == pid);
    let busiest = threads().max_by_key(|thread| thread.run_ns)?;
    let main = threads()
        .filter(|thread| thread.key.tid == pid)
        .max_by_key(|thread| thread.run_ns);
    match main {
        Some(main) if main.run_ns.saturating_mul(20) >= busiest.run_ns => Some(main),
        _ => Some(busiest),
    }
}

/// How a thread's time was spent, as shares (0–1) of the time that it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    pub on_cpu: f64,
    pub runnable: f64,
    /// Waiting for a process of the job that makes batches.
    pub data_wait: f64,
    /// Waiting for files, page faults or a device.
    pub io_wait: f64,
    /// Waiting for another thread of the same process.
    pub lock_wait: f64,
    /// Waiting for another trainer.
    pub comm_wait: f64,
    pub other_wait: f64,
    /// A worker's wait for its trainer to take or to ask for batches.
    pub slot_wait: f64,
}

/// Splits a thread's time.
pub fn share(session: &Session, thread: &Thread, roles: &BTreeMap<u32, Role>) -> Share {
    let present = thread.present_ns(session.until).max(1) as f64;
    let mut out = Share {
        on_cpu: thread.run_ns as f64 / present,
        runnable: thread.runnable_ns() as f64 / present,
        ..Share::default()
    };
    let own = roles.get(&thread.pid).copied();
    for (id, total) in &thread.waits {
        let part = total.wait_ns as f64 / present;
        let from = waker_process(session, id.waker.kind, id.waker.tid);
        let from_role = from.and_then(|pid| roles.get(&pid).copied());
        match (wait_kind(id), from) {
            (WaitKind::File | WaitKind::Fault | WaitKind::Device, _) => out.io_wait += part,
            (_, Some(pid)) if pid == thread.pid => out.lock_wait += part,
            (_, Some(_)) if own == Some(Role::Trainer) && from_role == Some(Role::Worker) => {
                out.data_wait += part
            }
            (_, Some(_)) if own == Some(Role::Worker) && from_role == Some(Role::Trainer) => {
                out.slot_wait += part
            }
            (_, Some(_)) if own == Some(Role::Trainer) && from_role == Some(Role::Trainer) => {
                out.comm_wait += part
            }
            _ if total.iowait_ns * 2 > total.wait_ns => out.io_wait += part,
            _ => out.other_wait += part,
        }
    }
    out
}
