//! Processes of the job that are neither trainer nor worker: what they are there for, as far as who waits for them tells.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    cast::Cast,
    facts::{Facts, is_on_purpose},
    polling::is_polled,
};
use crate::session::{
    MIN_STATE_BYTES, Session,
    kind::{WaitKind, wait_kind},
    roles::{MIN_BYTES_PER_S, Role, alike, for_room, is_ancestor, keeps_state, takes_output},
};

/// Hand-overs that show a pattern.
const MIN_HAND_OVERS: u64 = 3;

/// What such a process is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Workers, or the step thread, take from it what batches are made of.
    Input,
    /// It writes files at the pace of a checkpoint.
    State,
    /// It hands nothing to the other processes, or to others of these alone: no step needs it.
    Apart,
    /// The others wait for it, and what for is not known.
    Other,
}

/// Trainers, workers, and whoever hands something to one of these: not those that hand things to each other alone, as the processes of
/// another program do.
fn needed(
    handed: &BTreeMap<(u32, u32), u64>,
    roles: &BTreeMap<u32, Role>,
    trainer: u32,
) -> BTreeSet<u32> {
    let others = roles.iter().filter(|(_, role)| **role != Role::Helper);
    let mut needed: BTreeSet<u32> = others.map(|(pid, _)| *pid).collect();
    needed.insert(trainer);
    loop {
        let before = needed.len();
        for (from, to) in handed.keys() {
            if needed.contains(to) {
                needed.insert(*from);
            }
        }
        if needed.len() == before {
            return needed;
        }
    }
}

/// By process id.
pub struct Helpers(BTreeMap<u32, Task>);

impl Helpers {
    pub fn new(facts: &Facts, cast: &Cast) -> Self {
        let session = facts.session;
        let handed = hand_overs(facts);
        let to = |pid: u32, whom: &dyn Fn(u32) -> bool| -> u64 {
            let to_whom = handed.range((pid, 0)..=(pid, u32::MAX));
            to_whom
                .filter(|((_, to), _)| whom(*to))
                .map(|(_, n)| n)
                .sum()
        };
        let needed = needed(&handed, &cast.roles, cast.trainer);
        let written = written(session);
        let task = |pid: u32| {
            let below_worker = cast
                .workers
                .iter()
                .any(|worker| is_ancestor(session, *worker, pid));
            let feeds = to(pid, &|to| to == cast.trainer || cast.workers.contains(&to));
            if !below_worker && keeps_state(session, cast.trainer, pid) {
                return Task::State;
            }
            if !below_worker && takes_output(session, cast.trainer, pid) {
                return Task::Other;
            }
            if below_worker || feeds >= MIN_HAND_OVERS {
                return Task::Input;
            }
            let (bytes, run_ns) = written.get(&pid).copied().unwrap_or_default();
            let rate = bytes as f64 / (run_ns as f64 / 1e9).max(1e-3);
            if bytes >= MIN_STATE_BYTES && rate >= MIN_BYTES_PER_S {
                Task::State
            } else if to(pid, &|to| needed.contains(&to)) >= MIN_HAND_OVERS {
                Task::Other
            } else {
                Task::Apart
            }
        };
        let helps = |pid: &u32| {
            cast.roles.get(pid) == Some(&Role::Helper)
                && *pid != cast.trainer
                && !is_twin(session, cast.trainer, *pid)
        };
        let pids: Vec<u32> = cast.roles.keys().copied().filter(helps).collect();
        let mut tasks: BTreeMap<u32, Task> = pids.into_iter().map(|pid| (pid, task(pid))).collect();
        // What one run of a program is there for, all of them are.
        let started = |pid: &u32| {
            let process = session.processes.get(pid)?;
            Some((process.parent, &process.seen.facts.as_ref()?.command))
        };
        let savers: BTreeSet<_> = tasks
            .iter()
            .filter(|(_, task)| **task == Task::State)
            .filter_map(|(pid, _)| started(pid))
            .collect();
        for (pid, task) in &mut tasks {
            if matches!(task, Task::Apart | Task::Other)
                && started(pid).is_some_and(|started| savers.contains(&started))
            {
                *task = Task::State;
            }
        }
        Self(tasks)
    }

    /// `None`: a trainer, a worker, or another rank that shows itself in nothing else.
    pub fn task(&self, pid: u32) -> Option<Task> {
        self.0.get(&pid).copied()
    }

    /// Threads of those that no step needs.
    pub fn threads_apart(&self, session: &Session) -> BTreeSet<u32> {
        let threads = session.threads.values();
        threads
            .filter(|thread| self.task(thread.pid) == Some(Task::Apart))
            .map(|thread| thread.key.tid)
            .collect()
    }
}

/// Whether a process runs the trainer's own command beside it: another rank.
fn is_twin(session: &Session, trainer: u32, pid: u32) -> bool {
    alike(session, trainer, pid)
        && !is_ancestor(session, trainer, pid)
        && !is_ancestor(session, pid, trainer)
}

/// How often one process ended waits of another on what work is handed over by.
fn hand_overs(facts: &Facts) -> BTreeMap<(u32, u32), u64> {
    let mut out = BTreeMap::new();
    for thread in facts.session.threads.values() {
        for (id, total) in &thread.waits {
            let handed = matches!(
                wait_kind(id),
                WaitKind::Pipe | WaitKind::Socket | WaitKind::Poll | WaitKind::Futex
            );
            if handed
                && !for_room(id.nr)
                && is_on_purpose(id.waker.kind)
                && let Some(pid) = facts.pid(id.waker.tid)
                && pid != thread.pid
            {
                *out.entry((pid, thread.pid)).or_default() += total.count;
            }
        }
    }
    for (tid, items) in facts.waiting_threads() {
        for item in items.iter().filter(|item| is_polled(item)) {
            if let (Some(from), Some(to)) = (facts.pid(item.waker.tid), facts.pid(tid)) {
                *out.entry((from, to)).or_default() += 1;
            }
        }
    }
    out
}

/// Bytes that each process wrote to files, and its CPU time in ns.
fn written(session: &Session) -> BTreeMap<u32, (u64, u64)> {
    let mut out = BTreeMap::<u32, (u64, u64)>::new();
    for thread in session.threads.values() {
        let (bytes, run_ns) = out.entry(thread.pid).or_default();
        *bytes += thread.activity.file_write_bytes;
        *run_ns += thread.run_ns;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hands_things_only_to_others_of_its_program_is_not_needed() {
        // 2 works for 1, 4 for 3 for 2; 6 and 7 for 5, which nobody hears.
        let roles = (1..=7).map(|pid| match pid {
            1 => (pid, Role::Trainer),
            2 => (pid, Role::Worker),
            _ => (pid, Role::Helper),
        });
        let handed = [(2, 1), (3, 2), (4, 3), (6, 5), (7, 5), (5, 6)].map(|pair| (pair, 9));
        let needed = needed(&handed.into(), &roles.collect(), 1);
        assert_eq!(needed, BTreeSet::from([1, 2, 3, 4]));
    }
}
