//! Windows of probes on allocators, as records: asks for them when the governor lets it, and keeps the governor told.

mod call_room;
mod closed;
mod full;
pub mod governor;
mod pending;
mod shed;
mod window;

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use self::{
    governor::{Governor, Load},
    pending::PendingSites,
    shed::Shed,
    window::{Candidate, Costs, Plan},
};
use super::{gpu::CallsSeen, jitter::Jitter, places::Places};
use crate::{
    kernel::{
        AllocProbes,
        alloc::{Calibration, CallSum, Notice, StackSum, WindowOrder},
    },
    record::{
        Record,
        fact::{AllocCalibrationFact, AllocatorFact, GovernorFact, Interval, PlaceClass},
    },
    time::KtimeNs,
};

/// Probes that a window takes of an allocator that is not known yet.
const SITES_UNKNOWN: u32 = 5;
/// What probes at the beginning of a call, emulated and single-stepped, and at its return cost where that is not measured: as docs/BENCHMARKS.md
/// has them, our own programs not counted.
const TRAPS_NS: [f64; 3] = [500.0, 9_000.0, 500.0];
/// CPUs that a process uses which works.
const BUSY_CPUS: f64 = 0.1;
/// What was spent is told at least once in so many intervals.
const TOLD_EVERY: u32 = 10;
/// Measuring what a probe costs takes a second or two; this long, and something is in its way.
const LONG_TO_CALIBRATE_NS: u64 = 5_000_000_000;
/// A window of which nothing was heard for so long is given up.
const LOST_AFTER_NS: u64 = 10_000_000_000;

/// Whether windows may be opened (`--alloc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Windows, as the governor lets them.
    Auto,
    /// Every call, all the time, whatever it costs.
    Full,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "full" => Ok(Self::Full),
            _ => Err("expected `off`, `auto` or `full`".to_owned()),
        }
    }
}

/// A window under way.
struct Open {
    plan: Option<Plan>,
    number: u32,
    asked: KtimeNs,
    calls: Vec<CallSum>,
    stacks: Vec<StackSum>,
}

/// So many clock samples of a process, some ten seconds of a CPU, and the older ones count half: what it did an hour ago does not hide that it
/// allocates now.
const SAMPLES_KEPT: u64 = 1_000;

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    /// Of late.
    samples: u64,
    in_allocator: u64,
    cpu_ns: u64,
    cpus: f64,
    sites: Option<u32>,
    stepped: u32,
    /// Its allocator cannot be probed.
    out: bool,
}

impl Process {
    fn sampled(&mut self, in_allocator: bool) {
        self.samples += 1;
        self.in_allocator += u64::from(in_allocator);
        if self.samples >= SAMPLES_KEPT {
            self.samples /= 2;
            self.in_allocator /= 2;
        }
    }
}

/// What watching costs so far, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CostSoFar {
    /// Run time of the probes, counted by the kernel or estimated, and of this that of those on system calls.
    pub probes_ns: u64,
    pub calls_ns: u64,
    /// CPU time of ours, but for the process that opens windows; and of that one, with what windows took.
    pub own_ns: u64,
    pub windows_ns: u64,
    /// What counting all calls takes, nanoseconds a second; `None`: not known.
    pub all_calls_rate: Option<f64>,
    /// What calls take while only some are counted, as a part (0–1) of that; `None`: nearly as much.
    pub hidden_calls: Option<f64>,
    /// What an interrupt by a clock takes, nanoseconds; 0 as long as that is not known.
    pub interrupt_ns: f64,
    /// Page faults are sampled in turns.
    pub faults_in_turns: bool,
    /// Half of the clock samples will do where that is needed.
    pub halvable: bool,
    /// Sums that were collected last, and whether threads came.
    pub cells: usize,
    pub came: bool,
}

/// See the module.
pub struct Allocs {
    mode: Mode,
    governor: Governor,
    processes: BTreeMap<u32, Process>,
    /// CPU nanoseconds of live threads at the end of the last interval.
    ran: BTreeMap<u32, u64>,
    /// Places in an allocator.
    allocator_places: BTreeSet<u32>,
    /// When it was asked what a probe costs.
    asked_to_calibrate: Option<KtimeNs>,
    calibration: Option<Calibration>,
    windows: u32,
    open: Option<Open>,
    /// Processes that are probed until they end.
    kept: BTreeSet<u32>,
    told_at: KtimeNs,
    sites: PendingSites,
    /// What the governor was told last.
    told: CostSoFar,
    /// Of the process that opens windows: what windows told since then that they took.
    in_windows_ns: u64,
    samples: u64,
    random: Jitter,
    /// What is given up; `None`: that was not told yet. And how many intervals ago.
    shed: Option<Vec<&'static str>>,
    untold: u32,
    failed: BTreeSet<String>,
}

impl Allocs {
    /// `budget`: share (0–1) of the job's CPU time. `seed`: any number that differs from watch to watch.
    pub fn new(mode: Mode, budget: f64, seed: u64) -> Self {
        Self {
            mode,
            governor: match mode {
                Mode::Auto => Governor::new(budget),
                Mode::Off | Mode::Full => Governor::without_windows(budget),
            },
            processes: BTreeMap::new(),
            ran: BTreeMap::new(),
            allocator_places: BTreeSet::new(),
            asked_to_calibrate: None,
            calibration: None,
            windows: 0,
            open: None,
            kept: BTreeSet::new(),
            told_at: KtimeNs(0),
            sites: PendingSites::default(),
            told: CostSoFar::default(),
            in_windows_ns: 0,
            samples: 0,
            random: Jitter::new(seed),
            shed: None,
            untold: 0,
            failed: BTreeSet::new(),
        }
    }

    /// The watch begins: until now this CPU time was used, nanoseconds, by the process that opens windows, and by all others of ours.
    pub fn begins(&mut self, windows_ns: u64, own_ns: u64) {
        self.told.own_ns = own_ns;
        self.told.windows_ns = windows_ns;
        self.governor.started(windows_ns + own_ns);
    }

    /// Part (0–1) of the time in which there is room to count all system calls.
    pub fn calls_share(&self) -> f64 {
        self.governor.calls_share()
    }

    /// Whether there is room to count some of them in the rest of it.
    pub fn some_calls(&self) -> bool {
        self.governor.some_calls()
    }

    /// What counting all system calls takes of the job's CPU time, as a part of what is left.
    pub fn slowed_by_counting(&self) -> f64 {
        self.governor.slowed_by_counting()
    }

    /// What the traps took by which calls of the GPU's runtime are watched, without the programs that they lead to, nanoseconds.
    pub fn traps_ns(&self, calls: CallsSeen) -> u64 {
        let [emulated, stepped, returns] = match &self.calibration {
            Some(c) => [
                c.emulated_ns - c.run_ns,
                c.stepped_ns - c.run_ns,
                c.trap_return_ns,
            ],
            None => TRAPS_NS,
        };
        let entries = calls.emulated as f64 * emulated + calls.stepped as f64 * stepped;
        (entries + (calls.emulated + calls.stepped) as f64 * returns).max(0.0) as u64
    }

    /// Processes that use a CPU for a while of their time.
    fn busy(&self) -> usize {
        let cpus = self.processes.values().map(|process| process.cpus);
        cpus.filter(|cpus| *cpus > BUSY_CPUS).count()
    }

    /// What watching may cost now, nanoseconds a second.
    pub fn budget_ns(&self) -> f64 {
        self.governor.budget_ns()
    }

    /// Whether events and sums are looked at a fourth as often.
    pub fn are_drains_seldom(&self) -> bool {
        self.governor.shed().contains(&Shed::ShortIntervals)
    }

    /// By how many of the two clocks samples are taken.
    pub fn clocks(&self) -> usize {
        let shed = self.governor.shed();
        if shed.contains(&Shed::ClockSamples) {
            0
        } else if shed.contains(&Shed::HalfSamples) {
            1
        } else {
            2
        }
    }

    /// A process executed a program: what it had mapped is gone.
    pub fn executed(&mut self, pid: u32, probes: Option<&AllocProbes>) {
        if let Some(process) = self.processes.get_mut(&pid) {
            *process = Process {
                cpu_ns: process.cpu_ns,
                cpus: process.cpus,
                ..Process::default()
            };
        }
        self.governor.forget(pid);
        self.kept.remove(&pid);
        if let Some(probes) = probes {
            probes.forget(pid);
        }
    }

    /// Learns from records where the job's processes spend their CPU time.
    pub fn observe(&mut self, records: &[Record], alive: &BTreeMap<u32, u32>) {
        for record in records {
            match record {
                Record::Place(place)
                    if matches!(place.class, PlaceClass::Malloc | PlaceClass::PyMalloc) =>
                {
                    self.allocator_places.insert(place.number);
                }
                Record::Sample(sample) => {
                    self.samples += 1;
                    let Some(pid) = alive.get(&sample.tid) else {
                        continue;
                    };
                    let process = self.processes.entry(*pid).or_default();
                    process.sampled(self.allocator_places.contains(&sample.place));
                }
                _ => {}
            }
        }
    }

    /// Takes in what an interval used, and what watching costs so far.
    pub fn interval(
        &mut self,
        interval: &Interval,
        alive: &BTreeMap<u32, u32>,
        cost: &CostSoFar,
        out: &mut Vec<Record>,
    ) {
        let seconds = interval.to.seconds_since(interval.from);
        let mut used = BTreeMap::<u32, u64>::new();
        let mut ran = BTreeMap::new();
        for totals in &interval.running {
            let before = self.ran.get(&totals.tid).copied().unwrap_or(0);
            if let Some(pid) = alive.get(&totals.tid) {
                *used.entry(*pid).or_default() += totals.run_ns.saturating_sub(before);
            }
            ran.insert(totals.tid, totals.run_ns);
        }
        for end in &interval.ended {
            let before = self.ran.get(&end.tid).copied().unwrap_or(0);
            *used.entry(end.pid).or_default() += end.totals.run_ns.saturating_sub(before);
        }
        self.ran = ran;
        let living: BTreeSet<u32> = alive.values().copied().collect();
        self.processes.retain(|pid, _| living.contains(pid));
        for pid in &living {
            let process = self.processes.entry(*pid).or_default();
            let ns = used.get(pid).copied().unwrap_or(0);
            process.cpu_ns += ns;
            if seconds > 0.0 {
                process.cpus += 0.5 * (ns as f64 / 1e9 / seconds - process.cpus);
            }
        }
        let once_ns = self.beside_windows(cost.windows_ns);
        self.governor.interval(&Load {
            seconds,
            job_cpu_ns: used.values().sum(),
            probes_ns: cost.probes_ns.saturating_sub(self.told.probes_ns),
            own_ns: cost.own_ns.saturating_sub(self.told.own_ns),
            once_ns,
            samples: std::mem::take(&mut self.samples),
            calls_ns: cost.calls_ns.saturating_sub(self.told.calls_ns),
            all_calls_rate: cost.all_calls_rate,
            hidden_calls: cost.hidden_calls,
            interrupt_ns: cost.interrupt_ns,
            faults_in_turns: cost.faults_in_turns,
            busy_processes: self.busy(),
            halvable: cost.halvable,
            cells: cost.cells,
            came: cost.came,
        });
        self.told = *cost;
        let shed = self.governor.shed().iter();
        let shed = Some(shed.map(|shed| shed.name()).collect());
        self.untold += 1;
        if shed != self.shed || self.untold >= TOLD_EVERY {
            self.shed = shed;
            self.untold = 0;
            out.push(self.fact(interval.to));
        }
    }

    /// What the process that opens windows took since the governor was told last, beside windows: loading programs and calibrating.
    /// Each window tells what it took when it is over; what was told of one under way is then taken back.
    fn beside_windows(&mut self, windows_ns: u64) -> i64 {
        let took = windows_ns.saturating_sub(self.told.windows_ns) as i64;
        took - std::mem::take(&mut self.in_windows_ns) as i64
    }

    fn fact(&self, at: KtimeNs) -> Record {
        let totals = self.governor.totals;
        Record::Governor(GovernorFact {
            at,
            budget: self.governor.budget(),
            job_ns: totals.job_ns,
            probes_ns: totals.probes_ns,
            own_ns: totals.own_ns,
            windows_ns: totals.windows_ns,
            windows: totals.windows,
            worst_thread_ns: totals.worst_thread_ns,
            shed: self
                .shed
                .iter()
                .flatten()
                .map(|&name| name.to_owned())
                .collect(),
        })
    }

    /// Takes what there is, and opens a window when it is time.
    pub fn tick(
        &mut self,
        now: KtimeNs,
        alive: &BTreeMap<u32, u32>,
        probes: Option<&mut AllocProbes>,
        places: &mut Places,
        out: &mut Vec<Record>,
    ) {
        let Some(probes) = probes else { return };
        if self.mode == Mode::Off {
            return;
        }
        if self.asked_to_calibrate.is_none() && probes.calibrate() {
            self.asked_to_calibrate = Some(now);
        }
        for notice in probes.notices() {
            self.notice(now, notice, out);
        }
        self.sites.settle(now, places, out);
        if self
            .open
            .as_ref()
            .is_some_and(|open| now.since(open.asked) > LOST_AFTER_NS)
        {
            self.open = None;
        }
        if self.calibration.is_none() || self.open.is_some() {
            return;
        }
        match self.mode {
            Mode::Off => {}
            Mode::Full => self.tell_all(now, alive, probes),
            Mode::Auto => self.may_open(now, probes),
        }
    }

    fn may_open(&mut self, now: KtimeNs, probes: &AllocProbes) {
        let candidates: Vec<Candidate> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.out)
            .map(|(pid, process)| Candidate {
                pid: *pid,
                cpu_ns: process.cpu_ns,
                cpus: process.cpus,
                samples: process.samples,
                in_allocator: process.in_allocator,
                sites: process.sites.unwrap_or(SITES_UNKNOWN),
                stepped: process.stepped,
            })
            .collect();
        let random = self.random.number();
        let Some(plan) = self.governor.decide(now, &candidates, random) else {
            return;
        };
        self.windows += 1;
        let order = WindowOrder {
            number: self.windows,
            pid: plan.pid,
            delay_us: plan.delay_us,
            length_us: plan.length_us,
            max_calls: plan.max_calls,
            stack_every: plan.stack_every,
            paired: plan.paired,
            max_sites: plan.max_sites,
        };
        if probes.open(order) {
            self.open = Some(Open {
                plan: Some(plan),
                number: self.windows,
                asked: now,
                calls: Vec::new(),
                stacks: Vec::new(),
            });
        }
    }

    fn notice(&mut self, now: KtimeNs, notice: Notice, out: &mut Vec<Record>) {
        match notice {
            Notice::Calibrated(calibration) => self.calibrated(calibration, out),
            Notice::OneByOne { reason } => {
                tracing::debug!(%reason, "probes on allocators are removed one by one");
            }
            Notice::Found {
                pid,
                library,
                functions,
                makers,
            } => {
                let process = self.processes.entry(pid).or_default();
                // What only gives back is probed in paired windows alone.
                process.sites = Some(makers.max(1));
                process.stepped = functions.iter().filter(|(_, steps)| *steps).count() as u32;
                out.push(Record::Allocator(AllocatorFact {
                    pid,
                    library,
                    functions,
                }));
            }
            Notice::NotFound { pid, reason } => {
                self.processes.entry(pid).or_default().out = true;
                self.missing(format!("allocations of process {pid}"), reason, out);
            }
            Notice::Calls { number, calls } => {
                if let Some(open) = self.under_way(number) {
                    open.calls.extend(calls);
                }
            }
            Notice::Stacks { number, stacks } => {
                if let Some(open) = self.under_way(number) {
                    open.stacks.extend(stacks);
                }
            }
            Notice::Closed(closed) => {
                if self.under_way(closed.number).is_some()
                    && let Some(open) = self.open.take()
                {
                    self.closed(now, open, &closed, out);
                }
            }
            Notice::Failed { what, reason } => {
                self.missing(format!("allocations: {what}"), reason, out);
            }
        }
    }

    fn under_way(&mut self, number: u32) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.number == number)
    }

    fn missing(&mut self, what: String, reason: String, out: &mut Vec<Record>) {
        if self.failed.insert(what.clone()) {
            out.push(Record::Missing { what, reason });
        }
    }

    fn calibrated(&mut self, calibration: Calibration, out: &mut Vec<Record>) {
        tracing::debug!(?calibration, "what a probe on an allocator costs here");
        self.governor.calibrated(Costs {
            emulated_ns: calibration.emulated_ns,
            stepped_ns: calibration.stepped_ns,
            return_ns: calibration.return_ns,
            run_ns: calibration.run_ns,
            pause_ns: calibration.open_pause_ns + calibration.pause_ns,
            linger_ns: calibration.linger_ns,
            // Where they go all at once, none waits for another.
            removal_ns: if calibration.together {
                0
            } else {
                calibration.detach_ns
            },
            // Somebody else may have the CPU when attaching is done.
            outside_ns: 2 * calibration.attach_ns,
            own_ns: calibration.own_cpu_ns,
        });
        self.calibration = Some(calibration);
        out.push(Record::AllocCalibration(AllocCalibrationFact {
            emulated_ns: calibration.emulated_ns,
            stepped_ns: calibration.stepped_ns,
            return_ns: calibration.return_ns,
            pause_ns: calibration.pause_ns,
            attach_ns: calibration.attach_ns,
            detach_ns: calibration.detach_ns,
        }));
        out.push(Record::OpeningPause {
            ns: calibration.open_pause_ns,
        });
    }

    /// Where what a probe costs is not known long after that was asked, that is why nothing is known of allocations.
    fn tell_why_none(&mut self, now: KtimeNs, out: &mut Vec<Record>) {
        if let (Some(asked), None) = (self.asked_to_calibrate, self.calibration)
            && now.since(asked) >= LONG_TO_CALIBRATE_NS
            && self.failed.is_empty()
        {
            let reason = format!(
                "none is probed before it is known what a probe costs here, and measuring that on a process of trainprof's own was \
                 not over after {:.0} s: another process may leave it no CPU time; watch for longer, or give it another CPU",
                now.seconds_since(asked)
            );
            self.missing("allocations".to_owned(), reason, out);
        }
    }

    /// The end of the watch.
    pub fn finish(
        &mut self,
        now: KtimeNs,
        probes: Option<&mut AllocProbes>,
        places: &mut Places,
        out: &mut Vec<Record>,
    ) {
        if let Some(probes) = probes.filter(|_| self.mode == Mode::Full) {
            self.tell_the_rest(now, probes, out);
        }
        self.tell_why_none(now, out);
        self.sites.finish(places, out);
        out.push(self.fact(now));
    }
}

#[cfg(test)]
mod tests;
