//! Samples of followed threads: software events on each CPU, by the clock and at page faults.
//!
//! There are two clocks, at rates that do not go together. A loop that is in step with one of them, or so fast that
//! one alone would show it slowed down, is not so with both.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use aya::{
    Ebpf,
    programs::{PerfEvent, ProgramError},
    util::online_cpus,
};
use aya_obj::generated::perf_sw_ids;

use super::{
    Skipped,
    perf::{self, Of},
};

/// Name of the program in the eBPF object.
pub const PROGRAM: &str = "sample";

/// Name of the program for page faults.
pub const FAULT_PROGRAM: &str = "fault";

/// Every so many page faults of any process on a CPU one is looked at: a prime, so that memory that is touched in an
/// order of powers of two is not always looked at in the same places. The program then picks among them.
pub const FAULT_PERIOD: u32 = 17;

/// Page faults that are sent a second, all CPUs together, before they are thinned out.
const FAULTS_PER_SECOND: usize = 100;
/// The probes thin out by this part of a second.
const WINDOWS_PER_SECOND: usize = 5;

/// What is missing without them.
const WHAT: &str = "samples";
const WHAT_FAULTS: &str = "page-fault samples";
/// What the kernel is asked for.
const CLOCK: &str = "the CPU clock";
const FAULTS: &str = "the count of page faults";

/// Rates per CPU, in Hz, together about 50. None divides or multiplies a kernel's tick (100, 250, 300 or 1 000 Hz),
/// nor the other one. Each sample is an interrupt, which in a virtual machine empties caches as well: some 40 microseconds of a
/// job that has much data at hand.
const RATES: [[u32; 2]; 4] = [[21, 29], [22, 27], [23, 28], [23, 29]];

/// Picks the rates. `seed` is any number: it differs from watch to watch, so that no job is always in step with it.
pub fn rates(seed: u64) -> [u32; 2] {
    RATES[(seed % RATES.len() as u64) as usize]
}

/// A program that runs at samples of every CPU.
pub struct Sampled {
    events: Vec<OwnedFd>,
    on: bool,
}

impl Sampled {
    /// Samples are taken from now on, or not: what is off costs nothing. Needs no privilege.
    pub fn switch(&mut self, on: bool) -> io::Result<()> {
        if self.on == on {
            return Ok(());
        }
        for event in &self.events {
            perf::switch(event, on)?;
        }
        self.on = on;
        Ok(())
    }
}

/// Loads the program and attaches it to the clocks of every CPU. Gives samples a second on one as well.
pub fn attach(ebpf: &mut Ebpf, seed: u64) -> Result<(Sampled, u32), Skipped> {
    let both = rates(seed);
    try_attach(
        ebpf,
        PROGRAM,
        perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK,
        &both.map(|hz| 1_000_000_000 / u64::from(hz)),
    )
    .map(|sampled| (sampled, both.iter().sum()))
    .map_err(|error| Skipped {
        what: WHAT.to_owned(),
        reason: reason(CLOCK, &error),
    })
}

/// Loads the program for page faults and attaches it on every CPU.
pub fn attach_faults(ebpf: &mut Ebpf) -> Result<Sampled, Skipped> {
    try_attach(
        ebpf,
        FAULT_PROGRAM,
        perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS,
        &[u64::from(FAULT_PERIOD)],
    )
    .map_err(|error| Skipped {
        what: WHAT_FAULTS.to_owned(),
        reason: reason(FAULTS, &error),
    })
}

/// Page faults that each CPU may send in one window.
pub fn faults_in_window() -> u64 {
    (FAULTS_PER_SECOND / WINDOWS_PER_SECOND / cpus()).max(1) as u64
}

fn cpus() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len().max(1))
}

fn try_attach(
    ebpf: &mut Ebpf,
    name: &str,
    event: perf_sw_ids,
    periods: &[u64],
) -> Result<Sampled, Refused> {
    let cpus = online_cpus().map_err(|(_, error)| ProgramError::IOError(error))?;
    let program: &mut PerfEvent = ebpf
        .program_mut(name)
        .ok_or(ProgramError::NotLoaded)?
        .try_into()?;
    program.load()?;
    let program = program.fd()?.as_fd();
    let mut sampled = Sampled {
        events: Vec::new(),
        on: false,
    };
    for cpu in cpus {
        for period in periods {
            // Samples of some CPUs alone would say less than none, since threads move between them: all or nothing.
            let event = perf::open(event, *period, Of::Cpu(cpu), |_| {}).map_err(Refused::Event)?;
            perf::set_program(&event, program).map_err(Refused::Event)?;
            sampled.events.push(event);
        }
    }
    sampled.switch(true).map_err(Refused::Event)?;
    Ok(sampled)
}

/// What did not work.
enum Refused {
    Event(io::Error),
    Program(ProgramError),
}

impl From<ProgramError> for Refused {
    fn from(error: ProgramError) -> Self {
        Self::Program(error)
    }
}

/// Says what the host refuses, with the cure where there is one.
fn reason(what: &str, error: &Refused) -> String {
    match error {
        Refused::Event(error) => refusal(what, error),
        Refused::Program(ProgramError::LoadError {
            io_error,
            verifier_log,
        }) => {
            tracing::debug!(%verifier_log, "the verifier's log");
            format!("this kernel refuses the program: {io_error}")
        }
        Refused::Program(other) => other.to_string(),
    }
}

fn refusal(what: &str, error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            " (kernel.perf_event_paranoid above 2 lets only CAP_SYS_ADMIN through; a container's seccomp profile may \
             forbid it as well)"
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            " (two descriptors per CPU are needed: raise `ulimit -n`)"
        }
        Some(libc::ENOSYS) => " (a kernel built with CONFIG_PERF_EVENTS=y is needed)",
        _ => "",
    };
    format!("{what} cannot be opened: {error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_never_beat_with_the_kernels_tick() {
        for seed in 0..16 {
            let both = rates(seed);
            let sum: u32 = both.iter().sum();
            assert!((49..=54).contains(&sum), "{both:?}");
            for hz in both {
                assert!(
                    [100, 250, 300, 1000].iter().all(|tick| tick % hz != 0),
                    "{hz}"
                );
            }
        }
        let seeds: std::collections::BTreeSet<_> = (0..16).map(rates).collect();
        assert!(seeds.len() > 1);
    }

    #[test]
    fn a_refusal_names_its_cure() {
        let text = |errno| refusal(CLOCK, &io::Error::from_raw_os_error(errno));
        assert!(text(libc::EACCES).contains("perf_event_paranoid"));
        assert!(text(libc::EMFILE).contains("ulimit"));
        assert!(!text(libc::EINVAL).contains("paranoid"));
    }
}
