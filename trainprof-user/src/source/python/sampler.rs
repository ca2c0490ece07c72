//! Whose stack is read next, and who is looked at for a Python.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Codes, Heard, Program, find::Unknown, numbers::Numbers, process::Process};
use crate::{
    env::process,
    record::{
        Record,
        fact::{PySampleFact, PyThreadSampleFact},
    },
    source::own,
};

/// A process's stack is read once in this time, as long as there are few; stacks of all are this far apart on average at least.
const PERIOD: Duration = Duration::from_millis(40);
const APART: Duration = Duration::from_millis(10);
/// Stacks read in one turn: most of what one costs is that nothing which is needed for it is in a cache any more.
const BATCH: u32 = 4;
/// Processes whose stacks are read, with an open file each. Beyond these they would be read less than once in two seconds.
const MAX_SAMPLED: usize = 256;
/// A process without a Python is looked at again after this long, and ever more rarely.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(64);
/// So many failures in a row say that the process is another program by now, or that it is not what it seems.
const MAX_FAILURES: u32 = 50;
/// Different reasons that are told.
const MAX_REASONS: usize = 8;

/// See the module.
#[derive(Default)]
pub struct Sampler {
    processes: BTreeMap<u32, Watched>,
    numbers: Numbers,
    reasons: BTreeSet<String>,
    /// Whose turn it was.
    last: u32,
    /// The last turn was for looking at a process.
    looked: bool,
}

struct Watched {
    /// Of [`Program`].
    number: u64,
    /// Once its Python is known.
    process: Option<Process>,
    look_at: Instant,
    pause: Duration,
    /// Busy threads beside the main one, with what the process calls them itself; whose turn comes next is the last.
    others: Vec<(u32, u32)>,
}

impl Watched {
    fn later(&mut self, now: Instant) {
        self.look_at = now + self.pause;
        self.pause = (self.pause * 2).min(LOOK_AGAIN_MAX);
    }
}

impl Sampler {
    /// These processes, in the order of their ids, are alive now, and no others.
    pub fn set(&mut self, programs: &[Program], now: Instant) {
        self.processes.retain(|pid, watched| {
            programs
                .binary_search_by_key(pid, |program| program.pid)
                .is_ok_and(|found| programs[found].number == watched.number)
        });
        for program in programs {
            if self.processes.contains_key(&program.pid) {
                continue;
            }
            let parent = program.parent.filter(|_| self.sampled() < MAX_SAMPLED);
            let process = parent
                .and_then(|parent| self.processes.get(&parent)?.process.as_ref())
                .and_then(|parent| parent.forked(program.pid));
            let watched = Watched {
                number: program.number,
                process,
                look_at: now,
                pause: LOOK_AGAIN,
                others: Vec::new(),
            };
            self.processes.insert(program.pid, watched);
        }
    }

    /// Threads beside the main ones that were busy of late, by their processes.
    pub fn set_busy(&mut self, busy: &BTreeMap<u32, Vec<u32>>) {
        for (pid, watched) in &mut self.processes {
            let now = busy.get(pid).map_or(&[][..], Vec::as_slice);
            let before = std::mem::take(&mut watched.others);
            let called = |tid: &u32| {
                let known = before.iter().find(|(other, _)| other == tid);
                let called = known.map(|(_, called)| *called);
                Some((*tid, called.or_else(|| process::called_inside(*pid, *tid))?))
            };
            watched.others = now.iter().filter_map(called).collect();
        }
    }

    fn sampled(&self) -> usize {
        let sampled = |watched: &&Watched| watched.process.is_some();
        self.processes.values().filter(sampled).count()
    }

    /// How long until the next turn.
    pub fn pause(&self, now: Instant) -> Duration {
        let unknown = self.processes.values().filter(|w| w.process.is_none());
        match u32::try_from(self.sampled()) {
            Ok(0) => unknown
                .map(|watched| watched.look_at.saturating_duration_since(now))
                .min()
                .unwrap_or(LOOK_AGAIN)
                .clamp(APART, LOOK_AGAIN),
            Ok(sampled) => (PERIOD / sampled).max(APART) * sampled.min(BATCH),
            Err(_) => APART * BATCH,
        }
    }

    /// Reads some stacks, or looks at one process, in turns where there is both to do.
    pub fn turn(&mut self, now: Instant, out: &mut Vec<Heard>) {
        let due = |watched: &Watched| watched.process.is_none() && watched.look_at <= now;
        let unknown = self.processes.iter().find(|(_, watched)| due(watched));
        let unknown = unknown.map(|(pid, _)| *pid);
        let sampled = self.sampled();
        let look = unknown.filter(|_| !self.looked || sampled == 0);
        self.looked = look.is_some();
        if let Some(pid) = look {
            return self.look(pid, now, out);
        }
        for _ in 0..sampled.min(BATCH as usize) {
            if let Some(pid) = self.next() {
                self.sample(pid, now, out);
            }
        }
    }

    fn next(&self) -> Option<u32> {
        let mut sampled = self
            .processes
            .iter()
            .filter(|(_, watched)| watched.process.is_some())
            .map(|(pid, _)| *pid);
        let first = sampled.next()?;
        let after = std::iter::once(first)
            .chain(sampled)
            .find(|pid| *pid > self.last);
        Some(after.unwrap_or(first))
    }

    fn look(&mut self, pid: u32, now: Instant, out: &mut Vec<Heard>) {
        let room = self.sampled() < MAX_SAMPLED;
        let Some(watched) = self.processes.get_mut(&pid) else {
            return;
        };
        // One that has just begun may not have mapped all of it.
        let first = watched.pause == LOOK_AGAIN;
        watched.later(now);
        match Process::open(pid, now) {
            Ok(found) => watched.process = found.filter(|_| room),
            Err(reason) if !first => self.tell(&reason, out),
            Err(_) => {}
        }
    }

    fn sample(&mut self, pid: u32, now: Instant, out: &mut Vec<Heard>) {
        self.last = pid;
        let Some(watched) = self.processes.get_mut(&pid) else {
            return;
        };
        let Some(process) = &mut watched.process else {
            return;
        };
        let runtime = process.runtime(pid).map(Record::PyRuntime);
        let at = own::now();
        let stack = process.sample(now, &mut self.numbers);
        let sample = stack.map(|stack| Record::PySample(PySampleFact { at, pid, stack }));
        let mut samples: Vec<Record> = sample.into_iter().collect();
        // The next one that runs Python: most busy threads are a library's own.
        for _ in 0..watched.others.len() {
            watched.others.rotate_right(1);
            let (tid, called) = watched.others[0];
            let at = own::now();
            if let Some(stack) = process.sample_other(called, now, &mut self.numbers) {
                samples.push(Record::PyThreadSample(PyThreadSampleFact {
                    at,
                    tid,
                    stack,
                }));
                break;
            }
        }
        let records = runtime.into_iter().chain(self.numbers.new.drain(..));
        out.extend(records.chain(samples).map(Heard::from));
        let program = watched.number;
        let moved = process.moved();
        out.extend(moved.map(|thread| Heard::Thread {
            pid,
            program,
            thread,
        }));
        if process.failures >= MAX_FAILURES {
            let never = !process.followed;
            watched.process = None;
            watched.later(now);
            if never {
                self.tell(&Unknown::Stacks, out);
            }
        }
    }

    /// Records which functions of Python a page fault came from.
    pub fn resolve(&mut self, codes: &Codes, out: &mut Vec<Heard>) {
        let watched = self.processes.get_mut(&codes.pid);
        let Some(process) = watched.and_then(|watched| watched.process.as_mut()) else {
            return;
        };
        let stack = process.stack_of(&codes.codes, &mut self.numbers);
        let fact = stack.map(|stack| codes.of.answer(stack));
        let records = self.numbers.new.drain(..).chain(fact);
        out.extend(records.map(Heard::from));
    }

    /// Records why a process is left alone, once for each reason.
    fn tell(&mut self, reason: &Unknown, out: &mut Vec<Heard>) {
        let reason = reason.to_string();
        if self.reasons.len() < MAX_REASONS && self.reasons.insert(reason.clone()) {
            let what = "python-stacks".to_owned();
            out.push(Record::Missing { what, reason }.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_without_a_python_are_looked_at_ever_more_rarely() {
        let begin = Instant::now();
        let mut sampler = Sampler::default();
        assert_eq!(sampler.pause(begin), LOOK_AGAIN);
        let program = |number| Program {
            pid: std::process::id(),
            number,
            parent: None,
        };
        sampler.set(&[program(1)], begin);
        let mut out = Vec::new();
        let mut looks = |sampler: &mut Sampler, from: u64| {
            let mut looks = 0;
            for second in from..from + 40 {
                let now = begin + Duration::from_secs(second);
                let before = sampler.processes[&std::process::id()].look_at;
                sampler.turn(now, &mut out);
                let after = sampler.processes[&std::process::id()].look_at;
                looks += u32::from(before != after);
            }
            looks
        };
        // After 0, 1, 3, 7, 15 and 31 seconds.
        assert_eq!(looks(&mut sampler, 0), 6);
        // Another program: all anew.
        sampler.set(&[program(2)], begin + Duration::from_secs(40));
        assert_eq!(looks(&mut sampler, 40), 6);
        sampler.set(&[], begin);
        assert!(sampler.processes.is_empty());
        assert!(out.is_empty(), "it has no Python: {out:?}");
    }

    #[test]
    fn each_reason_is_told_once() {
        let mut sampler = Sampler::default();
        let mut out = Vec::new();
        for file in ["python3", "python3", "python"] {
            sampler.tell(&Unknown::Version(file.to_owned()), &mut out);
        }
        assert_eq!(out.len(), 2);
        for n in 0..2 * MAX_REASONS {
            sampler.tell(&Unknown::Version(n.to_string()), &mut out);
        }
        assert_eq!(out.len(), MAX_REASONS);
    }
}
