//! One emulated machine: a QEMU that boots a kernel with an initramfs and a disk, and whose serial console is read until it powers
//! off.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{console::Console, initramfs};
use crate::cmd::{find_program, run};

/// The longest that one machine may live.
const LIMIT: Duration = Duration::from_secs(35 * 60);
/// The disk for the tests' files: tells reads from a device from reads of cached pages, as memory cannot.
const DISK_BYTES: u64 = 2 << 30;

/// What a machine is made of.
pub struct Machine<'a> {
    /// What its lines are shown with.
    pub name: String,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// Where its disk is made.
    pub disk: PathBuf,
    /// A disk that it only reads (`packages`).
    pub packages: &'a Path,
    /// Where all that it writes is kept, each line with the seconds since it was started.
    pub log: PathBuf,
    /// Which of the lists in the initramfs it runs.
    pub list: usize,
}

impl Machine<'_> {
    /// Boots it, and reads its console until it is off. An error names the console's log.
    pub fn run(&self) -> Result<Console> {
        make_disk(&self.disk)?;
        let mut qemu = Qemu::boot(self)?;
        let console = follow(&mut qemu, &self.name, &self.log);
        drop(qemu);
        console.with_context(|| format!("the whole console: {}", self.log.display()))
    }
}

fn follow(qemu: &mut Qemu, name: &str, log: &Path) -> Result<Console> {
    let mut log =
        fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let stdout = qemu.0.stdout.take().context("the console is piped")?;
    let (send, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            if send
                .send(String::from_utf8_lossy(&line).trim_end().to_owned())
                .is_err()
            {
                break;
            }
        }
    });
    let begun = Instant::now();
    let deadline = begun + LIMIT;
    let mut console = Console::default();
    let mut last = Vec::new();
    loop {
        let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "the machine was not done after {} s; its last words:\n{}",
                    LIMIT.as_secs(),
                    last.join("\n")
                )
            }
        };
        writeln!(log, "{:6.1} {line}", begun.elapsed().as_secs_f64())?;
        if console.read(&line) {
            println!("[{name}] {line}");
        }
        if last.len() == 20 {
            last.remove(0);
        }
        last.push(line);
    }
    if !console.done {
        bail!(
            "the machine ended before its tests did; its last words:\n{}",
            last.join("\n")
        );
    }
    Ok(console)
}

/// A running QEMU; stopped when dropped.
struct Qemu(Child);

impl Qemu {
    fn boot(machine: &Machine<'_>) -> Result<Self> {
        let mut qemu = Command::new(
            find_program("qemu-system-x86_64").context("qemu-system-x86_64 is missing")?,
        );
        // Emulation on purpose: hardware virtualisation is absent or broken inside many virtual machines.
        // One thread for both CPUs: with a thread for each, QEMU may run an instruction that the guest's kernel
        // has patched away (switching a static key, as BPF statistics do), and the guest dies of it.
        // Without string instructions that are said to be fast: emulated they go byte by byte, and the guest clears its pages with them.
        qemu.args([
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "max,-erms,-fsrm",
            "-smp",
            "2",
            "-m",
            "3G",
        ])
        .args([
            "-nographic",
            "-no-reboot",
            "-nodefaults",
            "-serial",
            "stdio",
        ])
        .arg("-kernel")
        .arg(machine.kernel)
        .arg("-initrd")
        .arg(machine.initramfs)
        .args(["-drive", &drive(&machine.disk, "cache=unsafe")])
        .args(["-drive", &drive(machine.packages, "readonly=on")])
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off {}{}",
            initramfs::LIST,
            machine.list
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
        Ok(Self(
            qemu.spawn().context("cannot start qemu-system-x86_64")?,
        ))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It has mostly ended by itself, and then there is nothing to kill.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// QEMU's words for a disk; they come in the order in which the machine sees them.
fn drive(file: &Path, how: &str) -> String {
    let file = file.display().to_string().replace(',', ",,");
    format!("file={file},format=raw,if=virtio,{how}")
}

/// Makes an empty file system in a sparse file.
fn make_disk(path: &Path) -> Result<()> {
    let file =
        fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.set_len(DISK_BYTES)?;
    run(&mut mkfs(path))
}

/// What makes a file system in this file.
pub fn mkfs(path: &Path) -> Command {
    let mkfs = find_program("mkfs.ext4").unwrap_or_else(|| "/usr/sbin/mkfs.ext4".into());
    let mut command = Command::new(mkfs);
    command.args(["-q", "-F"]).arg(path);
    command
}
