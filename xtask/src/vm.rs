//! Runs the root tests on other kernels: boots each in QEMU with nothing but an initramfs, reads what it writes to
//! its serial console, and lets it power off. The processor is emulated, so this works where there is no
//! virtualisation, and it is slow: the tests must not depend on speed.
//!
//! Each kernel runs in several machines, which share the test binaries: one waits for half of its time.

mod initramfs;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    panic::resume_unwind,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{find_program, root, run},
    left_out,
    outcome::{Outcome, Tally},
    setup::{kernel_dir, kernel_release},
    test::{Built, name_of},
};

/// The longest that one machine may live.
const LIMIT: Duration = Duration::from_secs(35 * 60);
/// The disk for the tests' files: tells reads from a device from reads of cached pages, as memory cannot.
const DISK_BYTES: u64 = 2 << 30;

/// The machines of one kernel, by the names of the test binaries that they run; the last one runs all others. So they take about as
/// long as each other.
const MACHINES: [&[&str]; 2] = [&["gpu_calls", "memory", "lifecycle", "files"], &[]];

/// Which of [`MACHINES`] runs a test binary.
fn machine_of(binary: &Path) -> usize {
    let name = name_of(binary);
    MACHINES
        .iter()
        .position(|names| names.contains(&name.as_str()))
        .unwrap_or(MACHINES.len() - 1)
}

/// Boots one kernel and runs the tests there. Wants the workloads to have been built.
pub fn test(series: &str, built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let known = |name: &&str| built.test_binaries.iter().any(|b| name_of(b) == **name);
    if let Some(name) = MACHINES.iter().copied().flatten().find(|name| !known(name)) {
        bail!("xtask/src/vm.rs gives a machine {name}, which is no test binary");
    }
    let dir = kernel_dir(series);
    let release = kernel_release(&dir)?.to_string_lossy().into_owned();
    let image = dir.join("initramfs.cpio");
    let parts: Vec<Vec<String>> = (0..MACHINES.len())
        .map(|n| {
            let mine = built.test_binaries.iter().filter(|b| machine_of(b) == n);
            mine.map(|binary| name_of(binary)).collect()
        })
        .collect();
    initramfs::pack(&image, &dir, &release, built, &parts, filter)?;
    println!(
        "booting Linux {release} ({} MB) in {} machines",
        fs::metadata(&image)?.len() >> 20,
        parts.len()
    );
    let kernel = dir.join("boot").join(format!("vmlinuz-{release}"));
    let consoles: Vec<Result<Console>> = thread::scope(|scope| {
        let machines: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(n, names)| {
                let (kernel, image, disk) = (&kernel, &image, dir.join(format!("disk-{n}.img")));
                let log = root().join(format!("target/vm/serial-{series}-{n}.log"));
                scope.spawn(move || {
                    make_disk(&disk)?;
                    let mut machine = Machine::boot(kernel, image, &disk, n)?;
                    let name = format!("{series}/{n}");
                    let result = follow(&mut machine, &name, &log, names.len());
                    machine.stop();
                    result.with_context(|| format!("the whole console: {}", log.display()))
                })
            })
            .collect();
        let join = |machine: thread::ScopedJoinHandle<'_, _>| {
            machine.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        machines.into_iter().map(join).collect()
    });
    let mut outcome = Outcome::default();
    let mut left_out = BTreeSet::new();
    let mut whole = filter.is_none();
    for console in consoles {
        match console {
            Ok(console) => {
                outcome.add(console.outcome);
                left_out.extend(console.left_out);
            }
            Err(error) => {
                println!("{error:#}");
                outcome.tally.failed += 1;
                outcome.words.push(format!("{error:#}"));
                whole = false;
            }
        }
    }
    println!("[{series}] {} tests left themselves out", left_out.len());
    let differences = left_out::differences(&left_out, whole);
    outcome.tally.failed += differences.len() as u32;
    outcome.words.extend(differences);
    Ok(outcome)
}

/// Reads the console until the machine is off, and adds up the results of so many test binaries.
fn follow(machine: &mut Machine, name: &str, log: &Path, expected: usize) -> Result<Console> {
    let mut log =
        fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let stdout = machine.0.stdout.take().context("the console is piped")?;
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
    let deadline = Instant::now() + LIMIT;
    let mut account = Console::default();
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
        writeln!(log, "{line}")?;
        if account.read(&line) {
            println!("[{name}] {line}");
        }
        if last.len() == 20 {
            last.remove(0);
        }
        last.push(line);
    }
    if !account.done {
        bail!(
            "the machine ended before its tests did; its last words:\n{}",
            last.join("\n")
        );
    }
    if account.results != expected {
        bail!(
            "{} of {expected} test binaries told a result",
            account.results
        );
    }
    Ok(account)
}

/// What the console said so far.
#[derive(Default)]
struct Console {
    outcome: Outcome,
    /// Names of tests that left themselves out.
    left_out: BTreeSet<String>,
    results: usize,
    is_up: bool,
    done: bool,
}

impl Console {
    /// Takes a line; whether it is of interest (the firmware's and the kernel's own words are not).
    fn read(&mut self, line: &str) -> bool {
        let tally = &mut self.outcome.tally;
        tally.add(Tally::from_skip_line(line).unwrap_or_default());
        self.left_out
            .extend(left_out::name_in(line).map(str::to_owned));
        if line.starts_with("VM-UP") {
            self.is_up = true;
        } else if line.starts_with("VM-DONE") {
            self.done = true;
        } else if line.starts_with("VM-REPEATED ") {
            tally.tried_again(true);
        } else if let Some(result) = line.strip_prefix("VM-RESULT ") {
            self.results += 1;
            let mut words = result.split(' ').map(str::parse);
            match (words.next(), words.next(), words.next()) {
                (Some(Ok(passed)), Some(Ok(failed)), Some(Ok(status))) => {
                    let status: u32 = status;
                    // A binary that was killed has not counted its own end.
                    let failed = if status != 0 && failed == 0 {
                        1
                    } else {
                        failed
                    };
                    tally.add(Tally {
                        passed,
                        failed,
                        ..Tally::default()
                    });
                }
                _ => tally.failed += 1,
            }
        }
        self.outcome.read_failures(line);
        self.is_up
    }
}

/// A running QEMU; stopped when dropped.
struct Machine(Child);

impl Machine {
    /// The `n`th machine of this kernel.
    fn boot(kernel: &Path, initramfs: &Path, disk: &Path, n: usize) -> Result<Self> {
        let mut qemu = Command::new(
            find_program("qemu-system-x86_64").context("qemu-system-x86_64 is missing")?,
        );
        // Emulation on purpose: hardware virtualisation is absent or broken inside many virtual machines.
        // One thread for both CPUs: with a thread for each, QEMU may run an instruction that the guest's kernel
        // has patched away (switching a static key, as BPF statistics do), and the guest dies of it.
        qemu.args([
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "max",
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
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-drive")
        .arg(format!(
            "file={},format=raw,if=virtio,cache=unsafe",
            disk.display().to_string().replace(',', ",,")
        ))
        .arg("-append")
        .arg(format!(
            "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off {}{n}",
            initramfs::MACHINE
        ))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
        Ok(Self(
            qemu.spawn().context("cannot start qemu-system-x86_64")?,
        ))
    }

    fn stop(&mut self) {
        // It has mostly ended by itself, and then there is nothing to kill.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes an empty file system in a sparse file.
fn make_disk(path: &Path) -> Result<()> {
    let file =
        fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.set_len(DISK_BYTES)?;
    let mkfs = find_program("mkfs.ext4").unwrap_or_else(|| "/usr/sbin/mkfs.ext4".into());
    run(Command::new(mkfs).args(["-q", "-F"]).arg(path))
}

#[cfg(test)]
mod tests {
    use super::{Console, MACHINES, Tally, machine_of};
    use std::path::Path;

    #[test]
    fn each_test_binary_has_one_machine() {
        assert_eq!(machine_of(Path::new("/t/deps/memory-0a")), 0);
        assert_eq!(machine_of(Path::new("/t/deps/new-0a")), MACHINES.len() - 1);
    }

    #[test]
    fn results_are_read_from_the_console() {
        let mut console = Console::default();
        assert!(!console.read("SeaBIOS"));
        assert!(console.read("VM-UP 6.1.0, 2 processors"));
        console.read("SKIP root_torch: needs PyTorch");
        console.read("VM-RESULT 4 1 101 root_io");
        console.read("VM-REPEATED a_test_of_root_io");
        console.read("VM-RESULT 0 0 137 root_hung");
        console.read("VM-RESULT garbled");
        console.read("VM-DONE");
        assert!(console.done);
        assert_eq!(
            console.left_out.into_iter().collect::<Vec<_>>(),
            ["root_torch"]
        );
        assert_eq!(
            (console.results, console.outcome.tally),
            (
                3,
                Tally {
                    passed: 5,
                    failed: 2,
                    skipped: 1,
                    repeated: 1
                }
            )
        );
    }
}
