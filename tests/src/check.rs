//! Compares many values and reports every difference at once, both values shown.

use serde_json::Value;

use crate::report::{Report, f64_at, u64_at};

/// Times of at least this long must agree within [`TOLERANCE`].
const LONG_ENOUGH_S: f64 = 0.1;
const TOLERANCE: f64 = 0.02;
/// An emulated processor takes as long for a probe as for the call that it is on, and the job's own timing of the call has
/// both: there times show that they are told at all, and the processor's own kernel shows that they are right.
const TOLERANCE_VM: f64 = 0.25;

/// Whether two times agree within `share` of a long time, or of [`LONG_ENOUGH_S`].
fn agree(truth: f64, report: f64, share: f64) -> bool {
    (truth - report).abs() <= truth.max(LONG_ENOUGH_S) * share
}

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
        self.between(what, (truth, truth), report);
    }

    /// The same where the truth is known to lie between two times.
    pub fn between(&mut self, what: &str, (least, most): (f64, f64), report: f64) {
        let truth = report.clamp(least, most);
        self.compared += 1;
        let share = if crate::env::in_vm() {
            TOLERANCE_VM
        } else {
            TOLERANCE
        };
        if !agree(truth, report, share) {
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
        let members: &[&str] = if bytes {
            &["count", "errors", "bytes"]
        } else {
            &["count", "errors"]
        };
        for member in members {
            let at = format!("/io/operations/{name}/{member}");
            self.member(report, &at, u64_at(truth, &format!("/{member}")));
        }
    }

    /// A whole number of the report.
    pub fn member(&mut self, report: &Report, pointer: &str, truth: u64) {
        match report.0.pointer(pointer).and_then(Value::as_u64) {
            Some(found) => self.exact(pointer, truth, found),
            // contract.rs asserts which keys are always there; here an absent row means: none.
            None if truth == 0 => self.compared += 1,
            None => self.that(false, || {
                format!("{pointer}: truth {truth}, not in the report")
            }),
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

#[cfg(test)]
mod tests {
    use super::{Checks, TOLERANCE, agree};

    #[test]
    fn near_is_two_percent_of_long_times_and_two_ms_of_short_ones() {
        for (truth, report) in [(1.0, 1.0199), (1.0, 0.9801), (0.001, 0.0029)] {
            assert!(agree(truth, report, TOLERANCE), "{truth} {report}");
        }
        for (truth, report) in [(1.0, 1.021), (1.0, 0.979), (0.001, 0.0031)] {
            assert!(!agree(truth, report, TOLERANCE), "{truth} {report}");
        }
    }

    #[test]
    fn every_difference_is_shown_with_both_values() {
        let mut checks = Checks::new();
        checks.exact("reads", 3, 5);
        checks.exact("opens", 2, 2);
        checks.exact("bytes", 100, 98);
        let message = std::panic::catch_unwind(|| checks.done()).expect_err("two differ");
        let message = message.downcast_ref::<String>().expect("a message");
        assert!(message.contains("2 of 3"), "{message}");
        assert!(
            message.contains("reads: truth 3, report 5 (+2)"),
            "{message}"
        );
        assert!(
            message.contains("bytes: truth 100, report 98 (-2)"),
            "{message}"
        );
    }
}
