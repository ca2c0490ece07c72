//! Our own cost. The clock is [`crate::env::clock`].

use std::mem::MaybeUninit;

pub use crate::env::clock::{anchor, now, thread_cpu_ns};

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
