//! Facts that the kernel keeps anyway and that are read once an interval.

use serde::{Deserialize, Serialize};

use crate::time::KtimeNs;

/// CPU bandwidth of a cgroup of the job that has a quota, or of one above it. Counters since it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSample {
    pub at: KtimeNs,
    /// Path below the hierarchy's root.
    pub cgroup: String,
    /// Quota and period in force, microseconds.
    pub quota_us: u64,
    pub period_us: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    /// Nanoseconds that its run queues were throttled, summed over CPUs.
    pub throttled_ns: u64,
}

/// Memory of the job's cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupMemorySample {
    pub at: KtimeNs,
    pub cgroup: String,
    pub usage_bytes: u64,
    pub limit_bytes: Option<u64>,
    /// Bytes of page cache in it that can be dropped: without shared memory and files of a tmpfs.
    pub file_bytes: Option<u64>,
    pub anon_bytes: Option<u64>,
    /// Pages of files that were read again soon after they had been dropped, since it exists.
    pub refaults_file: Option<u64>,
    pub oom_kills: Option<u64>,
}

/// Pressure stall totals (Documentation/accounting/psi.rst), microseconds since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureTotals {
    pub cpu_some_us: Option<u64>,
    pub io_some_us: Option<u64>,
    pub io_full_us: Option<u64>,
    pub memory_some_us: Option<u64>,
    pub memory_full_us: Option<u64>,
}

/// Pressure of a control group that processes of the job are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPressureSample {
    pub at: KtimeNs,
    /// Path below the root of version 2's hierarchy.
    pub cgroup: String,
    /// Since it exists.
    pub pressure: PressureTotals,
    /// In which all its threads that could run had no CPU.
    pub cpu_full_us: Option<u64>,
}

/// The whole host. Counters since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSample {
    pub at: KtimeNs,
    pub pressure: PressureTotals,
    /// CPU nanoseconds used, idle, and stolen by the hypervisor, summed over CPUs.
    pub busy_ns: u64,
    pub idle_ns: u64,
    pub steal_ns: u64,
    /// Pages of files that were read again soon after they had been dropped.
    pub refaults_file: Option<u64>,
    pub memory_available_bytes: Option<u64>,
}

/// Processes outside the job that used most CPU time while the host had next to none to spare, as far as it was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighboursFact {
    pub at: KtimeNs,
    /// Nanoseconds between looks, all of them so far.
    pub looked_ns: u64,
    /// Process, and CPU nanoseconds in that time, in steps of a clock tick; most first.
    pub most: Vec<(u32, u64)>,
}

/// CPU time of a process outside the job that the job had to do with, since it was first met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsiderUse {
    pub at: KtimeNs,
    pub pid: u32,
    /// For how long it was looked at until now, ns.
    pub looked_ns: u64,
    /// CPU nanoseconds of all its threads in that time, in steps of a clock tick.
    pub cpu_ns: u64,
    /// How many threads it has now.
    pub threads: u32,
}

/// Memory and descriptors of a process of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSample {
    pub at: KtimeNs,
    pub pid: u32,
    /// Resident: anonymous, file and shared pages; swap. (/proc/PID/status)
    pub anon_bytes: u64,
    pub file_bytes: u64,
    pub shmem_bytes: u64,
    pub swap_bytes: u64,
    /// Proportional share; read seldom, because it is dear.
    pub pss_bytes: Option<u64>,
    /// Open descriptors; `None` when they could not be counted.
    pub descriptors: Option<u32>,
}

/// The far end of a socket that the job waits on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFact {
    /// Inode number: [`super::fact::ObjectFact::id`].
    pub inode: u64,
    /// `tcp`, `udp`, `unix`.
    pub family: String,
    /// Address and port, or path.
    pub peer: Option<String>,
}
