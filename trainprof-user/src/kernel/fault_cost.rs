//! What counting page faults costs, measured on pages of our own.
//!
//! As long as an event on faults is open, each fault of any process makes the kernel look who counts it, and while the event is on it is
//! also counted (`___perf_sw_event`, kernel/events/core.c). That is 25 ns on one host and 81 on the next (AMD EPYC, where a return from a
//! function is slow), of a fault that takes 1 700.

use std::{io, ptr};

use super::{own_pages::new_pages, perf, sampling::Sampled};

/// New pages that are touched one after the other: a tenth of a millisecond, in which few threads are moved.
const PAGES: usize = 64;
/// How often that is done with the event on, and off. The middle times of so many differ by what it is within some nanoseconds.
const ROUNDS: usize = 51;

/// Nanoseconds by which a fault takes longer while it is counted than while the event is off. The event of this CPU is on again at the
/// end. `None`: this thread was moved all the time. Takes some 15 ms of CPU time.
pub fn measure(faults: &Sampled) -> io::Result<Option<f64>> {
    let (mut counted, mut free) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let Some(event) = faults.here() else {
            return Ok(None);
        };
        let on = touched()?;
        perf::switch(event, false)?;
        let off = touched();
        perf::switch(event, true)?;
        if faults.here().is_some_and(|now| ptr::eq(now, event)) {
            counted.push(on);
            free.push(off?);
        }
    }
    Ok(middle(counted)
        .zip(middle(free))
        .map(|(on, off)| (on - off).max(0.0) / PAGES as f64))
}

fn middle(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// CPU nanoseconds that touching new pages takes.
fn touched() -> io::Result<f64> {
    Ok(new_pages(PAGES)?.touch() as f64)
}
