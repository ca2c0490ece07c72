//! What the running kernel's BTF says: offsets of structure members, and which tracepoints exist.

mod types;

use std::{collections::BTreeSet, fs, path::Path};

use trainprof_common::offsets::{KernelFacts, MISSING, Offsets};

use self::types::Types;
use super::{KernelError, taken::Taken};

/// Where the kernel publishes its type information (CONFIG_DEBUG_INFO_BTF).
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The running kernel, as far as probes need to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTypes {
    /// Member offsets.
    pub offsets: Offsets,
    /// Other facts.
    pub facts: KernelFacts,
    /// Members that this kernel does not have: (name of the offset, structure, member path).
    pub missing: Vec<(&'static str, &'static str, &'static str)>,
    tracepoints: BTreeSet<String>,
}

impl KernelTypes {
    /// Reads and resolves everything that probes ask for, `tracepoints` among it.
    pub fn read(path: &Path, tracepoints: &[&str]) -> Result<Self, KernelError> {
        Self::read_without(path, tracepoints, &Taken::by_environment())
    }

    /// As [`Self::read`], as if what is taken were not there.
    fn read_without(path: &Path, tracepoints: &[&str], taken: &Taken) -> Result<Self, KernelError> {
        let data = fs::read(path).map_err(|source| KernelError::NoBtf {
            path: path.into(),
            source,
        })?;
        let types = Types::read(&data).map_err(|reason| KernelError::BadBtf {
            path: path.into(),
            reason,
        })?;
        let mut missing = Vec::new();
        let mut lacks = |field, structure, member| missing.push((field, structure, member));
        let mut offsets = Offsets::resolve(
            |structure, member| {
                let place = types.member(structure, member)?;
                (place.width == 0 && place.bits % 8 == 0).then_some(place.bits / 8)
            },
            &mut lacks,
        );
        let mut facts = kernel_facts(&types);
        taken.take_from(&mut offsets, &mut facts, &mut lacks);
        facts.objects = u32::from(offsets.tell_objects());
        match offsets.block_starts() {
            Some(starts) => [facts.file_block, facts.inode_block, facts.dentry_block] = starts,
            None => lacks(
                "blocks",
                "file, inode or dentry",
                "members within one block",
            ),
        }
        if facts.iowait_byte == MISSING {
            lacks("iowait", "task_struct", "in_iowait");
        }
        if facts.page_head_bit == MISSING {
            lacks("page_head_bit", "pageflags", "PG_head");
        }
        Ok(Self {
            offsets,
            facts,
            missing,
            tracepoints: tracepoints
                .iter()
                .filter(|name| types.has_typedef(&format!("btf_trace_{name}")))
                .map(|name| (*name).to_owned())
                .collect(),
        })
    }

    /// Whether the kernel has a tracepoint that BTF programs can attach to.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.contains(name)
    }
}

fn kernel_facts(types: &Types<'_>) -> KernelFacts {
    let (iowait_byte, iowait_mask) = types
        .member("task_struct", "in_iowait")
        .map_or((MISSING, 0), |place| {
            (place.bits / 8, 1 << (place.bits % 8))
        });
    KernelFacts {
        iowait_byte,
        iowait_mask,
        page_head_bit: types.enumerator("pageflags", "PG_head").unwrap_or(MISSING),
        // SAFETY: sysconf has no preconditions.
        page_size: u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096),
        file_block: 0,
        inode_block: 0,
        dentry_block: 0,
        objects: 0,
    }
}
