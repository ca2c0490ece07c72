//! `cargo xtask bench`: what watching costs, measured side by side in the same rounds.

mod alloc;
mod empty;
mod governor;
mod job;
mod lasting;
mod loads;
mod overhead;
mod section;
pub mod stats;
mod table;
mod tools;
mod turns;
mod twins;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::{
    loads::{Bench, Load},
    tools::Paths,
};
use crate::cmd::root;

/// Options that every benchmark has.
#[derive(clap::Args)]
struct Common {
    /// Multiplies the work, or the length, of every run
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Also put the tables into this file, in place of what a run put there before
    #[arg(long)]
    out: Option<PathBuf>,
    /// The trainprof to measure; what else a benchmark needs of its build lies beside it
    #[arg(long, default_value = "target/release/trainprof")]
    trainprof: PathBuf,
}

/// What a benchmark of a job that goes on runs, and where.
struct Place {
    paths: Paths,
    bench: Bench,
}

impl Place {
    /// Ready for a job of that kind; an error where something is missing.
    fn new(common: &Common, load: Load) -> Result<Self> {
        let folder = root().join("target/bench");
        let sources = root().join("xtask/bench");
        let paths = Paths {
            trainprof: root().join(&common.trainprof),
            script: PathBuf::new(),
            scratch: folder.join("scratch"),
        };
        if !paths.trainprof.is_file() {
            bail!(
                "{} is missing: cargo build --release",
                paths.trainprof.display()
            );
        }
        std::fs::create_dir_all(&paths.scratch)?;
        let bench = Bench::prepare(&folder, &sources, common.scale, &[load])?;
        if let Some(lack) = bench.lack(load) {
            bail!("{lack}");
        }
        Ok(Self { paths, bench })
    }
}

/// Runs the named benchmark: `overhead`, `turns`, `twins`, `alloc` or `governor`, each with options of its own (`--help`).
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "overhead" => overhead::run(rest),
        Some((name, rest)) if name == "turns" => turns::run(rest),
        Some((name, rest)) if name == "twins" => twins::run(rest),
        Some((name, rest)) if name == "alloc" => alloc::run(rest),
        Some((name, rest)) if name == "governor" => governor::run(rest),
        // What a benchmark starts to compare with.
        Some((name, _)) if name == "empty" => empty::hold(),
        Some((name, _)) => {
            bail!(
                "no benchmark is called {name}; there are: overhead, turns, twins, alloc, governor"
            )
        }
        None => bail!("which benchmark? there are: overhead, turns, twins, alloc, governor"),
    }
}

/// Those of `all` that are named; all of them when none is.
fn chosen<T: Copy>(
    names: &[String],
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Vec<T>> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    names
        .iter()
        .map(|wanted| {
            all.iter()
                .copied()
                .find(|one| name(*one) == wanted)
                .with_context(|| {
                    let known: Vec<_> = all.iter().map(|one| name(*one)).collect();
                    format!("{wanted} is none of {}", known.join(", "))
                })
        })
        .collect()
}
