//! Who is who, from who hands what to whom. Names are no evidence.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
};

use trainprof_common::{arch, thread::WakerKind};

use super::{
    MIN_STATE_BYTES, Session, Thread, WRITTEN,
    kind::{WaitKind, is_aio, wait_kind},
    passing,
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

/// Hand-overs that show a pattern.
const MIN_HAND_OVERS: u64 = 3;
/// A process that uses less than this share of one CPU, and sends nothing to those that it hears from, only
/// listens to them: a launcher that reads a log.
const LISTENER: f64 = 0.01;
/// Of processes that nothing is handed between, the one nearest the root with at least this share of the CPU
/// time of the busiest one is the trainer; where some drive a GPU, of those.
const MIN_OF_BUSIEST: f64 = 0.2;
/// A process with so much of one CPU works.
const BUSY: f64 = 0.2;

/// Processes that exchange gradients send each other at least so many bytes a second through sockets, and one gets at most so many
/// times what it gives. A worker gives far more than it gets.
const MIN_EXCHANGED_PER_S: f64 = 1e6;
const MOST_UNEVEN: u64 = 2;

/// Trees are no deeper than this: processes whose ids were used again may be above each other.
const DEEPEST: usize = 64;

/// Calls that wait for the other side to take what is written.
const WRITES: [&str; 7] = [
    "write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile",
];

/// Calls that wait for another process to begin, or to end: nothing is handed over by that.
const OF_PROCESSES: [&str; 5] = ["vfork", "clone", "clone3", "wait4", "waitid"];

/// Who sends so many bytes hands over a batch, however seldom.
const BATCH_BYTES: u64 = 64 << 10;

/// Whether a wait was for room: who takes what a thread writes gives it that, and nothing else.
pub fn for_room(nr: i16) -> bool {
    WRITES.contains(&arch::syscall_name(nr).unwrap_or(""))
}

/// The role of every process.
///
/// A worker gives to one of its ancestors, which is its trainer: it ends that one's waits on a pipe, a socket, a
/// poll set or a futex, again and again, or, when the trainer never waits, has its own waits for work ended by
/// it. Trainers that are not above each other and end each other's waits are ranks; so are processes that are, when they give each
/// other about as much, and those that look for each other's messages without sleeping. Who is given state to write it to files is no worker, and who gives to a program that only collects, below a trainer that works
/// and has nothing to do with it, is that one's. Without any of this, the process that uses the CPU is the trainer,
/// of those that drive a GPU where there are any.
pub fn roles(session: &Session) -> BTreeMap<u32, Role> {
    let mut roles: BTreeMap<u32, Role> = session
        .processes
        .keys()
        .map(|pid| (*pid, Role::Helper))
        .collect();
    let handed = hand_overs(session);
    let count = |from: u32, to: u32| handed.get(&(from, to)).copied().unwrap_or(0);
    let traffic = |pid: u32| Traffic::of(session, pid);
    let on_gpu = LazyCell::new(|| gpu_users(session));
    let sends = |pid: u32| traffic(pid).sent > 0;
    let hears = |pid: u32| traffic(pid).received > 0;
    let mut fed = BTreeSet::new();
    let mut written_for = BTreeSet::new();
    let mut ranks = BTreeSet::new();
    let pairs: BTreeSet<(u32, u32)> = handed
        .keys()
        .flat_map(|(a, b)| [(*a, *b), (*b, *a)])
        .filter(|(below, above)| is_ancestor(session, *above, *below))
        .collect();
    for (below, above) in pairs {
        let gives = count(below, above) >= MIN_HAND_OVERS
            || count(below, above) > 0 && hears(above) && traffic(below).sent >= BATCH_BYTES;
        let asked = count(above, below) >= MIN_HAND_OVERS && sends(below) && hears(above);
        let listens = count(above, below) == 0
            && !sends(above)
            && cpu_share(session, above) < LISTENER
            && cpu_share(session, below) > LISTENER
            && !on_gpu.contains(&above);
        // A server whose child trains: a notebook's.
        let serves = trains(session, below)
            && !trains(session, above)
            && !forked(session, above, below)
            && cpu_share(session, above) < MIN_OF_BUSIEST * cpu_share(session, below);
        // A program that a trainer started beside its own work, and neither asks nor hears.
        let beside = cpu_share(session, above) < LISTENER
            && !on_gpu.contains(&above)
            && ancestors(session, above).any(|trainer| {
                trains(session, trainer)
                    && cpu_share(session, trainer) >= BUSY
                    && count(trainer, above) + count(above, trainer) < MIN_HAND_OVERS
            });
        if takes_output(session, above, below) {
            written_for.insert(above);
        } else if gives
            && count(above, below) >= MIN_HAND_OVERS
            && [above, below]
                .iter()
                .all(|pid| exchanges(session, *pid, |_| true))
        {
            // A rank that made the other ones.
            ranks.extend([above, below]);
        } else if (gives || asked)
            && !(listens || serves || beside)
            && !keeps_state(session, above, below)
        {
            roles.insert(below, Role::Worker);
            fed.insert(above);
        }
    }
    // A worker that is itself fed by its children is still a worker.
    for pid in fed {
        if roles.get(&pid) != Some(&Role::Worker) {
            roles.insert(pid, Role::Trainer);
        }
    }
    for (a, b) in handed.keys() {
        let apart = a < b && !is_ancestor(session, *a, *b) && !is_ancestor(session, *b, *a);
        let both = count(*a, *b) >= MIN_HAND_OVERS && count(*b, *a) >= MIN_HAND_OVERS;
        let no_workers = roles.get(a) != Some(&Role::Worker) && roles.get(b) != Some(&Role::Worker);
        if apart && both && no_workers && alike(session, *a, *b) {
            ranks.extend([*a, *b]);
        }
    }
    ranks.extend(message_passers(session, &roles));
    for pid in ranks {
        roles.insert(pid, Role::Trainer);
    }
    if !roles.values().any(|role| *role == Role::Trainer)
        && let Some(pid) = written_for
            .into_iter()
            .find(|pid| trains(session, *pid))
            .or_else(|| computing_process(session, &on_gpu))
    {
        roles.insert(pid, Role::Trainer);
    }
    roles
}

/// Bytes of state that are written in a second of CPU time at least: less is a log.
pub const MIN_BYTES_PER_S: f64 = 5e6;

/// Whether a process is there to write the state of one above it to files: it gives next to nothing of what it writes to anybody, and
/// where it hears so much, it is from that one. (Who fetches a data set and keeps copies of it hears that from elsewhere.)
pub fn keeps_state(session: &Session, above: u32, below: u32) -> bool {
    let (mut read, mut written, mut run_ns) = (0, 0, 0);
    for thread in session.threads_of(below) {
        read += thread.activity.file_read_bytes + thread.activity.fault_bytes;
        written += thread.activity.file_write_bytes;
        run_ns += thread.run_ns;
    }
    let of = |pid: u32| Traffic::of(session, pid);
    let heard = of(below).received;
    written >= MIN_STATE_BYTES
        && written > WRITTEN * (read + of(below).sent)
        && written as f64 >= MIN_BYTES_PER_S * run_ns as f64 / 1e9
        && (heard * 2 < written || of(above).sent * 2 >= heard)
}

/// Who hears so many bytes, and sends at most so many to anybody, takes what others give. A loader's worker that hears the numbers of
/// samples says where each batch is: a few hundred bytes.
const MIN_TAKEN_BYTES: u64 = 1 << 20;
const MOST_SAID_BYTES: u64 = 1 << 10;

/// Whether a process is there for what one above it puts out: a log, a dump, what is to be written. It hears much from that one, and
/// says next to nothing.
pub fn takes_output(session: &Session, above: u32, below: u32) -> bool {
    let of = |pid: u32| Traffic::of(session, pid);
    let heard = of(below).received;
    heard >= MIN_TAKEN_BYTES && of(below).sent <= MOST_SAID_BYTES && of(above).sent * 2 >= heard
}

/// Bytes that a process sent to others and received from them, through pipes and sockets.
#[derive(Clone, Copy, Default)]
struct Traffic {
    sent: u64,
    received: u64,
}

impl Traffic {
    fn of(session: &Session, pid: u32) -> Self {
        let mut out = Self::default();
        for thread in session.threads_of(pid) {
            let activity = &thread.activity;
            out.sent += activity.pipe_write_bytes + activity.socket_write_bytes;
            out.received += activity.pipe_read_bytes + activity.socket_read_bytes;
        }
        out
    }
}

/// Whether threads of a process, all that are `own`, give and get much through sockets, about as much of each.
pub fn exchanges(session: &Session, pid: u32, own: impl Fn(u32) -> bool) -> bool {
    let (mut read, mut written) = (0_u64, 0_u64);
    for thread in session.threads_of(pid).filter(|thread| own(thread.key.tid)) {
        read += thread.activity.socket_read_bytes;
        written += thread.activity.socket_write_bytes;
    }
    let (less, more) = (read.min(written), read.max(written));
    less as f64 >= MIN_EXCHANGED_PER_S * session.duration_s() && more <= MOST_UNEVEN * less
}

/// Ranks that pass messages without sleeping: who looks for these, and who works and does the same job, and is no worker; each beside
/// another one.
fn message_passers(session: &Session, roles: &BTreeMap<u32, Role>) -> BTreeSet<u32> {
    let looking = passing::processes(session);
    let mut all: BTreeSet<u32> = roles
        .iter()
        .filter(|(_, role)| **role != Role::Worker && !looking.is_empty())
        .map(|(pid, _)| *pid)
        .filter(|pid| {
            cpu_share(session, *pid) >= BUSY
                && looking
                    .iter()
                    .any(|other| pid == other || alike(session, *other, *pid))
        })
        .collect();
    let working = all.clone();
    all.retain(|pid| {
        !working
            .iter()
            .any(|above| is_ancestor(session, *above, *pid))
    });
    let alone = |pid: &u32| {
        !all.iter()
            .any(|other| other != pid && alike(session, *other, *pid))
    };
    let alone: BTreeSet<u32> = all.iter().copied().filter(alone).collect();
    &all - &alone
}

/// CPU time of a process as a share of the watch; more than 1 with several threads.
fn cpu_share(session: &Session, pid: u32) -> f64 {
    let run: u64 = session.threads_of(pid).map(|thread| thread.run_ns).sum();
    run as f64 / 1e9 / session.duration_s().max(1e-9)
}

/// Whether a process has a framework for training loaded.
fn trains(session: &Session, pid: u32) -> bool {
    session
        .processes
        .get(&pid)
        .and_then(|process| process.seen.frameworks.as_ref())
        .is_some_and(|loaded| loaded.trains())
}

/// Processes that drive a GPU: what such a one hears is for that, however little it runs itself.
fn gpu_users(session: &Session) -> BTreeSet<u32> {
    let calls = session
        .history
        .segments()
        .flat_map(|segment| &segment.calls);
    let callers: BTreeSet<u32> = calls.map(|call| call.tid).collect();
    // The driver knows whose contexts there are, also where no call was probed.
    let listed = session.gpu.processes.keys().map(|(_, pid)| *pid);
    callers
        .into_iter()
        .filter_map(|tid| Some(session.thread(tid)?.pid))
        .chain(listed)
        .collect()
}

/// Whether two processes run the same command: a fork that executed nothing, whose parent may have loaded its libraries since it
/// was looked at.
fn forked(session: &Session, a: u32, b: u32) -> bool {
    let command = |pid: u32| Some(&session.processes.get(&pid)?.seen.facts.as_ref()?.command);
    match (command(a), command(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Whether two processes do the same job: children of one parent, or the same program.
pub fn alike(session: &Session, a: u32, b: u32) -> bool {
    let (Some(a), Some(b)) = (session.processes.get(&a), session.processes.get(&b)) else {
        return false;
    };
    let program = |process: &super::Process| {
        process
            .seen
            .facts
            .as_ref()
            .map(|facts| facts.command.iter().take(2).cloned().collect::<Vec<_>>())
    };
    match (program(a), program(b)) {
        (Some(a), Some(b)) => a == b,
        // Who executed something that nobody could look at has its name.
        _ if a.executed || b.executed => a.parent == b.parent && a.name == b.name,
        _ => a.parent == b.parent,
    }
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
            let name = arch::syscall_name(id.nr).unwrap_or("");
            if handed
                && !for_room(id.nr)
                && !OF_PROCESSES.contains(&name)
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

/// The processes above another one in the tree, nearest first.
fn ancestors(session: &Session, pid: u32) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| session.processes.get(pid).map(|process| process.parent);
    std::iter::successors(parent(&pid), parent).take(DEEPEST)
}

/// Whether one process is above another in the tree.
pub fn is_ancestor(session: &Session, ancestor: u32, pid: u32) -> bool {
    ancestors(session, pid).any(|above| above == ancestor)
}

/// The process that computes: nearest the root of those that use the CPU much. Who has the GPU compute may use far less of it than
/// others, so that these do not count where some process drives a GPU.
fn computing_process(session: &Session, on_gpu: &BTreeSet<u32>) -> Option<u32> {
    let mut cpu = BTreeMap::<u32, u64>::new();
    for thread in session.threads.values() {
        *cpu.entry(thread.pid).or_default() += thread.run_ns;
    }
    let depth = |pid: u32| {
        ancestors(session, pid)
            .filter(|above| cpu.contains_key(above))
            .count()
    };
    let no_gpu = cpu.keys().all(|pid| !on_gpu.contains(pid));
    let candidates = || {
        cpu.iter()
            .map(|(pid, ns)| (*pid, *ns))
            .filter(|(pid, _)| no_gpu || on_gpu.contains(pid))
    };
    let most = candidates().map(|(_, ns)| ns).max()?;
    if most as f64 / 1e9 < LISTENER * session.duration_s() {
        // Nobody works: whoever would.
        return candidates()
            .map(|(pid, _)| pid)
            .min_by_key(|pid| (!trains(session, *pid), depth(*pid), *pid));
    }
    candidates()
        .filter(|(_, ns)| *ns as f64 >= MIN_OF_BUSIEST * most as f64)
        .min_by_key(|(pid, ns)| (depth(*pid), std::cmp::Reverse(*ns), *pid))
        .map(|(pid, _)| pid)
}

/// A main thread that others of its process let go on so often in a second, and that waits for them for so much (0–1) of its time,
/// takes what they bring.
const TAKEN_PER_S: f64 = 2.0;
/// A thread with so much (0–1) of its time on a CPU inside sched_yield(2) does nothing else: a call takes longer than the look for work
/// between two of them.
const YIELDS: f64 = 0.3;
const TAKING: f64 = 0.1;

/// The thread that a process's time is told by: its main thread, or, when that did nothing but wait for the
/// process to end, the one that used most CPU time. Waiting for the interpreter's lock, or again and again for another
/// thread while it is the one that calls a GPU, it would do something.
pub fn leading_thread(session: &Session, pid: u32) -> Option<&Thread> {
    let threads = || session.threads_of(pid);
    let mut by_time: Vec<&Thread> = threads().collect();
    by_time.sort_by_key(|thread| (std::cmp::Reverse(thread.run_ns), thread.key));
    let busiest = by_time
        .iter()
        .find(|thread| thread.key.tid == pid || !only_yields(session, thread.key.tid))?;
    let Some(main) = threads()
        .filter(|thread| thread.key.tid == pid)
        .max_by_key(|thread| thread.run_ns)
    else {
        // It had ended before the watch began, and others go on.
        return Some(busiest);
    };
    let locked: u64 = main
        .waits
        .iter()
        .filter(|(id, _)| session.python.lock(pid, &id.object).is_some())
        .map(|(_, total)| total.wait_ns)
        .sum();
    let runs = (main.run_ns + locked).saturating_mul(20) >= busiest.run_ns;
    // What a thread takes from the one that computes may also be news of its steps; who calls the GPU works with it.
    let works = || gpu_calls(session, main.key.tid) > gpu_calls(session, busiest.key.tid);
    Some(if runs || takes(session, main) && works() {
        main
    } else {
        busiest
    })
}

/// Whether a thread runs only to give the CPU up again and again, as those of libraries for linear algebra do while they have nothing to
/// do: by its clock samples.
fn only_yields(session: &Session, tid: u32) -> bool {
    let samples = session
        .history
        .segments()
        .flat_map(|segment| &segment.samples)
        .filter(|sample| sample.tid == tid);
    let (mut yields, mut all) = (0, 0);
    for sample in samples {
        all += 1;
        yields += usize::from(arch::syscall_name(sample.nr) == Some("sched_yield"));
    }
    all > 0 && yields as f64 >= YIELDS * all as f64
}

fn gpu_calls(session: &Session, tid: u32) -> usize {
    let calls = session
        .history
        .segments()
        .flat_map(|segment| &segment.calls);
    calls.filter(|call| call.tid == tid).count()
}

/// Whether a thread waits for other threads of its process again and again.
fn takes(session: &Session, thread: &Thread) -> bool {
    let (mut count, mut ns) = (0, 0);
    for (id, total) in &thread.waits {
        let own = id.waker.kind == WakerKind::Thread as u8
            && id.waker.tid != thread.key.tid
            && session
                .thread(id.waker.tid)
                .is_some_and(|waker| waker.pid == thread.pid);
        if own && wait_kind(id) == WaitKind::Futex {
            count += total.count;
            ns += total.wait_ns;
        }
    }
    let present = thread.present_ns(session.until) as f64;
    count as f64 >= TAKEN_PER_S * present / 1e9 && ns as f64 >= TAKING * present
}

/// How a thread's time was spent, as shares (0–1) of the time that it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    pub on_cpu: f64,
    pub runnable: f64,
    /// Waiting for a process of the job that makes batches.
    pub data_wait: f64,
    /// Waiting for files, page faults or a device; a page fault's wait for the memory map that another thread of the process
    /// holds is in `lock_wait`.
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
            // Of the memory map that they share.
            (WaitKind::Fault, Some(pid)) if pid == thread.pid && id.object.fileset == 0 => {
                out.lock_wait += part
            }
            (WaitKind::File | WaitKind::Fault | WaitKind::Device, _) => out.io_wait += part,
            (WaitKind::Uring, None) if is_aio(id.nr) => out.io_wait += part,
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
