//! The part of the report that is about files and memory calls.

use std::collections::BTreeMap;

use trainprof_common::{
    hist::size_bucket,
    op::{Class, Op},
};

use super::{
    Shown,
    directories::{directories, extensions, filesystems},
    latency::{Timed, quantiles},
    model::{CallRow, Io, OperationRow, Operations, OtherTraffic, Traffic},
};
use crate::{
    env::CACHE_HITS,
    session::{Histogram, OpKey, OpTotal, Session},
    time::seconds,
};

/// A file below this size costs more to find and to open than to read (bytes). A power of two, so that the
/// size histogram tells exactly.
const SMALL_FILE_BYTES: u64 = 256 << 10;

/// Where shared memory of POSIX lies (shm_overview(7)).
const SHM_MOUNT: &str = "/dev/shm";

/// Major page faults among the operations, which are not timed.
const FAULTS: &str = "fault";

/// What an operation counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    File,
    Pipe,
    Socket,
    Shm,
    Proc,
    Device,
    Anon,
    Memory,
    /// What was closed is not known: it may have been anything.
    Untold,
}

/// File systems that the kernel makes up (proc(5), sysfs(5), cgroups(7)).
fn is_made_up(fs_type: &str) -> bool {
    matches!(
        fs_type,
        "proc"
            | "sysfs"
            | "cgroup"
            | "cgroup2"
            | "debugfs"
            | "tracefs"
            | "devtmpfs"
            | "devpts"
            | "bpf"
            | "securityfs"
            | "mqueue"
            | "configfs"
    )
}

pub fn group(session: &Session, key: &OpKey) -> Group {
    let fileset = session.filesets.get(&key.fileset);
    match Class::try_from(key.class).unwrap_or(Class::Unknown) {
        Class::File | Class::Directory => Group::File,
        Class::Pipe => Group::Pipe,
        Class::Socket => Group::Socket,
        Class::Tmpfs => match fileset.and_then(|f| f.mount_point.as_deref()) {
            Some(SHM_MOUNT) | None => Group::Shm,
            Some(_) => Group::File,
        },
        Class::Proc => Group::Proc,
        Class::Device => Group::Device,
        Class::Anon => Group::Anon,
        Class::Memory => Group::Memory,
        Class::Unknown if op_of(key) == Op::Close => Group::Untold,
        // Known by its path alone.
        Class::Unknown => match fileset.and_then(|f| f.fs_type.as_deref()) {
            Some(fs) if is_made_up(fs) => Group::Proc,
            Some("tmpfs") if fileset.and_then(|f| f.mount_point.as_deref()) == Some(SHM_MOUNT) => {
                Group::Shm
            }
            _ => Group::File,
        },
    }
}

pub fn op_of(key: &OpKey) -> Op {
    Op::try_from(key.op).unwrap_or(Op::None)
}

/// Name of an operation on files in the report; those of memory are elsewhere.
fn operation_name(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Open => "open",
        Op::Read | Op::UringRead => "read",
        Op::Write | Op::UringWrite => "write",
        Op::Close => "close",
        Op::Stat => "stat",
        Op::Getdents => "getdents",
        Op::Mmap => "mmap",
        Op::Fsync => "fsync",
        Op::Rename => "rename",
        Op::Unlink => "unlink",
        Op::Copy => "copy",
        Op::Fault => FAULTS,
        Op::CopyOut
        | Op::FaultFill
        | Op::Fill
        | Op::Munmap
        | Op::Brk
        | Op::Madvise
        | Op::Mremap
        | Op::None => {
            return None;
        }
    })
}

/// Reads and writes of one process.
pub fn traffic_of(session: &Session, pid: u32) -> Traffic {
    traffic(session, of_process(session, pid))
}

/// Calls of one kind that a process made.
pub fn calls_of(session: &Session, pid: u32, op: u8) -> u64 {
    let of_kind = of_process(session, pid).filter(|(key, _)| key.op == op);
    of_kind.map(|(_, total)| total.count).sum()
}

fn of_process(session: &Session, pid: u32) -> impl Iterator<Item = (&OpKey, &OpTotal)> {
    let edge = |end: u32| OpKey {
        pid: Some(pid),
        fileset: end,
        dev: end,
        op: end as u8,
        class: end as u8,
    };
    session.files.ops.range(edge(0)..=edge(u32::MAX))
}

/// Reads and writes of files among some of the operations that there were.
pub fn traffic<'a>(
    session: &Session,
    ops: impl Iterator<Item = (&'a OpKey, &'a OpTotal)>,
) -> Traffic {
    let mut out = Traffic::default();
    for (key, total) in ops.filter(|(key, _)| group(session, key) == Group::File) {
        add_traffic(&mut out, op_of(key), total);
    }
    out
}

pub fn add_traffic(out: &mut Traffic, op: Op, total: &OpTotal) {
    match op {
        Op::Open => out.opens += total.count.saturating_sub(total.errors),
        Op::Read | Op::UringRead => {
            out.reads += total.count;
            out.bytes_read += total.bytes;
        }
        Op::Write | Op::UringWrite => {
            out.writes += total.count;
            out.bytes_written += total.bytes;
        }
        Op::Copy => out.bytes_read += total.bytes,
        Op::CopyOut => out.bytes_written += total.bytes,
        _ => {}
    }
}

/// Everything about files.
pub fn io(session: &Session, shown: Shown) -> Io {
    let all = traffic(session, session.files.ops.iter());
    let timed = Timed::of(session);
    let seen = |n: u64| session.sees_files().then_some(n);
    let mut top = directories(session);
    let directories = top.len();
    let filesystems = filesystems(session, &top, &timed);
    top.truncate(shown.top);
    Io {
        opens: seen(all.opens),
        reads: seen(all.reads),
        writes: seen(all.writes),
        bytes_read: seen(all.bytes_read),
        bytes_written: seen(all.bytes_written),
        small_file_share: small_file_share(session),
        cache_hit_ratio: cache_hit_ratio(session, all.bytes_read),
        latency_us: timed.all(),
        operations: operations(session, &timed.by_operation()),
        directories,
        filesystems,
        top,
        extensions: extensions(session, shown.top),
        other: other(session),
        mounts: session.mounts.clone(),
    }
}

/// Rounds to a number of decimals: more digits than that carry no information.
pub fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    // The sum of no numbers, and what is rounded from below, is a zero with a sign.
    (value * scale).round() / scale + 0.0
}

fn small_file_share(session: &Session) -> Option<f64> {
    let limit = size_bucket(SMALL_FILE_BYTES) as usize;
    let mut small = 0;
    let mut total = 0;
    for ((_, op, class), histogram) in &session.files.histograms {
        if *op == Op::Open as u8 && *class == Class::File as u8 {
            small += histogram.size[..limit].iter().sum::<u64>();
            total += histogram.size.iter().sum::<u64>();
        }
    }
    (total > 0).then(|| small as f64 / total as f64)
}

/// Bytes that had to be fetched: pages added to the cache by readers, or what the kernel says was fetched
/// from storage on their behalf, whichever is more (direct I/O adds no pages; FUSE fetches from no device). Not known where
/// pages are not seen.
fn cache_hit_ratio(session: &Session, bytes_read: u64) -> Option<f64> {
    if bytes_read == 0 || !session.sees(CACHE_HITS) {
        return None;
    }
    let filled = |op: Op| -> u64 {
        let of_files = session
            .files
            .ops
            .iter()
            .filter(|(key, _)| key.class == Class::File as u8);
        of_files
            .filter(|(key, _)| op_of(key) == op)
            .map(|(_, total)| total.bytes)
            .sum()
    };
    let fetched: u64 = session
        .threads
        .values()
        .filter_map(|t| t.counters)
        .map(|c| c.storage_read_bytes)
        .sum();
    // What faults on mapped files fetched was not asked for by reads.
    let for_reads = filled(Op::Fill).max(fetched.saturating_sub(filled(Op::FaultFill)));
    Some(1.0 - (for_reads as f64 / bytes_read as f64).min(1.0))
}

fn operations(
    session: &Session,
    histograms: &BTreeMap<u8, Histogram>,
) -> BTreeMap<&'static str, OperationRow> {
    let sums = by_operation(session, session.files.ops.iter());
    // Every operation has its row, also when it was never seen.
    let mut rows: BTreeMap<&'static str, (Operations, Histogram)> = Op::ALL
        .into_iter()
        .filter_map(operation_name)
        .map(|name| {
            let none = || sum_of(name, &OpTotal::default());
            let sum = sums.get(name).copied().unwrap_or_else(none);
            (name, (sum, Histogram::default()))
        })
        .collect();
    for (op, histogram) in histograms {
        let name = Op::try_from(*op).ok().and_then(operation_name);
        let name = name.filter(|name| sums.contains_key(name));
        if let Some((_, sum)) = name.and_then(|name| rows.get_mut(name)) {
            sum.add(histogram);
        }
    }
    rows.into_iter()
        .map(|(name, (sum, histogram))| {
            let latency_us = quantiles(&histogram);
            (name, OperationRow { sum, latency_us })
        })
        .collect()
}

/// Operations on files of one process: those that it made.
pub fn operations_of(session: &Session, pid: u32) -> BTreeMap<&'static str, Operations> {
    by_operation(session, of_process(session, pid))
}

/// Operations on files of some of those that there were.
pub fn by_operation<'a>(
    session: &Session,
    ops: impl Iterator<Item = (&'a OpKey, &'a OpTotal)>,
) -> BTreeMap<&'static str, Operations> {
    let mut sums = ByOperation::default();
    for (key, total) in ops.filter(|(key, _)| group(session, key) == Group::File) {
        sums.add(op_of(key), total);
    }
    sums.rows()
}

/// Operations on files by their names in reports.
#[derive(Default)]
pub struct ByOperation(BTreeMap<&'static str, OpTotal>);

impl ByOperation {
    pub fn add(&mut self, op: Op, total: &OpTotal) {
        if op == Op::FaultFill {
            // Pages and not faults: one fault may bring in many.
            self.0.entry(FAULTS).or_default().bytes += total.bytes;
        } else if let Some(name) = operation_name(op) {
            self.0.entry(name).or_default().add(total);
        }
    }

    /// Those that there were.
    pub fn rows(&self) -> BTreeMap<&'static str, Operations> {
        let rows = self.0.iter();
        rows.map(|(name, total)| (*name, sum_of(name, total)))
            .collect()
    }
}

/// Of the operation of that name in reports.
fn sum_of(name: &str, total: &OpTotal) -> Operations {
    Operations {
        count: total.count,
        errors: total.errors,
        bytes: total.bytes,
        seconds: (name != FAULTS).then(|| seconds(total.ns)),
    }
}

fn other(session: &Session) -> BTreeMap<&'static str, OtherTraffic> {
    let names = [
        (Group::Pipe, "pipe"),
        (Group::Socket, "socket"),
        (Group::Shm, "shm"),
        (Group::Proc, "proc"),
        (Group::Device, "device"),
        (Group::Anon, "anon"),
    ];
    let mut out: BTreeMap<_, _> = names
        .iter()
        .map(|(_, name)| (*name, OtherTraffic::default()))
        .collect();
    for (key, total) in &session.files.ops {
        let of = group(session, key);
        let Some((_, name)) = names.iter().find(|(group, _)| *group == of) else {
            continue;
        };
        let mut traffic = Traffic::default();
        add_traffic(&mut traffic, op_of(key), total);
        let row = out.entry(name).or_default();
        row.reads += traffic.reads;
        row.writes += traffic.writes;
        row.bytes_read += traffic.bytes_read;
        row.bytes_written += traffic.bytes_written;
    }
    out
}

/// Name of a call that maps or unmaps memory.
pub fn memory_call(op: Op) -> Option<&'static str> {
    match op {
        Op::Mmap => Some("mmap"),
        Op::Munmap => Some("munmap"),
        Op::Brk => Some("brk"),
        Op::Madvise => Some("madvise"),
        Op::Mremap => Some("mremap"),
        _ => None,
    }
}

/// Calls that map and unmap memory.
pub fn memory_calls(session: &Session) -> BTreeMap<&'static str, CallRow> {
    let mut out: BTreeMap<&'static str, CallRow> = ["mmap", "munmap", "brk", "madvise", "mremap"]
        .into_iter()
        .map(|name| (name, CallRow::default()))
        .collect();
    for (key, total) in &session.files.ops {
        let Some(name) = memory_call(op_of(key)) else {
            continue;
        };
        let row = out.entry(name).or_default();
        row.count += total.count;
        row.bytes += total.bytes;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_errors_than_calls_as_in_a_damaged_recording_are_no_opens() {
        let mut out = Traffic::default();
        for (count, errors) in [(3, 1), (1, 4)] {
            let total = OpTotal {
                count,
                errors,
                ..OpTotal::default()
            };
            add_traffic(&mut out, Op::Open, &total);
        }
        assert_eq!(out.opens, 2);
    }
}
