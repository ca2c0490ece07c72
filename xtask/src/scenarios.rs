//! `cargo xtask scenarios`: real training loops with one injected cause each, and whether trainprof finds it.
//! How it works and what it measured: docs/ACCURACY.md.

mod catalogue;
pub mod check;
mod data;
mod freezer;
mod gain;
pub mod group;
mod interrupt;
mod judge;
mod param;
mod place;
mod process;
mod random;
mod run;
mod speedup;
mod table;

use std::{
    fs,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::{
    cmd::{cargo, is_root, output, root, run as run_command},
    setup,
    test::target_dir,
};
use catalogue::{ALL, Scenario};
use data::Folder;
use group::Priority;
use judge::{Verdict, judge};
use param::Settings;
use place::Ground;
use random::Random;
use table::Row;

#[derive(clap::Args)]
pub struct Args {
    /// Only scenarios whose name holds one of these (comma between them)
    #[arg(long)]
    filter: Option<String>,
    /// How many times each
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Random sizes, rates, counts and ways of starting workers, from this seed on
    #[arg(long, value_name = "SEED")]
    vary: Option<u64>,
    /// Everything measured, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep recordings, reports and truth in target/scenarios
    #[arg(long)]
    keep: bool,
    /// Only a few quick ones
    #[arg(long)]
    smoke: bool,
    /// How long each job is watched, in seconds
    #[arg(long, default_value_t = WATCH_S)]
    watch: f64,
    /// Time the jobs only: what the faults cost, without trainprof
    #[arg(long)]
    bare: bool,
    /// The trainprof to judge; built when not given
    #[arg(long)]
    program: Option<PathBuf>,
    /// Write the table into docs/ACCURACY.md
    #[arg(long)]
    write_docs: bool,
    /// Verdicts only: it is not measured what the faults cost, which takes most of the time
    #[arg(long)]
    no_gain: bool,
    /// Name the scenarios and end
    #[arg(long)]
    list: bool,
}

/// How long a job is watched, seconds.
const WATCH_S: f64 = 12.0;
/// What all random numbers come from without `--vary`: names and data sets are random then too.
const USUAL_SEED: u64 = 1;

pub fn main(args: &Args) -> Result<()> {
    if args.list {
        for scenario in ALL {
            println!(
                "{:20} {:18} {}",
                scenario.name, scenario.expect[0], scenario.about
            );
        }
        return Ok(());
    }
    if !is_root() {
        bail!("run it as root: it makes control groups and mounts");
    }
    let chosen: Vec<&'static Scenario> = ALL
        .iter()
        .filter(|scenario| !args.smoke || scenario.smoke)
        .filter(|scenario| {
            args.filter
                .as_ref()
                .is_none_or(|filter| filter.split(',').any(|part| scenario.name.contains(part)))
        })
        .collect();
    if chosen.is_empty() {
        bail!("no scenario is called so; --list names them");
    }
    // Before hours in which the working tree may change.
    let version = version(args)?;
    let rows = all(args, &chosen)?;
    let lines = table::summary(&rows);
    println!();
    for line in &lines {
        println!("{line}");
    }
    let misses = table::misses(&rows);
    for miss in &misses {
        println!("miss: {miss}");
    }
    if let Some(path) = &args.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        let all = json!({
            "version": version,
            "vary": args.vary,
            "seed": args.vary.unwrap_or(USUAL_SEED),
            "watch_s": args.watch,
            "summary": lines,
            "misses": misses,
            "rows": rows,
        });
        fs::write(path, serde_json::to_string_pretty(&all)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.write_docs {
        let lines = [
            lines,
            misses.iter().map(|miss| format!("miss: {miss}")).collect(),
        ]
        .concat();
        write_docs(&heading(args.runs, args.vary, &version), &rows, &lines)?;
    }
    let missed = rows
        .iter()
        .filter(|row| !row.verdict.misses.is_empty())
        .count();
    if missed > 0 {
        bail!("{missed} of {} runs missed something", rows.len());
    }
    if !misses.is_empty() {
        bail!("{}", misses.join("; "));
    }
    Ok(())
}

fn all(args: &Args, chosen: &[&'static Scenario]) -> Result<Vec<Row>> {
    setup::for_scenarios()?;
    interrupt::install();
    let target = target_dir()?;
    let trainprof = if args.bare {
        None
    } else if let Some(program) = &args.program {
        Some(std::path::absolute(program)?)
    } else {
        run_command(cargo().args(["build", "--release", "-p", "trainprof-user"]))?;
        Some(target.join("release/trainprof"))
    };
    let keep = args.keep.then(|| target.join("scenarios"));
    if let Some(folder) = &keep {
        fs::create_dir_all(folder)?;
    }
    let folder = target.join("jobs");
    let _alone = alone(Path::new(LOCK))?;
    place::sweep(&folder);
    let ground = Ground {
        python: setup::python().context("no Python here can import PyTorch")?,
        folder: Folder(folder),
        priority: Priority::take()?,
    };
    fs::create_dir_all(&ground.folder.0)?;
    let options = run::Options {
        trainprof,
        watch_s: args.watch,
        keep,
        gains: !args.no_gain,
    };
    println!("{}", table::line(&table::HEAD.map(str::to_owned)));
    let mut rows = Vec::new();
    for run in 0..args.runs {
        for &scenario in chosen {
            interrupt::check()?;
            let mut random =
                Random::new(args.vary.unwrap_or(USUAL_SEED) ^ hash(scenario.name, run));
            let settings = match args.vary {
                Some(_) => Settings::varied(scenario.params, &mut random),
                None => Settings::usual(scenario.params),
            };
            let label = format!("{}-{run}", scenario.name);
            let outcome = run::once(&ground, scenario, &settings, &options, &label, &mut random);
            interrupt::check()?;
            let row = match outcome {
                Ok(outcome) => Row {
                    scenario,
                    run,
                    verdict: judge(scenario, &outcome),
                    outcome: Some(outcome),
                },
                Err(error) => Row {
                    scenario,
                    run,
                    verdict: Verdict {
                        misses: vec![format!("run failed: {error:#}")],
                        ..Verdict::default()
                    },
                    outcome: None,
                },
            };
            println!("{}", table::line(&row.cells()));
            rows.push(row);
        }
    }
    Ok(rows)
}

/// On the host, not in the target folder: suites of several checkouts share control groups and shared memory.
const LOCK: &str = "/run/lock/trainprof-scenarios";

/// Two suites would take each other's jobs for leftovers and end them.
fn alone(path: &Path) -> Result<fs::File> {
    let file = fs::File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        bail!("another suite runs");
    }
    Ok(file)
}

/// FNV-1a, so that each scenario and each run has numbers of its own, whatever else is chosen.
fn hash(name: &str, run: usize) -> u64 {
    name.bytes()
        .chain(run.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
}

const BEGIN: &str = "<!-- table: written by `cargo xtask scenarios --write-docs` -->";
const END: &str = "<!-- end of table -->";

/// Which trainprof is judged: the commit, marked when files differ from it, or what another program says of itself.
fn version(args: &Args) -> Result<String> {
    if args.bare {
        return Ok("none".to_owned());
    }
    let text = match &args.program {
        Some(program) => output(Command::new(std::path::absolute(program)?).arg("--version"))?,
        None => output(
            Command::new("git")
                .args(["describe", "--always", "--tags", "--dirty"])
                .current_dir(root()),
        )?,
    };
    Ok(text.trim().to_owned())
}

/// How a table came about.
fn heading(runs: usize, vary: Option<u64>, version: &str) -> String {
    let option = vary.map_or(String::new(), |seed| format!(" --vary {seed}"));
    let seed = vary.unwrap_or(USUAL_SEED);
    format!("`cargo xtask scenarios --runs {runs}{option}`, trainprof {version}, seed {seed}:")
}

fn write_docs(heading: &str, rows: &[Row], summary: &[String]) -> Result<()> {
    let path = root().join("docs/ACCURACY.md");
    let old = fs::read_to_string(&path)?;
    let (before, rest) = old
        .split_once(BEGIN)
        .context("docs/ACCURACY.md has no place for it")?;
    let (_, after) = rest
        .split_once(END)
        .context("docs/ACCURACY.md has no end of table")?;
    let list: String = summary.iter().map(|line| format!("- {line}\n")).collect();
    let table = table::markdown(rows);
    let new = format!("{before}{BEGIN}\n\n{heading}\n\n{list}\n{table}\n{END}{after}");
    fs::write(path, new)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::heading;
    use crate::cmd::{in_ci, root, run};
    use crate::setup;

    #[test]
    fn a_table_says_what_made_it() {
        assert_eq!(
            heading(2, Some(31), "a313df5-dirty"),
            "`cargo xtask scenarios --runs 2 --vary 31`, trainprof a313df5-dirty, seed 31:"
        );
        assert_eq!(
            heading(1, None, "a313df5"),
            "`cargo xtask scenarios --runs 1`, trainprof a313df5, seed 1:"
        );
    }

    /// The scripts' side of the suite has tests of its own.
    #[test]
    fn arithmetic_of_truth() {
        let Some(python) = setup::python() else {
            assert!(!in_ci(), "no Python with numpy");
            println!("SKIP arithmetic_of_truth: no Python with numpy");
            return;
        };
        let mut tests = std::process::Command::new(python);
        tests
            .args(["-B", "-m", "unittest", "-q"])
            .current_dir(root().join("tests/scenarios"));
        run(&mut tests).unwrap();
    }
}
