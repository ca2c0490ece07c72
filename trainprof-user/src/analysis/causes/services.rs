//! Processes outside the job that it asks for something. One that is woken by a request may have the asker's own CPU: then that one wants a
//! CPU for as long as it would have waited for the answer.

use std::collections::BTreeMap;

use crate::{
    analysis::facts::{Facts, is_on_purpose},
    session::{
        Session, WaitId,
        kind::{WaitKind, wait_kind},
        roles::for_room,
    },
};

/// Answers that show a pattern.
const MIN_ANSWERS: u64 = 3;

/// By who asks and who answers, process by process: the waits that most time goes by.
pub struct Services(BTreeMap<(u32, u32), Answers>);

struct Answers {
    id: WaitId,
    ns: u64,
    count: u64,
}

impl Services {
    pub fn new(facts: &Facts) -> Self {
        let session = facts.session;
        let mut out = BTreeMap::<(u32, u32), Answers>::new();
        for thread in session.threads.values() {
            for (id, total) in &thread.waits {
                let answered = matches!(
                    wait_kind(id),
                    WaitKind::Socket | WaitKind::Poll | WaitKind::Pipe
                );
                if !answered
                    || for_room(id.nr)
                    || !is_on_purpose(id.waker.kind)
                    || session.thread(id.waker.tid).is_some()
                {
                    continue;
                }
                let pair = (thread.pid, process(session, id.waker.tid));
                let answers = out.entry(pair).or_insert(Answers {
                    id: *id,
                    ns: 0,
                    count: 0,
                });
                answers.count += total.count;
                if total.wait_ns > answers.ns {
                    (answers.id, answers.ns) = (*id, total.wait_ns);
                }
            }
        }
        out.retain(|_, answers| answers.count >= MIN_ANSWERS);
        Self(out)
    }

    /// What a thread's process waits on for the one outside the job that `by` is a thread of.
    pub fn asked(&self, facts: &Facts, tid: u32, by: u32) -> Option<WaitId> {
        if by == 0 || facts.session.thread(by).is_some() {
            return None;
        }
        let pair = (facts.pid(tid)?, process(facts.session, by));
        self.0.get(&pair).map(|answers| answers.id)
    }
}

/// The process of a thread outside the job, itself when that is not known.
fn process(session: &Session, tid: u32) -> u32 {
    session
        .outsiders
        .get(&tid)
        .and_then(|(pid, _)| *pid)
        .unwrap_or(tid)
}
