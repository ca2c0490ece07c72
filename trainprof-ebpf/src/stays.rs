//! Who had a CPU while another thread wanted it: the longest stay, not the last one. Kernel threads run for microseconds between
//! two others, and are not what a thread waited for.

use crate::maps::STAYS;

/// The stays on a CPU that are remembered.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Stays {
    /// Its last switch: the thread that leaves it now came then.
    pub at: u64,
    /// The longest of the last stays: when it ended, how long it was, whose it was.
    pub end: u64,
    pub ns: u64,
    pub tid: u32,
    pub pad: u32,
}

/// Who had this CPU for most of the time between `wanted` and `now`; `leaving` leaves it now, and was not noted yet. 0: nobody.
#[inline(always)]
pub fn most(leaving: u32, wanted: u64, now: u64) -> u32 {
    let Some(stays) = STAYS.get_ptr_mut(0) else {
        return leaving;
    };
    // SAFETY: a per-CPU slot, written in switches alone, in which interrupts are off.
    let stays = unsafe { &*stays };
    let last = now.saturating_sub(stays.at.max(wanted));
    let before = stays.end.saturating_sub(wanted).min(stays.ns);
    if before > last { stays.tid } else { leaving }
}

/// A stay as long as this (ns) is remembered whatever was before it.
const LONG_NS: u64 = 500_000;

/// Notes that `leaving` leaves this CPU. A shorter stay is remembered when it is longer than what is left of the one that is
/// remembered, which lasts as long as it was.
#[inline(always)]
pub fn note(leaving: u32, now: u64) {
    let Some(stays) = STAYS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: as above.
    let stays = unsafe { &mut *stays };
    let came = stays.at;
    let ns = now.saturating_sub(came);
    stays.at = now;
    // How long who was there first had been there is not known.
    let left = stays.ns.saturating_sub(now.saturating_sub(stays.end));
    if came != 0 && (ns >= LONG_NS || ns >= left) {
        (stays.end, stays.ns, stays.tid) = (now, ns, leaving);
    }
}
