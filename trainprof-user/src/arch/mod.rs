//! What is particular to a processor on this side: which instructions the kernel emulates, where a function's arguments are,
//! our own functions that the calibration probes, and unwinding.
//!
//! One file per architecture; each has the same items, so that code elsewhere names none of them. What the probes need is in
//! `trainprof_common::arch`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("trainprof knows no such processor: src/arch has one file for each that it does");

/// Where a probe on a function goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Bytes from the function's beginning.
    pub offset: u64,
    /// Whether the kernel single-steps the instruction there, which costs about 9 µs, or emulates it in 0.7.
    pub steps: bool,
}
