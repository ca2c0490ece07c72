//! The commands: arguments, exit statuses, and putting the stages together.

mod attach;
mod beat;
pub mod cli;
mod doctor;
mod launch;
mod output;
mod progress;
mod replay;
mod run;
mod stop;
mod watch;

use std::{
    fmt,
    io::{self, Write as _},
};

use cli::{Cli, Command};

/// What a command ends with (exit statuses are those of DESIGN: 0 done, 2 usage or bad input, 3 not
/// permitted or not supported here).
#[derive(Debug)]
pub struct Failure {
    pub status: u8,
    pub message: String,
}

impl Failure {
    /// Usage or bad input.
    pub fn input(message: impl fmt::Display) -> Self {
        Self {
            status: 2,
            message: message.to_string(),
        }
    }

    /// Not permitted, or not supported by this host.
    pub fn host(message: impl fmt::Display) -> Self {
        Self {
            status: 3,
            message: message.to_string(),
        }
    }
}

/// Says something on standard error. Where that cannot be written (its disk is full, its reader is gone) it goes unsaid: a watch, its
/// report and the status of a command do not hang on it.
pub fn say(message: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "trainprof: {message}");
}

/// Runs a command line; gives the exit status.
pub fn main(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Attach(args) => attach::attach(&args),
        Command::Run(args) => run::run(&args),
        Command::Report(args) => replay::report(&args),
        Command::Doctor(args) => doctor::doctor(&args),
    }
}
