//! Time as a type. The only clock of facts is the kernel's CLOCK_MONOTONIC.

use serde::{Deserialize, Serialize};

/// Nanoseconds of CLOCK_MONOTONIC (clock_gettime(2)), which is what `bpf_ktime_get_ns` reads.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct KtimeNs(pub u64);

impl KtimeNs {
    /// Nanoseconds since `earlier`; 0 when that is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Seconds since `earlier`; 0 when that is later.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        seconds(self.since(earlier))
    }
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Ties kernel time to wall-clock time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Kernel time in the middle of the reading.
    pub ktime: KtimeNs,
    /// Nanoseconds since 1970 (CLOCK_REALTIME) at that moment.
    pub unix_ns: u64,
    /// Half the width of the bracket: the true offset lies within so many nanoseconds.
    pub uncertainty_ns: u64,
}
