//! What the running kernel's BTF says: offsets of structure members, and which tracepoints exist.

use std::{collections::BTreeSet, fs, io, path::Path};

use btfparse::{Error as BtfError, ErrorKind, Offset, Readable, TypeInformation, TypeVariant};
use serde::{Deserialize, Serialize};
use trainprof_common::offsets::{KernelFacts, MISSING, Offsets};

use super::{KernelError, apart::Apart};

/// Where the kernel publishes its type information (CONFIG_DEBUG_INFO_BTF).
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

struct Bytes(Vec<u8>);

impl Readable for Bytes {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), BtfError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let source = start
            .checked_add(buffer.len())
            .and_then(|end| self.0.get(start..end))
            .ok_or_else(|| {
                BtfError::new(ErrorKind::IOError, "read past the end of the BTF data")
            })?;
        buffer.copy_from_slice(source);
        Ok(())
    }
}

/// The running kernel, as far as probes need to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelTypes {
    /// The words of [`Offsets`] and of [`KernelFacts`].
    offsets: Vec<u32>,
    facts: [u32; 7],
    /// Members that this kernel does not have: (name of the offset, structure, member path).
    pub missing: Vec<(String, String, String)>,
    tracepoints: BTreeSet<String>,
}

impl KernelTypes {
    /// Reads and resolves everything that probes ask for, `tracepoints` among it. Takes about 0.1 s and
    /// 60 MB: see [`Self::start`].
    pub fn read(path: &Path, tracepoints: &[&str]) -> Result<Self, KernelError> {
        let data = fs::read(path).map_err(|source| KernelError::NoBtf {
            path: path.into(),
            source,
        })?;
        let info = TypeInformation::new(&Bytes(data)).map_err(|error| KernelError::BadBtf {
            path: path.into(),
            reason: error.message().to_owned(),
        })?;
        let mut missing = Vec::new();
        let mut lacks = |field: &str, structure: &str, member: &str| {
            missing.push((field.to_owned(), structure.to_owned(), member.to_owned()));
        };
        let offsets = Offsets::resolve(
            |structure, member| byte_offset(&info, structure, member),
            &mut lacks,
        );
        let facts = kernel_facts(&info);
        let blocks = offsets.block_starts();
        if blocks.is_none() {
            lacks(
                "blocks",
                "file, inode or dentry",
                "members within one block",
            );
        }
        let [file_block, inode_block, dentry_block] = blocks.unwrap_or_default();
        if facts.iowait_byte == MISSING {
            lacks("iowait", "task_struct", "in_iowait");
        }
        if facts.page_head_bit == MISSING {
            lacks("page_head_bit", "pageflags", "PG_head");
        }
        Ok(Self {
            offsets: offsets.words().to_vec(),
            facts: [
                facts.iowait_byte,
                facts.iowait_mask,
                facts.page_head_bit,
                facts.page_size,
                file_block,
                inode_block,
                dentry_block,
            ],
            missing,
            tracepoints: tracepoints
                .iter()
                .filter(|name| info.id_of(&format!("btf_trace_{name}")).is_some())
                .map(|name| (*name).to_owned())
                .collect(),
        })
    }

    /// The same in a process of its own, while we go on. Must be called while we have one thread.
    pub fn start(path: &'static Path, tracepoints: Vec<&'static str>) -> io::Result<PendingTypes> {
        Apart::start(move || Self::read(path, &tracepoints).map_err(|error| error.to_string()))
            .map(PendingTypes)
    }

    /// Whether the kernel has a tracepoint that BTF programs can attach to.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.contains(name)
    }

    /// Member offsets.
    pub fn offsets(&self) -> Offsets {
        Offsets::from_words(&self.offsets)
    }

    /// Other facts.
    pub fn facts(&self) -> KernelFacts {
        let [
            iowait_byte,
            iowait_mask,
            page_head_bit,
            page_size,
            file_block,
            inode_block,
            dentry_block,
        ] = self.facts;
        KernelFacts {
            iowait_byte,
            iowait_mask,
            page_head_bit,
            page_size,
            file_block,
            inode_block,
            dentry_block,
            pad: 0,
        }
    }
}

/// Types that are being read.
pub struct PendingTypes(Apart);

impl PendingTypes {
    /// Waits for them.
    pub fn finish(self) -> Result<KernelTypes, KernelError> {
        let bad = |reason| KernelError::BadBtf {
            path: VMLINUX.into(),
            reason,
        };
        self.0
            .finish::<Result<KernelTypes, String>>()
            .map_err(|error| bad(error.to_string()))?
            .map_err(bad)
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
        file_block: 0,
        inode_block: 0,
        dentry_block: 0,
        pad: 0,
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
