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
/// Waiting for a page takes a CPU for so many times as long as a fault that only maps one; and each page that is fetched, also ahead, about as
/// long as one of these: it is taken, filled and given back.
const FETCHING: f64 = 10.0;
const PAGE: f64 = 4096.0;

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
    /// Part (0–1) of the time in faults that goes into those on files, of which some `waited` for the `pages` that were fetched.
    fn on_files(&self, waited: f64, pages: f64) -> f64 {
        if self.samples < MIN_SAMPLES {
            return 1.0;
        }
        let files = self.files + FETCHING * waited + pages;
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
        let share = |(tid, kinds): (u32, Kinds)| {
            let (waited, pages) = fetched(session, tid);
            (tid, kinds.on_files(waited, pages))
        };
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

/// Faults of a thread that waited for what they fetched, and pages that they fetched.
fn fetched(session: &Session, tid: u32) -> (f64, f64) {
    let Some(thread) = session.thread(tid) else {
        return (0.0, 0.0);
    };
    let waited = thread.counters.map_or(0, |counters| counters.major_faults);
    (waited as f64, thread.activity.fault_bytes as f64 / PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(files: f64, memory: f64, waited: f64, pages: f64) -> f64 {
        let samples = MIN_SAMPLES;
        let kinds = Kinds {
            samples,
            files,
            memory,
        };
        kinds.on_files(waited, pages)
    }

    #[test]
    fn faults_on_new_memory_read_no_files() {
        // A trainer that maps its tokens anew for each batch, and whose temporaries take 80 000 new pages a second.
        assert!(part(700.0, 80_000.0, 7.0, 1_300.0) < 0.03);
        // A loader that maps cold files.
        assert!(part(610.0, 34.0, 615.0, 5_000.0) > 0.99);
        // A disk that reads 8 MB ahead at each fault.
        assert!(part(84.0, 750.0, 103.0, 129_000.0) > 0.99);
        assert!(part(5_000.0, 0.0, 0.0, 0.0) > 0.99);
        assert!(part(0.0, 500.0, 0.0, 0.0) < 0.01);
    }

    #[test]
    fn what_no_sample_tells_is_of_files() {
        let few = Kinds {
            samples: MIN_SAMPLES - 1,
            memory: 900.0,
            ..Kinds::default()
        };
        assert_eq!(few.on_files(1.0, 1.0), 1.0);
    }
}
