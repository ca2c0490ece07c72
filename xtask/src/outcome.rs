//! Reads what libtest writes: how many tests passed, which failed, and what those wrote.

/// Lines kept of what the failed tests of one part wrote.
const MOST_WORDS: usize = 200;

/// What became of the tests so far.
#[derive(Default, Debug, PartialEq, Eq, Clone, Copy)]
pub struct Tally {
    pub passed: u32,
    pub failed: u32,
    /// Tests that said aloud that they left themselves out; libtest counts them as passed.
    pub skipped: u32,
    /// Tests that passed at a later try only: timing on a shared machine. They count as passed.
    pub repeated: u32,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.repeated += other.repeated;
    }

    /// A test that had failed was run again, alone.
    pub fn tried_again(&mut self, passed: bool) {
        if passed {
            self.failed = self.failed.saturating_sub(1);
            self.passed += 1;
            self.repeated += 1;
        }
    }

    /// Reads libtest's `test result: ok. 3 passed; 0 failed; …`.
    pub fn from_result_line(line: &str) -> Option<Self> {
        let (_, counts) = line
            .trim()
            .strip_prefix("test result: ")?
            .split_once(". ")?;
        let count = |word: &str| {
            let part = counts
                .split("; ")
                .find_map(|part| part.strip_suffix(word))?;
            part.trim().parse().ok()
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            ..Self::default()
        })
    }

    /// Reads a test's own `SKIP name: reason`.
    pub fn from_skip_line(line: &str) -> Option<Self> {
        let one = Self {
            skipped: 1,
            ..Self::default()
        };
        line.starts_with("SKIP ").then_some(one)
    }
}

/// What became of some tests.
#[derive(Default)]
pub struct Outcome {
    pub tally: Tally,
    /// Names of those that failed, of the last binary.
    pub failed: Vec<String>,
    /// What they wrote.
    pub words: Vec<String>,
    /// Counts the lists within a binary's output: what failed tests wrote, then their names.
    lists: u32,
    /// Within a stack of calls, which says nothing that the message before it does not.
    in_stack: bool,
}

impl Outcome {
    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        self.words.extend(other.words);
    }

    /// Reads a line of libtest's output.
    pub fn read(&mut self, line: &str) {
        self.tally
            .add(Tally::from_result_line(line).unwrap_or_default());
        self.read_failures(line);
        self.tally
            .add(Tally::from_skip_line(line).unwrap_or_default());
    }

    /// Reads who failed, and what they wrote, but counts nothing.
    pub fn read_failures(&mut self, line: &str) {
        if line == "failures:" {
            self.lists += 1;
            self.failed.clear();
        } else if line.starts_with("test result: ") {
            self.lists = 0;
        } else if self.lists == 1 && !line.is_empty() && self.words.len() < MOST_WORDS {
            self.in_stack &= !line.starts_with("---- ");
            self.in_stack |= line == "stack backtrace:";
            if !self.in_stack {
                self.words.push(line.to_owned());
            }
            self.in_stack &= !line.starts_with("note: ");
        }
        if self.lists > 0
            && let Some(name) = line.strip_prefix("    ")
            && !name.is_empty()
            && !name.contains(char::is_whitespace)
        {
            self.failed.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Tally};

    #[test]
    fn result_lines_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(
            Tally::from_result_line(line),
            Some(Tally {
                passed: 12,
                failed: 3,
                ..Tally::default()
            })
        );
        assert_eq!(Tally::from_result_line("test a::b ... ok"), None);
        assert_eq!(Tally::from_result_line("test result: "), None);
    }

    #[test]
    fn failed_tests_are_known_by_name() {
        let text = "
running 3 tests
test a::one ... FAILED
test two ... ok
failures:

---- a::one stdout ----
    indented words of the test
stack backtrace:
   0: core::panicking::panic_fmt
note: Some details are omitted
    word

failures:
    a::one

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
    afterwards
";
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.read(line));
        assert_eq!(outcome.failed, ["a::one"]);
        assert_eq!(
            outcome.words,
            [
                "---- a::one stdout ----",
                "    indented words of the test",
                "    word"
            ]
        );
        outcome.tally.tried_again(true);
        assert_eq!(
            (
                outcome.tally.passed,
                outcome.tally.failed,
                outcome.tally.repeated
            ),
            (3, 0, 1)
        );
    }
}
