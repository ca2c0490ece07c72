//! A job with two gates (tests/workloads/wl.h): it waits, does a fixed amount of work, waits, and tells
//! how long the work took.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What one run of the work cost.
#[derive(Clone, Debug)]
pub struct Work {
    pub wall_s: f64,
    /// User and system time of the job's own processes.
    pub cpu_s: f64,
    /// Pieces of work (system calls, switches, samples).
    pub units: f64,
    /// All that the job counted.
    pub truth: Value,
}

impl Work {
    fn read(line: &str) -> Result<Self> {
        let truth: Value =
            serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        let number = |key: &str| {
            truth[key]
                .as_f64()
                .with_context(|| format!("no {key} in {line}"))
        };
        Ok(Self {
            wall_s: number("wall_s")?,
            cpu_s: number("cpu_s")?,
            units: number("units")?,
            truth: truth.clone(),
        })
    }

    pub fn wall_ns_per_unit(&self) -> f64 {
        self.wall_s * 1e9 / self.units
    }

    pub fn cpu_ns_per_unit(&self) -> f64 {
        self.cpu_s * 1e9 / self.units
    }
}

/// A job at its start gate.
pub struct Job {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Job {
    pub fn start(argv: &[OsString]) -> Result<Self> {
        let (program, args) = argv.split_first().context("an empty command")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut job = Self { child, stdout };
        // A tool that starts the job may have something to say first.
        while !job.line()?.starts_with("ready") {}
        Ok(job)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens the start gate and waits for the end of the work.
    pub fn work(&mut self) -> Result<()> {
        self.say("go\n")?;
        self.expect("done")
    }

    /// Opens the end gate; what the work cost.
    pub fn finish(mut self) -> Result<Work> {
        self.say("end\n")?;
        let work = Work::read(&self.line()?)?;
        self.child.wait()?;
        Ok(work)
    }

    /// Has the work done once; a job that can may do it again.
    pub fn turn(&mut self) -> Result<Work> {
        self.go()?;
        self.done()
    }

    /// Has the work begin.
    pub fn go(&mut self) -> Result<()> {
        self.say("go\n")
    }

    /// Waits until it is done.
    pub fn done(&mut self) -> Result<Work> {
        let line = self.line()?;
        let told = line.strip_prefix("done ");
        Work::read(told.with_context(|| format!("the job said {line:?} of its work"))?)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no standard input")?;
        stdin
            .write_all(line.as_bytes())
            .context("the job does not listen")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the job ended early: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        let line = self.line()?;
        if !line.starts_with(word) {
            bail!("the job said {line:?} in place of {word}");
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: kill has no memory preconditions; the child was not waited for, so its group is its own.
            unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
            let _ = self.child.wait();
        }
    }
}
