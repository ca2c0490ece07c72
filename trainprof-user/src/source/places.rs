//! Where samples hit: from a process and an address to a place in a program.
//!
//! What is known of an address is kept per module and range, so that all but the first sample in a function cost two
//! look-ups. The rest wait until the worker has read the module's table, for [`PATIENCE`] at most; then only the module
//! is known.

pub(super) mod class;
pub(super) mod elf;
pub(super) mod maps;
mod spin;
pub(super) mod symbols;
pub(super) mod tables;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use trainprof_common::{event::SampleEvent, thread::NR_PREEMPTED};

use self::{
    class::Flavour,
    spin::Spins,
    symbols::{Found, Module},
    tables::Shared,
    worker::{Question, Worker},
};
use crate::{
    env::{process, read_text},
    record::{
        Record,
        fact::{PlaceClass, PlaceFact, SampleFact},
    },
    time::KtimeNs,
};

/// How long a sample waits for its function.
const PATIENCE: Duration = Duration::from_secs(2);
/// Samples that wait at once.
const MAX_WAITING: usize = 8192;
/// A process's mappings are read at most this often, and ever more rarely while they do not help.
const REREAD: Duration = Duration::from_millis(500);
const REREAD_MAX: Duration = Duration::from_secs(16);
/// Larger tables of mappings are not read.
const MAPS_LIMIT: u64 = 32 << 20;
/// Mappings of all processes together, 32 bytes each; beyond that all are forgotten and read again where needed.
const MAX_MAPPINGS: usize = 200_000;
/// Modules, ranges of addresses, and places with a function: what comes later has less detail.
const MAX_MODULES: usize = 4096;
const MAX_RANGES: usize = 65_536;
const MAX_PLACES: usize = 4096;
/// Files that could not be read are tried again after this long.
const RETRY: Duration = Duration::from_secs(10);

/// Part of a process's address space that code is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset in the module's file that `start` shows.
    pub offset: u64,
    /// Index of a module.
    pub module: u32,
}

/// What is known of a process's address space. Forked children share it until they execute a program.
#[derive(Clone)]
struct Process {
    mappings: Arc<[Mapping]>,
    read_at: Option<Instant>,
    pause: Duration,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            mappings: Arc::new([]),
            read_at: None,
            pause: REREAD,
        }
    }
}

/// A mapped file, or code that no file has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ModuleKey {
    device: (u32, u32),
    inode: u64,
    path: String,
    deleted: bool,
}

struct KnownModule {
    key: ModuleKey,
    /// File name; `None` for memory that no file is behind.
    name: Option<String>,
    /// Not worth reading before.
    unreadable_until: Option<Instant>,
    /// End and place of each range of offsets, by its start.
    ranges: BTreeMap<u64, (u64, u32)>,
}

/// A place's identity: module, function, class.
type PlaceKey = (Option<String>, Option<String>, PlaceClass);

struct Waiting {
    sample: SampleEvent,
    module: u32,
    offset: u64,
    until: Instant,
}

/// See the module.
#[derive(Default)]
pub struct Places {
    processes: BTreeMap<u32, Process>,
    modules: Vec<KnownModule>,
    numbers: BTreeMap<ModuleKey, u32>,
    ranges: usize,
    places: BTreeMap<PlaceKey, u32>,
    /// Module and function of each place of class [`PlaceClass::Other`].
    plain: BTreeMap<u32, (Option<String>, Option<String>)>,
    spins: Spins,
    waiting: Vec<Waiting>,
    asked: BTreeSet<(u32, u64)>,
    worker: Option<Worker>,
    tables: Shared,
}

impl Places {
    /// Tables of functions that were read, for whoever needs the same.
    pub(super) fn tables(&self) -> Shared {
        self.tables.clone()
    }

    /// A process was forked: it has its parent's mappings.
    pub fn forked(&mut self, parent: u32, child: u32) {
        match self.processes.get(&parent).cloned() {
            Some(process) => self.processes.insert(child, process),
            None => self.processes.remove(&child),
        };
    }

    /// A process executed another program.
    pub fn executed(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.spins.forget(pid);
    }

    /// Forgets processes that are gone.
    pub fn retain(&mut self, alive: &BTreeSet<u32>) {
        self.spins.retain(|pid| alive.contains(&pid));
        self.processes.retain(|pid, _| alive.contains(pid));
    }

    /// Takes a sample, and records it if its place is known.
    pub fn add(&mut self, sample: SampleEvent, out: &mut Vec<Record>) {
        if sample.nr != NR_PREEMPTED {
            let place = self.place((None, None, PlaceClass::Kernel), out);
            return record(&sample, place, out);
        }
        let now = Instant::now();
        let Some((module, offset)) = self.locate(sample.tgid, sample.ip, now) else {
            let place = self.place((None, None, PlaceClass::Other), out);
            return record(&sample, place, out);
        };
        if let Some(place) = self.known(module, offset) {
            self.record(&sample, place, out);
        } else if self.waiting.len() < MAX_WAITING
            && self.may_be_read(module, now)
            && self.ask(sample.tgid, module, offset)
        {
            self.waiting.push(Waiting {
                sample,
                module,
                offset,
                until: now + PATIENCE,
            });
        } else {
            let place = self.module_only(module, out);
            self.record(&sample, place, out);
        }
    }

    /// Records a sample in user code; it may spin there.
    fn record(&mut self, sample: &SampleEvent, place: u32, out: &mut Vec<Record>) {
        let mut place = place;
        if let Some((module, function)) = self.plain.get(&place)
            && self.spins.at(sample.tgid, sample.ip)
        {
            let key = (module.clone(), function.clone(), PlaceClass::Spinning);
            place = self.place(key, out);
        }
        record(sample, place, out);
    }

    /// The function at an address of a process: `Some(None)` when no symbol tells, `None` when that is not known yet.
    pub fn function_at(&mut self, pid: u32, address: u64) -> Option<Option<String>> {
        let now = Instant::now();
        let Some((module, offset)) = self.locate(pid, address, now) else {
            return Some(None);
        };
        if let Some(place) = self.known(module, offset) {
            let key = self.places.iter().find(|(_, number)| **number == place);
            return Some(key.and_then(|((_, function, _), _)| function.clone()));
        }
        if self.may_be_read(module, now) && self.ask(pid, module, offset) {
            return None;
        }
        Some(None)
    }

    /// Records samples that waited, as far as their places are known by now. Waits for answers at most that long.
    pub fn settle(&mut self, patience: Duration, out: &mut Vec<Record>) {
        let until = Instant::now() + patience;
        while let Some(worker) = self.worker.as_mut().filter(|worker| worker.is_asked())
            && let Some(answer) = worker.answer(until.saturating_duration_since(Instant::now()))
        {
            self.asked.remove(&(answer.number, answer.offset));
            if let Some(module) = self.modules.get_mut(answer.number as usize)
                && !answer.read
            {
                module.unreadable_until = Some(Instant::now() + RETRY);
            } else {
                self.learn(answer.number, answer.found, out);
            }
        }
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let place = match self.known(waiting.module, waiting.offset) {
                Some(place) => place,
                None if now < waiting.until && self.may_be_read(waiting.module, now) => {
                    self.waiting.push(waiting);
                    continue;
                }
                None => self.module_only(waiting.module, out),
            };
            self.record(&waiting.sample, place, out);
        }
    }

    /// Records every sample that still waits.
    pub fn finish(&mut self, patience: Duration, out: &mut Vec<Record>) {
        self.settle(patience, out);
        for waiting in std::mem::take(&mut self.waiting) {
            let place = self.module_only(waiting.module, out);
            self.record(&waiting.sample, place, out);
        }
    }

    /// The executable mappings of a process; read again when `ip` is in none that is known.
    pub(super) fn space(&mut self, pid: u32, ip: u64) -> Arc<[Mapping]> {
        self.locate(pid, ip, Instant::now());
        self.processes
            .get(&pid)
            .map_or_else(|| Arc::new([]) as Arc<[Mapping]>, |p| p.mappings.clone())
    }

    /// A process has code in mappings that are not known: they are read again when next asked for.
    pub(super) fn stale(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid)
            && process
                .read_at
                .is_none_or(|at| Instant::now().duration_since(at) >= process.pause)
        {
            process.mappings = Arc::new([]);
        }
    }

    /// Modules from a number on: number, name, and the file as a process sees it. Modules without a readable file
    /// have an empty path.
    pub(super) fn modules_from(&self, first: usize) -> impl Iterator<Item = (u32, Module)> {
        self.modules
            .iter()
            .enumerate()
            .skip(first)
            .map(|(number, module)| {
                let readable = module.key.path.starts_with('/') && !module.key.deleted;
                (
                    number as u32,
                    Module {
                        path: PathBuf::from(if readable { &module.key.path } else { "" }),
                        name: module.name.clone().unwrap_or_default(),
                        device: module.key.device,
                        inode: module.key.inode,
                    },
                )
            })
    }

    /// Module and file offset of an address. Reads the process's mappings when it is not in those known.
    fn locate(&mut self, pid: u32, ip: u64, now: Instant) -> Option<(u32, u64)> {
        let process = self.processes.entry(pid).or_default();
        if let Some(found) = look_up(&process.mappings, ip) {
            return Some(found);
        }
        if process
            .read_at
            .is_some_and(|at| now.duration_since(at) < process.pause)
        {
            return None;
        }
        let text = read_text(&process::shared(pid, "maps"), MAPS_LIMIT).ok();
        let mappings: Arc<[Mapping]> = text
            .iter()
            .flat_map(|text| maps::decode(text))
            .filter_map(|line| self.mapping(&line))
            .collect();
        let found = look_up(&mappings, ip);
        self.make_room(mappings.len());
        let process = self.processes.entry(pid).or_default();
        process.pause = match found {
            Some(_) => REREAD,
            None => (process.pause * 2).min(REREAD_MAX),
        };
        process.read_at = Some(now);
        // A process that is gone has none: what its parent had is better than nothing.
        if !mappings.is_empty() {
            process.mappings = mappings;
        }
        found
    }

    fn make_room(&mut self, wanted: usize) {
        // Shared ones count once for each process: too early is harmless.
        let held: usize = self.processes.values().map(|p| p.mappings.len()).sum();
        if held + wanted > MAX_MAPPINGS {
            let mut counted = BTreeSet::new();
            let unique: usize = self
                .processes
                .values()
                .filter(|p| counted.insert(p.mappings.as_ptr()))
                .map(|p| p.mappings.len())
                .sum();
            if unique + wanted > MAX_MAPPINGS {
                self.processes.clear();
            }
        }
    }

    fn mapping(&mut self, line: &maps::Line<'_>) -> Option<Mapping> {
        let key = ModuleKey {
            device: line.device,
            inode: line.inode,
            path: line.path.to_owned(),
            deleted: line.deleted,
        };
        let module = match self.numbers.get(&key) {
            Some(number) => *number,
            None if self.modules.len() < MAX_MODULES => {
                let number = self.modules.len() as u32;
                let name = key.path.rsplit('/').next().filter(|name| !name.is_empty());
                self.modules.push(KnownModule {
                    name: name.map(str::to_owned),
                    key: key.clone(),
                    unreadable_until: None,
                    ranges: BTreeMap::new(),
                });
                self.numbers.insert(key, number);
                number
            }
            None => return None,
        };
        Some(Mapping {
            start: line.start,
            end: line.end,
            offset: line.offset,
            module,
        })
    }

    fn known(&self, module: u32, offset: u64) -> Option<u32> {
        let (_, (end, place)) = self
            .modules
            .get(module as usize)?
            .ranges
            .range(..=offset)
            .next_back()?;
        (offset < *end).then_some(*place)
    }

    fn may_be_read(&self, module: u32, now: Instant) -> bool {
        self.modules.get(module as usize).is_some_and(|module| {
            module.key.path.starts_with('/')
                && !module.key.deleted
                && module.unreadable_until.is_none_or(|until| until < now)
        })
    }

    /// Asks for a function, once.
    fn ask(&mut self, pid: u32, number: u32, offset: u64) -> bool {
        if self.asked.contains(&(number, offset)) {
            return true;
        }
        if self.worker.is_none() {
            self.worker = worker::start(self.tables.clone())
                .inspect_err(|error| tracing::warn!(%error, "functions cannot be looked up"))
                .ok();
        }
        let (Some(worker), Some(module)) = (&mut self.worker, self.modules.get(number as usize))
        else {
            return false;
        };
        let asked = worker.ask(Question {
            number,
            offset,
            module: Module {
                path: symbols::through_root(pid, &module.key.path),
                name: module.name.clone().unwrap_or_default(),
                device: module.key.device,
                inode: module.key.inode,
            },
        });
        if asked {
            self.asked.insert((number, offset));
        }
        asked
    }

    fn learn(&mut self, number: u32, found: Found, out: &mut Vec<Record>) {
        let Some(module) = self.modules.get(number as usize) else {
            return;
        };
        let name = module.name.clone();
        let place = self.place((name, found.function, found.class), out);
        if self.ranges >= MAX_RANGES {
            self.modules
                .iter_mut()
                .for_each(|module| module.ranges.clear());
            self.ranges = 0;
        }
        self.modules[number as usize]
            .ranges
            .insert(found.range.start, (found.range.end, place));
        self.ranges += 1;
    }

    fn module_only(&mut self, number: u32, out: &mut Vec<Record>) -> u32 {
        let name = self
            .modules
            .get(number as usize)
            .and_then(|module| module.name.clone());
        let class = class::of_module(Flavour::of_name(name.as_deref().unwrap_or_default()));
        self.place((name, None, class), out)
    }

    /// Number of a place, described when it is new.
    fn place(&mut self, mut key: PlaceKey, out: &mut Vec<Record>) -> u32 {
        if let Some(number) = self.places.get(&key) {
            return *number;
        }
        if self.places.len() >= MAX_PLACES {
            key.1 = None;
            // Modules and classes without a function are few; what is beyond even those is one place per class.
            if self.places.len() >= 2 * MAX_PLACES {
                key.0 = None;
            }
            if let Some(number) = self.places.get(&key) {
                return *number;
            }
        }
        let number = self.places.len() as u32 + 1;
        let (module, function, class) = key.clone();
        if class == PlaceClass::Other {
            self.plain
                .insert(number, (module.clone(), function.clone()));
        }
        out.push(Record::Place(PlaceFact {
            number,
            module,
            function,
            class,
        }));
        self.places.insert(key, number);
        number
    }
}

pub(super) fn look_up(mappings: &[Mapping], ip: u64) -> Option<(u32, u64)> {
    let after = mappings.partition_point(|mapping| mapping.start <= ip);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (ip < mapping.end).then(|| (mapping.module, ip - mapping.start + mapping.offset))
}

fn record(sample: &SampleEvent, place: u32, out: &mut Vec<Record>) {
    out.push(Record::Sample(SampleFact {
        tid: sample.tid,
        at: KtimeNs(sample.at),
        place,
        nr: sample.nr,
    }));
}

#[cfg(test)]
mod tests;
