//! What a machine writes to its console: which test binaries ran, and what became of their tests.

use std::collections::BTreeSet;

use crate::{
    left_out,
    outcome::{Outcome, Tally},
};

/// What the console said so far.
#[derive(Default)]
pub struct Console {
    pub outcome: Outcome,
    /// Names of tests that left themselves out.
    pub left_out: BTreeSet<String>,
    /// What each run of a binary told, in their order.
    pub results: Vec<Tally>,
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
        } else if let Some(run) = line.strip_prefix("VM-BEGIN ") {
            let name = run.split(' ').next().unwrap_or_default();
            self.outcome.begin(name);
        } else if let Some(result) = line.strip_prefix("VM-RESULT ") {
            self.ended(result);
        }
        self.outcome.read_failures(line);
        self.is_up
    }

    /// A run of a binary ended with this result: how many tests passed and failed, its exit status, its name.
    fn ended(&mut self, told: &str) {
        let mut words = told.split(' ');
        let mut number = || words.next()?.parse::<u32>().ok();
        let mut result = Tally::default();
        match (number(), number(), number()) {
            (Some(passed), Some(0), Some(0)) => result.passed = passed,
            (Some(passed), Some(failed), Some(_)) if failed > 0 => {
                result.passed = passed;
                result.failed = failed;
            }
            // A binary that was killed has not counted its own end.
            _ => {
                result.failed = 1;
                let error = format!("a binary ended with {told} (passed, failed, status, name)");
                self.outcome.errors.push(error);
            }
        }
        self.results.push(result);
        self.outcome.tally.add(result);
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
        let failed = console.outcome.failed.iter();
        assert_eq!(
            failed.map(|f| f.test.to_string()).collect::<Vec<_>>(),
            ["cold of root_io"]
        );
        let results = console.results.iter();
        assert_eq!(
            results.map(|r| (r.passed, r.failed)).collect::<Vec<_>>(),
            [(4, 1), (0, 1), (0, 1)]
        );
        let tally = Tally {
            passed: 4,
            failed: 3,
            skipped: 1,
        };
        assert_eq!(console.outcome.tally, tally);
        let errors = console.outcome.errors;
        assert!(
            errors.len() == 2 && errors[0].contains("0 0 137 root_hung"),
            "{errors:?}"
        );
    }
}
