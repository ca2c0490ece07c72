//! Calls into NVML (nvml.h), through `nvml-wrapper`. Nothing here waits on purpose, and anything may hang: see
//! [`super`]. What an answer means is the business of `gpu/decode.rs`.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::event::EventTypes,
    enum_wrappers::device::{
        Clock, EccCounter, MemoryError, PcieUtilCounter, Sampling, TemperatureSensor,
    },
    enums::{
        device::{SampleValue, UsedGpuMemory},
        event::XidError,
        gpm::GpmMetricId,
    },
    error::NvmlError,
    event::EventSet,
    gpm::{GpmSample, gpm_metrics_get},
};

use super::{
    DeviceUser,
    decode::{Buffer, Polled},
    query::Query,
};
use crate::{
    env::clock::{anchor, now},
    record::gpu::{GpuDeviceFact, GpuMetric, GpuSampleFact},
    time::KtimeNs,
};

/// Nanoseconds over which the driver measures PCIe throughput (nvml.h, `nvmlDeviceGetPcieThroughput`).
const PCIE_SPAN_NS: u64 = 20_000_000;

/// Nanoseconds between two times that samples are fetched. The driver keeps those of some seconds.
const DRAIN_EVERY_NS: u64 = 900_000_000;

/// What a query gave.
#[derive(Debug, Default)]
pub struct Told {
    pub samples: Vec<GpuSampleFact>,
    pub users: Option<Vec<DeviceUser>>,
}

/// Why a device gives nothing more.
#[derive(Debug)]
pub struct DeviceGone(pub String);

/// Whether a file is a library that can be loaded, and NVML. In words why not.
pub fn check_loadable(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: initialisers of the library run, in this process alone. The handle is not closed: the library stays.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        if handle.is_null() {
            let reason = libc::dlerror();
            return Err(if reason.is_null() {
                "it cannot be loaded".to_owned()
            } else {
                CStr::from_ptr(reason).to_string_lossy().into_owned()
            });
        }
        if libc::dlsym(handle, c"nvmlInit_v2".as_ptr()).is_null() {
            return Err("it has no nvmlInit_v2, so it is not NVML".to_owned());
        }
    }
    Ok(())
}

/// Opens the library and the driver.
pub fn open(path: &Path) -> Result<Nvml, String> {
    Nvml::builder()
        .lib_path(path.as_os_str())
        .init()
        .map_err(|error| error.to_string())
}

/// A device that is asked.
pub struct Asked<'n> {
    pub fact: GpuDeviceFact,
    nvml: &'n Nvml,
    device: Device<'n>,
    /// The instance that a slice lies in, and the device that it is a slice of.
    instance: Option<(u32, u32)>,
    /// A device that has slices tells of utilisation and processes by slice.
    sliced: bool,
    utilisation: Buffer,
    memory_utilisation: Buffer,
    power: Buffer,
    /// Whether the driver keeps samples of utilisation, and of power.
    buffers: [Option<bool>; 2],
    polled: Polled,
    gpm: Option<bool>,
    gpm_before: Option<(KtimeNs, GpmSample<'n>)>,
    /// When samples of utilisation were fetched last.
    drained: Option<KtimeNs>,
    /// Whether the newest answer of GPM held the utilisation.
    counted: bool,
    users_since_us: u64,
    /// Shares (0–1) of processes in its use that were not told yet.
    shares: BTreeMap<u32, f64>,
    /// Queries that this device does not know.
    unknown: Vec<(Query, u8)>,
}

/// What the driver has: devices and their slices, and what could not be opened.
pub fn devices(nvml: &Nvml) -> (Vec<Asked<'_>>, Vec<String>) {
    let (mut out, mut missing) = (Vec::new(), Vec::new());
    let driver = nvml.sys_driver_version().ok();
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => return (out, vec![format!("the driver lists no devices: {error}")]),
    };
    for index in 0..count {
        let device = match nvml.device_by_index(index) {
            Ok(device) => device,
            Err(error) => {
                missing.push(format!("GPU {index}: {error}"));
                continue;
            }
        };
        let slices = slices_of(nvml, &device);
        let number = out.len() as u32;
        let mut whole = Asked::new(nvml, device, number, index, &driver);
        whole.sliced = !slices.is_empty();
        out.push(whole);
        for (slice, instance, device) in slices {
            let number = out.len() as u32;
            let mut asked = Asked::new(nvml, device, number, index, &driver);
            asked.fact.mig = Some(slice);
            asked.instance = Some((instance, index));
            out.push(asked);
        }
    }
    (out, missing)
}

/// The MIG devices of a device: index, GPU instance, handle.
fn slices_of<'n>(nvml: &'n Nvml, device: &Device<'n>) -> Vec<(u32, u32, Device<'n>)> {
    // NVML_DEVICE_MIG_ENABLE
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Vec::new();
    }
    (0..device.mig_device_count().unwrap_or(0))
        .filter_map(|slice| {
            let device = device.mig_device_by_index(slice).ok()?;
            let get = nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
            let mut instance = 0;
            // SAFETY: a live handle and a valid pointer.
            let code = unsafe { get(device.handle(), &raw mut instance) };
            (code == 0).then_some((slice, instance, device))
        })
        .collect()
}

impl<'n> Asked<'n> {
    fn new(
        nvml: &'n Nvml,
        device: Device<'n>,
        number: u32,
        index: u32,
        driver: &Option<String>,
    ) -> Self {
        let buffer = |metric, unit| Buffer {
            device: number,
            metric,
            unit,
            last_us: 0,
            since: now(),
        };
        Self {
            fact: GpuDeviceFact {
                device: number,
                index,
                mig: None,
                uuid: device.uuid().ok(),
                name: device.name().ok(),
                driver: driver.clone(),
                memory_total_bytes: device.memory_info().ok().map(|memory| memory.total),
                used_by_job: None,
            },
            nvml,
            device,
            instance: None,
            sliced: false,
            // NVML gives percent and milliwatts.
            utilisation: buffer(GpuMetric::Utilisation, 0.01),
            memory_utilisation: buffer(GpuMetric::MemoryUtilisation, 0.01),
            power: buffer(GpuMetric::PowerWatts, 0.001),
            buffers: [None; 2],
            polled: Polled::default(),
            gpm: None,
            gpm_before: None,
            drained: None,
            counted: false,
            users_since_us: anchor().unix_ns / 1000,
            shares: BTreeMap::new(),
            unknown: Vec::new(),
        }
    }

    /// Asks one thing.
    pub fn ask(&mut self, query: Query) -> Result<Told, DeviceGone> {
        let mut told = Told::default();
        // What failed so often will not come.
        if self
            .unknown
            .iter()
            .any(|(q, times)| *q == query && *times >= 10)
        {
            return Ok(told);
        }
        let result = match query {
            Query::Gpm => self.gpm(&mut told),
            Query::Utilisation => self.utilisation(&mut told),
            Query::Power => self.power(&mut told),
            Query::Memory => self.memory(&mut told),
            Query::Clocks => self.clocks(&mut told),
            Query::Users => self.users(&mut told),
            Query::Shares => self.shares(),
            Query::Temperature => self.temperature(&mut told),
            Query::Pcie => self.pcie(&mut told),
            Query::Ecc => self.ecc(&mut told),
        };
        match result {
            Err(NvmlError::GpuLost | NvmlError::ResetRequired) => Err(DeviceGone(format!(
                "GPU {} is lost: it has fallen off the bus or needs a reset",
                self.fact.index
            ))),
            Err(error) => {
                let worth = if is_never(&error) { 10 } else { 1 };
                match self.unknown.iter_mut().find(|(q, _)| *q == query) {
                    Some((_, times)) => *times = times.saturating_add(worth),
                    None => self.unknown.push((query, worth)),
                }
                Ok(told)
            }
            Ok(()) => Ok(told),
        }
    }

    /// Samples that the driver keeps are fetched when they are asked for next, however little time has passed.
    pub fn fetch_anew(&mut self) {
        self.drained = None;
    }

    fn sample(&self, at: KtimeNs, span_ns: u64, metric: GpuMetric, value: f64) -> GpuSampleFact {
        GpuSampleFact {
            device: self.fact.device,
            at,
            span_ns,
            metric,
            value,
        }
    }

    fn utilisation(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        if self.sliced || self.instance.is_some() || self.counted {
            return Ok(());
        }
        if self.buffers[0] == Some(false) {
            let rates = self.device.utilization_rates()?;
            let at = now();
            if let Some(span) = self.polled.span(at) {
                let share = |percent: u32| f64::from(percent) / 100.0;
                told.samples.extend([
                    self.sample(at, span, GpuMetric::Utilisation, share(rates.gpu)),
                    self.sample(at, span, GpuMetric::MemoryUtilisation, share(rates.memory)),
                ]);
            }
            return Ok(());
        }
        if self
            .drained
            .is_some_and(|at| now().since(at) < DRAIN_EVERY_NS)
        {
            return Ok(());
        }
        self.drained = Some(now());
        let anchor = anchor();
        let samples = drain(&self.device, Sampling::GpuUtilization, &self.utilisation)?;
        if let Some(samples) = &samples {
            told.samples
                .extend(self.utilisation.facts(samples, &anchor));
        }
        self.buffers[0] = Some(samples.is_some());
        let memory = drain(
            &self.device,
            Sampling::MemoryUtilization,
            &self.memory_utilisation,
        )?;
        if let Some(samples) = memory {
            told.samples
                .extend(self.memory_utilisation.facts(&samples, &anchor));
        }
        Ok(())
    }

    fn power(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        if self.buffers[1] != Some(false) {
            let samples = drain(&self.device, Sampling::Power, &self.power)?;
            if let Some(samples) = &samples {
                told.samples.extend(self.power.facts(samples, &anchor()));
            }
            self.buffers[1] = Some(samples.is_some());
        } else if let Some(milliwatts) = unless_lost(self.device.power_usage())? {
            let watts = f64::from(milliwatts) / 1000.0;
            told.samples
                .push(self.sample(now(), 0, GpuMetric::PowerWatts, watts));
        }
        Ok(())
    }

    fn memory(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        let used = self.device.memory_info()?.used as f64;
        told.samples
            .push(self.sample(now(), 0, GpuMetric::MemoryUsedBytes, used));
        Ok(())
    }

    fn clocks(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        let sm = unless_lost(self.device.clock_info(Clock::SM))?.map(f64::from);
        let memory = unless_lost(self.device.clock_info(Clock::Memory))?.map(f64::from);
        let reasons = unless_lost(self.device.current_throttle_reasons())?;
        for (metric, value) in [
            (GpuMetric::SmClockMhz, sm),
            (GpuMetric::MemoryClockMhz, memory),
            (
                GpuMetric::ThrottleReasons,
                reasons.map(|reasons| reasons.bits() as f64),
            ),
        ] {
            if let Some(value) = value {
                told.samples.push(self.sample(now(), 0, metric, value));
            }
        }
        Ok(())
    }

    fn temperature(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        let celsius = self.device.temperature(TemperatureSensor::Gpu)?;
        told.samples
            .push(self.sample(now(), 0, GpuMetric::TemperatureC, f64::from(celsius)));
        Ok(())
    }

    fn pcie(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        if self.counted {
            return Ok(());
        }
        for (counter, metric) in [
            (PcieUtilCounter::Send, GpuMetric::PcieTxBytesPerS),
            (PcieUtilCounter::Receive, GpuMetric::PcieRxBytesPerS),
        ] {
            let kib = self.device.pcie_throughput(counter)?;
            let rate = f64::from(kib) * 1024.0;
            told.samples
                .push(self.sample(now(), PCIE_SPAN_NS, metric, rate));
        }
        Ok(())
    }

    fn ecc(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        let errors = self
            .device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)?;
        told.samples
            .push(self.sample(now(), 0, GpuMetric::EccErrors, errors as f64));
        Ok(())
    }

    /// Hopper's performance counters: what lay between this sample and the one before. Their utilisation is the time in which kernels
    /// ran, where that of the driver's samples also has copies and whole pauses between kernels in it: H200, driver 580, true 0.57, 0.26,
    /// 0.39 and 0.11 of the time, by the counters 0.57, 0.26, 0.40 and 0.16, by the samples 0.98, 0.36, 0.60 and 0.15.
    fn gpm(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        self.counted = false;
        if self.gpm.is_none() && !self.sliced {
            // A slice has the counters of its device.
            let supported = match self.instance {
                None => self.device.gpm_support(),
                Some((_, index)) => self.nvml.device_by_index(index)?.gpm_support(),
            };
            self.gpm = Some(supported.unwrap_or(false));
        }
        if self.gpm != Some(true) {
            return Err(NvmlError::NotSupported);
        }
        let sample = match self.instance {
            None => self.device.gpm_sample()?,
            Some((instance, index)) => {
                self.nvml.device_by_index(index)?.gpm_mig_sample(instance)?
            }
        };
        let at = now();
        let Some((before_at, before)) = self.gpm_before.replace((at, sample)) else {
            return Ok(());
        };
        let (_, sample) = self.gpm_before.as_ref().ok_or(NvmlError::NotFound)?;
        const PERCENT: f64 = 0.01;
        const MIB: f64 = 1_048_576.0;
        let metrics = [
            (GpmMetricId::GraphicsUtil, GpuMetric::Utilisation, PERCENT),
            (
                GpmMetricId::DramBwUtil,
                GpuMetric::MemoryUtilisation,
                PERCENT,
            ),
            (GpmMetricId::SmUtil, GpuMetric::SmActivity, PERCENT),
            (GpmMetricId::SmOccupancy, GpuMetric::SmOccupancy, PERCENT),
            (
                GpmMetricId::AnyTensorUtil,
                GpuMetric::TensorActivity,
                PERCENT,
            ),
            (GpmMetricId::PcieTxPerSec, GpuMetric::PcieTxBytesPerS, MIB),
            (GpmMetricId::PcieRxPerSec, GpuMetric::PcieRxBytesPerS, MIB),
        ];
        let ids: Vec<GpmMetricId> = metrics.iter().map(|(id, ..)| *id).collect();
        let values = gpm_metrics_get(self.nvml, &before, sample, &ids)?;
        let span = at.since(before_at);
        for (value, (_, metric, unit)) in values.into_iter().zip(metrics) {
            if let Ok(value) = value
                && value.value.is_finite()
            {
                told.samples
                    .push(self.sample(at, span, metric, value.value * unit));
                self.counted |= metric == GpuMetric::Utilisation;
            }
        }
        Ok(())
    }

    fn users(&mut self, told: &mut Told) -> Result<(), NvmlError> {
        if self.sliced {
            return Err(NvmlError::NotSupported);
        }
        let running = self.device.running_compute_processes()?;
        let users = running
            .into_iter()
            .map(|process| {
                DeviceUser {
                    pid: process.pid,
                    memory_bytes: match process.used_gpu_memory {
                        UsedGpuMemory::Used(bytes) => Some(bytes),
                        UsedGpuMemory::Unavailable => None,
                    },
                    // Told once.
                    utilisation: self.shares.remove(&process.pid),
                }
            })
            .collect();
        told.users = Some(users);
        Ok(())
    }

    fn shares(&mut self) -> Result<(), NvmlError> {
        if self.sliced {
            return Err(NvmlError::NotSupported);
        }
        let used = self.device.process_utilization_stats(self.users_since_us);
        // Nobody used it.
        let used = match used {
            Err(NvmlError::NotFound) => Vec::new(),
            used => used?,
        };
        let newest = used.iter().map(|sample| sample.timestamp).max();
        self.users_since_us = newest
            .unwrap_or(self.users_since_us)
            .max(self.users_since_us);
        let mut sums = BTreeMap::<u32, (u32, u32)>::new();
        for sample in used {
            let (count, sum) = sums.entry(sample.pid).or_default();
            *count += 1;
            *sum += sample.sm_util.min(100);
        }
        self.shares = sums
            .into_iter()
            .map(|(pid, (count, sum))| (pid, f64::from(sum) / f64::from(count) / 100.0))
            .collect();
        Ok(())
    }
}

/// New samples of a buffer; `None` when this device keeps none.
fn drain(
    device: &Device<'_>,
    which: Sampling,
    buffer: &Buffer,
) -> Result<Option<Vec<(u64, f64)>>, NvmlError> {
    match device.samples(which, buffer.last_us) {
        Ok(samples) => Ok(Some(
            samples
                .into_iter()
                .map(|sample| {
                    let value = match sample.value {
                        SampleValue::F64(value) => value,
                        SampleValue::U32(value) => f64::from(value),
                        SampleValue::U64(value) => value as f64,
                        SampleValue::I64(value) => value as f64,
                    };
                    (sample.timestamp, value)
                })
                .collect(),
        )),
        // Nothing new.
        Err(NvmlError::NotFound | NvmlError::NoData) => Ok(Some(Vec::new())),
        Err(error) if is_never(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Errors that asking again does not change.
fn is_never(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::UnexpectedVariant(_)
            | NvmlError::InvalidArg
    )
}

/// A value that is not essential: only a lost device is an error.
fn unless_lost<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Errors that the driver reports by itself (XID).
pub struct Events<'n> {
    set: EventSet<'n>,
}

impl<'n> Events<'n> {
    /// Listens to every device that can tell. `None` when none can.
    pub fn listen(nvml: &'n Nvml, devices: &[Asked<'n>]) -> Option<Self> {
        let mut set = nvml.create_event_set().ok()?;
        let mut any = false;
        for asked in devices.iter().filter(|asked| asked.instance.is_none()) {
            let can = asked
                .device
                .supported_event_types()
                .is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR));
            if can {
                set = asked
                    .device
                    .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                    .ok()?;
                any = true;
            }
        }
        any.then_some(Self { set })
    }

    /// Those that have come.
    pub fn take(&self, devices: &[Asked<'_>]) -> Vec<GpuSampleFact> {
        let mut out = Vec::new();
        // Bounded: a device that keeps failing must not keep us here.
        while out.len() < 16
            && let Ok(event) = self.set.wait(0)
        {
            let index = event.device.index().ok();
            let device = devices
                .iter()
                .find(|asked| asked.instance.is_none() && Some(asked.fact.index) == index);
            if let (Some(device), Some(xid)) = (device, event.event_data) {
                let number = match xid {
                    XidError::Value(number) => number as f64,
                    XidError::Unknown => 999.0,
                };
                out.push(device.sample(now(), 0, GpuMetric::Xid, number));
            }
        }
        out
    }
}
