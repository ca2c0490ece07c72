//! What one thread did to files: as [`FileTotals`](super::FileTotals), with no more detail than a thread's own row shows.

use std::collections::BTreeMap;

use trainprof_common::op::Class;

use super::files::{Coarse, OpKey, OpTotal, opens_or_reads};
use crate::record::fact::{HistSum, OpSum};

/// File sets that are told apart for one thread: there may be thousands of threads, and of directories.
const MOST_APART: usize = 64;

/// Operations of one thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadFiles {
    /// File sets are told apart only where the class alone does not tell whether it is a file.
    pub ops: BTreeMap<OpKey, OpTotal>,
    /// Latencies of opens and reads, by device number, operation and class.
    pub took: BTreeMap<(u32, u8, u8), Coarse>,
}

impl ThreadFiles {
    pub(super) fn add(&mut self, op: &OpSum) {
        if !may_be_file(op.class) {
            return;
        }
        let by_mount = !is_file(op.class);
        let mut key = OpKey {
            pid: None,
            fileset: if by_mount { op.fileset } else { 0 },
            dev: 0,
            op: op.op,
            class: op.class,
        };
        if self.ops.len() >= MOST_APART && !self.ops.contains_key(&key) {
            key.fileset = 0;
        }
        self.ops.entry(key).or_default().add(&OpTotal::of(op));
    }

    pub(super) fn add_histogram(&mut self, hist: &HistSum) {
        if opens_or_reads(hist.op) && may_be_file(hist.class) {
            let of = (hist.dev, hist.op, hist.class);
            self.took.entry(of).or_default().count(&hist.latency);
        }
    }
}

fn is_file(class: u8) -> bool {
    matches!(Class::try_from(class), Ok(Class::File | Class::Directory))
}

/// Files, or what its mount tells from files.
fn may_be_file(class: u8) -> bool {
    let by_mount = matches!(Class::try_from(class), Ok(Class::Tmpfs | Class::Unknown));
    is_file(class) || by_mount
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::Op;

    use super::*;

    #[test]
    fn a_thread_has_so_many_sums_and_loses_no_call() {
        let mut files = ThreadFiles::default();
        for class in [Class::File, Class::Unknown, Class::Socket] {
            for fileset in 1..=1_000 {
                files.add(&OpSum {
                    tid: 1,
                    fileset,
                    dev: 1,
                    op: Op::Stat as u8,
                    class: class as u8,
                    count: 2,
                    errors: 1,
                    bytes: 0,
                    ns: 10,
                });
            }
        }
        assert!(files.ops.len() <= MOST_APART + 1, "{}", files.ops.len());
        let calls: u64 = files.ops.values().map(|total| total.count).sum();
        assert_eq!(calls, 4_000, "of files and of what is known by its path");
    }
}
