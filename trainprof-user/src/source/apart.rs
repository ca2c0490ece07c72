//! A thread that answers questions, so that what may be slow or hang (files of a dead server, large tables) never holds up
//! the watch.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// The thread, as its user sees it. It ends when this is dropped.
pub struct Apart<Q, A> {
    questions: SyncSender<Q>,
    answers: Receiver<A>,
}

impl<Q: Send + 'static, A: Send + 'static> Apart<Q, A> {
    /// Starts the thread, which has the capabilities that the calling thread has now. `waiting`: questions that may wait,
    /// for each of which there is room for an answer. `begin` makes in the thread what answers.
    pub fn start<F: FnMut(Q) -> A>(
        name: &str,
        stack_bytes: usize,
        waiting: usize,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Self> {
        let (questions, asked) = sync_channel::<Q>(waiting);
        // With those that are being asked: so answering never blocks for long.
        let (answer, answers) = sync_channel(2 * waiting);
        thread::Builder::new()
            .name(name.into())
            .stack_size(stack_bytes)
            .spawn(move || {
                let mut answers = begin();
                while let Ok(question) = asked.recv() {
                    if answer.send(answers(question)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { questions, answers })
    }

    /// Asks; false when too many questions wait already.
    pub fn ask(&self, question: Q) -> bool {
        self.questions.try_send(question).is_ok()
    }

    /// The next answer, waited for at most that long.
    pub fn answer(&self, patience: Duration) -> Option<A> {
        self.answers.recv_timeout(patience).ok()
    }
}
