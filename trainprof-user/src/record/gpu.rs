//! Facts about GPUs: what the driver's library said, and calls into the runtime.

use serde::{Deserialize, Serialize};

use crate::time::KtimeNs;

/// A GPU, or a slice of one (MIG). Recorded again when `used_by_job` turns out otherwise: the newest of a `device`
/// holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuDeviceFact {
    /// Our own number, by which other facts name it.
    pub device: u32,
    /// NVML's index of the (parent) device.
    pub index: u32,
    /// Index of the slice when this is one.
    pub mig: Option<u32>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub driver: Option<String>,
    pub memory_total_bytes: Option<u64>,
    /// Whether a process of the job may use it, by `CUDA_VISIBLE_DEVICES` and by who has a context on it.
    pub used_by_job: Option<bool>,
}

/// What a [`GpuSampleFact`] measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GpuMetric {
    /// Share (0–1) of the span in which any kernel ran.
    Utilisation,
    /// Share (0–1) of the span in which memory was read or written.
    MemoryUtilisation,
    MemoryUsedBytes,
    PowerWatts,
    SmClockMhz,
    MemoryClockMhz,
    TemperatureC,
    /// Bit mask of NVML's clock-throttle reasons.
    ThrottleReasons,
    PcieTxBytesPerS,
    PcieRxBytesPerS,
    /// Share (0–1), GPM.
    SmActivity,
    /// Share (0–1), GPM.
    SmOccupancy,
    /// Share (0–1), GPM.
    TensorActivity,
    /// Uncorrected ECC errors so far.
    EccErrors,
    /// Number of an XID error, at the time at which it came.
    Xid,
}

/// One sample of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSampleFact {
    pub device: u32,
    /// End of the span that it tells about.
    pub at: KtimeNs,
    /// Length of that span; 0 for a value at one moment.
    pub span_ns: u64,
    pub metric: GpuMetric,
    pub value: f64,
}

/// A process that has a context on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProcessFact {
    pub at: KtimeNs,
    pub device: u32,
    pub pid: u32,
    pub memory_bytes: Option<u64>,
    /// Share (0–1) of the time since the last one.
    pub utilisation: Option<f64>,
    /// Name, for processes outside the job.
    pub name: Option<String>,
}

/// What a call into the GPU's runtime is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GpuCallKind {
    /// Waits for work on the GPU.
    Synchronise,
    /// Copies between host and device and returns when done.
    Copy,
    /// Begins a copy.
    CopyAsync,
    Allocate,
    Free,
}

/// One call into the GPU's runtime by a thread of the job: the outermost, where one calls another. One that did not
/// return ends with its thread or with the watch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuCallFact {
    pub tid: u32,
    pub from: KtimeNs,
    pub ns: u64,
    pub kind: GpuCallKind,
    /// Bytes copied or allocated; 0 when not known.
    pub bytes: u64,
    /// Number of a [`super::Record::GpuFunction`].
    pub function: u32,
}

/// Memory of a GPU, or pinned memory of the host, is allocated or given back by a call that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemoryFact {
    /// From 1 on.
    pub number: u32,
    /// When the call began.
    pub at: KtimeNs,
    pub tid: u32,
    pub pid: u32,
    /// What the call gave or took back: an address of the process, or a handle of the driver.
    pub address: u64,
    /// 0: given back.
    pub bytes: u64,
    /// Number of a [`super::Record::GpuFunction`].
    pub function: u32,
}

/// By which functions of Python it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PyGpuMemoryFact {
    /// Number of a [`GpuMemoryFact`].
    pub memory: u32,
    /// Number of a [`super::python::PyStackFact`], of the innermost functions.
    pub stack: u32,
}

/// A backward pass begins, as told before its path was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackwardFact {
    pub at: KtimeNs,
    pub tid: u32,
    /// Stack pointer: of a pass inside another one it is lower.
    pub sp: u64,
}

/// A backward pass begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassFact {
    pub at: KtimeNs,
    pub tid: u32,
    /// Stack pointer: of a pass inside another one it is lower.
    pub sp: u64,
    /// By which calls of Python the thread came there: the same number, the same calls. 0: not known.
    pub path: u64,
}

/// A thread begins to update a model with the gradients of its backward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateFact {
    pub at: KtimeNs,
    pub tid: u32,
}

/// A thread begins to compute what its framework compiled as a whole (JAX, TensorFlow), or a round of boosting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionFact {
    pub at: KtimeNs,
    pub tid: u32,
    /// Address of what is computed: the same one, the same computation.
    pub what: u64,
}

impl From<BackwardFact> for PassFact {
    fn from(BackwardFact { at, tid, sp }: BackwardFact) -> Self {
        Self {
            at,
            tid,
            sp,
            path: 0,
        }
    }
}
