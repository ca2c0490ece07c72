//! What is given up to keep the cost down, and when events and sums are looked at seldom. Pure.

use crate::record::alloc::SHED_CALLS;

/// After so many seconds the ring is drained a fourth as often, and what was counted is collected so, while something is owed and the
/// fixed costs take more than the first part (0–1) of the budget; until they take less than the second.
const SHORT_S: f64 = 30.0;
const LONG_FROM: f64 = 0.6;
const SHORT_FROM: f64 = 0.3;
/// Not where an interval has more cells than this: the tables have room for eight times as many.
pub const CELLS: usize = 8_192;

/// What is given up, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shed {
    /// Draining events every quarter of a second and sums every second: none is left out, but sums tell fewer points in time apart.
    ShortIntervals,
    /// Following allocations to their release.
    PairedWindows,
    /// Where sampled calls came from.
    Stacks,
    /// Windows altogether.
    Windows,
    /// Counting every system call: they are counted in turns.
    Calls,
    /// Sampling page faults all the time: they are sampled in turns.
    FaultSamples,
    /// Half of the clock samples.
    HalfSamples,
    /// Clock samples.
    ClockSamples,
}

impl Shed {
    pub const fn name(self) -> &'static str {
        match self {
            Self::ShortIntervals => "short-intervals",
            Self::PairedWindows => "paired-windows",
            Self::Stacks => "stacks",
            Self::Windows => "windows",
            Self::Calls => SHED_CALLS,
            Self::FaultSamples => "page-fault-samples",
            Self::HalfSamples => "half-of-clock-samples",
            Self::ClockSamples => "clock-samples",
        }
    }
}

/// By what it is decided how often events and sums are looked at.
pub struct Looking {
    /// They are looked at seldom so far.
    pub seldom: bool,
    /// Seconds that the watch has lasted.
    pub watched_s: f64,
    /// More was spent than was earned.
    pub owes: bool,
    /// What fixed costs take, and what all may take, nanoseconds a second.
    pub fixed: f64,
    pub budget: f64,
}

impl Looking {
    /// Whether they may be looked at a fourth as often, as far as that goes by costs.
    pub fn may_be_seldom(&self) -> bool {
        if self.seldom {
            return self.fixed > SHORT_FROM * self.budget;
        }
        self.watched_s >= SHORT_S && self.owes && self.fixed > LONG_FROM * self.budget
    }
}
