//! The few parts of an ELF file that tell which function an address belongs to (elf(5)).
//!
//! Files are another program's: every length in them is checked, and whatever is wrong ends in `None`.

use std::{fs::File, ops::Range, os::unix::fs::FileExt};

use bytes::Buf;

const MAGIC_64_LITTLE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// `sh_type` of the tables that are made use of.
const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const SHT_GNU_HASH: u32 = 0x6fff_fff6;
const PT_LOAD: u32 = 1;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
/// More sections than any linker makes.
const MAX_SECTIONS: usize = 10_000;
/// Bytes that most names fit in: four of five of PyTorch's own.
const USUAL_NAME: usize = 256;
/// Longer names are cut: templates of C++ have names of many kilobytes. What is cut cannot be demangled.
const MAX_NAME: usize = 4096;
/// Links followed in one bucket of the hash table.
const MAX_CHAIN: u32 = 256;
/// Symbols read at once.
const CHUNK: usize = 4096;

/// A loaded part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub size: u64,
    pub address: u64,
}

/// A table of symbols.
#[derive(Clone, Copy, Debug)]
struct Table {
    offset: u64,
    count: u64,
    strings: u64,
    strings_size: u64,
}

/// A function or a variable: where it begins and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    pub address: u64,
    pub size: u64,
    /// Offset of its name in the table's strings.
    pub name: u32,
    pub global: bool,
}

/// An open ELF file.
pub struct Elf {
    file: File,
    /// `e_machine`.
    pub machine: u16,
    pub segments: Vec<Segment>,
    dynamic: Option<Table>,
    full: Option<Table>,
    hash: Option<Range<u64>>,
}

impl Elf {
    /// Reads the headers of a 64-bit little-endian file.
    pub fn open(file: File) -> Option<Self> {
        let header = read(&file, 0, HEADER_BYTES)?;
        if header.get(..6)? != MAGIC_64_LITTLE {
            return None;
        }
        let word = |at: usize| Some(header.get(at..)?.get_u64_le());
        let half = |at: usize| Some(header.get(at..)?.get_u16_le());
        let (segments_at, sections_at) = (word(32)?, word(40)?);
        let (segment_size, segment_count) = (half(54)?, half(56)?);
        let (section_size, section_count) = (half(58)?, half(60)?);
        if usize::from(segment_size) != SEGMENT_BYTES {
            return None;
        }
        let bytes = read(
            &file,
            segments_at,
            SEGMENT_BYTES * usize::from(segment_count),
        )?;
        let segments = bytes
            .chunks_exact(SEGMENT_BYTES)
            .filter_map(segment)
            .collect();
        let mut elf = Self {
            file,
            machine: half(18)?,
            segments,
            dynamic: None,
            full: None,
            hash: None,
        };
        if sections_at != 0 && usize::from(section_size) == SECTION_BYTES {
            elf.sections(sections_at, usize::from(section_count));
        }
        Some(elf)
    }

    /// Finds the tables. A file without sections has none.
    fn sections(&mut self, at: u64, count: usize) -> Option<()> {
        let bytes = read(&self.file, at, SECTION_BYTES * count.min(MAX_SECTIONS))?;
        let sections: Vec<Section> = bytes
            .chunks_exact(SECTION_BYTES)
            .map(Section::decode)
            .collect();
        for section in &sections {
            match section.kind {
                SHT_SYMTAB => self.full = section.table(&sections),
                SHT_DYNSYM => self.dynamic = section.table(&sections),
                SHT_GNU_HASH => {
                    self.hash = Some(section.offset..section.offset.checked_add(section.size)?);
                }
                _ => {}
            }
        }
        Some(())
    }

    /// The bytes that are loaded at some addresses, if they lie in one segment and are at most `limit`.
    pub fn loaded(&self, addresses: &Range<u64>, limit: u64) -> Option<Vec<u8>> {
        let size = addresses.end.checked_sub(addresses.start)?;
        let segment = self.segments.iter().find(|segment| {
            addresses
                .start
                .checked_sub(segment.address)
                .and_then(|below| below.checked_add(size))
                .is_some_and(|end| end <= segment.size)
        })?;
        let at = segment
            .offset
            .checked_add(addresses.start - segment.address)?;
        (size <= limit).then(|| read(&self.file, at, size as usize))?
    }

    /// The table with the most symbols: that of the linker, or where the file is stripped that of the loader.
    fn table(&self) -> Option<Table> {
        self.full.or(self.dynamic)
    }

    /// How many symbols [`Self::functions`] will look at.
    pub fn symbols(&self) -> u64 {
        self.table().map_or(0, |table| table.count)
    }

    /// Calls `each` with every function that has a size.
    pub fn functions(&self, mut each: impl FnMut(Function)) -> Option<()> {
        let table = self.table()?;
        let mut at = 0;
        while at < table.count {
            let count = (table.count - at).min(CHUNK as u64);
            let bytes = read(
                &self.file,
                table.offset.checked_add(at * SYMBOL_BYTES as u64)?,
                count as usize * SYMBOL_BYTES,
            )?;
            bytes
                .chunks_exact(SYMBOL_BYTES)
                .filter_map(function)
                .for_each(&mut each);
            at += count;
        }
        Some(())
    }

    /// The name of a function of [`Self::functions`].
    pub fn name(&self, name: u32) -> Option<String> {
        self.string(self.table()?, name)
    }

    fn string(&self, table: Table, at: u32) -> Option<String> {
        let room = table.strings_size.checked_sub(u64::from(at))?;
        let at = table.strings.checked_add(u64::from(at))?;
        let begin = |most: usize| read(&self.file, at, room.min(most as u64) as usize);
        let end = |bytes: &[u8]| bytes.iter().position(|b| *b == 0);
        let mut bytes = begin(USUAL_NAME)?;
        if end(&bytes).is_none() {
            bytes = begin(MAX_NAME)?;
        }
        bytes.truncate(end(&bytes).unwrap_or(bytes.len()));
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A function that the file exports, by the loader's own hash table: a few small reads, however many
    /// symbols there are.
    pub fn exported(&self, name: &str) -> Option<Function> {
        self.export(name, function)
    }

    /// A variable that the file exports, found in the same way: its address and how many bytes it has.
    pub fn exported_variable(&self, name: &str) -> Option<(u64, u64)> {
        let found = self.export(name, variable)?;
        Some((found.address, found.size))
    }

    /// How far a process has the file's addresses moved, when `start` shows what is at `offset` of the file.
    pub fn moved_by(&self, start: u64, offset: u64, page_bytes: u64) -> Option<u64> {
        let shown = |segment: &&Segment| segment.offset & !(page_bytes - 1) == offset;
        let segment = self.segments.iter().find(shown)?;
        let below = segment.offset - offset;
        Some(start.wrapping_add(below).wrapping_sub(segment.address))
    }

    /// A symbol of the dynamic table that `decode` accepts.
    fn export(&self, name: &str, decode: fn(&[u8]) -> Option<Function>) -> Option<Function> {
        let (table, hash) = (self.dynamic?, self.hash.clone()?);
        let word = |index: u64| -> Option<u32> {
            let at = hash.start.checked_add(index.checked_mul(4)?)?;
            (at.checked_add(4)? <= hash.end)
                .then(|| Some(read(&self.file, at, 4)?.as_slice().get_u32_le()))?
        };
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        let wanted = gnu_hash(name);
        let buckets_at = 4 + u64::from(bloom) * 2;
        let chains_at = buckets_at + u64::from(buckets);
        let begin = word(buckets_at + u64::from(wanted.checked_rem(buckets)?))?;
        for index in begin..begin.checked_add(MAX_CHAIN)? {
            let link = word(chains_at + u64::from(index.checked_sub(first)?))?;
            if link | 1 == wanted | 1 {
                let at = u64::from(index) * SYMBOL_BYTES as u64;
                let bytes = read(&self.file, table.offset.checked_add(at)?, SYMBOL_BYTES)?;
                if let Some(found) = decode(&bytes)
                    && self.string(table, found.name).as_deref() == Some(name)
                {
                    return Some(found);
                }
            }
            if link & 1 != 0 {
                return None;
            }
        }
        None
    }
}

/// The hash of symbol names in `.gnu.hash`.
fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(byte))
    })
}

fn read(file: &File, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, at).ok()?;
    Some(buffer)
}

struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
}

impl Section {
    /// Of [`SECTION_BYTES`] bytes.
    fn decode(mut bytes: &[u8]) -> Self {
        let _name = bytes.get_u32_le();
        let kind = bytes.get_u32_le();
        let (_flags, _address) = (bytes.get_u64_le(), bytes.get_u64_le());
        Self {
            kind,
            offset: bytes.get_u64_le(),
            size: bytes.get_u64_le(),
            link: bytes.get_u32_le(),
        }
    }

    fn table(&self, sections: &[Self]) -> Option<Table> {
        let strings = sections.get(self.link as usize)?;
        Some(Table {
            offset: self.offset,
            count: self.size / SYMBOL_BYTES as u64,
            strings: strings.offset,
            strings_size: strings.size,
        })
    }
}

/// Of [`SEGMENT_BYTES`] bytes.
fn segment(mut bytes: &[u8]) -> Option<Segment> {
    let kind = bytes.get_u32_le();
    let _flags = bytes.get_u32_le();
    let offset = bytes.get_u64_le();
    let address = bytes.get_u64_le();
    let _physical = bytes.get_u64_le();
    (kind == PT_LOAD).then(|| Segment {
        offset,
        size: bytes.get_u64_le(),
        address,
    })
}

/// Of [`SYMBOL_BYTES`] bytes; `None` for what is no function here.
fn function(bytes: &[u8]) -> Option<Function> {
    symbol(bytes, &[STT_FUNC, STT_GNU_IFUNC])
}

/// The same for variables.
fn variable(bytes: &[u8]) -> Option<Function> {
    symbol(bytes, &[STT_OBJECT])
}

fn symbol(mut bytes: &[u8], kinds: &[u8]) -> Option<Function> {
    let name = bytes.get_u32_le();
    let info = bytes.get_u8();
    let _visibility = bytes.get_u8();
    let section = bytes.get_u16_le();
    let address = bytes.get_u64_le();
    let size = bytes.get_u64_le();
    (kinds.contains(&(info & 0xf)) && section != 0 && size != 0).then_some(Function {
        address,
        size,
        name,
        global: info >> 4 != STB_LOCAL,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn own() -> Elf {
        Elf::open(File::open("/proc/self/exe").expect("our program")).expect("an ELF file")
    }

    #[test]
    fn our_own_functions_are_found() {
        // The compiler may put a test into its only caller.
        #[inline(never)]
        fn one_that_stays_apart(n: u32) -> u32 {
            std::hint::black_box(n) + 1
        }
        assert_eq!(one_that_stays_apart(1), 2);
        let elf = own();
        let mut names = 0;
        let mut found = false;
        elf.functions(|function| {
            names += 1;
            found |= elf
                .name(function.name)
                .is_some_and(|name| name.contains("one_that_stays_apart"));
        })
        .expect("a table");
        assert!(found, "{names} functions");
    }

    #[test]
    fn exports_are_found_by_hash() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our mappings");
        let Some(libc) = maps
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(5))
            .find(|path| path.contains("libc.so"))
        else {
            eprintln!("skipped: no shared libc");
            return;
        };
        let elf = Elf::open(File::open(libc).expect("libc")).expect("an ELF file");
        let malloc = elf.exported("malloc").expect("libc exports malloc");
        assert!(malloc.size > 0 && malloc.global);
        assert_eq!(elf.exported("no_such_function"), None);
        assert!(elf.exported_variable("environ").is_some());
        assert_eq!(elf.exported_variable("malloc"), None);
    }

    #[test]
    fn a_mapping_tells_how_far_addresses_moved() {
        let mut elf = own();
        let segment = |offset, address| Segment {
            offset,
            size: 0x800,
            address,
        };
        // The second begins inside a page, as lld lays programs out.
        elf.segments = vec![segment(0, 0x40_0000), segment(0x1234, 0x40_2234)];
        assert_eq!(elf.moved_by(0x7000_0000, 0, 4096), Some(0x6fc0_0000));
        assert_eq!(elf.moved_by(0x7000_2000, 0x1000, 4096), Some(0x6fc0_0000));
        assert_eq!(elf.moved_by(0x7000_2000, 0x3000, 4096), None);
    }

    #[test]
    fn long_names_are_read_whole() {
        // This program has generic functions of generic functions.
        let elf = own();
        let mut names = Vec::new();
        elf.functions(|function| names.push(function.name))
            .expect("functions");
        let longest = names.into_iter().filter_map(|name| elf.name(name));
        let longest = longest.max_by_key(String::len).expect("a name");
        assert!(longest.len() > USUAL_NAME, "{longest}");
        // A name that was cut is none.
        assert!(rustc_demangle::try_demangle(&longest).is_ok(), "{longest}");
    }

    #[test]
    fn names_hash_as_the_loader_does_it() {
        // Figures of the format's description (GNU hash ELF sections, A. Roenky).
        for (name, hash) in [("", 0x1505), ("printf", 0x156b_2bb8), ("exit", 0x7c96_7e3f)] {
            assert_eq!(gnu_hash(name), hash, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_files_never_panic(damage in proptest::collection::vec((0_usize..4096, any::<u8>()), 1..16), cut in 0_usize..20_000) {
            let mut bytes = std::fs::read("/bin/true").expect("a small program");
            for (at, byte) in damage {
                if at > 6 && let Some(old) = bytes.get_mut(at) { *old = byte; }
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&bytes).expect("written");
            if let Some(elf) = Elf::open(file) {
                let mut names = Vec::new();
                if elf.symbols() < 100_000 {
                    elf.functions(|function| names.push(function.name));
                }
                for name in names.into_iter().take(100) { elf.name(name); }
                elf.exported("malloc");
            }
        }
    }
}
