//! Threads outside the job that it had to do with: they woke one of its threads, or had its CPU. Their processes' CPU time is told
//! too: who answers the job's questions may be busy with answering.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use procfs::{FromRead, process::Stat};

use super::own;
use crate::{
    env::process,
    record::{Record, fact::OutsiderUse},
    time::KtimeNs,
};

/// Threads, and processes, that are described in one watch. Beyond that they have no name.
const MOST: usize = 4096;

/// Processes whose CPU time is told.
const MOST_TIMED: usize = 32;

/// Having the CPU that a thread of the job wanted for at least this many nanoseconds is worth a name.
pub(super) const WORTH_NAMING_NS: u64 = 1_000_000;

/// Who was described already.
#[derive(Default)]
pub(super) struct Outsiders {
    /// With their processes, where these are known.
    threads: BTreeMap<u32, Option<u32>>,
    processes: BTreeSet<u32>,
    /// Threads of the kernel, and what has ended.
    nameless: BTreeSet<u32>,
    timed: Vec<Timed>,
}

/// A process whose CPU time is told, by its beginning (ticks after boot), with what it had when it was met, and has used since.
struct Timed {
    pid: u32,
    began: u64,
    met: KtimeNs,
    ticks: u64,
    used: u64,
}

impl Outsiders {
    /// Describes a thread the first time, and its process the first time.
    pub(super) fn meet(&mut self, tid: u32, out: &mut Vec<Record>) {
        if tid == 0 || self.threads.contains_key(&tid) || self.threads.len() >= MOST {
            return;
        }
        let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let (pid, name) = decode(&status);
        self.threads.insert(tid, pid);
        out.push(Record::Outsider { tid, pid, name });
        let Some(pid) = pid else { return };
        if self.processes.len() < MOST && self.processes.insert(pid) {
            let command = process::command(pid);
            // Threads of the kernel have none.
            if !command.is_empty() {
                out.push(Record::OutsiderCommand { pid, command });
            } else {
                self.nameless.insert(pid);
            }
        }
    }

    /// The same of a thread that ended a wait of the job's: its process may be who answers.
    pub(super) fn woke(&mut self, tid: u32, out: &mut Vec<Record>) {
        self.meet(tid, out);
        let Some(pid) = self.threads.get(&tid).copied().flatten() else {
            return;
        };
        if self.nameless.contains(&pid) || self.timed.iter().any(|timed| timed.pid == pid) {
            return;
        }
        if self.timed.len() >= MOST_TIMED {
            // Who has used nothing makes room.
            let Some(idle) = self.timed.iter().position(|timed| timed.used == 0) else {
                return;
            };
            self.timed.swap_remove(idle);
        }
        if let Some(stat) = stat(pid) {
            self.timed.push(Timed {
                pid,
                began: stat.starttime,
                met: own::now(),
                ticks: ticks(&stat),
                used: 0,
            });
        }
    }

    /// Tells what the processes have used since they were met; those that ended are told no more.
    pub(super) fn tell_use(&mut self, at: KtimeNs, out: &mut Vec<Record>) {
        let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
        self.timed.retain_mut(|timed| {
            let Some(stat) = stat(timed.pid).filter(|stat| stat.starttime == timed.began) else {
                return false;
            };
            timed.used = ticks(&stat).saturating_sub(timed.ticks);
            if timed.used > 0 {
                out.push(Record::OutsiderUse(OutsiderUse {
                    at,
                    pid: timed.pid,
                    looked_ns: at.since(timed.met),
                    cpu_ns: timed.used.saturating_mul(tick_ns),
                    threads: u32::try_from(stat.num_threads).unwrap_or(0),
                }));
            }
            true
        });
    }
}

fn stat(pid: u32) -> Option<Stat> {
    Stat::from_file(format!("/proc/{pid}/stat")).ok()
}

/// CPU time of all its threads.
fn ticks(stat: &Stat) -> u64 {
    stat.utime.saturating_add(stat.stime)
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
        let mut outsiders = Outsiders::default();
        let mut out = Vec::new();
        for _ in 0..2 {
            // There are no processes of these numbers (PID_MAX_LIMIT is 4 194 304).
            for tid in 5_000_000..5_010_000 {
                outsiders.meet(tid, &mut out);
            }
        }
        assert_eq!(out.len(), MOST);
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

    #[test]
    fn what_a_process_uses_is_told_since_it_was_met() {
        let mut out = Vec::new();
        let mut outsiders = Outsiders::default();
        let pid = std::process::id();
        outsiders.woke(pid, &mut out);
        outsiders.woke(pid, &mut out);
        assert_eq!(outsiders.timed.len(), 1);
        let met = outsiders.timed[0].met;
        let used = |out: &[Record]| {
            out.iter().find_map(|record| match record {
                Record::OutsiderUse(used) => Some(*used),
                _ => None,
            })
        };
        let begin = own::thread_cpu_ns();
        while own::thread_cpu_ns() - begin < 200_000_000 {}
        outsiders.tell_use(KtimeNs(met.0 + 1_000_000_000), &mut out);
        let told = used(&out).expect("what it used");
        assert_eq!((told.pid, told.looked_ns), (pid, 1_000_000_000));
        // Other tests run beside; a tick is 10 ms.
        assert!(told.cpu_ns >= 190_000_000, "{told:?}");
        assert!(told.threads >= 2, "{told:?}");
        // Another process by the same number is another one.
        outsiders.timed[0].began += 1;
        out.clear();
        outsiders.tell_use(KtimeNs(met.0 + 2_000_000_000), &mut out);
        assert_eq!(used(&out), None);
        assert!(outsiders.timed.is_empty());
    }
}
