//! Which processes of the job a control group holds.

use std::{collections::BTreeSet, path::Path};

use crate::session::Session;

/// Processes above one that are looked at.
const MOST_ABOVE: usize = 64;

/// Whether a process counts in a group of this controller: it was in it, or in one below it, when it was first seen. So it does
/// where that is not known.
pub fn counts_in(session: &Session, pid: u32, controller: &str, group: &str) -> bool {
    path(session, pid, controller).is_none_or(|own| Path::new(own).starts_with(group))
}

/// Processes that a group's CPU quota holds. Who went into it after it was first seen cannot be told: if all that is known of the job are
/// outside of a group that is read, it holds all.
pub fn held(session: &Session, group: &str) -> BTreeSet<u32> {
    let all = || session.processes.keys().copied();
    let known = all()
        .any(|pid| path(session, pid, "cpu").is_some_and(|own| Path::new(own).starts_with(group)));
    all()
        .filter(|pid| !known || counts_in(session, *pid, "cpu", group))
        .collect()
}

/// The group that a process is in; of one that was gone before it could be looked at, that of the nearest process above it that was
/// not.
fn path<'a>(session: &'a Session, pid: u32, controller: &str) -> Option<&'a str> {
    let mut pid = pid;
    for _ in 0..MOST_ABOVE {
        let seen = &session.processes.get(&pid)?.seen;
        if let Some(facts) = &seen.facts {
            return facts.cgroup.as_ref()?.path_of(controller);
        }
        pid = seen.parent;
    }
    None
}
