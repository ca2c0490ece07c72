//! Finds out what a chore lacks on this host and installs that, and nothing else.

pub mod bench;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{as_root, cargo, find_program, is_root, output, root, run, succeeds},
    ebpf,
};

const BPF_LINKER_VERSION: &str = "0.13.0";
/// The LLVM that both Debian's compiler for the kernel target and this bpf-linker are built with.
const LLVM: &str = "/usr/lib/llvm-22";
const COMPILER: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];
const LLVM_PACKAGES: &[&str] = &[
    "llvm-22-dev",
    "libpolly-22-dev",
    "libzstd-dev",
    "zlib1g-dev",
];
/// Modules that the demo and the tests import.
const PYTHON_MODULES: &[&str] = &["torch", "PIL", "numpy"];
const PYTHON_PACKAGES: &[&str] = &["python3-torch", "python3-pil", "python3-numpy"];
/// Programs that the tests call, with their packages.
const TEST_PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("c++", "g++"),
    ("strace", "strace"),
    ("bpftrace", "bpftrace"),
    ("fusermount3", "fuse3"),
    ("musl-gcc", "musl-tools"),
];
/// Allocators that the tests have a job use, with their packages.
const ALLOCATORS: [(&str, &str); 2] = [
    ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "libjemalloc2"),
    (
        "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
        "libtcmalloc-minimal4",
    ),
];
/// Programs that start a virtual machine, or go into one, with their packages.
const VM_PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("mkfs.ext4", "e2fsprogs"),
];
/// The kernels that the tests run on beside the host's: one series before 6.6's and one after.
pub const KERNELS: [&str; 2] = ["6.1", "6.12"];

#[derive(clap::Args)]
pub struct Args {
    /// What building the kernel probes takes
    #[arg(long)]
    ebpf: bool,
    /// What the demo takes
    #[arg(long)]
    demo: bool,
    /// What the tests take, the virtual machines included
    #[arg(long)]
    test: bool,
    /// What the benchmarks compare with; only when named
    #[arg(long)]
    bench: bool,
}

/// `cargo xtask setup`: everything but what benchmarks compare with, or the named parts.
pub fn main(args: &Args) -> Result<()> {
    let all = !(args.ebpf || args.demo || args.test || args.bench);
    if all || args.ebpf || args.test {
        for_ebpf()?;
    }
    if all || args.demo {
        for_demo()?;
    }
    if all || args.test {
        for_ebpf_lint()?;
        for_root_tests()?;
        for_scenarios()?;
        for_vms()?;
    }
    if args.bench {
        bench::for_bench()?;
    }
    println!("everything needed is here");
    Ok(())
}

/// The compiler and the linker of the kernel probes.
pub fn for_ebpf() -> Result<()> {
    if ebpf::Toolchain::find().is_err() {
        install(COMPILER).context(
            "this system has no package of a Rust compiler for the kernel target; take rustup's: \
             `rustup toolchain install nightly --component rust-src`",
        )?;
        ebpf::Toolchain::find()?;
    }
    if ebpf::find_linker().is_ok() {
        return Ok(());
    }
    let advice = "this system has no package of LLVM 22; try `cargo install bpf-linker` (it brings its own LLVM)";
    install(LLVM_PACKAGES).context(advice)?;
    let mut command = cargo();
    command
        .args([
            "install",
            "bpf-linker",
            "--version",
            BPF_LINKER_VERSION,
            "--locked",
            "--force",
        ])
        .args(["--no-default-features", "--features", "llvm-22"])
        .envs([("LLVM_PREFIX", LLVM), ("LLVM_SYS_221_PREFIX", LLVM)])
        .env_remove("CARGO_TARGET_DIR");
    run(&mut command)?;
    ebpf::find_linker().map(drop)
}

/// clippy for the kernel probes.
pub fn for_ebpf_lint() -> Result<()> {
    if let ebpf::Toolchain::Precompiled(rustc) = ebpf::Toolchain::find()?
        && ebpf::clippy_beside(&rustc).is_none()
    {
        install(&["rust-web-clippy"])?;
    }
    Ok(())
}

/// A Python with PyTorch.
pub fn for_demo() -> Result<()> {
    if python().is_none() {
        install(PYTHON_PACKAGES)?;
        python().context("a Python with PyTorch was installed, and none can be found")?;
    }
    Ok(())
}

/// What the tests on this host's kernel call.
pub fn for_root_tests() -> Result<()> {
    install(&missing(TEST_PROGRAMS))?;
    if !has_static_libc() {
        install(&["libc6-dev"])?;
    }
    for (library, package) in ALLOCATORS {
        if !Path::new(library).exists() {
            install(&[package])?;
        }
    }
    for_demo()
}

/// What the fault-injection suite takes.
pub fn for_scenarios() -> Result<()> {
    for_demo()?;
    install(&missing(&[("cc", "gcc"), ("fusermount3", "fuse3")]))?;
    let python = python().context("no Python with PyTorch")?;
    if !succeeds(Command::new(python).args(["-c", "import fusepy"])) {
        install(&["python3-fusepy"])?;
    }
    Ok(())
}

/// What the virtual machines take, their kernels included. They have the distribution's Python.
pub fn for_vms() -> Result<()> {
    install(&missing(VM_PROGRAMS))?;
    if !has_pytorch(Path::new(DISTRIBUTIONS_PYTHON)) {
        install(PYTHON_PACKAGES)?;
    }
    for series in KERNELS {
        if !kernel_dir(series).join(UNPACKED).exists() {
            fetch_kernel(series)
                .with_context(|| format!("cannot get a Linux {series} for the virtual machine"))?;
        }
    }
    Ok(())
}

/// The interpreter that the distribution's packages are for.
pub const DISTRIBUTIONS_PYTHON: &str = "/usr/bin/python3";

/// An interpreter that can import PyTorch: often not the first in PATH.
pub fn python() -> Option<PathBuf> {
    let named = std::env::var_os("TRAINPROF_PYTHON").map(PathBuf::from);
    let known = [
        Some(PathBuf::from(DISTRIBUTIONS_PYTHON)),
        find_program("python3"),
    ];
    named
        .into_iter()
        .chain(known.into_iter().flatten())
        .find(|python| has_pytorch(python))
}

/// Whether an interpreter finds PyTorch and what else loaders import. The modules are looked for and not imported, which would take
/// seconds.
fn has_pytorch(python: &Path) -> bool {
    let find = "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))";
    succeeds(Command::new(python).args(["-c", find]).args(PYTHON_MODULES))
}

fn missing(programs: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let absent = |program: &str| {
        let sbin = Path::new("/usr/sbin").join(program);
        find_program(program).is_none() && !sbin.is_file()
    };
    programs
        .iter()
        .filter(|(program, _)| absent(program))
        .map(|&(_, package)| package)
        .collect()
}

fn has_static_libc() -> bool {
    output(Command::new("cc").arg("-print-file-name=libc.a"))
        .is_ok_and(|path| Path::new(path.trim()).is_absolute())
}

/// Installs packages; does nothing when there are none.
fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        bail!(
            "there is no apt-get here; install what Debian calls: {}",
            packages.join(" ")
        );
    }
    println!("installing {}", packages.join(" "));
    run(apt_get()?.args(["update", "-qq"]))?;
    run(apt_get()?
        .args(["install", "-qq", "--yes", "--no-install-recommends"])
        .args(packages))
}

fn apt_get() -> Result<Command> {
    let mut command = as_root("env")?;
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-o",
        "DPkg::Lock::Timeout=300",
    ]);
    Ok(command)
}

/// Says that a kernel is unpacked whole.
const UNPACKED: &str = ".unpacked";

/// Where a kernel and its modules lie.
pub fn kernel_dir(series: &str) -> PathBuf {
    root().join("target/vm").join(series)
}

/// Downloads and unpacks the newest cloud kernel of a series, and leaves the host's own kernel alone.
fn fetch_kernel(series: &str) -> Result<()> {
    let mut packages = cloud_kernels(series)?;
    if packages.is_empty() {
        run(apt_get()?.args(["update", "-qq"]))?;
        packages = cloud_kernels(series)?;
    }
    let package = packages.into_iter().max_by_key(|name| numbers(name));
    let package =
        package.with_context(|| format!("no package linux-image-{series}.…-cloud-amd64"))?;
    println!("fetching {package}");
    let dir = kernel_dir(series);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut download = Command::new("apt-get");
    download.current_dir(&dir).args(["download", "-qq"]);
    if is_root() {
        // apt's own user may not be allowed to write here.
        download.args(["-o", "APT::Sandbox::User=root"]);
    }
    if run(download.arg(&package)).is_err() {
        // The lists are older than the archive.
        run(apt_get()?.args(["update", "-qq"]))?;
        run(&mut download)?;
    }
    let archive = fs::read_dir(&dir)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get download left no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&dir))?;
    fs::remove_file(&archive)?;
    let release = kernel_release(&dir)?;
    let mut depmod =
        Command::new(find_program("depmod").unwrap_or_else(|| "/usr/sbin/depmod".into()));
    run(depmod.arg("-b").arg(&dir).arg(&release))?;
    fs::write(dir.join(UNPACKED), "")?;
    Ok(())
}

fn cloud_kernels(series: &str) -> Result<Vec<String>> {
    let names =
        output(Command::new("apt-cache").args(["pkgnames", &format!("linux-image-{series}.")]))?;
    Ok(names
        .lines()
        .filter(|name| name.ends_with("-cloud-amd64"))
        .map(str::to_owned)
        .collect())
}

/// The numbers in a package's name, which order its versions.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

/// The name of the one folder with modules.
pub fn kernel_release(dir: &Path) -> Result<OsString> {
    let modules = dir.join("lib/modules");
    let entry = fs::read_dir(&modules)
        .with_context(|| format!("cannot read {}", modules.display()))?
        .next();
    Ok(entry
        .with_context(|| format!("{} is empty", modules.display()))??
        .file_name())
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn the_newest_kernel_is_chosen_by_number() {
        assert!(
            numbers("linux-image-6.12.111+deb12-cloud-amd64")
                > numbers("linux-image-6.12.98+deb12-cloud-amd64")
        );
        assert!(
            numbers("linux-image-6.1.0-56-cloud-amd64")
                > numbers("linux-image-6.1.0-9-cloud-amd64")
        );
    }
}
