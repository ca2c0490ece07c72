//! Running other programs, and where things lie.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository")
}

/// The cargo that started xtask.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    for (name, _) in env::vars_os() {
        // What `cargo run` told xtask about itself is not meant for the cargo that xtask starts: build scripts
        // that watch such a variable would run again.
        if name
            .to_str()
            .is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs a command to its end; an exit status other than 0 is an error that names the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", show(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// Runs a command for its standard output; its standard error is shown when it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("cannot start {}", show(command)))?;
    if !status.success() {
        bail!(
            "{} ended with {status}\n{}",
            show(command),
            String::from_utf8_lossy(&stderr)
        );
    }
    String::from_utf8(stdout).with_context(|| format!("{} wrote no UTF-8", show(command)))
}

/// Whether a command can be started and ends with 0; what it writes is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A command line for messages.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The file that a name stands for in PATH or in cargo's folder of installed programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_bin = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))
        .map(|home| home.join("bin"));
    env::split_paths(&path)
        .chain(cargo_bin)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command that runs as root: as it is for root, else through sudo.
pub fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    let sudo = find_program("sudo")
        .context("this needs root, and there is no sudo here: run it as root")?;
    let mut command = Command::new(sudo);
    command.arg(program);
    Ok(command)
}

/// Whether this runs in a CI job, where what cannot be tested is a failure and not a skip.
pub fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "0" && value != "false")
}

/// Writes a file whole or not at all, and leaves it alone when it already says the same.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let dir = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let temporary = path.with_extension(format!("new{}", std::process::id()));
    fs::write(&temporary, content)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}
