//! Bytes or files: whether what is waited for in a directory is its data or the handling of many small files.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::op::{Class, Op};

use super::{
    facts::Facts,
    kind::Kind,
    running::{Call, call},
};
use crate::session::{
    MIN_STATE_BYTES, Session, WRITTEN, WaitId,
    kind::{WaitKind, wait_kind},
};

/// Files smaller than this (mean) are small: reading them costs about what opening them costs.
pub const SMALL_BYTES: f64 = 256.0 * 1024.0;
/// Files that are read at once, in one piece that is hardly longer in coming than the shortest: none of their cost is that of bytes.
const TINY_BYTES: f64 = 16.0 * 1024.0;
/// Files are the cost when at least this share of the time goes into opening, closing and looking them up; where it is nearly all of
/// it, closing left out, whatever their size.
const META_SHARE: f64 = 0.35;
const META_ALONE: f64 = 0.8;

/// Time of one set of files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FileTime {
    pub opens: u64,
    pub opened_bytes: u64,
    /// Times that files were asked about (stat) or listed.
    pub lookups: u64,
    /// Nanoseconds in open, stat, close, getdents: calls that return, and waits of those that are on the way.
    pub meta_ns: u64,
    /// Of these, in close: it may have to write what the file was given first.
    pub close_ns: u64,
    /// Calls that read.
    pub reads: u64,
    /// Nanoseconds in reads and page faults.
    pub read_ns: u64,
    pub read_bytes: u64,
    /// Bytes that were not in the page cache.
    pub filled_bytes: u64,
    pub written_bytes: u64,
}

impl FileTime {
    /// Mean size of the files as opened, bytes; `None` when none was opened.
    pub fn mean_bytes(&self) -> Option<f64> {
        (self.opens > 0).then(|| self.opened_bytes as f64 / self.opens as f64)
    }

    /// Bytes that were read, or fetched for page faults, for each file that was opened; `None` when none was.
    fn bytes_per_open(&self) -> Option<f64> {
        let came = self.read_bytes.max(self.filled_bytes) as f64;
        (self.opens > 0).then(|| came / self.opens as f64)
    }

    fn add(&mut self, other: &Self) {
        self.opens += other.opens;
        self.opened_bytes += other.opened_bytes;
        self.lookups += other.lookups;
        self.meta_ns += other.meta_ns;
        self.close_ns += other.close_ns;
        self.reads += other.reads;
        self.read_ns += other.read_ns;
        self.read_bytes += other.read_bytes;
        self.filled_bytes += other.filled_bytes;
        self.written_bytes += other.written_bytes;
    }

    /// Whether state is written to these files, and hardly anything read: opening them, and cutting off what they held, is part of that.
    fn are_state(&self) -> bool {
        self.written_bytes >= MIN_STATE_BYTES && self.written_bytes > WRITTEN * self.read_bytes
    }

    /// What the time on these files is to be called.
    fn kind(&self) -> Kind {
        let meta = self.meta_ns as f64;
        let all = meta + self.read_ns as f64;
        // What comes of a file that stays open, or is mapped, is of none of those that were opened.
        let below = |bytes: f64| {
            self.mean_bytes().is_some_and(|mean| mean < bytes)
                && self.bytes_per_open().is_some_and(|came| came < bytes)
        };
        let looked_up = |ns: f64, share: f64| all > 0.0 && ns >= share * all;
        if below(TINY_BYTES)
            || below(SMALL_BYTES) && looked_up(meta, META_SHARE)
            || looked_up(meta - self.close_ns as f64, META_ALONE)
        {
            Kind::SmallFiles
        } else {
            Kind::StorageIo
        }
    }
}

/// The kind of every set of files.
pub struct FileKinds {
    /// By device of the file system, all sets together; set 0 stands for what has no set.
    by_fileset: BTreeMap<u32, Kind>,
    times: BTreeMap<u32, FileTime>,
    main_of_thread: BTreeMap<u32, u32>,
    whole: Kind,
    /// Sets that hold state: what a path says and what was opened there may be two sets of one directory.
    state: BTreeSet<u32>,
}

impl FileKinds {
    pub fn new(facts: &Facts) -> Self {
        let session = facts.session;
        let mut times = BTreeMap::<u32, FileTime>::new();
        let mut by_process = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
        for (key, total) in &session.files.ops {
            let (Ok(op), Ok(class)) = (Op::try_from(key.op), Class::try_from(key.class)) else {
                continue;
            };
            if !matches!(class, Class::File | Class::Directory | Class::Unknown)
                || (op == Op::Close && class == Class::Unknown)
            {
                continue;
            }
            if let Some(pid) = key.pid
                && key.fileset != 0
            {
                *by_process
                    .entry(pid)
                    .or_default()
                    .entry(key.fileset)
                    .or_default() += total.ns;
            }
            let time = times.entry(key.fileset).or_default();
            match op {
                Op::Open => {
                    if class == Class::File {
                        time.opens += total.count.saturating_sub(total.errors);
                        time.opened_bytes += total.bytes;
                    }
                    time.meta_ns += total.ns;
                }
                Op::Stat | Op::Getdents => {
                    time.lookups += total.count;
                    time.meta_ns += total.ns;
                }
                Op::Close => {
                    time.close_ns += total.ns;
                    time.meta_ns += total.ns;
                }
                Op::Read | Op::UringRead | Op::Copy if class == Class::File => {
                    time.reads += total.count.saturating_sub(total.errors);
                    time.read_ns += total.ns;
                    time.read_bytes += total.bytes;
                }
                Op::Write | Op::UringWrite | Op::CopyOut if class == Class::File => {
                    time.written_bytes += total.bytes;
                }
                Op::Fill | Op::FaultFill => time.filled_bytes += total.bytes,
                _ => {}
            }
        }
        // Page faults are no calls: their waits are all that is known of them.
        let mut by_thread = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
        for thread in session.threads.values() {
            for (id, total) in &thread.waits {
                match wait_kind(id) {
                    WaitKind::Fault if id.object.fileset != 0 => {
                        times.entry(id.object.fileset).or_default().read_ns += total.wait_ns;
                    }
                    WaitKind::File => {}
                    _ => continue,
                }
                *by_thread
                    .entry(thread.key.tid)
                    .or_default()
                    .entry(id.object.fileset)
                    .or_default() += total.wait_ns;
            }
        }
        let groups = groups(session, &times);
        let mut whole = FileTime::default();
        times.values().for_each(|time| whole.add(time));
        let by_fileset = times
            .keys()
            .map(|fileset| (*fileset, groups[&group(session, *fileset)].kind()))
            .collect();
        Self {
            by_fileset,
            main_of_thread: session
                .threads
                .values()
                .filter_map(|thread| {
                    let most = |sets: &BTreeMap<u32, u64>| {
                        let (fileset, ns) = sets.iter().max_by_key(|(_, ns)| **ns)?;
                        Some((*ns, *fileset))
                    };
                    // Files that are cached are not waited for: calls on them take time all the same.
                    let waited = by_thread.get(&thread.key.tid).and_then(most);
                    let called = by_process.get(&thread.pid).and_then(most);
                    let (_, fileset) = waited.max(called)?;
                    Some((thread.key.tid, fileset))
                })
                .collect(),
            state: state(session, &times),
            times,
            whole: whole.kind(),
        }
    }

    /// Whether a set of files is there to be written.
    pub fn are_state(&self, fileset: u32) -> bool {
        self.state.contains(&fileset)
    }

    /// What a wait for files of a set is to be called.
    pub fn of(&self, fileset: u32, tid: u32) -> Kind {
        if fileset == 0 {
            return self.of_thread(tid).0;
        }
        self.by_fileset.get(&fileset).copied().unwrap_or(self.whole)
    }

    /// What a thread's time in calls on files is to be called: looking files up, and reading them.
    pub fn of_thread(&self, tid: u32) -> (Kind, Kind) {
        let kind = self
            .main_of_thread
            .get(&tid)
            .and_then(|fileset| self.by_fileset.get(fileset))
            .copied()
            .unwrap_or(self.whole);
        (kind, kind)
    }

    /// The set of files that a thread waited for most, or its process spent most time in calls on; 0: none.
    pub fn main_of_thread(&self, tid: u32) -> u32 {
        self.main_of_thread.get(&tid).copied().unwrap_or(0)
    }

    /// Time of every set.
    pub fn times(&self) -> &BTreeMap<u32, FileTime> {
        &self.times
    }

    /// Time of one set.
    pub fn time(&self, fileset: u32) -> FileTime {
        self.times.get(&fileset).copied().unwrap_or_default()
    }
}

/// Sets of files of one mount belong together: a data set is spread over directories.
fn group(session: &Session, fileset: u32) -> Option<&str> {
    session
        .filesets
        .get(&fileset)
        .and_then(|fact| fact.mount_point.as_deref())
}

fn state(session: &Session, times: &BTreeMap<u32, FileTime>) -> BTreeSet<u32> {
    let directory = |fileset: u32| session.filesets.get(&fileset)?.directory.as_deref();
    let mut sums = BTreeMap::<&str, FileTime>::new();
    for (fileset, time) in times {
        if let Some(directory) = directory(*fileset) {
            sums.entry(directory).or_default().add(time);
        }
    }
    let of_state = |fileset: &u32| {
        directory(*fileset)
            .and_then(|directory| sums.get(directory))
            .is_some_and(FileTime::are_state)
    };
    session.filesets.keys().copied().filter(of_state).collect()
}

fn groups<'a>(
    session: &'a Session,
    times: &BTreeMap<u32, FileTime>,
) -> BTreeMap<Option<&'a str>, FileTime> {
    let mut out = BTreeMap::<Option<&str>, FileTime>::new();
    for (fileset, time) in times {
        out.entry(group(session, *fileset)).or_default().add(time);
    }
    out
}

/// Whether a wait is for looking a file up rather than for its bytes.
pub fn is_meta(id: &WaitId) -> bool {
    call(id.nr) == Call::Meta
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_one_large_file_are_no_small_files() {
        // A mapped file of 256 MB, opened before the watch, and three new files beside it.
        let mapped = FileTime {
            opens: 3,
            meta_ns: 300_000,
            read_ns: 2_700_000_000,
            filled_bytes: 579 << 20,
            ..FileTime::default()
        };
        assert_eq!(mapped.kind(), Kind::StorageIo);
        // One that stays open and is read by calls, with a log.
        let kept = FileTime {
            filled_bytes: 0,
            read_bytes: 579 << 20,
            ..mapped
        };
        assert_eq!(kept.kind(), Kind::StorageIo);
        // As many bytes of files of 2 KB: whole pages are fetched.
        let small = FileTime {
            opens: 200_000,
            opened_bytes: 200_000 * 2048,
            meta_ns: 900_000_000,
            read_ns: 9_000_000_000,
            read_bytes: 200_000 * 2048,
            filled_bytes: 200_000 * 4096,
            ..FileTime::default()
        };
        assert_eq!(small.kind(), Kind::SmallFiles);
    }
}
