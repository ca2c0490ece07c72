//! The scheduler: when a followed thread is on a CPU, wants one, or waits; on what, and who woke it.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, bpf_probe_read_user},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use trainprof_common::{
    cell::WaitKey,
    event::{Kind, WaitEvent},
    loss::Loss,
    offsets::MISSING,
    op::{Class, NO_ARG, WaitOn, mark},
    thread::{
        NR_FAULT, NR_PREEMPTED, NR_STOPPED, NR_UNSEEN, NR_URING_WORKER, Object, State, ThreadState,
        WakerKind,
    },
};

use crate::{
    account,
    cpu::{self, Stays},
    emit, files, fileset,
    follow::thread,
    irq,
    kernel::{
        counter, current_ids, current_task, fact, fault_number, member, offset, syscall_arg,
        syscall_nr, user_regs,
    },
    maps::{Control, control, syscall},
    object,
};

/// Flags of `task_struct` (include/linux/sched.h).
pub const PF_IO_WORKER: u32 = 0x10;
const PF_KTHREAD: u32 = 0x0020_0000;
/// `TASK_STOPPED`, `TASK_TRACED` and `TASK_FROZEN`: whoever is in such a state runs again when it is told to (include/linux/sched.h).
const STOPPED: u32 = 0x4 | 0x8 | 0x8000;
/// `TASK_INTERRUPTIBLE`.
const INTERRUPTIBLE: u32 = 0x1;
/// `TASK_UNINTERRUPTIBLE`, which `TASK_KILLABLE` has too.
const UNINTERRUPTIBLE: u32 = 0x2;
/// No descriptor: a system call looks at the lower half of the register.
const NO_FD: u64 = u64::MAX;

/// A wake-up may be seen on another CPU before its wait is: how much earlier still belongs to the wait.
const LATENESS_NS: u64 = 20_000;

/// `sched_switch(preempt, prev, next, prev_state)`.
#[btf_tracepoint]
pub fn sched_switch(ctx: BtfTracePointContext) -> u32 {
    let preempted: u64 = ctx.arg(0);
    let prev: *const c_void = ctx.arg(1);
    let next: *const c_void = ctx.arg(2);
    let prev_state: u64 = ctx.arg(3);
    // SAFETY: typed arguments.
    let (prev_tid, next_tid): (u32, u32) = unsafe {
        (
            member(prev, offset!(task_pid)),
            member(next, offset!(task_pid)),
        )
    };
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(cpu) = cpu::this() else {
        return 0;
    };
    cpu.irq.switched();
    if prev_tid != 0
        && let Some(state) = cpu.running(prev_tid)
    {
        let runnable = preempted as u8 != 0 || prev_state as u32 == 0;
        // SAFETY: the CPU that switches a thread writes its state; the entry outlives this program.
        unsafe {
            switched_out(
                &mut *state,
                prev,
                prev_tid,
                now,
                runnable,
                prev_state as u32,
            )
        };
        account::pace();
    }
    if let Some(state) = cpu.comes(next_tid) {
        // SAFETY: as above.
        unsafe { switched_in(&mut *state, next, next_tid, (prev_tid, &cpu.stays), now) };
    }
    cpu.stays.note(prev_tid, now);
    0
}

/// # Safety
/// `task` is a typed pointer to the task that `state` describes, and it is the current one.
#[inline(always)]
unsafe fn switched_out(
    state: &mut ThreadState,
    task: *const c_void,
    tid: u32,
    now: u64,
    runnable: bool,
    why: u32,
) {
    // SAFETY: as promised by the caller.
    unsafe { is_running(state, task, tid, now) };
    state.run_ns += now.saturating_sub(state.since);
    state.since = now;
    if state.woken_at != 0 && now.saturating_sub(state.woken_at) > LATENESS_NS {
        state.woken_at = 0;
    }
    // SAFETY: a typed pointer.
    let majors = unsafe { counter(task, offset!(task_maj_flt)) } as u32;
    if majors != state.maj_flt_seen {
        let count = majors.wrapping_sub(state.maj_flt_seen);
        state.maj_flt_seen = majors;
        account::faults(tid, &state.fault_object, count);
    }
    if runnable {
        state.state = State::Preempted as u32;
        state.nr = NR_PREEMPTED;
        state.iowait = 0;
        state.object = Object::default();
        return;
    }
    state.state = State::Wait as u32;
    if why & STOPPED != 0 {
        state.nr = NR_STOPPED;
        state.iowait = 0;
        state.object = Object::default();
        return;
    }
    // SAFETY: a typed pointer.
    unsafe {
        state.iowait = in_iowait(task);
        blocked_on(state, task, why);
    }
}

/// The thread is on this CPU: if the kernel did not show that it was switched in, what it accounts as CPU time came last.
///
/// # Safety
/// `task` is a typed pointer to the task that `state` describes, and it is the current one.
#[inline(always)]
pub unsafe fn is_running(state: &mut ThreadState, task: *const c_void, tid: u32, now: u64) {
    // SAFETY: a typed pointer.
    let ran = unsafe { exec_since_seen(state, task) };
    if state.state != State::Run as u32 {
        match ran {
            Some(ran) => {
                came_back_unseen(tid, now.saturating_sub(ran));
            }
            None => emit::lost(Loss::UnmatchedSwitch),
        }
    }
}

/// # Safety
/// `task` is a typed pointer.
#[inline(always)]
unsafe fn in_iowait(task: *const c_void) -> u8 {
    let byte = fact!(iowait_byte);
    if byte == MISSING {
        return 0;
    }
    let mask = fact!(iowait_mask);
    // SAFETY: as above; the verifier takes a load of the byte that holds a bit field.
    let bits: u8 = unsafe { member(task, byte) };
    u8::from(u32::from(bits) & mask != 0)
}

/// Notes the blocking system call and its object.
///
/// # Safety
/// `task` is a typed pointer to the current task.
#[inline(always)]
unsafe fn blocked_on(state: &mut ThreadState, task: *const c_void, why: u32) {
    // SAFETY: as above.
    let flags: u32 = unsafe { member(task, offset!(task_flags)) };
    if flags & PF_IO_WORKER != 0 {
        state.nr = NR_URING_WORKER;
        state.object = Object::default();
        return;
    }
    let regs = user_regs(task);
    // SAFETY: typed registers.
    let nr = unsafe { syscall_nr(regs) };
    if nr < 0 {
        // A fault on a file is not interrupted by signals. What sleeps so on its way back to user mode is in the freezer of
        // control groups (do_freezer_trap in kernel/signal.c), or in a fault that a user-space pager serves, which no
        // training job is known to use.
        let frozen = why & INTERRUPTIBLE != 0;
        state.nr = if frozen { NR_STOPPED } else { NR_FAULT };
        // Other faults wait for the memory map that another thread changes, or for memory: for no file.
        // SAFETY: a typed pointer.
        let on_file =
            state.iowait != 0 || unsafe { fault_number(task) } == Some(state.filling_fault);
        state.object = if !frozen && on_file {
            state.fault_object
        } else {
            Object::default()
        };
        return;
    }
    state.object = Object::default();
    let Some(info) = syscall(nr) else {
        state.nr = nr as i16;
        return;
    };
    let info = &info;
    if info.marks & mark::SLEEPS != 0 && why & UNINTERRUPTIBLE != 0 {
        // The call's own sleep is over, or not begun: the kernel touches the thread's memory, on its way out that of its
        // restartable sequence (rseq_handle_notify_resume in kernel/rseq.c), and waits for the memory map.
        state.nr = NR_FAULT;
        return;
    }
    state.nr = nr as i16;
    if files::begun(state) && u64::from(state.op_nr) == nr as u64 && state.op_object.class != 0 {
        state.object = state.op_object;
        return;
    }
    let mut fd = NO_FD;
    // SAFETY: typed registers; the poll set is user memory of the current task.
    unsafe {
        if info.wait_on == WaitOn::Address as u8 {
            state.object.id = syscall_arg(regs, 0);
            return;
        }
        if info.wait_on == WaitOn::PollSet as u8 {
            if let Ok(first) = bpf_probe_read_user(syscall_arg(regs, 0) as *const u32) {
                fd = u64::from(first);
            }
        } else if files::on_memory(info, regs) {
            state.object.class = Class::Memory as u32;
            return;
        } else if files::on_descriptor(info, regs) {
            fd = syscall_arg(regs, info.fd);
        }
        if fd != NO_FD {
            state.object = object::resolve(state, fd);
        }
        // A call that names a path waits on the path's directory: all that is known of it until it returns.
        if state.object.class == 0 && info.path != NO_ARG {
            state.object.fileset = fileset::of_call(regs, info.path, state.tgid);
        }
    }
}

/// CPU time since the last call, by the kernel's own account; `None` when that cannot be read.
///
/// # Safety
/// `task` is a typed pointer to the task that `state` describes.
#[inline(always)]
unsafe fn exec_since_seen(state: &mut ThreadState, task: *const c_void) -> Option<u64> {
    if offset!(task_exec_ns) == MISSING {
        return None;
    }
    // SAFETY: a typed pointer.
    let total: u64 = unsafe { member(task, offset!(task_exec_ns)) };
    let ran = total.saturating_sub(state.exec_seen);
    state.exec_seen = total;
    Some(ran)
}

/// # Safety
/// `task` is a typed pointer to the task that `state` describes.
#[inline(always)]
unsafe fn switched_in(
    state: &mut ThreadState,
    task: *const c_void,
    tid: u32,
    left: (u32, &Stays),
    now: u64,
) {
    if state.state == State::Run as u32 {
        // The kernel did not show that it was switched out: it ran first, and what then kept it away is not known.
        // SAFETY: as promised by the caller.
        match unsafe { exec_since_seen(state, task) } {
            Some(ran) => {
                let ran = ran.min(now.saturating_sub(state.since));
                state.run_ns += ran;
                state.since += ran;
                state.state = State::Unseen as u32;
                state.object = Object::default();
            }
            None => emit::lost(Loss::UnmatchedSwitch),
        }
    }
    came_back(state, tid, Some(left), now);
}

// As the next one, when the switch was not shown. Rare: a global function, which the verifier looks at once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn came_back_unseen(tid: u32, at: u64) -> u32 {
    if let Some(state) = thread(tid) {
        // SAFETY: called on the CPU that switches the thread; the entry outlives this program.
        came_back(unsafe { &mut *state }, tid, None, at);
    }
    0
}

/// The thread is on a CPU since `now`: accounts for the time that it was not. `left`: the thread that leaves this CPU for it, and
/// who was there before.
#[inline(always)]
fn came_back(state: &mut ThreadState, tid: u32, left: Option<(u32, &Stays)>, now: u64) {
    let now = now.max(state.since);
    let from = state.since;
    let was = state.state;
    state.state = State::Run as u32;
    state.since = now;
    let woken_at = state.woken_at;
    state.woken_at = 0;
    if was == State::Run as u32 {
        return;
    }
    let mut nr = state.nr;
    let mut woken = now;
    let mut waker = 0;
    let mut waker_kind = WakerKind::Unknown as u8;
    if was == State::Preempted as u32 {
        woken = from;
        state.preemptions += 1;
        state.preempted_ns += now - from;
    } else {
        if woken_at != 0 {
            woken = woken_at.max(from).min(now);
            waker = state.woken_by;
            waker_kind = state.woken_kind;
        }
        if was == State::Unseen as u32 {
            nr = NR_UNSEEN;
        }
        let class = state.object.class;
        let in_fileset = class == Class::File as u32
            || class == Class::Directory as u32
            || class == Class::Tmpfs as u32;
        let key = WaitKey {
            // Files are told apart by their file set alone.
            object: if in_fileset { 0 } else { state.object.id },
            tid,
            waker,
            fileset: state.object.fileset,
            nr,
            class: class as u8,
            waker_kind,
        };
        account::wait(key, woken - from, now - woken, state.iowait != 0);
        if nr == NR_FAULT && in_fileset {
            account::fault_wait(tid, &state.object, now - from);
        }
    }
    if now - from >= control(Control::EVENT_MIN_NS) {
        emit::event(&WaitEvent {
            kind: Kind::Wait as u32,
            tid,
            from,
            woken,
            to: now,
            object: state.object,
            waker,
            nr,
            waker_kind,
            iowait: state.iowait,
            ran_before: left.map_or(0, |(leaving, stays)| stays.most(leaving, woken, now)),
            pad: 0,
        });
    }
}

/// `sched_waking(p)`: the current context wakes `p`.
#[btf_tracepoint]
pub fn sched_waking(ctx: BtfTracePointContext) -> u32 {
    let woken: *const c_void = ctx.arg(0);
    // SAFETY: a typed argument.
    let tid: u32 = unsafe { member(woken, offset!(task_pid)) };
    let Some(state) = cpu::this().and_then(|cpu| cpu.find(tid)) else {
        return 0;
    };
    // SAFETY: the kernel serialises wake-ups of one task; the entry outlives this program.
    let state = unsafe { &mut *state };
    let (waker, kind) = waker();
    state.woken_by = waker;
    state.woken_kind = kind as u8;
    // SAFETY: clock helper.
    state.woken_at = unsafe { bpf_ktime_get_ns() };
    0
}

/// Who wakes: a thread on purpose, or an interrupt on top of an innocent one.
#[inline(always)]
fn waker() -> (u32, WakerKind) {
    let (hard, soft) = irq::context();
    let (_, tid) = current_ids();
    if hard || (tid == 0 && !soft) {
        return (0, WakerKind::Interrupt);
    }
    // On an idle CPU it is the network's all the same; time-outs of system calls end in hard interrupts.
    if tid == 0 {
        return (0, WakerKind::Softirq);
    }
    let task = current_task();
    // SAFETY: a typed pointer.
    if unsafe { member::<u32>(task, offset!(task_flags)) } & PF_KTHREAD != 0 {
        return if soft {
            (0, WakerKind::Softirq)
        } else {
            (tid, WakerKind::Kernel)
        };
    }
    if !soft {
        return (tid, WakerKind::Thread);
    }
    // A loopback send runs the receiving side's softirq in the sender's own context.
    // SAFETY: typed registers of the current task.
    let nr = unsafe { syscall_nr(user_regs(task)) };
    if let Some(info) = syscall(nr)
        && info.marks & mark::SENDS != 0
    {
        return (tid, WakerKind::Sender);
    }
    (0, WakerKind::Softirq)
}
