//! Builds, starts and steers workloads (`tests/workloads`, see `wl.h` there for their life).

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than any workload works, an emulated machine included.
const PATIENCE: Duration = Duration::from_secs(120);

/// The folder of built workloads.
pub fn folder() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if let Some(given) = std::env::var_os("TRAINPROF_WORKLOADS") {
                return given.into();
            }
            let out = crate::env::target().join("workloads");
            let script = crate::env::workspace().join("tests/workloads/build.sh");
            let status = Command::new("sh").arg(&script).arg(&out).status();
            assert!(
                status.as_ref().is_ok_and(ExitStatus::success),
                "{} failed ({status:?}): the workloads need cc and a static libc",
                script.display()
            );
            out
        })
        .clone()
}

/// Calls of its allocator that a program may make beside those that it counts: at its start and its end.
pub const BESIDE: u64 = 5;

/// Whether a workload was built: some need a compiler that not every host has.
pub fn is_built(name: &str) -> bool {
    folder().join(name).is_file()
}

/// The path of a built workload.
pub fn program(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.is_file(), "no workload {}", path.display());
    path
}

/// A workload that waits at its start gate, works, or waits at its end gate.
pub struct Workload {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Process id as the workload itself sees it.
    pub inner_pid: i32,
}

impl Workload {
    /// Starts a compiled workload and waits until it is ready. The truth goes to standard output.
    pub fn start<A: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(program(name));
        command.arg("-").args(args);
        Self::spawn(command)
    }

    /// Starts a Python workload.
    pub fn python<A: AsRef<OsStr>>(
        python: &std::path::Path,
        script: &str,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        let mut command = Command::new(python);
        command.arg(program(script)).arg("-").args(args);
        Self::spawn(command)
    }

    /// Starts a command that leads to a workload's gates (through a wrapper, say).
    pub fn spawn(mut command: Command) -> Self {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let stdout = child.stdout.take().expect("a piped standard output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut workload = Self {
            child,
            stdin,
            lines,
            inner_pid: 0,
        };
        let ready = workload.next_line("ready");
        workload.inner_pid = ready
            .strip_prefix("ready ")
            .and_then(|pid| pid.trim().parse().ok())
            .unwrap_or_else(|| panic!("{shown}: expected `ready PID`, got {ready:?}"));
        workload
    }

    /// The process that was started (a wrapper, where there is one).
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Opens the start gate.
    pub fn go(&mut self) {
        self.say("go\n");
    }

    /// Waits until the workload is at its end gate.
    pub fn wait_done(&mut self) {
        let line = self.next_line("done");
        assert_eq!(line, "done", "the workload's end gate");
    }

    /// Opens the end gate and returns the ground truth.
    pub fn finish(mut self) -> Value {
        self.say("end\n");
        let line = self.next_line("its ground truth");
        let status = self.wait();
        assert!(status.success(), "the workload ended with {status}");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("ground truth {line:?}: {error}"))
    }

    /// Whether the workload still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the whole workload.
    pub fn kill(&mut self) {
        // SAFETY: kill has no memory preconditions; the group is the child's own (process_group(0)).
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.child.wait();
    }

    fn say(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            stdin
                .write_all(line.as_bytes())
                .expect("speak to the workload");
        }
    }

    fn next_line(&mut self, what: &str) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("the workload did not say {what} in {PATIENCE:?}")
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.wait();
                panic!("the workload ended ({status}) before it said {what}")
            }
        }
    }

    fn wait(&mut self) -> ExitStatus {
        wait_for(&mut self.child, PATIENCE).expect("the workload does not end")
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a child at most that long.
pub fn wait_for(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            return Some(status);
        }
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of a process, as the host numbers them.
pub fn children(pid: i32) -> Vec<i32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Joins arguments that are already strings with paths.
pub fn os(args: &[&dyn AsRef<OsStr>]) -> Vec<OsString> {
    args.iter().map(|arg| arg.as_ref().to_os_string()).collect()
}
