//! Runs the root tests on other kernels: boots each in QEMU with nothing but an initramfs, reads what it writes to
//! its serial console, and lets it power off. The processor is emulated, so this works where there is no
//! virtualisation, and it is slow: the tests must not depend on speed.
//!
//! Each kernel runs in several machines, which share the test binaries. Only as many of them run at the same time as there are CPUs:
//! a machine that has to wait for a CPU measures that. What failed is tried again at the end, in a machine that runs alone.

mod console;
mod initramfs;
mod machine;
mod packages;

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Result, bail};

use self::{console::Console, initramfs::Task, machine::Machine};
use crate::{
    cmd::root,
    lanes, left_out,
    outcome::{Outcome, Test},
    setup::{kernel_dir, kernel_release},
    test::{Built, name_of},
};

/// The machines of one kernel, by the names of the test binaries that they run; the last one runs all others. So they take about as
/// long as each other.
const MACHINES: [&[&str]; 3] = [
    &["gpu_calls", "gpu_driver", "memory", "lifecycle", "files"],
    &["python"],
    &[],
];

/// Test binaries about what is the same on all kernels: command lines, signals, files that cannot be written, the GPU driver's words,
/// what /proc says of memory, PyTorch's ways to start workers. In a run of all tests they run on the first of several kernels only:
/// emulated, they take as long as all others together.
const ONCE: &[&str] = &[
    "bad_input",
    "contract",
    "gpu_driver",
    "lifecycle",
    "memory",
    "python",
    "recording",
    "surroundings",
    "terminal",
];

/// How much runs in the machines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All tests on each kernel.
    Everything,
    /// Without [`ONCE`] on all kernels but the first.
    OnceWhereAlike,
}

/// How often what failed is tried again: an emulated processor's time is even less its own than a shared host's.
const MORE_TRIES: u32 = 3;

/// Which of [`MACHINES`] runs a test binary.
fn machine_of(binary: &Path) -> usize {
    let name = name_of(binary);
    MACHINES
        .iter()
        .position(|names| names.contains(&name.as_str()))
        .unwrap_or(MACHINES.len() - 1)
}

/// A kernel that tests run on.
struct Kernel<'a> {
    series: &'a str,
    dir: PathBuf,
    release: String,
    packages: PathBuf,
    /// What its machines run; none is empty.
    lists: Vec<Vec<Task>>,
    /// All tests run on it.
    whole: bool,
}

impl Kernel<'_> {
    /// Writes what its machines boot; each list is what one of them runs.
    fn pack(&self, built: &Built, lists: &[Vec<Task>]) -> Result<()> {
        let image = self.image();
        initramfs::pack(&image, &self.dir, &self.release, built, lists)?;
        println!(
            "Linux {} ({} MB) for {} machines",
            self.release,
            fs::metadata(&image)?.len() >> 20,
            lists.len()
        );
        Ok(())
    }

    fn image(&self) -> PathBuf {
        self.dir.join("initramfs.cpio")
    }

    /// Runs the list of this number in a machine, which must tell so many results.
    fn run(&self, list: usize, name: &str, results: usize) -> Result<Console> {
        let machine = Machine {
            name: format!("{}/{name}", self.series),
            kernel: &self
                .dir
                .join("boot")
                .join(format!("vmlinuz-{}", self.release)),
            initramfs: &self.image(),
            disk: self.dir.join(format!("disk-{name}.img")),
            packages: &self.packages,
            log: root().join(format!("target/vm/serial-{}-{name}.log", self.series)),
            list,
        };
        let console = machine.run()?;
        if console.results.len() != results {
            bail!(
                "{} of {results} test binaries told a result",
                console.results.len()
            );
        }
        Ok(console)
    }

    /// Tries what failed again, each time in a machine of their own.
    fn again(&self, built: &Built, outcome: &mut Outcome) -> Result<()> {
        for _ in 0..MORE_TRIES {
            let failed: Vec<Test> = outcome.failed.iter().map(|f| f.test.clone()).collect();
            if failed.is_empty() {
                break;
            }
            for test in &failed {
                println!("AGAIN {test}: it failed, and is run again, alone");
            }
            let tasks = failed.iter().cloned().map(Task::One).collect();
            self.pack(built, &[tasks])?;
            let console = self.run(0, "again", failed.len())?;
            for (test, result) in failed.into_iter().zip(console.results) {
                if (result.passed, result.failed) == (1, 0) {
                    outcome.passed_again(test);
                }
            }
        }
        Ok(())
    }
}

/// What became of a kernel's tests.
#[derive(Default)]
struct Ran {
    outcome: Outcome,
    left_out: BTreeSet<String>,
    /// Machines that did not come to their end.
    broken: u32,
}

impl Ran {
    fn add(&mut self, console: Result<Console>) {
        match console {
            Ok(console) => {
                self.outcome.add(console.outcome);
                self.left_out.extend(console.left_out);
            }
            Err(error) => self.broke(&error),
        }
    }

    fn broke(&mut self, error: &anyhow::Error) {
        println!("{error:#}");
        self.outcome.broke(format!("{error:#}"));
        self.broken += 1;
    }
}

/// Runs the tests on these kernels. Wants the workloads to have been built.
pub fn test<'a>(
    serieses: &[&'a str],
    built: &Built,
    filter: Option<&str>,
    extent: Extent,
) -> Result<Vec<(&'a str, Outcome)>> {
    let known = |name: &&str| built.test_binaries.iter().any(|b| name_of(b) == **name);
    let mut named = MACHINES.iter().copied().flatten().chain(ONCE);
    if let Some(name) = named.find(|name| !known(name)) {
        bail!("xtask/src/vm.rs names {name}, which is no test binary");
    }
    let packages = packages::disk(&root().join("target/vm"))?;
    let mut kernels = Vec::new();
    for (n, series) in serieses.iter().enumerate() {
        let whole = n == 0 || extent == Extent::Everything;
        let dir = kernel_dir(series);
        let release = kernel_release(&dir)?.to_string_lossy().into_owned();
        let kernel = Kernel {
            series,
            dir,
            release,
            packages: packages.clone(),
            lists: lists(&built.test_binaries, filter, whole),
            whole,
        };
        kernel.pack(built, &kernel.lists)?;
        kernels.push((kernel, Ran::default()));
    }
    for (kernel, console) in side_by_side(&kernels) {
        kernels[kernel].1.add(console);
    }
    let mut outcomes = Vec::new();
    for (kernel, mut ran) in kernels {
        if let Err(error) = kernel.again(built, &mut ran.outcome) {
            ran.broke(&error);
        }
        let whole = kernel.whole && filter.is_none() && ran.broken == 0;
        println!(
            "[{}] {} tests left themselves out",
            kernel.series,
            ran.left_out.len()
        );
        for difference in left_out::differences(&ran.left_out, whole) {
            ran.outcome.broke(difference);
        }
        outcomes.push((kernel.series, ran.outcome));
    }
    Ok(outcomes)
}

/// What the machines of a kernel run.
fn lists(binaries: &[PathBuf], filter: Option<&str>, whole: bool) -> Vec<Vec<Task>> {
    let runs = |binary: &&PathBuf| whole || !ONCE.contains(&name_of(binary).as_str());
    let task =
        |binary: &PathBuf| Task::Whole(name_of(binary), filter.unwrap_or_default().to_owned());
    let list = |machine: usize| -> Vec<Task> {
        let mine = binaries
            .iter()
            .filter(runs)
            .filter(|binary| machine_of(binary) == machine);
        mine.map(task).collect()
    };
    let lists = (0..MACHINES.len()).map(list);
    lists.filter(|list| !list.is_empty()).collect()
}

/// Runs each list of each kernel; tells the kernel's place and what its machine said.
fn side_by_side(kernels: &[(Kernel<'_>, Ran)]) -> Vec<(usize, Result<Console>)> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut wanted: Vec<(usize, usize)> = kernels
        .iter()
        .enumerate()
        .flat_map(|(k, (kernel, _))| (0..kernel.lists.len()).map(move |list| (list, k)))
        .collect();
    // The longest first, so that the lanes end at about the same time: that of all other binaries.
    wanted.sort_by_key(|(list, k)| (Reverse(kernels[*k].0.lists[*list].len()), *k));
    lanes::work(cpus, wanted, |(list, k)| {
        let kernel = &kernels[k].0;
        let name = list.to_string();
        (k, kernel.run(list, &name, kernel.lists[list].len()))
    })
}

#[cfg(test)]
mod tests {
    use super::{MACHINES, lists, machine_of};
    use std::path::{Path, PathBuf};

    #[test]
    fn each_test_binary_has_one_machine() {
        assert_eq!(machine_of(Path::new("/t/deps/memory-0a")), 0);
        assert_eq!(machine_of(Path::new("/t/deps/new-0a")), MACHINES.len() - 1);
    }

    #[test]
    fn what_is_alike_on_all_kernels_runs_where_everything_does() {
        let binaries = ["files", "python", "memory", "waits"].map(|name| format!("/t/{name}-0a"));
        let binaries = binaries.map(PathBuf::from);
        let count = |whole| {
            lists(&binaries, None, whole)
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(count(true), [2, 1, 1]);
        // A machine with nothing to run is not started.
        assert_eq!(count(false), [1, 1]);
    }
}
