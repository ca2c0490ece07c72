//! Where a library's exported functions lie in its file. Pure, but for reading the parts of the file that tell.

use std::{collections::BTreeMap, fs::File, io};

use object::{
    LittleEndian, Object, ObjectSegment, ObjectSymbol,
    read::{ReadCache, ReadRef, elf::ElfFile64},
};

/// `endbr64`, the mark of a target of indirect jumps. A probe on it single-steps; one behind it often does not.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Where a probe on a function goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Whether the kernel has to single-step the instruction there, which costs some 9 µs, or emulates it in 0.6.
    pub steps: bool,
}

/// The sites of those `wanted` functions that a library exports, by name. Of functions at one address the first.
pub fn sites<'w>(
    file: File,
    wanted: impl Iterator<Item = &'w str>,
) -> io::Result<BTreeMap<&'w str, Site>> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<LittleEndian, _>::parse(&cache).map_err(io::Error::other)?;
    let exported: BTreeMap<&str, u64> = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
        .collect();
    let mut taken = Vec::new();
    let mut out = BTreeMap::new();
    for name in wanted {
        let Some(&address) = exported.get(name) else {
            continue;
        };
        let Some(offset) = elf.segments().find_map(|segment| {
            let (start, len) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            (inside < len).then_some(start + inside)
        }) else {
            continue;
        };
        if taken.contains(&offset) {
            continue;
        }
        taken.push(offset);
        let mut first = [0; 8];
        if let Ok(bytes) = (&cache).read_bytes_at(offset, 8) {
            first.copy_from_slice(bytes);
        }
        out.insert(name, site(offset, first));
    }
    Ok(out)
}

/// The site of a function that lies at `offset` and begins with these bytes.
fn site(offset: u64, first: [u8; 8]) -> Site {
    // Behind the mark nothing has changed: arguments and return address are where they were.
    if first[..4] == ENDBR64 {
        let rest = [first[4], first[5], first[6]];
        Site {
            offset: offset + 4,
            steps: !emulated(rest),
        }
    } else {
        Site {
            offset,
            steps: !emulated([first[0], first[1], first[2]]),
        }
    }
}

/// Whether the kernel emulates an instruction that begins so (arch/x86/kernel/uprobes.c: push, nop, jumps, calls).
/// What is not known counts as single-stepped.
fn emulated(first: [u8; 3]) -> bool {
    matches!(
        first,
        [0x50..=0x57, ..]
            | [0x41, 0x50..=0x57, _]
            | [0x90, ..]
            | [0x0f, 0x1f, _]
            | [0x66, 0x90, _]
            | [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..]
            | [0x0f, 0x80..=0x8f, _]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_indirect_jumps_is_passed_over() {
        let at = |first: &[u8]| {
            let mut bytes = [0xcc; 8];
            bytes[..first.len()].copy_from_slice(first);
            site(100, bytes)
        };
        for (first, offset, steps) in [
            (&[0x55, 0x48][..], 100, false),
            (&[0x41, 0x57], 100, false),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x55], 104, false),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec], 104, true),
            (&[0x48, 0x83, 0xec], 100, true),
            (&[0xe9], 100, false),
            (&[0x0f, 0x1f, 0x44], 100, false),
        ] {
            assert_eq!(at(first), Site { offset, steps }, "{first:x?}");
        }
    }

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
            ["getpid", "no_such_function"].into_iter(),
        )
        .expect("an ELF file");
        assert_eq!(found.len(), 1);
        assert!(found["getpid"].offset > 0);
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let file = File::open("/proc/self/status").expect("our own");
        assert!(sites(file, ["x"].into_iter()).is_err());
    }
}
