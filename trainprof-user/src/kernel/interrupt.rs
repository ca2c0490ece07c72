//! What an interrupt by a clock takes of the thread that it meets, measured on our own.
//!
//! On bare metal that is one or two microseconds. In a virtual machine the host is asked for the next one, and may empty caches
//! before it goes on (the kernel's Documentation/admin-guide/hw-vuln/l1tf.rst): code with much data at hand then takes some
//! 40 microseconds longer.

use std::{hint::black_box, io, os::fd::OwnedFd, time::Instant};

use aya_obj::generated::perf_sw_ids;

use super::perf::{self, Of};

/// Time between two interrupts while it is measured.
const PERIOD_NS: u64 = 50_000;
/// As much data as a second-level cache holds, looked at out of order.
const BYTES: usize = 1 << 20;
/// Looks at it: about a millisecond's. Of so many turns with the clock and without, the shortest count: nobody had the CPU meanwhile.
const LOOKS: usize = 1 << 17;
const TURNS: usize = 4;

/// A clock of our own thread. Opened while we may.
pub struct Interrupt {
    clock: OwnedFd,
}

impl Interrupt {
    /// Opens the clock; it does not run yet.
    pub fn open() -> io::Result<Self> {
        let event = perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK;
        let clock = perf::open(event, PERIOD_NS, Of::ThisThread, |_| {})?;
        Ok(Self { clock })
    }

    /// Nanoseconds that one takes, with what it makes slower afterwards. Takes some ten milliseconds of CPU time.
    pub fn measure(&self) -> io::Result<f64> {
        let mut data = vec![1_u8; BYTES];
        let (mut with, mut without) = (u64::MAX, u64::MAX);
        for _ in 0..TURNS {
            perf::switch(&self.clock, true)?;
            with = with.min(looks_ns(&mut data));
            perf::switch(&self.clock, false)?;
            without = without.min(looks_ns(&mut data));
        }
        Ok(each_ns(with, without))
    }
}

/// What each interrupt took when the same work took so long with them and without, nanoseconds. The clock goes on meanwhile.
fn each_ns(with: u64, without: u64) -> f64 {
    let interrupts = with as f64 / PERIOD_NS as f64;
    with.saturating_sub(without) as f64 / interrupts
}

/// How long it takes to look at the data.
fn looks_ns(data: &mut [u8]) -> u64 {
    let began = Instant::now();
    let mut at = 1_usize;
    for _ in 0..LOOKS {
        // A generator of random numbers: what is looked at next is known before the last look is over, as in a loop over an array.
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let byte = &mut data[(at >> 8) % BYTES];
        *byte = byte.wrapping_add(1);
    }
    black_box(data);
    began.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_interrupts_take_is_what_is_longer_with_them() {
        // 1.2 ms with one each 50 us: 24 of them, and 0.2 ms.
        let ns = each_ns(1_200_000, 1_000_000);
        assert!((ns - 200_000.0 / 24.0).abs() < 1e-6, "{ns}");
        assert!(each_ns(900_000, 1_000_000).abs() < 1e-9);
    }

    #[test]
    fn an_interrupt_takes_a_while() {
        let Ok(interrupt) = Interrupt::open() else {
            return; // Not permitted. The tests that are run as root do it.
        };
        let mut measured =
            (0..5).map(|_| interrupt.measure().expect("a clock that can be switched"));
        // No processor takes one in less than 0.2 us. On a busy host a measurement may come out at nothing.
        assert!(measured.any(|ns| ns > 200.0));
    }
}
