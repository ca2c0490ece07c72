//! Callers by unwinding tables (`.eh_frame`, Linux Standard Base core 10.6), with frame pointers where there are none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    ops::Deref,
    sync::Arc,
};

use framehop::{ExplicitModuleSectionInfo, FrameAddress, Unwinder as _};
use memmap2::{Mmap, MmapOptions};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, SegmentFlags, elf::PF_X};

use super::worker::MAX_DEPTH;
use crate::{
    arch::{UnwindCache, Unwinder, unwind_from},
    source::places::{
        Mapping,
        symbols::{Module, through_root},
    },
};

/// Larger tables than this are not looked at. PyTorch's largest libraries have some 20 MiB.
const MAX_TABLE: u64 = 128 << 20;
/// Tables of all modules together, as they are mapped; beyond that all are forgotten and mapped again where needed.
const MAX_TABLES: usize = 1 << 30;
/// Address spaces that are kept ready: forked processes share theirs.
const MAX_SPACES: usize = 32;

/// A part of a file that several address spaces share: mapped, so that memory is taken for the few pages alone that are looked at.
#[derive(Clone, Default)]
struct Bytes(Option<Arc<Mmap>>);

impl Bytes {
    fn map(file: &File, (offset, size): (u64, u64)) -> Option<Self> {
        let mut options = MmapOptions::new();
        let options = options.offset(offset).len(usize::try_from(size).ok()?);
        // SAFETY: only read. Who cuts off a library that is in use ends the programs that use it; packages put a new file in its place.
        let map = unsafe { options.map(file) }.ok()?;
        Some(Self(Some(Arc::new(map))))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], Deref::deref)
    }
}

/// What unwinding needs of one file.
struct Table {
    /// File offset, size and address of each part with code.
    segments: Vec<(u64, u64, u64)>,
    eh_frame: Option<(u64, Bytes)>,
    eh_frame_hdr: Option<(u64, Bytes)>,
}

impl Table {
    /// Reads a module's tables. `None` when the file is not there, is another one by now, or is no ELF file.
    fn read(pid: u32, module: &Module) -> Option<Self> {
        let path = through_root(pid, module.path.to_str().filter(|path| !path.is_empty())?);
        let (file, whole) = module.open(&path)?;
        let cache = ReadCache::new(&file);
        let elf = object::File::parse(&cache).ok()?;
        let section = |name: &str| {
            let section = elf.section_by_name(name)?;
            let (offset, size) = section.file_range()?;
            let inside = offset.checked_add(size).is_some_and(|end| end <= whole);
            (inside && size <= MAX_TABLE).then_some(())?;
            Some((section.address(), Bytes::map(&file, (offset, size))?))
        };
        Some(Self {
            segments: elf
                .segments()
                .filter(|segment| match segment.flags() {
                    SegmentFlags::Elf { p_flags } => p_flags & PF_X != 0,
                    _ => false,
                })
                .map(|segment| {
                    let (offset, size) = segment.file_range();
                    (offset, size, segment.address())
                })
                .collect(),
            eh_frame: section(".eh_frame"),
            eh_frame_hdr: section(".eh_frame_hdr"),
        })
    }

    fn bytes(&self) -> usize {
        [&self.eh_frame, &self.eh_frame_hdr]
            .into_iter()
            .flatten()
            .map(|(_, bytes)| bytes.len())
            .sum()
    }

    /// The module as it lies at a mapping.
    fn module(&self, mapping: &Mapping) -> Option<framehop::Module<Bytes>> {
        let bytes = mapping.end - mapping.start;
        // Mappings begin at whole pages, segments need not.
        let (offset, _, address) = self.segments.iter().find(|(offset, size, _)| {
            mapping.offset < offset.saturating_add(*size)
                && *offset < mapping.offset.saturating_add(bytes)
        })?;
        // How far the file was moved from the addresses that its linker chose.
        let bias = mapping
            .start
            .checked_add(*offset)?
            .checked_sub(mapping.offset)?
            .checked_sub(*address)?;
        let range = |part: &Option<(u64, Bytes)>| {
            part.as_ref()
                .map(|(at, bytes)| *at..at + bytes.len() as u64)
        };
        let data = |part: &Option<(u64, Bytes)>| part.as_ref().map(|(_, bytes)| bytes.clone());
        Some(framehop::Module::new(
            String::new(),
            mapping.start..mapping.end,
            bias,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                eh_frame_svma: range(&self.eh_frame),
                eh_frame: data(&self.eh_frame),
                eh_frame_hdr_svma: range(&self.eh_frame_hdr),
                eh_frame_hdr: data(&self.eh_frame_hdr),
                ..Default::default()
            },
        ))
    }
}

/// One address space.
struct Space {
    mappings: Arc<[Mapping]>,
    unwinder: Unwinder<Bytes>,
    /// Beginnings of mappings whose modules were added, or cannot be.
    added: BTreeSet<u64>,
}

/// Tables and address spaces.
#[derive(Default)]
pub struct Unwinds {
    tables: BTreeMap<u32, Option<Table>>,
    bytes: usize,
    spaces: Vec<Space>,
    cache: UnwindCache,
}

impl Unwinds {
    /// Addresses of the frames, the innermost first, of callers one inside the call; and whether the stack's
    /// beginning was reached. `regs`: instruction, stack pointer, frame pointer; `data`: the stack from there on.
    pub fn unwind(
        &mut self,
        pid: u32,
        mappings: &Arc<[Mapping]>,
        modules: &[Module],
        regs: [u64; 3],
        data: &[u8],
    ) -> (Vec<u64>, bool) {
        let [ip, sp, _] = regs;
        let mut space = self.space(mappings);
        let mut read = |address: u64| {
            let at = address.checked_sub(sp).ok_or(())? as usize;
            let word = data.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
            Ok(u64::from_ne_bytes(word.try_into().map_err(|_| ())?))
        };
        let mut regs = unwind_from(regs);
        let mut address = FrameAddress::from_instruction_pointer(ip);
        let mut out = vec![ip];
        let mut whole = false;
        while out.len() < MAX_DEPTH {
            self.add_module(&mut space, pid, modules, address.address_for_lookup());
            let before = regs.sp();
            match space
                .unwinder
                .unwind_frame(address, &mut regs, &mut self.cache, &mut read)
            {
                Ok(Some(next)) => {
                    let Some(next) = FrameAddress::from_return_address(next) else {
                        break;
                    };
                    let caller = next.address_for_lookup();
                    // Callers lie above, and in code.
                    if regs.sp() <= before || find(&space.mappings, caller).is_none() {
                        break;
                    }
                    out.push(caller);
                    address = next;
                }
                Ok(None) => {
                    whole = true;
                    break;
                }
                Err(_) => break,
            }
        }
        self.spaces.push(space);
        (out, whole)
    }

    fn space(&mut self, mappings: &Arc<[Mapping]>) -> Space {
        if let Some(at) = self
            .spaces
            .iter()
            .position(|space| Arc::ptr_eq(&space.mappings, mappings))
        {
            // The one used last is at the end.
            return self.spaces.remove(at);
        }
        if self.spaces.len() >= MAX_SPACES {
            self.spaces.remove(0);
        }
        Space {
            mappings: mappings.clone(),
            unwinder: Unwinder::new(),
            added: BTreeSet::new(),
        }
    }

    /// Adds the module that an address lies in, when it is first needed.
    fn add_module(&mut self, space: &mut Space, pid: u32, modules: &[Module], address: u64) {
        let Some(mapping) = find(&space.mappings, address) else {
            return;
        };
        if !space.added.insert(mapping.start) {
            return;
        }
        if !self.tables.contains_key(&mapping.module) {
            let table = modules
                .get(mapping.module as usize)
                .and_then(|module| Table::read(pid, module));
            let bytes = table.as_ref().map_or(0, Table::bytes);
            if self.bytes + bytes > MAX_TABLES {
                self.tables.clear();
                self.spaces.clear();
                self.bytes = 0;
            }
            self.bytes += bytes;
            self.tables.insert(mapping.module, table);
        }
        if let Some(Some(table)) = self.tables.get(&mapping.module)
            && let Some(module) = table.module(mapping)
        {
            space.unwinder.add_module(module);
        }
    }
}

fn find(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}
