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

/// Rates per CPU, in Hz, together about 100; the first one alone goes on where half of the samples will do. None divides or
/// multiplies a kernel's tick (100, 250, 300 or 1 000 Hz), nor the other one.
const RATES: [[u32; 2]; 4] = [[54, 43], [53, 44], [53, 46], [52, 47]];
/// The same on large hosts, where each sample less is one event less to handle.
const RATES_LARGE: [[u32; 2]; 4] = [[26, 23], [27, 22], [28, 23], [29, 23]];
/// One clock alone is at least so fast, in Hz.
const SLOWEST: u32 = 49;
/// CPUs from which on a host is large.
const LARGE: usize = 64;

/// Picks the rates. `seed` is any number: it differs from watch to watch, so that no job is always in step with it.
pub fn rates(cpus: usize, seed: u64) -> [u32; 2] {
    let rates = if cpus > LARGE { RATES_LARGE } else { RATES };
    rates[(seed % rates.len() as u64) as usize]
}

/// A program that runs at samples of every CPU.
pub struct Sampled {
    /// With their CPUs.
    events: Vec<(u32, OwnedFd)>,
    on: bool,
}

impl Sampled {
    /// Samples are taken from now on, or not. Needs no privilege.
    pub fn switch(&mut self, on: bool) -> io::Result<()> {
        if self.on == on {
            return Ok(());
        }
        for (_, event) in &self.events {
            perf::switch(event, on)?;
        }
        self.on = on;
        Ok(())
    }

    /// The event of the CPU that this thread is on.
    pub fn here(&self) -> Option<&OwnedFd> {
        // SAFETY: no arguments.
        let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        let found = self.events.iter().find(|(of, _)| *of == cpu);
        found.map(|(_, event)| event)
    }
}

/// The clocks of every CPU. Each sample is an interrupt, which in a virtual machine empties caches as well: some 40 microseconds
/// of a job that has much data at hand.
pub struct Clocks {
    /// With their rates, in Hz.
    both: [(Sampled, u32); 2],
}

impl Clocks {
    /// So many of the two go on: 2, 1 or 0.
    pub fn switch(&mut self, clocks: usize) -> io::Result<()> {
        for (number, (sampled, _)) in self.both.iter_mut().enumerate() {
            sampled.switch(number < clocks)?;
        }
        Ok(())
    }

    /// Whether one of them alone is fast enough.
    pub fn halvable(&self) -> bool {
        self.both[0].1 >= SLOWEST
    }

    /// Samples a second on one CPU.
    pub fn hz(&self) -> u32 {
        let on = self.both.iter().filter(|(sampled, _)| sampled.on);
        on.map(|(_, hz)| hz).sum()
    }
}

/// Loads the program and attaches it to the clocks of every CPU.
pub fn attach(ebpf: &mut Ebpf, seed: u64) -> Result<Clocks, Skipped> {
    let missing = |error| Skipped {
        what: WHAT.to_owned(),
        reason: reason(CLOCK, &error),
    };
    let [first, second] = rates(cpus(), seed);
    load(ebpf, PROGRAM).map_err(missing)?;
    let mut clock = |hz: u32| {
        let period_ns = 1_000_000_000 / u64::from(hz);
        let clock = perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK;
        open(ebpf, PROGRAM, clock, period_ns).map(|sampled| (sampled, hz))
    };
    let both = [
        clock(first).map_err(missing)?,
        clock(second).map_err(missing)?,
    ];
    Ok(Clocks { both })
}

/// Loads the program for page faults and attaches it on every CPU.
pub fn attach_faults(ebpf: &mut Ebpf) -> Result<Sampled, Skipped> {
    let missing = |error| Skipped {
        what: WHAT_FAULTS.to_owned(),
        reason: reason(FAULTS, &error),
    };
    let faults = perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS;
    load(ebpf, FAULT_PROGRAM).map_err(missing)?;
    open(ebpf, FAULT_PROGRAM, faults, u64::from(FAULT_PERIOD)).map_err(missing)
}

/// Page faults that each CPU may send in one window.
pub fn faults_in_window() -> u64 {
    (FAULTS_PER_SECOND / WINDOWS_PER_SECOND / cpus()).max(1) as u64
}

pub(super) fn cpus() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len().max(1))
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut PerfEvent, ProgramError> {
    ebpf.program_mut(name)
        .ok_or(ProgramError::NotLoaded)?
        .try_into()
}

fn load(ebpf: &mut Ebpf, name: &str) -> Result<(), Refused> {
    Ok(program(ebpf, name)?.load()?)
}

/// Has a loaded program run at each `period`th of an event of every CPU from now on.
fn open(ebpf: &mut Ebpf, name: &str, event: perf_sw_ids, period: u64) -> Result<Sampled, Refused> {
    let cpus = online_cpus().map_err(|(_, error)| ProgramError::IOError(error))?;
    let program = program(ebpf, name)?.fd()?.as_fd();
    let mut sampled = Sampled {
        events: Vec::new(),
        on: false,
    };
    for cpu in cpus {
        // Samples of some CPUs alone would say less than none, since threads move between them: all or nothing.
        let event = perf::open(event, period, Of::Cpu(cpu), |_| {}).map_err(Refused::Event)?;
        perf::set_program(&event, program).map_err(Refused::Event)?;
        sampled.events.push((cpu, event));
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
            " (three descriptors per CPU are needed: raise `ulimit -n`)"
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
        for cpus in [1, 8, 64, 65, 512] {
            for seed in 0..16 {
                let both = rates(cpus, seed);
                let sum: u32 = both.iter().sum();
                assert!((49..=99).contains(&sum), "{both:?}");
                assert!(cpus <= LARGE || sum <= 53, "{both:?} on {cpus} CPUs");
                assert!(cpus > LARGE || both[0] >= SLOWEST, "{both:?}");
                for hz in both {
                    assert!(
                        [100, 250, 300, 1000].iter().all(|tick| tick % hz != 0),
                        "{hz}"
                    );
                }
            }
        }
        let seeds: std::collections::BTreeSet<_> = (0..16).map(|seed| rates(2, seed)).collect();
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
