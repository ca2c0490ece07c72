//! A watch on the live kernel: follows, drains, looks up what must be looked up while it is there, and
//! turns all of it into records. Has no opinion on any of them.

mod beside;
mod busy;
mod cost;
mod ending;
mod estimate;
mod events;
mod helpers;
mod intervals;
mod looks;
mod trainers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::BorrowedFd,
    time::Duration,
};

use trainprof_common::{loss::Loss, thread::ThreadState};

pub use self::cost::Hidden;
use self::{
    beside::Beside,
    busy::Busy,
    cost::Cost,
    estimate::Estimate,
    trainers::{busy_below, used},
};

use super::{
    alloc::{Allocs, Mode},
    entries::Entries,
    foreign::Foreign,
    gpu::Gpus,
    jitter::Jitter,
    mapped::Mapped,
    memo::Memo,
    newcomers::Newcomers,
    outsiders::Outsiders,
    own,
    pages::{self, Pages},
    places::Places,
    pressure::{Job, Pressure},
    python::{Codes, Pythons},
    scan::{self, ScanError, TargetError},
    stacks::Stacks,
    throttle::{Bounds, Throttle},
    turns::{SomeCalls, Turns},
};
use crate::{
    env::{EnvError, cgroup::Groups, host::HostFacts, process},
    event::{self, Event},
    kernel::{KernelError, Limits, Probes, StatsSwitch},
    record::{
        Record,
        fact::{FaultSamplingFact, SamplingFact, Start, ThreadSeen},
    },
    time::KtimeNs,
};

/// So many single events a second of each kind are dealt with at about 1 % of a core.
const RAISE_ABOVE: u64 = 6_000;
const LOWER_BELOW: u64 = 1_500;
/// How far a threshold for single events may rise above its limit at the start.
const RAISE_AT_MOST: u64 = 32;

/// What is estimated of the cost of calls is on the safe side of a budget: where there are so many that it slows the job down, they cost
/// about half of it (docs/BENCHMARKS.md, (b)). Numbers of calls that were not counted are reckoned with that.
const OF_ESTIMATE: f64 = 0.5;

/// How long a drain waits for functions that are being looked up: mostly they are there at once.
const PLACE_PATIENCE: Duration = Duration::from_millis(3);
/// Why a watch could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("cannot learn about this host: {0}")]
    Host(#[from] EnvError),
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Processes; their descendants come along.
    pub targets: Vec<u32>,
    pub limits: Limits,
    pub alloc: Mode,
    /// Share (0–1) of the job's CPU time that watching may cost.
    pub overhead_budget: f64,
}

/// A running watch. Records gather in `out`; take them with [`Live::take`].
pub struct Live {
    probes: Probes,
    memo: Memo,
    foreign: Foreign,
    newcomers: Newcomers,
    groups: Groups,
    outsiders: Outsiders,
    pressure: Pressure,
    /// CPU nanoseconds of the threads that were alive in the last interval, since each is followed.
    ran_ns: u64,
    places: Places,
    stacks: Stacks,
    pythons: Pythons,
    busy: Busy,
    pages: Pages,
    /// Sampled page faults so far, and faults that they stand for.
    faults: u32,
    /// What was allocated on GPUs and given back so far.
    gpu_memories: u32,
    /// By which Python what is there was allocated, by process and address, with when; not asked about yet.
    gpu_asks: BTreeMap<(u32, u64), (u64, Codes)>,
    all_faults: u64,
    edge_is_told: bool,
    beside: Beside,
    out: Vec<Record>,
    /// Process of every live thread that is followed.
    alive: BTreeMap<u32, u32>,
    /// Everybody who ever belonged to the job.
    members: BTreeSet<u32>,
    /// How many of them there were at the end of the last interval, and whether others had come in it.
    members_before: usize,
    came: bool,
    /// Every followed thread as it was at the last [`Live::switch_over`], by id.
    threads: Vec<(u32, ThreadState)>,
    begun: KtimeNs,
    interval_from: KtimeNs,
    losses: Vec<(Loss, u64)>,
    undecodable: u64,
    events: u64,
    cost: Cost,
    /// Switches the kernel's counting for `cost`; `None`: it cannot, which was told.
    switch: Option<StatsSwitch>,
    /// What the probes cost where the kernel counts nothing, and [`Probes::pace`] when that was told last.
    estimate: Estimate,
    pace: u64,
    targets: Vec<u32>,
    mapped: Mapped,
    intervals: u32,
    /// Threshold for single waits, and spacing of the calls that are noted.
    waits: Throttle,
    touches: Throttle,
    /// The processes whose calls are noted, and what calls cost while theirs alone are counted.
    touched: BTreeSet<u32>,
    some_calls: SomeCalls,
    /// Until the end of the last interval.
    hidden_before: Hidden,
    windows_of_some: u32,
    entries: Entries,
    turns: Turns,
    /// All calls are counted again, and what that costs is to be measured.
    counted_again: bool,
    gpus: Gpus,
    allocs: Allocs,
    /// When the kernel counts for [`Cost`].
    counting: Jitter,
    /// Records of `out` that [`Allocs`] has seen.
    observed: usize,
}

impl Live {
    /// Loads the probes and follows the targets. When this returns, every probe is live.
    pub fn attach(watch: &Watch) -> Result<Self, SourceError> {
        let asked = own::now();
        let mut targets = Vec::new();
        for pid in &watch.targets {
            targets.push(scan::check_target(*pid)?);
        }
        let used_before = used(scan::family(&targets).unwrap_or_default());
        let mut probes = Probes::attach(watch.limits)?;
        let mut gpus = Gpus::default();
        if let (Some(calls), Ok(family)) = (&mut probes.calls, scan::family(&targets)) {
            calls.begin(&family);
            let now = own::now();
            for pid in family {
                gpus.looked_at(pid, process::age_ns(pid).unwrap_or(0), now);
            }
        }
        let added = scan::follow_all(&mut probes, &targets)?;
        let at = added
            .iter()
            .map(|thread| thread.since)
            .min()
            .unwrap_or_else(own::now);
        for pid in &targets {
            if !added.iter().any(|thread| thread.pid == *pid) {
                return Err(TargetError::Ended { pid: *pid }.into());
            }
        }
        let mut live = Self {
            probes,
            memo: Memo::default(),
            foreign: Foreign::default(),
            newcomers: Newcomers::default(),
            groups: Groups::default(),
            outsiders: Outsiders::default(),
            pressure: Pressure::default(),
            ran_ns: 0,
            places: Places::default(),
            stacks: Stacks::default(),
            pythons: Pythons::default(),
            busy: Busy::default(),
            pages: Pages::default(),
            faults: 0,
            gpu_memories: 0,
            gpu_asks: BTreeMap::new(),
            all_faults: 0,
            edge_is_told: false,
            beside: Beside::new(watch.limits.seed.rotate_left(16)),
            out: Vec::new(),
            alive: BTreeMap::new(),
            members: BTreeSet::new(),
            members_before: 0,
            came: false,
            threads: Vec::new(),
            begun: at,
            interval_from: at,
            losses: Vec::new(),
            undecodable: 0,
            events: 0,
            cost: Cost::begin(at),
            switch: None,
            estimate: Estimate::default(),
            pace: 0,
            targets: targets.clone(),
            mapped: Mapped::default(),
            intervals: 0,
            waits: throttle(watch.limits.event_min_ns),
            touches: throttle(watch.limits.touch_spacing_ns),
            touched: BTreeSet::new(),
            some_calls: SomeCalls::default(),
            hidden_before: Hidden::default(),
            windows_of_some: 0,
            entries: Entries::default(),
            turns: Turns::new(at, watch.limits.seed),
            counted_again: false,
            gpus,
            allocs: Allocs::new(watch.alloc, watch.overhead_budget, watch.limits.seed),
            counting: Jitter::new(watch.limits.seed.rotate_left(32)),
            observed: 0,
        };
        // One of them is the trainer, most often.
        live.set_touched(&live.targets.iter().copied().collect());
        live.out.push(Record::Start(Start {
            at,
            anchor: own::anchor(),
            host: HostFacts::read()?,
            targets: targets.clone(),
            event_min_ns: watch.limits.event_min_ns,
            attach_ns: own::now().since(asked),
        }));
        for skipped in std::mem::take(&mut live.probes.skipped) {
            live.out.push(Record::Missing {
                what: skipped.what,
                reason: skipped.reason,
            });
        }
        let family: BTreeSet<u32> = added.iter().map(|thread| thread.pid).collect();
        live.out.extend(unreadable(&family));
        for pid in family {
            // Uprobes are opened by a process's first thread (`find_lively_task_by_vpid`, kernel/events/core.c).
            if scan::has_lost_its_first_thread(pid) {
                live.out.push(Record::Missing {
                    what: format!("calls in libraries of process {pid}"),
                    reason:
                        "its first thread has ended, by which probes in programs are put in place"
                            .to_owned(),
                });
            }
        }
        if let Some(hz) = live.probes.sampling_hz() {
            live.out.push(Record::Sampling(SamplingFact { hz }));
        }
        if let Some(period) = live.probes.fault_period {
            live.fault_sampling(period);
        }
        let mut seen = BTreeSet::new();
        for thread in added {
            if seen.insert(thread.pid) {
                live.process(thread.since, thread.pid, None, None);
            }
            let name = comm(thread.pid, thread.tid).unwrap_or_default();
            live.thread(ThreadSeen {
                at: thread.since,
                pid: thread.pid,
                tid: thread.tid,
                parent_tid: None,
                name,
            });
        }
        let busy = busy_below(&targets, &used_before, &used(live.members.clone()));
        let first = live.first_trainers().union(&busy).copied().collect();
        live.set_touched(&first);
        let resident = live.resident();
        let job = Job {
            resident: &resident,
            ran_ns: 0,
        };
        live.pressure
            .poll(own::now(), job, &mut live.outsiders, &mut live.out);
        Ok(live)
    }

    /// How many processes of the job are alive, as far as events told.
    pub fn processes(&self) -> usize {
        self.alive.values().collect::<BTreeSet<_>>().len()
    }

    /// Becomes readable when many events wait.
    pub fn ring_fd(&self) -> BorrowedFd<'_> {
        self.probes.ring_fd()
    }

    /// Whether events and sums are to be looked at a fourth as often.
    pub fn are_drains_seldom(&self) -> bool {
        self.allocs.are_drains_seldom()
    }

    /// The records that have gathered.
    pub fn take(&mut self) -> Vec<Record> {
        self.observe();
        self.observed = 0;
        std::mem::take(&mut self.out)
    }

    /// By which part counting all calls makes the job slower, as far as is known.
    fn slowed_by_counting(&self) -> f64 {
        let slowed = self.allocs.slowed_by_counting();
        match self.switch {
            Some(_) => slowed,
            None => slowed * OF_ESTIMATE,
        }
    }

    /// Turns waiting events into records.
    pub fn drain_events(&mut self) {
        let mut events = Vec::new();
        let mut bad = 0;
        self.probes.events(|bytes| match event::decode(bytes) {
            Ok(event) => events.push(event),
            Err(error) => {
                tracing::warn!(%error, "an event could not be decoded");
                bad += 1;
            }
        });
        self.undecodable += bad;
        self.events += events.len() as u64;
        self.throttle(&events);
        // Functions are told before calls of them.
        self.gpus();
        for event in events {
            self.event(event);
        }
        self.look_at_newcomers(own::now());
        self.pressure.resolve_sockets(&mut self.out);
        self.places.settle(PLACE_PATIENCE, &mut self.out);
        self.stacks
            .settle(Duration::ZERO, &mut self.places, &mut self.out);
        self.pythons.tick(&self.alive, &mut self.out);
        for (pid, thread) in self.pythons.found() {
            self.probes.py_thread(pid, Some(thread));
        }
        self.observe();
        self.allocs.tick(
            own::now(),
            &self.alive,
            self.probes.alloc.as_mut(),
            &mut self.places,
            &mut self.out,
        );
    }

    /// Lets the governor of allocation windows see the records that it has not seen yet.
    fn observe(&mut self) {
        let new = self.out.get(self.observed..).unwrap_or_default();
        self.allocs.observe(new, &self.alive);
        self.observed = self.out.len();
    }

    /// Has fewer single events sent when too many arrive.
    fn throttle(&mut self, events: &[Event]) {
        let (mut waits, mut touches) = (0, 0);
        for event in events {
            match event {
                Event::Wait(_) => waits += 1,
                Event::Touch(_) => touches += 1,
                _ => {}
            }
        }
        let now = own::now();
        let wait_ns = self.waits.arrived(waits, now);
        let touch_ns = self.touches.arrived(touches, now);
        self.set_thresholds(wait_ns, touch_ns);
    }

    fn set_thresholds(&mut self, wait_ns: Option<u64>, touch_ns: Option<u64>) {
        let failed = [
            wait_ns.map(|ns| self.probes.set_event_min_ns(ns)),
            touch_ns.map(|ns| self.probes.set_touch_spacing_ns(ns)),
        ];
        for error in failed.into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(%error, "a threshold for single events could not be changed");
        }
    }

    fn gpus(&mut self) {
        let job: BTreeSet<u32> = self.alive.values().copied().collect();
        let mut calls = self.probes.calls.take();
        self.gpus.tick(
            own::now(),
            &job,
            calls.as_mut(),
            |function| self.probes.gpu_count(function),
            &mut self.out,
        );
        self.probes.calls = calls;
    }

    /// Tells that one of so many page faults is looked at.
    fn fault_sampling(&mut self, period: u32) {
        self.out.push(Record::FaultSampling(FaultSamplingFact {
            period,
            page_bytes: pages::page_bytes() as u32,
        }));
    }
}

fn throttle(least: u64) -> Throttle {
    Throttle::new(Bounds {
        least,
        most: least * RAISE_AT_MOST,
        raise_above: RAISE_ABOVE,
        lower_below: LOWER_BELOW,
    })
}

fn comm(pid: u32, tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"))
        .ok()
        .map(|s| s.trim_end().to_owned())
}

/// Says of which processes little can be read: those of other users, for who may not trace them (ptrace(2), access mode checking).
fn unreadable(pids: &BTreeSet<u32>) -> Option<Record> {
    let is_refused = |pid: &&u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let refused: Vec<String> = pids.iter().filter(is_refused).map(u32::to_string).collect();
    let (first, rest) = refused.split_first()?;
    let whose = match rest.len() {
        0 => format!("process {first}"),
        n => format!("process {first} and {n} more"),
    };
    Some(Record::Missing {
        what: format!("programs, libraries, open files and waits that had begun before, of {whose}"),
        reason: "it is another user's, and /proc is read for that with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: sudo, or setcap as \
                 `trainprof doctor` shows"
            .to_owned(),
    })
}
