//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};

use crate::{gpu, report::gate, source::alloc::Mode};

/// Tells, from outside, why a machine-learning training job is not faster.
#[derive(Debug, Parser)]
#[command(name = "trainprof", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Profile running processes and all their descendants. Ctrl-C ends the watch, never the job.
    Attach(AttachArgs),
    /// Launch a command and profile it. Exits with the command's own status.
    Run(RunArgs),
    /// Print the report of a recording.
    Report(ReportArgs),
    /// Tell what this host allows, what is missing, and how to get it.
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Processes to watch.
    #[arg(required = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    #[command(flatten)]
    pub watch: WatchArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub watch: WatchArgs,
    /// The command and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// What `attach` and `run` have in common.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// How long to watch: 30s, 2m, 500ms, or a number of seconds. Default: until the job ends or Ctrl-C.
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Write the recording to this file.
    #[arg(short, long, value_name = "REC")]
    pub output: Option<PathBuf>,
    /// Write the report as JSON to this file; `-`: to standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// GPUs: `auto`, `off`, or the path of libnvidia-ml.so.1.
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub gpu: gpu::Choice,
    /// Calls of malloc and its like: `auto` looks at them in short windows, as far as the budget allows; `full` sees every
    /// call, which slows the job down several times; `off`.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub alloc: Mode,
    /// What watching may cost, of the job's CPU time: windows open no oftener than this pays for, and where it has no room for counting
    /// every system call they are counted in turns.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share)]
    pub overhead_budget: f64,
    /// Rows of each table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Neither progress nor the text report.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub gate: GateArgs,
}

/// When the exit status tells of a finding.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Exit with status 1 when one of these was found (separated by commas); `run`: unless the command itself failed.
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(gate::kinds())
    )]
    pub fail_on: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The recording.
    #[arg(value_name = "REC")]
    pub recording: PathBuf,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Rows of each table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    #[command(flatten)]
    pub gate: GateArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A time as people write it, or a number of seconds. More than nothing.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        Err(_) => humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write for example 30s, 2m or 500ms"))?,
    };
    if duration.is_zero() {
        Err("the time must be longer than nothing".to_owned())
    } else {
        Ok(duration)
    }
}

/// A share as people write it (`1%`, `0.5 %`, `0.01`), as 0–1. More than nothing, at most all.
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim_end(), 0.01),
        None => (text.trim(), 1.0),
    };
    number
        .parse::<f64>()
        .ok()
        .map(|number| number * unit)
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| "write a share above 0 and up to 100%, for example 1% or 0.01".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn shares() {
        for (text, share) in [
            ("1%", 0.01),
            ("0.5 %", 0.005),
            ("0.02", 0.02),
            ("100%", 1.0),
        ] {
            assert!(
                parse_share(text).is_ok_and(|got| (got - share).abs() < 1e-12),
                "{text}"
            );
        }
        for text in ["", "%", "0", "-1%", "101%", "nan", "much"] {
            assert!(parse_share(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("30s", 30_000),
            ("2m", 120_000),
            ("500ms", 500),
            ("1.5", 1_500),
            ("10", 10_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in ["", "0", "-1", "soon", "nan", "0s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }
}
