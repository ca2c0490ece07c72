//! A thread that reads programs' files, so that a slow or hung file system under them never holds up the watch.

use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use super::{
    class::Flavour,
    symbols::{Found, Index, Module},
};

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

/// The thread, as its user sees it. It ends when this is dropped.
pub struct Worker {
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
}

impl Worker {
    /// Starts the thread, which has the capabilities that the calling thread has now.
    pub fn start() -> io::Result<Self> {
        let (questions, asked) = sync_channel::<Question>(QUESTIONS);
        // As many as there can be questions, and so answering never blocks for long.
        let (answer, answers) = sync_channel(QUESTIONS);
        thread::Builder::new()
            .name("symbols".into())
            .stack_size(256 << 10)
            .spawn(move || {
                let mut tables = Tables::default();
                while let Ok(question) = asked.recv() {
                    if answer.send(tables.answer(&question)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { questions, answers })
    }

    /// Asks; false when too many questions wait already.
    pub fn ask(&self, question: Question) -> bool {
        self.questions.try_send(question).is_ok()
    }

    /// The next answer, waited for at most that long.
    pub fn answer(&self, patience: Duration) -> Option<Answer> {
        self.answers.recv_timeout(patience).ok()
    }
}

/// Tables of functions, within [`TABLE_BYTES`].
#[derive(Default)]
struct Tables {
    open: BTreeMap<u32, (u64, Index)>,
    turn: u64,
}

impl Tables {
    fn answer(&mut self, question: &Question) -> Answer {
        self.turn += 1;
        if !self.open.contains_key(&question.number)
            && let Some(index) = Index::open(&question.module)
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
