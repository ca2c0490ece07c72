//! Where a process has its Python: from mappings and exported symbols to addresses and layout.

use std::{fs::File, os::unix::fs::FileExt};

use super::{
    layout::{Layout, NoLayout, TOLD_WORDS, Version},
    stack::{Memory, Python},
};
use crate::{
    env::{frameworks::python_version, process, read_text},
    source::{
        pages::page_bytes,
        places::{
            elf::Elf,
            maps::{self, Line},
            symbols::through_root,
        },
    },
};

/// Larger tables of mappings are not read to their end: that of a PyTorch job has some 100 KB.
const MAPS_LIMIT: u64 = 4 << 20;

/// Why a process that has a Python mapped is left alone.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    #[error(transparent)]
    Layout(#[from] NoLayout),
    #[error("{0} does not tell its version")]
    Version(String),
    #[error("{0} does not tell where its state is")]
    Symbols(String),
    #[error("the memory of a Python process cannot be read: {0}")]
    Memory(std::io::Error),
    #[error("the stacks of a Python process could not be followed")]
    Stacks,
}

/// After the process executed another program there is nothing left to read.
impl Memory for File {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        self.read_exact_at(into, at).ok()
    }
}

/// A process's memory (`/proc/PID/mem`, proc_pid_mem(5)). Reading does not stop it.
pub fn memory(pid: u32) -> Result<File, Unknown> {
    File::open(process::shared(pid, "mem")).map_err(Unknown::Memory)
}

/// A process's memory and the Python in it; `None` when it has none mapped.
pub fn find(pid: u32) -> Result<Option<(File, Python)>, Unknown> {
    let text = read_text(&process::shared(pid, "maps"), MAPS_LIMIT).unwrap_or_default();
    let mut unknown = None;
    for line in maps::decode(&text).filter(|line| is_python(name(line))) {
        let memory = memory(pid)?;
        match of_file(pid, &memory, &line) {
            Ok(python) => return Ok(Some((memory, python))),
            Err(reason) => {
                unknown.get_or_insert(reason);
            }
        }
    }
    unknown.map_or(Ok(None), Err)
}

fn name<'a>(line: &Line<'a>) -> &'a str {
    line.path.rsplit('/').next().unwrap_or(line.path)
}

/// Whether a file has the name of an interpreter or of its library.
fn is_python(file: &str) -> bool {
    let rest = file
        .strip_prefix("lib")
        .unwrap_or(file)
        .strip_prefix("python");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn of_file(pid: u32, memory: &impl Memory, line: &Line<'_>) -> Result<Python, Unknown> {
    let symbols = || {
        let file = File::open(through_root(pid, line.path)).ok()?;
        let elf = Elf::open(file)?;
        let moved = elf.moved_by(line.start, line.offset, page_bytes())?;
        let address = |name| Some(elf.exported_variable(name)?.0.wrapping_add(moved));
        let (runtime, runtime_bytes) = elf.exported_variable("_PyRuntime")?;
        Some((
            (runtime.wrapping_add(moved), runtime_bytes),
            address("PyCode_Type")?,
            address("Py_Version"),
        ))
    };
    let ((runtime, runtime_bytes), code_type, version) =
        symbols().ok_or_else(|| Unknown::Symbols(name(line).to_owned()))?;
    let version = match version {
        Some(address) => word(memory, address).map(Version::of_hex),
        // Before 3.11 only the name tells.
        None => python_version(name(line)).and_then(|text| Version::of_text(&text)),
    };
    let version = version.ok_or_else(|| Unknown::Version(name(line).to_owned()))?;
    let layout = if version.tells() {
        let words = told(memory, runtime).ok_or(NoLayout::Table(version))?;
        Layout::told(version, &words)?
    } else {
        Layout::known(version)?
    };
    Ok(Python {
        runtime,
        runtime_bytes,
        code_type,
        layout,
    })
}

fn word(memory: &impl Memory, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Some(u64::from_le_bytes(bytes))
}

fn told(memory: &impl Memory, runtime: u64) -> Option<[u64; TOLD_WORDS]> {
    let mut bytes = [0; 8 * TOLD_WORDS];
    memory.read(runtime, &mut bytes)?;
    let mut words = [0; TOLD_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_and_their_libraries_are_known_by_name() {
        for (file, expected) in [
            ("python", true),
            ("python3", true),
            ("python3.11", true),
            ("libpython3.12.so.1.0", true),
            ("libpython3.13t.so.1.0", true),
            ("libpythonic.so", false),
            ("libtorch_python.so", false),
            ("libc.so.6", false),
        ] {
            assert_eq!(is_python(file), expected, "{file}");
        }
    }

    #[test]
    fn a_process_without_a_python_has_none() {
        for pid in [std::process::id(), u32::MAX] {
            assert!(matches!(find(pid), Ok(None)));
        }
    }
}
