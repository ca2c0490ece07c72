//! Operations on files and memory, summed up so that every attribution can be read off.

use std::collections::BTreeMap;

use trainprof_common::{
    hist::{COARSE_BUCKETS, LATENCY_BUCKETS, SIZE_BUCKETS, coarse_range, latency_range},
    op::Op,
};

use crate::record::fact::{HistSum, OpLatency, OpSum};

/// Operations that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpKey {
    /// Process, where it is known.
    pub pid: Option<u32>,
    pub fileset: u32,
    pub dev: u32,
    /// [`trainprof_common::op::Op`] number.
    pub op: u8,
    /// [`trainprof_common::op::Class`] number.
    pub class: u8,
}

/// How many, how much, how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTotal {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub ns: u64,
}

impl OpTotal {
    pub(super) fn of(op: &OpSum) -> Self {
        Self {
            count: op.count,
            errors: op.errors,
            bytes: op.bytes,
            ns: op.ns,
        }
    }

    /// Adds another total.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.ns += other.ns;
    }
}

/// Latencies and sizes.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub latency: [u64; LATENCY_BUCKETS],
    pub size: [u64; SIZE_BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            latency: [0; LATENCY_BUCKETS],
            size: [0; SIZE_BUCKETS],
        }
    }
}

impl Histogram {
    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        self.latency
            .iter_mut()
            .zip(&other.latency)
            .for_each(|(a, b)| *a += b);
        self.size
            .iter_mut()
            .zip(&other.size)
            .for_each(|(a, b)| *a += b);
    }

    fn count(&mut self, hist: &HistSum) {
        for (bucket, count) in &hist.latency {
            if let Some(slot) = self.latency.get_mut(usize::from(*bucket)) {
                *slot += u64::from(*count);
            }
        }
        for (bucket, count) in &hist.size {
            if let Some(slot) = self.size.get_mut(usize::from(*bucket)) {
                *slot += u64::from(*count);
            }
        }
    }

    /// The latency in nanoseconds below which a share `q` (0–1) of the operations stayed, interpolated
    /// inside its bucket: at most a quarter off. `None` when nothing was timed.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        quantile(&self.latency, latency_range, q)
    }
}

/// Latencies in fewer buckets, so that each file set can have its own.
#[derive(Clone, Debug)]
pub struct Coarse([u64; COARSE_BUCKETS]);

impl Default for Coarse {
    fn default() -> Self {
        Self([0; COARSE_BUCKETS])
    }
}

impl Coarse {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    /// Counts latencies that come in the buckets of a [`Histogram`], each twice as fine.
    pub(super) fn count(&mut self, latency: &[(u8, u32)]) {
        for (bucket, count) in latency {
            if let Some(slot) = self.0.get_mut(usize::from(*bucket) / 2) {
                *slot += u64::from(*count);
            }
        }
    }

    /// As [`Histogram::quantile_ns`]: at most half off.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        quantile(&self.0, coarse_range, q)
    }
}

/// The number below which a share `q` (0–1) of what was counted in buckets stayed.
fn quantile(counts: &[u64], range: fn(usize) -> (u64, u64), q: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = q * total as f64;
    let mut below = 0.0;
    for (bucket, count) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
        let count = *count as f64;
        if below + count >= rank {
            let (low, high) = range(bucket);
            let inside = ((rank - below) / count).clamp(0.0, 1.0);
            return Some(low as f64 + (high - low) as f64 * inside);
        }
        below += count;
    }
    None
}

/// Every operation of the job.
#[derive(Default)]
pub struct FileTotals {
    pub ops: BTreeMap<OpKey, OpTotal>,
    /// By device number, operation and class.
    pub histograms: BTreeMap<(u32, u8, u8), Histogram>,
    /// Likewise, of each process: its opens and reads alone, since there may be a thousand processes.
    pub by_process: BTreeMap<(u32, (u32, u8, u8)), Histogram>,
    /// Of each file set, by its number, device number, operation and class: opens and reads alone, since there may be many thousand.
    pub by_fileset: BTreeMap<(u32, u32, u8, u8), Coarse>,
    /// Sizes of calls on memory, by process and operation.
    pub memory_sizes: BTreeMap<(u32, u8), [u64; SIZE_BUCKETS]>,
}

/// Whether an operation is a call on memory.
pub fn on_memory(op: u8) -> bool {
    matches!(
        Op::try_from(op),
        Ok(Op::Mmap | Op::Munmap | Op::Brk | Op::Madvise | Op::Mremap)
    )
}

impl FileTotals {
    pub(super) fn add(&mut self, op: &OpSum, pid: Option<u32>) {
        let key = OpKey {
            pid,
            fileset: op.fileset,
            dev: op.dev,
            op: op.op,
            class: op.class,
        };
        self.ops.entry(key).or_default().add(&OpTotal::of(op));
    }

    pub(crate) fn add_histogram(&mut self, hist: &HistSum, pid: Option<u32>) {
        if let Some(pid) = pid.filter(|_| on_memory(hist.op)) {
            let known = self
                .memory_sizes
                .entry((pid, hist.op))
                .or_insert([0; SIZE_BUCKETS]);
            for (bucket, count) in &hist.size {
                if let Some(slot) = known.get_mut(usize::from(*bucket)) {
                    *slot += u64::from(*count);
                }
            }
        }
        let of = (hist.dev, hist.op, hist.class);
        self.histograms.entry(of).or_default().count(hist);
        if let Some(pid) = pid.filter(|_| opens_or_reads(hist.op)) {
            self.by_process.entry((pid, of)).or_default().count(hist);
        }
    }

    pub(super) fn add_latencies(&mut self, latencies: &[OpLatency]) {
        for fact in latencies.iter().filter(|fact| opens_or_reads(fact.op)) {
            let of = (fact.fileset, fact.dev, fact.op, fact.class);
            let known = self.by_fileset.entry(of).or_default();
            for (bucket, count) in &fact.latency {
                if let Some(slot) = known.0.get_mut(usize::from(*bucket)) {
                    *slot += u64::from(*count);
                }
            }
        }
    }
}

pub(super) fn opens_or_reads(op: u8) -> bool {
    matches!(Op::try_from(op), Ok(Op::Open | Op::Read | Op::UringRead))
}

#[cfg(test)]
mod tests {
    use trainprof_common::hist::latency_bucket;

    use super::*;

    #[test]
    fn quantiles_are_no_further_off_than_is_stated() {
        // All of them as long as the shortest, or the longest, of a bucket.
        for ns in (2..90).flat_map(|bucket| {
            let (low, high) = latency_range(bucket);
            [low, high - 1]
        }) {
            let mut histogram = Histogram::default();
            let mut coarse = Coarse::default();
            let bucket = latency_bucket(ns) as usize;
            histogram.latency[bucket] = 1_000;
            coarse.0[bucket / 2] = 1_000;
            // Below 256 ns the buckets are 64 and 128 ns wide.
            let off = |got: f64| (got - ns as f64).abs() / (ns as f64).max(256.0);
            for q in [0.001, 0.5, 0.999] {
                let fine = histogram.quantile_ns(q).expect("there are latencies");
                assert!(off(fine) <= 0.25, "{ns} ns: {fine}");
                let got = coarse.quantile_ns(q).expect("there are latencies");
                assert!(off(got) <= 0.5, "{ns} ns: {got}");
            }
        }
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), None);
        let mut coarse = Coarse::default();
        assert_eq!(coarse.quantile_ns(0.5), None);
        for ns in (1..=1000).map(|n| n * 1_000_u64) {
            let bucket = latency_bucket(ns) as usize;
            histogram.latency[bucket] += 1;
            coarse.0[bucket / 2] += 1;
        }
        for (q, expected) in [(0.5, 500_000.0), (0.95, 950_000.0), (0.99, 990_000.0)] {
            let got = histogram.quantile_ns(q).expect("there are latencies");
            assert!((got - expected).abs() / expected < 0.125, "{q}: {got}");
            let got = coarse.quantile_ns(q).expect("there are latencies");
            assert!((got - expected).abs() / expected < 0.25, "{q}: {got}");
        }
    }
}
