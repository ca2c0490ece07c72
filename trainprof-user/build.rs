//! Finds the committed object with the kernel probes for the target's architecture, and refuses one that is older
//! than the probes' sources. Building the object takes a toolchain that not every host has, so it is not done here.

#[path = "build/source_hash.rs"]
mod source_hash;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::exit,
};

fn main() {
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let manifest_dir = Path::new(&manifest_dir);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let repository = manifest_dir.join("..");
    let object = object(manifest_dir, &repository, &arch);

    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/source_hash.rs");
    println!("cargo:rerun-if-changed={}", object.display());
    println!("cargo:rustc-env=TRAINPROF_EBPF_OBJECT={}", object.display());

    let bytes = fs::read(&object).ok();
    // A crate that was packaged for a registry holds the object and not its sources: nothing to compare.
    if bytes.is_some() && !repository.join("trainprof-ebpf/src/main.rs").exists() {
        return;
    }
    for input in source_hash::INPUTS {
        println!(
            "cargo:rerun-if-changed={}",
            repository.join(input).display()
        );
    }
    let wanted = match source_hash::source_hash(&repository) {
        Ok(hash) => hash,
        Err(_) if bytes.is_none() => String::new(),
        Err(error) => fail(&format!(
            "cannot hash the sources of the kernel probes: {error}"
        )),
    };
    if let Err(what) = source_hash::is_current(bytes.as_deref(), &wanted) {
        fail(&format!(
            "the object with the kernel probes for {arch}, {}, {what}",
            object.display()
        ));
    }
}

/// The committed object or, to print the probes' log, the one that `cargo xtask ebpf --log` left, if it did.
fn object(manifest_dir: &Path, repository: &Path, arch: &str) -> PathBuf {
    let committed = manifest_dir.join(source_hash::object_path(arch));
    if env::var_os("CARGO_FEATURE_PROBE_LOG").is_none() {
        return committed;
    }
    let logging = repository.join(source_hash::log_object_path(arch));
    println!("cargo:rerun-if-changed={}", logging.display());
    if logging.is_file() {
        logging
    } else {
        committed
    }
}

/// Ends the build with the reason and the cure, and without the back trace of a panic.
fn fail(reason: &str) -> ! {
    eprintln!("error: {reason}.");
    eprintln!(
        "Build it with `cargo xtask ebpf`; `cargo xtask setup --ebpf` installs what that needs."
    );
    println!("cargo::error={reason}. Build it with `cargo xtask ebpf`.");
    exit(1)
}
