//! What the running kernel's BTF says: offsets of structure members, and which tracepoints exist.

use std::{fs, path::Path};

use btfparse::{Error as BtfError, ErrorKind, Offset, Readable, TypeInformation, TypeVariant};
use trainprof_common::offsets::{KernelFacts, MISSING, Offsets};

use super::KernelError;

/// Where the kernel publishes its type information (CONFIG_DEBUG_INFO_BTF).
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

struct Bytes(Vec<u8>);

impl Readable for Bytes {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), BtfError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let source = start
            .checked_add(buffer.len())
            .and_then(|end| self.0.get(start..end))
            .ok_or_else(|| BtfError::new(ErrorKind::IOError, "read past the end of the BTF data"))?;
        buffer.copy_from_slice(source);
        Ok(())
    }
}

/// The running kernel, as far as probes need to know it.
pub struct KernelTypes {
    info: TypeInformation,
    /// Member offsets that were found.
    pub offsets: Offsets,
    /// Other facts.
    pub facts: KernelFacts,
    /// Members that this kernel does not have: (name of the offset, structure, member path).
    pub missing: Vec<(&'static str, &'static str, &'static str)>,
}

impl KernelTypes {
    /// Reads and resolves everything. Takes about 0.1 s: once per start.
    pub fn read(path: &Path) -> Result<Self, KernelError> {
        let data = fs::read(path).map_err(|source| KernelError::NoBtf { path: path.into(), source })?;
        let info = TypeInformation::new(&Bytes(data))
            .map_err(|error| KernelError::BadBtf { path: path.into(), reason: error.message().to_owned() })?;
        let mut missing = Vec::new();
        let offsets = Offsets::resolve(
            |structure, member| byte_offset(&info, structure, member),
            |field, structure, member| missing.push((field, structure, member)),
        );
        let facts = kernel_facts(&info);
        if facts.iowait_byte == MISSING {
            missing.push(("iowait", "task_struct", "in_iowait"));
        }
        if facts.page_head_bit == MISSING {
            missing.push(("page_head_bit", "pageflags", "PG_head"));
        }
        Ok(Self { info, offsets, facts, missing })
    }

    /// Whether the kernel has a tracepoint that BTF programs can attach to.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.info.id_of(&format!("btf_trace_{name}")).is_some()
    }
}

fn byte_offset(info: &TypeInformation, structure: &str, member: &str) -> Option<u32> {
    match info.offset_of(info.id_of(structure)?, member).ok()?.1 {
        Offset::ByteOffset(at) => Some(at),
        Offset::BitOffsetAndSize(bit, _) if bit % 8 == 0 => Some(bit / 8),
        Offset::BitOffsetAndSize(..) => None,
    }
}

fn kernel_facts(info: &TypeInformation) -> KernelFacts {
    let (iowait_byte, iowait_mask) = info
        .id_of("task_struct")
        .and_then(|task| info.offset_of(task, "in_iowait").ok())
        .map_or((MISSING, 0), |(_, offset)| match offset {
            Offset::BitOffsetAndSize(bit, _) => (bit / 8, 1 << (bit % 8)),
            Offset::ByteOffset(at) => (at, 1),
        });
    KernelFacts {
        iowait_byte,
        iowait_mask,
        page_head_bit: enum_value(info, "pageflags", "PG_head").unwrap_or(MISSING),
        // SAFETY: sysconf has no preconditions.
        page_size: u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096),
    }
}

fn enum_value(info: &TypeInformation, name: &str, variant: &str) -> Option<u32> {
    let TypeVariant::Enum(found) = info.from_id(info.id_of(name)?)? else {
        return None;
    };
    found.named_value_list().iter().find_map(|entry| {
        (entry.name == variant).then(|| match entry.value {
            btfparse::Integer32Value::Signed(v) => u32::try_from(v).ok(),
            btfparse::Integer32Value::Unsigned(v) => Some(v),
        })?
    })
}
