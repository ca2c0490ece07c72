//! Runs the root tests on other kernels: boots each in QEMU with nothing but an initramfs, reads what it writes to
//! its serial console, and lets it power off. The processor is emulated, so this works where there is no
//! virtualisation, and it is slow: the tests must not depend on speed.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{find_program, output, root, run},
    cpio::Archive,
    left_out,
    outcome::{Outcome, Tally},
    setup::{kernel_dir, kernel_release},
    test::{Built, MORE_TRIES, name_of},
};

/// The longest that one machine may live.
const LIMIT: Duration = Duration::from_secs(35 * 60);
/// The longest that one test binary may run in it, so that the others still get their turn.
const TEST_LIMIT_S: u32 = 450;
/// File systems and devices that tests mount; those that are built into a kernel are left out.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "loop",
    "crc32c_generic",
    "ext4",
    "fuse",
    "overlay",
];
/// Programs of the host that the tests call and that busybox has only a part of.
const PROGRAMS: &[&str] = &["setpriv", "unshare", "nsenter"];
/// The disk for the tests' files: tells reads from a device from reads of cached pages, as memory cannot.
const DISK_BYTES: u64 = 2 << 30;

/// Makes what all machines share, before they run side by side.
pub fn prepare() -> Result<()> {
    let script = root().join("tests/workloads/build.sh");
    run(Command::new("sh")
        .arg(&script)
        .arg(root().join("target/workloads")))
}

/// Boots one kernel and runs the tests there. Wants [`prepare`] to have been called.
pub fn test(series: &str, built: &Built, filter: Option<&str>) -> Result<Outcome> {
    let dir = kernel_dir(series);
    let release = kernel_release(&dir)?.to_string_lossy().into_owned();
    let initramfs = dir.join("initramfs.cpio");
    pack(&initramfs, &dir, &release, built, filter)?;
    let disk = dir.join("disk.img");
    make_disk(&disk)?;
    println!(
        "booting Linux {release} ({} MB)",
        fs::metadata(&initramfs)?.len() >> 20
    );
    let log = root()
        .join("target/vm")
        .join(format!("serial-{series}.log"));
    let mut machine = Machine::boot(
        &dir.join("boot").join(format!("vmlinuz-{release}")),
        &initramfs,
        &disk,
    )?;
    let whole = filter.is_none();
    let result = follow(&mut machine, series, &log, built.test_binaries.len(), whole);
    machine.stop();
    result.with_context(|| format!("the whole console: {}", log.display()))
}

/// Reads the console until the machine is off, and adds up the results; `whole`: of all tests.
fn follow(
    machine: &mut Machine,
    series: &str,
    log: &Path,
    expected: usize,
    whole: bool,
) -> Result<Outcome> {
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
            println!("[{series}] {line}");
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
    println!(
        "[{series}] {} tests left themselves out",
        account.left_out.len()
    );
    let differences = left_out::differences(&account.left_out, whole);
    let mut outcome = account.outcome;
    outcome.tally.failed += differences.len() as u32;
    outcome.words.extend(differences);
    Ok(outcome)
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
    fn boot(kernel: &Path, initramfs: &Path, disk: &Path) -> Result<Self> {
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
        .args([
            "-append",
            "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off",
        ])
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

/// Writes the initramfs.
fn pack(
    path: &Path,
    kernel: &Path,
    release: &str,
    built: &Built,
    filter: Option<&str>,
) -> Result<()> {
    let mut archive = Archive::create(path)?;
    for dir in [
        "proc", "sys", "dev", "tmp", "run", "mnt", "root", "etc", "var",
    ] {
        archive.directory(dir)?;
    }
    archive.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    )?;
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")?;
    let busybox = find_program("busybox").context("busybox is missing")?;
    archive.copy(&busybox, "bin/busybox")?;
    archive.symlink("bin/sh", "busybox")?;
    archive.file("init", 0o755, init(built, filter).as_bytes())?;

    with_libraries(&mut archive, &built.trainprof, "bin/trainprof")?;
    for binary in &built.test_binaries {
        with_libraries(&mut archive, binary, &format!("tests/{}", name_of(binary)))?;
    }
    for program in PROGRAMS {
        if let Some(file) = find_program(program) {
            with_libraries(&mut archive, &file, &format!("usr/bin/{program}"))?;
        }
    }
    pack_workloads(&mut archive)?;
    pack_python(&mut archive)?;
    let mut order = String::new();
    for module in module_files(kernel, release)? {
        let content = module_content(&module)?;
        let name = module
            .file_name()
            .context("a module has a name")?
            .to_string_lossy();
        let name = name.trim_end_matches(".xz").to_owned();
        archive.file(&format!("modules/{name}"), 0o644, &content)?;
        order.push_str(&format!("{name}\n"));
    }
    archive.file("modules/order", 0o644, order.as_bytes())?;
    archive.finish()?;
    Ok(())
}

/// What runs in the machine as its first process.
fn init(built: &Built, filter: Option<&str>) -> String {
    let names: Vec<String> = built
        .test_binaries
        .iter()
        .map(|binary| name_of(binary))
        .collect();
    let filter = filter.unwrap_or_default().replace('\'', "");
    format!(
        "#!/bin/busybox sh
export PATH=/usr/bin:/bin:/sbin:/usr/sbin HOME=/root
/bin/busybox mkdir -p /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +memory +io +pids' > /sys/fs/cgroup/cgroup.subtree_control
ln -s /proc/self/fd /dev/fd
ip link set lo up
hostname vm
while read -r module; do insmod /modules/$module; done < /modules/order
export CI='{ci}' TRAINPROF_VM=1 TRAINPROF_BIN=/bin/trainprof TRAINPROF_WORKLOADS=/workloads
export TRAINPROF_TEST_DIR=/tmp/tests NO_COLOR=1
mkdir -p /tmp/tests
mount -t ext4 /dev/vda /tmp/tests || echo 'no disk: the tests use memory'
echo
echo \"VM-UP $(uname -r), $(nproc) processors\"
trainprof --version
for name in {names}; do
    echo \"VM-BEGIN $name\"
    cd /tmp/tests
    {{ timeout -s KILL {TEST_LIMIT_S} /tests/$name --test-threads=1 --show-output '{filter}' 2>&1; echo $? > /tmp/status; }} | tee /tmp/out
    result=$(sed -n 's/^test result: [A-Za-z]*\\. \\([0-9]*\\) passed; \\([0-9]*\\) failed;.*/\\1 \\2/p' /tmp/out | tail -n 1)
    echo
    echo \"VM-RESULT ${{result:-0 0}} $(cat /tmp/status) $name\"
    for failed in $(awk '/^failures:$/ {{ n = 1; names = \"\"; next }} /^test result/ {{ n = 0 }} n && /^    [^ ]+$/ {{ names = names \" \" $1 }} END {{ print names }}' /tmp/out); do
        echo \"$name $failed\" >> /run/failed
    done
done
touch /run/failed
while read -r name failed; do
    for try in $(seq {MORE_TRIES}); do
        echo \"AGAIN $failed: it failed, and is run once more, alone\"
        timeout -s KILL {TEST_LIMIT_S} /tests/$name --test-threads=1 --show-output --exact $failed 2>&1 < /dev/null | tee /tmp/again
        if grep -q '^test result: ok. 1 passed' /tmp/again; then
            echo; echo \"VM-REPEATED $failed\"
            break
        fi
    done
done < /run/failed
echo VM-DONE
poweroff -f
",
        ci = std::env::var("CI").unwrap_or_default().replace('\'', ""),
        names = names.join(" "),
    )
}

/// Puts a program and the libraries that it loads into the archive.
fn with_libraries(
    archive: &mut Archive<impl std::io::Write>,
    program: &Path,
    name: &str,
) -> Result<()> {
    archive.copy(program, name)?;
    for library in libraries(program) {
        let name = library.to_string_lossy().into_owned();
        archive.copy(&library, &name)?;
    }
    Ok(())
}

/// The absolute paths that ldd names; none for a static program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = output(
        Command::new("ldd")
            .arg(program)
            .env_remove("LD_LIBRARY_PATH"),
    )
    .unwrap_or_default();
    let path = |line: &str| {
        let after = line.split_once("=> ").map_or(line, |(_, after)| after);
        after
            .split_whitespace()
            .next()
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    listed.lines().filter_map(path).collect()
}

/// The compiled workloads, and the scripts beside them.
fn pack_workloads(archive: &mut Archive<impl std::io::Write>) -> Result<()> {
    archive.directory("workloads")?;
    let built = root().join("target/workloads");
    for folder in ["", "gpu/"] {
        archive.directory(format!("workloads/{folder}").trim_end_matches('/'))?;
        for entry in fs::read_dir(built.join(folder))?
            .flatten()
            .filter(|entry| entry.path().is_file())
        {
            let name = format!("workloads/{folder}{}", entry.file_name().to_string_lossy());
            with_libraries(archive, &entry.path(), &name)?;
        }
    }
    Ok(())
}

/// The distribution's Python with its standard library, when there is one; PyTorch would be too large.
fn pack_python(archive: &mut Archive<impl std::io::Write>) -> Result<()> {
    let Ok(python) = fs::canonicalize("/usr/bin/python3") else {
        return Ok(());
    };
    let name = python
        .file_name()
        .context("a program has a name")?
        .to_string_lossy()
        .into_owned();
    with_libraries(archive, &python, &format!("usr/bin/{name}"))?;
    archive.symlink("usr/bin/python3", &name)?;
    pack_tree(archive, &Path::new("/usr/lib").join(&name))
}

fn pack_tree(archive: &mut Archive<impl std::io::Write>, dir: &Path) -> Result<()> {
    // Large, and no workload imports them.
    const LEFT_OUT: &[&str] = &[
        "test",
        "idlelib",
        "tkinter",
        "lib2to3",
        "ensurepip",
        "turtledemo",
        "pydoc_data",
        "distutils",
        "dist-packages",
    ];
    for entry in fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !LEFT_OUT.contains(&name.as_ref()) && !name.starts_with("config-") {
                pack_tree(archive, &path)?;
            }
        } else if name.ends_with(".so") {
            with_libraries(archive, &path, &path.to_string_lossy())?;
        } else if path.is_file() {
            archive.copy(&path, &path.to_string_lossy())?;
        }
    }
    Ok(())
}

/// The wanted modules' files in the order of loading.
fn module_files(kernel: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let dir = kernel.join("lib/modules").join(release);
    let listed = fs::read_to_string(dir.join("modules.dep")).context("cannot read modules.dep")?;
    let order = load_order(&listed, MODULES);
    Ok(order.into_iter().map(|file| dir.join(file)).collect())
}

/// The wanted modules and what they depend on, dependencies first, from the text of `modules.dep`.
fn load_order(listed: &str, wanted: &[&str]) -> Vec<String> {
    let mut by_name = HashMap::new();
    let mut depends = HashMap::new();
    for (file, needs) in listed.lines().filter_map(|line| line.split_once(':')) {
        let name = file
            .rsplit('/')
            .next()
            .unwrap_or(file)
            .split('.')
            .next()
            .unwrap_or(file);
        by_name.insert(name.replace('-', "_"), file);
        // depmod lists the closest first, so the farthest has to be loaded first.
        depends.insert(file, needs.split_whitespace().rev().collect::<Vec<_>>());
    }
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for file in wanted.iter().filter_map(|name| by_name.get(*name)) {
        for &file in depends.get(file).into_iter().flatten().chain([file]) {
            if seen.insert(file) {
                order.push(file.to_owned());
            }
        }
    }
    order
}

/// A module as the kernel takes it.
fn module_content(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_some_and(|extension| extension == "xz") {
        let unpacked = Command::new("xz")
            .args(["-dc"])
            .arg(file)
            .output()
            .context("cannot start xz")?;
        if !unpacked.status.success() {
            bail!("xz cannot read {}", file.display());
        }
        return Ok(unpacked.stdout);
    }
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::{Console, Tally, load_order};

    #[test]
    fn modules_come_after_what_they_need() {
        let listed = "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
                      kernel/fs/jbd2/jbd2.ko:\nkernel/lib/crc16.ko:\nkernel/a/crc32c-generic.ko.xz:\n";
        let order = load_order(listed, &["ext4", "crc32c_generic", "absent", "jbd2"]);
        let expected = [
            "kernel/lib/crc16.ko",
            "kernel/fs/jbd2/jbd2.ko",
            "kernel/fs/ext4/ext4.ko",
            "kernel/a/crc32c-generic.ko.xz",
        ];
        assert_eq!(order, expected);
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
