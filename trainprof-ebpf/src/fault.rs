//! Sampled page faults: which code touches memory that it did not have before.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns, generated::bpf_probe_read_user},
    macros::perf_event,
    programs::PerfEventContext,
};
use trainprof_common::{
    arch,
    event::{FAULT_IN_KERNEL, FAULT_WRITE_TO_SHARED, FaultEvent, Kind},
};

use crate::{
    emit,
    follow::running,
    kernel::{current_ids, current_task, member, user_regs},
    maps::{Control, FAULT_PACE, FaultPace, control},
    python, stack,
};

/// Nanoseconds in which [`Control::FAULTS_IN_WINDOW`] samples are taken before fewer faults are looked at.
const WINDOW_NS: u64 = 200_000_000;
/// A CPU that has taken no sample for so many nanoseconds begins anew.
const STALE_NS: u64 = 1_000_000_000;
const MOST_PERIOD: u32 = 1 << 16;

/// Runs at the beginning of every so many faults of any process on this CPU, in the context of the thread.
#[perf_event]
pub fn fault(ctx: PerfEventContext) -> u32 {
    let (tgid, tid) = current_ids();
    if tid == 0 || running(tid).is_none() {
        return 0;
    }
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(weight) = due(now) else { return 0 };
    // SAFETY: the context begins with the registers of what faulted; the verifier checks each access.
    let (mode, address): (u64, u64) = unsafe {
        (
            member(ctx.as_ptr(), arch::REGS_MODE as u32),
            member(ctx.as_ptr(), arch::PERF_ADDRESS as u32),
        )
    };
    // A fault on a page that can be read is one for writing: the page is shared, and gets copied.
    let mut byte = 0_u8;
    // SAFETY: one byte of room; the helper fails where there is no page yet, and never brings one in.
    let readable = unsafe { bpf_probe_read_user((&raw mut byte).cast(), 1, address as *const _) };
    let mut what = 0;
    if readable == 0 {
        what |= FAULT_WRITE_TO_SHARED;
    }
    if !arch::in_user_mode(mode) {
        what |= FAULT_IN_KERNEL;
    }
    // The registers that the thread entered the kernel with: by this fault, or by the call that faulted.
    let regs = user_regs(current_task());
    // SAFETY: typed registers of the current task.
    let (ip, sp, bp): (u64, u64, u64) = unsafe {
        (
            member(regs, arch::REGS_IP as u32),
            member(regs, arch::REGS_SP as u32),
            member(regs, arch::REGS_FP as u32),
        )
    };
    emit::built::<FaultEvent>(|event| {
        // SAFETY: room for one event, written whole but for the stack beyond its length.
        unsafe {
            (*event).kind = Kind::Fault as u32;
            (*event).tid = tid;
            (*event).at = now;
            (*event).address = address;
            (*event).tgid = tgid;
            (*event).weight = weight;
            (*event).what = what;
            (*event).pad = 0;
            python::copy(tid, &raw mut (*event).python);
            stack::copy(ip, sp, bp, &raw mut (*event).stack);
        }
    });
    0
}

/// Whether this fault is sent, and if so for how many looks at faults it stands. The next one is picked by count and
/// chance alone, never by time: bursts and single faults then have the same odds. After each window the odds change.
#[inline(always)]
fn due(now: u64) -> Option<u32> {
    let pace: *mut FaultPace = FAULT_PACE.get_ptr_mut(0)?;
    // SAFETY: a per-CPU slot. Faults do not nest: the kernel sends none while one is being sent.
    unsafe {
        let pace = &mut *pace;
        pace.since += 1;
        if pace.left > 1 {
            pace.left -= 1;
            if now - pace.sampled > STALE_NS {
                // Many faults made it rare, and now there are few. What was passed over since is given up.
                pace.left = 0;
                pace.since = 0;
                pace.period = 1;
            }
            return None;
        }
        let most = control(Control::FAULTS_IN_WINDOW) as u32;
        if now - pace.window > WINDOW_NS {
            if pace.in_window * 2 < most && pace.period > 1 {
                pace.period /= 2;
            }
            pace.window = now;
            pace.in_window = 0;
        } else if pace.in_window >= most && pace.period < MOST_PERIOD {
            pace.period *= 2;
        }
        if pace.period == 0 {
            pace.period = 1;
        }
        pace.in_window += 1;
        pace.sampled = now;
        // Evenly from 1 to 2 * period - 1, so the period on average.
        pace.left = 1 + bpf_get_prandom_u32() % (2 * pace.period - 1);
        let weight = pace.since;
        pace.since = 0;
        Some(weight)
    }
}
