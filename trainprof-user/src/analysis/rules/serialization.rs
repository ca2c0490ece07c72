//! One thread or lock that the others wait for.

use serde_json::json;
use trainprof_common::thread::WakerKind;

use super::{
    Answer, Evidence, Look,
    look::{self, clip, rounded},
    one_at_a_time,
};
use crate::{
    analysis::{
        Kind,
        facts::is_on_purpose,
        locks::Lock,
        running::{locks_files, split_of},
        timeline::{Item, line},
        walk::What,
        words,
    },
    session::{
        Id, WaitId,
        kind::{WaitKind, wait_kind},
    },
};

const KIND: Kind = Kind::Serialization;
/// A thread with so much (0–1) of all waiting for a lock is the one that waits.
const ONE_SIDED: f64 = 0.9;
/// Threads that run the interpreter for this part (0–1) of their time hold its lock in what they run.
const INTERPRETS: f64 = 0.5;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let locks = look.top(KIND, |share| share.detail.lock);
        if let Some((id, _)) = locks.first()
            && let Some(lock) = look.analysis.locks.get(id)
        {
            let per_s = lock.hand_overs as f64 / (look.trainer.wall / 1e9);
            let threads = lock.threads.len();
            let waited: u64 = lock.waited.values().sum();
            let there = present_s(look, lock).max(1e-9);
            let waiting = waited as f64 / 1e9 / there;
            let at_a_time = there / look.session.duration_s().max(1e-9);
            evidence.insert("threads", json!(threads));
            evidence.insert("hand_overs_per_s", rounded(per_s));
            evidence.insert("waiting_share", rounded(waiting));
            let one = one_at_a_time::share(look, |tid, item| {
                lock.threads.contains(&tid)
                    && item.kind() == WaitKind::Futex
                    && line(&item.object) == id.line
            });
            evidence.insert("one_at_a_time_share", rounded(one));
            let gil = lock.asks_again && has_python(look);
            let what = if gil {
                "the interpreter's lock (GIL)"
            } else if id.pid == 0 {
                "a lock shared by processes"
            } else {
                "one lock"
            };
            let tids: Vec<u32> = lock.threads.iter().copied().collect();
            let mostly = match gil {
                true => mostly_holds(look, &tids, evidence),
                false => String::new(),
            };
            let summary = match one_sided(lock) {
                Some(waiter) => format!(
                    "thread {} waits for {what} {} of the time, while {} {} it{mostly}",
                    Id(waiter),
                    words::percent(waited as f64 / look.trainer.wall),
                    words::list(&holders(look, lock, waiter)),
                    if threads == 2 { "has" } else { "have" },
                ),
                None => format!(
                    "{} take turns on {what}: each waits for it {} of the time, {per_s:.0} hand-overs a second; for {} of the time at most one of them can go on{mostly}",
                    of_these(at_a_time, threads),
                    words::percent(waiting),
                    words::percent(one)
                ),
            };
            let advice = if gil {
                "let processes do what these threads do (for batches: num_workers), or code that lets the lock go".to_owned()
            } else {
                let each = waited as f64 / 1e9 / lock.hand_overs.max(1) as f64;
                let own = match threads {
                    0..=2 => "what it guards in two, so that each has its own".to_owned(),
                    _ => format!("what it guards, so that each of the {threads} threads has a part with a lock of its own"),
                };
                let apart = match id.pid {
                    0 => "",
                    _ => ", or let processes do what these threads do: each has a lock of its own",
                };
                format!("hold the lock for less (who wants it waits {} each time), or split {own}{apart}", words::time(each))
            };
            return (summary, advice);
        }
        let feeder = look.top(KIND, |share| Some(share.detail.tid));
        let thread = feeder
            .first()
            .and_then(|(tid, _)| look.session.thread(*tid));
        let name = thread.map_or_else(
            || "one thread".to_owned(),
            |thread| format!("thread {} ({})", Id(thread.key.tid), thread.name),
        );
        let fed = |item: &Item| {
            is_on_purpose(item.waker.kind)
                && feeder.first().is_some_and(|(tid, _)| *tid == item.waker.tid)
        };
        if let Some(waits) = held_while_waiting(look) {
            let one = one_at_a_time::share(look, |tid, item| {
                tid == look.trainer.cast.step_tid
                    && item.kind() == WaitKind::Futex
                    && fed(item)
            });
            evidence.insert("one_at_a_time_share", rounded(one));
            return (
                format!(
                    "the trainer waits for a lock that {name} of its process has while it {waits}"
                ),
                "let that thread give the lock up before it waits".to_owned(),
            );
        }
        let places = look.places(KIND);
        if !places.is_empty() {
            let of_files = of_files(look);
            let one = one_at_a_time::share(look, |_, item| {
                if of_files {
                    locks_files(item.nr)
                } else {
                    in_kernel(&item.id())
                }
            });
            evidence.insert("one_at_a_time_share", rounded(one));
            if of_files {
                let summary = match outside(look) {
                    Some(process) => format!(
                        "{} waited for locks on files (fcntl, flock) in {} that {process}, has",
                        look.who(KIND),
                        words::list(&places)
                    ),
                    None => format!(
                        "threads of the job wait for each other's locks on files (fcntl, flock) in {}",
                        words::list(&places)
                    ),
                };
                return (
                    summary,
                    "hold these locks for less, lock parts that do not overlap, or give each process a file of its own".to_owned(),
                );
            }
            return (
                format!(
                    "threads of the job wait for each other inside the kernel, on {}",
                    words::list(&places)
                ),
                "spread these files over more directories or let one process write them".to_owned(),
            );
        }
        let one = one_at_a_time::share(look, |tid, item| {
            look.trainer.cast.producers.contains(&tid) && fed(item)
        });
        evidence.insert("one_at_a_time_share", rounded(one));
        let tids: Vec<u32> = feeder.first().iter().map(|(tid, _)| *tid).collect();
        let mostly = mostly_in(look, &tids, evidence);
        (
            format!(
                "all producers wait for {name}, which feeds them one after the other: for {} of the time at most one of them has anything to do{mostly}",
                words::percent(one)
            ),
            "split its work among the workers, or run several of it".to_owned(),
        )
    })
}

/// For how long, in seconds, threads that wait for a lock were there, all of them together.
fn present_s(look: &Look, lock: &Lock) -> f64 {
    let threads = lock.threads.iter();
    let present = threads
        .filter_map(|tid| look.session.thread(*tid))
        .map(|thread| thread.present_ns(look.session.until));
    present.sum::<u64>() as f64 / 1e9
}

/// How many threads there were, where so many were there at a time on average.
fn of_these(at_a_time: f64, threads: usize) -> String {
    let at_a_time = (at_a_time.round() as usize).clamp(threads.min(2), threads);
    if at_a_time == threads {
        format!("{threads} threads")
    } else {
        format!("some {at_a_time} threads at a time ({threads} in all)")
    }
}

/// The function of Python that has most of the interpreter's time, as the end of a sentence. Where that is not seen often enough, the one that
/// these threads run most of the time in, unless that is mostly no time of the interpreter's.
fn mostly_holds(look: &Look, tids: &[u32], evidence: &mut Evidence) -> String {
    let places = look.interpreted(tids);
    let most = places
        .first()
        .filter(|place| place.share >= look::MOST_OF_IT);
    let Some(most) = most else {
        let samples = tids.iter().flat_map(|tid| look.facts.samples(*tid));
        return if split_of(look.session, samples).interpreter >= INTERPRETS {
            mostly_in(look, tids, evidence)
        } else {
            String::new()
        };
    };
    evidence.insert("python", places.iter().map(look::python).collect());
    format!(
        "; most of what the interpreter runs there is in {}",
        most.name()
    )
}

/// The function of Python that these threads run most of the time in, as the end of a sentence.
fn mostly_in(look: &Look, tids: &[u32], evidence: &mut Evidence) -> String {
    let places = look.in_python(tids, None);
    if !places.is_empty() {
        evidence.insert("python", places.iter().map(look::python).collect());
    }
    let most = look.mostly_in_python(&places, tids, None);
    most.map_or_else(String::new, |place| {
        format!("; most of what is run there is in {}", place.name())
    })
}

/// The thread that does nearly all the waiting for a lock.
fn one_sided(lock: &Lock) -> Option<u32> {
    let all: u64 = lock.waited.values().sum();
    let (tid, most) = lock.waited.iter().max_by_key(|(_, ns)| **ns)?;
    (*most as f64 >= ONE_SIDED * all as f64).then_some(*tid)
}

/// The other threads, by name.
fn holders(look: &Look, lock: &Lock, waiter: u32) -> Vec<String> {
    let others = lock.threads.iter().filter(|tid| **tid != waiter);
    others
        .filter_map(|tid| look.session.thread(*tid))
        .map(|thread| format!("thread {} ({})", Id(thread.key.tid), thread.name))
        .collect()
}

/// Whether most of the waits inside the kernel, of all threads of the job, are in calls that lock files.
fn of_files(look: &Look) -> bool {
    let (mut locking, mut all) = (0, 0);
    for thread in look.session.threads.values() {
        for (id, total) in &thread.waits {
            if in_kernel(id) {
                all += total.wait_ns;
                if locks_files(id.nr) {
                    locking += total.wait_ns;
                }
            }
        }
    }
    locking * 2 > all
}

/// Whether a wait is for a thread, in a call for files or a page fault.
fn in_kernel(id: &WaitId) -> bool {
    id.waker.kind == WakerKind::Thread as u8
        && matches!(wait_kind(id), WaitKind::File | WaitKind::Fault)
}

/// The process outside the job that has them, where one has most.
fn outside(look: &Look) -> Option<String> {
    let ((pid, command), ns) = look.outsiders(KIND).into_iter().next()?;
    (ns * 2.0 >= look.trainer.ns(KIND)).then(|| {
        format!(
            "process {pid} ({}), outside the job",
            clip(&command.replace('\n', " "), 60)
        )
    })
}

/// What the thread that has the lock waits for meanwhile, where it does mostly that.
fn held_while_waiting(look: &Look) -> Option<&'static str> {
    let largest = look.parts(KIND).max_by(|a, b| a.ns.total_cmp(&b.ns))?;
    let (leaf, _) = &look.trainer.walked.leaves[largest.leaf as usize];
    if !matches!(leaf.hops.as_slice(), [hop] if hop.wait == WaitKind::Futex) {
        return None;
    }
    let What::Wait {
        nr, object, waker, ..
    } = leaf.what
    else {
        return None;
    };
    Some(match wait_kind(&WaitId { nr, object, waker }) {
        WaitKind::Sleep => "sleeps",
        _ => "writes to a file",
    })
}

fn has_python(look: &Look) -> bool {
    look.session
        .processes
        .get(&look.trainer.cast.trainer)
        .and_then(|process| process.seen.frameworks.as_ref())
        .is_some_and(|frameworks| frameworks.python.is_some())
}
