//! The loads: what each does, how much of it, and how much less of it under a slow tool.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::tools::{Tool, python};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Jpeg,
    Tiny,
    Yield,
    Futex,
    Pipe,
    BystanderGetppid,
    BystanderFiles,
    BystanderSwitches,
}

impl Load {
    pub const ALL: [Self; 8] = [
        Self::Jpeg,
        Self::Tiny,
        Self::Yield,
        Self::Futex,
        Self::Pipe,
        Self::BystanderGetppid,
        Self::BystanderFiles,
        Self::BystanderSwitches,
    ];

    /// What `--only` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Tiny => "tiny",
            Self::Yield => "yield",
            Self::Futex => "futex",
            Self::Pipe => "pipe",
            Self::BystanderGetppid => "bystander-getppid",
            Self::BystanderFiles => "bystander-files",
            Self::BystanderSwitches => "bystander-switches",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Jpeg => {
                "(a) small JPEG files: PyTorch DataLoader with 2 workers, decode, small net on the CPU"
            }
            Self::Tiny => "(b) two processes that only open, read and close warm tiny files",
            Self::Yield => "(c) sched_yield by two processes on one CPU",
            Self::Futex => "(c) futex ping-pong of two processes on one CPU",
            Self::Pipe => "(c) pipe ping-pong of two processes on one CPU",
            Self::BystanderGetppid => "(d) bystander, not followed: getppid",
            Self::BystanderFiles => "(d) bystander, not followed: open, read, close of a tiny file",
            Self::BystanderSwitches => "(d) bystander, not followed: pipe ping-pong on one CPU",
        }
    }

    /// One piece of its work.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Jpeg => "sample",
            Self::Tiny | Self::BystanderGetppid | Self::BystanderFiles => "system call",
            _ => "switch",
        }
    }

    /// Several of them.
    pub fn units(self) -> &'static str {
        match self {
            Self::Jpeg => "samples",
            Self::Tiny | Self::BystanderGetppid | Self::BystanderFiles => "system calls",
            _ => "switches",
        }
    }

    /// Whether the tool watches another, idle job while this one works.
    pub fn is_bystander(self) -> bool {
        matches!(
            self,
            Self::BystanderGetppid | Self::BystanderFiles | Self::BystanderSwitches
        )
    }

    /// The part of the work that is done under a tool; costs are compared per unit.
    fn share(self, tool: Tool) -> f64 {
        match (tool, self) {
            (Tool::Strace, Self::Jpeg) => 0.5,
            (Tool::Strace, load) if load.is_bystander() => 1.0,
            (Tool::Strace, _) => 0.005,
            _ => 1.0,
        }
    }

    /// Rounds in which the tool takes part: strace's cost is so large that few show it.
    pub fn rounds(self, tool: Tool, rounds: usize) -> usize {
        if tool == Tool::Strace {
            rounds.min(3)
        } else {
            rounds
        }
    }
}

/// Programs and data of the loads, made on first use.
pub struct Bench {
    folder: PathBuf,
    sources: PathBuf,
    python: Option<OsString>,
    /// Multiplies all work.
    pub scale: f64,
}

const PROGRAMS: [&str; 3] = ["tiny", "switches", "bystander"];
const FOLDERS: usize = 20;
const FILES: usize = 500;

impl Bench {
    pub fn prepare(folder: &Path, sources: &Path, scale: f64, loads: &[Load]) -> Result<Self> {
        fs::create_dir_all(folder)?;
        for program in PROGRAMS {
            let status = Command::new("cc")
                .args(["-O1", "-static", "-pthread", "-o"])
                .arg(folder.join(program))
                .arg(sources.join(format!("{program}.c")))
                .status()
                .context("the benchmark needs cc")?;
            if !status.success() {
                bail!("cc failed for {program}.c");
            }
        }
        tiny_files(&folder.join("tiny-files"))?;
        let python = if loads.contains(&Load::Jpeg) {
            python()
        } else {
            None
        };
        let pictures = folder.join("pictures");
        if let (Some(python), false) = (&python, pictures.exists()) {
            println!("making pictures in {}", pictures.display());
            let partial = folder.join("pictures.new");
            let _ = fs::remove_dir_all(&partial);
            let status = Command::new(python)
                .arg(sources.join("pictures.py"))
                .arg(&partial)
                .args(["100", "80"])
                .status()?;
            if !status.success() {
                bail!("pictures.py failed");
            }
            fs::rename(&partial, &pictures)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            sources: sources.to_owned(),
            python,
            scale,
        })
    }

    /// Why a load cannot run here.
    pub fn lack(&self, load: Load) -> Option<&'static str> {
        (load == Load::Jpeg && self.python.is_none())
            .then_some("no Python with torch, PIL and numpy (TRAINPROF_PYTHON names one)")
    }

    /// The command line of a load under a tool.
    pub fn command(&self, load: Load, tool: Tool) -> Result<Vec<OsString>> {
        let times = |full: f64| -> OsString {
            ((full * self.scale * load.share(tool)).max(1.0) as u64)
                .to_string()
                .into()
        };
        let program = |name: &str| self.folder.join(name).into_os_string();
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let tiny = self.folder.join("tiny-files");
        let mut line = match load {
            Load::Jpeg => {
                let python = self.python.clone().context("no Python")?;
                vec![
                    python,
                    self.sources.join("job.py").into(),
                    "-".into(),
                    self.folder.join("pictures").into(),
                ]
            }
            Load::Tiny => {
                let mut line = vec![program("tiny"), "-".into(), tiny.into_os_string()];
                line.extend([FOLDERS.to_string().into(), FILES.to_string().into()]);
                line
            }
            Load::Yield | Load::Futex | Load::Pipe => {
                let mut line = vec![program("switches")];
                line.extend(words(&["-", load.name()]));
                line
            }
            _ => {
                let mut line = vec![program("bystander")];
                line.extend(words(&["-", load.name().trim_start_matches("bystander-")]));
                line
            }
        };
        match load {
            // Long enough that what a tool does once at its start does not stand for all of a watch.
            Load::Jpeg => line.push(times(200.0)),
            Load::Tiny => line.push(times(1_800_000.0)),
            Load::Yield => line.push(times(4_000_000.0)),
            Load::Futex | Load::Pipe => line.push(times(2_400_000.0)),
            Load::BystanderGetppid => line.push(times(30_000_000.0)),
            Load::BystanderFiles => {
                line.extend([
                    times(2_000_000.0),
                    self.folder.join("tiny-files/0/0").into_os_string(),
                ]);
            }
            Load::BystanderSwitches => line.push(times(2_000_000.0)),
        }
        Ok(line)
    }

    /// An idle job for a tool to watch while a bystander works.
    pub fn idle(&self) -> Vec<OsString> {
        let program = self.folder.join("bystander").into_os_string();
        [program]
            .into_iter()
            .chain(["-", "getppid", "1"].map(OsString::from))
            .collect()
    }
}

/// 10 000 files of 100 to 599 bytes in 20 folders.
fn tiny_files(root: &Path) -> Result<()> {
    if root.exists() {
        return Ok(());
    }
    let partial = root.with_extension("new");
    let _ = fs::remove_dir_all(&partial);
    for folder in 0..FOLDERS {
        let folder = partial.join(folder.to_string());
        fs::create_dir_all(&folder)?;
        for file in 0..FILES {
            fs::write(folder.join(file.to_string()), vec![b'x'; 100 + file])?;
        }
    }
    fs::rename(&partial, root)?;
    Ok(())
}
