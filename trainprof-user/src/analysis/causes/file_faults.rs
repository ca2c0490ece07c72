//! Which part of a thread's page faults reads files that it maps: the others bring it new memory.

use std::collections::BTreeMap;

use crate::{
    analysis::facts::Facts,
    record::fact::PageKind,
    session::{SeenFault, Session},
};

/// A thread that so much was fetched for in page faults reads files by mapping them.
const MAPPED_BYTES: u64 = 1 << 20;
/// Sampled faults that tell the kinds apart.
const MIN_SAMPLES: u32 = 12;
/// A fault whose page has to be fetched takes a CPU for so many times as long as one that only maps a page.
const FETCHING: f64 = 10.0;

/// By thread, of those that read files by mapping them: part (0–1) of the time in page faults.
#[derive(Debug, Default)]
pub struct FileFaults(BTreeMap<u32, f64>);

/// Faults of a thread by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    samples: u32,
    files: f64,
    memory: f64,
}

impl Kinds {
    /// Part (0–1) of the time in faults that goes into those on files, of which `fetched` had to fetch something.
    fn on_files(&self, fetched: f64) -> f64 {
        if self.samples < MIN_SAMPLES {
            return 1.0;
        }
        let files = self.files.max(fetched) + (FETCHING - 1.0) * fetched;
        files / (files + self.memory).max(1.0)
    }
}

impl FileFaults {
    pub fn new(facts: &Facts) -> Self {
        let session = facts.session;
        let maps = session
            .threads
            .values()
            .filter(|thread| thread.activity.fault_bytes >= MAPPED_BYTES);
        let mut kinds: BTreeMap<u32, Kinds> = maps
            .map(|thread| (thread.key.tid, Kinds::default()))
            .collect();
        if kinds.is_empty() {
            return Self::default();
        }
        for fault in session.memory.faults.values() {
            if let Some(kinds) = kinds.get_mut(&fault.fact.tid) {
                count(kinds, fault);
            }
        }
        let share = |(tid, kinds): (u32, Kinds)| (tid, kinds.on_files(fetched(session, tid)));
        Self(kinds.into_iter().map(share).collect())
    }

    /// Part (0–1) of a thread's time in page faults that reads files.
    pub fn share(&self, tid: u32) -> f64 {
        self.0.get(&tid).copied().unwrap_or(0.0)
    }
}

fn count(kinds: &mut Kinds, fault: &SeenFault) {
    match fault.fact.kind {
        PageKind::Shared => kinds.files += fault.faults,
        PageKind::Anonymous | PageKind::CopyOnWrite => kinds.memory += fault.faults,
        PageKind::Unknown => return,
    }
    kinds.samples += 1;
}

/// Faults of a thread that had to wait for what they fetched, or for memory.
fn fetched(session: &Session, tid: u32) -> f64 {
    let counters = session.thread(tid).and_then(|thread| thread.counters);
    counters.map_or(0.0, |counters| counters.major_faults as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(files: f64, memory: f64, fetched: f64) -> f64 {
        let samples = MIN_SAMPLES;
        let kinds = Kinds {
            samples,
            files,
            memory,
        };
        kinds.on_files(fetched)
    }

    #[test]
    fn faults_on_new_memory_read_no_files() {
        // A trainer that maps its tokens anew for each batch, and whose temporaries take 80 000 new pages a second.
        assert!(part(700.0, 80_000.0, 7.0) < 0.02);
        // A loader that maps cold files.
        assert!(part(610.0, 34.0, 615.0) > 0.99);
        assert!(part(5_000.0, 0.0, 0.0) > 0.99);
        assert!(part(0.0, 500.0, 0.0) < 0.01);
    }

    #[test]
    fn what_no_sample_tells_is_of_files() {
        let few = Kinds {
            samples: MIN_SAMPLES - 1,
            memory: 900.0,
            ..Kinds::default()
        };
        assert_eq!(few.on_files(1.0), 1.0);
    }
}
