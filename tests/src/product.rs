//! Runs the binary under test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::report::Report;
use crate::workload::wait_for;

/// Longer than attaching takes on an emulated machine.
const ATTACH: Duration = Duration::from_secs(120);
/// Longer than attaching and writing a report take there.
const STOP: Duration = Duration::from_secs(150);

/// What docs and `doctor` name for a user who is not root, as setpriv(1) has them.
pub const ENOUGH: &[&str] = &["bpf", "perfmon", "sys_ptrace", "dac_read_search"];

/// The product where everybody may execute it.
pub fn public_copy() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let everybody = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody()).expect("permissions");
    let binary = folder.path().join("trainprof");
    std::fs::copy(crate::env::trainprof(), &binary).expect("copy the binary");
    std::fs::set_permissions(&binary, everybody()).expect("permissions");
    (folder, binary)
}

/// A `trainprof attach` or `run` under way.
pub struct Watch {
    child: Child,
    stdout: Option<std::thread::JoinHandle<Vec<u8>>>,
    stderr_lines: Receiver<String>,
    stderr: Vec<String>,
    folder: TempDir,
    /// From the start of the program to its line that all probes are live.
    pub attach_time: Duration,
}

/// A `trainprof` that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The bytes of the `--json` file; empty when there is none.
    pub json: Vec<u8>,
    /// The recording, kept as long as this value.
    pub recording: std::path::PathBuf,
    _folder: Option<TempDir>,
}

impl Finished {
    /// The exit status; a death by signal is `128 + n`.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }

    pub fn report(&self) -> Report {
        let text = std::str::from_utf8(&self.json).expect("the report is UTF-8");
        assert!(
            !text.is_empty(),
            "no report was written; trainprof said:\n{}",
            self.stderr
        );
        Report::parse(text)
    }

    /// Asserts an exit status and that standard error holds one of the words (any case).
    pub fn expect_failure(&self, code: i32, words: &[&str]) {
        assert_eq!(
            self.code(),
            code,
            "exit status; standard error:\n{}",
            self.stderr
        );
        let said = self.stderr.to_lowercase();
        assert!(
            words.iter().any(|word| said.contains(&word.to_lowercase())),
            "the message should name one of {words:?}:\n{}",
            self.stderr
        );
        assert!(!said.contains("panicked"), "{}", self.stderr);
    }
}

/// Runs `trainprof` to its end.
pub fn trainprof<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Finished {
    let mut command = Command::new(crate::env::trainprof());
    command.args(args);
    finish(command)
}

/// Runs a command (a wrapper around `trainprof`, say) to its end.
pub fn finish(mut command: Command) -> Finished {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    Finished {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        json: Vec::new(),
        recording: Default::default(),
        _folder: None,
    }
}

fn product(env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(crate::env::trainprof());
    command.envs(env.iter().copied());
    command
}

fn report_folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the report")
}

impl Watch {
    /// Attaches and returns once every probe is live.
    pub fn attach(pid: i32, extra: &[OsString]) -> Self {
        Self::attach_in(pid, extra, &[])
    }

    /// The same with more in its environment.
    pub fn attach_in(pid: i32, extra: &[OsString], env: &[(&str, &str)]) -> Self {
        let mut args = vec![OsString::from("attach"), pid.to_string().into()];
        args.extend_from_slice(extra);
        let mut watch = Self::spawn(args, env);
        watch.wait_watching();
        watch
    }

    /// As [`Watch::attach`], by user and group 65534 with no more than these capabilities (names as setpriv(1) has
    /// them). `binary` must be where everybody may execute it.
    pub fn attach_as_nobody(pid: i32, capabilities: &[&str], binary: &Path) -> Self {
        let granted: String = capabilities
            .iter()
            .map(|name| format!(",+{name}"))
            .collect();
        let mut launcher = Command::new("setpriv");
        launcher
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(format!("--inh-caps=-all{granted}"))
            .arg(format!("--ambient-caps=-all{granted}"))
            .arg(binary)
            .current_dir("/tmp");
        let folder = tempfile::tempdir().expect("a folder for the report");
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).expect("chown");
        let args = vec![OsString::from("attach"), pid.to_string().into()];
        let mut watch = Self::launch(launcher, folder, args, false);
        watch.wait_watching();
        watch
    }

    /// Launches a command under `trainprof run`.
    pub fn run(extra: &[OsString], command: &[OsString], env: &[(&str, &str)]) -> Self {
        let mut args = vec![OsString::from("run")];
        args.extend_from_slice(extra);
        args.push("--".into());
        args.extend_from_slice(command);
        Self::launch(product(env), report_folder(), args, true)
    }

    /// Starts `trainprof` with a recording and a JSON report in a folder of its own, unless given.
    pub fn spawn(args: Vec<OsString>, env: &[(&str, &str)]) -> Self {
        Self::launch(product(env), report_folder(), args, false)
    }

    /// `launcher` is the product, or what executes it; `args` are the product's.
    fn launch(
        mut launcher: Command,
        folder: TempDir,
        mut args: Vec<OsString>,
        before_dashes: bool,
    ) -> Self {
        let mut add = Vec::new();
        if !args.iter().any(|arg| arg == "--json") {
            add.extend([
                "--json".into(),
                folder.path().join("report.json").into_os_string(),
            ]);
        }
        if !args.iter().any(|arg| arg == "-o" || arg == "--output") {
            add.extend([
                "-o".into(),
                folder.path().join("recording.rec").into_os_string(),
            ]);
        }
        let at = if before_dashes {
            args.iter()
                .position(|arg| arg == "--")
                .unwrap_or(args.len())
        } else {
            args.len()
        };
        args.splice(at..at, add);
        let started = Instant::now();
        let mut child = launcher
            .args(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start trainprof");
        let (sender, stderr_lines) = channel();
        let errors = child.stderr.take().expect("a piped standard error");
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut output = child.stdout.take().expect("a piped standard output");
        let stdout = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes);
            bytes
        });
        Self {
            child,
            stdout: Some(stdout),
            stderr_lines,
            stderr: Vec::new(),
            folder,
            attach_time: started.elapsed(),
        }
    }

    /// Waits for the line that says that every probe is live.
    pub fn wait_watching(&mut self) {
        let started = Instant::now();
        let until = started + ATTACH;
        loop {
            match self
                .stderr_lines
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    let live = line.contains("trainprof: watching");
                    self.stderr.push(line);
                    if live {
                        self.attach_time += started.elapsed();
                        return;
                    }
                }
                Err(error) => panic!(
                    "trainprof never said that it watches ({error}); it said:\n{}",
                    self.stderr.join("\n")
                ),
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill has no memory preconditions, and the child was not waited for yet, so the pid is its.
        unsafe { libc::kill(self.pid(), signal) };
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the watch as Ctrl-C does and waits for its report.
    pub fn stop(self) -> Finished {
        self.signal(libc::SIGINT);
        self.wait()
    }

    /// Waits until it ends by itself.
    pub fn wait(mut self) -> Finished {
        let Some(status) = wait_for(&mut self.child, STOP) else {
            let _ = self.child.kill();
            panic!("trainprof did not end in {STOP:?}");
        };
        let stdout = self
            .stdout
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        self.stderr.extend(self.stderr_lines.iter());
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Finished {
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: self.stderr.join("\n"),
            json: std::fs::read(folder.path().join("report.json")).unwrap_or_default(),
            recording: folder.path().join("recording.rec"),
            _folder: Some(folder),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_alive() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
