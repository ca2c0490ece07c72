//! The clock of sources: kernel time, and what ties it to wall-clock time.

use crate::time::{Anchor, KtimeNs};

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid pointer; these clocks exist on every kernel that we run on.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The kernel time that probes stamp their facts with.
pub fn now() -> KtimeNs {
    KtimeNs(clock(libc::CLOCK_MONOTONIC))
}

/// Nanoseconds since boot, those included in which the host slept: what the kernel tells beginnings of processes in.
pub fn since_boot_ns() -> u64 {
    clock(libc::CLOCK_BOOTTIME)
}

/// CPU nanoseconds of this thread.
pub fn thread_cpu_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
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
/// CPU nanoseconds of all threads of a process, ended ones too (clock_getcpuclockid(3)); `None`: there is none of that id.
pub fn process_cpu_ns(pid: libc::pid_t) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: a valid pointer.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid pointer.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (read == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
