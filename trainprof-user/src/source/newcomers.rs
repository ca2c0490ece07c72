//! Which of the processes that come are looked at in /proc at once, and which only once they have lived for a while.
//!
//! All that /proc has of a process takes some 150 µs to read, which a job that starts a program per sample would pay hundreds of times
//! a second for processes that are gone before anybody could ask about them.

use std::collections::BTreeMap;

use crate::time::KtimeNs;

/// So many are looked at as they come, in a second.
const AT_ONCE: u32 = 20;
const SECOND_NS: u64 = 1_000_000_000;
/// The others must have lived for so long.
const LIVED_NS: u64 = 100_000_000;

/// A process that is not looked at yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Newcomer {
    /// When it was forked, or executed what it runs.
    pub at: KtimeNs,
    pub parent: Option<u32>,
    pub name: String,
}

/// Who came, and who of them waits to be looked at.
#[derive(Default)]
pub(super) struct Newcomers {
    /// Looked at as they came, in the second that began then.
    looked_at: u32,
    since: KtimeNs,
    waiting: BTreeMap<u32, Newcomer>,
}

impl Newcomers {
    /// Whether one that came then is looked at at once; it counts as looked at.
    pub(super) fn is_looked_at(&mut self, pid: u32, at: KtimeNs) -> bool {
        self.waiting.remove(&pid);
        if at.since(self.since) >= SECOND_NS {
            self.since = at;
            self.looked_at = 0;
        }
        let room = self.looked_at < AT_ONCE;
        self.looked_at += u32::from(room);
        room
    }

    pub(super) fn waits(&mut self, pid: u32, newcomer: Newcomer) {
        self.waiting.insert(pid, newcomer);
    }

    /// It ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.waiting.remove(&pid);
    }

    pub(super) fn is_waiting(&self, pid: u32) -> bool {
        self.waiting.contains_key(&pid)
    }

    /// Those that have lived for long enough by now, in the order of their ids.
    pub(super) fn due(&mut self, now: KtimeNs) -> Vec<(u32, Newcomer)> {
        let (lived, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, newcomer)| now.since(newcomer.at) >= LIVED_NS);
        self.waiting = waiting;
        lived.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newcomer(at: u64) -> Newcomer {
        Newcomer {
            at: KtimeNs(at),
            parent: Some(1),
            name: "convert".to_owned(),
        }
    }

    #[test]
    fn the_first_of_each_second_are_looked_at_at_once_and_others_when_they_have_lived() {
        const BEGIN: KtimeNs = KtimeNs(5 * SECOND_NS);
        let mut newcomers = Newcomers::default();
        let at_once = (100..200).filter(|pid| newcomers.is_looked_at(*pid, BEGIN));
        assert_eq!(at_once.count(), AT_ONCE as usize);

        let at = |ns: u64| newcomer(BEGIN.0 + ns);
        newcomers.waits(201, at(0));
        newcomers.waits(202, at(1));
        newcomers.waits(203, at(0));
        newcomers.waits(204, at(0));
        // One ended, another executed a program and waits anew.
        newcomers.ended(203);
        assert!(!newcomers.is_looked_at(204, KtimeNs(BEGIN.0 + 5)));
        newcomers.waits(204, at(5));
        let due = newcomers.due(KtimeNs(BEGIN.0 + LIVED_NS));
        assert_eq!(due, [(201, at(0))]);

        // There is room again, also for one that still waited.
        let next = KtimeNs(BEGIN.0 + SECOND_NS);
        assert!(newcomers.is_waiting(202) && newcomers.is_looked_at(202, next));
        assert!(!newcomers.is_waiting(202));
        let due = newcomers.due(KtimeNs(BEGIN.0 + LIVED_NS + 5));
        assert_eq!(due, [(204, at(5))]);
        assert_eq!(newcomers.due(KtimeNs(u64::MAX)), []);
    }
}
