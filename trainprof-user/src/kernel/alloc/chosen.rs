//! Which file's allocator serves a process: what the loader made the name `malloc` mean.
//!
//! A process may have several mapped (a preloaded one beside the C library's). Each probe taken away costs the process
//! a pause, so only the one that serves it is probed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::library::{self, Library};
use crate::arch::Emulates;

/// Larger files are not asked what they import.
const MOST_IMPORTER_BYTES: u64 = 32 << 20;
/// So many files are asked at most.
const MOST_IMPORTERS: usize = 24;
/// Files that are remembered.
const MOST_FILES: usize = 512;
/// Bytes of a table of mappings that are read.
const MOST_MAPS: u64 = 16 << 20;

/// One mapping of a file (proc_pid_maps(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub executable: bool,
    pub identity: String,
    pub inode: u64,
    /// As the process sees it.
    pub path: String,
}

/// Mappings of files, in the order of their addresses.
pub fn decode(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(decode_line).collect()
}

fn decode_line(line: &str) -> Option<Mapping> {
    let path = line.get(line.find('/')?..)?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let access = fields.next()?;
    let offset = fields.next()?;
    let (device, inode) = (fields.next()?, fields.next()?);
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        executable: access.as_bytes().get(2) == Some(&b'x'),
        identity: format!("{device} {inode}"),
        inode: inode.parse().ok()?,
        path: path.to_owned(),
    })
}

/// The mappings of a process; `None` when it is gone.
pub fn mappings(pid: u32) -> Option<Vec<Mapping>> {
    use std::io::Read as _;
    let mut text = String::new();
    File::open(format!("/proc/{pid}/maps"))
        .ok()?
        .take(MOST_MAPS)
        .read_to_string(&mut text)
        .ok()?;
    Some(decode(&text))
}

/// An allocator that can be probed.
#[derive(Clone, Debug)]
pub struct Allocator {
    /// File name, without its directory.
    pub name: String,
    /// A path by which we reach the file.
    pub path: PathBuf,
    pub identity: String,
    pub library: Library,
}

/// What is known of files by device and inode.
pub struct Files {
    known: BTreeMap<String, Option<Library>>,
    emulates: Emulates,
}

impl Files {
    pub fn new(emulates: Emulates) -> Self {
        Self {
            known: BTreeMap::new(),
            emulates,
        }
    }

    fn library(&mut self, pid: u32, mapping: &Mapping, limit: u64) -> Option<Library> {
        if let Some(known) = self.known.get(&mapping.identity) {
            return known.clone();
        }
        let path = reach(pid, mapping)?;
        let size = fs::metadata(&path).ok()?.len();
        if size > limit {
            return None;
        }
        let read = File::open(path)
            .and_then(|file| library::read(file, self.emulates))
            .ok();
        if self.known.len() >= MOST_FILES {
            self.known.clear();
        }
        self.known.insert(mapping.identity.clone(), read.clone());
        read
    }

    /// The allocator that serves a process, or in words why none can be probed.
    pub fn allocator(&mut self, pid: u32, mappings: &[Mapping]) -> Result<Allocator, String> {
        let mut seen = Vec::new();
        let mut defining = Vec::new();
        let executable = executable(pid);
        // The program itself first: nobody else's name comes before its own.
        let mut files: Vec<&Mapping> = Vec::new();
        for mapping in mappings {
            if !seen.contains(&&mapping.identity) {
                seen.push(&mapping.identity);
                files.push(mapping);
            }
        }
        files.retain(|file| {
            mappings
                .iter()
                .any(|m| m.executable && m.identity == file.identity)
        });
        files.sort_by_key(|file| Some(file.inode) != executable);
        for (n, file) in files.iter().enumerate() {
            if n >= MOST_IMPORTERS {
                break;
            }
            let limit = if n == 0 {
                u64::MAX
            } else {
                MOST_IMPORTER_BYTES
            };
            let Some(library) = self.library(pid, file, limit) else {
                continue;
            };
            if !library.places.is_empty() {
                defining.push((*file).clone());
            }
            if let Some(bias) = library.bias(file.start, file.offset)
                && let Some(target) = imported(pid, &library.imports, bias)
                && let Some(at) = mappings
                    .iter()
                    .find(|m| m.start <= target && target < m.end)
                && let Some(library) = self.library(pid, at, u64::MAX)
                && !library.places.is_empty()
            {
                return self.reachable(pid, at, library);
            }
        }
        // Nobody has called it yet, or the program is linked statically.
        if let Some(at) = defining.first()
            && let Some(library) = self.library(pid, at, u64::MAX)
        {
            return self.reachable(pid, at, library);
        }
        Err(match files.first().and_then(|file| self.library(pid, file, u64::MAX)) {
            None => "its program could not be read".to_owned(),
            Some(program) if !program.dynamic && !program.symbols => {
                "its program is linked statically and stripped: nothing tells where its allocator is".to_owned()
            }
            Some(_) => "no mapped file defines malloc".to_owned(),
        })
    }

    fn reachable(&self, pid: u32, at: &Mapping, library: Library) -> Result<Allocator, String> {
        let name = at.path.rsplit('/').next().unwrap_or_default().to_owned();
        let path = reach(pid, at).ok_or_else(|| format!("{name} cannot be opened any more"))?;
        Ok(Allocator {
            name,
            path,
            identity: at.identity.clone(),
            library,
        })
    }
}

/// A path that leads to the mapped file itself, also in containers and where the file was replaced since.
fn reach(pid: u32, mapping: &Mapping) -> Option<PathBuf> {
    let named = PathBuf::from(format!("/proc/{pid}/root{}", mapping.path));
    if fs::metadata(&named).is_ok_and(|m| m.ino() == mapping.inode) {
        return Some(named);
    }
    let mapped = PathBuf::from(format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        mapping.start, mapping.end
    ));
    mapped.exists().then_some(mapped)
}

fn executable(pid: u32) -> Option<u64> {
    fs::metadata(Path::new(&format!("/proc/{pid}/exe")))
        .ok()
        .map(|m| m.ino())
}

/// What the loader wrote into one of the words, the last of those that it did.
fn imported(pid: u32, imports: &[u64], bias: u64) -> Option<u64> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    imports.iter().find_map(|at| {
        let mut word = [0; 8];
        memory
            .read_exact_at(&mut word, bias.wrapping_add(*at))
            .ok()?;
        Some(u64::from_le_bytes(word)).filter(|value| *value != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_are_decoded() {
        let maps = "\
55d0c000-55d0d000 r--p 00000000 fe:01 10 /usr/bin/my prog
55d0d000-55d0e000 r-xp 00001000 fe:01 10 /usr/bin/my prog
7f000000-7f010000 r-xp 00026000 fe:01 77 /lib/libc.so.6 (deleted)
7f100000-7f110000 rw-p 00000000 00:00 0
7f200000-7f210000 r-xp 00000000 00:00 0 [vdso]
";
        let found = decode(maps);
        assert_eq!(found.len(), 3);
        assert_eq!(found[1].path, "/usr/bin/my prog");
        assert!(found[1].executable && !found[0].executable);
        assert_eq!(
            (found[2].path.as_str(), found[2].inode),
            ("/lib/libc.so.6", 77)
        );
    }

    #[test]
    fn our_own_allocator_is_found() {
        let pid = std::process::id();
        let mappings = mappings(pid).expect("ours");
        let mut files = Files::new(Emulates::by(None));
        match files.allocator(pid, &mappings) {
            Ok(found) => assert!(
                found.name.contains("libc") || found.name.contains("trainprof"),
                "{}",
                found.name
            ),
            Err(reason) => panic!("{reason}"),
        }
    }
}
