//! Processes of a run: in its control groups, dead when the suite is, one after the other ended in the end.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::interrupt;

/// Nanoseconds of CLOCK_MONOTONIC, the clock of the jobs and of the kernel probes.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Which of its outputs a process is listened to on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    Output,
    Errors,
}

pub struct Process {
    child: Child,
    lines: Receiver<(u64, String)>,
    log: PathBuf,
}

impl Process {
    /// Starts a program in control groups; what it is not listened to on goes to a log file.
    pub fn start(
        argv: &[String],
        folder: &Path,
        groups: &[PathBuf],
        listen: Listen,
        log: &Path,
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let mut script = String::new();
        for group in groups {
            script += &format!("echo $$ > '{}/cgroup.procs' && ", group.display());
        }
        script += "exec setpriv --pdeathsig KILL -- \"$@\"";
        let file = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh"])
            .args(argv)
            .current_dir(folder)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0);
        match listen {
            Listen::Output => command.stdout(Stdio::piped()).stderr(file),
            Listen::Errors => command.stderr(Stdio::piped()).stdout(file),
        };
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", argv.join(" ")))?;
        let (send, lines) = channel();
        let output: Box<dyn std::io::Read + Send> = match listen {
            Listen::Output => Box::new(child.stdout.take().context("output is piped")?),
            Listen::Errors => Box::new(child.stderr.take().context("errors are piped")?),
        };
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody listens any more, but the pipe must not fill.
                let _ = send.send((now_ns(), line));
            }
        });
        Ok(Self {
            child,
            lines,
            log: log.to_owned(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line that begins so, with the time at which it came.
    pub fn line(&mut self, begins: &str, limit: Duration) -> Result<(u64, String)> {
        let begun = Instant::now();
        let mut heard = Vec::new();
        while begun.elapsed() < limit {
            interrupt::check()?;
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok((at, line)) if line.starts_with(begins) => return Ok((at, line)),
                Ok((_, line)) => heard.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        bail!(
            "no {begins:?} within {} s; said: {}",
            limit.as_secs(),
            self.told(&heard)
        )
    }

    /// Waits for its end with status 0.
    pub fn finish(&mut self, limit: Duration) -> Result<()> {
        let child = &mut self.child;
        let status = interrupt::wait_for("a program", limit, || Ok(child.try_wait()?))?;
        if !status.success() {
            let heard: Vec<_> = self.lines.try_iter().map(|(_, line)| line).collect();
            bail!("ended with {status}; said: {}", self.told(&heard));
        }
        Ok(())
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn told(&self, heard: &[String]) -> String {
        let mut text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text += &heard.join("\n");
        let chars: Vec<char> = text.chars().collect();
        chars[chars.len().saturating_sub(1500)..].iter().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_alive() {
            // SAFETY: kill has no memory preconditions; the child was not waited for, so its group is its own.
            unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}
