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

/// CPU nanoseconds that this host has spent on anything but idling (/proc/stat, proc(5)), in steps of a tick.
pub fn host_busy_ns() -> Option<u64> {
    busy_ns(
        &std::fs::read_to_string("/proc/stat").ok()?,
        // SAFETY: sysconf has no preconditions.
        u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?,
    )
}

fn busy_ns(stat: &str, ticks_per_s: u64) -> Option<u64> {
    let mut fields = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace();
    let mut field = || fields.next()?.parse::<u64>().ok();
    let (user, nice, system) = (field()?, field()?, field()?);
    let (_idle, _iowait) = (field()?, field()?);
    let (irq, softirq) = (field()?, field()?);
    Some((user + nice + system + irq + softirq) * (1_000_000_000 / ticks_per_s.max(1)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        let stat = "cpu  10 1 5 1000 200 2 3 0 0 0\ncpu0 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ns(stat, 100), Some(21 * 10_000_000));
        for bad in ["", "cpu", "cpu  1 2 3", "intr 5"] {
            assert_eq!(busy_ns(bad, 100), None, "{bad:?}");
        }
    }
}
