//! Page-cache fills: pages that a followed thread's reads and faults had to add, because they were not cached.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use trainprof_common::{
    offsets::MISSING,
    op::{NO_ARG, Op, SyscallInfo},
    thread::{NR_FOREIGN, ThreadState},
};

use crate::{
    account::{self, Done},
    follow::running,
    kernel::{
        current_ids, current_task, fact, fault_number, member, offset, peek, syscall_arg,
        syscall_nr, user_regs,
    },
    maps::syscall,
    object,
};

/// `mm_filemap_add_to_page_cache(folio)`: runs in the context of the thread that wants the pages.
#[btf_tracepoint]
pub fn mm_filemap_add_to_page_cache(ctx: BtfTracePointContext) -> u32 {
    let folio: *const c_void = ctx.arg(0);
    let (tgid, tid) = current_ids();
    let Some(state) = running(tid) else {
        return 0;
    };
    // SAFETY: written by this thread's own probes alone; the entry outlives this program.
    let state = unsafe { &mut *state };
    let task = current_task();
    let regs = user_regs(task);
    // SAFETY: typed registers of the current task.
    let nr = unsafe { syscall_nr(regs) };
    if nr >= i64::from(NR_FOREIGN) {
        // It may be a write.
        return 0;
    }
    let info = syscall(nr);
    if let Some(info) = &info
        && info.op == Op::Write as u8
    {
        return 0;
    }
    // SAFETY: a typed argument.
    let (mapping, flags): (u64, u64) = unsafe {
        (
            member(folio, offset!(folio_mapping)),
            peek(folio as u64, offset!(folio_flags)).unwrap_or(0),
        )
    };
    let inode: u64 = peek(mapping, offset!(mapping_host)).unwrap_or(0);
    if inode == 0 {
        return 0;
    }
    if let Some(info) = &info
        // SAFETY: typed registers of the current task.
        && unsafe { writes_to(state, info, regs, inode) }
    {
        return 0;
    }
    if state.fault_inode != inode {
        state.fault_object = object::describe_inode(inode, tgid);
        state.fault_inode = inode;
    }
    let head = fact!(page_head_bit);
    let mut pages = 1;
    if head != MISSING && flags >> (head & 63) & 1 != 0 {
        pages = peek::<u32>(folio as u64, offset!(folio_nr_pages))
            .unwrap_or(1)
            .max(1);
    }
    let page_size = fact!(page_size);
    if nr < 0 {
        // SAFETY: a typed pointer.
        state.filling_fault = unsafe { fault_number(task) }.unwrap_or(0);
    }
    let done = Done {
        tid,
        op: if nr >= 0 {
            Op::Fill.number()
        } else {
            Op::FaultFill.number()
        },
        bytes: u64::from(pages) * u64::from(page_size),
        ns: 0,
        failed: false,
        timed: false,
        at: 0,
    };
    account::call(&done, &state.fault_object);
    0
}

/// Whether pages of that inode which a call of any kind but a write adds are for what it writes: they are fetched from nowhere.
///
/// # Safety
/// `regs` is a typed pointer to the registers that the current thread entered the kernel with.
#[inline(always)]
unsafe fn writes_to(
    state: &ThreadState,
    info: &SyscallInfo,
    regs: *const c_void,
    inode: u64,
) -> bool {
    if info.op == Op::Copy as u8 {
        // SAFETY: as promised by the caller.
        let (source, target) = unsafe { (syscall_arg(regs, info.fd), info.fd2) };
        if object::inode_of(state, source) == inode {
            return false;
        }
        if target != NO_ARG {
            // SAFETY: as promised by the caller.
            let target = unsafe { syscall_arg(regs, target) };
            if object::inode_of(state, target) == inode {
                return true;
            }
        }
        // A stacked file system keeps pages at inodes of its own.
    } else if info.op != Op::None as u8 {
        return false;
    }
    // A ring or a queue of the kernel reads and writes many files in one call, and finishes them in any: what nobody may write to
    // is read.
    peek::<i32>(inode, offset!(inode_writers)).unwrap_or(0) > 0
}
