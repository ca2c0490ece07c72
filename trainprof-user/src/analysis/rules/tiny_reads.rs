//! Reading files a few bytes at a time: each call takes a CPU for longer than what it copies.

use serde_json::json;

use super::{Evidence, Look, look::rounded};
use crate::analysis::{Kind, words};

/// Calls that read less than a page on average are tiny: buffered files of Python, and of C's library, read one or two pages.
const TINY_BYTES: f64 = 4096.0;
/// Their part (0–1) of the time from which on they are worth telling.
const MIN_SHARE: f64 = 0.1;

/// What is said of a cause's time that goes into such calls, and what to do about it.
pub(super) fn tiny_reads(
    look: &Look,
    kind: Kind,
    evidence: &mut Evidence,
) -> Option<(String, &'static str)> {
    let ns: f64 = look.filesets(kind).iter().map(|(_, ns)| ns).sum();
    let share = ns / look.trainer.wall;
    let reads = look.files_per_s(kind, |time| time.reads);
    let bytes = look.files_per_s(kind, |time| time.read_bytes) / reads;
    if share < MIN_SHARE || bytes.is_nan() || bytes >= TINY_BYTES {
        return None;
    }
    evidence.insert("reads_per_s", rounded(reads));
    evidence.insert("mean_read_bytes", json!(bytes.round()));
    evidence.insert("reads_share", rounded(share));
    Some((
        format!(
            "{reads:.0} reads a second of {} each are {} of it",
            words::bytes(bytes),
            words::percent(ns / look.trainer.ns(kind))
        ),
        "read more at a time (one read for many records, a larger buffer, or the file mapped: mmap, numpy.memmap)",
    ))
}
