//! Builds the kernel probes into the object that `trainprof-user` carries.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{cargo, find_program, in_ci, output, root, run, show, succeeds, write_if_changed},
    source_hash,
};

const TARGET: &str = "bpfel-unknown-none";

#[derive(clap::Args, Default)]
pub struct Args {
    /// Build and compare with the committed object, and leave that as it is.
    #[arg(long)]
    pub check: bool,
    /// Let the probes write to the collector's log, for a build with --features probe-log. Leaves the committed object as it is.
    #[arg(long, conflicts_with = "check")]
    pub log: bool,
}

/// A compiler that can build for the kernel.
pub enum Toolchain {
    /// Its `core` for the target is on disk.
    Precompiled(PathBuf),
    /// rustup's nightly, which builds `core` from rust-src.
    Nightly { rustup: PathBuf },
}

impl Toolchain {
    /// The first that this host has; the error says what to install.
    pub fn find() -> Result<Self> {
        if let Some(rustc) = env::var_os("TRAINPROF_BPF_RUSTC") {
            if !has_core(&rustc) {
                bail!(
                    "TRAINPROF_BPF_RUSTC names {}, which has no core library for {TARGET} \
                     (nothing in the folder that `rustc --print target-libdir --target {TARGET}` prints)",
                    rustc.display()
                );
            }
            return Ok(Self::Precompiled(rustc.into()));
        }
        for rustc in [Some("/usr/bin/rustc".into()), find_program("rustc")]
            .into_iter()
            .flatten()
        {
            if has_core(rustc.as_os_str()) {
                return Ok(Self::Precompiled(rustc));
            }
        }
        if let Some(rustup) = find_program("rustup")
            && nightly_has_source(&rustup)
        {
            return Ok(Self::Nightly { rustup });
        }
        bail!(
            "no Rust compiler here can build for {TARGET}. Any of these will do:\n\
             - `cargo xtask setup --ebpf` installs Debian's (packages rustc-web and libstd-rust-web-dev-bpf)\n\
             - `rustup toolchain install nightly --component rust-src`\n\
             - TRAINPROF_BPF_RUSTC=/path/to/rustc, with core precompiled for {TARGET}"
        )
    }

    /// The build command up to its arguments.
    fn cargo(&self) -> Command {
        match self {
            Self::Precompiled(rustc) => {
                let mut command = cargo();
                // The probes use unstable attributes of the kernel target, which this compiler takes only so.
                command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                command
            }
            Self::Nightly { rustup } => {
                let mut command = Command::new(rustup);
                command
                    .args(["run", "nightly", "cargo"])
                    .env_remove("RUSTC")
                    .env_remove("RUSTUP_TOOLCHAIN");
                command
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Precompiled(rustc) => rustc.display().to_string(),
            Self::Nightly { .. } => "rustup's nightly".to_owned(),
        }
    }
}

fn has_core(rustc: impl AsRef<std::ffi::OsStr>) -> bool {
    let mut command = Command::new(rustc);
    command
        .args(["--print", "target-libdir", "--target", TARGET])
        .env_remove("LD_LIBRARY_PATH");
    let Ok(dir) = output(&mut command) else {
        return false;
    };
    let Ok(entries) = fs::read_dir(dir.trim()) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    })
}

fn nightly_has_source(rustup: &Path) -> bool {
    let mut command = Command::new(rustup);
    command
        .args(["run", "nightly", "rustc", "--print", "sysroot"])
        .env_remove("RUSTUP_TOOLCHAIN");
    output(&mut command).is_ok_and(|sysroot| {
        Path::new(sysroot.trim())
            .join("lib/rustlib/src/rust/library/core")
            .is_dir()
    })
}

/// bpf-linker, or what to do about its absence.
pub fn find_linker() -> Result<PathBuf> {
    let linker = find_program("bpf-linker").context(
        "bpf-linker is missing. `cargo xtask setup --ebpf` builds it; elsewhere: `cargo install bpf-linker`",
    )?;
    if !succeeds(Command::new(&linker).arg("--version")) {
        bail!(
            "{} does not start (built for another LLVM?): `cargo xtask setup --ebpf`",
            linker.display()
        );
    }
    Ok(linker)
}

/// The architecture whose registers the probes read: the host's.
fn arch() -> Result<&'static str> {
    match env::consts::ARCH {
        arch @ ("x86_64" | "aarch64") => Ok(arch),
        other => bail!("the probes know no registers of {other}"),
    }
}

pub fn committed_object() -> Result<PathBuf> {
    Ok(root()
        .join("trainprof-user")
        .join(source_hash::object_path(arch()?)))
}

/// What the probes with a log are written to.
fn log_object() -> Result<PathBuf> {
    Ok(root().join(source_hash::log_object_path(arch()?)))
}

/// A cargo command on the probes' crate with everything set but its arguments.
fn cargo_for_probes(toolchain: &Toolchain, linker: &Path) -> Result<Command> {
    let arch = arch()?;
    let hash = source_hash::source_hash(root()).context("cannot hash the sources of the probes")?;
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cargo"));
    // Lines of source are kept in the object's BTF, so that the verifier's log names them. Their paths are made
    // the same everywhere.
    let flags = [
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // Else what is filled or copied is so by calls of a loop over bytes, and not by words.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("--remap-path-prefix={}=trainprof", root().display()),
        format!("--remap-path-prefix={}=cargo", cargo_home.display()),
    ];
    let mut path = OsString::from(linker.parent().context("bpf-linker lies in a folder")?);
    if let Some(old) = env::var_os("PATH") {
        path.push(":");
        path.push(old);
    }
    let mut command = toolchain.cargo();
    command
        .current_dir(root().join("trainprof-ebpf"))
        .env("TRAINPROF_EBPF_SOURCE_HASH", hash)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("PATH", path)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", "bpf-linker")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET")
        // Set by `cargo run` for xtask: the libraries of another compiler.
        .env_remove("LD_LIBRARY_PATH");
    Ok(command)
}

fn target_args(command: &mut Command, toolchain: &Toolchain, log: bool) {
    command
        .args(["--locked", "--release", "--target", TARGET, "--target-dir"])
        .arg(target_dir());
    if let Toolchain::Nightly { .. } = toolchain {
        command.arg("-Zbuild-std=core");
    }
    if log {
        command.args(["--features", "log"]);
    }
}

fn target_dir() -> PathBuf {
    root().join("target/ebpf")
}

/// Builds the object and returns its bytes.
fn build(args: &Args) -> Result<Vec<u8>> {
    let toolchain = Toolchain::find()?;
    let linker = find_linker()?;
    let mut command = cargo_for_probes(&toolchain, &linker)?;
    command.arg("build");
    target_args(&mut command, &toolchain, args.log);
    println!(
        "building the kernel probes with {} and {}",
        toolchain.name(),
        linker.display()
    );
    run(&mut command)?;
    let built = target_dir().join(TARGET).join("release/trainprof");
    let object = fs::read(&built).with_context(|| format!("{} left no object", show(&command)))?;
    if source_hash::embedded_hash(&object).is_none() {
        bail!(
            "the object does not carry its source hash: trainprof-ebpf/src/main.rs must keep the static in the \
             section `trainprof_source`"
        );
    }
    Ok(object)
}

/// `cargo xtask ebpf`
pub fn main(args: &Args) -> Result<()> {
    let committed = match args.log {
        true => log_object()?,
        false => committed_object()?,
    };
    let object = build(args)?;
    let shown = committed
        .strip_prefix(root())
        .unwrap_or(&committed)
        .display();
    if !args.check {
        let changed = write_if_changed(&committed, &object)?;
        println!(
            "{shown}: {} bytes, {}",
            object.len(),
            if changed { "written" } else { "unchanged" }
        );
        return Ok(());
    }
    let old =
        fs::read(&committed).with_context(|| format!("{shown} is missing: `cargo xtask ebpf`"))?;
    if old == object {
        println!("{shown} is bit for bit what the sources give");
    } else if source_hash::embedded_hash(&old) == source_hash::embedded_hash(&object) {
        println!(
            "{shown} has these sources' hash ({} bytes) but differs from what this host built ({} bytes): \
             another compiler or linker",
            old.len(),
            object.len()
        );
    } else {
        bail!("{shown} is older than the sources: `cargo xtask ebpf`");
    }
    Ok(())
}

/// Builds the object before tests. One that differs only by the host's compiler is kept, so that testing leaves the
/// checkout as it was; but CI tests what the sources give today.
pub fn refresh() -> Result<()> {
    let committed = committed_object()?;
    let object = build(&Args::default())?;
    let old = fs::read(&committed).unwrap_or_default();
    let is_current = source_hash::embedded_hash(&old) == source_hash::embedded_hash(&object);
    if !is_current && in_ci() {
        bail!("the committed object is older than the sources: `cargo xtask ebpf`");
    }
    if !is_current || in_ci() {
        let same = !write_if_changed(&committed, &object)?;
        println!(
            "testing the object built here, {} the committed one",
            if same { "equal to" } else { "unlike" }
        );
    }
    Ok(())
}

/// clippy over the probes, with or without their log: the one that belongs to the compiler, since another cannot read its `core`.
pub fn clippy(log: bool) -> Result<()> {
    let toolchain = Toolchain::find()?;
    let linker = find_linker()?;
    let mut command = cargo_for_probes(&toolchain, &linker)?;
    if let Toolchain::Precompiled(rustc) = &toolchain {
        let program = clippy_beside(rustc)
            .with_context(|| format!("there is no cargo-clippy beside {}", rustc.display()))?;
        let mut same = Command::new(program);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => same.env(name, value),
                None => same.env_remove(name),
            };
        }
        // cargo-clippy runs the cargo that this names.
        same.env("CARGO", command.get_program());
        same.current_dir(command.get_current_dir().unwrap_or(root()));
        command = same;
    }
    command.arg("clippy");
    target_args(&mut command, &toolchain, log);
    command.args(["--", "-D", "warnings"]);
    // By value, a key or a cell is copied once more onto a stack of 512 bytes.
    run(command.args(["-A", "clippy::needless_borrows_for_generic_args"]))
}

/// The cargo-clippy that came with a compiler.
pub fn clippy_beside(rustc: &Path) -> Option<PathBuf> {
    Some(rustc.parent()?.join("cargo-clippy")).filter(|program| program.is_file())
}
