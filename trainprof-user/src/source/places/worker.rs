//! A thread that reads programs' files, so that a slow or hung file system under them never holds up the watch.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    class::Flavour,
    symbols::{Found, Index, Module},
    tables::Shared,
};
use crate::source::apart::Apart;

/// Questions that may wait.
const QUESTIONS: usize = 1024;
/// Memory for tables of functions; the least recently used go first. A PyTorch job needs about a fifth.
const TABLE_BYTES: usize = 20 << 20;

/// Which function of a module is at an offset?
pub struct Question {
    pub number: u32,
    pub offset: u64,
    pub module: Module,
}

/// What is known of it.
pub struct Answer {
    pub number: u32,
    pub offset: u64,
    pub found: Found,
    /// The file could be read. If not, it may be worth asking again.
    pub read: bool,
}

/// The thread.
pub type Worker = Apart<Question, Answer>;

/// Starts it.
pub fn start(shared: Shared) -> io::Result<Worker> {
    Worker::start("symbols", 256 << 10, QUESTIONS, || {
        let mut tables = Tables {
            shared,
            ..Tables::default()
        };
        move |question| tables.answer(&question)
    })
}

/// Tables of functions, within [`TABLE_BYTES`].
#[derive(Default)]
struct Tables {
    shared: Shared,
    open: BTreeMap<u32, (u64, Arc<Index>)>,
    turn: u64,
}

impl Tables {
    fn answer(&mut self, question: &Question) -> Answer {
        self.turn += 1;
        if !self.open.contains_key(&question.number)
            && let Some((file, _)) = question.module.open(&question.module.path)
            && let Some(index) = self.shared.of_file(file, &question.module.name)
        {
            self.make_room(index.bytes());
            self.open.insert(question.number, (self.turn, index));
        }
        let found = self.open.get_mut(&question.number).map(|(used, index)| {
            *used = self.turn;
            index.find(question.offset)
        });
        Answer {
            number: question.number,
            offset: question.offset,
            read: found.is_some(),
            found: found.unwrap_or_else(|| {
                Found::nothing(question.offset, Flavour::of_name(&question.module.name))
            }),
        }
    }

    fn make_room(&mut self, bytes: usize) {
        let mut taken: usize = self.open.values().map(|(_, index)| index.bytes()).sum();
        while taken + bytes > TABLE_BYTES || self.open.len() >= 64 {
            let Some((&oldest, (_, index))) = self.open.iter().min_by_key(|(_, (used, _))| *used)
            else {
                return;
            };
            taken -= index.bytes();
            self.open.remove(&oldest);
        }
    }
}
