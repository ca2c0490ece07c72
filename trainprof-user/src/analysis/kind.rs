//! The causes that hold a job back, by the names of the report.

/// A cause. [`Kind::name`] is its `kind` in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Compute,
    StorageIo,
    SmallFiles,
    NetworkIo,
    InputCpu,
    HostCompute,
    H2dCopy,
    CpuContention,
    CpuThrottled,
    Serialization,
    AllocationChurn,
    Checkpoint,
    Communication,
    /// The trainer, or a producer that it waited for, slept of its own accord.
    Sleep,
    /// Stopped by a signal, a tracer or a freezer.
    Stopped,
    /// Workers were being made, or were not there yet.
    WorkerStart,
    /// A process of the job that is neither trainer nor worker was at work while it was waited for.
    Helper,
    /// The producers had been asked for nothing.
    NotAsked,
    /// What could not be followed.
    Unknown,
}

impl Kind {
    /// The causes that findings and verdicts name.
    pub const CAUSES: [Self; 13] = [
        Self::Compute,
        Self::StorageIo,
        Self::SmallFiles,
        Self::NetworkIo,
        Self::InputCpu,
        Self::HostCompute,
        Self::H2dCopy,
        Self::CpuContention,
        Self::CpuThrottled,
        Self::Serialization,
        Self::AllocationChurn,
        Self::Checkpoint,
        Self::Communication,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::StorageIo => "storage-io",
            Self::SmallFiles => "small-files",
            Self::NetworkIo => "network-io",
            Self::InputCpu => "input-cpu",
            Self::HostCompute => "host-compute",
            Self::H2dCopy => "h2d-copy",
            Self::CpuContention => "cpu-contention",
            Self::CpuThrottled => "cpu-throttled",
            Self::Serialization => "serialization",
            Self::AllocationChurn => "allocation-churn",
            Self::Checkpoint => "checkpoint",
            Self::Communication => "communication",
            Self::Sleep => "sleep",
            Self::Stopped => "stopped",
            Self::WorkerStart => "worker-start",
            Self::Helper => "helper",
            Self::NotAsked => "not-asked",
            Self::Unknown => "unknown",
        }
    }

    /// Whether something on the host can be changed about it, and so whether it can be blamed in a verdict.
    pub const fn can_be_fixed(self) -> bool {
        !matches!(
            self,
            Self::Compute
                | Self::Sleep
                | Self::Stopped
                | Self::WorkerStart
                | Self::Helper
                | Self::NotAsked
                | Self::Unknown
        )
    }
}
