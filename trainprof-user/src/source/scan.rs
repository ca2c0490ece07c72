//! The follow set at the start: processes, their descendants and all their threads, out of /proc.
//!
//! The fork probe is live before the first look, so every thread is either found here or made by one that
//! is followed already. The scan is repeated until it finds nothing new.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use trainprof_common::thread::{
    NR_PREEMPTED, NR_STOPPED, NR_UNSEEN, Object, State, TaskCounters, ThreadState,
};

use crate::{
    env::process,
    kernel::{KernelError, Probes},
    record::fact::Counters,
    time::KtimeNs,
};

use super::{
    blocked::{Blocked, blocked_in},
    own::now,
};

/// Why a process cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("no process {0}: it does not exist, or has ended. `ps aux` lists what runs")]
    NoSuchProcess(u32),
    #[error("process {0} is a kernel thread: it belongs to no training job")]
    KernelThread(u32),
    #[error("process {0} is trainprof itself")]
    Ourselves(u32),
    #[error("process {pid} ended before the probes were live")]
    Ended { pid: u32 },
    #[error("cannot read process {pid}: {source}")]
    Unreadable {
        pid: u32,
        source: Box<crate::env::EnvError>,
    },
}

/// Checks a target and gives its process id: a thread's id stands for its process.
pub fn check_target(pid: u32) -> Result<u32, TargetError> {
    if pid == std::process::id() {
        return Err(TargetError::Ourselves(pid));
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|_| TargetError::NoSuchProcess(pid))?;
    match process::is_kernel_thread(pid) {
        Ok(false) => {}
        Ok(true) => return Err(TargetError::KernelThread(pid)),
        Err(error) if error.is_gone() => return Err(TargetError::NoSuchProcess(pid)),
        Err(source) => {
            return Err(TargetError::Unreadable {
                pid,
                source: Box::new(source),
            });
        }
    }
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let process = field("Tgid:").and_then(|s| s.parse().ok()).unwrap_or(pid);
    // A process goes on for as long as any thread of it does, also where its first one has ended (pthread_exit(3) in `main`).
    if field("State:").is_some_and(|s| s.starts_with(['Z', 'X'])) && !goes_on(process) {
        return Err(TargetError::NoSuchProcess(pid));
    }
    Ok(process)
}

/// Whether a process has a thread that is not on its way out.
fn goes_on(pid: u32) -> bool {
    threads_of(pid).into_iter().any(|tid| {
        read_stat(&format!("/proc/{pid}/task/{tid}/stat")).is_some_and(|stat| !stat.is_ending())
    })
}

/// Whether a process's first thread has ended; true as well where all of it is about to.
pub fn has_lost_its_first_thread(pid: u32) -> bool {
    read_stat(&format!("/proc/{pid}/task/{pid}/stat")).is_some_and(|stat| stat.is_ending())
}

/// The parent of every process.
fn parents() -> io::Result<BTreeMap<u32, u32>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(stat) = read_stat(&format!("/proc/{pid}/stat")) {
            out.insert(pid, stat.ppid);
        }
    }
    Ok(out)
}

/// The targets and all their descendants, without us.
pub fn family(targets: &[u32]) -> io::Result<BTreeSet<u32>> {
    Ok(below(targets, &parents()?, std::process::id()))
}

/// As [`family`], from the parent of every process. Where we run below a target (`attach $$`), neither we nor the processes beside us
/// belong to the job: what watching costs is told apart, and a job that holds its watcher never ends. As no thread of theirs is
/// followed, neither is what they make later. What is itself a target is followed wherever it hangs: `run` watches a child of ours.
fn below(targets: &[u32], parents: &BTreeMap<u32, u32>, own: u32) -> BTreeSet<u32> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for (pid, parent) in parents {
        children.entry(*parent).or_default().push(*pid);
    }
    let mut out = BTreeSet::new();
    let mut queue: Vec<u32> = targets
        .iter()
        .copied()
        .filter(|pid| parents.contains_key(pid))
        .collect();
    while let Some(pid) = queue.pop() {
        if pid != own && out.insert(pid) {
            queue.extend(children.get(&pid).into_iter().flatten());
        }
    }
    out
}

/// Thread ids of a process.
pub fn threads_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What /proc/…/stat (proc(5)) says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub state: char,
    pub ppid: u32,
    /// `PF_…` (include/linux/sched.h).
    pub flags: u32,
    pub minor_faults: u64,
    pub major_faults: u64,
}

impl Stat {
    /// Whether the thread is on its way out: the flag is set before the probe at its end (`do_exit`, kernel/exit.c).
    fn is_ending(&self) -> bool {
        const PF_EXITING: u32 = 0x4;
        self.flags & PF_EXITING != 0 || matches!(self.state, 'Z' | 'X')
    }
}

fn read_stat(path: &str) -> Option<Stat> {
    parse_stat(&fs::read_to_string(path).ok()?)
}

/// Decodes a line of /proc/…/stat. The name may hold blanks and parentheses.
pub fn parse_stat(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line
        .get(line.rfind(')')? + 1..)?
        .split_ascii_whitespace()
        .collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        ppid: u32::try_from(number(1)?).ok()?,
        flags: u32::try_from(number(6)?).ok()?,
        minor_faults: number(7)?,
        major_faults: number(9)?,
    })
}

/// Counters of a live thread since it exists; `None` when it is gone.
pub fn counters(pid: u32, tid: u32) -> Option<Counters> {
    let stat = read_stat(&format!("/proc/{pid}/task/{tid}/stat"))?;
    let io = fs::read_to_string(format!("/proc/{pid}/task/{tid}/io")).unwrap_or_default();
    let field = |name: &str| {
        io.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0)
    };
    Some(Counters {
        minor_faults: stat.minor_faults,
        major_faults: stat.major_faults,
        storage_read_bytes: field("read_bytes:"),
        storage_write_bytes: field("write_bytes:"),
    })
}

/// The state to begin with for a thread that exists already.
fn initial_state(pid: u32, tid: u32) -> Option<ThreadState> {
    let seen = read_stat(&format!("/proc/{pid}/task/{tid}/stat"))?;
    // One may be for long, where it has much memory to give back: it is not looked at again and again.
    if seen.is_ending() {
        return None;
    }
    let base = counters(pid, tid)?;
    let unknown = |nr| Blocked {
        nr,
        object: Object::default(),
    };
    let (state, blocked) = match seen.state {
        'R' => (State::Run, unknown(NR_PREEMPTED)),
        'T' | 't' => (State::Wait, unknown(NR_STOPPED)),
        _ => {
            let blocked = blocked_in(pid, tid);
            (State::Wait, blocked.unwrap_or_else(|| unknown(NR_UNSEEN)))
        }
    };
    let exec_seen = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"))
        .ok()
        .and_then(|line| line.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let since = now().0;
    Some(ThreadState {
        tgid: pid,
        state: state as u32,
        nr: blocked.nr,
        object: blocked.object,
        since,
        maj_flt_seen: base.major_faults as u32,
        followed_since: since,
        exec_seen,
        base: TaskCounters {
            min_flt: base.minor_faults,
            maj_flt: base.major_faults,
            read_bytes: base.storage_read_bytes,
            write_bytes: base.storage_write_bytes,
        },
        ..ThreadState::default()
    })
}

/// A thread that is followed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    pub pid: u32,
    pub tid: u32,
    pub since: KtimeNs,
}

/// Who is followed.
trait FollowSet {
    fn has(&self, tid: u32) -> bool;
    /// `Ok(false)` when it is in it already.
    fn add(&mut self, tid: u32, state: ThreadState) -> Result<bool, KernelError>;
    fn remove(&mut self, tid: u32) -> Result<(), KernelError>;
}

impl FollowSet for Probes {
    fn has(&self, tid: u32) -> bool {
        self.thread(tid).is_some()
    }

    fn add(&mut self, tid: u32, state: ThreadState) -> Result<bool, KernelError> {
        self.follow(tid, state)
    }

    fn remove(&mut self, tid: u32) -> Result<(), KernelError> {
        self.unfollow(tid)
    }
}

/// Follows everything below `targets`. Gives what this call added.
pub fn follow_all(probes: &mut Probes, targets: &[u32]) -> Result<Vec<Followed>, ScanError> {
    let mut added = Vec::new();
    loop {
        let mut changed = false;
        for pid in family(targets)? {
            for tid in threads_of(pid) {
                match follow(probes, pid, tid)? {
                    Found::Known => {}
                    Found::Ending => changed = true,
                    Found::New(thread) => {
                        added.push(thread);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            return Ok(added);
        }
    }
}

/// What became of a thread that was found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is followed already, or too far gone to be looked at.
    Known,
    /// It ended meanwhile, or was another one's id that a program was executed under: whoever is there now is found by the next look.
    Ending,
    New(Followed),
}

/// Follows a thread that is not yet, and goes on.
fn follow(set: &mut impl FollowSet, pid: u32, tid: u32) -> Result<Found, KernelError> {
    if set.has(tid) {
        return Ok(Found::Known);
    }
    let Some(state) = initial_state(pid, tid) else {
        return Ok(Found::Known);
    };
    let since = KtimeNs(state.followed_since);
    if !set.add(tid, state)? {
        return Ok(Found::Known);
    }
    // The probe at its end may have passed before it was in the set: then nobody takes it out again.
    let now = read_stat(&format!("/proc/{pid}/task/{tid}/stat"));
    if now.is_none_or(|stat| stat.is_ending()) {
        set.remove(tid)?;
        return Ok(Found::Ending);
    }
    Ok(Found::New(Followed { pid, tid, since }))
}

/// What can go wrong in a scan.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("cannot list /proc: {0}")]
    Proc(#[from] io::Error),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_and_our_helpers_are_not_of_the_job_that_we_run_in() {
        // 10 is a shell: 11 its job with a worker, 20 we, 21 a process beside us.
        let parents = BTreeMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 10), (21, 20)]);
        let of = |targets: &[u32]| Vec::from_iter(below(targets, &parents, 20));
        assert_eq!(of(&[10]), [10, 11, 12]);
        assert_eq!(of(&[11]), [11, 12]);
        // `run`: the command is a child of ours.
        assert_eq!(of(&[21]), [21]);
        assert_eq!(of(&[10, 21]), [10, 11, 12, 21]);
        assert!(of(&[99]).is_empty());
    }

    /// A set whose threads end just before they are added to it.
    #[derive(Default)]
    struct Late {
        child: Option<std::process::Child>,
        /// Whether whoever waits for it is late too: then it is a zombie.
        reap: bool,
        has: BTreeSet<u32>,
    }

    impl FollowSet for Late {
        fn has(&self, tid: u32) -> bool {
            self.has.contains(&tid)
        }

        fn add(&mut self, tid: u32, _: ThreadState) -> Result<bool, KernelError> {
            if let Some(child) = &mut self.child {
                child.kill().expect("kill a child");
                if self.reap {
                    child.wait().expect("wait for a child");
                } else {
                    // SAFETY: the child is ours and not reaped; it stays a zombie.
                    let gone = unsafe {
                        libc::waitid(
                            libc::P_PID,
                            tid,
                            std::ptr::null_mut(),
                            libc::WEXITED | libc::WNOWAIT,
                        )
                    };
                    assert_eq!(gone, 0);
                }
            }
            Ok(self.has.insert(tid))
        }

        fn remove(&mut self, tid: u32) -> Result<(), KernelError> {
            self.has.remove(&tid);
            Ok(())
        }
    }

    #[test]
    fn who_ends_before_it_is_followed_is_not_followed_for_ever() {
        for reap in [true, false] {
            let child = std::process::Command::new("sleep").arg("100").spawn();
            let child = child.expect("start sleep");
            let pid = child.id();
            let mut late = Late {
                child: Some(child),
                reap,
                has: BTreeSet::new(),
            };
            assert_eq!(
                follow(&mut late, pid, pid).expect("no error"),
                Found::Ending
            );
            assert!(late.has.is_empty(), "reaped: {reap}");
            if let Some(mut child) = late.child.filter(|_| !reap) {
                child.wait().expect("wait for a child");
            }
        }
        // Who goes on is.
        let ours = std::process::id();
        let mut set = Late::default();
        let followed = follow(&mut set, ours, ours).expect("no error");
        assert!(matches!(followed, Found::New(thread) if thread.tid == ours));
        assert!(set.has.contains(&ours));
        let again = follow(&mut set, ours, ours).expect("no error");
        assert_eq!(again, Found::Known);
    }

    #[test]
    fn stat_lines() {
        let line = "42 (a) b (c)) S 7 42 42 0 -1 4194560 11 22 33 44 0 0";
        let expected = Stat {
            state: 'S',
            ppid: 7,
            flags: 4_194_560,
            minor_faults: 11,
            major_faults: 33,
        };
        assert_eq!(parse_stat(line), Some(expected));
        assert!(!expected.is_ending());
        for (state, flags, ending) in [('D', 4_194_564, true), ('Z', 0, true), ('R', 0, false)] {
            let stat = Stat {
                state,
                flags,
                ..expected
            };
            assert_eq!(stat.is_ending(), ending, "{state} {flags}");
        }
        for bad in [
            "",
            "42",
            "42 (x",
            "42 (x) S",
            "42 (x) S y 1 1 1 1 1 1 1 1 1",
        ] {
            assert_eq!(parse_stat(bad), None, "{bad:?}");
        }
    }
}
