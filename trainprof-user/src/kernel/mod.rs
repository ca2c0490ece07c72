//! The kernel side as user space sees it. `aya` is touched here and nowhere else.
//!
//! Owns loading, attaching, draining and measuring the probes; knows nothing of jobs, reports or rules.

mod apart;
pub mod btf;
mod load;
pub mod plan;
mod stats;
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
    programs::{BtfTracePoint, ProgramError},
};
use trainprof_common::{
    cell::{OpCell, OpKey, WaitCell, WaitKey},
    fileset::FilesetInfo,
    loss::Loss,
    thread::{EndedKey, EndedThread, ThreadState},
};

pub use self::stats::StatsSwitch;
use self::wire::Table;

/// After the aggregates are switched over, programs that still write into the old half are done after
/// this long: they run with preemption off, for microseconds.
pub const GRACE: Duration = Duration::from_millis(5);

/// Indices of the probes' control words.
const CONTROL_EPOCH: u32 = 0;

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
}

/// Sizes and thresholds that are fixed when the probes are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that can be followed at once.
    pub max_threads: u32,
    /// Waits of at least this many nanoseconds are sent one by one.
    pub event_min_ns: u64,
}

impl Limits {
    /// Sizes that suit this host. Memory is taken as threads come, so room costs next to nothing.
    pub fn for_this_host() -> Self {
        Self {
            max_threads: 65_536,
            event_min_ns: 50_000,
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
}

struct Half {
    ops: Table<OpKey, OpCell>,
    waits: Table<WaitKey, WaitCell>,
}

/// The loaded and attached probes. Dropping it detaches and removes everything; so does our death, since
/// nothing is pinned.
pub struct Probes {
    /// The probes' own log, in a build for debugging them.
    #[cfg(feature = "probe-log")]
    log: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    ebpf: Ebpf,
    threads: Table<u32, ThreadState>,
    halves: [Half; 2],
    ended: Table<EndedKey, EndedThread>,
    filesets: Table<u32, FilesetInfo>,
    control: Array<MapData, u64>,
    losses: PerCpuArray<MapData, u64>,
    ring: RingBuf<MapData>,
    epoch: usize,
    attached: Vec<&'static str>,
    /// What is not there, and why.
    pub skipped: Vec<Skipped>,
}

impl Probes {
    /// Follows a thread from now on; `Ok(false)` when it is followed already.
    pub fn follow(&self, tid: u32, state: ThreadState) -> Result<bool, KernelError> {
        self.threads
            .add(&tid, state)
            .map_err(|source| KernelError::Follow { tid, source })
    }

    /// The state of one followed thread.
    pub fn thread(&self, tid: u32) -> Option<ThreadState> {
        self.threads.get(&tid)
    }

    /// Every followed thread.
    pub fn threads(&self) -> Result<Vec<(u32, ThreadState)>, KernelError> {
        self.threads.read().map_err(map_error("THREADS"))
    }

    /// Lets the probes write into the other half of the aggregates. Wait for [`GRACE`] before [`Self::drain`].
    pub fn switch_over(&mut self) -> Result<(), KernelError> {
        let next = 1 - self.epoch;
        self.control
            .set(CONTROL_EPOCH, next as u64, 0)
            .map_err(map_error("CONTROL"))?;
        self.epoch = next;
        Ok(())
    }

    /// Takes out what was counted before the last [`Self::switch_over`].
    pub fn drain(&mut self) -> Result<Aggregates, KernelError> {
        let half = &self.halves[1 - self.epoch];
        Ok(Aggregates {
            ops: half.ops.drain().map_err(map_error("OPS"))?,
            waits: half.waits.drain().map_err(map_error("WAITS"))?,
            ended: self.ended.drain().map_err(map_error("ENDED"))?,
        })
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
        Loss::ALL
            .into_iter()
            .filter_map(|reason| {
                let per_cpu = self.losses.get(&(reason as u32), 0).ok()?;
                let sum: u64 = per_cpu.iter().sum();
                (sum > 0).then_some((reason, sum))
            })
            .collect()
    }

    /// What the kernel has counted for our programs so far.
    pub fn run_stats(&self) -> RunStats {
        let mut sum = RunStats::default();
        for name in &self.attached {
            let info = self
                .ebpf
                .program(name)
                .and_then(|program| <&BtfTracePoint>::try_from(program).ok())
                .and_then(|program| program.info().ok());
            if let Some(info) = info {
                sum.ns += info.run_time().as_nanos() as u64;
                sum.runs += info.run_count();
            }
        }
        sum
    }
}

fn map_error<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    map: &'static str,
) -> impl Fn(E) -> KernelError {
    move |source| KernelError::Map {
        map,
        source: source.into(),
    }
}
