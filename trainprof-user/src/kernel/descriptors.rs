//! The limit of descriptors that a process may have: each probe, each map and each clock of a CPU takes one.

use super::KernelError;

/// Those of a watch without its clocks: maps, probes, /proc, files of its own.
const NEEDED: u64 = 150;
/// Those of each CPU: two clocks that sample, and page faults.
const NEEDED_PER_CPU: u64 = 3;

/// The limit is usually low only out of habit: raising the soft one to the hard one takes no privilege. Gives what it is then.
pub(super) fn raise_limit() -> Option<u64> {
    let mut limit = limit()?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a valid structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Some(limit.rlim_max)
}

/// As [`raise_limit`].
///
/// # Errors
/// Where a watch has not enough of them: it would be deaf for part of what it is for, and later for processes.
pub(super) fn raise_limit_enough(cpus: u64) -> Result<(), KernelError> {
    let needed = NEEDED.saturating_add(NEEDED_PER_CPU.saturating_mul(cpus));
    match raise_limit() {
        Some(most) if most < needed => Err(KernelError::FewDescriptors { most, needed }),
        _ => Ok(()),
    }
}

fn limit() -> Option<libc::rlimit> {
    // SAFETY: plain data, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a valid structure.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_many_cpus_needs_more() {
        let most = raise_limit().expect("a limit");
        assert!(raise_limit_enough(1).is_ok());
        let told = raise_limit_enough(most).map_err(|error| error.to_string());
        assert!(told.is_err_and(|text| text.contains(&format!("may have {most}"))));
    }
}
