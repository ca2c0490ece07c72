//! What watching allocations costs a job that makes a million a second: the job bare and under each tool, in turn, a bare
//! run before and after each, so that whatever else changes on the host meets both alike.

mod figures;
mod table;
mod tools;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Parser;

use self::{figures::Sample, tools::Peer};
use super::{
    Common, chosen,
    job::{Job, Work},
    section,
    tools::{Attached, Paths, Used},
};
use crate::cmd::{root, run as run_command};

/// What the load is.
pub const TITLE: &str = "A PyTorch and numpy job that augments small pictures in one process";
/// Pictures that the bare job makes in a run, for about 20 s.
pub const PICTURES: f64 = 200_000.0;
/// Pictures of the run that counts allocations.
const COUNTED: u64 = 3_200;

#[derive(Parser)]
#[command(
    name = "cargo xtask bench alloc",
    about = "Measure what watching allocations costs a job that makes many"
)]
struct Options {
    /// Rounds; each is every tool once, with a bare run before each
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Tools beside the bare job: trainprof, trainprof-off, memleak, bpftrace-count, bpftrace-stacks, memray, heaptrack
    #[arg(long, value_delimiter = ',')]
    tools: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// What is run, and with what.
struct Bench {
    python: PathBuf,
    paths: Paths,
    scale: f64,
}

pub fn run(args: &[String]) -> Result<()> {
    let program = "cargo xtask bench alloc".to_owned();
    let options = match Options::try_parse_from(std::iter::once(&program).chain(args)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let mut peers = chosen(&options.tools, &Peer::ALL, Peer::name)?;
    peers.retain(|peer| *peer != Peer::Bare);
    let mut left_out = Vec::new();
    peers.retain(|&peer| match peer.lack() {
        None => true,
        Some(lack) => {
            eprintln!("LEFT OUT: {}: {lack}", peer.name());
            left_out.push((peer, lack));
            false
        }
    });
    let scratch = root().join("target/bench/scratch");
    std::fs::create_dir_all(&scratch)?;
    let bench = Bench {
        python: python()?,
        paths: Paths {
            trainprof: root().join(&options.common.trainprof),
            script: PathBuf::new(),
            scratch,
        },
        scale: options.common.scale,
    };
    if peers.iter().any(|peer| peer.is_trainprof()) && !bench.paths.trainprof.is_file() {
        bail!(
            "{} is missing: cargo build --release",
            bench.paths.trainprof.display()
        );
    }
    let per_picture = bench.allocations_per_picture()?;
    // Warms the page cache and the clock of the processor; not counted.
    bench.once(Peer::Bare)?;
    let mut samples = vec![bench.sample(Peer::Bare, 0)?];
    for round in 1..=options.rounds {
        for &peer in &peers {
            samples.push(
                bench
                    .sample(peer, round)
                    .with_context(|| format!("the job under {}", peer.name()))?,
            );
            samples.push(bench.sample(Peer::Bare, round)?);
        }
    }
    let text = table::render(&samples, &left_out, per_picture, args);
    println!("{text}");
    if let Some(out) = &options.common.out {
        section::write(out, "alloc", &text)?;
    }
    Ok(())
}

/// The command line of the bare job, which makes so many pictures.
pub fn job(pictures: f64) -> Result<Vec<OsString>> {
    Ok(line(&python()?, pictures.max(64.0) as u64))
}

fn line(python: &Path, pictures: u64) -> Vec<OsString> {
    let script = root().join("xtask/bench/augment.py");
    let line = [python.as_os_str(), script.as_os_str()].map(OsString::from);
    line.into_iter()
        .chain([OsString::from("-"), pictures.to_string().into()])
        .collect()
}

fn python() -> Result<PathBuf> {
    crate::setup::python().context("no Python with torch and numpy: cargo xtask setup --bench")
}

impl Bench {
    /// Counted by a library before the allocator, in a run of its own: the work asks for the same each time.
    fn allocations_per_picture(&self) -> Result<f64> {
        let library = self.paths.scratch.join("count.so");
        run_command(
            Command::new("cc")
                .args(["-O2", "-shared", "-fPIC", "-o"])
                .arg(&library)
                .arg(root().join("xtask/bench/count.c")),
        )
        .context("the benchmark needs cc")?;
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(&library);
        let mut line = vec![OsString::from("env"), preload];
        line.extend(self::line(&self.python, COUNTED));
        let mut job = Job::start(&line)?;
        job.work()?;
        let work = job.finish()?;
        let counted = work.truth["allocations"]
            .as_f64()
            .context("the job did not tell what it allocated")?;
        Ok(counted / work.units)
    }

    fn sample(&self, peer: Peer, round: usize) -> Result<Sample> {
        let (work, used) = self.once(peer)?;
        eprintln!(
            "round {round} {:<16} {:8.2} µs of wall and {:8.2} of CPU per picture",
            peer.name(),
            work.wall_ns_per_unit() / 1e3,
            work.cpu_ns_per_unit() / 1e3,
        );
        Ok(Sample { peer, work, used })
    }

    fn once(&self, peer: Peer) -> Result<(Work, Option<Used>)> {
        let pictures = (PICTURES * self.scale * peer.share()).max(64.0) as u64;
        let output = self.paths.scratch.join("peer-output");
        let line = peer.command(self::line(&self.python, pictures), &output)?;
        let mut job = Job::start(&line)?;
        let attached = peer
            .launch(job.pid(), &self.paths)?
            .map(|launch| Attached::launch(launch, &self.paths.scratch))
            .transpose()?;
        job.work()?;
        let used = attached.map(Attached::stop).transpose()?;
        let work = job.finish()?;
        remove_outputs(&output);
        Ok((work, used))
    }
}

/// Removes what a tool wrote, under whatever ending: gigabytes, with some.
fn remove_outputs(output: &Path) {
    let (Some(folder), Some(name)) = (output.parent(), output.file_name()) else {
        return;
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let begins = entry
            .file_name()
            .to_str()
            .zip(name.to_str())
            .is_some_and(|(file, name)| file.starts_with(name));
        if begins {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
