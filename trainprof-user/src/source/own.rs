//! Our own clock and our own cost.

use std::mem::MaybeUninit;

use crate::time::{Anchor, KtimeNs};

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid pointer; both clocks exist on every kernel that we run on.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The kernel time that probes stamp their facts with.
pub fn now() -> KtimeNs {
    KtimeNs(clock(libc::CLOCK_MONOTONIC))
}

/// Ties kernel time to wall-clock time: of several bracketed readings the tightest.
pub fn anchor() -> Anchor {
    (0..8)
        .map(|_| {
            let before = now().0;
            let unix_ns = clock(libc::CLOCK_REALTIME);
            let after = now().0;
            Anchor {
                ktime: KtimeNs(before.midpoint(after)),
                unix_ns,
                uncertainty_ns: (after - before) / 2,
            }
        })
        .min_by_key(|anchor| anchor.uncertainty_ns)
        .unwrap_or(Anchor {
            ktime: now(),
            unix_ns: 0,
            uncertainty_ns: u64::MAX,
        })
}

/// CPU nanoseconds (user and system) and the largest resident size in bytes of this process
/// (getrusage(2)).
pub fn usage() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a valid pointer; RUSAGE_SELF cannot fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    (
        ns(usage.ru_utime) + ns(usage.ru_stime),
        usage.ru_maxrss as u64 * 1024,
    )
}
