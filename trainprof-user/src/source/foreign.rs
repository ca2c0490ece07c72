//! Programs whose system calls the probes do not know: those of another ABI than the host's own.

use std::fs;

use crate::{env::process, record::Record};

/// The largest type of what the kernel tells a program at its start (getauxval(3)) is below that.
const TYPES: u64 = 1 << 16;

/// Looks for them, and tells of the first.
#[derive(Default)]
pub struct Foreign {
    is_told: bool,
}

impl Foreign {
    /// What there is to say of a process that was not there before, or has executed another program.
    pub fn look_at(&mut self, pid: u32) -> Option<Record> {
        if self.is_told || !is_foreign(pid) {
            return None;
        }
        self.is_told = true;
        Some(Record::Missing {
            what: format!(
                "files, memory calls and kinds of waits of 32-bit programs, of which process {pid} is one"
            ),
            reason:
                "system calls have other numbers there; the probes know those of 64-bit programs"
                    .to_owned(),
        })
    }
}

/// Whether a process executes one.
pub(super) fn is_foreign(pid: u32) -> bool {
    // Not the program itself, which may be on a server that does not answer.
    fs::read(process::shared(pid, "auxv")).is_ok_and(|told| is_of_32_bits(&told))
}

/// Whether the auxiliary vector (proc_pid_auxv(5)) is one of pairs of 32-bit words: two of these are no type.
fn is_of_32_bits(told: &[u8]) -> bool {
    let mut words = told.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_ne_bytes(bytes)
    });
    words.next().is_some_and(|first| first >= TYPES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_by_what_the_kernel_told_them() {
        let own = fs::read("/proc/self/auxv").expect("our own");
        assert!(!is_of_32_bits(&own) && !is_foreign(std::process::id()));
        // AT_SYSINFO (32) with an address, then AT_SYSINFO_EHDR (33).
        let words = [32_u32, 0xf7f4_0580, 33, 0xf7f4_0000, 0, 0];
        assert!(is_of_32_bits(&words.map(u32::to_ne_bytes).concat()));
        // That of a kernel thread is empty.
        assert!(!is_of_32_bits(&[]));
    }
}
