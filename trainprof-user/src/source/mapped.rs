//! When it is looked again at which libraries processes have mapped: a program that has just been executed has none of them yet.
//!
//! Only decides. Reading the libraries of a large process takes some milliseconds, so few are read at a time, and those in which a
//! framework is known are left alone. Of processes that one parent forks within a minute, one is read: they have the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::env::frameworks::FrameworkFacts;

/// Intervals after which a process, since it was first seen or executed a program, is looked at again.
const AGAIN: [u32; 4] = [2, 5, 10, LATE];
/// By then a training loop has everything loaded: the processes that lead are looked at whether or not their framework is known.
const LATE: u32 = 60;
/// Processes that are looked at in one interval.
const AT_ONCE: usize = 4;

/// For so many intervals what one forked process had mapped holds for those that its parent forks after it.
const SIBLINGS: u32 = 60;

/// Whose libraries were read, and when.
#[derive(Default)]
pub struct Mapped {
    looks: BTreeMap<u32, Looks>,
    /// By parent: when a process that it forked was read, and what that one had. Only of those that have a framework for training.
    forked: BTreeMap<u32, (u32, FrameworkFacts)>,
}

struct Looks {
    /// The interval in which the process, or its program, was new.
    since: u32,
    /// How many of `AGAIN` are over.
    over: usize,
    /// Has a framework for training mapped.
    trains: bool,
}

impl Mapped {
    /// A process is new, or has another program.
    pub fn begun(&mut self, pid: u32, interval: u32, trains: bool) {
        let looks = Looks {
            since: interval,
            over: 0,
            trains,
        };
        self.looks.insert(pid, looks);
    }

    /// What a process has that was forked just now, as far as it is known.
    pub fn inherited(&self, parent: u32, interval: u32) -> Option<FrameworkFacts> {
        let (at, facts) = self.forked.get(&parent)?;
        (interval.saturating_sub(*at) < SIBLINGS).then(|| facts.clone())
    }

    /// A process that was forked just now was read.
    pub fn read_forked(&mut self, parent: u32, interval: u32, facts: &FrameworkFacts) {
        if facts.trains() {
            self.forked.insert(parent, (interval, facts.clone()));
        }
    }

    /// A process executes another program: what it forks from now on has other libraries.
    pub fn executed(&mut self, pid: u32) {
        self.forked.remove(&pid);
    }

    /// A process was looked at again.
    pub fn read(&mut self, pid: u32, trains: bool) {
        if let Some(looks) = self.looks.get_mut(&pid) {
            looks.trains = trains;
        }
    }

    /// Who is to be looked at now: those that lead first, then those who have waited longest. Forgets who is not `alive`.
    pub fn due(
        &mut self,
        interval: u32,
        leading: &BTreeSet<u32>,
        alive: &BTreeSet<u32>,
    ) -> Vec<u32> {
        self.looks.retain(|pid, _| alive.contains(pid));
        self.forked.retain(|pid, _| alive.contains(pid));
        let mut due = Vec::new();
        for (pid, looks) in &mut self.looks {
            let leads = leading.contains(pid);
            while let Some(after) = AGAIN.get(looks.over) {
                let at = looks.since.saturating_add(*after);
                if at > interval {
                    break;
                }
                if !looks.trains || leads && *after == LATE {
                    due.push((!leads, at, *pid));
                    break;
                }
                looks.over += 1;
            }
        }
        due.sort_unstable();
        due.truncate(AT_ONCE);
        for (_, _, pid) in &due {
            let Some(looks) = self.looks.get_mut(pid) else {
                continue;
            };
            let passed = |after: &&u32| looks.since.saturating_add(**after) <= interval;
            looks.over = AGAIN.iter().take_while(passed).count();
        }
        due.into_iter().map(|(_, _, pid)| pid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of 100 in which each process is looked at; from interval 7 on process 3 trains.
    fn looked_at(mapped: &mut Mapped, leading: &[u32], alive: &[u32]) -> BTreeMap<u32, Vec<u32>> {
        let (leading, alive) = (
            BTreeSet::from_iter(leading.to_vec()),
            BTreeSet::from_iter(alive.to_vec()),
        );
        let mut out = BTreeMap::<u32, Vec<u32>>::new();
        for interval in 1..=100 {
            for pid in mapped.due(interval, &leading, &alive) {
                out.entry(pid).or_default().push(interval);
                mapped.read(pid, pid == 3 && interval >= 7);
            }
        }
        out
    }

    #[test]
    fn who_has_no_framework_yet_is_looked_at_again_and_who_leads_once_more_at_last() {
        let mut mapped = Mapped::default();
        mapped.begun(1, 0, true);
        mapped.begun(2, 0, true);
        mapped.begun(3, 0, false);
        mapped.begun(4, 0, false);
        mapped.begun(5, 0, false);
        let looked = looked_at(&mut mapped, &[1], &[1, 2, 3, 4]);
        let expected =
            BTreeMap::from([(1, vec![60]), (3, vec![2, 5, 10]), (4, vec![2, 5, 10, 60])]);
        assert_eq!(looked, expected);
    }

    #[test]
    fn another_program_begins_anew() {
        let mut mapped = Mapped::default();
        mapped.begun(4, 0, true);
        mapped.begun(4, 20, false);
        assert_eq!(looked_at(&mut mapped, &[], &[4])[&4], [22, 25, 30, 80]);
    }

    #[test]
    fn few_are_looked_at_at_a_time_and_who_leads_comes_first() {
        let mut mapped = Mapped::default();
        for pid in 10..30 {
            mapped.begun(pid, 0, false);
        }
        let alive = BTreeSet::from_iter(10..30);
        let leading = BTreeSet::from([29]);
        let first = mapped.due(2, &leading, &alive);
        assert_eq!(first, [29, 10, 11, 12]);
        let later: BTreeSet<u32> = (3..=7)
            .flat_map(|interval| mapped.due(interval, &leading, &alive))
            .chain(first)
            .collect();
        assert_eq!(later, alive, "everyone gets a turn");
    }

    #[test]
    fn of_those_that_a_parent_forks_one_is_read_a_minute() {
        let mut mapped = Mapped::default();
        assert_eq!(mapped.inherited(7, 3), None);
        // A shell's, say, or one that executed another program meanwhile.
        mapped.read_forked(7, 3, &FrameworkFacts::default());
        assert_eq!(mapped.inherited(7, 3), None);
        let facts = FrameworkFacts {
            python: Some("3.11".to_owned()),
            libraries: vec![("torch".to_owned(), None)],
        };
        mapped.read_forked(7, 4, &facts);
        assert_eq!(mapped.inherited(7, 4), Some(facts.clone()));
        assert_eq!(mapped.inherited(8, 4), None);
        assert_eq!(mapped.inherited(7, 63), Some(facts.clone()));
        assert_eq!(mapped.inherited(7, 64), None);
        mapped.executed(7);
        assert_eq!(mapped.inherited(7, 5), None);
        mapped.read_forked(7, 4, &facts);
        mapped.due(5, &BTreeSet::new(), &BTreeSet::from([8]));
        assert_eq!(mapped.inherited(7, 5), None, "it has ended");
    }
}
