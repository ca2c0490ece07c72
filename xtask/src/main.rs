//! The project's chores: `cargo xtask --help`.

mod bench;
mod cmd;
mod cpio;
mod demo;
mod ebpf;
mod lanes;
mod left_out;
mod on_host;
mod outcome;
mod scenarios;
mod setup;
#[path = "../../trainprof-user/build/source_hash.rs"]
mod source_hash;
mod test;
mod vm;

use anyhow::Result;
use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of trainprof")]
enum Task {
    /// Build the kernel probes into the object that trainprof carries
    Ebpf(ebpf::Args),
    /// Install what this host lacks for the build, the demo and the tests
    Setup(setup::Args),
    /// Run all tests, or the named parts
    Test(test::Args),
    /// Watch a real PyTorch training job and print the report
    Demo,
    /// Measure what watching costs: `cargo xtask bench overhead|alloc|governor --help`
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Inject one cause after the other into training loops, and see whether trainprof finds it
    Scenarios(scenarios::Args),
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Ebpf(args) => ebpf::main(&args),
        Task::Setup(args) => setup::main(&args),
        Task::Test(args) => test::main(&args),
        Task::Demo => demo::main(),
        Task::Bench { args } => bench::run(&args),
        Task::Scenarios(args) => scenarios::main(&args),
    }
}
