//! The project's chores: `cargo xtask --help`.

mod cmd;
mod ebpf;
#[path = "../../trainprof-user/build/source_hash.rs"]
mod source_hash;

use anyhow::Result;
use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of trainprof")]
enum Task {
    /// Build the kernel probes into the object that trainprof carries
    Ebpf(ebpf::Args),
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Ebpf(args) => ebpf::main(&args),
    }
}
