//! The tools that are compared on allocations: some attach to the running job, some start it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{
    bench::tools::{Launch, Paths, is_installed},
    cmd::{output, root},
    setup::bench::{kernel_headers, memray},
};

/// What a tool's probes take to be attached after it has said that it begins.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    Bare,
    Trainprof,
    TrainprofOff,
    Memleak,
    BpftraceCount,
    BpftraceStacks,
    Memray,
    Heaptrack,
}

impl Peer {
    pub const ALL: [Self; 8] = [
        Self::Bare,
        Self::Trainprof,
        Self::TrainprofOff,
        Self::Memleak,
        Self::BpftraceCount,
        Self::BpftraceStacks,
        Self::Memray,
        Self::Heaptrack,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Trainprof => "trainprof",
            Self::TrainprofOff => "trainprof-off",
            Self::Memleak => "memleak",
            Self::BpftraceCount => "bpftrace-count",
            Self::BpftraceStacks => "bpftrace-stacks",
            Self::Memray => "memray",
            Self::Heaptrack => "heaptrack",
        }
    }

    /// The command line as the report of the benchmark shows it.
    pub fn shown(self) -> &'static str {
        match self {
            Self::Bare => "nothing attached",
            Self::Trainprof => "`trainprof attach PID -o REC --json FILE` (`--alloc auto`)",
            Self::TrainprofOff => "`trainprof attach PID -o REC --json FILE --alloc off`",
            Self::Memleak => "`memleak-bpfcc -p PID`",
            Self::BpftraceCount => "`bpftrace -p PID -e 'uprobe:LIBC:malloc { @ = count(); }'`",
            Self::BpftraceStacks => {
                "`bpftrace -p PID -e 'uprobe:LIBC:malloc { @[ustack] = count(); }'`"
            }
            Self::Memray => "`memray run -o FILE JOB`, which starts the job",
            Self::Heaptrack => "`heaptrack -o FILE JOB`, which starts the job",
        }
    }

    pub fn version(self) -> Option<String> {
        let text = match self {
            Self::Bare | Self::Trainprof | Self::TrainprofOff => return None,
            Self::Memleak => {
                let format = ["-f", "bcc ${Version}", "-W", "bpfcc-tools"];
                output(Command::new("dpkg-query").args(format))
            }
            Self::BpftraceCount | Self::BpftraceStacks => {
                output(Command::new("bpftrace").arg("--version"))
            }
            Self::Memray => {
                let modules = memray()?;
                output(
                    Command::new(crate::setup::python()?)
                        .env("PYTHONPATH", modules)
                        .args(["-m", "memray", "--version"]),
                )
            }
            Self::Heaptrack => output(Command::new("heaptrack").arg("--version")),
        };
        text.ok()?.lines().next().map(str::to_owned)
    }

    pub fn is_trainprof(self) -> bool {
        matches!(self, Self::Trainprof | Self::TrainprofOff)
    }

    /// Why it cannot take part here.
    pub fn lack(self) -> Option<String> {
        let absent = |program: &str| {
            (!is_installed(program) && !Path::new("/usr/sbin").join(program).is_file())
                .then(|| format!("{program} is not installed (`cargo xtask setup --bench`)"))
        };
        match self {
            Self::Bare | Self::Trainprof | Self::TrainprofOff => None,
            Self::Memleak => absent("memleak-bpfcc").or_else(|| {
                kernel_headers().is_none().then(|| {
                    "no kernel headers to compile it with (`cargo xtask setup --bench`)".to_owned()
                })
            }),
            Self::BpftraceCount | Self::BpftraceStacks => absent("bpftrace"),
            Self::Memray => memray()
                .is_none()
                .then(|| "memray is not installed (`cargo xtask setup --bench`)".to_owned()),
            Self::Heaptrack => absent("heaptrack"),
        }
    }

    /// The part of the work that is done under it; costs are compared per picture.
    pub fn share(self) -> f64 {
        match self {
            Self::Bare | Self::Trainprof | Self::TrainprofOff => 1.0,
            Self::BpftraceCount | Self::Memray | Self::Heaptrack => 0.5,
            Self::BpftraceStacks => 0.25,
            Self::Memleak => 0.005,
        }
    }

    /// The job's command line, by way of the tool where that starts it. `file`: where such a tool is to write.
    pub fn command(self, job: Vec<OsString>, file: &Path) -> Result<Vec<OsString>> {
        let mut line: Vec<OsString> = Vec::new();
        match self {
            Self::Memray => {
                let mut modules = OsString::from("PYTHONPATH=");
                modules.push(memray().context("no memray")?);
                let (python, script) = job.split_first().context("an empty command")?;
                line.extend(["env".into(), modules, python.clone()]);
                line.extend(["-m", "memray", "run", "-q", "-f", "-o"].map(OsString::from));
                line.push(file.into());
                line.extend(script.iter().cloned());
            }
            Self::Heaptrack => {
                line.extend(["heaptrack", "-o"].map(OsString::from));
                line.push(file.into());
                line.extend(job);
            }
            _ => line = job,
        }
        Ok(line)
    }

    /// How it attaches to the job. `None`: it does not.
    pub fn launch(self, pid: u32, paths: &Paths) -> Result<Option<Launch>> {
        let launch = match self {
            Self::Bare | Self::Memray | Self::Heaptrack => return Ok(None),
            Self::Trainprof => Launch::trainprof(self.name(), paths, pid),
            Self::TrainprofOff => {
                Launch::trainprof(self.name(), paths, pid).args(&["--alloc", "off"])
            }
            Self::Memleak => {
                // It finds its way by tracefs only, which is mounted for it alone where it is not.
                let tracefs = "test -e /sys/kernel/tracing/uprobe_events || \
                    mount -t tracefs none /sys/kernel/tracing; \
                    exec /usr/bin/python3 \"$0\" \"$(PATH=$PATH:/usr/sbin command -v memleak-bpfcc)\" -p \"$1\"";
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", tracefs]);
                command.arg(root().join("xtask/bench/memleak.py"));
                command.arg(pid.to_string());
                command.env("PYTHONUNBUFFERED", "1");
                command.env("BCC_KERNEL_SOURCE", kernel_headers().context("no headers")?);
                Launch::new(self.name(), command, "Attaching to pid")
                    .on_stdout()
                    .settling(SETTLE)
            }
            Self::BpftraceCount | Self::BpftraceStacks => {
                let what = if self == Self::BpftraceCount {
                    ""
                } else {
                    "[ustack]"
                };
                let library = libc_of(pid)?;
                let program = format!(
                    "BEGIN {{ printf(\"watching\\n\"); }} uprobe:{}:malloc {{ @{what} = count(); }}",
                    library.display()
                );
                let mut command = Command::new("bpftrace");
                command.arg("-p").arg(pid.to_string());
                command.arg("-e").arg(program);
                Launch::new(self.name(), command, "watching")
                    .on_stdout()
                    .settling(SETTLE)
            }
        };
        Ok(Some(launch))
    }
}

/// The C library that a process has mapped.
fn libc_of(pid: u32) -> Result<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .with_context(|| format!("cannot read the mappings of {pid}"))?;
    libc_in(&maps).with_context(|| format!("process {pid} has no libc.so.6"))
}

fn libc_in(maps: &str) -> Option<PathBuf> {
    maps.lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.ends_with("/libc.so.6"))
        .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Peer, libc_in};

    #[test]
    fn the_c_library_is_found_in_mappings() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12 /usr/lib/libm.so.6\n\
            7f02-7f03 r-xp 00000000 fe:00 13                         /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f04-7f05 rw-p 00000000 00:00 0\n";
        let expected = Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(libc_in(maps).as_deref(), Some(expected));
        assert_eq!(libc_in("7f00-7f01 rw-p 00000000 00:00 0\n"), None);
    }

    #[test]
    fn tools_that_start_the_job_come_before_it() {
        let job: Vec<_> = ["python3", "job.py", "-"].map(Into::into).into();
        let under = |peer: Peer| peer.command(job.clone(), Path::new("/x/out")).unwrap();
        assert_eq!(under(Peer::Trainprof), job);
        assert_eq!(
            under(Peer::Heaptrack),
            ["heaptrack", "-o", "/x/out", "python3", "job.py", "-"]
        );
    }
}
