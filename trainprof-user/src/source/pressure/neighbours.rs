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

use super::{SECOND, own, pace::Pace};
use crate::{
    record::{
        Record,
        fact::{HostSample, NeighboursFact},
    },
    time::KtimeNs,
};

/// CPU time that nobody used, as a share of what there was: with more than this, whoever wants a CPU gets one.
const SPARE: f64 = 0.2;
/// CPUs that others than the job have all the time on any host, and that are not worth asking who it is.
const USUAL: f64 = 0.2;
/// CPU time of the host is counted in ticks: over less than this it tells nothing.
const TELLS_NS: u64 = SECOND / 2;
/// What one of them must take (CPUs) to be told, and how many are told.
const WORTH_TELLING: f64 = 0.05;
const MOST_TOLD: usize = 8;
/// Two looks lie at least and at most so far apart.
const LEAST_APART_NS: u64 = SECOND * 9 / 10;
const MOST_APART_NS: u64 = 3 * SECOND;
/// Processes whose CPU time is kept: when there are more, those that had little go.
const MOST_KEPT: usize = 4096;

/// Looks for them when the host is crowded: again and again, or, where a look is dear, twice and then not for long.
pub(super) struct Neighbours {
    pace: Pace,
    /// The whole host, and CPU nanoseconds of the job, at the time before.
    before: Option<(HostSample, u64)>,
    crowded: bool,
    /// The look before, the host having been crowded since.
    seen: Option<(KtimeNs, BTreeMap<u32, Ran>)>,
    /// It was one to compare the next one with.
    first: bool,
    /// CPU nanoseconds of each between looks, and how long these were apart, all of them.
    sums: BTreeMap<u32, u64>,
    looked_ns: u64,
    /// Threads of the kernel: they work for whoever asks them to.
    kernel: BTreeSet<u32>,
}

/// A process by its beginning, and the CPU time that it has used since, and that its children had used that it has seen end.
#[derive(Clone, Copy)]
struct Ran {
    began: u64,
    parent: u32,
    cpu_ns: u64,
    ended_ns: u64,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self {
            pace: Pace::sparing(SECOND),
            before: None,
            crowded: false,
            seen: None,
            first: false,
            sums: BTreeMap::new(),
            looked_ns: 0,
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
            if !self.crowded {
                self.seen = None;
            }
        }
    }

    /// Looks, if it is due, and tells who has used most. `job`: whether a process belongs to the job.
    pub(super) fn poll(
        &mut self,
        at: KtimeNs,
        job: impl Fn(u32) -> bool,
        out: &mut Vec<Record>,
    ) -> Vec<u32> {
        let apart = self.seen.as_ref().map(|(before, _)| at.since(*before));
        let comparable = apart.filter(|apart| *apart <= MOST_APART_NS);
        let second = self.first && comparable.is_some();
        if !self.crowded || !second && !self.pace.is_due(at) {
            return Vec::new();
        }
        if comparable.is_some_and(|apart| apart < LEAST_APART_NS) {
            return Vec::new();
        }
        let begin = own::thread_cpu_ns();
        let mut now = look(|pid| self.kernel.contains(&pid));
        let cost = own::thread_cpu_ns().saturating_sub(begin);
        self.kernel.extend(now.kernel);
        now.others.retain(|pid, _| !job(*pid));
        let before = self.seen.replace((at, now.others));
        self.first = comparable.is_none();
        let (Some((_, before)), Some(apart)) = (before, comparable) else {
            return Vec::new();
        };
        self.pace.spent(at, cost);
        self.add(&before, apart);
        let most = self.most();
        let pids = most.iter().map(|(pid, _)| *pid).collect();
        out.push(Record::Neighbours(NeighboursFact {
            at,
            looked_ns: self.looked_ns,
            most,
        }));
        pids
    }

    /// Adds what each has used since the look before.
    fn add(&mut self, before: &BTreeMap<u32, Ran>, apart_ns: u64) {
        self.looked_ns += apart_ns;
        let now = self.seen.iter().map(|(_, now)| now);
        for (pid, used) in now.flat_map(|now| used(before, now)) {
            *self.sums.entry(pid).or_default() += used;
        }
        if self.sums.len() > MOST_KEPT {
            let little = self.worth_telling();
            self.sums.retain(|_, ns| *ns as f64 >= little);
        }
    }

    fn worth_telling(&self) -> f64 {
        WORTH_TELLING * self.looked_ns as f64
    }

    /// Those that used most, with how much.
    fn most(&self) -> Vec<(u32, u64)> {
        let least = self.worth_telling();
        let sums = self.sums.iter().map(|(pid, ns)| (*pid, *ns));
        let mut out: Vec<(u32, u64)> = sums.filter(|(_, ns)| *ns as f64 >= least).collect();
        out.sort_by_key(|(pid, ns)| (std::cmp::Reverse(*ns), *pid));
        out.truncate(MOST_TOLD);
        out
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

/// Reads /proc/PID/stat (proc_pid_stat(5)) of all but those that are known to be the kernel's, and but us and our helpers.
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
        if u32::try_from(stat.ppid) == Ok(own) {
            continue;
        }
        let ran = Ran {
            began: stat.starttime,
            parent: u32::try_from(stat.ppid).unwrap_or(0),
            cpu_ns: stat
                .utime
                .saturating_add(stat.stime)
                .saturating_mul(tick_ns),
            ended_ns: u64::try_from(stat.cutime.saturating_add(stat.cstime))
                .unwrap_or(0)
                .saturating_mul(tick_ns),
        };
        out.others.insert(pid, ran);
    }
    out
}

/// CPU nanoseconds that processes have used since the look before. What has begun since then, or has ended, counts for who started it:
/// programs that are run again and again are one neighbour.
fn used(before: &BTreeMap<u32, Ran>, now: &BTreeMap<u32, Ran>) -> BTreeMap<u32, u64> {
    let went_on = |pid: &u32, ran: &Ran| before.get(pid).is_some_and(|b| b.began == ran.began);
    // The first process takes in whoever has lost its parent.
    let starts = |pid: u32| pid > 1 && now.get(&pid).is_some_and(|ran| went_on(&pid, ran));
    let mut used = BTreeMap::<u32, u64>::new();
    let mut ended = BTreeMap::<u32, u64>::new();
    for (pid, ran) in now {
        if let Some(earlier) = before.get(pid).filter(|_| went_on(pid, ran)) {
            *used.entry(*pid).or_default() += ran.cpu_ns.saturating_sub(earlier.cpu_ns);
            ended.insert(*pid, ran.ended_ns.saturating_sub(earlier.ended_ns));
        } else if starts(ran.parent) {
            *used.entry(ran.parent).or_default() += ran.cpu_ns + ran.ended_ns;
        }
    }
    // What these had used by the look before was counted then.
    let gone = before
        .iter()
        .filter(|(pid, ran)| now.get(pid).is_none_or(|now| now.began != ran.began));
    for (_, ran) in gone {
        if let Some(ended) = ended.get_mut(&ran.parent) {
            *ended = ended.saturating_sub(ran.cpu_ns + ran.ended_ns);
        }
    }
    for (pid, ns) in ended.into_iter().filter(|(pid, _)| *pid > 1) {
        *used.entry(pid).or_default() += ns;
    }
    used.retain(|_, ns| *ns > 0);
    used
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

    fn ran(began: u64, ms: u64) -> Ran {
        Ran {
            began,
            parent: 0,
            cpu_ns: ms * MS,
            ended_ns: 0,
        }
    }

    #[test]
    fn programs_that_are_run_again_and_again_count_for_who_runs_them() {
        const SHELL: u32 = 50;
        let shell = |ended: u64| Ran {
            ended_ns: ended * MS,
            ..ran(1, 10)
        };
        let child = |began: u64, ms: u64| Ran {
            parent: SHELL,
            ..ran(began, ms)
        };
        let look = |list: &[(u32, Ran)]| list.iter().copied().collect::<BTreeMap<_, _>>();
        // One that goes on for 300 ms more and ends; one that begins and ends; one that has begun, and runs for 400 ms by now.
        let before = look(&[(SHELL, shell(5_000)), (60, child(7, 200))]);
        let now = look(&[(SHELL, shell(5_000 + 500 + 250)), (62, child(9, 400))]);
        let told = used(&before, &now);
        assert_eq!(told, [(SHELL, (300 + 250 + 400) * MS)].into());
        // That one ends, after 50 ms more.
        let last = look(&[(SHELL, shell(5_750 + 450))]);
        assert_eq!(used(&now, &last), [(SHELL, 50 * MS)].into());
        // Long-lived children count for themselves; whose parent is not there, or the first process, for nobody before the next look.
        let orphan = Ran {
            parent: 1,
            ..ran(8, 700)
        };
        let before = look(&[(1, ran(0, 0)), (SHELL, shell(0)), (60, child(7, 200))]);
        let now = look(&[
            (1, ran(0, 0)),
            (SHELL, shell(0)),
            (60, child(7, 900)),
            (70, orphan),
        ]);
        assert_eq!(used(&before, &now), [(60, 700 * MS)].into());
    }

    #[test]
    fn those_are_told_that_used_most_of_all_time_that_was_looked_at() {
        let mut neighbours = Neighbours::default();
        let mut look = |ran: &[(u32, Ran)]| {
            let now = ran.iter().copied().collect();
            let before = neighbours.seen.replace((KtimeNs(0), now));
            if let Some((_, before)) = before {
                neighbours.add(&before, SECOND);
            }
            neighbours.most()
        };
        look(&[(1, ran(1, 90_000)), (2, ran(2, 10)), (4, ran(4, 10))]);
        let second = [
            (1, ran(1, 90_010)),
            (2, ran(2, 810)),
            // Another process of the same number, and one that was not there.
            (4, ran(9, 800)),
            (5, ran(9, 0)),
        ];
        assert_eq!(look(&second), [(2, 800 * MS)]);
        // Nobody for a while; then another one, for a moment.
        for _ in 0..7 {
            look(&second);
        }
        assert_eq!(look(&second), [(2, 800 * MS)]);
        let last = look(&[(2, ran(2, 810)), (5, ran(9, 900))]);
        assert_eq!(last, [(5, 900 * MS), (2, 800 * MS)]);
        assert_eq!(neighbours.looked_ns, 10 * SECOND);
    }

    #[test]
    fn as_many_as_are_told_are_those_that_had_most_in_all() {
        let mut neighbours = Neighbours::default();
        // Twelve that take turns, a second each, and one that has a fifth of a CPU all the time.
        for second in 0..=24_u64 {
            let turns =
                (0..12).map(|pid| (pid, ran(1, 1_000 * (second + 11 - u64::from(pid)) / 12)));
            let now = turns.chain([(99, ran(1, 200 * second))]).collect();
            let before = neighbours.seen.replace((KtimeNs(0), now));
            if let Some((_, before)) = before {
                neighbours.add(&before, SECOND);
            }
        }
        let most = neighbours.most();
        assert_eq!(most.len(), MOST_TOLD);
        assert_eq!(most[0], (99, 24 * 200 * MS));
    }

    /// Looks at a crowded host at these times (s), each look costing nothing, or so much that long rests follow.
    fn looks(at_s: &[u64], dear: bool) -> Vec<bool> {
        let mut neighbours = Neighbours {
            crowded: true,
            ..Neighbours::default()
        };
        let mut out = Vec::new();
        let looked = |at: &u64| {
            let at = KtimeNs((100 + at) * SECOND);
            let before = out.len();
            neighbours.poll(at, |_| false, &mut out);
            if dear && out.len() > before {
                neighbours.pace.spent(at, 50 * MS);
            }
            out.len() > before
        };
        at_s.iter().map(looked).collect()
    }

    #[test]
    fn where_a_look_is_dear_two_are_close_together_and_then_there_is_none_for_long() {
        let told = looks(&[0, 1, 2, 3, 10, 51, 52, 53], true);
        assert_eq!(told, [false, true, false, false, false, false, true, false]);
        assert_eq!(looks(&[0, 1, 2, 3], false)[..2], [false, true]);
    }

    #[test]
    fn we_and_our_helpers_are_no_neighbours() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60"])
            .spawn()
            .expect("a shell");
        // Our own children are helpers.
        let others = look(|_| false).others;
        assert!(!others.contains_key(&child.id()));
        assert!(!others.contains_key(&std::process::id()));
        child.kill().expect("a running child");
        child.wait().expect("its end");
        assert!(!others.is_empty());
    }
}
