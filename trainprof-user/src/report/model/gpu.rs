//! GPUs.

use serde::Serialize;

use super::Series;
use crate::session::Id;

/// GPUs as the driver's library tells of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gpu {
    pub available: bool,
    pub devices: Vec<GpuDevice>,
    /// Idle seconds of the devices that the job uses (their mean), by cause.
    pub idle_blame: Vec<IdleRow>,
    /// Seconds of `idle_blame` that may belong to another cause: samples say how much of a span was idle, not
    /// when.
    pub idle_uncertainty_s: Option<f64>,
    /// Calls into the GPU's runtime, by function.
    pub calls: Vec<GpuCallRow>,
}

/// One GPU, or one slice of one.
#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    pub index: u32,
    pub mig: Option<u32>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub used_by_job: Option<bool>,
    /// Seconds that samples tell about.
    pub sampled_s: f64,
    pub util_mean: Option<f64>,
    pub idle_s: Option<f64>,
    pub memory_total_bytes: Option<u64>,
    pub memory_max_bytes: Option<u64>,
    pub power_mean_w: Option<f64>,
    pub sm_clock_mean_mhz: Option<f64>,
    pub temperature_max_c: Option<f64>,
    pub sm_activity_mean: Option<f64>,
    /// Bits of NVML's clock-throttle reasons that were set at any time.
    pub throttle_reasons: Option<u64>,
    /// The same by name.
    pub throttle_reason_names: Option<Vec<&'static str>>,
    pub memory_util_mean: Option<f64>,
    pub memory_clock_mean_mhz: Option<f64>,
    pub sm_occupancy_mean: Option<f64>,
    pub tensor_activity_mean: Option<f64>,
    pub pcie_rx_bytes_per_s: Option<f64>,
    pub pcie_tx_bytes_per_s: Option<f64>,
    pub ecc_errors: Option<u64>,
    /// Numbers of the driver's error messages (NVIDIA's XID errors), each once, ascending.
    pub xids: Vec<u64>,
    pub processes: Vec<GpuProcess>,
}

/// A process on a GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuProcess {
    pub pid: Id,
    pub name: Option<String>,
    pub in_job: bool,
    pub memory_max_bytes: Option<u64>,
    pub util_mean: Option<f64>,
    /// Over time; `null` when it was not told.
    pub memory_bytes: Option<Series>,
}

/// Idle time by cause.
#[derive(Clone, Debug, Serialize)]
pub struct IdleRow {
    pub kind: &'static str,
    pub seconds: f64,
    /// Of the idle time.
    pub share: f64,
}

/// Calls of one function.
#[derive(Clone, Debug, Serialize)]
pub struct GpuCallRow {
    pub function: String,
    pub library: String,
    pub count: u64,
    pub seconds: f64,
    pub bytes: u64,
}
