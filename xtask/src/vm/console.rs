//! What a machine writes to its console: which test binaries ran, and what became of their tests.

use std::collections::BTreeSet;

use crate::{
    left_out,
    outcome::{Outcome, Tally},
};

/// A test of a binary, by their names.
pub type Test = (String, String);

/// What the console said so far.
#[derive(Default)]
pub struct Console {
    pub outcome: Outcome,
    /// Names of tests that left themselves out.
    pub left_out: BTreeSet<String>,
    /// Tests that failed, of all binaries.
    pub failed: Vec<Test>,
    /// How many runs of a binary told a result.
    pub results: usize,
    is_up: bool,
    pub done: bool,
}

impl Console {
    /// Takes a line; whether it is of interest (the firmware's and the kernel's own words are not).
    pub fn read(&mut self, line: &str) -> bool {
        let tally = &mut self.outcome.tally;
        tally.add(Tally::from_skip_line(line).unwrap_or_default());
        self.left_out
            .extend(left_out::name_in(line).map(str::to_owned));
        if line.starts_with("VM-UP") {
            self.is_up = true;
        } else if line.starts_with("VM-DONE") {
            self.done = true;
        } else if line.starts_with("VM-BEGIN ") {
            self.outcome.failed.clear();
        } else if let Some(result) = line.strip_prefix("VM-RESULT ") {
            self.results += 1;
            self.ended(result);
        }
        self.outcome.read_failures(line);
        self.is_up
    }

    /// A run of a binary ended with this result: how many tests passed and failed, its exit status, its name.
    fn ended(&mut self, result: &str) {
        let tally = &mut self.outcome.tally;
        let mut words = result.split(' ');
        let mut number = || words.next()?.parse::<u32>().ok();
        match (number(), number(), number(), words.next()) {
            (Some(passed), Some(failed), Some(status), Some(name)) => {
                // A binary that was killed has not counted its own end.
                let failed = if status != 0 && failed == 0 {
                    1
                } else {
                    failed
                };
                tally.add(Tally {
                    passed,
                    failed,
                    ..Tally::default()
                });
                let tests = self.outcome.failed.drain(..);
                self.failed
                    .extend(tests.map(|test| (name.to_owned(), test)));
            }
            _ => tally.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Console, Tally};

    #[test]
    fn results_are_read_from_the_console() {
        let mut console = Console::default();
        assert!(!console.read("SeaBIOS"));
        assert!(console.read("VM-UP 6.1.0, 2 processors"));
        console.read("SKIP root_torch: needs PyTorch");
        console.read("VM-BEGIN root_io");
        console.read("failures:");
        console.read("");
        console.read("---- cold stdout ----");
        console.read("");
        console.read("failures:");
        console.read("    cold");
        console.read("");
        console.read("test result: FAILED. 4 passed; 1 failed; 0 ignored");
        console.read("VM-RESULT 4 1 101 root_io");
        console.read("VM-BEGIN root_hung");
        console.read("VM-RESULT 0 0 137 root_hung");
        console.read("VM-RESULT garbled");
        console.read("VM-DONE");
        assert!(console.done);
        assert_eq!(
            console.left_out.into_iter().collect::<Vec<_>>(),
            ["root_torch"]
        );
        assert_eq!(console.failed, [("root_io".to_owned(), "cold".to_owned())]);
        assert_eq!(
            (console.results, console.outcome.tally),
            (
                3,
                Tally {
                    passed: 4,
                    failed: 3,
                    skipped: 1,
                    repeated: 0
                }
            )
        );
    }
}
