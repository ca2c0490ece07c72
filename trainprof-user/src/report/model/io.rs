//! Files, and descriptors that are none.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::env::mounts::MountFacts;

/// Files, and descriptors that are none.
#[derive(Clone, Debug, Serialize)]
pub struct Io {
    /// `null`, as the next four, where operations on files are not seen.
    pub opens: Option<u64>,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
    pub bytes_read: Option<u64>,
    pub bytes_written: Option<u64>,
    /// Share of the opened regular files that are smaller than 256 KiB.
    pub small_file_share: Option<f64>,
    /// Share of the bytes read that did not have to come from a device or a server.
    pub cache_hit_ratio: Option<f64>,
    pub latency_us: Latencies,
    pub operations: BTreeMap<&'static str, OperationRow>,
    /// Directories with operations or waits; `top` has the first of them.
    pub directories: usize,
    pub top: Vec<DirectoryRow>,
    /// By file system, the longest waited for first.
    pub filesystems: Vec<FilesystemRow>,
    pub extensions: Vec<ExtensionRow>,
    /// By `pipe`, `socket`, `shm`, `proc`, `device`, `anon`.
    pub other: BTreeMap<&'static str, OtherTraffic>,
    pub mounts: Vec<MountFacts>,
}

/// Quantiles in microseconds, at most a quarter off; half, where they are of a directory or an extension.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// From entry to exit, waits included; `null` when nothing was timed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latencies {
    pub open: Option<Quantiles>,
    pub read: Option<Quantiles>,
}

/// Operations of one kind on files; `count` includes the failed ones.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Operations {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    /// Sum over all threads, waits included; `None` for page faults, which are not timed.
    pub seconds: Option<f64>,
}

impl Operations {
    /// Adds others of the same kind to these.
    pub fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.errors += more.errors;
        self.bytes += more.bytes;
        self.seconds = self.seconds.zip(more.seconds).map(|(a, b)| a + b);
    }
}

/// The same of the whole job, and how long they took.
#[derive(Clone, Debug, Serialize)]
pub struct OperationRow {
    #[serde(flatten)]
    pub sum: Operations,
    pub latency_us: Option<Quantiles>,
}

/// Operations on files, and waits for them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FileTotals {
    pub opens: u64,
    pub reads: u64,
    pub bytes: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub stats: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Fetched by page faults on mapped files.
    pub fault_bytes: u64,
    /// In operations, all threads, waits included.
    pub seconds: f64,
    /// Waits on descriptors and in page faults, all threads.
    pub wait_s: f64,
}

impl FileTotals {
    /// Adds others to these.
    pub fn add(&mut self, more: &Self) {
        self.opens += more.opens;
        self.reads += more.reads;
        self.bytes += more.bytes;
        self.writes += more.writes;
        self.bytes_written += more.bytes_written;
        self.stats += more.stats;
        self.errors += more.errors;
        self.fault_bytes += more.fault_bytes;
        self.seconds += more.seconds;
        self.wait_s += more.wait_s;
    }
}

/// Operations and waits in one directory itself, not below it.
#[derive(Clone, Debug, Serialize)]
pub struct DirectoryRow {
    pub path: String,
    #[serde(flatten)]
    pub totals: FileTotals,
    /// Those that there were.
    pub operations: BTreeMap<&'static str, Operations>,
    pub mean_file_bytes: Option<f64>,
    pub filesystem: Option<String>,
    pub mount: Option<String>,
    pub latency_us: Latencies,
}

/// Operations and waits on one file system.
#[derive(Clone, Debug, Serialize)]
pub struct FilesystemRow {
    /// Its type; `null` where it is not known.
    pub filesystem: Option<String>,
    /// Where it is mounted; `null` likewise.
    pub mount: Option<String>,
    #[serde(flatten)]
    pub totals: FileTotals,
    pub operations: BTreeMap<&'static str, Operations>,
    pub latency_us: Latencies,
}

/// Operations on files with one extension; empty for those without.
#[derive(Clone, Debug, Serialize)]
pub struct ExtensionRow {
    pub extension: String,
    pub opens: u64,
    pub reads: u64,
    pub bytes: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// Operations that failed.
    pub errors: u64,
    /// In operations, all threads, waits included.
    pub seconds: f64,
    pub operations: BTreeMap<&'static str, Operations>,
    pub latency_us: Latencies,
}

/// Reads and writes of what is no file.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct OtherTraffic {
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}
