//! Functions by how their names begin, in a library's table of symbols: of C++ the rest of a name are its arguments, which change from
//! version to version.
//!
//! The names of a framework that was not stripped take a hundred megabytes. They are read in pieces, once for each library, and nothing of
//! them is kept: some 60 ms of CPU time for 90 MB.

use std::{collections::BTreeMap, fs::File, io, ops::Range, os::unix::fs::FileExt as _};

use memchr::memmem;
use object::{
    LittleEndian,
    elf::{FileHeader64, SHN_UNDEF, STT_FUNC, Sym64},
    pod,
    read::{
        self, ReadRef,
        elf::{FileHeader as _, SectionHeader as _, Sym as _},
    },
};

/// Bytes read at a time: a whole number of entries.
const PIECE: usize = (1 << 20) / ENTRY * ENTRY;
const ENTRY: usize = size_of::<Sym64<LittleEndian>>();
/// Most bytes of a name that are looked at.
const LONGEST: u64 = 4096;
/// Most names that begin so and are looked at: one that has more is made to hold us up.
const MOST_NAMES: usize = 64;
/// Largest table that is read, bytes. TensorFlow's names take 115 MB.
const LARGEST: u64 = 1 << 30;

/// Where in a file a table of symbols is, and their names.
pub struct Table {
    entries: Range<u64>,
    names: Range<u64>,
}

/// The table of a `kind` (SHT_DYNSYM or SHT_SYMTAB), if there is one.
pub fn table<'data, R: ReadRef<'data>>(
    header: &FileHeader64<LittleEndian>,
    data: R,
    kind: u32,
) -> read::Result<Option<Table>> {
    let sections = header.sections(LittleEndian, data)?;
    let is_table = |section: &&object::elf::SectionHeader64<LittleEndian>| {
        section.sh_type(LittleEndian) == kind
    };
    let Some(symbols) = sections.iter().find(is_table) else {
        return Ok(None);
    };
    let names = sections.section(symbols.link(LittleEndian))?;
    let range = |section: &object::elf::SectionHeader64<LittleEndian>| {
        section
            .file_range(LittleEndian)
            .map(|(from, len)| from..from.saturating_add(len))
    };
    let is_read = |table: &Table| {
        let parts = [&table.entries, &table.names];
        parts.iter().all(|part| part.end - part.start <= LARGEST)
    };
    Ok(range(symbols)
        .zip(range(names))
        .map(|(entries, names)| Table { entries, names })
        .filter(is_read))
}

/// Address and size of the first function whose name begins with each of these, in bytes: not of a part of it that the compiler put
/// elsewhere, whose name goes on after a dot.
pub fn find<'w>(
    file: &File,
    table: &Table,
    wanted: &[&'w str],
) -> io::Result<BTreeMap<&'w str, (u64, u64)>> {
    let named = names(file, &table.names, wanted)?;
    let mut out = BTreeMap::new();
    let mut piece = vec![0; PIECE];
    let mut at = table.entries.start;
    while at < table.entries.end && out.len() < wanted.len() && !named.is_empty() {
        let read = read_at(file, &mut piece, at..table.entries.end)?;
        let (entries, _) = pod::slice_from_bytes::<Sym64<LittleEndian>>(&piece, read / ENTRY)
            .map_err(|()| io::Error::from(io::ErrorKind::InvalidData))?;
        for symbol in entries {
            let name = u64::from(symbol.st_name(LittleEndian));
            let address = symbol.st_value(LittleEndian);
            let defined = symbol.st_shndx(LittleEndian) != SHN_UNDEF
                && symbol.st_type() == STT_FUNC
                && address != 0;
            if let Some(name) = named.get(&name).filter(|_| defined) {
                let found = (address, symbol.st_size(LittleEndian));
                out.entry(*name).or_insert(found);
            }
        }
        if read < ENTRY {
            break;
        }
        at += (read / ENTRY * ENTRY) as u64;
    }
    Ok(out)
}

/// Where in the table of names those are that begin so, from its beginning, in bytes.
fn names<'w>(
    file: &File,
    table: &Range<u64>,
    wanted: &[&'w str],
) -> io::Result<BTreeMap<u64, &'w str>> {
    // Each name ends with a zero, and the table begins with one.
    let begins: Vec<Vec<u8>> = wanted
        .iter()
        .map(|name| [&[0], name.as_bytes()].concat())
        .collect();
    let overlap = begins.iter().map(Vec::len).max().unwrap_or(0);
    let finders: Vec<_> = begins.iter().map(memmem::Finder::new).collect();
    let (mut out, mut looked_at) = (BTreeMap::new(), 0);
    let mut piece = vec![0; PIECE];
    let mut at = table.start;
    while at < table.end {
        let read = read_at(file, &mut piece, at..table.end)?;
        for (finder, name) in finders.iter().zip(wanted) {
            for found in finder.find_iter(&piece[..read]) {
                looked_at += 1;
                if looked_at > MOST_NAMES {
                    return Ok(out);
                }
                let begin = at + found as u64 + 1;
                if is_whole(file, begin..table.end)? {
                    out.insert(begin - table.start, *name);
                }
            }
        }
        if read <= overlap {
            break;
        }
        at += (read - overlap) as u64;
    }
    Ok(out)
}

/// Whether the name that begins there is that of a whole function.
fn is_whole(file: &File, name: Range<u64>) -> io::Result<bool> {
    let mut text = vec![0; LONGEST as usize];
    let read = read_at(file, &mut text, name)?;
    let name = text[..read].split(|byte| *byte == 0).next();
    Ok(name.is_some_and(|name| !name.contains(&b'.')))
}

/// Fills a piece from there on, but not beyond the end; gives how many bytes that are.
fn read_at(file: &File, piece: &mut [u8], range: Range<u64>) -> io::Result<usize> {
    let left = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    let most = piece.len().min(left);
    let mut read = 0;
    while read < most {
        match file.read_at(&mut piece[read..most], range.start + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
