//! Reading the running kernel's structures, at offsets that user space found in its BTF.

use core::{ffi::c_void, ptr::read_volatile};

use aya_ebpf::helpers::generated::{self, bpf_get_current_task_btf};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel, bpf_task_pt_regs};
use trainprof_common::{
    arch,
    offsets::{BLOCK_BYTES, KernelFacts, MISSING, Offsets},
    thread::NR_FOREIGN,
};

const FOREIGN: i64 = NR_FOREIGN as i64;

/// Set by user space before loading. The map behind it is frozen, so the verifier knows each value.
#[unsafe(no_mangle)]
pub static OFFSETS: Offsets = Offsets::NONE;
/// Likewise.
#[unsafe(no_mangle)]
pub static FACTS: KernelFacts = KernelFacts {
    iowait_byte: MISSING,
    iowait_mask: 0,
    page_head_bit: MISSING,
    page_size: 4096,
    file_block: 0,
    inode_block: 0,
    dentry_block: 0,
    objects: 0,
};

/// One offset; [`MISSING`] where the kernel has no such member.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::word(&raw const $crate::kernel::OFFSETS.$field)
    };
}
/// One fact of the kernel.
macro_rules! fact {
    ($field:ident) => {
        $crate::kernel::word(&raw const $crate::kernel::FACTS.$field)
    };
}
pub(crate) use {fact, offset};

/// Reads a word of the two statics so that the compiler cannot assume the value that the object was built with.
#[inline(always)]
pub fn word(field: *const u32) -> u32 {
    // SAFETY: called by the macros above alone, with members of the statics.
    unsafe { read_volatile(field) }
}

/// Reads a member through a pointer that the verifier knows the type of: a plain load.
///
/// # Safety
/// `base` is a typed kernel pointer (an argument of a BTF tracepoint, the current task, or read from such).
#[inline(always)]
pub unsafe fn member<T: Copy>(base: *const c_void, offset: u32) -> T {
    // SAFETY: the verifier checks the access against the type.
    unsafe { read_volatile(base.byte_add(offset as usize).cast::<T>()) }
}

/// Reads kernel memory at an address that the verifier knows nothing of. `None` when it cannot be read.
#[inline(always)]
pub fn peek<T: Copy>(address: u64, offset: u32) -> Option<T> {
    if address == 0 || offset == MISSING {
        return None;
    }
    // SAFETY: the helper fails on an address that cannot be read.
    unsafe { bpf_probe_read_kernel((address + u64::from(offset)) as *const T) }.ok()
}

/// Copies a block of kernel memory; false when it cannot be read.
#[inline(always)]
pub fn copy_block(address: u64, start: u32, block: &mut [u8; BLOCK_BYTES]) -> bool {
    // SAFETY: the helper fails on an address that cannot be read, and the block has that many bytes.
    address != 0
        && unsafe {
            generated::bpf_probe_read_kernel(
                block.as_mut_ptr().cast(),
                BLOCK_BYTES as u32,
                (address + u64::from(start)) as *const c_void,
            )
        } == 0
}

/// A member out of a copied block.
#[inline(always)]
pub fn in_block<T: Copy>(block: &[u8; BLOCK_BYTES], start: u32, offset: u32) -> T {
    // SAFETY: `Offsets::block_starts` made sure that the member lies inside; the verifier checks it.
    unsafe { read_volatile(block.as_ptr().add((offset - start) as usize).cast::<T>()) }
}

/// Process and thread id of the current task, in the initial pid namespace.
#[inline(always)]
pub fn current_ids() -> (u32, u32) {
    let both = bpf_get_current_pid_tgid();
    ((both >> 32) as u32, both as u32)
}

/// The current task, as a typed pointer.
#[inline(always)]
pub fn current_task() -> *const c_void {
    // SAFETY: always available in the program types that we use.
    unsafe { bpf_get_current_task_btf() as *const c_void }
}

/// The registers that a task entered the kernel with, as a typed pointer.
#[inline(always)]
pub fn user_regs(task: *const c_void) -> *const c_void {
    // SAFETY: `task` is a typed pointer.
    unsafe { bpf_task_pt_regs(task as *mut _) as *const c_void }
}

/// A counter that the kernel keeps for the task; 0 where it has none.
///
/// # Safety
/// `task` is a typed pointer.
#[inline(always)]
pub unsafe fn counter(task: *const c_void, at: u32) -> u64 {
    if at == MISSING {
        return 0;
    }
    // SAFETY: as above.
    unsafe { member(task, at) }
}

/// Which page fault of the task is the present one, from 1; `None` where the kernel does not count them. It counts a fault
/// when it ends (`mm_account_fault` in mm/memory.c).
///
/// # Safety
/// `task` is a typed pointer.
#[inline(always)]
pub unsafe fn fault_number(task: *const c_void) -> Option<u64> {
    if offset!(task_min_flt) == MISSING || offset!(task_maj_flt) == MISSING {
        return None;
    }
    // SAFETY: as above.
    let (minor, major) = unsafe {
        (
            counter(task, offset!(task_min_flt)),
            counter(task, offset!(task_maj_flt)),
        )
    };
    Some(minor + major + 1)
}

/// Number of the system call in those registers; negative outside one, with [`NR_FOREIGN`] where it is another ABI's.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
pub unsafe fn syscall_nr(regs: *const c_void) -> i64 {
    // SAFETY: as above.
    let (nr, mode): (i64, u64) = unsafe {
        (
            member(regs, arch::REGS_SYSCALL as u32),
            member(regs, arch::REGS_MODE as u32),
        )
    };
    // x32 marks its numbers by a bit above ours (arch/x86/include/uapi/asm/unistd.h).
    if nr >= 0 && (arch::is_foreign(mode) || nr >= FOREIGN) {
        return nr & (FOREIGN - 1) | FOREIGN;
    }
    nr
}

/// Argument `n` of a system call, 0 for a number that is none.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
pub unsafe fn syscall_arg(regs: *const c_void, n: u8) -> u64 {
    // A load at a variable offset is refused on typed pointers, hence one load per register.
    // SAFETY: as above.
    unsafe {
        match n {
            0 => member(regs, arch::REGS_ARGS[0] as u32),
            1 => member(regs, arch::REGS_ARGS[1] as u32),
            2 => member(regs, arch::REGS_ARGS[2] as u32),
            3 => member(regs, arch::REGS_ARGS[3] as u32),
            4 => member(regs, arch::REGS_ARGS[4] as u32),
            5 => member(regs, arch::REGS_ARGS[5] as u32),
            _ => 0,
        }
    }
}
