//! The thread that finds callers and names. It holds nothing that the watch needs.

use std::{collections::HashSet, io, sync::Arc};

use super::{names::Names, unwind::Unwinds};
use crate::{
    record::fact::{PlaceClass, SourceLine},
    source::{
        apart::Apart,
        places::{Mapping, look_up, symbols::Module, tables::Shared},
    },
};

/// Stacks that wait at once, at 8 KiB each.
const QUESTIONS: usize = 128;
/// Frames of one stack.
pub const MAX_DEPTH: usize = 64;
/// Frames whose names were told already.
const MAX_TOLD: usize = 65_536;

/// A place in a program: module and offset; without a module the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub module: Option<u32>,
    pub offset: u64,
}

/// What a frame is called.
#[derive(Clone, Debug)]
pub struct Named {
    pub module: Option<String>,
    pub function: Option<String>,
    pub source: Option<SourceLine>,
    pub class: PlaceClass,
}

impl Default for Named {
    fn default() -> Self {
        Self {
            module: None,
            function: None,
            source: None,
            class: PlaceClass::Other,
        }
    }
}

/// What a stack is known by.
pub enum Trace {
    Memory {
        ip: u64,
        sp: u64,
        bp: u64,
        data: Vec<u8>,
    },
    Addresses(Vec<u64>),
}

/// One stack of one process.
pub struct Question {
    pub number: u64,
    pub pid: u32,
    pub space: Arc<[Mapping]>,
    /// Modules that were not told before, by their numbers.
    pub modules: Vec<(u32, Module)>,
    pub trace: Trace,
}

/// Its frames, the innermost first.
pub struct Answer {
    pub number: u64,
    pub frames: Vec<Frame>,
    /// Names of frames that were not told before.
    pub named: Vec<(Frame, Named)>,
    /// It was followed to its beginning.
    pub whole: bool,
    /// A caller lies in no mapping that was known.
    pub unmapped: bool,
}

/// The thread.
pub type Worker = Apart<Question, Answer>;

/// Starts it.
pub fn start(tables: Shared) -> io::Result<Worker> {
    Worker::start("stacks", 1 << 20, QUESTIONS, || {
        let mut state = State {
            names: Names::new(tables),
            ..State::default()
        };
        move |question| state.answer(question)
    })
}

#[derive(Default)]
struct State {
    modules: Vec<Module>,
    unwinds: Unwinds,
    names: Names,
    told: HashSet<Frame>,
}

impl State {
    fn answer(&mut self, question: Question) -> Answer {
        for (number, module) in question.modules {
            debug_assert_eq!(number as usize, self.modules.len());
            self.modules.push(module);
        }
        let (addresses, whole) = match question.trace {
            Trace::Memory { ip, sp, bp, data } => self.unwinds.unwind(
                question.pid,
                &question.space,
                &self.modules,
                [ip, sp, bp],
                &data,
            ),
            Trace::Addresses(addresses) => (lookups(&addresses), true),
        };
        let mut unmapped = false;
        let frames: Vec<Frame> = addresses
            .into_iter()
            .map(|address| match look_up(&question.space, address) {
                Some((module, offset)) => Frame {
                    module: Some(module),
                    offset,
                },
                None => {
                    unmapped = true;
                    Frame {
                        module: None,
                        offset: address,
                    }
                }
            })
            .collect();
        if self.told.len() > MAX_TOLD {
            self.told.clear();
        }
        let mut named = Vec::new();
        for frame in &frames {
            if let Some(number) = frame.module
                && let Some(module) = self.modules.get(number as usize)
                && self.told.insert(*frame)
            {
                let name = self.names.find(question.pid, number, module, frame.offset);
                named.push((*frame, name));
            }
        }
        Answer {
            number: question.number,
            frames,
            named,
            whole,
            unmapped,
        }
    }
}

/// Return addresses point behind the call, which may be another function's or line's beginning.
fn lookups(addresses: &[u64]) -> Vec<u64> {
    addresses
        .iter()
        .take(MAX_DEPTH)
        .enumerate()
        .map(|(depth, address)| {
            if depth == 0 {
                *address
            } else {
                address.saturating_sub(1)
            }
        })
        .collect()
}
