//! The hash of the kernel probes' sources, which says whether a built object is older than they are.
//!
//! Owned by `build.rs`, which checks the object, and included by `xtask`, which puts the hash into it. It lies
//! here because `build.rs` is packaged with the crate, and `xtask` is not.

use std::{fs, io, path::Path};

use sha2::{Digest, Sha256};

/// What stands before the hash in the object file.
pub const MARKER: &[u8] = b"TRAINPROF-EBPF-SOURCE-HASH:";

/// Hex digits of a SHA-256.
const HASH_LEN: usize = 64;

/// Files and folders, relative to the repository, that the object is built from.
pub const INPUTS: [&str; 5] = [
    "trainprof-common/Cargo.toml",
    "trainprof-common/src",
    "trainprof-ebpf/Cargo.lock",
    "trainprof-ebpf/Cargo.toml",
    "trainprof-ebpf/src",
];

/// Where the object for an architecture lies, relative to the folder of `trainprof-user`.
pub fn object_path(arch: &str) -> String {
    format!("ebpf/trainprof.bpfel.{arch}.o")
}

/// SHA-256 over the sorted relative paths and the contents of the inputs, in hex. Each part is preceded by its
/// length, so that moving bytes from one file to the next changes the hash.
pub fn source_hash(repository: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for input in INPUTS {
        collect(repository, input, &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for file in &files {
        let content = fs::read(repository.join(file)).map_err(|e| with_path(e, file))?;
        for part in [file.as_bytes(), &content] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// The hash that an object carries; `None` when it carries none.
pub fn embedded_hash(object: &[u8]) -> Option<&str> {
    let start = object
        .windows(MARKER.len())
        .position(|window| window == MARKER)?
        + MARKER.len();
    let hash = object.get(start..start + HASH_LEN)?;
    let hash = std::str::from_utf8(hash).ok()?;
    hash.bytes().all(|b| b.is_ascii_hexdigit()).then_some(hash)
}

/// Adds the files under `relative`, with `/` between the parts on every system.
fn collect(repository: &Path, relative: &str, files: &mut Vec<String>) -> io::Result<()> {
    let path = repository.join(relative);
    if !fs::metadata(&path)
        .map_err(|e| with_path(e, relative))?
        .is_dir()
    {
        files.push(relative.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(&path).map_err(|e| with_path(e, relative))? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        // Editors leave their swap and backup files beside the sources.
        if !name.starts_with('.') && !name.ends_with('~') {
            collect(repository, &format!("{relative}/{name}"), files)?;
        }
    }
    Ok(())
}

fn with_path(error: io::Error, path: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}
