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

/// Where the object lies that lets the probes write to our log, relative to the repository: never the committed one, which carries the
/// same hash.
pub fn log_object_path(arch: &str) -> String {
    format!("target/ebpf/trainprof.bpfel.{arch}.log.o")
}

/// Whether an object was built from the sources with the hash `wanted`; the error says what is wrong with it.
#[allow(
    dead_code,
    reason = "for the build alone: who includes this file builds objects"
)]
pub fn is_current(object: Option<&[u8]>, wanted: &str) -> Result<(), String> {
    let Some(object) = object else {
        return Err("is missing".to_owned());
    };
    match embedded_hash(object) {
        Some(hash) if hash == wanted => Ok(()),
        Some(hash) => Err(format!(
            "was built from other sources (hash {}…) than those here (hash {}…)",
            &hash[..12],
            wanted.get(..12).unwrap_or(wanted),
        )),
        None => Err("does not say which sources it was built from".to_owned()),
    }
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A repository of our own with every input.
    struct Sources(PathBuf);

    impl Sources {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("source-hash-{}-{name}", std::process::id()));
            let sources = Self(root);
            for input in INPUTS {
                match input.ends_with("src") {
                    true => sources.write(&format!("{input}/main.rs"), input),
                    false => sources.write(input, input),
                }
            }
            sources
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }

        fn hash(&self) -> String {
            source_hash(&self.0).expect("a hash")
        }
    }

    impl Drop for Sources {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn object(hash: &str) -> Vec<u8> {
        [b"\x7fELF..".as_slice(), MARKER, hash.as_bytes(), b"\0rest"].concat()
    }

    #[test]
    fn the_hash_follows_names_and_contents_of_the_sources_alone() {
        let sources = Sources::new("follows");
        let before = sources.hash();
        assert_eq!(before.len(), HASH_LEN);
        assert_eq!(sources.hash(), before);
        for other in [
            "README.md",
            "trainprof-user/src/main.rs",
            "trainprof-ebpf/src/.main.rs.swp",
            "trainprof-ebpf/src/main.rs~",
        ] {
            sources.write(other, "other");
            assert_eq!(sources.hash(), before, "{other}");
        }
        let mut hashes = vec![before];
        for (file, text) in [
            ("trainprof-ebpf/src/main.rs", "changed"),
            ("trainprof-ebpf/src/more/new.rs", ""),
            ("trainprof-common/src/main.rs", "changed"),
            ("trainprof-common/Cargo.toml", "changed"),
            ("trainprof-ebpf/Cargo.lock", "changed"),
        ] {
            sources.write(file, text);
            let hash = sources.hash();
            assert!(!hashes.contains(&hash), "{file} does not count");
            hashes.push(hash);
        }
        // What moves from one file to the next is a change too.
        sources.write("trainprof-ebpf/src/a.rs", "ab");
        sources.write("trainprof-ebpf/src/b.rs", "c");
        let hash = sources.hash();
        sources.write("trainprof-ebpf/src/a.rs", "a");
        sources.write("trainprof-ebpf/src/b.rs", "bc");
        assert_ne!(sources.hash(), hash);
        fs::remove_file(sources.0.join("trainprof-common/Cargo.toml")).expect("removed");
        let error = source_hash(&sources.0).expect_err("an input is missing");
        assert!(
            error.to_string().contains("trainprof-common/Cargo.toml"),
            "{error}"
        );
    }

    #[test]
    fn only_an_object_of_these_sources_is_current() {
        let (wanted, other) = ("a1".repeat(32), "b2".repeat(32));
        assert_eq!(is_current(Some(&object(&wanted)), &wanted), Ok(()));
        let refused = |object: Option<&[u8]>| is_current(object, &wanted).expect_err("refused");
        assert_eq!(refused(None), "is missing");
        let stale = refused(Some(&object(&other)));
        assert!(
            stale.contains("b2b2b2b2b2b2…") && stale.contains("a1a1a1a1a1a1…"),
            "{stale}"
        );
        for bytes in [b"".as_slice(), b"\x7fELF", MARKER, &object("no hash")] {
            assert!(refused(Some(bytes)).contains("does not say"));
        }
    }
}
