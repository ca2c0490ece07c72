//! Who is outside the job, by process and command.

use crate::session::{Id, Session};

/// The process of a thread outside the job, or of a helper of it, and its command.
pub fn outsider(session: &Session, tid: u32) -> Option<(Id, String)> {
    if let Some(thread) = session.thread(tid) {
        let process = session.processes.get(&thread.pid)?;
        let command = process
            .seen
            .facts
            .as_ref()
            .map(|facts| facts.command.join(" "));
        let command = command.filter(|command| !command.is_empty());
        return Some((
            Id(thread.pid),
            command.unwrap_or_else(|| process.name.clone()),
        ));
    }
    let (pid, name) = session.outsiders.get(&tid)?;
    let pid = pid.unwrap_or(tid);
    let command = session
        .host
        .outsiders
        .get(&pid)
        .filter(|command| !command.is_empty())
        .map(|command| command.join(" "));
    Some((Id(pid), command.or_else(|| name.clone())?))
}
