//! Loading the object and attaching what the plan says.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    thread::{self, ScopedJoinHandle},
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, Map, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, ProgramError, tp_btf::BtfTracePointLinkId},
};
use trainprof_common::{Wire, arch, op::SyscallInfo, touch::TOUCHED};

use super::{
    CONTROL, CONTROL_CALLS, CONTROL_ENTRIES, CONTROL_EVENT_MIN_NS, CONTROL_FAULTS_IN_WINDOW,
    CONTROL_TOUCH_GAP_NS, CONTROL_TOUCH_SPACING_NS, CONTROL_WORDS, Counted, Half, KernelError,
    Limits, Probes, Skipped, TOUCHES,
    alloc::AllocProbes,
    btf::{self, KernelTypes},
    calls::{self, CallProbes},
    descriptors,
    fault_edge::FaultEdge,
    interrupt::Interrupt,
    map_error,
    plan::{CATALOGUE, Decision, ENDS, ENTRIES, decide, tracepoints, untold},
    runs::Runs,
    sampling,
    taken::Taken,
    threads::{self, Threads},
    wire::{Packed, Table},
};
use crate::env::kernel_member;

/// The probes, built by `cargo xtask ebpf`.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("TRAINPROF_EBPF_OBJECT"));

impl Probes {
    /// Loads and attaches every probe that this kernel can run. Nothing is followed yet.
    pub fn attach(limits: Limits) -> Result<Self, KernelError> {
        descriptors::raise_limit_enough(sampling::cpus() as u64)?;
        if !Path::new(btf::VMLINUX).exists() {
            return Err(KernelError::NoBtf {
                path: btf::VMLINUX.into(),
                source: io::ErrorKind::NotFound.into(),
            });
        }
        // The loader reads the kernel's types for itself, whether it is given any or not: at least all at once.
        let (mut loader, types, btf) = thread::scope(|scope| {
            let loader = scope.spawn(EbpfLoader::new);
            let types = scope.spawn(|| KernelTypes::read(Path::new(btf::VMLINUX), &tracepoints()));
            let btf = Btf::from_sys_fs();
            (joined(loader), joined(types), btf)
        });
        let types = types?;
        let btf = btf.map_err(|error| KernelError::BadBtf {
            path: btf::VMLINUX.into(),
            reason: error.to_string(),
        })?;
        let offsets = Packed(types.offsets);
        let facts = Packed(types.facts);
        let syscalls = arch::syscalls().map(SyscallInfo::word);
        let room = Taken::by_environment().room;
        for (table, entries) in &room {
            loader.map_max_entries(table, *entries);
        }
        let mut ebpf = loader
            .btf(Some(&btf))
            .override_global("OFFSETS", &offsets, true)
            .override_global("FACTS", &facts, true)
            .override_global("SYSCALLS", &syscalls, true)
            .map_max_entries(threads::THREADS, limits.max_threads)
            .map_max_entries(threads::STATES, limits.max_threads)
            .map_max_entries(threads::FREE_PLACES, limits.max_threads)
            .load(OBJECT)?;
        Threads::make_room(&mut ebpf, limits.max_threads)?;
        let mut skipped = missing_members(&types);
        skipped.extend(untold(&types.offsets).map(|(what, reason)| Skipped {
            what: what.to_owned(),
            reason: reason.to_owned(),
        }));
        // Programs hold on to their maps only once they are loaded: until then nothing may be taken out.
        let mut control = [0; CONTROL_WORDS];
        for (word, value) in [
            (CONTROL_ENTRIES, 1),
            (CONTROL_CALLS, 1),
            (CONTROL_EVENT_MIN_NS, limits.event_min_ns),
            (CONTROL_TOUCH_GAP_NS, limits.touch_gap_ns),
            (CONTROL_TOUCH_SPACING_NS, limits.touch_spacing_ns),
            (CONTROL_FAULTS_IN_WINDOW, sampling::faults_in_window()),
        ] {
            control[word] = value;
        }
        Array::<_, [u64; CONTROL_WORDS]>::try_from(map_mut(&mut ebpf, CONTROL)?)
            .and_then(|mut map| map.set(0, control, 0))
            .map_err(map_error(CONTROL))?;
        let (mut attached, [ends, entries]) = attach_all(&mut ebpf, &btf, &types, &mut skipped)?;
        let clocks = sampling::attach(&mut ebpf, limits.seed)
            .map_err(|missing| skipped.push(missing))
            .ok();
        if clocks.is_some() {
            attached.push(sampling::PROGRAM);
        }
        let fault_samples = sampling::attach_faults(&mut ebpf)
            .map_err(|missing| skipped.push(missing))
            .ok();
        if fault_samples.is_some() {
            attached.push(sampling::FAULT_PROGRAM);
        }
        let cannot =
            |error: &io::Error| tracing::info!(%error, "a clock of our own cannot be opened");
        let fault_edge = FaultEdge::open().inspect_err(cannot).ok();
        let interrupt = Interrupt::open().inspect_err(cannot).ok();
        let calls = match CallProbes::start(&mut ebpf, limits.gpu_calls) {
            Ok(calls) => {
                attached.extend([calls::ENTRY, calls::RETURN]);
                Some(calls)
            }
            Err(reason) => {
                skipped.push(Skipped {
                    what: "gpu-calls".to_owned(),
                    reason,
                });
                None
            }
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
            py_threads: table(&mut ebpf, "PY_THREADS")?,
            threads: Threads::take(&mut ebpf)?,
            followed: 0,
            halves: [
                half(&mut ebpf, ["OPS_A", "HISTS_A", "WAITS_A"])?,
                half(&mut ebpf, ["OPS_B", "HISTS_B", "WAITS_B"])?,
            ],
            runs: Runs::take(&mut ebpf)?,
            ended: table(&mut ebpf, "ENDED")?,
            filesets: table(&mut ebpf, "FILESET_INFO")?,
            control,
            control_map: Array::try_from(take(&mut ebpf, CONTROL)?).map_err(map_error(CONTROL))?,
            touched: Box::new([0; TOUCHED]),
            touched_map: Array::try_from(take(&mut ebpf, TOUCHES)?).map_err(map_error(TOUCHES))?,
            losses: PerCpuArray::try_from(take(&mut ebpf, "LOSSES")?)
                .map_err(map_error("LOSSES"))?,
            ring: RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(map_error("EVENTS"))?,
            pace: PerCpuArray::try_from(take(&mut ebpf, "PACE")?).map_err(map_error("PACE"))?,
            yields: PerCpuArray::try_from(take(&mut ebpf, "YIELDS")?)
                .map_err(map_error("YIELDS"))?,
            entries: Some(entries),
            ends: Some(ends),
            counted: Counted::All,
            stretch: 1,
            ebpf,
            epoch: 0,
            attached,
            fault_period: fault_samples.is_some().then_some(sampling::FAULT_PERIOD),
            clocks,
            fault_samples,
            fault_edge,
            interrupt,
            skipped,
        })
    }
}

/// What a thread gave; its panic goes on here.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn map_mut<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Map, KernelError> {
    ebpf.map_mut(name).ok_or(KernelError::NoMap(name))
}

pub(super) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, KernelError> {
    ebpf.take_map(name).ok_or(KernelError::NoMap(name))
}

fn table<K: Wire, V: Wire>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<Table<K, V>, KernelError> {
    Table::new(take(ebpf, name)?).ok_or(KernelError::NoMap(name))
}

fn half(ebpf: &mut Ebpf, [ops, hists, waits]: [&'static str; 3]) -> Result<Half, KernelError> {
    Ok(Half {
        ops: table(ebpf, ops)?,
        hists: table(ebpf, hists)?,
        waits: table(ebpf, waits)?,
    })
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

/// Attaches what this kernel can run, in the catalogue's order; the kernel checks the programs before that, several at a
/// time: it takes a tenth of a second for the longest.
fn attach_all(
    ebpf: &mut Ebpf,
    btf: &Btf,
    types: &KernelTypes,
    skipped: &mut Vec<Skipped>,
) -> Result<(Vec<&'static str>, [BtfTracePointLinkId; 2]), KernelError> {
    let decided = |probe| decide(probe, |name| types.has_tracepoint(name), &types.offsets);
    let mut loaded = load_all(ebpf, btf, |program| {
        let probe = CATALOGUE.iter().find(|probe| probe.program == program)?;
        match decided(probe) {
            Decision::Attach(tracepoint) => Some(tracepoint),
            _ => None,
        }
    });
    let mut attached = Vec::new();
    let (mut ends, mut entries) = (None, None);
    for probe in CATALOGUE.iter() {
        let reason = match decided(probe) {
            Decision::Attach(tracepoint) => {
                let loaded = loaded.remove(probe.program).unwrap_or(Ok(()));
                match attach_one(ebpf, loaded, probe.program, tracepoint) {
                    Ok(link) => {
                        match probe.program {
                            ENDS => ends = Some(link),
                            ENTRIES => entries = Some(link),
                            _ => {}
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
    let ends = ends.ok_or(KernelError::NoMap(ENDS))?;
    let entries = entries.ok_or(KernelError::NoMap(ENTRIES))?;
    Ok((attached, [ends, entries]))
}

/// Threads that hand programs to the kernel.
const LOADERS: usize = 4;

/// Loads the programs for which `tracepoint` gives one; by name what came of each.
fn load_all(
    ebpf: &mut Ebpf,
    btf: &Btf,
    tracepoint: impl Fn(&str) -> Option<&'static str>,
) -> BTreeMap<String, Result<(), ProgramError>> {
    let mut wanted: Vec<(String, &mut BtfTracePoint, &'static str)> = ebpf
        .programs_mut()
        .filter_map(|(name, program)| {
            let tracepoint = tracepoint(name)?;
            Some((name.to_owned(), program.try_into().ok()?, tracepoint))
        })
        .collect();
    // The longest ones of the catalogue are in its middle: begun early, and not last.
    wanted.sort_by_key(|(name, ..)| CATALOGUE.iter().position(|probe| probe.program == name));
    let loaders = thread::available_parallelism().map_or(1, |cpus| cpus.get().min(LOADERS));
    let (wanted, done) = (Mutex::new(wanted), Mutex::new(BTreeMap::new()));
    let take = || wanted.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let load = || {
        while let Some((name, program, tracepoint)) = take() {
            let loaded = program.load(tracepoint, btf);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.insert(name, loaded);
        }
    };
    thread::scope(|scope| {
        // Where no thread can be had, this one does it all.
        let others: Vec<_> = (1..loaders)
            .filter_map(|_| thread::Builder::new().spawn_scoped(scope, load).ok())
            .collect();
        load();
        // Processes are forked later, and that wants threads to be gone, not only done.
        others.into_iter().for_each(joined);
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn attach_one(
    ebpf: &mut Ebpf,
    loaded: Result<(), ProgramError>,
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
    loaded.map_err(refused)?;
    found.attach().map_err(refused)
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};

    use super::OBJECT;

    /// Such a call is a loop over bytes, 40 to 60 ns for an object of 24 bytes at each switch of a thread, and the kernel's check of
    /// the programs goes through every turn of it: see the linker's flags in `cargo xtask ebpf`.
    #[test]
    fn no_probe_fills_or_copies_memory_byte_by_byte() {
        let file = object::File::parse(OBJECT).expect("the object");
        let mut calls = 0;
        for section in file.sections() {
            for (at, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    continue;
                };
                let symbol = file.symbol_by_index(symbol).expect("a symbol");
                let name = symbol.name().expect("its name");
                calls += 1;
                assert!(
                    !matches!(name, "memset" | "memcpy" | "memmove" | "memcmp" | "bcmp"),
                    "{name} is called in {} at {at:#x}",
                    section.name().expect("a name"),
                );
            }
        }
        assert!(calls > 100, "only {calls} relocations were read");
    }
}
