//! The kernel side as user space sees it. `aya` is touched here and nowhere else.
//!
//! Owns loading, attaching, draining and measuring the probes; knows nothing of jobs, reports or rules.

pub mod alloc;
pub mod aside;
pub mod btf;
mod calls;
mod descriptors;
mod fault_cost;
mod fault_edge;
mod interrupt;
mod load;
mod missed;
mod on_off;
mod own_pages;
mod perf;
pub mod plan;
mod runs;
pub mod sampling;
mod stats;
mod taken;
mod threads;
mod uprobe;
mod wire;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData, PerCpuArray, RingBuf},
    programs::{ProgramError, tp_btf::BtfTracePointLinkId},
};
use trainprof_common::{
    cell::{HistCell, HistKey, OpCell, OpKey, WaitCell, WaitKey},
    fileset::FilesetInfo,
    gpu::Call,
    loss::Loss,
    python::PyThread,
    run::{CallRun, HistRun},
    thread::{EndedKey, EndedThread, ThreadState},
    touch::TOUCHED,
};

pub use self::{
    alloc::AllocProbes,
    calls::{CallProbes, GPU_CALLS, Notice},
    fault_edge::FaultEdge,
    interrupt::Interrupt,
    on_off::Counted,
    stats::StatsSwitch,
};
use self::{
    runs::Runs,
    sampling::{Clocks, Sampled},
    threads::Threads,
    wire::Table,
};

/// After the aggregates are switched over, programs that still write into the old half are done after
/// this long: they run with preemption off, for microseconds. Those on functions may be put off the CPU, and then be late.
pub const GRACE: Duration = Duration::from_millis(5);

/// Indices of the probes' control words.
const CONTROL_EPOCH: usize = 0;
const CONTROL_EVENT_MIN_NS: usize = 1;
const CONTROL_TOUCH_GAP_NS: usize = 2;
const CONTROL_TOUCH_SPACING_NS: usize = 3;
const CONTROL_ENTRIES: usize = 4;
const CONTROL_FAULTS_IN_WINDOW: usize = 5;
const CONTROL_FOLLOWED: usize = 6;
const CONTROL_MOST_PASSED: usize = 7;
const CONTROL_CALLS: usize = 8;
const CONTROL_TOUCHED_CALLS: usize = 9;
/// How many there are.
const CONTROL_WORDS: usize = 10;
/// By how many calls of our own it is measured what a call that is not counted costs, and how often: about a millisecond in all.
const IGNORED_CALLS: u64 = 250;
const IGNORED_TURNS: u32 = 10;
/// The globals of the probes that are written while they run, each a section of its own.
const CONTROL: &str = ".bss.control";
const TOUCHES: &str = ".bss.touched";

/// What can go wrong between us and the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(
        "cannot read the kernel's type information {path}: {source}. A kernel built with CONFIG_DEBUG_INFO_BTF is needed (most distributions since 2020 have it); `trainprof doctor` tells more"
    )]
    NoBtf { path: PathBuf, source: io::Error },
    #[error("cannot understand the kernel's type information {path}: {reason}")]
    BadBtf { path: PathBuf, reason: String },
    #[error("cannot load the probes: {0}. `trainprof doctor` tells what this host lacks")]
    Load(#[from] aya::EbpfError),
    #[error(
        "too many open files: this process may have {most} (hard limit), and a watch on this host takes {needed}. Raise it: `ulimit -n {needed}` in \
         a root shell, LimitNOFILE={needed} of a systemd unit, --ulimit nofile={needed} of a container"
    )]
    FewDescriptors { most: u64, needed: u64 },
    #[error("the kernel refused the probe {program} at {tracepoint}: {source}")]
    Refused {
        program: &'static str,
        tracepoint: &'static str,
        source: Box<ProgramError>,
    },
    #[error(
        "this kernel cannot give {gives}: {reason}. Linux 5.18 or newer is needed; `trainprof doctor` tells more"
    )]
    Unsupported { gives: &'static str, reason: String },
    #[error("the eBPF object has no usable map `{0}`: this trainprof was built wrongly")]
    NoMap(&'static str),
    #[error("map `{map}`: {source}")]
    Map {
        map: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot follow thread {tid}: {source}")]
    Follow { tid: u32, source: io::Error },
    #[error("cannot take thread {tid} out of the followed ones: {source}")]
    Unfollow { tid: u32, source: io::Error },
}

/// Sizes and thresholds that are fixed when the probes are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that can be followed at once.
    pub max_threads: u32,
    /// Waits of at least this many nanoseconds are sent one by one.
    pub event_min_ns: u64,
    /// Calls of one thread on the same object are noted again only after so many nanoseconds.
    pub touch_gap_ns: u64,
    /// Calls of one thread are noted once in so many nanoseconds on average.
    pub touch_spacing_ns: u64,
    /// Any number that differs from watch to watch.
    pub seed: u64,
    /// Whether calls into the GPU's runtime are watched.
    pub gpu_calls: bool,
    /// Whether windows of probes on allocators may be opened.
    pub alloc: bool,
}

impl Limits {
    /// Sizes that suit this host: 6 MiB of the kernel's memory for the states of threads.
    pub fn for_this_host() -> Self {
        Self {
            max_threads: 16_384,
            event_min_ns: 50_000,
            touch_gap_ns: 100_000,
            touch_spacing_ns: 500_000,
            seed: u64::from(std::process::id()),
            gpu_calls: true,
            alloc: true,
        }
    }
}

/// A probe or a fact that this kernel does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub what: String,
    pub reason: String,
}

/// Aggregates of one interval.
#[derive(Default)]
pub struct Aggregates {
    pub ops: Vec<(OpKey, OpCell)>,
    pub hists: Vec<(HistKey, HistCell)>,
    /// Calls that are in neither.
    pub runs: Vec<CallRun>,
    pub hist_runs: Vec<HistRun>,
    pub waits: Vec<(WaitKey, WaitCell)>,
    pub ended: Vec<(EndedKey, EndedThread)>,
}

/// What the probes cost, by the kernel's own count while it was counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunStats {
    /// Nanoseconds inside our programs, on all CPUs.
    pub ns: u64,
    /// Runs of our programs.
    pub runs: u64,
    /// Of these, at ends and at beginnings of system calls.
    pub ends: u64,
    pub beginnings: u64,
    /// Of `ns`, at these.
    pub calls_ns: u64,
    /// Of these, when a CPU went on with another thread.
    pub switches: u64,
    /// Calls of all processes by which a thread gave up the CPU.
    pub yields: u64,
}

struct Half {
    ops: Table<OpKey, OpCell>,
    hists: Table<HistKey, HistCell>,
    waits: Table<WaitKey, WaitCell>,
}

/// The loaded and attached probes. Dropping it detaches and removes everything; so does our death, since
/// nothing is pinned.
pub struct Probes {
    /// Probes on calls into the GPU's runtime, which another process attaches. First, so that they go first.
    pub calls: Option<CallProbes>,
    /// Probes on allocators, which another process attaches in windows.
    pub alloc: Option<AllocProbes>,
    gpu_calls: Table<u32, Call>,
    gpu_counts: PerCpuArray<MapData, u64>,
    /// By thread id.
    py_threads: Table<u32, PyThread>,
    /// The probes' own log, in a build for debugging them.
    #[cfg(feature = "probe-log")]
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    ebpf: Ebpf,
    threads: Threads,
    /// Threads that were added from here.
    followed: u64,
    halves: [Half; 2],
    runs: Runs,
    ended: Table<EndedKey, EndedThread>,
    filesets: Table<u32, FilesetInfo>,
    /// Words that the probes read, and flags by [`touch_slot`]; the maps have one element, which is written whole.
    control: [u64; CONTROL_WORDS],
    control_map: Array<MapData, [u64; CONTROL_WORDS]>,
    touched: Box<[u8; TOUCHED]>,
    touched_map: Array<MapData, [u8; TOUCHED]>,
    losses: PerCpuArray<MapData, u64>,
    pace: PerCpuArray<MapData, u64>,
    yields: PerCpuArray<MapData, u64>,
    /// What holds the probes of beginnings and of ends of calls in place; `None`: it is off.
    entries: Option<BtfTracePointLinkId>,
    ends: Option<BtfTracePointLinkId>,
    counted: Counted,
    /// Number of the last stretch of time in which beginnings of calls were shown, or calls counted.
    stretch: u32,
    ring: RingBuf<MapData>,
    epoch: usize,
    attached: Vec<&'static str>,
    /// One of so many page faults is looked at; `None`: none is.
    pub fault_period: Option<u32>,
    clocks: Option<Clocks>,
    fault_samples: Option<Sampled>,
    /// Measures what no clock sample shows; `None`: it cannot be opened, or was closed.
    pub fault_edge: Option<FaultEdge>,
    /// Measures what an interrupt takes; `None`: it cannot be opened, or was closed.
    pub interrupt: Option<Interrupt>,
    /// What is not there, and why.
    pub skipped: Vec<Skipped>,
}

impl Probes {
    /// Follows a thread from now on; `Ok(false)` when it is followed already.
    pub fn follow(&mut self, tid: u32, state: ThreadState) -> Result<bool, KernelError> {
        let added = self
            .threads
            .add(tid, state)
            .map_err(|source| KernelError::Follow { tid, source })?;
        if added {
            // It may be on a CPU, where it is taken for a bystander.
            self.followed += 1;
            self.set_control(CONTROL_FOLLOWED, self.followed)?;
        }
        Ok(added)
    }

    /// Follows a thread no more, if it still is followed.
    pub fn unfollow(&mut self, tid: u32) -> Result<(), KernelError> {
        self.threads
            .remove(tid)
            .map_err(|source| KernelError::Unfollow { tid, source })?;
        // As above: what was known of it is out of date.
        self.followed += 1;
        self.set_control(CONTROL_FOLLOWED, self.followed)
    }

    /// The state of one followed thread.
    pub fn thread(&self, tid: u32) -> Option<ThreadState> {
        self.threads.get(tid)
    }

    /// Every followed thread.
    pub fn threads(&self) -> Result<Vec<(u32, ThreadState)>, KernelError> {
        self.threads.all().map_err(map_error("THREADS"))
    }

    /// Lets the probes write into the other half of the aggregates. Wait for [`GRACE`] before [`Self::drain`].
    pub fn switch_over(&mut self) -> Result<(), KernelError> {
        let next = 1 - self.epoch;
        self.set_control(CONTROL_EPOCH, next as u64)?;
        self.epoch = next;
        Ok(())
    }

    /// Takes out what was counted before the last [`Self::switch_over`].
    pub fn drain(&mut self) -> Result<Aggregates, KernelError> {
        let (runs, hist_runs) = self.runs.drain(1 - self.epoch as u32)?;
        let half = &self.halves[1 - self.epoch];
        Ok(Aggregates {
            ops: half.ops.drain().map_err(map_error("OPS"))?,
            hists: half.hists.drain().map_err(map_error("HISTS"))?,
            runs,
            hist_runs,
            waits: half.waits.drain().map_err(map_error("WAITS"))?,
            ended: self.ended.drain().map_err(map_error("ENDED"))?,
        })
    }

    /// Sends waits one by one from this length on.
    pub fn set_event_min_ns(&mut self, ns: u64) -> Result<(), KernelError> {
        self.set_control(CONTROL_EVENT_MIN_NS, ns)
    }

    /// Notes calls of one thread once in so many nanoseconds on average.
    pub fn set_touch_spacing_ns(&mut self, ns: u64) -> Result<(), KernelError> {
        self.set_control(CONTROL_TOUCH_SPACING_NS, ns)
    }

    /// Counted calls and switches of followed threads so far.
    pub fn pace(&self) -> u64 {
        self.pace
            .get(&0, 0)
            .map_or(0, |per_cpu| per_cpu.iter().sum())
    }

    /// Lets so many like calls in a row go unlooked at for notes of single calls, where calls are many.
    pub fn set_most_passed(&mut self, calls: u64) -> Result<(), KernelError> {
        self.set_control(CONTROL_MOST_PASSED, calls)
    }

    /// How often each CPU is sampled, Hz; `None`: it cannot be.
    pub fn sampling_hz(&self) -> Option<u32> {
        self.clocks.as_ref().map(Clocks::hz)
    }

    /// Whether half of the samples can be given up.
    pub fn halvable(&self) -> bool {
        self.clocks.as_ref().is_some_and(Clocks::halvable)
    }

    /// Takes clock samples by so many of the two clocks from now on.
    pub fn sample_by(&mut self, clocks: usize) {
        if let Some(Err(error)) = self.clocks.as_mut().map(|both| both.switch(clocks)) {
            tracing::warn!(%error, "clock samples could not be switched");
        }
    }

    /// Samples page faults from now on, or not.
    pub fn sample_faults(&mut self, on: bool) {
        if let Some(Err(error)) = self.fault_samples.as_mut().map(|faults| faults.switch(on)) {
            tracing::warn!(%error, "samples of page faults could not be switched");
        }
    }

    /// Nanoseconds by which a fault takes longer while samples of page faults are on; they must be. `None`: it cannot be told.
    pub fn fault_cost(&self) -> Option<f64> {
        let measured = fault_cost::measure(self.fault_samples.as_ref()?);
        measured
            .inspect_err(|error| tracing::info!(%error, "what counting page faults costs"))
            .ok()?
    }

    fn set_control(&mut self, word: usize, value: u64) -> Result<(), KernelError> {
        if self.control[word] == value {
            return Ok(());
        }
        self.control[word] = value;
        self.control_map
            .set(0, self.control, 0)
            .map_err(map_error(CONTROL))
    }

    /// Notes calls of a process one by one, or no longer; also those of every other followed process whose
    /// id has the same [`touch_slot`].
    pub fn touch(&mut self, pid: u32, on: bool) -> Result<(), KernelError> {
        let flag = &mut self.touched[touch_slot(pid) as usize];
        if *flag == u8::from(on) {
            return Ok(());
        }
        *flag = u8::from(on);
        let flags: &[u8; TOUCHED] = &self.touched;
        self.touched_map
            .set(0, flags, 0)
            .map_err(map_error(TOUCHES))
    }

    /// Tells where the frames of a thread of a Python program are from now on; `None`: it has none that are known.
    pub fn py_thread(&self, tid: u32, thread: Option<PyThread>) {
        let changed = self.py_threads.take(&tid).and_then(|_| match thread {
            Some(thread) => self.py_threads.add(&tid, thread).map(|_| ()),
            None => Ok(()),
        });
        if let Err(error) = changed {
            tracing::debug!(%error, tid, "frames of Python are not taken with its page faults");
        }
    }

    /// What a file set is.
    pub fn fileset(&self, number: u32) -> Option<FilesetInfo> {
        self.filesets.get(&number)
    }

    /// Calls `each` with the bytes of every event that waits in the ring.
    pub fn events(&mut self, mut each: impl FnMut(&[u8])) {
        #[cfg(feature = "probe-log")]
        if let Some(log) = &mut self.log {
            log.flush();
        }
        while let Some(item) = self.ring.next() {
            each(&item);
        }
    }

    /// Becomes readable when many events wait.
    pub fn ring_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Facts lost so far, by reason; only those that are not zero.
    pub fn losses(&self) -> Vec<(Loss, u64)> {
        let missed = self.missed();
        Loss::ALL
            .into_iter()
            .filter_map(|reason| {
                let per_cpu = self.losses.get(&(reason as u32), 0).ok()?;
                let mut sum: u64 = per_cpu.iter().sum();
                if reason == Loss::ProbeMissed {
                    sum += missed;
                }
                (sum > 0).then_some((reason, sum))
            })
            .collect()
    }

    /// Runs of our programs that the kernel left out, but for those that tell how deep in handlers a CPU is: these do run on top of
    /// each other, which [`plan`] allows for.
    fn missed(&self) -> u64 {
        let tells_facts = |program: &&&'static str| !plan::nests(program);
        self.attached
            .iter()
            .filter(tells_facts)
            .filter_map(|name| missed::missed(self.ebpf.program(name)?.fd().ok()?.as_fd()).ok())
            .sum()
    }

    /// How often a function of the GPU's runtime was entered so far, by its number.
    pub fn gpu_count(&self, function: u16) -> u64 {
        self.gpu_counts
            .get(&u32::from(function), 0)
            .map_or(0, |per_cpu| per_cpu.iter().sum())
    }

    /// The calls into the GPU's runtime that are under way, by thread.
    pub fn gpu_calls_under_way(&self) -> Vec<(u32, Call)> {
        self.gpu_calls.read().unwrap_or_default()
    }

    /// What the kernel has counted for our programs so far.
    pub fn run_stats(&self) -> RunStats {
        let mut sum = RunStats::default();
        for name in &self.attached {
            let info = self
                .ebpf
                .program(name)
                .and_then(|program| program.info().ok());
            if let Some(info) = info {
                let (ns, runs) = (info.run_time().as_nanos() as u64, info.run_count());
                sum.ns += ns;
                sum.runs += runs;
                match *name {
                    plan::ENDS => sum.ends = runs,
                    plan::ENTRIES => sum.beginnings = runs,
                    plan::SWITCHES => {
                        sum.switches = runs;
                        continue;
                    }
                    _ => continue,
                }
                sum.calls_ns += ns;
            }
        }
        sum.yields = self
            .yields
            .get(&0, 0)
            .map_or(0, |per_cpu| per_cpu.iter().sum());
        sum
    }

    /// Nanoseconds that the probe at the end of a system call takes for a call that it does not count, while the kernel counts: by
    /// some calls of our own, the quickest turn of several. What is beside such a call in the job is rather taken for too dear than for
    /// too cheap. `None`: it did not run.
    pub fn ignored_call_ns(&self) -> Option<f64> {
        let end = self.ebpf.program(plan::ENDS)?;
        let turn = || {
            let before = end.info().ok()?;
            for _ in 0..IGNORED_CALLS {
                // SAFETY: takes nothing and does nothing.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
            let after = end.info().ok()?;
            let runs = after.run_count().checked_sub(before.run_count())?;
            let ns = after.run_time().saturating_sub(before.run_time());
            (runs >= IGNORED_CALLS).then(|| ns.as_nanos() as f64 / runs as f64)
        };
        (0..IGNORED_TURNS)
            .filter_map(|_| turn())
            .min_by(f64::total_cmp)
    }
}

/// Where the flag of a process lies that says whether its calls are noted one by one.
pub fn touch_slot(pid: u32) -> u32 {
    pid % TOUCHED as u32
}

fn map_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    map: &'static str,
) -> impl Fn(E) -> KernelError {
    move |source| KernelError::Map {
        map,
        source: source.into(),
    }
}
