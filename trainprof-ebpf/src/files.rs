//! System calls on files and memory, for followed threads alone. They are counted at their exit, where the arguments
//! still lie in the registers. The entry adds what is gone by then: when the call began, and what it closes. User space
//! hides entries for most of the time while there are very many calls.

use core::ffi::c_void;

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use trainprof_common::{
    loss::Loss,
    offsets::MISSING,
    op::{Class, NO_ARG, Op, SyscallInfo, WaitOn, mark},
    thread::{Object, ThreadState, USES_RING},
};

use crate::{
    account::{self, Done},
    cpu, emit, fileset,
    follow::calling,
    kernel::{current_task, member, offset, syscall_arg, syscall_nr},
    maps::{BREAKS, Break, Control, YIELDS, control, syscall, touched},
    object, touch,
};

const AT_EMPTY_PATH: u64 = 0x1000;
const MAP_ANONYMOUS: u64 = 0x20;
/// No such descriptor (errno(3)).
const EBADF: i64 = 9;
/// Numbers of the operations that are treated apart.
const CLOSE: u8 = Op::Close.number();
const OPEN: u8 = Op::Open.number();
const READ: u8 = Op::Read.number();
const WRITE: u8 = Op::Write.number();
const GETDENTS: u8 = Op::Getdents.number();
const COPY: u8 = Op::Copy.number();
const COPY_OUT: u8 = Op::CopyOut.number();
const BRK: u8 = Op::Brk.number();
const MMAP: u8 = Op::Mmap.number();
const MREMAP: u8 = Op::Mremap.number();
/// Position of mmap's flags.
const MMAP_FLAGS: u8 = 3;

/// Counts a call by which a thread gives up the CPU. There may be a million a second, which is why nothing else is done about it:
/// what it costs such a thread is time that it had nothing to do with.
#[inline(always)]
fn yields() {
    if let Some(count) = YIELDS.get_ptr_mut(0) {
        // SAFETY: a per-CPU slot; a count that an interrupt took away does not matter.
        unsafe { *count += 1 };
    }
}

/// `sys_enter(regs, id)`.
#[btf_tracepoint]
pub fn sys_enter(ctx: BtfTracePointContext) -> u32 {
    let regs: *const c_void = ctx.arg(0);
    let stretch = control(Control::ENTRIES) as u32;
    if stretch == 0 {
        return 0;
    }
    // SAFETY: a typed argument.
    let nr = unsafe { syscall_nr(regs) };
    let Some(info) = syscall(nr) else {
        return 0;
    };
    if info.op == 0 {
        return 0;
    }
    let Some((state, _)) = calling(regs) else {
        return 0;
    };
    // SAFETY: written by this thread's own probes alone; the entry outlives this program.
    let state = unsafe { &mut *state };
    // SAFETY: a typed argument.
    state.op_object = unsafe { target(state, &info, regs) };
    if info.op == BRK {
        state.op_object.id = program_break(current_task());
    }
    if state.op_enter != 0 && state.entry_stretch == stretch {
        // Ends were shown all the time since then, and that call's was not.
        emit::lost(Loss::UnmatchedEntry);
    }
    state.op_nr = nr as u32;
    state.entry_stretch = stretch;
    // SAFETY: clock helper.
    state.op_enter = unsafe { bpf_ktime_get_ns() };
    0
}

/// Whether a call is on memory and not on a file.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
pub unsafe fn on_memory(info: &SyscallInfo, regs: *const c_void) -> bool {
    if info.op == MMAP {
        // SAFETY: as promised by the caller.
        return unsafe { syscall_arg(regs, MMAP_FLAGS) } & MAP_ANONYMOUS != 0;
    }
    info.op >= Op::Munmap as u8 && info.op <= MREMAP
}

/// Whether argument `fd` of a call says what it is on.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
pub unsafe fn on_descriptor(info: &SyscallInfo, regs: *const c_void) -> bool {
    if info.at_flags == NO_ARG {
        return info.fd != NO_ARG && (info.op != 0 || info.wait_on == WaitOn::Descriptor as u8);
    }
    // SAFETY: as promised by the caller.
    unsafe { syscall_arg(regs, info.at_flags) & AT_EMPTY_PATH != 0 }
}

/// The object that a call is on: its descriptor's, or none.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
unsafe fn target(state: &mut ThreadState, info: &SyscallInfo, regs: *const c_void) -> Object {
    // SAFETY: as promised by the caller.
    unsafe {
        if on_memory(info, regs) {
            Object {
                class: Class::Memory as u32,
                ..Object::default()
            }
        } else if on_descriptor(info, regs) {
            object::resolve(state, syscall_arg(regs, info.fd))
        } else {
            Object::default()
        }
    }
}

/// End of a process's heap, 0 when it cannot be told.
#[inline(always)]
fn program_break(task: *const c_void) -> u64 {
    if offset!(task_mm) == MISSING || offset!(mm_brk) == MISSING {
        return 0;
    }
    // SAFETY: typed pointers from the task on.
    unsafe {
        let mm: *const c_void = member(task, offset!(task_mm));
        if mm.is_null() {
            0
        } else {
            member(mm, offset!(mm_brk))
        }
    }
}

/// Notes the end of the heap of a process that begins, or executes another program.
#[inline(always)]
pub fn note_break(task: *const c_void, tgid: u32) {
    let known = Break {
        at: program_break(task),
        counted: Control::counted(),
    };
    let _ = BREAKS.insert(&tgid, &known, 0);
}

/// A process has ended.
#[inline(always)]
pub fn forget_break(tgid: u32) {
    let _ = BREAKS.remove(&tgid);
}

/// Bytes by which a brk(2) that gave `result` moved the end of the heap from `before`, or if that is 0 from where
/// the last one left it.
#[inline(always)]
fn break_moved(tgid: u32, before: u64, result: u64) -> u64 {
    let counted = Control::counted();
    // SAFETY: copied out at once.
    let known = unsafe { BREAKS.get(&tgid) }
        .copied()
        .unwrap_or(Break { at: 0, counted });
    if known.at != result || known.counted != counted {
        let _ = BREAKS.insert(
            &tgid,
            &Break {
                at: result,
                counted,
            },
            0,
        );
    }
    if before != 0 {
        return result.abs_diff(before);
    }
    if known.counted != counted {
        // It moved while nobody counted, nobody knows how far.
        return 0;
    }
    if known.at == 0 {
        emit::lost(Loss::UnmatchedExit);
        return 0;
    }
    result.abs_diff(known.at)
}

/// Whether what is known of a call's beginning is of this stretch of counting: after a time in which ends were not seen it may
/// be of a call that ended long ago.
#[inline(always)]
pub fn begun(state: &ThreadState) -> bool {
    let calls = control(Control::CALLS);
    state.op_enter != 0 && calls != 0 && u64::from(state.entry_stretch) >= calls
}

/// `sys_exit(regs, ret)`.
#[btf_tracepoint]
pub fn sys_exit(ctx: BtfTracePointContext) -> u32 {
    let regs: *const c_void = ctx.arg(0);
    let result: i64 = ctx.arg(1);
    // 0: the calls of all processes are counted.
    let some = if control(Control::CALLS) != 0 {
        0
    } else {
        let stretch = control(Control::TOUCHED_CALLS);
        if stretch == 0 || cpu::ignores(regs, stretch) {
            return 0;
        }
        stretch
    };
    // SAFETY: a typed argument.
    let nr = unsafe { syscall_nr(regs) };
    let Some(info) = syscall(nr) else {
        return 0;
    };
    if info.op == 0 && info.marks & mark::CHANGES_DESCRIPTORS == 0 {
        if info.marks & mark::YIELDS != 0 {
            yields();
        }
        return 0;
    }
    let Some((state, tid)) = calling(regs) else {
        return 0;
    };
    // SAFETY: written by this thread's own probes alone; the entry outlives this program.
    let state = unsafe { &mut *state };
    if some != 0 && !touched(state.tgid) {
        cpu::ignore(some);
        return 0;
    }
    // A file is not told from a pipe: calls on memory alone are what they are.
    // SAFETY: a typed argument.
    if !object::are_told() && !unsafe { on_memory(&info, regs) } {
        state.op_enter = 0;
        return 0;
    }
    account::pace();
    if info.op == 0 {
        // SAFETY: a typed argument.
        unsafe { descriptors_changed(state, &info, regs) };
        return 0;
    }
    let entered = state.op_enter;
    let matched = begun(state) && u64::from(state.op_nr) == nr as u64;
    state.op_enter = 0;
    let mut done = Done {
        tid,
        op: info.op,
        bytes: 0,
        ns: 0,
        failed: result < 0,
        timed: matched,
        at: 0,
    };
    let mut on = Object::default();
    if matched {
        // SAFETY: clock helper.
        done.at = unsafe { bpf_ktime_get_ns() };
        done.ns = done.at.saturating_sub(entered);
        on = state.op_object;
    } else if state.entry_stretch != 0
        && u64::from(state.entry_stretch) == control(Control::ENTRIES)
    {
        emit::lost(Loss::UnmatchedExit);
    }
    if on.class == 0 {
        // SAFETY: a typed argument.
        on = unsafe {
            if info.op == CLOSE && result == -EBADF {
                on
            } else if info.op == CLOSE {
                object::resolve_closed(state, syscall_arg(regs, info.fd))
            } else {
                target(state, &info, regs)
            }
        };
    }
    // SAFETY: a typed argument.
    unsafe { finish(state, &info, regs, result, done, on) };
    0
}

/// Forgets what descriptors refer to that a call may have changed.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer.
#[inline(always)]
unsafe fn descriptors_changed(state: &mut ThreadState, info: &SyscallInfo, regs: *const c_void) {
    if info.marks & mark::REPLACES != 0 {
        // SAFETY: as promised by the caller.
        object::replaced(state, unsafe { syscall_arg(regs, 1) });
    } else {
        object::forget_all(state);
    }
    if info.marks & mark::RING != 0 {
        state.flags |= USES_RING;
    }
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
    mut done: Done,
    mut on: Object,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        if info.op == CLOSE {
            if result != -EBADF {
                object::closed(state, syscall_arg(regs, info.fd));
            }
        } else if info.op == OPEN && !done.failed {
            let size;
            (on, size) = object::resolve_opened(state, result as u64);
            if on.class == Class::File as u32 || on.class == Class::Tmpfs as u32 {
                done.bytes = size;
            }
        } else if info.path != NO_ARG && on.class == 0 {
            on.fileset = fileset::of_call(regs, info.path, state.tgid);
        } else if info.op == BRK && !done.failed {
            done.bytes = break_moved(state.tgid, on.id, result as u64);
            on.id = 0;
        } else if info.op == MMAP || info.op == MREMAP {
            // Their result is an address.
            done.failed = (-4095..0).contains(&result);
        }
        if info.len != NO_ARG {
            if !done.failed {
                done.bytes = syscall_arg(regs, info.len);
            }
        } else if !done.failed
            && (info.op == READ || info.op == WRITE || info.op == COPY || info.op == GETDENTS)
        {
            done.bytes = result as u64;
        }
        if info.fd != NO_ARG
            && info.at_flags == NO_ARG
            && on.class == 0
            && !done.failed
            && (done.timed || info.op != CLOSE)
        {
            emit::lost(Loss::UnresolvedFd);
        }
        let run = account::call(&done, &on);
        touch::note(state, run, &done, &on);
        if info.op == COPY && info.fd2 != NO_ARG {
            let onto = object::resolve(state, syscall_arg(regs, info.fd2));
            done.op = COPY_OUT;
            account::operation(&done, &onto);
            touch::note(state, None, &done, &onto);
        }
    }
}
