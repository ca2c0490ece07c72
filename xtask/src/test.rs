//! Runs all tests, counts them, and says what was left out.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{cargo, find_program, in_ci, is_root, output, root, run},
    demo, ebpf, on_host,
    outcome::{Outcome, Tally},
    scenarios::check,
    setup,
    vm::{self, Extent},
};

/// How often what needs this host's kernel, and failed, is tried again: it measures time, on hosts that others share.
pub const MORE_TRIES: u32 = 2;
/// What the tests are built with: optimised, but crate by crate.
const PROFILE: &str = "quick";

#[derive(clap::Args)]
pub struct Args {
    /// Formatting, clippy and the documentation's links
    #[arg(long)]
    lint: bool,
    /// Tests that need neither root nor a certain kernel
    #[arg(long)]
    unit: bool,
    /// Tests on this host's kernel
    #[arg(long)]
    root: bool,
    /// The same tests on other kernels, in emulated machines; named alone, all of them on each kernel
    #[arg(long)]
    vm: bool,
    /// Only tests whose name holds this
    filter: Option<String>,
}

/// The run's account: counts, and lines for what failed or was left out.
#[derive(Default)]
struct Account {
    tally: Tally,
    notes: Vec<String>,
    /// What failed tests wrote, again at the end: where a log is long, its middle is what gets cut.
    words: Vec<String>,
}

impl Account {
    /// One check that passes or fails as a whole.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        println!("\n== {name}");
        let result = check();
        if let Err(error) = &result {
            println!("{error:#}");
            self.notes
                .push(format!("FAILED {name}: {}", first_line(error)));
            self.tally.failed += 1;
        } else {
            self.tally.passed += 1;
        }
    }

    /// A part with tests of its own. An error that is no failed test counts as one.
    fn part(&mut self, name: &str, part: impl FnOnce() -> Result<Outcome>) {
        println!("\n== {name}");
        let begun = Instant::now();
        let result = part();
        self.ended(name, begun.elapsed(), result);
    }

    fn ended(&mut self, name: &str, took: Duration, result: Result<Outcome>) {
        match result {
            Ok(outcome) => {
                let tally = outcome.tally;
                println!(
                    "{name}: {} passed, {} failed in {:.0} s",
                    tally.passed,
                    tally.failed,
                    took.as_secs_f64()
                );
                for failed in &outcome.failed {
                    self.failed(name, &failed.test.to_string(), &failed.words);
                }
                for error in &outcome.errors {
                    self.failed(name, error, &[]);
                }
                if tally.failed as usize > outcome.failed.len() + outcome.errors.len() {
                    self.failed(name, "tests whose names could not be read", &[]);
                }
                if tally.skipped > 0 {
                    self.notes.push(format!(
                        "SKIPPED {name}: {} tests left themselves out, see SKIP",
                        tally.skipped
                    ));
                }
                let repeated = outcome.repeated.iter();
                self.notes.extend(repeated.map(|test| {
                    format!("REPEATED {name}: {test} passed at a later try only, see AGAIN")
                }));
                self.tally.add(tally);
            }
            Err(error) => {
                println!("{error:#}");
                self.notes
                    .push(format!("FAILED {name}: {}", first_line(&error)));
                self.tally.failed += 1;
            }
        }
    }

    /// Something of a part failed, and wrote these lines.
    fn failed(&mut self, part: &str, what: &str, words: &[String]) {
        self.notes.push(format!("FAILED {part}: {what}"));
        let words = words.iter();
        self.words
            .extend(words.map(|line| format!("{part}: {what}: {line}")));
    }

    /// Says aloud that something is not tested; in CI that is a failure.
    fn leave_out(&mut self, what: &str, why: &str) {
        if in_ci() {
            self.notes
                .push(format!("FAILED {what}: {why}, and CI leaves nothing out"));
            self.tally.failed += 1;
        } else {
            self.notes.push(format!("SKIPPED {what}: {why}"));
        }
        println!("{}", self.notes.last().map_or("", String::as_str));
    }

    /// Whether what a part needs could be had.
    fn ready(&mut self, what: &str, setup: impl FnOnce() -> Result<()>) -> bool {
        setup()
            .map_err(|error| self.leave_out(what, &format!("{error:#}")))
            .is_ok()
    }
}

fn first_line(error: &anyhow::Error) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// `cargo xtask test`
pub fn main(args: &Args) -> Result<()> {
    let all = !(args.lint || args.unit || args.root || args.vm);
    let filter = args.filter.as_deref();
    let mut account = Account::default();

    let has_toolchain = account.ready("the build of the kernel probes", setup::for_ebpf);
    if has_toolchain {
        account.check("kernel probes", ebpf::refresh);
    }
    if (all && filter.is_none()) || args.lint {
        lint(&mut account, has_toolchain);
    }
    if all || args.unit || args.root || args.vm {
        tests(&mut account, args, all);
    }

    println!();
    for line in account.words.iter().chain(&account.notes) {
        println!("{line}");
    }
    println!(
        "{} passed, {} failed",
        account.tally.passed, account.tally.failed
    );
    if account.tally.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn tests(account: &mut Account, args: &Args, all: bool) {
    let filter = args.filter.as_deref();
    println!("\n== build of the tests");
    match Built::new() {
        Ok(built) => {
            if all || args.unit {
                account.part("unit tests", || unit_tests(&built, filter));
            }
            if all || args.root || args.vm {
                on_kernels(account, &built, all || args.root, all || args.vm, filter);
            }
        }
        Err(error) => account.part("build of the tests", || Err(error)),
    }
}

fn lint(account: &mut Account, has_toolchain: bool) {
    account.check("formatting", || {
        run(cargo().args(["fmt", "--all", "--check", "--", "-l"]))?;
        run(cargo()
            .current_dir(root().join("trainprof-ebpf"))
            .args(["fmt", "--check", "--", "-l"]))
    });
    account.check("clippy", || {
        run(cargo().args([
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    account.check("clippy with the probes' log", || {
        run(cargo().args([
            "clippy",
            "--quiet",
            "--package",
            "trainprof-user",
            "--features",
            "probe-log",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    if has_toolchain && account.ready("clippy of the kernel probes", setup::for_ebpf_lint) {
        account.check("clippy of the kernel probes", || ebpf::clippy(false));
        account.check("clippy of the kernel probes with their log", || {
            ebpf::clippy(true)
        });
    }
    account.check("fuzz target", fuzz_target);
    account.check("documentation", || {
        let mut command = cargo();
        command.args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ]);
        run(command.env("RUSTDOCFLAGS", "-D warnings"))
    });
}

/// Checks that the fuzz target compiles. Running it takes nightly; this takes what is here.
fn fuzz_target() -> Result<()> {
    let folder = root().join("fuzz");
    let mut command = cargo();
    command
        .current_dir(&folder)
        .args(["check", "--quiet", "--locked", "--target-dir"])
        .arg(target_dir()?)
        // Else the build script of libfuzzer-sys compiles libFuzzer, which nothing is linked with here.
        .env("CUSTOM_LIBFUZZER_PATH", folder.join("Cargo.toml"));
    run(&mut command)
}

/// Tests that need neither root nor a certain kernel, and examples in the documentation.
fn unit_tests(built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let mut all = Outcome::default();
    let show = |line: &str| println!("{line}");
    for test in &built.units {
        println!("\n-- {}", name_of(&test.binary));
        let mut command = Command::new(&test.binary);
        command
            .args(filter)
            .current_dir(&test.folder)
            .env("CARGO_MANIFEST_DIR", &test.folder);
        all.add(counted(&test.binary, &mut command, show)?);
    }
    let mut examples = cargo();
    examples.args(["test", "--profile", PROFILE, "--workspace", "--doc"]);
    let examples = examples.args(filter);
    all.add(counted(Path::new("examples"), examples, show)?);
    Ok(all)
}

/// The tests that need a kernel: this host's and other ones.
fn on_kernels(
    account: &mut Account,
    built: &Built,
    on_host: bool,
    in_vms: bool,
    filter: Option<&str>,
) {
    if on_host && account.ready("root tests", setup::for_root_tests) {
        if is_root() || find_program("sudo").is_some() {
            account.part("root tests", || on_host::test(built, filter));
            if filter.is_none() {
                account.check("demo", || demo::check(&built.trainprof));
                if let Some(lack) = check::lack() {
                    account.leave_out("live verdicts", &lack);
                } else if account.ready("live verdicts", setup::for_scenarios) {
                    account.part("live verdicts", || check::verdicts(&built.trainprof));
                }
            }
        } else {
            account.leave_out("root tests", "they need root, and there is no sudo here");
        }
    }
    if in_vms && account.ready("tests in virtual machines", setup::for_vms) {
        // In a run of all tests what is alike on all kernels runs on one of them.
        let extent = if on_host && filter.is_none() {
            Extent::OnceWhereAlike
        } else {
            Extent::Everything
        };
        in_machines(account, built, filter, extent);
    }
}

/// The other kernels; what one of them took is what all took, as their machines run in turn.
fn in_machines(account: &mut Account, built: &Built, filter: Option<&str>, extent: Extent) {
    println!("\n== virtual machines");
    let begun = Instant::now();
    let ran =
        on_host::build_workloads().and_then(|()| vm::test(&setup::KERNELS, built, filter, extent));
    match ran {
        Ok(kernels) => {
            for (series, outcome) in kernels {
                account.ended(&format!("Linux {series}"), begun.elapsed(), Ok(outcome));
            }
        }
        Err(error) => account.ended("virtual machines", begun.elapsed(), Err(error)),
    }
}

/// What the tests are made of.
pub struct Built {
    pub trainprof: PathBuf,
    /// Those that need a kernel.
    pub test_binaries: Vec<PathBuf>,
    units: Vec<TestBinary>,
}

/// A binary of tests, and the folder of its package.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TestBinary {
    folder: PathBuf,
    binary: PathBuf,
}

impl Built {
    /// All at once: what packages share is built for all of them alike, and once.
    fn new() -> Result<Self> {
        let mut command = cargo();
        // Not the release profile: optimising each test binary across crates takes longer than all tests together.
        command.args(["test", "--workspace", "--profile", PROFILE, "--no-run"]);
        command.arg("--message-format=json-render-diagnostics");
        let messages = output(command.stderr(Stdio::inherit()))?;
        let mut tests: Vec<TestBinary> = messages.lines().filter_map(test_binary).collect();
        tests.sort();
        let (on_kernels, units): (Vec<_>, Vec<_>) = tests
            .into_iter()
            .partition(|test| test.folder == root().join("tests"));
        let trainprof = target_dir()?.join(PROFILE).join("trainprof");
        if !trainprof.is_file() {
            bail!("the build left no {}", trainprof.display());
        }
        Ok(Self {
            trainprof,
            test_binaries: on_kernels.into_iter().map(|test| test.binary).collect(),
            units,
        })
    }
}

/// The test binary that a line of cargo's JSON tells of.
fn test_binary(line: &str) -> Option<TestBinary> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    if !is_test {
        return None;
    }
    Some(TestBinary {
        folder: Path::new(message["manifest_path"].as_str()?)
            .parent()?
            .to_owned(),
        binary: PathBuf::from(message["executable"].as_str()?),
    })
}

/// Where cargo puts what it builds.
pub fn target_dir() -> Result<PathBuf> {
    let metadata =
        output(cargo().args(["metadata", "--format-version=1", "--no-deps", "--offline"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("cargo metadata wrote no JSON")?;
    Ok(Path::new(
        metadata["target_directory"]
            .as_str()
            .context("no target_directory")?,
    )
    .to_owned())
}

/// `root_kernel` of `…/deps/root_kernel-0123456789abcdef`.
pub fn name_of(binary: &Path) -> String {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-')
        .map_or(name.as_ref(), |(stem, _)| stem)
        .to_owned()
}

/// Runs a binary of tests, gives each line that they write to `show`, and adds up their results. A command that fails without a
/// failed test (it did not compile, it was killed) counts as a failure.
pub fn counted(
    binary: &Path,
    command: &mut Command,
    mut show: impl FnMut(&str),
) -> Result<Outcome> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", crate::cmd::show(command)))?;
    let stdout = child.stdout.take().context("the output is piped")?;
    let mut outcome = Outcome::of(&name_of(binary));
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        show(&line);
        outcome.read(&line);
    }
    let status = child.wait()?;
    if !status.success() && outcome.tally.failed == 0 {
        let error = format!("{} ended with {status}", crate::cmd::show(command));
        show(&error);
        outcome.broke(error);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::{TestBinary, name_of, test_binary};
    use std::path::{Path, PathBuf};

    #[test]
    fn only_test_binaries_are_taken_from_cargo() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","profile":{"test":true},"executable":"/t/deps/root-0a"}"#;
        let binary = PathBuf::from("/t/deps/root-0a");
        let folder = PathBuf::from("/w/tests");
        assert_eq!(test_binary(test), Some(TestBinary { folder, binary }));
        let program = r#"{"reason":"compiler-artifact","profile":{"test":false},"executable":"/t/trainprof"}"#;
        assert_eq!(test_binary(program), None);
        assert_eq!(test_binary("not json"), None);
    }

    #[test]
    fn a_binary_is_named_without_its_hash() {
        assert_eq!(
            name_of(Path::new("/t/deps/root_waits-0123abcd")),
            "root_waits"
        );
        assert_eq!(name_of(Path::new("/t/plain")), "plain");
    }
}
