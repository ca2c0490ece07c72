//! `cargo xtask bench`: what watching costs, measured side by side in the same rounds.

mod alloc;
mod empty;
mod governor;
mod job;
mod loads;
mod overhead;
mod section;
pub mod stats;
mod table;
mod tools;

use anyhow::{Context, Result, bail};

/// Runs the named benchmark: `overhead`, `alloc` or `governor`, each with options of its own (`--help`).
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "overhead" => overhead::run(rest),
        Some((name, rest)) if name == "alloc" => alloc::run(rest),
        Some((name, rest)) if name == "governor" => governor::run(rest),
        // What a benchmark starts to compare with.
        Some((name, _)) if name == "empty" => empty::hold(),
        Some((name, _)) => {
            bail!("no benchmark is called {name}; there are: overhead, alloc, governor")
        }
        None => bail!("which benchmark? there are: overhead, alloc, governor"),
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
