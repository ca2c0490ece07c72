//! Where a library's exported functions lie in its file. Pure, but for reading the parts of the file that tell.

use std::{collections::BTreeMap, fs::File, io};

use object::{
    LittleEndian, Object, ObjectSegment, ObjectSymbol,
    read::{ReadCache, ReadRef, elf::ElfFile64},
};

use crate::arch::{Emulates, Spot, spot};

/// Bytes of a function that are looked at, and of one whose length is not known.
const MOST_BYTES: u64 = 4096;
const UNKNOWN_LENGTH: u64 = 64;

/// Where a probe on a function goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// See [`Spot::steps`].
    pub steps: bool,
}

/// The sites of those `wanted` functions that a library exports, by name; each comes with how many of its arguments are read. Of
/// functions at one address the first.
pub fn sites<'w>(
    file: File,
    wanted: impl Iterator<Item = (&'w str, usize)>,
    emulates: Emulates,
) -> io::Result<BTreeMap<&'w str, Site>> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<LittleEndian, _>::parse(&cache).map_err(io::Error::other)?;
    let exported: BTreeMap<&str, (u64, u64)> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.name().ok()?, (symbol.address(), symbol.size()))))
        .collect();
    let mut taken = Vec::new();
    let mut out = BTreeMap::new();
    for (name, arguments) in wanted {
        let Some(&(address, size)) = exported.get(name) else {
            continue;
        };
        let Some((offset, room)) = elf.segments().find_map(|segment| {
            let (start, len) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            let room = len.checked_sub(inside).filter(|room| *room > 0)?;
            Some((start + inside, room))
        }) else {
            continue;
        };
        if taken.contains(&offset) {
            continue;
        }
        taken.push(offset);
        let length = match size {
            0 => UNKNOWN_LENGTH,
            size => size.min(MOST_BYTES),
        };
        let body = (&cache)
            .read_bytes_at(offset, length.min(room))
            .unwrap_or_default();
        let Spot {
            offset: inside,
            steps,
        } = spot(body, address, arguments, emulates);
        out.insert(
            name,
            Site {
                offset: offset + inside,
                steps,
            },
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_librarys_functions_are_found() {
        let libc = std::fs::read_to_string("/proc/self/maps").expect("our own");
        let Some(path) = libc.lines().find_map(|line| {
            line.find('/')
                .map(|at| &line[at..])
                .filter(|p| p.contains("/libc.so"))
        }) else {
            return;
        };
        let found = sites(
            File::open(path).expect("mapped"),
            [("getpid", 0), ("no_such_function", 0)].into_iter(),
            Emulates::by(None),
        )
        .expect("an ELF file");
        assert_eq!(found.len(), 1);
        assert!(found["getpid"].offset > 0);
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let file = File::open("/proc/self/status").expect("our own");
        assert!(sites(file, [("x", 0)].into_iter(), Emulates::by(None)).is_err());
    }
}
