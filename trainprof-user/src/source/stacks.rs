//! Call stacks: from what a probe copied of a thread's stack to functions' names.
//!
//! Programs mostly keep no frame pointers, so callers are found by their unwinding tables. That and the look-up of
//! names is the work of a thread of its own ([`worker`]): it reads files of the watched processes, through
//! `/proc/PID/root`, and a hung file system below them must not hold up the watch. A fact waits [`PATIENCE`] at most
//! for its stack, in a queue of bounded length; then it is recorded without one.

mod names;
mod unwind;
mod worker;

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use self::worker::{Answer, Frame, Named, Question, Trace, Worker};
use super::places::Places;
use crate::record::{
    Record,
    fact::{FrameFact, StackFact},
};

/// How long a fact waits for its stack: the names of a large library take a second or two.
const PATIENCE: Duration = Duration::from_secs(5);
/// Different frames and stacks that are told apart; what comes later has no stack.
const MAX_FRAMES: usize = 32_768;
const MAX_STACKS: usize = 16_384;

/// Makes a record once the number of its stack is known; 0 when it is not.
pub type Then = Box<dyn FnOnce(u32) -> Record>;

/// What is known of a thread's stack.
#[derive(Clone, Debug)]
pub enum Raw {
    /// Registers of user mode, and the bytes from the stack pointer on.
    Memory {
        ip: u64,
        sp: u64,
        bp: u64,
        data: Vec<u8>,
    },
    /// The addresses themselves, the innermost first: an instruction, then return addresses.
    #[cfg_attr(
        not(test),
        allow(
            dead_code,
            reason = "for probes that leave finding callers to the kernel"
        )
    )]
    Addresses(Vec<u64>),
}

impl Raw {
    fn ip(&self) -> u64 {
        match self {
            Self::Memory { ip, .. } => *ip,
            Self::Addresses(addresses) => addresses.first().copied().unwrap_or(0),
        }
    }
}

struct Waiting {
    pid: u32,
    until: Instant,
    then: Then,
}

/// See the module.
#[derive(Default)]
pub struct Stacks {
    worker: Option<Worker>,
    asked: u64,
    waiting: BTreeMap<u64, Waiting>,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    /// Modules that the worker knows.
    told: usize,
}

impl Stacks {
    /// Takes the stack of a thread of process `pid`. `then` makes the fact that it belongs to, which is recorded
    /// after the stack, now or at a later [`Self::settle`].
    pub fn add(
        &mut self,
        places: &mut Places,
        pid: u32,
        raw: Raw,
        then: Then,
        out: &mut Vec<Record>,
    ) {
        if self.worker.is_none() {
            self.worker = worker::start(places.tables())
                .inspect_err(|error| tracing::warn!(%error, "call stacks cannot be looked up"))
                .ok();
        }
        let Some(worker) = &mut self.worker else {
            return out.push(then(0));
        };
        let space = places.space(pid, raw.ip());
        let modules: Vec<_> = places.modules_from(self.told).collect();
        let told = self.told + modules.len();
        self.asked += 1;
        let question = Question {
            number: self.asked,
            pid,
            space,
            modules,
            trace: match raw {
                Raw::Memory { ip, sp, bp, data } => Trace::Memory { ip, sp, bp, data },
                Raw::Addresses(addresses) => Trace::Addresses(addresses),
            },
        };
        if !worker.ask(question) {
            return out.push(then(0));
        }
        self.told = told;
        self.waiting.insert(
            self.asked,
            Waiting {
                pid,
                until: Instant::now() + PATIENCE,
                then,
            },
        );
    }

    /// Records facts whose stacks are known by now. Waits for answers at most that long.
    pub fn settle(&mut self, patience: Duration, places: &mut Places, out: &mut Vec<Record>) {
        let until = Instant::now() + patience;
        while let Some(worker) = self.worker.as_mut().filter(|worker| worker.is_asked())
            && let Some(answer) = worker.answer(until.saturating_duration_since(Instant::now()))
        {
            self.take(answer, places, out);
        }
        let now = Instant::now();
        while let Some(first) = self.waiting.first_entry()
            && first.get().until <= now
        {
            let waiting = first.remove();
            out.push((waiting.then)(0));
        }
    }

    /// Records every fact that still waits.
    pub fn finish(&mut self, patience: Duration, places: &mut Places, out: &mut Vec<Record>) {
        self.settle(patience, places, out);
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            out.push((waiting.then)(0));
        }
    }

    fn take(&mut self, answer: Answer, places: &mut Places, out: &mut Vec<Record>) {
        let mut named: HashMap<Frame, Named> = answer.named.into_iter().collect();
        let mut frames = Vec::with_capacity(answer.frames.len());
        for frame in answer.frames {
            match self.frame(frame, named.remove(&frame), out) {
                Some(number) => frames.push(number),
                None => break,
            }
        }
        // Answers come in the order of the questions; one whose fact is recorded already still tells names.
        let Some(waiting) = self.waiting.remove(&answer.number) else {
            return;
        };
        if answer.unmapped {
            places.stale(waiting.pid);
        }
        let stack = self.stack(frames, answer.whole, out);
        out.push((waiting.then)(stack));
    }

    fn frame(&mut self, frame: Frame, named: Option<Named>, out: &mut Vec<Record>) -> Option<u32> {
        if let Some(number) = self.frames.get(&frame) {
            return Some(*number);
        }
        if self.frames.len() >= MAX_FRAMES {
            return None;
        }
        let number = self.frames.len() as u32 + 1;
        let named = named.unwrap_or_default();
        out.push(Record::Frame(FrameFact {
            number,
            module: named.module,
            offset: frame.offset,
            function: named.function,
            source: named.source,
            class: named.class,
        }));
        self.frames.insert(frame, number);
        Some(number)
    }

    fn stack(&mut self, frames: Vec<u32>, whole: bool, out: &mut Vec<Record>) -> u32 {
        if frames.is_empty() {
            return 0;
        }
        if let Some(number) = self.stacks.get(&frames) {
            return *number;
        }
        if self.stacks.len() >= MAX_STACKS {
            return 0;
        }
        let number = self.stacks.len() as u32 + 1;
        out.push(Record::Stack(StackFact {
            number,
            frames: frames.clone(),
            whole,
        }));
        self.stacks.insert(frames, number);
        number
    }
}

#[cfg(test)]
mod tests;
