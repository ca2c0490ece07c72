//! Which futexes are locks: those that several threads wait for and hand to each other.
//!
//! A condition variable has waiters on one side and wakers on the other; a lock's waiters are its wakers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use trainprof_common::thread::WakerKind;

use super::{
    facts::Facts,
    timeline::{Item, LINE, line},
};
use crate::session::kind::WaitKind;

/// Hand-overs that show a pattern.
const MIN_HAND_OVERS: u64 = 10;
/// A thread that waits less than this share of the time for a lock is not held up by it.
const MIN_SHARE: f64 = 0.02;
/// The same where waiters ask again after a time-out and hand over in both directions, as no queue's do.
const MIN_SHARE_ASKED: f64 = 0.002;
/// For two threads nothing but the balance tells a lock from a queue: both must wait at least this share.
const MIN_SHARE_OF_TWO: f64 = 0.10;

/// A wait that ended by a time-out of at most this long is one of those who ask again, though the wait after it may have been too
/// short to be seen: the holder gives the lock up at once when it is asked (CPython: 5 ms, `sys.getswitchinterval`).
const ASKS_WITHIN_NS: u64 = 20_000_000;

/// Wakes by one thread within this time are one broadcast.
const AT_ONCE_NS: u64 = 100_000;

/// Identity of a lock: address space and cache line. Locks shared by processes are known by their line alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    /// 0: shared by several processes.
    pub pid: u32,
    pub line: u64,
}

/// A contended lock.
#[derive(Clone, Debug)]
pub struct Lock {
    pub id: LockId,
    /// Threads that wait for it and hand it on.
    pub threads: BTreeSet<u32>,
    /// Nanoseconds that each of them waited for it.
    pub waited: BTreeMap<u32, u64>,
    pub hand_overs: u64,
    /// Its waiters ask again after a time-out, as CPython's do for its lock.
    pub asks_again: bool,
}

#[derive(Default)]
struct Seen {
    waited: BTreeMap<u32, u64>,
    edges: BTreeMap<(u32, u32), u64>,
    asked_again: u64,
    /// Short waits that timed out, with nothing seen after them.
    timed_out: u64,
    /// Who woke whom when, for wakes of several at once.
    wakes: Vec<(u64, u32)>,
}

/// A wake-up may be told so much later than what came of it.
const LATENESS_NS: u64 = 20_000;

/// Every contended lock in memory.
pub fn locks(facts: &Facts) -> BTreeMap<LockId, Lock> {
    let woke = woke(facts);
    let mut seen = HashMap::<LockId, Seen>::new();
    let mut shared = HashMap::<u64, Seen>::new();
    for (tid, items) in facts.waiting_threads() {
        let Some(pid) = facts.pid(tid) else { continue };
        let waits: Vec<&Item> = items
            .iter()
            .filter(|item| item.kind() == WaitKind::Futex)
            .collect();
        for (at, item) in waits.iter().enumerate() {
            let next = waits.get(at + 1);
            let at = line(&item.object);
            // It was woken, but somebody had taken the lock by then: the wait goes on. Who had it gives it back, to whoever else waits.
            let in_vain = next.is_some_and(|next| {
                line(&next.object) == at
                    && next.from.saturating_sub(item.to) <= AT_ONCE_NS
                    && !woke.within((at, tid), item.to, next.from + LATENESS_NS)
            });
            let by_thread = item.waker.kind == WakerKind::Thread as u8;
            let waker_pid = by_thread.then(|| facts.pid(item.waker.tid)).flatten();
            let seen = match waker_pid {
                Some(other) if other != pid => shared.entry(at).or_default(),
                _ => seen.entry(LockId { pid, line: at }).or_default(),
            };
            *seen.waited.entry(tid).or_default() += item.woken - item.from;
            seen.asked_again += u64::from(item.asked_again);
            let short = item.woken - item.from <= ASKS_WITHIN_NS;
            seen.timed_out += u64::from(short && item.timed_out());
            if waker_pid.is_some() && !in_vain {
                *seen.edges.entry((item.waker.tid, tid)).or_default() += 1;
                seen.wakes.push((item.woken, item.waker.tid));
            }
        }
    }
    let wall = facts.walkable_ns();
    let mut out: BTreeMap<LockId, Lock> = seen
        .into_iter()
        .filter_map(|(id, seen)| {
            let lock = if is_interpreters(facts, id) {
                interpreters_lock(id, &seen, wall)
            } else {
                lock(id, &seen, wall)
            };
            Some((id, lock?))
        })
        .collect();
    for (at, seen) in shared {
        let id = LockId { pid: 0, line: at };
        if let Some(lock) = lock(id, &seen, wall) {
            out.insert(id, lock);
        }
    }
    out
}

/// Whether a lock is that of its process's interpreter, known by its place.
pub fn is_interpreters(facts: &Facts, id: LockId) -> bool {
    let address = facts.session.python.lock_of(id.pid);
    address.is_some_and(|address| address >> LINE == id.line)
}

/// When each thread woke others that waited for a futex, by cache line and waker; in order.
struct Woke(HashMap<(u64, u32), Vec<u64>>);

impl Woke {
    fn within(&self, by: (u64, u32), from: u64, to: u64) -> bool {
        let Some(times) = self.0.get(&by) else {
            return false;
        };
        let first = times.partition_point(|at| *at < from);
        times.get(first).is_some_and(|at| *at <= to)
    }
}

fn woke(facts: &Facts) -> Woke {
    let mut out = HashMap::<(u64, u32), Vec<u64>>::new();
    for (_, items) in facts.waiting_threads() {
        let woken = |item: &&Item| {
            item.kind() == WaitKind::Futex && item.waker.kind == WakerKind::Thread as u8
        };
        for item in items.iter().filter(woken) {
            let by = (line(&item.object), item.waker.tid);
            out.entry(by).or_default().push(item.woken);
        }
    }
    out.values_mut().for_each(|times| times.sort_unstable());
    Woke(out)
}

/// The lock of an interpreter, known by its place in memory: nothing needs to be shown but that a thread is held up by it. One
/// that computes hardly waits for it at all, since it has it.
fn interpreters_lock(id: LockId, seen: &Seen, wall: u64) -> Option<Lock> {
    let wakers: BTreeSet<u32> = seen.edges.keys().map(|(waker, _)| *waker).collect();
    let waited = |tid: u32| seen.waited.get(&tid).copied().unwrap_or(0);
    let least = |share: f64| (wall as f64 * share) as u64;
    let threads: BTreeSet<u32> = seen
        .waited
        .keys()
        .chain(&wakers)
        .copied()
        .filter(|tid| wakers.contains(tid) || waited(*tid) >= least(MIN_SHARE_ASKED))
        .collect();
    let held_up = threads.iter().any(|tid| waited(*tid) >= least(MIN_SHARE));
    (held_up && threads.len() >= 2).then(|| Lock {
        id,
        waited: threads.iter().map(|tid| (*tid, waited(*tid))).collect(),
        threads,
        hand_overs: seen.edges.values().sum(),
        asks_again: true,
    })
}

fn lock(id: LockId, seen: &Seen, wall: u64) -> Option<Lock> {
    let least = |share: f64| (wall as f64 * share) as u64;
    let wakes = |tid: u32| -> u64 {
        seen.edges
            .iter()
            .filter(|((waker, _), _)| *waker == tid)
            .map(|(_, count)| count)
            .sum()
    };
    let all: u64 = seen.edges.values().sum();
    let asked = seen.asked_again + seen.timed_out;
    let asks_again = asked * 4 >= all;
    let share = if asks_again {
        MIN_SHARE_ASKED
    } else {
        MIN_SHARE
    };
    let threads: BTreeSet<u32> = seen
        .waited
        .iter()
        .filter(|(tid, waited)| **waited >= least(share) && wakes(**tid) > 0)
        .map(|(tid, _)| *tid)
        .collect();
    let inside: BTreeMap<(u32, u32), u64> = seen
        .edges
        .iter()
        .filter(|((a, b), _)| threads.contains(a) && threads.contains(b))
        .map(|(edge, count)| (*edge, *count))
        .collect();
    let hand_overs: u64 = inside.values().sum();
    if threads.len() < 2 || hand_overs < MIN_HAND_OVERS {
        return None;
    }
    // Of those that ask again, each takes it from the others and gives it to them.
    let long = threads
        .iter()
        .filter(|tid| seen.waited[tid] >= least(MIN_SHARE))
        .count();
    let given = |tid: u32| {
        inside
            .iter()
            .filter(|((a, _), _)| *a == tid)
            .map(|(_, n)| n)
            .sum::<u64>()
    };
    let taken = |tid: u32| {
        inside
            .iter()
            .filter(|((_, b), _)| *b == tid)
            .map(|(_, n)| n)
            .sum::<u64>()
    };
    let both_ways = threads.len() >= 2
        && long >= 1
        && threads.iter().all(|tid| {
            let (given, taken) = (given(*tid), taken(*tid));
            given.min(taken) * 10 >= given.max(taken)
        });
    let balanced = if asks_again && both_ways {
        // Waiters that hand on as well as take are at no barrier, even if one gives it up twice in a moment.
        true
    } else if wakes_several(&seen.wakes) {
        false
    } else if threads.len() == 2 {
        let waits: Vec<u64> = threads.iter().map(|tid| seen.waited[tid]).collect();
        let (low, high) = (waits[0].min(waits[1]), waits[0].max(waits[1]));
        low >= least(MIN_SHARE_OF_TWO) && low * 2 >= high
    } else {
        // A queue's hand-overs all begin or end at one thread; a lock goes round.
        let most = threads
            .iter()
            .map(|tid| {
                inside
                    .iter()
                    .filter(|((a, b), _)| a == tid || b == tid)
                    .map(|(_, count)| count)
                    .sum::<u64>()
            })
            .max()
            .unwrap_or(0);
        most * 100 < hand_overs * 95
    };
    balanced.then(|| Lock {
        id,
        waited: threads.iter().map(|tid| (*tid, seen.waited[tid])).collect(),
        threads,
        hand_overs,
        asks_again: asked * 4 >= hand_overs,
    })
}

/// Whether one waker often woke several threads at once: a barrier or a broadcast, no lock.
fn wakes_several(wakes: &[(u64, u32)]) -> bool {
    let mut wakes = wakes.to_vec();
    wakes.sort_unstable();
    let several = wakes
        .windows(2)
        .filter(|pair| pair[0].1 == pair[1].1 && pair[1].0 - pair[0].0 <= AT_ONCE_NS)
        .count();
    several * 5 >= wakes.len()
}

/// Every lock, by its identity.
pub type Locks = BTreeMap<LockId, Lock>;

/// Finds the lock that a futex wait is on.
pub fn lock_of<'a>(
    locks: &'a BTreeMap<LockId, Lock>,
    facts: &Facts,
    tid: u32,
    line: u64,
) -> Option<&'a Lock> {
    let pid = facts.pid(tid)?;
    locks
        .get(&LockId { pid, line })
        .or_else(|| locks.get(&LockId { pid: 0, line }))
        .filter(|lock| lock.threads.contains(&tid))
}
