//! Samples of followed threads: software events on each CPU, by the clock and at page faults.
//!
//! There are two clocks, at rates that do not go together. A loop that is in step with one of them, or so fast that
//! one alone would show it slowed down, is not so with both.

use std::io;

use aya::{
    Ebpf,
    programs::{
        PerfEvent, ProgramError,
        perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent},
    },
    util::online_cpus,
};

use super::Skipped;

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

/// Rates per CPU, in Hz, together about 100. None divides or multiplies a kernel's tick (100, 250, 300 or 1 000 Hz),
/// nor the other one.
const RATES: [[u32; 2]; 4] = [[43, 54], [44, 53], [46, 53], [47, 54]];
/// The same on large hosts, where each sample less is one event less to handle.
const RATES_LARGE: [[u32; 2]; 4] = [[21, 26], [22, 27], [23, 28], [23, 29]];
/// CPUs from which on a host is large.
const LARGE: usize = 64;

/// Picks the rates. `seed` is any number: it differs from watch to watch, so that no job is always in step with it.
pub fn rates(cpus: usize, seed: u64) -> [u32; 2] {
    let rates = if cpus > LARGE { RATES_LARGE } else { RATES };
    rates[(seed % rates.len() as u64) as usize]
}

/// Loads the program and attaches it to the clocks of every CPU. Gives samples a second on one.
pub fn attach(ebpf: &mut Ebpf, seed: u64) -> Result<u32, Skipped> {
    let both = rates(cpus(), seed);
    try_attach(
        ebpf,
        PROGRAM,
        SoftwareEvent::CpuClock,
        &both.map(|hz| SamplePolicy::Frequency(u64::from(hz))),
    )
    .map(|()| both.iter().sum())
    .map_err(|error| Skipped {
        what: WHAT.to_owned(),
        reason: reason(CLOCK, &error),
    })
}

/// Loads the program for page faults and attaches it on every CPU. Gives the period.
pub fn attach_faults(ebpf: &mut Ebpf) -> Result<u32, Skipped> {
    try_attach(
        ebpf,
        FAULT_PROGRAM,
        SoftwareEvent::PageFaults,
        &[SamplePolicy::Period(u64::from(FAULT_PERIOD))],
    )
    .map(|()| FAULT_PERIOD)
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
    event: SoftwareEvent,
    policies: &[SamplePolicy],
) -> Result<(), ProgramError> {
    let cpus = online_cpus().map_err(|(_, error)| ProgramError::IOError(error))?;
    let program: &mut PerfEvent = ebpf
        .program_mut(name)
        .ok_or(ProgramError::NotLoaded)?
        .try_into()?;
    program.load()?;
    let mut links = Vec::new();
    for (cpu, policy) in cpus
        .into_iter()
        .flat_map(|cpu| policies.iter().map(move |policy| (cpu, *policy)))
    {
        let link = program.attach(
            PerfEventConfig::Software(event),
            PerfEventScope::AllProcessesOneCpu { cpu },
            policy,
            false,
        );
        match link {
            Ok(link) => links.push(link),
            Err(error) => {
                // Samples of some CPUs alone would say less than none: threads move between them.
                for link in links {
                    program.detach(link)?;
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Says what the host refuses, with the cure where there is one.
fn reason(what: &str, error: &ProgramError) -> String {
    match error {
        ProgramError::SyscallError(call) if call.call == "perf_event_open" => {
            refusal(what, &call.io_error)
        }
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            tracing::debug!(%verifier_log, "the verifier's log");
            format!("this kernel refuses the program: {io_error}")
        }
        other => other.to_string(),
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
        for cpus in [1, 8, 64, 65, 512] {
            for seed in 0..16 {
                let both = rates(cpus, seed);
                let sum: u32 = both.iter().sum();
                assert!((47..=101).contains(&sum), "{both:?}");
                assert!(cpus <= LARGE || sum <= 53, "{both:?} on {cpus} CPUs");
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
