//! The facts themselves. What is derived from them is the business of `session` and later stages.
//!
//! Variants are added at the end and never change: an older recording stays readable. Anything else
//! raises [`super::format::FORMAT`].

use serde::{Deserialize, Serialize};

pub use super::{
    alloc::{
        AllocCalibrationFact, AllocCallsFact, AllocFrame, AllocLifetimesFact, AllocSiteFact,
        AllocWindowFact, AllocatorFact, GovernorFact,
    },
    gpu::{
        BackwardFact, ExecutionFact, GpuCallFact, GpuCallKind, GpuDeviceFact, GpuMemoryFact,
        GpuMetric, GpuProcessFact, GpuSampleFact, PassFact, PyGpuMemoryFact, UpdateFact,
    },
    pressure::{
        CgroupMemorySample, CgroupPressureSample, HostSample, NeighboursFact, OutsiderUse,
        PressureTotals, ProcessSample, QuotaSample, SocketFact,
    },
    python::{
        PyFaultFact, PyFunctionFact, PyRuntimeFact, PySampleFact, PyStackFact, PyThreadSampleFact,
    },
    stack::{
        FaultFact, FaultSamplingFact, FrameFact, HugePages, PageKind, PagesGone, SourceLine,
        StackFact,
    },
    touch::{PlaceClass, PlaceFact, SampleFact, SamplingFact, TouchFact},
};
use crate::{
    env::{frameworks::FrameworkFacts, host::HostFacts, mounts::MountFacts, process::ProcessFacts},
    time::{Anchor, KtimeNs},
};

/// One fact of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    Start(Start),
    /// Something that this host does not let us see.
    Missing {
        what: String,
        reason: String,
    },
    Process(ProcessSeen),
    Thread(ThreadSeen),
    Exec {
        at: KtimeNs,
        pid: u32,
        old_tid: u32,
        name: String,
    },
    Exit {
        at: KtimeNs,
        pid: u32,
        tid: u32,
    },
    /// A mount that files of the job lie on.
    Mount(MountFacts),
    Fileset(FilesetFact),
    Wait(WaitFact),
    Interval(Interval),
    /// A thread outside the job that woke one inside.
    Outsider {
        tid: u32,
        pid: Option<u32>,
        name: Option<String>,
    },
    Memory {
        at: KtimeNs,
        pid: u32,
        rss_bytes: u64,
    },
    Cost(CostSample),
    Stop(Stop),
    /// What a process has mapped by now.
    Frameworks {
        pid: u32,
        frameworks: FrameworkFacts,
    },
    Touch(TouchFact),
    Sampling(SamplingFact),
    Place(PlaceFact),
    Sample(SampleFact),
    GpuDevice(GpuDeviceFact),
    GpuSample(GpuSampleFact),
    GpuProcess(GpuProcessFact),
    /// A function that [`GpuCallFact`]s are calls of.
    GpuFunction {
        number: u32,
        /// File name of the library, without its directory.
        library: String,
        name: String,
    },
    GpuCall(GpuCallFact),
    Quota(QuotaSample),
    CgroupMemory(CgroupMemorySample),
    Host(HostSample),
    ProcessMemory(ProcessSample),
    Socket(SocketFact),
    /// Arguments of a process outside the job that the job waited for.
    OutsiderCommand {
        pid: u32,
        command: Vec<String>,
    },
    /// In the interval that is told next, beginnings of system calls were hidden for so many nanoseconds. Calls
    /// that began then were counted, but not timed: see [`OpSum::ns`].
    EntriesHidden {
        ns: u64,
    },
    Frame(FrameFact),
    Stack(StackFact),
    FaultSampling(FaultSamplingFact),
    Fault(FaultFact),
    PagesGone(PagesGone),
    AllocCalibration(AllocCalibrationFact),
    Allocator(AllocatorFact),
    AllocWindow(AllocWindowFact),
    /// After the window that it belongs to.
    AllocSite(AllocSiteFact),
    Governor(GovernorFact),
    /// A thread ended because the kernel killed its process, memory having run out; once for each thread.
    OutOfMemory {
        at: KtimeNs,
        pid: u32,
    },
    /// CPUs that the first thread of a process may use (sched_setaffinity(2), cpuset(7)), as a list such as `0-3,8`:
    /// when first seen, and when they have changed.
    Affinity {
        pid: u32,
        cpus: String,
    },
    PyFunction(PyFunctionFact),
    PyStack(PyStackFact),
    PySample(PySampleFact),
    PyRuntime(PyRuntimeFact),
    /// Before the [`CostSample`] that it belongs to.
    SpinCost(SpinCost),
    /// Before the [`Interval`] that it lies in.
    CallsHidden(CallsHidden),
    CgroupPressure(CgroupPressureSample),
    StartCost(StartCost),
    /// Nanoseconds of a page fault in which no clock sample is taken: see [`crate::kernel`]'s `fault_edge`. Clock samples show them
    /// as the code that faulted. Measured at the end, where faults were many.
    FaultEdge {
        ns: f64,
    },
    /// Before the [`Interval`] whose operations they are of.
    OpLatencies(Vec<OpLatency>),
    Backward(BackwardFact),
    HugePages(HugePages),
    PyFault(PyFaultFact),
    Pass(PassFact),
    GpuMemory(GpuMemoryFact),
    PyGpuMemory(PyGpuMemoryFact),
    /// What the job allocates on GPUs and gives back is not told any more: that happens too often to watch.
    GpuMemoryUntold,
    /// For how long putting one probe on an allocator in stops a thread that uses it: beside [`AllocCalibrationFact::pause_ns`].
    OpeningPause {
        ns: u64,
    },
    PyThreadSample(PyThreadSampleFact),
    Neighbours(NeighboursFact),
    Update(UpdateFact),
    OutsiderUse(OutsiderUse),
    Execution(ExecutionFact),
}

/// A time in which system calls were not counted, because that costs too much: neither are they in an [`Interval`]'s operations nor
/// were they noted one by one. Waits in them were seen as ever.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallsHidden {
    pub from: KtimeNs,
    pub to: KtimeNs,
    /// Processes whose calls were counted nevertheless: trainers, as far as they are known; `None`: nobody's were.
    pub counted: Option<Vec<u32>>,
    /// What counting all calls takes of the job's CPU time, as a part of what is left: by so much the job is slower, and its calls are
    /// fewer, while they are counted.
    pub slowed: f64,
}

/// The beginning of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub at: KtimeNs,
    pub anchor: Anchor,
    pub host: HostFacts,
    /// The process ids that were asked for.
    pub targets: Vec<u32>,
    /// Waits of at least this many nanoseconds are recorded one by one at first, shorter ones as sums; for
    /// later see [`Interval::event_min_ns`].
    pub event_min_ns: u64,
    /// From the start of attaching until the probes were live, nanoseconds.
    pub attach_ns: u64,
}

/// A process of the job as it was when first seen, or after it executed another program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessSeen {
    pub at: KtimeNs,
    pub pid: u32,
    pub parent: u32,
    /// Name of the main thread.
    pub name: String,
    /// `None` when it was gone before it could be read.
    pub facts: Option<ProcessFacts>,
    pub frameworks: Option<FrameworkFacts>,
}

/// A thread of the job, from when on it is followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadSeen {
    pub at: KtimeNs,
    pub pid: u32,
    pub tid: u32,
    /// The thread that made it; `None` for threads that were there before the watch.
    pub parent_tid: Option<u32>,
    pub name: String,
}

/// A file set: files of one directory with one extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesetFact {
    pub number: u32,
    /// Directory as the job sees it; `None` when it could not be told.
    pub directory: Option<String>,
    /// Extension without its dot.
    pub extension: Option<String>,
    /// From the text of a path that left no descriptor behind.
    pub from_text: bool,
    pub mount_point: Option<String>,
    pub fs_type: Option<String>,
}

/// What a thread waited on.
#[derive(
    Default, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ObjectFact {
    /// Inode number or futex address; 0: none.
    pub id: u64,
    pub fileset: u32,
    /// [`trainprof_common::op::Class`] number.
    pub class: u8,
}

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WakerFact {
    /// [`trainprof_common::thread::WakerKind`] number.
    pub kind: u8,
    /// 0 when it was not a thread.
    pub tid: u32,
}

/// One interval off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitFact {
    pub tid: u32,
    pub from: KtimeNs,
    /// Nanoseconds until the wake-up.
    pub wait_ns: u64,
    /// Nanoseconds from the wake-up until on a CPU.
    pub runnable_ns: u64,
    /// Thread that had the CPU for most of the time that this one wanted it; 0: none, the CPU was idle.
    pub ran_before: u32,
    /// System call, or a `NR_*` number of [`trainprof_common::thread`].
    pub nr: i16,
    pub object: ObjectFact,
    pub waker: WakerFact,
    pub iowait: bool,
}

/// What was counted in an interval of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub from: KtimeNs,
    pub to: KtimeNs,
    pub ops: Vec<OpSum>,
    pub hists: Vec<HistSum>,
    pub waits: Vec<WaitSum>,
    pub ended: Vec<ThreadEnd>,
    /// Every live thread.
    pub running: Vec<ThreadTotals>,
    /// Facts lost in the interval: [`trainprof_common::loss::Loss`] number, count.
    pub lost: Vec<(u32, u64)>,
    /// Events that could not be decoded.
    pub undecodable: u64,
    /// Single events that arrived.
    pub events: u64,
    /// Every wait of at least this many nanoseconds that ended in the interval was recorded one by one.
    pub event_min_ns: u64,
}

/// Time of a thread since it is followed, other than its waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTotals {
    pub tid: u32,
    /// Nanoseconds on a CPU.
    pub run_ns: u64,
    /// Times that it was put off the CPU or yielded it, and nanoseconds until it was back.
    pub preemptions: u32,
    pub preempted_ns: u64,
}

/// Operations of one thread on one file set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpSum {
    pub tid: u32,
    pub fileset: u32,
    /// Kernel-internal device number: major << 20 | minor.
    pub dev: u32,
    /// [`trainprof_common::op::Op`] number.
    pub op: u8,
    /// [`trainprof_common::op::Class`] number.
    pub class: u8,
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub ns: u64,
}

/// Latencies and sizes of one thread's operations on one file system: (bucket, count) of those not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistSum {
    pub tid: u32,
    pub dev: u32,
    pub op: u8,
    pub class: u8,
    pub latency: Vec<(u8, u32)>,
    pub size: Vec<(u8, u32)>,
}

/// Latencies of all threads' operations on one file set: (coarse bucket, count) of those not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpLatency {
    pub fileset: u32,
    pub dev: u32,
    pub op: u8,
    pub class: u8,
    /// See [`trainprof_common::hist::coarse_range`].
    pub latency: Vec<(u8, u32)>,
}

/// Waits of one thread on one object, ended by one waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSum {
    pub tid: u32,
    pub nr: i16,
    pub object: ObjectFact,
    pub waker: WakerFact,
    pub count: u64,
    pub wait_ns: u64,
    pub runnable_ns: u64,
    pub iowait_ns: u64,
    pub max_ns: u64,
}

/// A thread's final account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadEnd {
    pub at: KtimeNs,
    pub pid: u32,
    pub tid: u32,
    pub followed_since: KtimeNs,
    pub totals: ThreadTotals,
    pub counters: Counters,
    pub name: String,
}

/// Counters that the kernel keeps for each thread, since it is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Bytes fetched from and sent to storage.
    pub storage_read_bytes: u64,
    pub storage_write_bytes: u64,
}

/// What watching has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostSample {
    pub at: KtimeNs,
    /// Nanoseconds inside our probes on all CPUs and runs of them, extrapolated from windows in which the
    /// kernel counted.
    pub bpf_ns: Option<u64>,
    pub bpf_runs: Option<u64>,
    /// Nanoseconds of the watch in which the kernel counted.
    pub counted_ns: u64,
    /// CPU nanoseconds that all processes of the host used since the watch began.
    pub host_busy_ns: Option<u64>,
    /// CPU nanoseconds of the collector, user and system.
    pub collector_cpu_ns: u64,
    pub collector_rss_max_bytes: u64,
}

/// What of the probes' run time fell on calls by which threads gave up the CPU, again and again, because they had nothing to do: it
/// lengthens no work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpinCost {
    pub at: KtimeNs,
    /// Nanoseconds of [`CostSample::bpf_ns`]; `None`: it was not measured what such a call costs.
    pub bpf_ns: Option<u64>,
}

/// What it took to begin, once in a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartCost {
    pub at: KtimeNs,
    /// CPU nanoseconds of all processes of ours until then: in [`CostSample::collector_cpu_ns`], and not in [`GovernorFact::own_ns`].
    pub own_ns: u64,
}

/// The end of a watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stop {
    pub at: KtimeNs,
    pub reason: StopReason,
    /// Every thread that is still there.
    pub threads: Vec<OpenThread>,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The time that was asked for is over.
    Duration,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// No process of the job is left.
    JobEnded,
}

/// A thread that is still there at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenThread {
    pub pid: u32,
    pub tid: u32,
    pub followed_since: KtimeNs,
    pub name: String,
    pub totals: ThreadTotals,
    /// [`trainprof_common::thread::State`] number.
    pub state: u8,
    /// Since when it is in that state, not before it was followed.
    pub since: KtimeNs,
    pub nr: i16,
    pub object: ObjectFact,
    /// `None` when they could not be read.
    pub counters: Option<Counters>,
}
