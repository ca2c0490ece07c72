//! Interrupt context: a wake-up inside a handler says nothing about the thread below it.
//!
//! The preemption counter has no address that a program could ask for on every kernel and processor, so the
//! depth of handlers is counted at their own tracepoints.
//!
//! An exit may be missed: no program runs on top of itself (`prog->active`, kernel/trace/bpf_trace.c), and handlers of timers
//! run in softirqs too, where a hardware interrupt's timer may come on top of the program at their exit. A thread is never
//! switched inside a handler, so each switch begins anew.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::maps::CPU;

/// Handlers that a CPU is inside of: of hardware interrupts, and of softirqs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Depth {
    hard: u32,
    soft: u32,
}

impl Depth {
    /// A thread is switched: no hardware interrupt's handler is under way. (Softirqs may be where the kernel is a real-time one.)
    #[inline(always)]
    pub fn switched(&mut self) {
        self.hard = 0;
    }
}

/// The depth of one kind of handlers on this CPU.
#[inline(always)]
fn level(of: impl Fn(*mut Depth) -> *mut u32) -> Option<*mut u32> {
    // SAFETY: a per-CPU slot, valid while the program runs; no reference is made.
    CPU.get_ptr_mut(0)
        .map(|cpu| of(unsafe { &raw mut (*cpu).irq }))
}

#[inline(always)]
pub fn hard(depth: *mut Depth) -> *mut u32 {
    // SAFETY: `depth` points to this CPU's slot.
    unsafe { &raw mut (*depth).hard }
}

#[inline(always)]
fn soft(depth: *mut Depth) -> *mut u32 {
    // SAFETY: as above.
    unsafe { &raw mut (*depth).soft }
}

#[inline(always)]
pub fn enter(of: impl Fn(*mut Depth) -> *mut u32) -> u32 {
    if let Some(depth) = level(of) {
        // SAFETY: a per-CPU slot; a nested handler restores what it found.
        unsafe { *depth += 1 };
    }
    0
}

#[inline(always)]
pub fn exit(of: impl Fn(*mut Depth) -> *mut u32) -> u32 {
    if let Some(depth) = level(of) {
        // SAFETY: as above. An exit without an entry (attached inside the handler) is ignored.
        unsafe {
            if *depth > 0 {
                *depth -= 1;
            }
        }
    }
    0
}

/// How many handlers this CPU is inside of: of hardware interrupts, and of softirqs.
#[inline(always)]
pub fn depth() -> (u32, u32) {
    let read = |level: Option<*mut u32>| {
        // SAFETY: a per-CPU slot.
        level.map_or(0, |level| unsafe { *level })
    };
    (read(level(hard)), read(level(soft)))
}

/// Whether this CPU is inside a hardware interrupt's handler, and inside a softirq.
#[inline(always)]
pub fn context() -> (bool, bool) {
    let (hard, soft) = depth();
    (hard > 0, soft > 0)
}

/// Programs at a pair of tracepoints around a kind of handlers.
macro_rules! handler {
    ($entry:ident, $exit:ident, $level:expr) => {
        #[btf_tracepoint]
        pub fn $entry(_ctx: BtfTracePointContext) -> u32 {
            $crate::irq::enter($level)
        }

        #[btf_tracepoint]
        pub fn $exit(_ctx: BtfTracePointContext) -> u32 {
            $crate::irq::exit($level)
        }
    };
}

pub(crate) use handler;

handler!(irq_handler_entry, irq_handler_exit, hard);
handler!(hrtimer_expire_entry, hrtimer_expire_exit, hard);
handler!(softirq_entry, softirq_exit, soft);
