//! Interrupt context: a wake-up inside a handler says nothing about the thread below it.
//!
//! x86-64's preemption counter has no address that a program could ask for on every kernel, so the
//! depth of handlers is counted at their own tracepoints.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::maps::IRQ_DEPTH;

const HARD: usize = 0;
const SOFT: usize = 1;

#[inline(always)]
fn enter(level: usize) -> u32 {
    if let Some(depth) = IRQ_DEPTH.get_ptr_mut(0) {
        // SAFETY: a per-CPU slot; a nested handler restores what it found.
        unsafe { (*depth)[level] += 1 };
    }
    0
}

#[inline(always)]
fn exit(level: usize) -> u32 {
    if let Some(depth) = IRQ_DEPTH.get_ptr_mut(0) {
        // SAFETY: as above. An exit without an entry (attached inside the handler) is ignored.
        unsafe {
            if (*depth)[level] > 0 {
                (*depth)[level] -= 1;
            }
        }
    }
    0
}

/// How many handlers this CPU is inside of: of hardware interrupts, and of softirqs.
#[inline(always)]
pub fn depth() -> (u32, u32) {
    match IRQ_DEPTH.get(0) {
        Some(depth) => (depth[HARD], depth[SOFT]),
        None => (0, 0),
    }
}

/// Whether this CPU is inside a hardware interrupt's handler, and inside a softirq.
#[inline(always)]
pub fn context() -> (bool, bool) {
    let (hard, soft) = depth();
    (hard > 0, soft > 0)
}

macro_rules! handler {
    ($entry:ident, $exit:ident, $level:expr) => {
        #[btf_tracepoint]
        pub fn $entry(_ctx: BtfTracePointContext) -> u32 {
            enter($level)
        }

        #[btf_tracepoint]
        pub fn $exit(_ctx: BtfTracePointContext) -> u32 {
            exit($level)
        }
    };
}

handler!(irq_handler_entry, irq_handler_exit, HARD);
handler!(hrtimer_expire_entry, hrtimer_expire_exit, HARD);
handler!(call_function_single_entry, call_function_single_exit, HARD);
handler!(irq_work_entry, irq_work_exit, HARD);
handler!(softirq_entry, softirq_exit, SOFT);
