//! What this host offers to the tests, and the decision to skip aloud or to fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Held by a test while it runs: they measure time, so they do not run side by side.
pub struct Turn {
    _held: MutexGuard<'static, ()>,
}

/// Begins a test that needs root. `None`: there is no root, the skip was announced, return at once.
pub fn root_test(name: &str) -> Option<Turn> {
    // A poisoned lock only means that another test failed.
    let turn = Turn {
        _held: ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner),
    };
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        skip(name, "needs root");
        return None;
    }
    Some(turn)
}

/// Says aloud that a test is left out; in CI that is a failure (but a bare virtual machine lacks tools).
pub fn skip(name: &str, why: &str) {
    assert!(
        !in_ci() || in_vm(),
        "{name}: {why}, and CI leaves no test out"
    );
    eprintln!("SKIP {name}: {why}");
}

pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

pub fn in_vm() -> bool {
    std::env::var("TRAINPROF_VM").is_ok_and(|value| value == "1")
}

/// Whether to leave a test out that a bare virtual machine cannot run.
pub fn left_out_in_vm(name: &str, needs: &str) -> bool {
    if in_vm() {
        eprintln!("SKIP {name}: needs {needs}, not in a virtual machine");
    }
    in_vm()
}

/// Whether a helper program is on the path.
pub fn has_tool(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths).any(|folder| folder.join(tool).is_file())
    })
}

/// A Python that can import `module`. It is looked for once: an emulated machine takes half a minute to import PyTorch.
pub fn python_with(module: &str) -> Option<PathBuf> {
    static FOUND: Mutex<BTreeMap<String, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let known = found.entry(module.to_owned());
    known.or_insert_with(|| look_for_python(module)).clone()
}

fn look_for_python(module: &str) -> Option<PathBuf> {
    let named = std::env::var_os("TRAINPROF_PYTHON").map(PathBuf::from);
    let known = ["/usr/bin/python3", "python3"].map(PathBuf::from);
    named.into_iter().chain(known).find(|python| {
        Command::new(python)
            .args(["-c", &format!("import {module}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// The checkout's root. In a virtual machine it may not exist: then everything is named by the environment.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// The build folder of the checkout.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The binary under test.
pub fn trainprof() -> PathBuf {
    let path = std::env::var_os("TRAINPROF_BIN")
        .map_or_else(|| target().join("release/trainprof"), PathBuf::from);
    assert!(
        path.is_file(),
        "{} is missing: `cargo build --release`, or name the binary in TRAINPROF_BIN",
        path.display()
    );
    path
}
