//! Finds the committed object with the kernel probes for the target's architecture, and refuses one that is older
//! than the probes' sources. Building the object takes a toolchain that not every host has, so it is not done here.

#[path = "build/source_hash.rs"]
mod source_hash;

use std::{env, fs, path::Path, process::exit};

fn main() {
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let manifest_dir = Path::new(&manifest_dir);
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let object = manifest_dir.join(source_hash::object_path(&arch));

    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/source_hash.rs");
    println!("cargo:rerun-if-changed={}", object.display());
    println!("cargo:rustc-env=TRAINPROF_EBPF_OBJECT={}", object.display());

    let Ok(bytes) = fs::read(&object) else {
        fail(&format!(
            "there is no object with the kernel probes for {arch}: {} is missing",
            object.display()
        ));
    };
    let repository = manifest_dir.join("..");
    // A crate that was packaged for a registry holds the object and not its sources: nothing to compare.
    if !repository.join("trainprof-ebpf/src/main.rs").exists() {
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
        Err(error) => fail(&format!(
            "cannot hash the sources of the kernel probes: {error}"
        )),
    };
    match source_hash::embedded_hash(&bytes) {
        Some(hash) if hash == wanted => {}
        Some(hash) => fail(&format!(
            "{} was built from other sources (hash {}…) than those here (hash {}…)",
            object.display(),
            &hash[..12],
            &wanted[..12],
        )),
        None => fail(&format!(
            "{} does not say which sources it was built from",
            object.display()
        )),
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
