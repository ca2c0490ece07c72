//! Sampled stacks of Python programs: where the main thread of each process, and others that are busy, are, read from outside.
//!
//! A **thread of its own** ([`worker`]) reads memory of the processes (`/proc/PID/mem`) while they go on; nothing stops them, and
//! nothing is put into them. It holds nothing that the watch needs: a process that hangs, or a dead file system below a Python,
//! cannot hold the watch up. In parts: `find` (which Python, and where), `layout` and `stack` (pure), `process` (one process),
//! `sampler` (whose turn it is), `numbers` (records).

mod find;
mod layout;
mod numbers;
mod process;
mod sampler;
mod stack;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::python::PyThread;

use self::worker::Worker;
use crate::record::{
    Record,
    fact::{PyFaultFact, PyGpuMemoryFact},
};

/// A program that a process runs: another number, another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    pid: u32,
    number: u64,
    /// The process that it is a copy of.
    parent: Option<u32>,
}

/// What functions of Python are asked for, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Fault(u32),
    GpuMemory(u32),
}

impl Asked {
    fn answer(self, stack: u32) -> Record {
        match self {
            Self::Fault(fault) => Record::PyFault(PyFaultFact { fault, stack }),
            Self::GpuMemory(memory) => Record::PyGpuMemory(PyGpuMemoryFact { memory, stack }),
        }
    }
}

/// Code that was on the stack of a process's main thread when something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    pub of: Asked,
    pub pid: u32,
    /// Addresses, the innermost first.
    pub codes: Vec<u64>,
}

/// What the thread tells.
#[derive(Debug)]
enum Heard {
    Record(Box<Record>),
    /// Where the frames of a process's main thread are.
    Thread {
        pid: u32,
        /// Number of its [`Program`].
        program: u64,
        thread: PyThread,
    },
}

impl From<Record> for Heard {
    fn from(record: Record) -> Self {
        Self::Record(Box::new(record))
    }
}

/// See the module.
#[derive(Default)]
pub struct Pythons {
    worker: Option<Worker>,
    /// Starting the thread was tried.
    started: bool,
    programs: BTreeMap<u32, Program>,
    numbers: u64,
    /// What the thread was told last.
    told: Vec<Program>,
    /// Busy threads that it was told last.
    busy: BTreeMap<u32, Vec<u32>>,
    /// Main threads whose frames were found, by process, that were not handed out yet.
    threads: Vec<(u32, PyThread)>,
}

impl Pythons {
    /// A process was forked: it has its parent's program.
    pub fn forked(&mut self, parent: u32, child: u32) {
        self.begin(child, Some(parent));
    }

    /// A process executed another program.
    pub fn executed(&mut self, pid: u32) {
        self.begin(pid, None);
    }

    fn begin(&mut self, pid: u32, parent: Option<u32>) {
        self.numbers += 1;
        let number = self.numbers;
        let program = Program {
            pid,
            number,
            parent,
        };
        self.programs.insert(pid, program);
    }

    /// Takes the records that are there, and tells the thread who is alive (processes by thread). Starts it first: only after
    /// privileges were given up, so that it never has them.
    pub fn tick(&mut self, alive: &BTreeMap<u32, u32>, out: &mut Vec<Record>) {
        self.drain(out);
        let alive: BTreeSet<u32> = alive.values().copied().collect();
        self.programs.retain(|pid, _| alive.contains(pid));
        for pid in alive {
            if !self.programs.contains_key(&pid) {
                self.begin(pid, None);
            }
        }
        if !self.started {
            self.started = true;
            self.start(out);
        }
        let Some(worker) = &self.worker else {
            return;
        };
        if !self.programs.values().eq(&self.told) {
            let programs: Vec<_> = self.programs.values().copied().collect();
            if worker.tell(programs.clone()) {
                self.told = programs;
            }
        }
    }

    fn start(&mut self, out: &mut Vec<Record>) {
        match Worker::start() {
            Ok(worker) => self.worker = Some(worker),
            Err(error) => out.push(Record::Missing {
                what: "python-stacks".to_owned(),
                reason: format!("the thread that reads them could not be started: {error}"),
            }),
        }
    }

    /// From now on stacks of these threads, by process, are read beside those of the main ones.
    pub fn set_busy(&mut self, busy: BTreeMap<u32, Vec<u32>>) {
        if let Some(worker) = &self.worker
            && busy != self.busy
            && worker.tell_busy(busy.clone())
        {
            self.busy = busy;
        }
    }

    /// Stacks are read half as often from now on, or as often as ever.
    pub fn thin_out(&self, thin: bool) {
        if let Some(worker) = &self.worker {
            worker.thin_out(thin);
        }
    }

    /// Reads no stacks any more.
    pub fn stop(&mut self, out: &mut Vec<Record>) {
        self.drain(out);
        (self.worker, self.started) = (None, true);
    }

    /// Asks which functions of Python something came from; the answer is a record of its own.
    pub fn ask(&self, codes: Codes) {
        if let Some(worker) = &self.worker
            && !worker.ask(codes)
        {
            tracing::debug!("more stacks of Python programs than can be looked up");
        }
    }

    /// Main threads whose frames were found since the last time, by process.
    pub fn found(&mut self) -> Vec<(u32, PyThread)> {
        std::mem::take(&mut self.threads)
    }

    /// Takes the records that are there.
    pub fn drain(&mut self, out: &mut Vec<Record>) {
        let Some(worker) = &self.worker else { return };
        for heard in std::iter::from_fn(|| worker.heard().ok()) {
            match heard {
                Heard::Record(record) => out.push(*record),
                // What another program had there is of no use.
                Heard::Thread {
                    pid,
                    program,
                    thread,
                } => {
                    let now = self.programs.get(&pid);
                    if now.is_some_and(|now| now.number == program) {
                        self.threads.push((pid, thread));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_another_one_after_fork_and_exec() {
        let mut pythons = Pythons {
            started: true,
            ..Pythons::default()
        };
        let mut out = Vec::new();
        let mut tick = |pythons: &mut Pythons, alive: &[(u32, u32)]| {
            pythons.tick(&alive.iter().copied().collect(), &mut out);
            pythons.programs.values().copied().collect::<Vec<_>>()
        };
        let program = |pid, number, parent| Program {
            pid,
            number,
            parent,
        };
        let first = tick(&mut pythons, &[(10, 10), (11, 10)]);
        assert_eq!(first, [program(10, 1, None)]);
        pythons.forked(10, 20);
        let both = tick(&mut pythons, &[(10, 10), (20, 20)]);
        assert_eq!(both, [program(10, 1, None), program(20, 2, Some(10))]);
        pythons.executed(20);
        pythons.stop(&mut Vec::new());
        let last = tick(&mut pythons, &[(20, 20)]);
        assert_eq!(last, [program(20, 3, None)]);
    }
}
