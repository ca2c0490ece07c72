//! Programs whose system calls the probes do not know: those of another ABI than the host's own.

use std::{fs::File, io::Read};

use crate::{env::process, record::Record};

/// Beginning of a 32-bit program (elf(5): magic number, then `EI_CLASS`, which is `ELFCLASS32`).
const BEGINNING: &[u8] = b"\x7fELF\x01";

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
    let mut first = [0; BEGINNING.len()];
    File::open(process::shared(pid, "exe"))
        .and_then(|mut program| program.read_exact(&mut first))
        .is_ok_and(|()| first == BEGINNING)
}
