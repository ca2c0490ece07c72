//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::PossibleValuesParser};

use crate::{gpu, report::gate, source::alloc::Mode};

const HELP: &str = "\
Examples:
  sudo trainprof attach 4711 -d 30s          watch a running job for 30 seconds
  sudo trainprof run -- python train.py      start a job and watch it to its end

Exit status: 0 done, 2 wrong command line or input, 3 not permitted or not supported on this host
(`trainprof doctor` says what is missing); 1 only with --fail-on. `run` ends with its command's own.";

const ATTACH_HELP: &str = "\
Examples:
  sudo trainprof attach 4711 -d 30s
  sudo trainprof attach 4711 -d 30s -o job.rec --json report.json

Exit status:
  0  done, also after Ctrl-C
  1  --fail-on was given, and one of its kinds was found
  2  wrong command line or input: no such process, a file that cannot be written
  3  not permitted or not supported on this host; `trainprof doctor` says what is missing";

const RUN_HELP: &str = "\
Examples:
  sudo trainprof run -- python train.py
  sudo trainprof run -d 60s --json report.json -- torchrun --nproc-per-node 2 train.py

With -d the watch ends after that time; the command goes on, and trainprof waits for its end.
Signals (INT, TERM, HUP, QUIT, USR1, USR2, ALRM, WINCH, those of real time and more) are passed on to the command.
TSTP and CONT are not: Ctrl-Z stops both. Killed with -9, trainprof leaves the command alone; one that has not begun yet ends with it.

Exit status: the command's own (127 not found, 126 cannot be executed, 128 + N ended by signal N).
  1  also when the command ended with 0 and one of the kinds of --fail-on was found
  2  wrong command line or input, and 3 not permitted or not supported on this host: the command was
     not started";

const REPORT_HELP: &str = "\
Examples:
  trainprof report job.rec
  trainprof report job.rec --format json > report.json

Takes no root and works on any machine. With the same --top the JSON is that of the watch itself, byte
for byte.

Exit status:
  0  done
  1  --fail-on was given, and one of its kinds was found
  2  wrong command line, or not a recording that can be read";

const DOCTOR_HELP: &str = "\
Examples:
  sudo trainprof doctor
  sudo trainprof doctor --json

Exit status: 0 this host allows a watch, 3 it does not.";

/// Tells, from outside, why a machine-learning training job is not faster.
#[derive(Debug, Parser)]
#[command(name = "trainprof", version, max_term_width = 100, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch running processes and all their descendants. Ctrl-C ends the watch, never the job.
    #[command(after_help = ATTACH_HELP, next_line_help = true)]
    Attach(AttachArgs),
    /// Start a command and watch it from its first instruction. Ends with the command's own exit status.
    #[command(after_help = RUN_HELP, next_line_help = true)]
    Run(RunArgs),
    /// Print the report of a recording.
    #[command(after_help = REPORT_HELP, next_line_help = true)]
    Report(ReportArgs),
    /// Tell what this host allows, what is missing, and how to get it.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Processes to watch, each with all its descendants: the launcher's or any rank's pid will do.
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
    /// Write a recording to this file. `trainprof report` makes the report from it again.
    #[arg(short, long, value_name = "REC")]
    pub output: Option<PathBuf>,
    /// Write the report as JSON to this file; `-`: to standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// GPUs: `auto`, `off`, or the path of NVIDIA's libnvidia-ml.so.1 where it is not found.
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub gpu: gpu::Choice,
    /// How to look at calls of malloc and its like.
    /// auto: for some milliseconds at a time, as often as the overhead budget pays for.
    /// full: probes on every call, all the time.
    /// A job that allocates much runs several times slower: for test benches only.
    /// off: not at all.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "auto",
        verbatim_doc_comment
    )]
    pub alloc: Mode,
    /// What watching may cost, as a share of the job's CPU time. Starting takes some 0.2 s of CPU time, so short watches cost more.
    /// Where counting every system call costs more, they are counted only part of the time. Numbers of
    /// files, calls and bytes are then estimates, and the report says so. A larger budget counts more.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share, verbatim_doc_comment)]
    pub overhead_budget: f64,
    /// Rows of each table, at most. Sums and counts are always over the whole job.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Print neither progress nor the text report.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub gate: GateArgs,
}

/// When the exit status tells of a finding.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Exit with status 1 when one of these was found, and say on standard error which. Separate several
    /// by commas. Causes (they count when the verdict's confidence is 50 % or more):
    ///   storage-io, small-files, network-io, input-cpu, serialization, cpu-contention,
    ///   cpu-throttled, allocation-churn, checkpoint, communication, host-compute, h2d-copy, compute
    /// Other findings:
    ///   too-few-workers, worker-respawn, tail-latency, rank-imbalance, page-cache-thrash,
    ///   copy-on-write, memory-growth, gpu-memory-growth, fd-growth, gpu-shared
    /// No cause could be told:
    ///   inconclusive
    #[arg(
        long,
        verbatim_doc_comment,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(gate::kinds())
    )]
    pub fail_on: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The recording, as written by -o of `attach` or `run`.
    #[arg(value_name = "REC")]
    pub recording: PathBuf,
    /// What to print to standard output: text for reading, or JSON (docs/JSON.md).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Rows of each table, at most. Sums and counts are always over the whole job.
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
    /// Print JSON in place of the text.
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
    fn the_help_names_every_kind_to_fail_on() {
        let mut command = Cli::command();
        for name in ["attach", "run", "report"] {
            let command = command
                .find_subcommand_mut(name)
                .expect("it is a subcommand");
            let help = command.render_long_help().to_string();
            let words: Vec<&str> = help.split([' ', ',', '\n']).collect();
            for kind in gate::kinds() {
                assert!(words.contains(&kind), "{name}: {kind}");
            }
        }
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
