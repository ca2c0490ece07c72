//! What watching costs a job, its bystanders and the host: the job bare and under each tool, in turn,
//! round by round, so that whatever else changes on the host meets all of them alike.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Parser;

use super::Common;
use super::job::{Job, Work};
use super::loads::{Bench, Load};
use super::tools::{Attached, Paths, Tool, Used, is_installed};
use super::{chosen, section, table};

#[derive(Parser)]
#[command(
    name = "cargo xtask bench overhead",
    about = "Measure what watching costs"
)]
struct Options {
    /// Rounds per load; strace takes part in at most three
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Loads, by name and comma: jpeg, tiny, yield, futex, pipe, bystander-getppid, bystander-files, bystander-switches
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Tools beside the bare job: empty, trainprof, bpftrace, strace
    #[arg(long, value_delimiter = ',')]
    tools: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// One run of a load under a tool.
pub struct Sample {
    pub tool: Tool,
    pub round: usize,
    pub work: Work,
    pub used: Option<Used>,
}

/// All runs of a load.
pub struct Series {
    pub load: Load,
    pub samples: Vec<Sample>,
}

pub fn run(args: &[String]) -> Result<()> {
    let program = "cargo xtask bench overhead".to_owned();
    let options = match Options::try_parse_from(std::iter::once(&program).chain(args)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("no workspace")?;
    let loads = chosen(&options.only, &Load::ALL, Load::name)?;
    let mut tools = chosen(&options.tools, &Tool::ALL, Tool::name)?;
    if !tools.contains(&Tool::Bare) {
        tools.insert(0, Tool::Bare);
    }
    for (tool, program) in [(Tool::Bpftrace, "bpftrace"), (Tool::Strace, "strace")] {
        if tools.contains(&tool) && !is_installed(program) {
            eprintln!("SKIP {program}: not installed");
            tools.retain(|other| *other != tool);
        }
    }
    let folder = root.join("target/bench");
    let paths = Paths {
        trainprof: root.join(&options.common.trainprof),
        script: root.join("xtask/bench/loader.bt"),
        scratch: folder.join("scratch"),
    };
    if tools.contains(&Tool::Trainprof) && !paths.trainprof.is_file() {
        bail!(
            "{} is missing: cargo build --release",
            paths.trainprof.display()
        );
    }
    std::fs::create_dir_all(&paths.scratch)?;
    let bench = Bench::prepare(
        &folder,
        &root.join("xtask/bench"),
        options.common.scale,
        &loads,
    )?;
    let mut all = Vec::new();
    for load in loads {
        if let Some(lack) = bench.lack(load) {
            eprintln!("SKIP {}: {lack}", load.name());
            continue;
        }
        all.push(measure(&bench, load, &tools, options.rounds, &paths)?);
    }
    let text = table::render(&all, &tools, args);
    println!("{text}");
    if let Some(out) = &options.common.out {
        section::write(out, "overhead", &text)?;
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    load: Load,
    tools: &[Tool],
    rounds: usize,
    paths: &Paths,
) -> Result<Series> {
    // Warms the page cache, the allocator and the clock of the processor; not counted.
    once(bench, load, Tool::Bare, paths)?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        for &tool in tools {
            if round >= load.rounds(tool, rounds) {
                continue;
            }
            let (work, used) = once(bench, load, tool, paths)
                .with_context(|| format!("{} under {}", load.name(), tool.name()))?;
            eprintln!(
                "{} round {}/{rounds} {:<10} {:8.1} ns of wall and {:8.1} of CPU per {}",
                load.name(),
                round + 1,
                tool.name(),
                work.wall_ns_per_unit(),
                work.cpu_ns_per_unit(),
                load.unit()
            );
            samples.push(Sample {
                tool,
                round,
                work,
                used,
            });
        }
    }
    Ok(Series { load, samples })
}

fn once(bench: &Bench, load: Load, tool: Tool, paths: &Paths) -> Result<(Work, Option<Used>)> {
    let mut job = Job::start(&bench.command(load, tool)?)?;
    let idle = load
        .is_bystander()
        .then(|| Job::start(&bench.idle()))
        .transpose()?;
    let watched = idle.as_ref().unwrap_or(&job).pid();
    let attached = Attached::start(tool, watched, paths)?;
    job.work()?;
    let used = attached.map(Attached::stop).transpose()?;
    Ok((job.finish()?, used))
}
