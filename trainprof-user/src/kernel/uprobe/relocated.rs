//! Instructions of programs, bound to the maps that are loaded already: for programs that are loaded otherwise than `aya`
//! 0.14 does it. In the order of its own loader, less what kernels without `bpf_probe_read_kernel` and programs with
//! relocations by types take.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::CStr,
    os::fd::RawFd,
};

use aya::Ebpf;
use aya_obj::{Object, generated::bpf_insn};

use super::chain;
use crate::kernel::{load::OBJECT, wire::descriptor};

/// Stands for a map that is not there any more, or of a kind that none of these programs uses: the kernel refuses a
/// program that uses it.
const NO_MAP: RawFd = -1;

/// From include/uapi/linux/bpf.h: a load of 64 bits, and what it loads where not a number.
const BPF_LD_IMM64: u8 = 0x18;
const BPF_PSEUDO_MAP_FD: u8 = 1;
const BPF_PSEUDO_MAP_VALUE: u8 = 2;

/// Some programs of the embedded object, not loaded.
pub(in crate::kernel) struct Relocated(Object);

impl Relocated {
    /// Binds programs to the maps that `ebpf` has now, overridden constants among them.
    ///
    /// # Errors
    /// In words.
    pub fn new(ebpf: &Ebpf, programs: &[&str]) -> Result<Self, String> {
        Self::bound(programs, |map| {
            ebpf.map(map).and_then(descriptor).unwrap_or(NO_MAP)
        })
    }

    fn bound(programs: &[&str], fd: impl Fn(&str) -> RawFd) -> Result<Self, String> {
        let mut object = Object::parse(OBJECT).map_err(|error| chain(&error))?;
        if object.has_btf_relocations() {
            return Err("the eBPF object has relocations by types".to_owned());
        }
        object
            .programs
            .retain(|name, _| programs.contains(&name.as_str()));
        let maps = std::mem::take(&mut object.maps);
        let code: HashSet<usize> = object
            .functions
            .keys()
            .map(|(section, _)| *section)
            .collect();
        let bound = maps
            .iter()
            .map(|(name, map)| (name.as_str(), fd(name), map));
        object
            .relocate_maps(bound, &code)
            .map_err(|error| chain(&error))?;
        object
            .relocate_calls(&code)
            .map_err(|error| chain(&error))?;
        Ok(Self(object))
    }

    /// Descriptors of the maps that programs are bound to, which must stay open until these are loaded.
    pub fn maps(&self, programs: &[&str]) -> BTreeSet<RawFd> {
        let of_maps = |one: &&bpf_insn| {
            one.code == BPF_LD_IMM64
                && matches!(one.src_reg(), BPF_PSEUDO_MAP_FD | BPF_PSEUDO_MAP_VALUE)
        };
        programs
            .iter()
            .filter_map(|name| self.program(name))
            .flat_map(|(instructions, _)| instructions.iter().filter(of_maps))
            .map(|one| one.imm)
            .filter(|map| *map != NO_MAP)
            .collect()
    }

    /// A program with all that it calls, and its license.
    pub(super) fn program(&self, name: &str) -> Option<(&[bpf_insn], &CStr)> {
        let program = self.0.programs.get(name)?;
        let function = self.0.functions.get(&program.function_key())?;
        Some((&function.instructions, &program.license))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::alloc::{ENTRY, RETURN};

    #[test]
    fn a_program_uses_the_maps_that_it_is_given() {
        let window = |map: &str| if map == "ALLOC_WINDOW" { 7 } else { 8 };
        let both = Relocated::bound(&[ENTRY, RETURN], window).expect("the embedded object");
        for name in [ENTRY, RETURN] {
            assert_eq!(both.maps(&[name]), BTreeSet::from([7, 8]), "{name}");
        }
        assert!(both.program("another").is_none());
    }
}
