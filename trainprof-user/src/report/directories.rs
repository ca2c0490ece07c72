//! Files by directory, file system and extension.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::op::{Class, Op};

use super::{
    io::{ByOperation, Group, add_traffic, group, op_of, round},
    latency::{Coarsely, Timed},
    model::{
        DirectoryRow, ExtensionRow, FileTotals, FilesystemRow, Latencies, Operations, Traffic,
    },
};
use crate::{
    record::fact::FilesetFact,
    session::{
        Coarse, OpKey, Session,
        kind::{WaitKind, wait_kind},
    },
    time::seconds,
};

/// What a directory's row is made of: files that were opened, the sum of their sizes, and how long that took.
struct Gathered {
    row: DirectoryRow,
    files: u64,
    bytes: u64,
    operations: ByOperation,
    timed: Coarsely,
}

/// Latencies on files.
fn timed(session: &Session) -> impl Iterator<Item = (OpKey, &Coarse)> {
    let all = session.files.by_fileset.iter();
    all.map(|((fileset, dev, op, class), latencies)| {
        let key = OpKey {
            pid: None,
            fileset: *fileset,
            dev: *dev,
            op: *op,
            class: *class,
        };
        (key, latencies)
    })
    .filter(|(key, _)| group(session, key) == Group::File)
}

pub fn directories(session: &Session) -> Vec<DirectoryRow> {
    // Of what was opened the mount is known; the text of a path was only compared with the mounts of the moment.
    let mut opened = BTreeMap::<&str, &FilesetFact>::new();
    for fact in session.filesets.values().filter(|fact| !fact.from_text) {
        if let Some(directory) = fact.directory.as_deref() {
            opened.entry(directory).or_insert(fact);
        }
    }
    let mut rows = BTreeMap::<String, Gathered>::new();
    let mut row_of = |fileset: Option<&FilesetFact>, change: &mut dyn FnMut(&mut Gathered)| {
        let path = fileset
            .and_then(|f| f.directory.clone())
            .unwrap_or_else(|| "(unknown)".to_owned());
        let entry = rows.entry(path.clone()).or_insert_with(|| {
            let fileset = opened.get(path.as_str()).copied().or(fileset);
            let row = DirectoryRow {
                path,
                totals: FileTotals::default(),
                operations: BTreeMap::new(),
                mean_file_bytes: None,
                filesystem: fileset.and_then(|f| f.fs_type.clone()),
                mount: fileset.and_then(|f| f.mount_point.clone()),
                latency_us: Latencies::default(),
            };
            Gathered {
                row,
                files: 0,
                bytes: 0,
                operations: ByOperation::default(),
                timed: Coarsely::default(),
            }
        });
        change(entry);
    };
    for (key, total) in &session.files.ops {
        let op = op_of(key);
        if group(session, key) != Group::File {
            continue;
        }
        row_of(session.filesets.get(&key.fileset), &mut |gathered| {
            gathered.operations.add(op, total);
            let row = &mut gathered.row;
            let mut traffic = Traffic::default();
            add_traffic(&mut traffic, op, total);
            row.totals.errors += total.errors;
            row.totals.seconds += seconds(total.ns);
            row.totals.opens += traffic.opens;
            row.totals.reads += traffic.reads;
            row.totals.bytes += traffic.bytes_read;
            row.totals.writes += traffic.writes;
            row.totals.bytes_written += traffic.bytes_written;
            if op == Op::FaultFill {
                row.totals.fault_bytes += total.bytes;
            }
            if op == Op::Stat {
                row.totals.stats += total.count;
            }
            if op == Op::Open && key.class != Class::Directory as u8 {
                gathered.files += total.count.saturating_sub(total.errors);
                gathered.bytes += total.bytes;
            }
        });
    }
    for (key, latencies) in timed(session) {
        row_of(session.filesets.get(&key.fileset), &mut |gathered| {
            gathered.timed.add(op_of(&key), latencies);
        });
    }
    for thread in session.threads.values() {
        for (id, total) in &thread.waits {
            if id.object.fileset != 0 && matches!(wait_kind(id), WaitKind::File | WaitKind::Fault) {
                row_of(session.filesets.get(&id.object.fileset), &mut |gathered| {
                    gathered.row.totals.wait_s += seconds(total.wait_ns)
                });
            }
        }
    }
    let mut rows: Vec<DirectoryRow> = rows
        .into_values()
        .map(
            |Gathered {
                 mut row,
                 files,
                 bytes,
                 operations,
                 timed,
             }| {
                row.operations = operations.rows();
                row.totals.seconds = round(row.totals.seconds, 9);
                row.mean_file_bytes = (files > 0).then(|| round(bytes as f64 / files as f64, 1));
                row.latency_us = timed.latencies();
                row
            },
        )
        .filter(|row| {
            row.totals.opens
                + row.totals.reads
                + row.totals.writes
                + row.totals.stats
                + row.totals.errors
                > 0
                || !row.operations.is_empty()
                || row.totals.bytes + row.totals.bytes_written + row.totals.fault_bytes > 0
                || row.totals.wait_s > 0.0
        })
        .collect();
    rows.sort_by(|a, b| {
        (b.totals.wait_s.total_cmp(&a.totals.wait_s))
            .then(
                (b.totals.opens + b.totals.reads + b.totals.writes + b.totals.stats)
                    .cmp(&(a.totals.opens + a.totals.reads + a.totals.writes + a.totals.stats)),
            )
            .then(a.path.cmp(&b.path))
    });
    rows
}

/// What its directories sum to, for each file system.
pub fn filesystems(
    session: &Session,
    directories: &[DirectoryRow],
    timed: &Timed<'_>,
) -> Vec<FilesystemRow> {
    let mut devices = BTreeMap::<(Option<&str>, Option<&str>), BTreeSet<u32>>::new();
    for key in session.files.ops.keys() {
        let fileset = session.filesets.get(&key.fileset);
        let filesystem = fileset.and_then(|fact| fact.fs_type.as_deref());
        let mount = fileset.and_then(|fact| fact.mount_point.as_deref());
        devices
            .entry((filesystem, mount))
            .or_default()
            .insert(key.dev);
    }
    type Sums = (FileTotals, BTreeMap<&'static str, Operations>);
    let mut sums = BTreeMap::<(Option<&str>, Option<&str>), Sums>::new();
    for directory in directories {
        let at = (directory.filesystem.as_deref(), directory.mount.as_deref());
        let (totals, operations) = sums.entry(at).or_default();
        totals.add(&directory.totals);
        for (name, more) in &directory.operations {
            operations
                .entry(name)
                .and_modify(|sum| sum.add(more))
                .or_insert(*more);
        }
    }
    let mut rows: Vec<FilesystemRow> = sums
        .into_iter()
        .map(
            |((filesystem, mount), (totals, operations))| FilesystemRow {
                operations: rounded(operations),
                latency_us: devices
                    .get(&(filesystem, mount))
                    .map(|devices| timed.on(devices))
                    .unwrap_or_default(),
                filesystem: filesystem.map(str::to_owned),
                mount: mount.map(str::to_owned),
                totals: FileTotals {
                    seconds: round(totals.seconds, 9),
                    wait_s: round(totals.wait_s, 9),
                    ..totals
                },
            },
        )
        .collect();
    rows.sort_by(|a, b| {
        let (a, b) = (&a.totals, &b.totals);
        (b.wait_s.total_cmp(&a.wait_s)).then((b.opens + b.reads).cmp(&(a.opens + a.reads)))
    });
    rows
}

/// Sums of seconds have digits that tell nothing.
fn rounded(
    mut operations: BTreeMap<&'static str, Operations>,
) -> BTreeMap<&'static str, Operations> {
    for sum in operations.values_mut() {
        sum.seconds = sum.seconds.map(|s| round(s, 9));
    }
    operations
}

fn empty_row(extension: String) -> ExtensionRow {
    ExtensionRow {
        extension,
        opens: 0,
        reads: 0,
        bytes: 0,
        writes: 0,
        bytes_written: 0,
        errors: 0,
        seconds: 0.0,
        operations: BTreeMap::new(),
        latency_us: Latencies::default(),
    }
}

pub fn extensions(session: &Session, top: usize) -> Vec<ExtensionRow> {
    let extension = |key: &OpKey| {
        let fileset = session.filesets.get(&key.fileset);
        fileset
            .and_then(|fact| fact.extension.clone())
            .unwrap_or_default()
    };
    let mut rows = BTreeMap::<String, (ExtensionRow, ByOperation)>::new();
    for (key, total) in &session.files.ops {
        if group(session, key) != Group::File || key.class == Class::Directory as u8 {
            continue;
        }
        let extension = extension(key);
        let mut traffic = Traffic::default();
        add_traffic(&mut traffic, op_of(key), total);
        let entry = rows.entry(extension.clone());
        let (row, operations) =
            entry.or_insert_with(|| (empty_row(extension), ByOperation::default()));
        operations.add(op_of(key), total);
        row.opens += traffic.opens;
        row.reads += traffic.reads;
        row.bytes += traffic.bytes_read;
        row.writes += traffic.writes;
        row.bytes_written += traffic.bytes_written;
        row.errors += total.errors;
        row.seconds += seconds(total.ns);
    }
    let mut took = BTreeMap::<String, Coarsely>::new();
    for (key, latencies) in timed(session).filter(|(key, _)| key.class != Class::Directory as u8) {
        let took = took.entry(extension(&key)).or_default();
        took.add(op_of(&key), latencies);
    }
    let mut rows: Vec<ExtensionRow> = rows
        .into_values()
        .map(|(row, operations)| ExtensionRow {
            operations: operations.rows(),
            seconds: round(row.seconds, 9),
            latency_us: took
                .get(&row.extension)
                .map(Coarsely::latencies)
                .unwrap_or_default(),
            ..row
        })
        .filter(|r| !r.operations.is_empty())
        .collect();
    rows.sort_by(|a, b| {
        (b.opens + b.reads)
            .cmp(&(a.opens + a.reads))
            .then(a.extension.cmp(&b.extension))
    });
    rows.truncate(top);
    rows
}
