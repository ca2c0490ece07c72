//! One process whose Python is known.

use std::{
    collections::HashMap,
    fs::File,
    time::{Duration, Instant},
};

use trainprof_common::python::{NOT_BEHIND, PyThread};

use crate::record::fact::PyRuntimeFact;

use super::{
    find::{Unknown, find, memory},
    numbers::Numbers,
    stack::{Blocks, Python, TAG, Torn, function, main_thread, native, threads, walk},
};

/// After so long the main thread's state is looked for again.
const THREAD_AGE: Duration = Duration::from_secs(2);
/// Code may be freed and its address used again: after so long, or when there is so much of it, all is read again.
const CODES_AGE: Duration = Duration::from_secs(60);
const MAX_CODES: usize = 65_536;

/// See the module.
pub struct Process {
    memory: File,
    python: Python,
    thread: Option<(u64, Instant)>,
    /// The main thread's state that was told last; 0: none.
    told_thread: u64,
    /// States of its other threads that were found, by what it calls them itself.
    others: Option<(HashMap<u32, u64>, Instant)>,
    /// Numbers of functions by the address of their code; `None` for what is no code.
    codes: HashMap<u64, Option<u32>>,
    codes_since: Instant,
    /// Samples that were none, since the last that was one.
    pub failures: u32,
    /// Its stack was read once.
    pub followed: bool,
    /// Where its interpreter lies was told.
    told: bool,
}

impl Process {
    /// `None` when it has no Python mapped.
    pub fn open(pid: u32, now: Instant) -> Result<Option<Self>, Unknown> {
        let found = find(pid)?;
        Ok(found.map(|(memory, python)| Self::begin(memory, python, HashMap::new(), now)))
    }

    /// Its child has the same in the same places.
    pub fn forked(&self, child: u32) -> Option<Self> {
        let memory = memory(child).ok()?;
        let codes = self.codes.clone();
        Some(Self::begin(memory, self.python, codes, self.codes_since))
    }

    fn begin(
        memory: File,
        python: Python,
        codes: HashMap<u64, Option<u32>>,
        codes_since: Instant,
    ) -> Self {
        Self {
            memory,
            python,
            thread: None,
            told_thread: 0,
            others: None,
            codes,
            codes_since,
            failures: 0,
            followed: false,
            told: false,
        }
    }

    /// Where its interpreter's state lies, the first time that this is asked.
    pub fn runtime(&mut self, pid: u32) -> Option<PyRuntimeFact> {
        let fact = PyRuntimeFact {
            pid,
            address: self.python.runtime,
            bytes: self.python.runtime_bytes,
        };
        (!std::mem::replace(&mut self.told, true)).then_some(fact)
    }

    /// The number of the stack that the main thread has now; `None` when it has none or it cannot be told.
    pub fn sample(&mut self, now: Instant, numbers: &mut Numbers) -> Option<u32> {
        if now.duration_since(self.codes_since) >= CODES_AGE || self.codes.len() > MAX_CODES {
            self.codes.clear();
            self.codes_since = now;
        }
        match self.functions(now, numbers) {
            Ok(functions) if functions.is_empty() => None,
            Ok(functions) => {
                (self.failures, self.followed) = (0, true);
                numbers.stack(functions)
            }
            Err(Torn) => {
                self.failures += 1;
                self.thread = None;
                None
            }
        }
    }

    /// The number of the stack that another thread has now, by what its process calls it; `None` when it has none or it cannot be told.
    pub fn sample_other(
        &mut self,
        thread: u32,
        now: Instant,
        numbers: &mut Numbers,
    ) -> Option<u32> {
        match self.other(thread, now, numbers) {
            Ok(functions) if functions.is_empty() => None,
            Ok(functions) => numbers.stack(functions),
            // It has ended, say.
            Err(Torn) => {
                self.others = None;
                None
            }
        }
    }

    fn other(
        &mut self,
        thread: u32,
        now: Instant,
        numbers: &mut Numbers,
    ) -> Result<Vec<u32>, Torn> {
        let mut blocks = Blocks::new(&self.memory);
        let (memory, python, codes) = (&self.memory, &self.python, &mut self.codes);
        let fresh = |(_, since): &&(_, Instant)| now.duration_since(*since) < THREAD_AGE;
        if self.others.as_ref().filter(fresh).is_none() {
            let mut found = HashMap::new();
            for state in threads(&mut blocks, python)? {
                let called = native(&mut blocks, &python.layout, state)?;
                found.extend(u32::try_from(called).map(|called| (called, state)));
            }
            self.others = Some((found, now));
        }
        let known = self.others.as_ref();
        let Some(state) = known.and_then(|(found, _)| found.get(&thread).copied()) else {
            return Ok(Vec::new());
        };
        // Its state is another one's by now, or nobody's.
        if native(&mut blocks, &python.layout, state)? != u64::from(thread) {
            return Err(Torn);
        }
        walk(&mut blocks, &python.layout, state, |code| {
            numbered(codes, memory, python, numbers, code)
        })
    }

    /// Where the main thread's frames are, when that has changed.
    pub fn moved(&mut self) -> Option<PyThread> {
        let (thread, _) = self.thread?;
        if std::mem::replace(&mut self.told_thread, thread) == thread {
            return None;
        }
        let layout = &self.python.layout;
        let offset = |offset: u64| u32::try_from(offset).ok();
        Some(PyThread {
            frame: thread.wrapping_add(layout.frame),
            behind: match layout.frame_behind {
                Some(behind) => offset(behind)?,
                None => NOT_BEHIND,
            },
            caller: offset(layout.caller)?,
            code: offset(layout.code)?,
            position: offset(layout.position)?,
        })
    }

    /// The number of a stack, by the code on it as a probe found it; `None` when nothing there is code of the program.
    pub fn stack_of(&mut self, codes: &[u64], numbers: &mut Numbers) -> Option<u32> {
        let (memory, python, known) = (&self.memory, &self.python, &mut self.codes);
        let functions: Vec<u32> = codes
            .iter()
            .filter_map(|code| numbered(known, memory, python, numbers, code & !TAG))
            .collect();
        if functions.is_empty() {
            return None;
        }
        numbers.stack(functions)
    }

    fn functions(&mut self, now: Instant, numbers: &mut Numbers) -> Result<Vec<u32>, Torn> {
        let mut blocks = Blocks::new(&self.memory);
        let fresh = |since: &Instant| now.duration_since(*since) < THREAD_AGE;
        let thread = match &self.thread {
            Some((thread, since)) if fresh(since) => *thread,
            _ => match main_thread(&mut blocks, &self.python)? {
                Some(thread) => {
                    self.thread = Some((thread, now));
                    thread
                }
                None => return Ok(Vec::new()),
            },
        };
        let (memory, python, codes) = (&self.memory, &self.python, &mut self.codes);
        walk(&mut blocks, &python.layout, thread, |code| {
            numbered(codes, memory, python, numbers, code)
        })
    }
}

/// The number of the function that the code at an address is of.
fn numbered(
    known: &mut HashMap<u64, Option<u32>>,
    memory: &File,
    python: &Python,
    numbers: &mut Numbers,
    code: u64,
) -> Option<u32> {
    *known.entry(code).or_insert_with(|| {
        function(memory, python, code).and_then(|function| numbers.function(function))
    })
}
