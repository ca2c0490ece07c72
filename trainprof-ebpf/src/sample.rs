//! Clock samples: what a followed thread is doing on its CPU, looked at fifty to a hundred times a second.

use aya_ebpf::{
    EbpfContext, helpers::bpf_ktime_get_ns, macros::perf_event, programs::PerfEventContext,
};
use trainprof_common::{
    arch,
    event::{Kind, SampleEvent},
    thread::{NR_FAULT, NR_PREEMPTED, NR_URING_WORKER},
};

use crate::{
    emit,
    follow::running,
    irq,
    kernel::{current_ids, current_task, member, offset, syscall_nr, user_regs},
    sched::PF_IO_WORKER,
};

/// The sampling clock is itself a high-resolution timer, whose handler `irq` counts where it can.
const OWN_DEPTH: u32 = 1;

/// Runs in the timer's interrupt, on top of whatever this CPU did.
#[perf_event]
pub fn sample(ctx: PerfEventContext) -> u32 {
    let (tgid, tid) = current_ids();
    if tid == 0 || running(tid).is_none() {
        return 0;
    }
    // SAFETY: the context begins with the registers of what was interrupted; the verifier checks the access.
    let (mode, ip): (u64, u64) = unsafe {
        (
            member(ctx.as_ptr(), arch::REGS_MODE as u32),
            member(ctx.as_ptr(), arch::REGS_IP as u32),
        )
    };
    let (nr, ip) = if arch::in_user_mode(mode) {
        (NR_PREEMPTED, ip)
    } else {
        match in_kernel() {
            Some(nr) => (nr, 0),
            None => return 0,
        }
    };
    emit::event(&SampleEvent {
        kind: Kind::Sample as u32,
        tid,
        // SAFETY: clock helper.
        at: unsafe { bpf_ktime_get_ns() },
        ip,
        tgid,
        nr,
        pad: 0,
    });
    0
}

/// What brought the current thread into the kernel; `None` when that cannot be told.
#[inline(always)]
fn in_kernel() -> Option<i16> {
    let (hard, soft) = irq::depth();
    if hard > OWN_DEPTH {
        return None;
    }
    let task = current_task();
    // SAFETY: a typed pointer.
    if unsafe { member::<u32>(task, offset!(task_flags)) } & PF_IO_WORKER != 0 {
        return Some(NR_URING_WORKER);
    }
    // SAFETY: typed registers of the current task.
    let nr = unsafe { syscall_nr(user_regs(task)) };
    if nr >= 0 {
        // A softirq on top of a system call is time of that call: it may be what the call caused.
        return Some(nr as i16);
    }
    // Not in a call: an exception, unless a softirq came with an interrupt of user mode.
    if soft > 0 { None } else { Some(NR_FAULT) }
}
