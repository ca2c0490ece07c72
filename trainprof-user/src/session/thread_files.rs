//! What one thread did to files and memory: as [`FileTotals`](super::FileTotals), with no more detail than a thread's own row shows.

use std::collections::BTreeMap;

use trainprof_common::op::Class;

use super::files::{Coarse, OpKey, OpTotal, opens_or_reads};
use crate::record::fact::{HistSum, OpSum};

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
        let by_mount = matches!(
            Class::try_from(op.class),
            Ok(Class::Tmpfs | Class::Unknown) | Err(_)
        );
        let key = OpKey {
            pid: None,
            fileset: if by_mount { op.fileset } else { 0 },
            dev: 0,
            op: op.op,
            class: op.class,
        };
        self.ops.entry(key).or_default().add(&OpTotal::of(op));
    }

    pub(super) fn add_histogram(&mut self, hist: &HistSum) {
        if opens_or_reads(hist.op) {
            let of = (hist.dev, hist.op, hist.class);
            self.took.entry(of).or_default().count(&hist.latency);
        }
    }
}
