//! A watch on the live kernel: follows, drains, looks up what must be looked up while it is there, and
//! turns all of it into records. Has no opinion on any of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::BorrowedFd,
    time::Duration,
};

use trainprof_common::{
    event::{EXIT_OUT_OF_MEMORY, FAULT_IN_KERNEL, FAULT_WRITE_TO_SHARED},
    loss::Loss,
    op::Class,
    thread::ThreadState,
};

use super::{
    alloc::{Allocs, Mode},
    convert::{
        gpu_call, gpu_call_under_way, histograms, object_fact, op_sum, thread_end, totals,
        touch_fact, wait_fact, wait_object, wait_sum,
    },
    entries::Entries,
    gpu::Gpus,
    memo::Memo,
    outsiders::{Outsiders, WORTH_NAMING_NS},
    own,
    pages::{self, Pages},
    places::Places,
    pressure::Pressure,
    scan::{self, ScanError, TargetError},
    stacks::{Raw, Stacks},
    throttle::{Bounds, Throttle},
};
use crate::{
    env::{EnvError, frameworks::FrameworkFacts, host::HostFacts, process::ProcessFacts},
    event::{self, Event},
    gpu,
    kernel::{Aggregates, KernelError, Limits, Probes, RunStats, touch_slot},
    record::{
        Record,
        fact::{
            CostSample, Counters, FaultFact, FaultSamplingFact, Interval, ObjectFact, OpenThread,
            ProcessSeen, SamplingFact, Start, Stop, StopReason, ThreadSeen,
        },
    },
    time::KtimeNs,
};

/// Intervals after which the mapped frameworks are looked at again.
const FRAMEWORKS_AT: [u32; 3] = [2, 10, 60];

/// So many single events a second of each kind are dealt with at about 1 % of a core.
const RAISE_ABOVE: u64 = 6_000;
const LOWER_BELOW: u64 = 1_500;
/// How far a threshold for single events may rise above its limit at the start.
const RAISE_AT_MOST: u64 = 32;

/// How long a drain waits for functions that are being looked up: mostly they are there at once.
const PLACE_PATIENCE: Duration = Duration::from_millis(3);
/// The same at the end of the watch.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

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
    outsiders: Outsiders,
    pressure: Pressure,
    places: Places,
    stacks: Stacks,
    pages: Pages,
    /// Sampled page faults so far.
    faults: u32,
    out: Vec<Record>,
    /// Process of every live thread that is followed.
    alive: BTreeMap<u32, u32>,
    /// Everybody who ever belonged to the job.
    members: BTreeSet<u32>,
    /// Every followed thread as it was at the last [`Live::switch_over`], by id.
    threads: Vec<(u32, ThreadState)>,
    interval_from: KtimeNs,
    started: KtimeNs,
    losses: Vec<(Loss, u64)>,
    undecodable: u64,
    events: u64,
    counted: Counted,
    targets: Vec<u32>,
    intervals: u32,
    /// CPU time that the host had used when the watch began.
    host_busy_ns: Option<u64>,
    /// Threshold for single waits, and spacing of the calls that are noted.
    waits: Throttle,
    touches: Throttle,
    /// [`touch_slot`]s of the processes whose calls are noted.
    touched: BTreeSet<u32>,
    entries: Entries,
    gpus: Gpus,
    allocs: Allocs,
    /// Records of `out` that [`Allocs`] has seen.
    observed: usize,
    /// What the probes cost so far, extrapolated.
    probes_cost: RunStats,
}

/// Run time of the probes, counted by the kernel in short windows.
#[derive(Default)]
struct Counted {
    window: Option<(KtimeNs, RunStats)>,
    stats: RunStats,
    ns: u64,
}

impl Live {
    /// Loads the probes and follows the targets. When this returns, every probe is live.
    pub fn attach(watch: &Watch) -> Result<Self, SourceError> {
        let asked = own::now();
        let mut targets = Vec::new();
        for pid in &watch.targets {
            targets.push(scan::check_target(*pid)?);
        }
        let probes = Probes::attach(watch.limits)?;
        let added = scan::follow_all(&probes, &targets)?;
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
            outsiders: Outsiders::default(),
            pressure: Pressure::default(),
            places: Places::default(),
            stacks: Stacks::default(),
            pages: Pages::default(),
            faults: 0,
            out: Vec::new(),
            alive: BTreeMap::new(),
            members: BTreeSet::new(),
            threads: Vec::new(),
            interval_from: at,
            started: at,
            losses: Vec::new(),
            undecodable: 0,
            events: 0,
            counted: Counted::default(),
            targets: targets.clone(),
            intervals: 0,
            host_busy_ns: own::host_busy_ns(),
            waits: throttle(watch.limits.event_min_ns),
            touches: throttle(watch.limits.touch_spacing_ns),
            touched: BTreeSet::new(),
            entries: Entries::default(),
            gpus: Gpus::default(),
            allocs: Allocs::new(
                watch.alloc,
                watch.overhead_budget,
                own::usage().0,
                watch.limits.seed,
            ),
            observed: 0,
            probes_cost: RunStats::default(),
        };
        // One of them is the trainer, most often.
        live.set_touched(&live.targets.iter().copied().collect());
        live.out.push(Record::Start(Start {
            at,
            anchor: own::anchor(),
            host: HostFacts::read()?,
            targets,
            event_min_ns: watch.limits.event_min_ns,
            attach_ns: own::now().since(asked),
        }));
        for skipped in std::mem::take(&mut live.probes.skipped) {
            live.out.push(Record::Missing {
                what: skipped.what,
                reason: skipped.reason,
            });
        }
        if let Some(hz) = live.probes.sampling_hz {
            live.out.push(Record::Sampling(SamplingFact { hz }));
        }
        if let Some(period) = live.probes.fault_period {
            live.out.push(Record::FaultSampling(FaultSamplingFact {
                period,
                page_bytes: pages::page_bytes() as u32,
            }));
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
        live.pressure
            .poll(own::now(), &live.resident(), &mut live.out);
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

    /// The records that have gathered.
    pub fn take(&mut self) -> Vec<Record> {
        self.observe();
        self.observed = 0;
        std::mem::take(&mut self.out)
    }

    /// Notes the calls of these processes one by one from now on, and of no other.
    pub fn set_touched(&mut self, pids: &BTreeSet<u32>) {
        let slots: BTreeSet<u32> = pids.iter().map(|pid| touch_slot(*pid)).collect();
        for slot in self.touched.symmetric_difference(&slots) {
            if let Err(error) = self.probes.touch(*slot, slots.contains(slot)) {
                tracing::warn!(%error, "whose calls are noted could not be changed");
            }
        }
        self.touched = slots;
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
        self.pressure.resolve_sockets(&mut self.out);
        self.places.settle(PLACE_PATIENCE, &mut self.out);
        self.stacks
            .settle(Duration::ZERO, &mut self.places, &mut self.out);
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
        let wait_ns = self.waits.arrived(waits);
        let touch_ns = self.touches.arrived(touches);
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

    /// Looks how many calls the job makes, and decides whether their beginnings are shown until the next look.
    pub fn look_at_pace(&mut self) {
        let shown = self.entries.look(own::now().0, self.probes.pace());
        if let Err(error) = self.probes.show_entries(shown) {
            tracing::warn!(%error, shown, "whether beginnings of calls are shown could not be changed");
            if shown {
                self.entries.refused();
                self.out.push(Record::Missing {
                    what: "call-latencies".to_owned(),
                    reason: format!(
                        "the job made very many calls, and then their beginnings could not be watched again: {error}"
                    ),
                });
            }
        }
    }

    /// Listens to this driver too.
    pub fn set_gpu_driver(&mut self, driver: gpu::Driver) {
        self.gpus.set_driver(driver);
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

    fn event(&mut self, event: Event) {
        match event {
            Event::Wait(wait) => {
                self.look_up(wait.object.fileset, wait.waker);
                self.socket(wait.tid, &object_fact(&wait.object));
                if wait.to.saturating_sub(wait.woken) >= WORTH_NAMING_NS {
                    self.outsider(wait.ran_before);
                }
                self.out.push(Record::Wait(wait_fact(&wait)));
            }
            Event::Touch(touch) => {
                self.look_up(touch.object.fileset, 0);
                self.out.push(Record::Touch(touch_fact(&touch)));
            }
            Event::Fork(fork) => {
                let at = KtimeNs(fork.at);
                let name = event::name(&fork.comm);
                if fork.child_tid == fork.child_tgid {
                    self.places.forked(fork.parent_tgid, fork.child_tgid);
                    self.process(
                        at,
                        fork.child_tgid,
                        Some(fork.parent_tgid),
                        Some(name.clone()),
                    );
                }
                self.thread(ThreadSeen {
                    at,
                    pid: fork.child_tgid,
                    tid: fork.child_tid,
                    parent_tid: Some(fork.parent_tid),
                    name,
                });
            }
            Event::Exec(exec) => {
                self.places.executed(exec.tgid);
                self.pages.executed(exec.tgid);
                let at = KtimeNs(exec.at);
                let name = event::name(&exec.comm);
                if exec.old_tid != exec.tgid {
                    self.alive.remove(&exec.old_tid);
                    self.alive.insert(exec.tgid, exec.tgid);
                }
                self.out.push(Record::Exec {
                    at,
                    pid: exec.tgid,
                    old_tid: exec.old_tid,
                    name: name.clone(),
                });
                self.gpus.executed(exec.tgid, self.probes.calls.as_ref());
                self.allocs.executed(exec.tgid, self.probes.alloc.as_ref());
                self.process(at, exec.tgid, None, Some(name));
            }
            Event::GpuCall(call) => match gpu_call(&call) {
                Some(fact) => self.out.push(Record::GpuCall(fact)),
                None => self.undecodable += 1,
            },
            Event::Exit(exit) => {
                self.alive.remove(&exit.tid);
                let at = KtimeNs(exit.at);
                self.out.push(Record::Exit {
                    at,
                    pid: exit.tgid,
                    tid: exit.tid,
                });
                if exit.flags & EXIT_OUT_OF_MEMORY != 0 {
                    self.out.push(Record::OutOfMemory { at, pid: exit.tgid });
                }
            }
            Event::Sample(sample) => self.places.add(sample, &mut self.out),
            Event::Fault(fault) => self.fault(fault),
        }
    }

    /// Records a sampled page fault once its stack is known.
    fn fault(&mut self, fault: event::Fault) {
        self.faults += 1;
        let (number, at) = (self.faults, KtimeNs(fault.at));
        let copied = fault.what & FAULT_WRITE_TO_SHARED != 0;
        let kind = self
            .pages
            .add(number, fault.tgid, fault.address, copied, at);
        let fact = FaultFact {
            number,
            at,
            tid: fault.tid,
            pid: fault.tgid,
            faults: fault
                .weight
                .saturating_mul(self.probes.fault_period.unwrap_or(1)),
            kind,
            in_kernel: fault.what & FAULT_IN_KERNEL != 0,
            stack: 0,
        };
        let stack = fault.stack;
        let raw = Raw::Memory {
            ip: stack.ip,
            sp: stack.sp,
            bp: stack.bp,
            data: stack.data,
        };
        let then = Box::new(move |stack| Record::Fault(FaultFact { stack, ..fact }));
        self.stacks
            .add(&mut self.places, fault.tgid, raw, then, &mut self.out);
    }

    fn process(&mut self, at: KtimeNs, pid: u32, parent: Option<u32>, name: Option<String>) {
        self.memo.learn_process(pid);
        let facts = ProcessFacts::read(pid).ok();
        self.out.push(Record::Process(ProcessSeen {
            at,
            pid,
            parent: parent.or(facts.as_ref().map(|f| f.ppid)).unwrap_or(0),
            name: name
                .or(facts.as_ref().map(|f| f.comm.clone()))
                .unwrap_or_default(),
            frameworks: FrameworkFacts::read(pid).ok(),
            facts,
        }));
    }

    fn thread(&mut self, seen: ThreadSeen) {
        self.alive.insert(seen.tid, seen.pid);
        self.members.insert(seen.tid);
        self.out.push(Record::Thread(seen));
    }

    /// Describes what a fact refers to, before the fact itself.
    fn look_up(&mut self, fileset: u32, waker: u32) {
        if self.memo.new_fileset(fileset)
            && let Some(info) = self.probes.fileset(fileset)
        {
            self.memo.describe(fileset, &info, &mut self.out);
        }
        self.outsider(waker);
    }

    /// Describes a thread that is not of the job.
    fn outsider(&mut self, tid: u32) {
        if !self.members.contains(&tid) {
            self.outsiders.meet(tid, &mut self.out);
        }
    }

    /// Notes a socket that a thread of the job waited on.
    fn socket(&mut self, tid: u32, object: &ObjectFact) {
        if object.class == Class::Socket as u8
            && let Some(pid) = self.alive.get(&tid)
        {
            self.pressure.socket(*pid, object.id);
        }
    }

    /// Lets the probes write into fresh aggregates. After [`crate::kernel::GRACE`] the old ones can be
    /// collected. What every thread had done is noted at once: on a host that leaves us little CPU time, the
    /// collecting may come much later.
    pub fn switch_over(&mut self) -> Result<KtimeNs, SourceError> {
        self.probes.switch_over()?;
        let now = own::now();
        self.threads = self.probes.threads()?;
        self.threads.sort_by_key(|(tid, _)| *tid);
        Ok(now)
    }

    /// Collects what was counted until `to`, the time of the last [`Self::switch_over`].
    pub fn collect(&mut self, to: KtimeNs) -> Result<(), SourceError> {
        self.drain_events();
        let mut counted = self.probes.drain()?;
        // The order of a hash table means nothing; a fixed one makes recordings comparable.
        counted
            .ops
            .sort_by_key(|(k, _)| (k.tid, k.fileset, k.op, k.class, k.dev));
        counted
            .waits
            .sort_by_key(|(k, _)| (k.tid, k.nr, k.object, k.waker, k.fileset));
        counted.ended.sort_by_key(|(k, _)| (k.at, k.tid));
        for (key, _) in &counted.ops {
            self.look_up(key.fileset, 0);
        }
        for (key, _) in &counted.waits {
            self.look_up(key.fileset, key.waker);
            self.socket(key.tid, &wait_object(key));
        }
        self.pressure.resolve_sockets(&mut self.out);
        // A thread that has ended since then has given its account.
        let mut threads = std::mem::take(&mut self.threads);
        threads.retain(|(tid, _)| !counted.ended.iter().any(|(end, _)| end.tid == *tid));
        self.reconcile(&threads);
        let interval = self.interval(to, counted, &threads);
        self.interval_from = to;
        self.intervals += 1;
        if FRAMEWORKS_AT.contains(&self.intervals) {
            self.frameworks();
        }
        self.observe();
        self.allocs.interval(
            &interval,
            &self.alive,
            self.probes_cost,
            own::usage().0,
            &mut self.out,
        );
        if self.allocs.sheds_samples() {
            self.probes.shed_samples()?;
        }
        self.threads = threads;
        let hidden = self.entries.take_hidden();
        if hidden > 0 {
            self.out.push(Record::EntriesHidden { ns: hidden });
        }
        self.out.push(Record::Interval(interval));
        let alive = self.alive.values().copied().collect();
        self.pages.look_again(own::now(), &alive, &mut self.out);
        self.memory(to);
        Ok(())
    }

    /// Learns of threads whose fork event was lost, and forgets those whose exit event was.
    fn reconcile(&mut self, threads: &[(u32, ThreadState)]) {
        for (tid, state) in threads {
            if !self.members.contains(tid) {
                let name = comm(state.tgid, *tid).unwrap_or_default();
                let at = KtimeNs(state.followed_since);
                if !self.alive.values().any(|pid| *pid == state.tgid) {
                    self.process(at, state.tgid, None, None);
                }
                self.thread(ThreadSeen {
                    at,
                    pid: state.tgid,
                    tid: *tid,
                    parent_tid: None,
                    name,
                });
            }
        }
        // One that began since the threads were read is not among them.
        let probes = &self.probes;
        self.alive.retain(|tid, _| {
            threads.binary_search_by_key(tid, |(tid, _)| *tid).is_ok()
                || probes.thread(*tid).is_some()
        });
        self.places.retain(&self.alive.values().copied().collect());
    }

    fn interval(
        &mut self,
        to: KtimeNs,
        counted: Aggregates,
        threads: &[(u32, ThreadState)],
    ) -> Interval {
        let losses = self.probes.losses();
        let mut lost: Vec<(u32, u64)> = losses
            .iter()
            .map(|(reason, total)| {
                let before = self
                    .losses
                    .iter()
                    .find(|(r, _)| r == reason)
                    .map_or(0, |(_, n)| *n);
                (*reason as u32, total.saturating_sub(before))
            })
            .filter(|(_, n)| *n > 0)
            .collect();
        self.losses = losses;
        let length = to.since(self.interval_from);
        let (event_min_ns, wait_ns) = self.waits.interval(length);
        let (_, touch_ns) = self.touches.interval(length);
        self.set_thresholds(wait_ns, touch_ns);
        let dropped = self.gpus.take_dropped();
        if dropped > 0 {
            lost.push((Loss::GpuAnswers as u32, dropped));
        }
        Interval {
            from: self.interval_from,
            to,
            ops: counted.ops.iter().map(|(k, c)| op_sum(k, c)).collect(),
            hists: histograms(&counted.ops),
            waits: counted.waits.iter().map(|(k, c)| wait_sum(k, c)).collect(),
            ended: counted
                .ended
                .iter()
                .map(|(k, e)| thread_end(k, e))
                .collect(),
            running: threads
                .iter()
                .map(|(tid, state)| totals(*tid, state, to))
                .collect(),
            lost,
            undecodable: std::mem::take(&mut self.undecodable),
            events: std::mem::take(&mut self.events),
            event_min_ns,
        }
    }

    /// What the watched processes have mapped by now: a program that was just launched has nothing yet.
    fn frameworks(&mut self) {
        for pid in self.targets.clone() {
            if let Ok(frameworks) = FrameworkFacts::read(pid) {
                self.out.push(Record::Frameworks { pid, frameworks });
            }
        }
    }

    /// Records how much of each process is resident, and what else is due to be read.
    fn memory(&mut self, at: KtimeNs) {
        let resident = self.resident();
        self.out
            .extend(resident.iter().map(|(pid, rss_bytes)| Record::Memory {
                at,
                pid: *pid,
                rss_bytes: *rss_bytes,
            }));
        self.pressure.poll(own::now(), &resident, &mut self.out);
    }

    /// Resident bytes of each process that is alive (/proc/PID/statm).
    fn resident(&self) -> BTreeMap<u32, u64> {
        // SAFETY: sysconf has no preconditions.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let processes: BTreeSet<u32> = self.alive.values().copied().collect();
        processes
            .into_iter()
            .filter_map(|pid| {
                let line = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
                let pages: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
                Some((pid, pages * page))
            })
            .collect()
    }

    /// Begins a window in which the kernel counts our probes' run time.
    pub fn begin_counting(&mut self) {
        self.counted.window = Some((own::now(), self.probes.run_stats()));
    }

    /// Ends the window and records what watching costs so far.
    pub fn end_counting(&mut self) {
        let Some((from, before)) = self.counted.window.take() else {
            return;
        };
        let at = own::now();
        let after = self.probes.run_stats();
        self.counted.stats.ns += after.ns.saturating_sub(before.ns);
        self.counted.stats.runs += after.runs.saturating_sub(before.runs);
        self.counted.ns += at.since(from);
        self.cost();
    }

    /// Records what watching costs so far; of the probes what the windows of counting tell.
    fn cost(&mut self) {
        let at = own::now();
        let scale = |n: u64| {
            let all = u128::from(n) * u128::from(at.since(self.started));
            (self.counted.ns > 0).then(|| (all / u128::from(self.counted.ns)) as u64)
        };
        let (collector_cpu_ns, collector_rss_max_bytes) = own::usage();
        self.probes_cost = RunStats {
            ns: scale(self.counted.stats.ns).unwrap_or(0),
            runs: scale(self.counted.stats.runs).unwrap_or(0),
        };
        self.out.push(Record::Cost(CostSample {
            at,
            bpf_ns: scale(self.counted.stats.ns),
            bpf_runs: scale(self.counted.stats.runs),
            counted_ns: self.counted.ns,
            host_busy_ns: own::host_busy_ns()
                .zip(self.host_busy_ns)
                .map(|(now, then)| now.saturating_sub(then)),
            collector_cpu_ns,
            collector_rss_max_bytes,
        }));
    }

    /// Ends the watch: `at` is the time of the last [`Self::switch_over`], whose aggregates were collected.
    pub fn stop(&mut self, at: KtimeNs, reason: StopReason) -> Result<(), SourceError> {
        self.places.finish(LAST_PATIENCE, &mut self.out);
        self.stacks
            .finish(LAST_PATIENCE, &mut self.places, &mut self.out);
        self.allocs
            .finish(own::now(), &mut self.places, &mut self.out);
        self.pressure
            .last(own::now(), &self.resident(), &mut self.out);
        self.cost();
        self.frameworks();
        for (tid, call) in self.probes.gpu_calls_under_way() {
            if self.members.contains(&tid) {
                self.out.extend(gpu_call_under_way(tid, &call, at));
            }
        }
        let threads = self
            .threads
            .iter()
            .map(|(tid, state)| open_thread(*tid, state, at))
            .collect();
        self.out.push(Record::Stop(Stop {
            at,
            reason,
            threads,
        }));
        Ok(())
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

fn open_thread(tid: u32, state: &ThreadState, at: KtimeNs) -> OpenThread {
    let counters = scan::counters(state.tgid, tid).map(|total| Counters {
        minor_faults: total.minor_faults.saturating_sub(state.base.min_flt),
        major_faults: total.major_faults.saturating_sub(state.base.maj_flt),
        storage_read_bytes: total
            .storage_read_bytes
            .saturating_sub(state.base.read_bytes),
        storage_write_bytes: total
            .storage_write_bytes
            .saturating_sub(state.base.write_bytes),
    });
    OpenThread {
        pid: state.tgid,
        tid,
        followed_since: KtimeNs(state.followed_since),
        name: comm(state.tgid, tid).unwrap_or_default(),
        totals: totals(tid, state, at),
        state: state.state as u8,
        since: KtimeNs(state.since),
        nr: state.nr,
        object: object_fact(&state.object),
        counters,
    }
}
