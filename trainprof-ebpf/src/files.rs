//! System calls on files and memory: counted from entry to exit, for followed threads alone.

use core::ffi::c_void;

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use trainprof_common::{
    loss::Loss,
    offsets::MISSING,
    op::{Class, MAX_SYSCALLS, NO_ARG, Op, SyscallInfo},
    thread::{Object, SEEN_ENTRY, ThreadState},
};

use crate::{
    account::{self, Done},
    emit, fileset,
    follow::thread,
    kernel::{current_ids, current_task, member, offset, syscall_arg, syscall_nr},
    maps::SYSCALLS,
    object, touch,
};

const AT_EMPTY_PATH: u64 = 0x1000;
const MAP_ANONYMOUS: u64 = 0x20;
/// Numbers of the operations that are treated apart.
const OPEN: u8 = Op::Open.number();
const READ: u8 = Op::Read.number();
const WRITE: u8 = Op::Write.number();
const COPY: u8 = Op::Copy.number();
const COPY_OUT: u8 = Op::CopyOut.number();
const BRK: u8 = Op::Brk.number();
const MMAP: u8 = Op::Mmap.number();
const MREMAP: u8 = Op::Mremap.number();
/// Position of mmap's flags.
const MMAP_FLAGS: u8 = 3;

/// How a system call is counted; `None` for most.
#[inline(always)]
fn counted(nr: i64) -> Option<SyscallInfo> {
    if nr as u64 >= MAX_SYSCALLS as u64 {
        return None;
    }
    let info = *SYSCALLS.get(nr as u32)?;
    (info.op != 0).then_some(info)
}

/// `sys_enter(regs, id)`.
#[btf_tracepoint]
pub fn sys_enter(ctx: BtfTracePointContext) -> u32 {
    let regs: *const c_void = ctx.arg(0);
    let nr: i64 = ctx.arg(1);
    let Some(info) = counted(nr) else {
        return 0;
    };
    let (_, tid) = current_ids();
    let Some(state) = thread(tid) else {
        return 0;
    };
    // SAFETY: written by this thread's own probes alone; the entry outlives this program.
    let state = unsafe { &mut *state };
    // SAFETY: a typed argument.
    state.op_object = unsafe { target(state, &info, regs) };
    state.op_nr = nr as u32;
    state.flags |= SEEN_ENTRY;
    // SAFETY: clock helper.
    state.op_enter = unsafe { bpf_ktime_get_ns() };
    0
}

/// The object that a call starts out on: its descriptor's, or none.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
unsafe fn target(state: &mut ThreadState, info: &SyscallInfo, regs: *const c_void) -> Object {
    let memory = Object {
        class: Class::Memory as u32,
        ..Object::default()
    };
    // SAFETY: as promised by the caller.
    unsafe {
        if info.op == Op::Mmap as u8 && syscall_arg(regs, MMAP_FLAGS) & MAP_ANONYMOUS != 0 {
            return memory;
        }
        if info.fd == NO_ARG {
            return match info.op {
                op if op == Op::Brk as u8 => Object {
                    id: program_break(),
                    ..memory
                },
                op if op >= Op::Munmap as u8 && op <= Op::Mremap as u8 => memory,
                _ => Object::default(),
            };
        }
        if info.at_flags != NO_ARG && syscall_arg(regs, info.at_flags) & AT_EMPTY_PATH == 0 {
            return Object::default();
        }
        object::resolve(state, syscall_arg(regs, info.fd))
    }
}

/// End of the current process's heap.
#[inline(always)]
fn program_break() -> u64 {
    if offset!(task_mm) == MISSING || offset!(mm_brk) == MISSING {
        return 0;
    }
    // SAFETY: typed pointers from the current task on.
    unsafe {
        let mm: *const c_void = member(current_task(), offset!(task_mm));
        if mm.is_null() {
            0
        } else {
            member(mm, offset!(mm_brk))
        }
    }
}

/// `sys_exit(regs, ret)`.
#[btf_tracepoint]
pub fn sys_exit(ctx: BtfTracePointContext) -> u32 {
    let regs: *const c_void = ctx.arg(0);
    let result: i64 = ctx.arg(1);
    // SAFETY: a typed argument.
    let nr = unsafe { syscall_nr(regs) };
    let Some(info) = counted(nr) else {
        return 0;
    };
    let (_, tid) = current_ids();
    let Some(state) = thread(tid) else {
        return 0;
    };
    // SAFETY: written by this thread's own probes alone; the entry outlives this program.
    let state = unsafe { &mut *state };
    let entered = state.op_enter;
    let matched = entered != 0 && u64::from(state.op_nr) == nr as u64;
    state.op_enter = 0;
    if !matched {
        if state.flags & SEEN_ENTRY != 0 {
            emit::lost(Loss::UnmatchedExit);
        }
        // The call had begun before the watch: counted, but its length is not known.
        state.flags |= SEEN_ENTRY;
        // SAFETY: a typed argument. A descriptor that close() gave back is gone: class `Unknown`.
        state.op_object = unsafe { target(state, &info, regs) };
    }
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    let ns = if matched {
        now.saturating_sub(entered)
    } else {
        0
    };
    // SAFETY: a typed argument.
    unsafe {
        finish(
            state,
            &info,
            regs,
            result,
            now,
            Done {
                tid,
                op: 0,
                bytes: 0,
                ns,
                failed: result < 0,
                timed: matched,
            },
        )
    };
    0
}

/// Counts a call that has returned.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
unsafe fn finish(
    state: &mut ThreadState,
    info: &SyscallInfo,
    regs: *const c_void,
    result: i64,
    now: u64,
    mut done: Done,
) {
    let mut on = state.op_object;
    done.op = info.op;
    // SAFETY: as promised by the caller.
    unsafe {
        if info.op == OPEN && !done.failed {
            let opened = object::resolve_opened(state, result as u64);
            on = opened.object;
            if on.class == Class::File as u32 || on.class == Class::Tmpfs as u32 {
                done.bytes = opened.size;
            }
        } else if info.path != NO_ARG && on.class == 0 {
            on.fileset = fileset::of_call(regs, info.path, state.tgid);
        } else if info.op == BRK && !done.failed {
            done.bytes = (result as u64).abs_diff(on.id);
            on.id = 0;
        } else if info.op == MMAP || info.op == MREMAP {
            // Their result is an address.
            done.failed = (-4095..0).contains(&result);
        }
        if info.len != NO_ARG {
            if !done.failed {
                done.bytes = syscall_arg(regs, info.len);
            }
        } else if !done.failed && (info.op == READ || info.op == WRITE || info.op == COPY) {
            done.bytes = result as u64;
        }
        if info.fd != NO_ARG
            && info.at_flags == NO_ARG
            && on.class == 0
            && !done.failed
            && done.timed
        {
            emit::lost(Loss::UnresolvedFd);
        }
        account::operation(&done, &on);
        touch::note(state.tgid, &done, &on, now);
        if info.op == COPY && info.fd2 != NO_ARG {
            let onto = object::resolve(state, syscall_arg(regs, info.fd2));
            done.op = COPY_OUT;
            account::operation(&done, &onto);
            touch::note(state.tgid, &done, &onto, now);
        }
    }
}
