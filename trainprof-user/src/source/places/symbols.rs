//! Which function of a module an address belongs to.

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use trainprof_common::arch;

use super::{
    class::{self, Flavour, MALLOC_EXPORTS},
    elf::{Elf, Function},
};
use crate::record::fact::PlaceClass;

/// Tables with more symbols are not read, for the memory: 16 bytes each.
const MAX_SYMBOLS: u64 = 1_000_000;
/// Larger ones than this are no C library's allocator (glibc's is 24 KB).
const MAX_ALLOCATOR: u64 = 256 << 10;
/// Names of one function that are compared: aliases beyond these are not looked at.
const MAX_ALIASES: usize = 8;
/// Where nothing is known of an address, this much around it counts as one.
const GRAIN: u64 = 64;

/// A file whose functions are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Path by which we can open it, through the process's own root.
    pub path: PathBuf,
    /// File name without directory.
    pub name: String,
    /// Device as (major, minor).
    pub device: (u32, u32),
    pub inode: u64,
}

impl Module {
    /// Its file and how many bytes that has. `None` when it is not there, or is another one by now.
    pub fn open(&self, path: &Path) -> Option<(File, u64)> {
        let file = File::open(path).ok()?;
        let metadata = file.metadata().ok()?;
        // An overlay shows other devices here than in the table of mappings: then inodes say nothing.
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        let same = device != self.device || metadata.ino() == self.inode;
        (metadata.is_file() && same).then_some((file, metadata.len()))
    }
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Offsets in the file for which the same holds.
    pub range: Range<u64>,
    pub function: Option<String>,
    pub class: PlaceClass,
}

impl Found {
    /// Only the module is known.
    pub fn nothing(offset: u64, flavour: Flavour) -> Self {
        let start = offset & !(GRAIN - 1);
        Self {
            range: start..start.saturating_add(GRAIN),
            function: None,
            class: class::of_module(flavour),
        }
    }
}

/// A function in 16 bytes: the largest module in use has hundreds of thousands.
struct Entry {
    /// Address above [`Index::base`].
    start: u32,
    size: u32,
    name: u32,
    global: bool,
}

/// The functions of one module, by address.
pub struct Index {
    elf: Elf,
    base: u64,
    entries: Vec<Entry>,
    flavour: Flavour,
    /// Addresses of the C library's allocator, where it can be told apart.
    allocator: Option<Range<u64>>,
}

impl Index {
    /// Reads a file's table. `None` when it is no ELF file.
    pub fn of_file(file: File, name: &str) -> Option<Self> {
        let elf = Elf::open(file)?;
        let base = elf.segments.iter().map(|segment| segment.address).min()?;
        let mut entries = Vec::new();
        if elf.symbols() <= MAX_SYMBOLS {
            elf.functions(|function| entries.extend(entry(base, &function)));
            entries.sort_unstable_by_key(|entry| (entry.start, entry.size));
            entries.shrink_to_fit();
        }
        let flavour = Flavour::of_exports(name, |symbol| elf.exported(symbol).is_some());
        let mut index = Self {
            elf,
            base,
            entries,
            flavour,
            allocator: None,
        };
        index.allocator = index.allocator();
        Some(index)
    }

    /// Bytes that the index takes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Where the C library's allocator lies. It is one object file (glibc's malloc.c), which the linker lays out in
    /// one piece: what lies between its exported functions is its own too. If functions of another kind lie
    /// between them, then it is not in one piece here, and nothing is known.
    fn allocator(&self) -> Option<Range<u64>> {
        let mut family: Vec<Function> = MALLOC_EXPORTS
            .iter()
            .filter_map(|name| self.elf.exported(name))
            .collect();
        family.sort_unstable_by_key(|function| function.address);
        let (first, last) = (family.first()?, family.last()?);
        let range = first.address..last.address.checked_add(last.size)?;
        let from = u32::try_from(range.start.checked_sub(self.base)?).ok()?;
        let to = u32::try_from(range.end.checked_sub(self.base)?).ok()?;
        let begin = self.entries.partition_point(|entry| entry.start < from);
        let whole = self.entries[begin..]
            .iter()
            .take_while(|entry| entry.start < to)
            .filter(|entry| entry.global)
            .all(|entry| {
                let address = self.base + u64::from(entry.start);
                family.iter().any(|function| function.address == address)
                    || self.elf.name(entry.name).is_some_and(|name| {
                        class::of_function(Flavour::Plain, &name) == PlaceClass::Malloc
                    })
            });
        // Two functions of the family would make any two neighbours a range.
        (whole && family.len() >= 4).then(|| self.with_callees(range))
    }

    /// The static functions that lie before the first exported one are the allocator's as far down as the allocator
    /// calls them: functions without a name, in the same gap between exported ones, are reached from their own object
    /// file alone.
    fn with_callees(&self, mut range: Range<u64>) -> Range<u64> {
        if self.elf.machine != arch::ELF_MACHINE {
            return range;
        }
        let gap = self
            .entries
            .iter()
            .map(|entry| self.base + u64::from(entry.start))
            .zip(&self.entries)
            .take_while(|(start, _)| *start < range.start)
            .map(|(start, entry)| start + u64::from(entry.size))
            .max()
            .unwrap_or(range.start);
        // Each round follows the calls of what the last one added.
        let mut from = range.clone();
        while let Some(code) = self.elf.loaded(&from, MAX_ALLOCATOR) {
            let lowest = arch::branch_targets(&code, from.start)
                .filter(|target| target % arch::FUNCTION_ALIGN == 0)
                .filter(|target| (gap..range.start).contains(target))
                .min();
            let Some(lowest) = lowest else { break };
            from = lowest..range.start;
            range.start = lowest;
        }
        range
    }

    /// What is known of an offset in the file.
    pub fn find(&self, offset: u64) -> Found {
        self.find_function(offset)
            .unwrap_or_else(|| Found::nothing(offset, self.flavour))
    }

    fn find_function(&self, offset: u64) -> Option<Found> {
        let segment = self
            .elf
            .segments
            .iter()
            .find(|s| offset.checked_sub(s.offset).is_some_and(|at| at < s.size))?;
        let address = segment.address.checked_add(offset - segment.offset)?;
        let at = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let offset_of = |address: u64| {
            address
                .checked_sub(segment.address)
                .map(|above| above.min(segment.size) + segment.offset)
        };
        let after = self.entries.partition_point(|entry| entry.start <= at);
        let (before, rest) = self.entries.split_at(after);
        // The last that begins here or before; one of its aliases may be shorter than the rest.
        let nearest = before.last();
        let aliases = || {
            before
                .iter()
                .rev()
                .take(MAX_ALIASES)
                .take_while(|entry| nearest.is_some_and(|near| near.start == entry.start))
                .filter(|entry| at - entry.start < entry.size)
        };
        if let Some(end) = aliases().map(|entry| entry.start + entry.size).max() {
            let start = nearest?.start;
            let function = aliases()
                .filter_map(|entry| Some((entry, self.elf.name(entry.name)?)))
                .min_by_key(|(entry, name)| {
                    let underscores = name.bytes().take_while(|b| *b == b'_').count();
                    (!entry.global, underscores, name.len())
                })
                .map(|(_, name)| name)?;
            // Others begin inside of it only where an assembler nested them: those are found by themselves.
            let end = rest.first().map_or(end, |next| end.min(next.start));
            return Some(Found {
                range: offset_of(self.base + u64::from(start))?
                    ..offset_of(self.base + u64::from(end))?,
                class: class::of_function(self.flavour, &function),
                function: Some(function),
            });
        }
        self.between(nearest, rest.first(), address, offset_of)
    }

    /// A function that has no symbol, between two that have.
    fn between(
        &self,
        before: Option<&Entry>,
        after: Option<&Entry>,
        address: u64,
        offset_of: impl Fn(u64) -> Option<u64>,
    ) -> Option<Found> {
        let mut start = before.map_or(0, |entry| {
            self.base + u64::from(entry.start) + u64::from(entry.size)
        });
        let mut end = after.map_or(u64::MAX, |entry| self.base + u64::from(entry.start));
        let mut class = class::of_module(self.flavour);
        if let Some(allocator) = &self.allocator {
            if allocator.contains(&address) {
                class = PlaceClass::Malloc;
                (start, end) = (start.max(allocator.start), end.min(allocator.end));
            } else if address < allocator.start {
                end = end.min(allocator.start);
            } else {
                start = start.max(allocator.end);
            }
        }
        (start <= address && address < end).then_some(())?;
        Some(Found {
            range: offset_of(start).unwrap_or(0)..offset_of(end)?,
            function: None,
            class,
        })
    }
}

/// `None` for functions more than 4 GiB above the module's beginning.
fn entry(base: u64, function: &Function) -> Option<Entry> {
    let start = u32::try_from(function.address.checked_sub(base)?).ok()?;
    let size = u32::try_from(function.size).ok()?;
    start.checked_add(size)?;
    Some(Entry {
        start,
        size,
        name: function.name,
        global: function.global,
    })
}

/// The path of a mapped file as we can open it: as the process sees it, from the process's root.
pub fn through_root(pid: u32, path: &str) -> PathBuf {
    Path::new("/proc")
        .join(pid.to_string())
        .join("root")
        .join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path of our own shared libc and the file offset of an address in it.
    fn in_libc(address: u64) -> Option<(String, u64)> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our mappings");
        super::super::maps::decode(&maps)
            .find(|line| line.start <= address && address < line.end && line.path.contains("libc"))
            .map(|line| (line.path.to_owned(), address - line.start + line.offset))
    }

    fn index(path: &str) -> Index {
        let metadata = std::fs::metadata(path).expect("the library");
        let module = Module {
            path: path.into(),
            name: "libc.so.6".into(),
            device: (libc::major(metadata.dev()), libc::minor(metadata.dev())),
            inode: metadata.ino(),
        };
        let moved = Module {
            inode: module.inode + 1,
            ..module.clone()
        };
        assert!(
            moved.open(&moved.path).is_none(),
            "another file has taken its place"
        );
        let (file, _) = module.open(&module.path).expect("the library");
        Index::of_file(file, &module.name).expect("an index")
    }

    #[test]
    fn the_allocator_of_the_c_library_is_found_stripped_or_not() {
        let Some((path, malloc)) = in_libc(libc::malloc as *const () as u64) else {
            eprintln!("skipped: no shared libc");
            return;
        };
        let index = index(&path);
        let found = index.find(malloc + 3);
        assert_eq!(found.function.as_deref(), Some("malloc"));
        assert_eq!(found.class, PlaceClass::Malloc);
        assert!(found.range.contains(&malloc));
        let range = index.allocator.clone().expect("glibc's is in one piece");
        assert!(
            (8_000..200_000).contains(&(range.end - range.start)),
            "{range:x?}"
        );
        let (_, qsort) = in_libc(libc::qsort as *const () as u64).expect("libc");
        let found = index.find(qsort);
        assert_eq!(
            (found.function.as_deref(), found.class),
            (Some("qsort"), PlaceClass::Other)
        );
        // Every address of a found range gives that range again.
        for at in (malloc - 0x4000..malloc + 0x4000).step_by(61) {
            let found = index.find(at);
            assert!(found.range.contains(&at), "{at:x} {found:x?}");
            for other in [found.range.start, found.range.end - 1] {
                assert_eq!(index.find(other), found, "{at:x} {other:x}");
            }
        }
    }

    #[test]
    fn what_is_no_code_is_nothing() {
        let Some((path, _)) = in_libc(libc::malloc as *const () as u64) else {
            return;
        };
        let found = index(&path).find(u64::MAX - 5);
        assert_eq!((found.function, found.class), (None, PlaceClass::Other));
    }
}
