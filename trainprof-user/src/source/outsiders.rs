//! Threads outside the job that it had to do with: they woke one of its threads, or had its CPU.

use std::{collections::BTreeSet, fs};

use crate::{env::process, record::Record};

/// Threads, and processes, that are described in one watch. Beyond that they have no name.
const MOST: usize = 4096;

/// Having the CPU that a thread of the job wanted for at least this many nanoseconds is worth a name.
pub(super) const WORTH_NAMING_NS: u64 = 1_000_000;

/// Who was described already.
#[derive(Default)]
pub(super) struct Outsiders {
    threads: BTreeSet<u32>,
    processes: BTreeSet<u32>,
}

impl Outsiders {
    /// Describes a thread the first time, and its process the first time.
    pub(super) fn meet(&mut self, tid: u32, out: &mut Vec<Record>) {
        if tid == 0 || !first(&mut self.threads, tid) {
            return;
        }
        let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let (pid, name) = decode(&status);
        out.push(Record::Outsider { tid, pid, name });
        let Some(pid) = pid else { return };
        if first(&mut self.processes, pid) {
            let command = process::command(pid);
            // Threads of the kernel have none.
            if !command.is_empty() {
                out.push(Record::OutsiderCommand { pid, command });
            }
        }
    }
}

/// True once for each number, and never again when the set is full.
fn first(seen: &mut BTreeSet<u32>, number: u32) -> bool {
    (seen.len() < MOST || seen.contains(&number)) && seen.insert(number)
}

/// Process and name out of /proc/TID/status (proc_pid_status(5)).
fn decode(status: &str) -> (Option<u32>, Option<String>) {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    (
        field("Tgid:").and_then(|pid| pid.parse().ok()),
        field("Name:").map(str::to_owned),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_gives_process_and_name() {
        let status = "Name:\ta server\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t12\nPid:\t13\n";
        assert_eq!(decode(status), (Some(12), Some("a server".into())));
        assert_eq!(decode(""), (None, None));
        assert_eq!(decode("Tgid:\t-1\nName"), (None, None));
    }

    #[test]
    fn each_is_described_once_and_no_more_than_so_many() {
        let mut seen = BTreeSet::new();
        assert!(first(&mut seen, 7));
        assert!(!first(&mut seen, 7));
        let more = (100..100_000).filter(|n| first(&mut seen, *n)).count();
        assert_eq!(more, MOST - 1);
    }

    #[test]
    fn a_process_has_one_command_for_all_its_threads() {
        let mut out = Vec::new();
        let mut outsiders = Outsiders::default();
        let pid = std::process::id();
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() } as u32;
        assert_ne!(
            pid, tid,
            "the test harness runs tests on threads of their own"
        );
        for tid in [pid, tid, pid, 0] {
            outsiders.meet(tid, &mut out);
        }
        let commands: Vec<_> = out
            .iter()
            .filter_map(|record| match record {
                Record::OutsiderCommand { pid, command } => Some((*pid, command.clone())),
                _ => None,
            })
            .collect();
        assert_eq!(commands, [(pid, process::command(pid))]);
        assert_eq!(out.len(), 3, "{out:?}");
    }
}
