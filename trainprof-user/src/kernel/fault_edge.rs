//! What of a page fault no clock sample shows, measured on pages of our own.
//!
//! A CPU enters and leaves the kernel with interrupts off (arch/x86/entry/entry_64.S, `error_entry` and `error_return`). A clock that
//! goes off meanwhile is heard of when they are on again: back at the instruction that faulted, in user mode. So a loop that
//! only touches new pages has samples in its own code that stand for time of the faults: a tenth of it here.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use aya_obj::generated::{perf_event_header, perf_event_mmap_page, perf_event_type, perf_sw_ids};

use super::{
    own_pages::{Mapped, PAGE, new_pages},
    perf::{self, Of},
};

/// Time between two samples: far below kernel.perf_event_max_sample_rate, which stops a clock that is faster.
const PERIOD_NS: u64 = 50_000;
/// New pages that are touched one after the other, and how often: 200 samples and more fall into that.
const PAGES: usize = 512;
const ROUNDS: usize = 12;
/// Room for samples, in pages: a power of two. A sample without anything in it takes eight bytes.
const ROOM: usize = 4;

/// A clock of our own thread that samples it in user mode alone. Opened while we may.
pub struct FaultEdge {
    clock: OwnedFd,
    ring: Mapped,
}

impl FaultEdge {
    /// Opens the clock; it does not run yet.
    pub fn open() -> io::Result<Self> {
        let clock = perf::open(
            perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK,
            PERIOD_NS,
            Of::ThisThread,
            |attribute| {
                attribute.set_exclude_kernel(1);
                attribute.set_exclude_hv(1);
            },
        )?;
        let ring = Mapped::new((1 + ROOM) * PAGE, libc::MAP_SHARED, clock.as_raw_fd())?;
        Ok(Self { clock, ring })
    }

    /// Nanoseconds of a fault on memory that was never touched, from the instruction to interrupts being on and from their being off
    /// again until it goes on. `None`: the clock was stopped. Takes some 20 ms of CPU time.
    ///
    /// The clock tells which part of the time this is; how long a fault takes is measured without it: each time that it goes off it takes
    /// as long as twenty faults in a virtual machine.
    pub fn measure(&self) -> io::Result<Option<f64>> {
        let (mut sampled_ns, mut new_ns, mut again_ns) = (0, 0, 0);
        for _ in 0..ROUNDS {
            let memory = new_pages(PAGES)?;
            perf::switch(&self.clock, true)?;
            sampled_ns += memory.touch();
            perf::switch(&self.clock, false)?;
            let memory = new_pages(PAGES)?;
            new_ns += memory.touch();
            // What the loop itself takes.
            again_ns += memory.touch();
        }
        let Some(samples) = self.samples() else {
            return Ok(None);
        };
        let part = (samples * PERIOD_NS) as f64 / sampled_ns.max(1) as f64;
        let hidden_ns = part * new_ns as f64 - again_ns as f64;
        Ok(Some((hidden_ns / (ROUNDS * PAGES) as f64).max(0.0)))
    }

    /// Samples so far; `None` when anything else is among them, such as that the clock was stopped.
    fn samples(&self) -> Option<u64> {
        let page = self.ring.at.cast::<perf_event_mmap_page>();
        // SAFETY: the kernel keeps the number of bytes written here; it is read as perf_event_open(2) asks for.
        let written = unsafe { AtomicU64::from_ptr(&raw mut (*page.as_ptr()).data_head) }
            .load(Ordering::Acquire) as usize;
        let size = size_of::<perf_event_header>();
        if written > ROOM * PAGE {
            return None;
        }
        let mut samples = 0;
        for at in (0..written).step_by(size) {
            // SAFETY: within the ring, where the kernel has written a header; aligned, since all before were of this size.
            let header: perf_event_header =
                unsafe { ptr::read(self.ring.at.as_ptr().add(PAGE + at).cast()) };
            if header.type_ != perf_event_type::PERF_RECORD_SAMPLE as u32
                || usize::from(header.size) != size
            {
                return None;
            }
            samples += 1;
        }
        Some(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_of_a_fault_is_a_small_part_of_it() {
        let Ok(edge) = FaultEdge::open() else {
            return; // Not permitted: the tests that are run as root measure it too.
        };
        let fault = |rounds: u64| {
            let touch = |_| new_pages(PAGES).expect("memory").touch();
            (0..rounds).map(touch).sum::<u64>() as f64 / (rounds * PAGES as u64) as f64
        };
        let whole = fault(20);
        let ns = edge.measure().expect("a clock that can be read");
        let ns = ns.expect("a clock that goes on");
        println!("{ns:.0} of {whole:.0} ns");
        assert!(ns < whole / 2.0, "{ns} of {whole} ns");
    }
}
