//! Runs the root tests on this host's kernel. Those that mostly wait run two at a time; what measures cost, or looks at what the
//! whole host has, runs alone.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    cmd::{as_root, root, run},
    lanes,
    outcome::{Outcome, Test},
    test::{Built, MORE_TRIES, counted, name_of},
};

/// No binary of root tests takes longer, or it hangs.
const LIMIT_S: &str = "900";
/// How many of [`BESIDE`] run at the same time.
const LANES: usize = 2;
/// Test binaries that run beside others, the longest first: they compare with what their own workload counted and timed, and mostly
/// wait for it.
const BESIDE: &[&str] = &[
    "alloc",
    "memory",
    "alloc_chaos",
    "gpu_driver",
    "samples",
    "python_stacks",
    "python",
    "terminal",
    "alloc_functions",
    "family",
    "file_waits",
    "waits",
    "calls",
    "files",
    "lacks",
    "recording",
    "namespaces",
    "mapped",
    "privileges",
    "writes",
    "not_files",
    "contract",
    "opens",
    "overlay",
    "surroundings",
];

/// What failed is tried again, alone, when all others are through, by which time whatever else ran on the host may have ended.
pub fn test(built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let (beside, alone) = sorted(&built.test_binaries)?;
    // Before two binaries want them at the same time.
    build_workloads()?;
    let mut all = Outcome::default();
    let mut ended = side_by_side(built, &beside, filter);
    ended.extend(alone.into_iter().map(|binary| {
        println!("\n-- {}", name_of(binary));
        let show = |line: &str| println!("{line}");
        command(built, binary).and_then(|mut c| counted(binary, c.args(filter), show))
    }));
    for run in ended {
        all.add(run?);
    }
    let failed: Vec<Test> = all.failed.iter().map(|f| f.test.clone()).collect();
    for test in failed {
        if passes_now(built, &test)? {
            all.passed_again(test);
        }
    }
    Ok(all)
}

/// Whether a test that failed passes when it is run again, alone.
fn passes_now(built: &Built, test: &Test) -> Result<bool> {
    let all = built.test_binaries.iter();
    let Some(binary) = all.into_iter().find(|b| name_of(b) == test.binary) else {
        bail!("{test} failed, and there is no such binary");
    };
    for _ in 0..MORE_TRIES {
        println!("\nAGAIN {test}: it failed, and is run once more, alone");
        let mut command = command(built, binary)?;
        let again = counted(binary, command.args(["--exact", &test.name]), |line| {
            println!("{line}")
        })?;
        if (again.tally.passed, again.tally.failed) == (1, 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Those that run beside others, in the order of [`BESIDE`], and the rest.
fn sorted(binaries: &[PathBuf]) -> Result<(Vec<&PathBuf>, Vec<&PathBuf>)> {
    let place = |binary: &PathBuf| BESIDE.iter().position(|name| *name == name_of(binary));
    let (mut beside, alone): (Vec<_>, Vec<_>) =
        binaries.iter().partition(|binary| place(binary).is_some());
    beside.sort_by_key(|binary| place(binary));
    if beside.len() != BESIDE.len() {
        bail!(
            "{} of the {} test binaries that run beside others were built: xtask/src/on_host.rs names one that is not there",
            beside.len(),
            BESIDE.len()
        );
    }
    Ok((beside, alone))
}

/// Runs binaries in [`LANES`] lanes.
fn side_by_side(
    built: &Built,
    binaries: &[&PathBuf],
    filter: Option<&str>,
) -> Vec<Result<Outcome>> {
    lanes::work(LANES, binaries.iter().copied(), |binary| {
        shown_whole(built, binary, filter)
    })
}

/// Runs a binary, and shows what it wrote to standard output when it has ended, so that two do not mix.
fn shown_whole(built: &Built, binary: &Path, filter: Option<&str>) -> Result<Outcome> {
    let mut lines = format!("\n-- {}\n", name_of(binary));
    let run = counted(binary, command(built, binary)?.args(filter), |line| {
        lines.push_str(line);
        lines.push('\n');
    });
    print!("{lines}");
    run
}

/// Where the workloads are built into.
pub fn workloads() -> PathBuf {
    root().join("target/workloads")
}

/// Builds what the tests watch.
pub fn build_workloads() -> Result<()> {
    let script = root().join("tests/workloads/build.sh");
    run(Command::new("sh").arg(&script).arg(workloads()))
}

/// Runs a binary of root tests.
fn command(built: &Built, binary: &Path) -> Result<Command> {
    let mut command = as_root("env")?;
    // sudo drops the environment, so what the tests are told is named here.
    for name in [
        "CI",
        "PATH",
        "HOME",
        "CARGO_HOME",
        "RUST_BACKTRACE",
        "NO_COLOR",
        "TRAINPROF_PYTHON",
    ] {
        if let Some(value) = std::env::var_os(name) {
            let mut assignment = std::ffi::OsString::from(format!("{name}="));
            assignment.push(value);
            command.arg(assignment);
        }
    }
    command
        .arg(format!("TRAINPROF_BIN={}", built.trainprof.display()))
        .arg(format!("TRAINPROF_WORKLOADS={}", workloads().display()))
        .args(["timeout", "--kill-after=10", LIMIT_S])
        .arg(binary)
        .args(["--test-threads=1", "--show-output"])
        .env_remove("LD_LIBRARY_PATH")
        .current_dir(root().join("tests"));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::{BESIDE, sorted};
    use std::path::PathBuf;

    #[test]
    fn what_runs_beside_others_is_there_and_the_rest_runs_alone() {
        let mut built: Vec<PathBuf> = BESIDE
            .iter()
            .rev()
            .map(|name| PathBuf::from(format!("/t/deps/{name}-0a")))
            .collect();
        built.push(PathBuf::from("/t/deps/cost-0b"));
        let (beside, alone) = sorted(&built).expect("all are there");
        assert!(beside[0].ends_with(format!("{}-0a", BESIDE[0])));
        assert_eq!(alone, [&PathBuf::from("/t/deps/cost-0b")]);
        assert!(sorted(&built[1..]).is_err());
    }
}
