//! `cargo xtask bench`: what watching costs, measured side by side in the same rounds.

mod job;
mod loads;
mod overhead;
pub mod stats;
mod table;
mod tools;

use anyhow::{Result, bail};

/// Runs the named benchmark: `overhead [--rounds N] [--only LOADS] [--tools NAMES] [--scale F] [--out FILE]`.
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "overhead" => overhead::run(rest),
        Some((name, _)) => bail!("no benchmark is called {name}; there is: overhead"),
        None => bail!("which benchmark? there is: overhead"),
    }
}
