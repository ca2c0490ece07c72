//! Libraries by which ranks pass messages: they look for what comes again and again, and hardly ever sleep.

use std::collections::{BTreeMap, BTreeSet};

use super::Session;

/// Beginnings of the names of their files: MPI's implementations with their modules, and what is below them or does the same.
const LIBRARIES: [&str; 13] = [
    "libmpi",
    "libopen-pal",
    "libopen-rte",
    "mca_",
    "libucp",
    "libuct",
    "libucs",
    "libfabric",
    "libpsm2",
    "libhcoll",
    "libibverbs",
    "libmlx5",
    "libccl.",
];
/// Clock samples in them that show it, and their part (0–1) of a process's samples.
const MIN_SAMPLES: usize = 20;
const MIN_PART: f64 = 0.05;

/// Beginnings of the names of the C library's files, which such a library calls.
const C_LIBRARY: [&str; 5] = ["libc.so", "libc-", "ld-", "libpthread", "libc.musl"];

/// Places of clock samples, by number.
#[derive(Default)]
pub struct Places {
    /// In such a library.
    pub passing: BTreeSet<u32>,
    pub c_library: BTreeSet<u32>,
}

impl Places {
    pub fn new(session: &Session) -> Self {
        let inside = |names: &[&str]| {
            let is = |module: &str| names.iter().any(|name| module.starts_with(name));
            let places = session.places.iter();
            places
                .filter(|(_, place)| place.module.as_deref().is_some_and(is))
                .map(|(number, _)| *number)
                .collect()
        };
        Self {
            passing: inside(&LIBRARIES),
            c_library: inside(&C_LIBRARY),
        }
    }
}

/// Processes that spend a good part of their CPU time in them.
pub fn processes(session: &Session) -> BTreeSet<u32> {
    let places = Places::new(session).passing;
    if places.is_empty() {
        return BTreeSet::new();
    }
    // Of each process: samples inside, and all.
    let mut counts = BTreeMap::<u32, (usize, usize)>::new();
    let samples = session
        .history
        .segments()
        .flat_map(|segment| &segment.samples);
    for sample in samples {
        if let Some(thread) = session.thread(sample.tid) {
            let (inside, all) = counts.entry(thread.pid).or_default();
            *inside += usize::from(places.contains(&sample.place));
            *all += 1;
        }
    }
    let shows =
        |inside: usize, all: usize| inside >= MIN_SAMPLES && inside as f64 >= MIN_PART * all as f64;
    counts
        .into_iter()
        .filter(|(_, (inside, all))| shows(*inside, *all))
        .map(|(pid, _)| pid)
        .collect()
}
