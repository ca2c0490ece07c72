//! The one place that sends events to user space and counts what could not be sent.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use trainprof_common::{Wire, loss::Loss};

use crate::maps::{EVENTS, LOSSES};

/// User space is woken early only when so many bytes wait for it; else it drains at its own pace.
const WAKE_AT_BYTES: u64 = 1 << 20;

/// Sends one event, whole; counts it as lost when there is no room.
#[inline(always)]
pub fn event<T: Wire>(event: &T) {
    if EVENTS.output::<T>(event, wake()).is_err() {
        lost(Loss::RingFull);
    }
}

/// Sends one event that is too large to be built elsewhere: `build` writes it where user space will read it.
#[inline(always)]
pub fn built<T: Wire>(build: impl FnOnce(*mut T)) {
    match EVENTS.reserve::<T>(0) {
        Some(mut room) => {
            build(room.as_mut_ptr());
            room.submit(wake());
        }
        None => lost(Loss::RingFull),
    }
}

#[inline(always)]
fn wake() -> u64 {
    let wake = if EVENTS.query(u64::from(BPF_RB_AVAIL_DATA)) >= WAKE_AT_BYTES {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    u64::from(wake)
}

/// Counts one lost fact.
#[inline(always)]
pub fn lost(reason: Loss) {
    lost_many(reason, 1);
}

/// Counts lost facts.
#[inline(always)]
pub fn lost_many(reason: Loss, facts: u64) {
    count_lost(reason as u32, facts);
}

// A global function: at its call the paths that the verifier follows meet again.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn count_lost(reason: u32, facts: u64) -> u32 {
    if let Some(count) = LOSSES.get_ptr_mut(reason) {
        // SAFETY: a per-CPU slot, and tracing programs do not migrate.
        unsafe { *count += facts };
    }
    0
}
