//! Whether the overhead governor keeps to its budget: a job whose allocations rise from ten thousand to five million a
//! second, bare and watched in turn. What watching adds is told twice: by trainprof, and by the job, which measures itself.

mod chart;
mod figures;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Parser;

use self::figures::{Course, Facts};
use super::{
    Common,
    job::{Job, Work},
    section,
    tools::{Attached, Launch, Paths, Used},
};
use crate::cmd::{output, root, run as run_command};

/// Calls of malloc a second, step by step.
const RATES: [u64; 6] = [10_000, 100_000, 500_000, 1_000_000, 2_000_000, 5_000_000];
const STEP_S: f64 = 20.0;

#[derive(Parser)]
#[command(
    name = "cargo xtask bench governor",
    about = "Measure whether watching keeps to its budget while a job allocates more and more"
)]
struct Options {
    /// Rounds: the job bare, then watched
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    common: Common,
}

/// The job bare, and watched.
pub struct Round {
    pub bare: Course,
    pub watched: Course,
    pub facts: Facts,
    pub used: Used,
}

pub fn run(args: &[String]) -> Result<()> {
    let program = "cargo xtask bench governor".to_owned();
    let options = match Options::try_parse_from(std::iter::once(&program).chain(args)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let scratch = root().join("target/bench/scratch");
    std::fs::create_dir_all(&scratch)?;
    let paths = Paths {
        trainprof: root().join(&options.common.trainprof),
        script: PathBuf::new(),
        scratch,
    };
    let facts = paths
        .trainprof
        .parent()
        .context("a program lies in a folder")?
        .join("examples/windows");
    for (file, cure) in [
        (&paths.trainprof, "cargo build --release"),
        (
            &facts,
            "cargo build --release -p trainprof-user --example windows",
        ),
    ] {
        if !file.is_file() {
            bail!("{} is missing: {cure}", file.display());
        }
    }
    let job = paths.scratch.join("rates");
    run_command(
        Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&job)
            .arg(root().join("xtask/bench/rates.c")),
    )
    .context("the benchmark needs cc")?;
    let mut line = vec![
        job.into_os_string(),
        "-".into(),
        (STEP_S * options.common.scale).to_string().into(),
    ];
    line.extend(RATES.map(|rate| OsString::from(rate.to_string())));
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let (bare, _) = once(&line, &paths, false)?;
        let (watched, used) = once(&line, &paths, true)?;
        let facts = facts_of(&facts, &paths)?;
        eprintln!(
            "round {}/{}: {} windows",
            round + 1,
            options.rounds,
            facts.windows.len()
        );
        rounds.push(Round {
            bare: Course::of(&bare.truth)?,
            watched: Course::of(&watched.truth)?,
            facts,
            used: used.context("trainprof told nothing")?,
        });
    }
    let text = chart::render(&rounds, args);
    println!("{text}");
    if let Some(out) = &options.common.out {
        section::write(out, "governor", &text)?;
    }
    Ok(())
}

fn once(line: &[OsString], paths: &Paths, watched: bool) -> Result<(Work, Option<Used>)> {
    let mut job = Job::start(line)?;
    let attached = watched
        .then(|| Launch::trainprof("trainprof", paths, job.pid()))
        .map(|launch| Attached::launch(launch, &paths.scratch))
        .transpose()?;
    job.work()?;
    let used = attached.map(Attached::stop).transpose()?;
    Ok((job.finish()?, used))
}

fn facts_of(program: &Path, paths: &Paths) -> Result<Facts> {
    Facts::of(&output(Command::new(program).arg(paths.recording()))?)
}
