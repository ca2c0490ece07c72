//! Processes outside the job that take CPU time while the host has none to spare.
//!
//! Who has a CPU for itself all the time never has one that a thread of the job waits for: the scheduler lets the job's threads wait for
//! each other on the CPUs that are left. Nothing that is seen of the job tells who the other is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use procfs::{
    FromRead,
    process::{Stat, StatFlags},
};

use super::{SECOND, pace::Pace};
use crate::{
    record::{
        Record,
        fact::{HostSample, NeighbourSample},
    },
    time::KtimeNs,
};

/// CPU time that nobody used, as a share of what there was: with more than this, whoever wants a CPU gets one.
const SPARE: f64 = 0.2;
/// CPUs that others than the job have all the time on any host, and that are not worth asking who it is.
const USUAL: f64 = 0.2;
/// CPU time of the host is counted in ticks: over less than this it tells nothing.
const TELLS_NS: u64 = SECOND / 2;
/// What one of them must take (CPUs) to be told, and how many are told at a time.
const WORTH_TELLING: f64 = 0.05;
const MOST_TOLD: usize = 8;
/// Between two looks that are further apart than this the host may have had CPUs to spare for most of the time.
const FURTHEST_NS: u64 = 30 * SECOND;

/// Looks for them when the host is crowded.
pub(super) struct Neighbours {
    pace: Pace,
    /// The whole host, and CPU nanoseconds of the job, at the time before.
    before: Option<(HostSample, u64)>,
    crowded: bool,
    seen: BTreeMap<u32, Ran>,
    seen_at: KtimeNs,
    /// Threads of the kernel: they work for whoever asks them to.
    kernel: BTreeSet<u32>,
}

/// A process by its beginning, and the CPU time that it has used since.
#[derive(Clone, Copy)]
struct Ran {
    began: u64,
    cpu_ns: u64,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self {
            pace: Pace::sparing(SECOND),
            before: None,
            crowded: false,
            seen: BTreeMap::new(),
            seen_at: KtimeNs(0),
            kernel: BTreeSet::new(),
        }
    }
}

impl Neighbours {
    /// What the host did, and CPU nanoseconds of the job's threads so far.
    pub(super) fn host(&mut self, now: &HostSample, job_ns: u64) {
        let (before, job_before) = *self.before.get_or_insert((*now, job_ns));
        if now.at.since(before.at) >= TELLS_NS {
            self.before = Some((*now, job_ns));
            self.crowded = is_crowded(&before, now, job_ns.saturating_sub(job_before));
        }
    }

    /// Tells who has used CPU time since the look before, if it is due. `job`: whether a process belongs to the job.
    pub(super) fn poll(
        &mut self,
        at: KtimeNs,
        job: impl Fn(u32) -> bool,
        out: &mut Vec<Record>,
    ) -> Vec<u32> {
        if !self.crowded || !self.pace.is_due(at) {
            return Vec::new();
        }
        let Self {
            pace, seen, kernel, ..
        } = self;
        let now = pace.round(at, || look(|pid| kernel.contains(&pid)));
        let mut now = now.unwrap_or_default();
        kernel.extend(now.kernel);
        now.others.retain(|pid, _| !job(*pid));
        let from = std::mem::replace(&mut self.seen_at, at);
        let before = std::mem::replace(seen, now.others);
        if at.since(from) > FURTHEST_NS {
            return Vec::new();
        }
        let found = most(&before, &self.seen, at.since(from));
        out.extend(found.iter().map(|(pid, cpu_ns)| {
            Record::Neighbour(NeighbourSample {
                from,
                at,
                pid: *pid,
                cpu_ns: *cpu_ns,
            })
        }));
        found.into_iter().map(|(pid, _)| pid).collect()
    }

    pub(super) fn now(&mut self) {
        self.pace.now();
    }
}

/// Whether the host has next to no CPU time left between two samples, and others than the job have part of it.
fn is_crowded(before: &HostSample, now: &HostSample, job_ns: u64) -> bool {
    let passed = now.at.since(before.at) as f64;
    let busy = now.busy_ns.saturating_sub(before.busy_ns) as f64;
    let idle = now.idle_ns.saturating_sub(before.idle_ns) as f64;
    let others = busy - job_ns as f64;
    busy > 0.0 && idle < SPARE * (busy + idle) && others >= USUAL * passed
}

/// The processes of the host.
#[derive(Default)]
struct Looked {
    others: BTreeMap<u32, Ran>,
    kernel: Vec<u32>,
}

/// Reads /proc/PID/stat (proc_pid_stat(5)) of all but those that are known to be the kernel's, and but us.
fn look(is_kernel: impl Fn(u32) -> bool) -> Looked {
    let tick_ns = SECOND / procfs::ticks_per_second().max(1);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let own = std::process::id();
    let mut out = Looked::default();
    for pid in pids.filter(|pid| *pid != own && !is_kernel(*pid)) {
        // It may have ended.
        let Ok(stat) = Stat::from_file(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD) {
            out.kernel.push(pid);
            continue;
        }
        let ran = Ran {
            began: stat.starttime,
            cpu_ns: stat
                .utime
                .saturating_add(stat.stime)
                .saturating_mul(tick_ns),
        };
        out.others.insert(pid, ran);
    }
    out
}

/// Those that used most CPU time between two looks so many nanoseconds apart, with that time.
fn most(before: &BTreeMap<u32, Ran>, now: &BTreeMap<u32, Ran>, passed_ns: u64) -> Vec<(u32, u64)> {
    let used = |(pid, ran): (&u32, &Ran)| {
        let earlier = before.get(pid).filter(|before| before.began == ran.began);
        let used = ran.cpu_ns.saturating_sub(earlier?.cpu_ns);
        (used as f64 >= WORTH_TELLING * passed_ns as f64).then_some((*pid, used))
    };
    let mut found: Vec<(u32, u64)> = now.iter().filter_map(used).collect();
    found.sort_by_key(|(pid, ns)| (std::cmp::Reverse(*ns), *pid));
    found.truncate(MOST_TOLD);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_host_is_crowded_when_others_have_what_the_job_could_use() {
        let sample = |at: u64, busy: u64, idle: u64| HostSample {
            at: KtimeNs(at * MS),
            busy_ns: busy * MS,
            idle_ns: idle * MS,
            ..HostSample::default()
        };
        // Of two CPUs for a second: ms busy, idle, and busy with the job.
        for (busy, idle, job, crowded) in [
            (2_000, 0, 1_000, true),
            (1_800, 200, 1_000, true),
            // All its own; CPUs to spare; what any host does beside.
            (2_000, 0, 2_000, false),
            (1_500, 500, 500, false),
            (2_000, 0, 1_900, false),
            (0, 0, 0, false),
        ] {
            let found = is_crowded(
                &sample(1_000, 5_000, 300),
                &sample(2_000, 5_000 + busy, 300 + idle),
                job * MS,
            );
            assert_eq!(found, crowded, "{busy} {idle} {job}");
        }
    }

    #[test]
    fn those_are_told_that_used_much_since_the_look_before() {
        let ran = |began: u64, ms: u64| Ran {
            began,
            cpu_ns: ms * MS,
        };
        let before = BTreeMap::from([
            (1, ran(1, 90_000)),
            (2, ran(2, 10)),
            (3, ran(3, 10)),
            (4, ran(4, 10)),
        ]);
        let now = BTreeMap::from([
            (1, ran(1, 90_010)),
            (2, ran(2, 510)),
            (3, ran(3, 910)),
            // Another process of the same number, and one that was not there.
            (4, ran(9, 800)),
            (5, ran(9, 800)),
        ]);
        assert_eq!(
            most(&before, &now, 1_000 * MS),
            [(3, 900 * MS), (2, 500 * MS)]
        );
    }

    #[test]
    fn a_process_that_spins_is_told_with_the_time_that_it_spun() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let mut neighbours = Neighbours {
            crowded: true,
            ..Neighbours::default()
        };
        let mut out = Vec::new();
        let first = KtimeNs(100 * SECOND);
        assert!(neighbours.poll(first, |_| false, &mut out).is_empty());
        assert!(out.is_empty());
        let spun = || look(|_| false).others[&child.id()].cpu_ns;
        let begin = spun();
        while spun() < begin + 200 * MS {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        neighbours.now();
        let found = neighbours.poll(KtimeNs(first.0 + SECOND), |_| false, &mut out);
        assert!(found.contains(&child.id()));
        let told = out.iter().find_map(|record| match record {
            Record::Neighbour(sample) if sample.pid == child.id() => Some(sample.cpu_ns),
            _ => None,
        });
        assert!(told >= Some(200 * MS), "{told:?}");
        // What belongs to the job is not its neighbour.
        let own = child.id();
        neighbours.now();
        neighbours.poll(KtimeNs(first.0 + 2 * SECOND), |pid| pid == own, &mut out);
        neighbours.now();
        let found = neighbours.poll(KtimeNs(first.0 + 3 * SECOND), |pid| pid == own, &mut out);
        assert!(!found.contains(&own));
        child.kill().expect("a running child");
        child.wait().expect("its end");
    }
}
