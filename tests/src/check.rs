//! Compares many values and reports every difference at once, both values shown.

use serde_json::Value;

use crate::report::{Report, f64_at, u64_at};

/// Times of at least this long must agree within [`TOLERANCE`].
const LONG_ENOUGH_S: f64 = 0.1;
const TOLERANCE: f64 = 0.02;
/// Under emulation one instruction of the clock's path costs what a system call costs elsewhere.
const TOLERANCE_VM: f64 = 0.10;

/// Collects differences; [`Checks::done`] fails when there are any.
#[derive(Default)]
pub struct Checks {
    compared: usize,
    wrong: Vec<String>,
}

impl Checks {
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts and bytes: exact.
    pub fn exact(&mut self, what: &str, truth: u64, report: u64) {
        self.compared += 1;
        if truth != report {
            let difference = report as i128 - truth as i128;
            self.wrong.push(format!(
                "{what}: truth {truth}, report {report} ({difference:+})"
            ));
        }
    }

    /// Times: within 2 % when at least 100 ms, else within 2 ms.
    pub fn near(&mut self, what: &str, truth: f64, report: f64) {
        self.compared += 1;
        let share = if crate::env::in_vm() {
            TOLERANCE_VM
        } else {
            TOLERANCE
        };
        let allowed = truth.max(LONG_ENOUGH_S) * share;
        if (truth - report).abs() > allowed {
            let percent = 100.0 * (report - truth) / truth;
            self.wrong.push(format!(
                "{what}: truth {truth:.6} s, report {report:.6} s ({percent:+.2} %)"
            ));
        }
    }

    pub fn that(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.compared += 1;
        if !holds {
            self.wrong.push(what());
        }
    }

    /// Nothing was lost: only then do counts have to be exact.
    pub fn nothing_lost(&mut self, report: &Report) {
        self.compared += 1;
        if report.lost() != 0 {
            self.wrong.push(format!("lost: {}", report.at("/coverage")));
        }
    }

    /// `/io/operations/NAME` against a count of the truth: calls, errors and, where `bytes`, bytes.
    pub fn operation(&mut self, report: &Report, name: &str, truth: &Value, bytes: bool) {
        let row = report.at(&format!("/io/operations/{name}"));
        self.exact(
            &format!("{name} count"),
            u64_at(truth, "/count"),
            u64_at(row, "/count"),
        );
        self.exact(
            &format!("{name} errors"),
            u64_at(truth, "/errors"),
            u64_at(row, "/errors"),
        );
        if bytes {
            self.exact(
                &format!("{name} bytes"),
                u64_at(truth, "/bytes"),
                u64_at(row, "/bytes"),
            );
        }
    }

    /// `/io/operations/NAME/seconds` against the time that the truth measured.
    pub fn operation_seconds(&mut self, report: &Report, name: &str, truth: &Value) {
        let row = report.at(&format!("/io/operations/{name}"));
        self.near(
            &format!("{name} seconds"),
            f64_at(truth, "/seconds"),
            f64_at(row, "/seconds"),
        );
    }

    /// The row of one directory: successful opens, reads and bytes.
    pub fn directory(
        &mut self,
        report: &Report,
        path: &str,
        opens: u64,
        reads: Option<u64>,
        bytes: u64,
    ) {
        let Some(row) = report.directory(path) else {
            let known: Vec<_> = report
                .rows("/io/top")
                .iter()
                .map(|row| row["path"].to_string())
                .collect();
            self.wrong.push(format!(
                "{path}: no row in io.top, which has {}",
                known.join(", ")
            ));
            return;
        };
        self.exact(&format!("{path}: opens"), opens, u64_at(row, "/opens"));
        if let Some(reads) = reads {
            self.exact(&format!("{path}: reads"), reads, u64_at(row, "/reads"));
        }
        self.exact(&format!("{path}: bytes"), bytes, u64_at(row, "/bytes"));
    }

    /// Fails with every difference.
    pub fn done(self) {
        assert!(
            self.wrong.is_empty(),
            "{} of {} comparisons differ:\n  {}",
            self.wrong.len(),
            self.compared,
            self.wrong.join("\n  ")
        );
    }
}
