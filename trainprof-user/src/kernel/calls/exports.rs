//! Where a library's functions lie in its file. Pure, but for reading the parts of the file that tell.

use std::{collections::BTreeMap, fs::File, io};

use object::{
    LittleEndian,
    elf::{FileHeader64, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, Sym64, gnu_hash},
    read::{
        self, ReadCache, ReadRef,
        elf::{
            FileHeader as _, GnuHashTable, ProgramHeader as _, Sym as _, SymbolTable, VersionTable,
        },
    },
};

use super::{begin, catalogue::Symbols};
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

/// The sites of those `wanted` functions that a library has, by name; each comes with how many of its arguments are read. Of
/// functions at one address the first.
pub fn sites<'w>(
    file: File,
    symbols: Symbols,
    wanted: impl Iterator<Item = (&'w str, usize)> + Clone,
    emulates: Emulates,
) -> io::Result<BTreeMap<&'w str, Site>> {
    let cache = ReadCache::new(&file);
    let data = &cache;
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(io::Error::other)?;
    let segments = header
        .program_headers(LittleEndian, data)
        .map_err(io::Error::other)?;
    let table = match symbols {
        Symbols::Exported => None,
        Symbols::ExportedThatBegin => Some(SHT_DYNSYM),
        Symbols::AnyThatBegin => Some(SHT_SYMTAB),
    };
    let exported = match table {
        Some(kind) => {
            let table = begin::table(header, data, kind).map_err(io::Error::other)?;
            let names: Vec<&str> = wanted.clone().map(|(name, _)| name).collect();
            let found = table.map(|table| begin::find(&file, &table, &names));
            Exported::Listed(found.transpose()?.unwrap_or_default())
        }
        None => Exported::read(header, data).map_err(io::Error::other)?,
    };
    let mut taken = Vec::new();
    let mut out = BTreeMap::new();
    for (name, arguments) in wanted {
        let Some((address, size)) = exported.find(name) else {
            continue;
        };
        let Some((offset, room)) = segments.iter().find_map(|segment| {
            let (start, len) = segment.file_range(LittleEndian);
            let inside = address.checked_sub(segment.p_vaddr(LittleEndian))?;
            let room = len.checked_sub(inside).filter(|room| *room > 0)?;
            let loaded = segment.p_type(LittleEndian) == PT_LOAD;
            loaded.then_some((start + inside, room))
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
        let body = data
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

/// A library's exported functions.
enum Exported<'data, R: ReadRef<'data>> {
    /// By the table that the dynamic linker looks in: a framework exports tens of thousands.
    Hashed(
        GnuHashTable<'data, FileHeader64<LittleEndian>>,
        SymbolTable<'data, FileHeader64<LittleEndian>, R>,
    ),
    /// Address and size by name.
    Listed(BTreeMap<&'data str, (u64, u64)>),
}

impl<'data, R: ReadRef<'data>> Exported<'data, R> {
    fn read(header: &FileHeader64<LittleEndian>, data: R) -> read::Result<Self> {
        let sections = header.sections(LittleEndian, data)?;
        let symbols = sections.symbols(LittleEndian, data, SHT_DYNSYM)?;
        if let Some((hashed, _)) = sections.gnu_hash(LittleEndian, data)? {
            return Ok(Self::Hashed(hashed, symbols));
        }
        let name = |symbol: &'data Sym64<LittleEndian>| {
            let name = symbol.name(LittleEndian, symbols.strings()).ok()?;
            str::from_utf8(name).ok()
        };
        Ok(Self::Listed(
            symbols
                .iter()
                .filter_map(|symbol| Some((name(symbol)?, at(symbol)?)))
                .collect(),
        ))
    }

    /// Address and size of a function, in bytes.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        match self {
            Self::Hashed(hashed, symbols) => {
                let name = name.as_bytes();
                let any = VersionTable::default();
                let found = hashed.find(LittleEndian, name, gnu_hash(name), None, symbols, &any);
                found.and_then(|(_, symbol)| at(symbol))
            }
            Self::Listed(listed) => listed.get(name).copied(),
        }
    }
}

/// Address and size of what a library defines, in bytes.
fn at(symbol: &Sym64<LittleEndian>) -> Option<(u64, u64)> {
    let address = symbol.st_value(LittleEndian);
    let defined = symbol.st_shndx(LittleEndian) != SHN_UNDEF && address != 0;
    defined.then(|| (address, symbol.st_size(LittleEndian)))
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
            Symbols::Exported,
            [("getpid", 0), ("no_such_function", 0)].into_iter(),
            Emulates::by(None),
        )
        .expect("an ELF file");
        assert_eq!(found.len(), 1);
        assert!(found["getpid"].offset > 0);
    }

    #[test]
    fn functions_are_found_by_how_their_names_begin() {
        // Our own program.
        let find = |name: &'static str, symbols| {
            let file = File::open("/proc/self/exe").expect("our own");
            let wanted = [(name, 0)].into_iter();
            sites(file, symbols, wanted, Emulates::by(None)).expect("an ELF file")
        };
        let name = "rust_eh_personalit";
        let found = find(name, Symbols::AnyThatBegin);
        assert!(found[name].offset > 0);
        assert!(find("rust_eh_personalities", Symbols::AnyThatBegin).is_empty());
        // A program exports nothing of this kind, and names that end so do not begin so.
        assert!(find("eh_personality", Symbols::AnyThatBegin).is_empty());
        assert!(find(name, Symbols::ExportedThatBegin).is_empty());
    }

    #[test]
    fn what_is_no_library_is_an_error() {
        let file = File::open("/proc/self/status").expect("our own");
        let wanted = [("x", 0)].into_iter();
        assert!(sites(file, Symbols::Exported, wanted, Emulates::by(None)).is_err());
    }
}
