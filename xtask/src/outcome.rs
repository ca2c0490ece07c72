//! Reads what libtest writes: how many tests passed, which failed, and what those wrote.

use std::fmt;

/// Lines kept of what a failed test wrote.
const MOST_WORDS: usize = 40;

/// What became of the tests so far.
#[derive(Default, Debug, PartialEq, Eq, Clone, Copy)]
pub struct Tally {
    pub passed: u32,
    pub failed: u32,
    /// Tests that said aloud that they left themselves out; libtest counts them as passed.
    pub skipped: u32,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
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

/// A test of a binary.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
pub struct Test {
    pub binary: String,
    pub name: String,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.binary)
    }
}

/// A test that failed, and what it wrote.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed {
    pub test: Test,
    pub words: Vec<String>,
}

/// What became of some tests.
#[derive(Default)]
pub struct Outcome {
    /// Whose output is read.
    binary: String,
    pub tally: Tally,
    pub failed: Vec<Failed>,
    /// Those that passed at a later try only: timing on a shared machine. They count as passed.
    pub repeated: Vec<Test>,
    /// What failed and is no test, one sentence each.
    pub errors: Vec<String>,
    /// Counts the lists within a binary's output: what failed tests wrote, then their names.
    lists: u32,
    /// Within a stack of calls, which says nothing that the message before it does not.
    in_stack: bool,
}

impl Outcome {
    /// Of this binary, which has written nothing yet.
    pub fn of(binary: &str) -> Self {
        let mut outcome = Self::default();
        outcome.begin(binary);
        outcome
    }

    /// What is read from now on is this binary's.
    pub fn begin(&mut self, binary: &str) {
        binary.clone_into(&mut self.binary);
        self.lists = 0;
        self.in_stack = false;
    }

    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        self.failed.extend(other.failed);
        self.repeated.extend(other.repeated);
        self.errors.extend(other.errors);
    }

    /// Something that is no test failed.
    pub fn broke(&mut self, error: String) {
        self.tally.failed += 1;
        self.errors.push(error);
    }

    /// A test that had failed was run again, alone, and passed.
    pub fn passed_again(&mut self, test: Test) {
        let before = self.failed.len();
        self.failed.retain(|failed| failed.test != test);
        if self.failed.len() == before {
            return;
        }
        self.tally.failed = self.tally.failed.saturating_sub(1);
        self.tally.passed += 1;
        self.repeated.push(test);
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
        } else if line.starts_with("test result: ") {
            self.lists = 0;
        } else if self.lists == 1 {
            self.read_words(line);
        } else if self.lists > 1
            && let Some(name) = line.strip_prefix("    ")
            && !name.contains(char::is_whitespace)
        {
            self.has_failed(name);
        }
    }

    /// Its words, or those of the next one, may have been garbled on their way.
    fn has_failed(&mut self, name: &str) {
        let test = Test {
            binary: self.binary.clone(),
            name: name.to_owned(),
        };
        if self.failed.iter().all(|failed| failed.test != test) {
            let words = Vec::new();
            self.failed.push(Failed { test, words });
        }
    }

    /// Reads a line of what failed tests wrote.
    fn read_words(&mut self, line: &str) {
        let title = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = title {
            self.in_stack = false;
            self.has_failed(name);
            return;
        }
        self.in_stack |= line == "stack backtrace:";
        if let Some(failed) = self.failed.last_mut()
            && !self.in_stack
            && !line.is_empty()
            && failed.words.len() < MOST_WORDS
        {
            failed.words.push(line.to_owned());
        }
        self.in_stack &= !line.starts_with("note: ");
    }
}

#[cfg(test)]
mod tests {
    use super::{Failed, Outcome, Tally, Test};

    #[test]
    fn result_lines_are_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(
            Tally::from_result_line(line),
            Some(Tally {
                passed: 12,
                failed: 3,
                skipped: 0
            })
        );
        assert_eq!(Tally::from_result_line("test a::b ... ok"), None);
        assert_eq!(Tally::from_result_line("test result: "), None);
    }

    #[test]
    fn failed_tests_are_known_by_name_with_their_words() {
        let text = "
running 5 tests
test a::one ... FAILED
test silent ... FAILED
test three ... FAILED
test two ... ok
test four ... ok
failures:

---- a::one stdout ----
    indented words of the test
stack backtrace:
   0: core::panicking::panic_fmt
note: Some details are omitted
    word

---- three stdout ----
stack backtrace:
   0: core::panicking::panic_fmt


failures:
    a::one
    silent
    three

test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
    afterwards
";
        let mut outcome = Outcome::of("waits");
        text.lines().for_each(|line| outcome.read(line));
        let test = |name: &str| Test {
            binary: "waits".to_owned(),
            name: name.to_owned(),
        };
        let one = Failed {
            test: test("a::one"),
            words: ["    indented words of the test", "    word"]
                .map(str::to_owned)
                .to_vec(),
        };
        let three = Failed {
            test: test("three"),
            words: Vec::new(),
        };
        let silent = Failed {
            test: test("silent"),
            words: Vec::new(),
        };
        assert_eq!(outcome.failed, [one, three, silent]);

        outcome.passed_again(test("a::one"));
        outcome.passed_again(test("nobody"));
        assert_eq!((outcome.tally.passed, outcome.tally.failed), (3, 2));
        assert_eq!(outcome.repeated, [test("a::one")]);
        assert_eq!(outcome.failed[0].test.to_string(), "three of waits");
    }
}
