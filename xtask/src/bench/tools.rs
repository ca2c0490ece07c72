//! The tools that are compared. Each attaches to a running job and is live before the job works.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Bare,
    Empty,
    Trainprof,
    Bpftrace,
    Strace,
}

impl Tool {
    pub const ALL: [Self; 5] = [
        Self::Bare,
        Self::Empty,
        Self::Trainprof,
        Self::Bpftrace,
        Self::Strace,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Empty => "empty",
            Self::Trainprof => "trainprof",
            Self::Bpftrace => "bpftrace",
            Self::Strace => "strace",
        }
    }

    /// The command line as the report of the benchmark shows it.
    pub fn command(self) -> &'static str {
        match self {
            Self::Bare => "nothing attached",
            Self::Empty => {
                "programs that return at once at sys_exit, sched_switch and sched_waking: the least that watching can cost"
            }
            Self::Trainprof => "`trainprof attach PID -o REC --json FILE`",
            Self::Bpftrace => "`bpftrace xtask/bench/loader.bt PID`",
            Self::Strace => "`strace -f -c -p PID`",
        }
    }

    pub fn version(self) -> Option<String> {
        let output = match self {
            Self::Bare | Self::Empty | Self::Trainprof => return None,
            Self::Bpftrace => Command::new("bpftrace").arg("--version").output(),
            Self::Strace => Command::new("strace").arg("-V").output(),
        };
        let text = String::from_utf8(output.ok()?.stdout).ok()?;
        text.lines().next().map(str::to_owned)
    }
}

/// Where things are.
pub struct Paths {
    pub trainprof: PathBuf,
    pub script: PathBuf,
    pub scratch: PathBuf,
}

impl Paths {
    /// What trainprof records.
    pub fn recording(&self) -> PathBuf {
        self.scratch.join("bench.rec")
    }
}

/// How a tool is started, and what marks that it watches.
pub struct Launch {
    name: &'static str,
    command: Command,
    /// Part of a line that says that it is live.
    sign: &'static str,
    /// The line comes on standard output rather than on standard error.
    on_stdout: bool,
    /// The report that it writes.
    json: Option<PathBuf>,
    /// What it takes after the sign until all is attached.
    settle: Duration,
}

impl Launch {
    /// A tool whose sign comes on standard error.
    pub fn new(name: &'static str, command: Command, sign: &'static str) -> Self {
        Self {
            name,
            command,
            sign,
            on_stdout: false,
            json: None,
            settle: Duration::ZERO,
        }
    }

    /// `trainprof attach PID -o REC --json FILE`.
    pub fn trainprof(name: &'static str, paths: &Paths, pid: u32) -> Self {
        let json = paths.scratch.join("report.json");
        let mut command = Command::new(&paths.trainprof);
        command.arg("attach").arg(pid.to_string());
        command.arg("-o").arg(paths.recording());
        command.arg("--json").arg(&json);
        Self {
            json: Some(json),
            ..Self::new(name, command, "trainprof: watching")
        }
    }

    pub fn on_stdout(self) -> Self {
        Self {
            on_stdout: true,
            ..self
        }
    }

    pub fn settling(self, settle: Duration) -> Self {
        Self { settle, ..self }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }
}

/// A tool that watches.
pub struct Attached {
    child: Child,
    json: Option<PathBuf>,
    attach: Duration,
    watching_since: Instant,
    cpu_at_attach_s: f64,
}

/// What a tool itself used.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// From its start until it said that it watches.
    pub attach_s: f64,
    /// CPU time of its whole life: start, watching, report.
    pub cpu_s: f64,
    /// CPU time between attach and stop, as a share of that time.
    pub cpu_share_watching: f64,
    pub rss_max_bytes: f64,
    /// Its report, where it writes one.
    pub report: Option<Value>,
}

impl Attached {
    /// Starts a tool and returns when it watches. `None`: nothing to start.
    pub fn start(tool: Tool, pid: u32, paths: &Paths) -> Result<Option<Self>> {
        let launch = match tool {
            Tool::Bare => return Ok(None),
            Tool::Empty => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bench", "empty"]);
                Launch::new(tool.name(), command, "watching").on_stdout()
            }
            Tool::Trainprof => Launch::trainprof(tool.name(), paths, pid),
            Tool::Bpftrace => {
                let mut command = Command::new("bpftrace");
                command.arg(&paths.script).arg(pid.to_string());
                // The head of a path that names its directory, and enough keys for every file.
                command
                    .env("BPFTRACE_STRLEN", "64")
                    .env("BPFTRACE_MAP_KEYS_MAX", "65536");
                Launch::new(tool.name(), command, "watching").on_stdout()
            }
            Tool::Strace => {
                let mut command = Command::new("strace");
                command
                    .args(["-f", "-c", "-o"])
                    .arg(paths.scratch.join("strace.out"));
                command.arg("-p").arg(pid.to_string());
                Launch::new(tool.name(), command, "attached")
            }
        };
        Self::launch(launch, &paths.scratch).map(Some)
    }

    /// Starts what is to be launched and returns when it watches. What it says otherwise goes to a file in `scratch`.
    pub fn launch(launch: Launch, scratch: &Path) -> Result<Self> {
        let Launch {
            name,
            mut command,
            sign,
            on_stdout,
            json,
            settle,
        } = launch;
        if let Some(json) = &json {
            let _ = std::fs::remove_file(json);
        }
        let started = Instant::now();
        let other = File::create(scratch.join(format!("{name}.log")))?;
        command.stdin(Stdio::null());
        if on_stdout {
            command.stdout(Stdio::piped()).stderr(other);
        } else {
            command.stderr(Stdio::piped()).stdout(other);
        }
        // A shell has what it runs in the background ignore this signal, by which tools are ended.
        let heed = || {
            // SAFETY: signal is async-signal-safe.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec, a call that is safe there.
        unsafe { command.pre_exec(heed) };
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let lines: Box<dyn BufRead + Send> = match (child.stdout.take(), child.stderr.take()) {
            (Some(out), _) => Box::new(BufReader::new(out)),
            (_, Some(err)) => Box::new(BufReader::new(err)),
            _ => bail!("no pipe"),
        };
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Reads on after the sign, so that the tool never blocks on a full pipe.
            for line in lines.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut said = Vec::new();
        while !said.last().is_some_and(|line: &String| line.contains(sign)) {
            match receiver.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => said.push(line),
                Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!("{name} never said that it watches:\n{}", said.join("\n"));
                }
            }
        }
        let attach = started.elapsed();
        std::thread::sleep(settle);
        let cpu_at_attach_s = cpu_of(child.id());
        Ok(Self {
            child,
            json,
            attach,
            watching_since: Instant::now(),
            cpu_at_attach_s,
        })
    }

    /// Ends the tool as Ctrl-C does and tells what it used.
    pub fn stop(self) -> Result<Used> {
        let watched_s = self.watching_since.elapsed().as_secs_f64();
        let cpu_watching_s = cpu_of(self.child.id()) - self.cpu_at_attach_s;
        let pid = self.child.id() as i32;
        // SAFETY: kill has no memory preconditions; the child was not waited for, so the pid is its own.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let mut status = 0;
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both pointers are valid for writes; rusage is plain data, so zeroed memory is a value.
        let usage = unsafe {
            if libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) != pid {
                return Err(std::io::Error::last_os_error()).context("wait4");
            }
            usage.assume_init()
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        let report = self.json.as_deref().map(read_json).transpose()?;
        Ok(Used {
            attach_s: self.attach.as_secs_f64(),
            cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            cpu_share_watching: cpu_watching_s / watched_s,
            rss_max_bytes: usage.ru_maxrss as f64 * 1024.0,
            report,
        })
    }
}

/// CPU time of the living threads of a process and of its children, to the nanosecond (stat(5) counts ticks of 10 ms).
fn cpu_of(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let seconds = threads.into_iter().flatten().filter_map(|thread| {
        let thread = thread.ok()?.path();
        let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        let own = text.split_whitespace().next()?.parse::<u64>().ok()?;
        let children = std::fs::read_to_string(thread.join("children")).unwrap_or_default();
        let theirs: f64 = children
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .map(cpu_of)
            .sum();
        Some(own as f64 / 1e9 + theirs)
    });
    seconds.sum()
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("no report {}", path.display()))?;
    serde_json::from_slice(&text).context("the report is not JSON")
}

/// Whether a program is on the path.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
    })
}

/// A Python with PyTorch and Pillow.
pub fn python() -> Option<OsString> {
    let named = std::env::var_os("TRAINPROF_PYTHON");
    let known = ["/usr/bin/python3", "python3"].map(OsString::from);
    named.into_iter().chain(known).find(|python| {
        Command::new(python)
            .args(["-c", "import torch, PIL, numpy"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}
