//! The limit of descriptors that a process may have: each probe, each map and each clock of a CPU takes one.

use std::{error::Error, io};

/// The limit is usually low only out of habit: raising the soft one to the hard one takes no privilege.
pub(super) fn raise_limit() {
    if let Some(mut limit) = limit() {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: a valid structure.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

fn limit() -> Option<libc::rlimit> {
    // SAFETY: plain data, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a valid structure.
    (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit)
}

/// What is to be done where an error comes of that limit, or of the host's.
pub fn cure(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    let errno = causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())?;
    match errno {
        libc::EMFILE => {
            let most = limit().map_or(0, |limit| limit.rlim_max);
            Some(format!(
                "too many open files: this process may have {most} (hard limit), and a watch takes some 150 and 2 for each CPU. Raise \
                 it: `ulimit -Hn` in a root shell, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container"
            ))
        }
        libc::ENFILE => Some(
            "the host has no room for more open files: raise it by `sysctl fs.file-max`".to_owned(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelError;

    #[test]
    fn the_cure_is_told_whatever_could_not_be_opened() {
        let tell = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            cure(&KernelError::Map {
                map: "m",
                source: Box::new(source),
            })
        };
        assert!(tell(libc::EMFILE).is_some_and(|text| text.contains("ulimit")));
        assert!(tell(libc::ENFILE).is_some_and(|text| text.contains("file-max")));
        assert_eq!(tell(libc::EPERM), None);
    }
}
