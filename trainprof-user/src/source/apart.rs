//! A thread that answers questions, so that what may be slow or hang (files of a dead server, large tables) never holds up
//! the watch. Questions gather, and are handed over together: one at a time each would cost a wake-up of that thread.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// The thread, as its user sees it. It ends when this is dropped.
pub struct Apart<Q, A> {
    /// Questions that may wait, and those that do, answered or not: so neither channel is ever full.
    waiting: usize,
    open: usize,
    gathered: Vec<Q>,
    questions: SyncSender<Vec<Q>>,
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
        let (questions, asked) = sync_channel::<Vec<Q>>(waiting);
        let (answer, answers) = sync_channel(waiting);
        thread::Builder::new()
            .name(name.into())
            .stack_size(stack_bytes)
            .spawn(move || {
                let mut answers = begin();
                while let Ok(questions) = asked.recv() {
                    for question in questions {
                        if answer.send(answers(question)).is_err() {
                            return;
                        }
                    }
                }
            })?;
        Ok(Self {
            waiting,
            open: 0,
            gathered: Vec::new(),
            questions,
            answers,
        })
    }

    /// Asks, with the next [`Self::answer`]; false when too many questions wait already.
    pub fn ask(&mut self, question: Q) -> bool {
        let room = self.open < self.waiting;
        if room {
            self.open += 1;
            self.gathered.push(question);
        }
        room
    }

    /// Whether an answer is still to come.
    pub fn is_asked(&self) -> bool {
        self.open > 0
    }

    /// The next answer, waited for at most that long. Hands over what was asked.
    pub fn answer(&mut self, patience: Duration) -> Option<A> {
        if !self.gathered.is_empty() {
            // It cannot be full; a thread that has ended answers nothing.
            let _ = self.questions.try_send(std::mem::take(&mut self.gathered));
        }
        let answer = if patience.is_zero() {
            self.answers.try_recv().ok()
        } else {
            self.answers.recv_timeout(patience).ok()
        };
        self.open -= usize::from(answer.is_some());
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn each_question_is_answered_in_turn_and_no_more_wait_than_there_is_room_for() {
        let (go, gate) = channel::<()>();
        let mut apart = Apart::start("test", 64 << 10, 3, move || {
            move |question: u32| {
                gate.recv().expect("a go");
                question * 2
            }
        })
        .expect("a thread");
        let asked: Vec<bool> = (0..4).map(|n| apart.ask(n)).collect();
        assert_eq!(asked, [true, true, true, false]);
        assert_eq!(apart.answer(Duration::ZERO), None, "it has begun at most");
        for _ in 0..4 {
            go.send(()).expect("it is there");
        }
        assert_eq!(apart.answer(LONG), Some(0));
        assert!(apart.ask(3) && !apart.ask(4));
        let rest: Vec<_> = (0..3).map(|_| apart.answer(LONG)).collect();
        assert_eq!(rest, [Some(2), Some(4), Some(6)]);
        assert_eq!(apart.answer(Duration::ZERO), None);
        assert!(!apart.is_asked());
    }
}
