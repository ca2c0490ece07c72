//! Loading the object and attaching what the plan says.

use std::{io, path::Path};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, Map, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, tp_btf::BtfTracePointLinkId},
};
use trainprof_common::{Wire, arch};

use super::{
    CONTROL_ENTRIES, CONTROL_EVENT_MIN_NS, CONTROL_FAULTS_IN_WINDOW, CONTROL_TOUCH_GAP_NS,
    CONTROL_TOUCH_SPACING_NS, Half, KernelError, Limits, Probes, Skipped,
    alloc::AllocProbes,
    btf::{self, KernelTypes},
    calls::{self, CallProbes},
    map_error,
    plan::{CATALOGUE, Decision, ENTRIES, decide, tracepoints},
    sampling,
    wire::{Packed, Table},
};
use crate::env::kernel_member;

/// The probes, built by `cargo xtask ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TRAINPROF_EBPF_OBJECT"));

impl Probes {
    /// Loads and attaches every probe that this kernel can run. Nothing is followed yet.
    pub fn attach(limits: Limits) -> Result<Self, KernelError> {
        if !Path::new(btf::VMLINUX).exists() {
            return Err(KernelError::NoBtf {
                path: btf::VMLINUX.into(),
                source: io::ErrorKind::NotFound.into(),
            });
        }
        let pending =
            KernelTypes::start(Path::new(btf::VMLINUX), tracepoints()).map_err(|error| {
                KernelError::BadBtf {
                    path: btf::VMLINUX.into(),
                    reason: error.to_string(),
                }
            })?;
        let btf = Btf::from_sys_fs().map_err(|error| KernelError::BadBtf {
            path: btf::VMLINUX.into(),
            reason: error.to_string(),
        })?;
        let types = pending.finish()?;
        let offsets = Packed(types.offsets());
        let facts = Packed(types.facts());
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("OFFSETS", &offsets, true)
            .override_global("FACTS", &facts, true)
            .map_max_entries("THREADS", limits.max_threads)
            .load(OBJECT)?;
        let mut skipped = missing_members(&types);
        // Programs hold on to their maps only once they are loaded: until then nothing may be taken out.
        let mut control =
            Array::try_from(map_mut(&mut ebpf, "CONTROL")?).map_err(map_error("CONTROL"))?;
        for (word, value) in [
            (CONTROL_ENTRIES, 1),
            (CONTROL_EVENT_MIN_NS, limits.event_min_ns),
            (CONTROL_TOUCH_GAP_NS, limits.touch_gap_ns),
            (CONTROL_TOUCH_SPACING_NS, limits.touch_spacing_ns),
            (CONTROL_FAULTS_IN_WINDOW, sampling::faults_in_window()),
        ] {
            control.set(word, value, 0).map_err(map_error("CONTROL"))?;
        }
        fill_syscalls(&mut ebpf)?;
        let (mut attached, entries) = attach_all(&mut ebpf, &btf, &types, &mut skipped)?;
        let sampling_hz = sampling::attach(&mut ebpf, limits.seed)
            .map_err(|missing| skipped.push(missing))
            .ok();
        if sampling_hz.is_some() {
            attached.push(sampling::PROGRAM);
        }
        let fault_period = sampling::attach_faults(&mut ebpf)
            .map_err(|missing| skipped.push(missing))
            .ok();
        if fault_period.is_some() {
            attached.push(sampling::FAULT_PROGRAM);
        }
        let calls = limits.gpu_calls.then(|| CallProbes::start(&mut ebpf));
        let calls = match calls {
            Some(Ok(calls)) => {
                attached.extend([calls::ENTRY, calls::RETURN]);
                Some(calls)
            }
            Some(Err(reason)) => {
                skipped.push(Skipped {
                    what: "gpu-calls".to_owned(),
                    reason,
                });
                None
            }
            None => None,
        };
        let alloc = limits
            .alloc
            .then(|| AllocProbes::start(&mut ebpf))
            .and_then(|started| {
                let missing = |reason| Skipped {
                    what: "allocations".to_owned(),
                    reason,
                };
                started.map_err(|reason| skipped.push(missing(reason))).ok()
            });
        #[cfg(feature = "probe-log")]
        let log = aya_log::EbpfLogger::init(&mut ebpf)
            .inspect_err(|error| tracing::warn!(%error, "the probes have no log: build them with `cargo xtask ebpf --log`"))
            .ok();
        Ok(Self {
            #[cfg(feature = "probe-log")]
            log,
            calls,
            alloc,
            gpu_calls: table(&mut ebpf, "GPU_CALLS")?,
            gpu_counts: PerCpuArray::try_from(take(&mut ebpf, "GPU_COUNTS")?)
                .map_err(map_error("GPU_COUNTS"))?,
            threads: table(&mut ebpf, "THREADS")?,
            halves: [
                half(&mut ebpf, ["OPS_A", "WAITS_A"])?,
                half(&mut ebpf, ["OPS_B", "WAITS_B"])?,
            ],
            ended: table(&mut ebpf, "ENDED")?,
            filesets: table(&mut ebpf, "FILESET_INFO")?,
            control: Array::try_from(take(&mut ebpf, "CONTROL")?).map_err(map_error("CONTROL"))?,
            touched: Array::try_from(take(&mut ebpf, "TOUCHED")?).map_err(map_error("TOUCHED"))?,
            losses: PerCpuArray::try_from(take(&mut ebpf, "LOSSES")?)
                .map_err(map_error("LOSSES"))?,
            ring: RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(map_error("EVENTS"))?,
            pace: PerCpuArray::try_from(take(&mut ebpf, "PACE")?).map_err(map_error("PACE"))?,
            entries: Some(entries),
            stretch: 1,
            ebpf,
            epoch: 0,
            attached,
            sampling_hz,
            fault_period,
            skipped,
        })
    }
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Map, KernelError> {
    ebpf.map_mut(name).ok_or(KernelError::NoMap(name))
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, KernelError> {
    ebpf.take_map(name).ok_or(KernelError::NoMap(name))
}

fn table<K: Wire, V: Wire>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<Table<K, V>, KernelError> {
    Table::new(take(ebpf, name)?).ok_or(KernelError::NoMap(name))
}

fn half(ebpf: &mut Ebpf, [ops, waits]: [&'static str; 2]) -> Result<Half, KernelError> {
    Ok(Half {
        ops: table(ebpf, ops)?,
        waits: table(ebpf, waits)?,
    })
}

/// Hands this architecture's table of system calls to the probes.
fn fill_syscalls(ebpf: &mut Ebpf) -> Result<(), KernelError> {
    let mut table = Array::try_from(map_mut(ebpf, "SYSCALLS")?).map_err(map_error("SYSCALLS"))?;
    for (nr, info) in arch::syscalls().into_iter().enumerate() {
        if info.op != 0 || info.wait_on != 0 || info.marks != 0 {
            table
                .set(nr as u32, Packed(info), 0)
                .map_err(map_error("SYSCALLS"))?;
        }
    }
    Ok(())
}

fn missing_members(types: &KernelTypes) -> Vec<Skipped> {
    types
        .missing
        .iter()
        .map(|(offset, structure, member)| Skipped {
            what: kernel_member(offset),
            reason: format!("this kernel has no {structure}.{member}"),
        })
        .collect()
}

fn attach_all(
    ebpf: &mut Ebpf,
    btf: &Btf,
    types: &KernelTypes,
    skipped: &mut Vec<Skipped>,
) -> Result<(Vec<&'static str>, BtfTracePointLinkId), KernelError> {
    let mut attached = Vec::new();
    let mut entries = None;
    for probe in CATALOGUE {
        let reason = match decide(probe, |name| types.has_tracepoint(name), &types.offsets()) {
            Decision::Attach(tracepoint) => {
                match attach_one(ebpf, btf, probe.program, tracepoint) {
                    Ok(link) => {
                        if probe.program == ENTRIES {
                            entries = Some(link);
                        }
                        attached.push(probe.program);
                        continue;
                    }
                    Err(error) if probe.essential => return Err(error),
                    Err(error) => error.to_string(),
                }
            }
            Decision::NoTracepoint => {
                format!("this kernel has no tracepoint {}", probe.tracepoints[0])
            }
            Decision::NoMember => format!(
                "this kernel lacks a structure member that probe {} reads",
                probe.program
            ),
        };
        if probe.essential {
            return Err(KernelError::Unsupported {
                gives: probe.gives,
                reason,
            });
        }
        skipped.push(Skipped {
            what: probe.gives.to_owned(),
            reason,
        });
    }
    let entries = entries.ok_or(KernelError::NoMap(ENTRIES))?;
    Ok((attached, entries))
}

fn attach_one(
    ebpf: &mut Ebpf,
    btf: &Btf,
    program: &'static str,
    tracepoint: &'static str,
) -> Result<BtfTracePointLinkId, KernelError> {
    let refused = |source| KernelError::Refused {
        program,
        tracepoint,
        source: Box::new(source),
    };
    let found: &mut BtfTracePoint = ebpf
        .program_mut(program)
        .and_then(|p| p.try_into().ok())
        .ok_or(KernelError::NoMap(program))?;
    found.load(tracepoint, btf).map_err(refused)?;
    found.attach().map_err(refused)
}
