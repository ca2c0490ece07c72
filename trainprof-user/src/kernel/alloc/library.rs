//! The allocator's functions in one file: where probes on them go, so that each call is seen once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
};

use object::{
    LittleEndian, Object, ObjectSegment, ObjectSymbol, RelocationTarget,
    read::{ReadCache, ReadRef, elf::ElfFile64},
};

use super::functions::{CATALOGUE, ESSENTIAL};
use crate::arch::{Emulates, branch_targets, jumps_through, spot};

/// Bytes of a function that are looked at.
const MOST_BYTES: u64 = 4096;
/// Bytes of a function whose length is not known.
const UNKNOWN_LENGTH: u64 = 64;

type Elf<'a> = ElfFile64<'a, LittleEndian, &'a ReadCache<File>>;

/// A probe's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Row of the catalogue.
    pub row: usize,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Whether the kernel single-steps there.
    pub steps: bool,
    /// A call with a null first argument ends in another function that is probed.
    pub not_null: bool,
}

/// What a file tells about allocators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// Empty: it defines none.
    pub places: Vec<Place>,
    /// Addresses (as linked) of words that the loader fills with the address of `malloc`.
    pub imports: Vec<u64>,
    /// (File offset, address as linked) of each loaded segment.
    pub segments: Vec<(u64, u64)>,
    /// It is linked to libraries at run time.
    pub dynamic: bool,
    /// It has a table of symbols.
    pub symbols: bool,
}

impl Library {
    /// How far the file's addresses are from those of a mapping that shows `offset` at `start`.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let (at, address) = self
            .segments
            .iter()
            .filter(|(at, _)| at & !0xfff <= offset)
            .max_by_key(|(at, _)| *at)?;
        Some(start.wrapping_sub(address.wrapping_sub(*at).wrapping_add(offset)))
    }
}

struct Body {
    row: usize,
    address: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// Reads a file.
pub fn read(file: File, emulates: Emulates) -> io::Result<Library> {
    let cache = ReadCache::new(file);
    let elf: Elf<'_> = ElfFile64::parse(&cache).map_err(io::Error::other)?;
    let found = functions(&elf);
    let bodies: Vec<Body> = bodies(&elf, &cache, &found);
    let known = all_names(&elf, &found);
    let jumps = jump_slots(&elf, &known);
    let mut library = Library {
        imports: jumps
            .iter()
            .filter(|(_, name)| name.as_str() == ESSENTIAL)
            .map(|(at, _)| *at)
            .collect(),
        segments: elf
            .segments()
            .map(|segment| (segment.file_range().0, segment.address()))
            .collect(),
        dynamic: elf.dynamic_symbol_table().is_some(),
        symbols: elf.symbols().next().is_some(),
        places: Vec::new(),
    };
    if !known.contains_key(ESSENTIAL) {
        return Ok(library);
    }
    for body in &bodies {
        let reached = reached(&elf, &cache, body, &jumps, &known);
        let row = CATALOGUE[body.row];
        let same_kind = |address: &u64| {
            bodies.iter().any(|other| {
                other.address == *address && CATALOGUE[other.row].allocates() == row.allocates()
            })
        };
        let passes_on = reached.iter().any(same_kind);
        // `realloc` asks `malloc` for what is not there yet; what else leads to one that is probed is counted there.
        if passes_on && !(row.allocates() && row.frees) {
            continue;
        }
        let spot = spot(&body.bytes, body.address, row.arguments(), emulates);
        library.places.push(Place {
            row: body.row,
            offset: body.offset + spot.offset,
            steps: spot.steps,
            not_null: passes_on,
        });
    }
    Ok(library)
}

/// Functions of the catalogue that a file defines: row, address, length. Of several at one address the first.
fn functions(elf: &Elf<'_>) -> Vec<(usize, u64, u64)> {
    let mut by_name = BTreeMap::new();
    for symbol in elf.dynamic_symbols().chain(elf.symbols()) {
        if !symbol.is_definition() || symbol.address() == 0 {
            continue;
        }
        let Ok(name) = symbol.name() else { continue };
        if CATALOGUE.iter().any(|row| row.name == name) {
            by_name
                .entry(name)
                .or_insert((symbol.address(), symbol.size()));
        }
    }
    let mut taken = BTreeSet::new();
    CATALOGUE
        .iter()
        .enumerate()
        .filter_map(|(row, function)| {
            let (address, size) = *by_name.get(function.name)?;
            taken.insert(address).then_some((row, address, size))
        })
        .collect()
}

/// Functions that were found, by every name that they have: tcmalloc's call each other by names of its own.
fn all_names<'e>(elf: &'e Elf<'_>, found: &[(usize, u64, u64)]) -> BTreeMap<&'e str, u64> {
    let addresses: BTreeSet<u64> = found.iter().map(|(_, address, _)| *address).collect();
    elf.dynamic_symbols()
        .chain(elf.symbols())
        .filter(|symbol| symbol.is_definition() && addresses.contains(&symbol.address()))
        .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
        .collect()
}

fn bodies(elf: &Elf<'_>, cache: &ReadCache<File>, found: &[(usize, u64, u64)]) -> Vec<Body> {
    found
        .iter()
        .filter_map(|&(row, address, size)| {
            let length = match size {
                0 => UNKNOWN_LENGTH,
                size => size.min(MOST_BYTES),
            };
            let (offset, bytes) = code(elf, cache, address, length)?;
            Some(Body {
                row,
                address,
                offset,
                bytes,
            })
        })
        .collect()
}

/// File offset and bytes at an address, as many as there are.
fn code(
    elf: &Elf<'_>,
    cache: &ReadCache<File>,
    address: u64,
    length: u64,
) -> Option<(u64, Vec<u8>)> {
    elf.segments().find_map(|segment| {
        let (start, len) = segment.file_range();
        let inside = address.checked_sub(segment.address())?;
        let room = len.checked_sub(inside)?.min(length);
        if room == 0 {
            return None;
        }
        let bytes = cache.read_bytes_at(start + inside, room).ok()?;
        Some((start + inside, bytes.to_vec()))
    })
}

/// Addresses of functions of the catalogue that a function calls or jumps to, itself or through a linkage table.
fn reached(
    elf: &Elf<'_>,
    cache: &ReadCache<File>,
    body: &Body,
    jumps: &BTreeMap<u64, String>,
    known: &BTreeMap<&str, u64>,
) -> BTreeSet<u64> {
    let inside = body.address..body.address + body.bytes.len() as u64;
    let through = |at: u64, code: &[u8]| {
        let slot = jumps_through(code, at)?;
        known.get(jumps.get(&slot)?.as_str()).copied()
    };
    let mut out: BTreeSet<u64> = branch_targets(&body.bytes, body.address)
        .into_iter()
        .filter(|target| !inside.contains(target))
        .filter_map(|target| {
            if known.values().any(|address| *address == target) {
                return Some(target);
            }
            through(target, &code(elf, cache, target, 16)?.1)
        })
        .collect();
    // A function that is nothing but a jump.
    out.extend(through(
        body.address,
        &body.bytes[..body.bytes.len().min(16)],
    ));
    out.remove(&body.address);
    out
}

/// Words that the loader fills with the address of a function of the catalogue, or of one that is `known`.
fn jump_slots(elf: &Elf<'_>, known: &BTreeMap<&str, u64>) -> BTreeMap<u64, String> {
    let wanted: BTreeMap<usize, &str> = elf
        .dynamic_symbols()
        .filter_map(|symbol| {
            let name = symbol.name().ok()?;
            let wanted = known.contains_key(name) || CATALOGUE.iter().any(|row| row.name == name);
            wanted.then_some((symbol.index().0, name))
        })
        .collect();
    elf.dynamic_relocations()
        .into_iter()
        .flatten()
        .filter_map(|(at, relocation)| match relocation.target() {
            RelocationTarget::Symbol(index) => Some((at, (*wanted.get(&index.0)?).to_owned())),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Option<Library> {
        let file = File::open(path)
            .inspect_err(|_| eprintln!("skipped: no {path}"))
            .ok()?;
        Some(read(file, Emulates::by(None)).expect("an ELF file"))
    }

    fn names(library: &Library) -> Vec<(&'static str, bool, bool)> {
        library
            .places
            .iter()
            .map(|place| (CATALOGUE[place.row].name, place.steps, place.not_null))
            .collect()
    }

    #[test]
    fn glibcs_functions_are_found_once_each() {
        let Some(libc) = of("/lib/x86_64-linux-gnu/libc.so.6") else {
            return;
        };
        let found = names(&libc);
        println!("{found:?}");
        for name in ["malloc", "free", "calloc", "realloc", "posix_memalign"] {
            assert_eq!(
                found.iter().filter(|(n, _, _)| *n == name).count(),
                1,
                "{name}: {found:?}"
            );
        }
        assert!(found.iter().all(|(name, _, _)| !name.starts_with("_Z")));
        let offsets: BTreeSet<u64> = libc.places.iter().map(|place| place.offset).collect();
        assert_eq!(offsets.len(), libc.places.len());
    }

    #[test]
    fn other_allocators_are_found_with_their_own_operators() {
        for path in [
            "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
            "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
        ] {
            let Some(library) = of(path) else { continue };
            let found = names(&library);
            println!("{path}: {found:?}");
            assert!(
                found.iter().any(|(name, _, _)| *name == "malloc"),
                "{found:?}"
            );
            assert!(
                found.iter().any(|(name, _, _)| *name == "free"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_call_that_goes_on_by_another_name_is_counted_once() {
        let Some(library) = of("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4") else {
            return;
        };
        let found: Vec<&str> = names(&library).iter().map(|(name, _, _)| *name).collect();
        assert!(found.contains(&"aligned_alloc"), "{found:?}");
        // These call `tc_memalign`, which is `aligned_alloc` too.
        for name in ["posix_memalign", "valloc", "pvalloc"] {
            assert!(!found.contains(&name), "{name}: {found:?}");
        }
    }

    #[test]
    fn the_c_plus_plus_library_is_no_allocator() {
        let Some(library) = of("/usr/lib/x86_64-linux-gnu/libstdc++.so.6") else {
            return;
        };
        assert!(library.places.is_empty());
        assert!(
            !library.imports.is_empty(),
            "it calls malloc through a table"
        );
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        assert!(
            read(
                File::open("/proc/self/status").expect("ours"),
                Emulates::by(None)
            )
            .is_err()
        );
    }
}
