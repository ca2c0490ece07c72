//! The whole host: pressure stall totals, CPU time, page cache and memory that is left.

use std::path::Path;

use super::{
    stalls,
    text::{kilobytes, number},
};
use crate::{env::read_text, record::fact::HostSample, time::KtimeNs};

/// /proc/vmstat and /proc/meminfo are a few KiB. Of /proc/stat only the first line is wanted.
const LIMIT: u64 = 64 << 10;

/// `None` when the CPU time cannot be read.
pub(super) fn read(at: KtimeNs) -> Option<HostSample> {
    let text = |name: &str| read_text(&Path::new("/proc").join(name), LIMIT).unwrap_or_default();
    let first = read_text(Path::new("/proc/stat"), 512).ok()?;
    // SAFETY: sysconf has no preconditions.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let time = decode_cpu(&first, 1_000_000_000_u64.checked_div(ticks_per_s)?)?;
    let [cpu, io, memory] = ["cpu", "io", "memory"].map(|what| text(&format!("pressure/{what}")));
    Some(HostSample {
        at,
        pressure: stalls::decode(&cpu, &io, &memory).0,
        busy_ns: time.busy,
        idle_ns: time.idle,
        steal_ns: time.steal,
        refaults_file: number(&text("vmstat"), "workingset_refault_file"),
        memory_available_bytes: kilobytes(&text("meminfo"), "MemAvailable:"),
    })
}

/// CPU time of all CPUs since boot, nanoseconds.
#[derive(Debug, PartialEq, Eq)]
struct CpuTime {
    busy: u64,
    idle: u64,
    steal: u64,
}

/// Decodes the first line of /proc/stat (proc_stat(5)). Time of guests is part of user and nice.
fn decode_cpu(text: &str, tick_ns: u64) -> Option<CpuTime> {
    let mut words = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace();
    let mut next = || words.next()?.parse::<u64>().ok();
    let (user, nice, system, idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
    let (irq, softirq, steal) = (next()?, next()?, next()?);
    let sum = |parts: &[u64]| {
        let ticks = parts.iter().try_fold(0_u64, |sum, n| sum.checked_add(*n))?;
        ticks.checked_mul(tick_ns)
    };
    Some(CpuTime {
        busy: sum(&[user, nice, system, irq, softirq])?,
        idle: sum(&[idle, iowait])?,
        steal: sum(&[steal])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time() {
        let stat = "cpu  816472 3430 186372 1538808 7679 5 1437 734 10 20\ncpu0 1 1 1 1 1 1 1 1\n";
        let expected = CpuTime {
            busy: (816_472 + 3_430 + 186_372 + 5 + 1_437) * 10_000_000,
            idle: (1_538_808 + 7_679) * 10_000_000,
            steal: 734 * 10_000_000,
        };
        assert_eq!(decode_cpu(stat, 10_000_000), Some(expected));
        for bad in [
            "",
            "cpu",
            "cpu0 1 2 3 4 5 6 7 8",
            "cpu  1 2 3 4 5 6 7",
            "cpu  1 2 x 4 5 6 7 8",
            "cpu  18446744073709551615 2 3 4 5 6 7 8",
        ] {
            assert_eq!(decode_cpu(bad, 10_000_000), None, "{bad:?}");
        }
    }

    #[test]
    fn this_host() {
        let sample = read(KtimeNs(3)).expect("a sample");
        assert!(sample.busy_ns > 0 && sample.idle_ns > 0);
        assert!(sample.memory_available_bytes > Some(1 << 20));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decoded_or_refused(text in "(cpu  ([0-9]{0,22} ){0,12}|.*)", tick in 0_u64..) {
            let _ = decode_cpu(&text, tick);
        }
    }
}
