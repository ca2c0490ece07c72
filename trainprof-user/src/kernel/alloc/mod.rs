//! Probes on allocators, live in short windows only: every call of `malloc` costs a microsecond while it is probed.
//!
//! A process of its own attaches and removes them, measures what that costs on this host, and adds up what was seen. When
//! to open a window, and how long, is decided elsewhere.

mod calibrate;
mod chosen;
mod functions;
mod library;
mod serve;
mod sites;

use std::time::Duration;

use aya::{
    Ebpf,
    maps::{Array, Map, PerCpuArray, RingBuf, StackTraceMap},
};
use serde::{Deserialize, Serialize};
use trainprof_common::{
    Wire,
    alloc::{
        Allocated, Caller, CallerKey, Calls, CallsKey, Lifetimes, MemoryKey, Pending, Window,
        WindowState,
    },
};

use super::{
    aside::{Aside, Ending},
    threads,
    uprobe::{
        links::{Pair, Together},
        load,
    },
    wire::{Packed, Table, descriptor},
};

pub use calibrate::Calibration;

/// Names of the programs in the eBPF object.
pub(super) const ENTRY: &str = "alloc_entry";
pub(super) const RETURN: &str = "alloc_return";
const PROGRAMS: Pair = Pair {
    entry: ENTRY,
    returning: RETURN,
};

/// How long the removal of the probes is waited for at the end.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// A window that is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowOrder {
    /// What the answers are known by.
    pub number: u32,
    pub pid: u32,
    /// How long it waits before it opens.
    pub delay_us: u32,
    pub length_us: u32,
    /// Calls of one function by one thread after which it closes.
    pub max_calls: u64,
    /// One call in so many has its stack taken; a power of two; 0: none.
    pub stack_every: u32,
    /// Allocations are followed to their release.
    pub paired: bool,
    /// Functions that are probed at most: each is a pause at the end. `malloc` always, the others in turn.
    pub max_sites: u32,
}

/// What the other process is to do.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Calibrate,
    Open(WindowOrder),
    /// Probe everything of this process until it ends.
    Keep {
        pid: u32,
    },
    /// Tell what was seen in the processes that are kept probed.
    Tell {
        number: u32,
    },
    /// It has ended or executed another program.
    Forget {
        pid: u32,
    },
}

/// What the other process tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    Calibrated(Calibration),
    /// Probes are removed one by one, which costs the job more: why.
    OneByOne {
        reason: String,
    },
    /// The allocator that serves a process, and its functions with whether the kernel single-steps their probes.
    Found {
        pid: u32,
        library: String,
        functions: Vec<(String, bool)>,
        /// How many of them make memory.
        makers: u32,
    },
    /// A process cannot be probed.
    NotFound {
        pid: u32,
        reason: String,
    },
    /// Parts of what a window saw, before it is told that it is closed.
    Calls {
        number: u32,
        calls: Vec<CallSum>,
    },
    Stacks {
        number: u32,
        stacks: Vec<StackSum>,
    },
    Closed(Closed),
    Failed {
        what: String,
        reason: String,
    },
}

/// Calls of one function by one thread in a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSum {
    pub pid: u32,
    pub tid: u32,
    /// See [`function_name`].
    pub function: u8,
    pub count: u64,
    pub bytes: u64,
    /// (Bucket of [`trainprof_common::hist::size_bucket`], calls) of those not empty.
    pub sizes: Vec<(u8, u32)>,
}

/// Sampled calls that came the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackSum {
    /// The process that its addresses are of; 0: it was over before that was known.
    pub pid: u32,
    pub function: u8,
    pub count: u64,
    pub bytes: u64,
    /// The caller first.
    pub frames: Vec<Frame>,
}

/// One address of a stack: where a call returns to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    pub address: u64,
    /// Mapped file as the process sees it, and the offset in it; `None` where no file is mapped.
    pub file: Option<(String, u64)>,
}

/// A window that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Closed {
    pub number: u32,
    /// 0: every process that is kept probed.
    pub pid: u32,
    /// Kernel time in which calls were counted.
    pub from: u64,
    pub to: u64,
    /// It closed because a thread had called often enough.
    pub full: bool,
    /// Functions that were probed: see [`function_name`].
    pub functions: Vec<u8>,
    /// CPU time that the process's threads had meanwhile, nanoseconds; `None` where that was not looked at.
    pub cpu_ns: Option<u64>,
    /// Probes that were attached, those on returns apart.
    pub sites: u32,
    pub returns: u32,
    /// All hits, those before `from` and after `to` too.
    pub emulated_hits: u64,
    pub stepped_hits: u64,
    pub return_hits: u64,
    /// Mean run time of our program in a hit; `None` where addresses were followed too, or nobody called.
    pub run_ns: Option<f64>,
    /// Addresses that could not be remembered, and cells that had no room.
    pub lost: u64,
    /// Allocations that were followed; `None`: the window was not paired.
    pub lifetimes: Option<LifetimeSum>,
    /// Wall time of attaching and of removing.
    pub attach_ns: u64,
    pub detach_ns: u64,
    /// CPU time that it all took from us.
    pub own_cpu_ns: u64,
}

/// Lifetimes of allocations that were followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifetimeSum {
    /// One in so many addresses was followed.
    pub one_in: u32,
    pub tracked: u64,
    pub tracked_bytes: u64,
    pub freed: u64,
    pub freed_bytes: u64,
    /// Given back within a millisecond.
    pub quick: u64,
    pub quick_bytes: u64,
    /// (Bucket of nanoseconds, count) of those not empty.
    pub ns: Vec<(u8, u32)>,
}

/// A function by its number, as people know it.
pub fn function_name(number: u8) -> Option<&'static str> {
    functions::CATALOGUE
        .get(usize::from(number))
        .map(|row| row.shown)
}

/// Whether a function makes memory, rather than only giving it back.
pub fn allocates(number: u8) -> bool {
    functions::CATALOGUE
        .get(usize::from(number))
        .is_some_and(functions::Row::allocates)
}

/// The process that attaches, as we see it.
pub struct AllocProbes {
    aside: Aside,
    over: bool,
    /// CPU time of its own processes, which have ended.
    children_ns: u64,
}

impl AllocProbes {
    /// Loads the programs and starts the process. Must be called while we have one thread.
    pub(super) fn start(ebpf: &mut Ebpf) -> Result<Self, String> {
        let mut keep = Vec::new();
        for name in [ENTRY, RETURN] {
            keep.push(load(ebpf, name)?);
        }
        // The kernel checks these for some 20 ms: that is left to the process, and only bound here, while all maps are there.
        let prepared = Together::prepare(ebpf, PROGRAMS);
        keep.extend(
            prepared
                .iter()
                .flat_map(|programs| programs.maps(&[ENTRY, RETURN])),
        );
        let mut maps = Maps::take(ebpf).ok_or("the eBPF object lacks a map of these probes")?;
        keep.extend(maps.descriptors());
        let serve = |line: &_| serve::serve(ebpf, &mut maps, prepared, line);
        let aside = Aside::start(c"tp-windows", &keep, Ending::Told, PATIENCE, serve)
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Self {
            aside,
            over: false,
            children_ns: 0,
        })
    }

    /// Lets it measure what probes cost.
    pub fn calibrate(&self) -> bool {
        self.order(&Order::Calibrate)
    }

    /// Opens a window. False when it has too much to do already.
    pub fn open(&self, order: WindowOrder) -> bool {
        self.order(&Order::Open(order))
    }

    /// Probes all of a process from now on.
    pub fn keep(&self, pid: u32) -> bool {
        self.order(&Order::Keep { pid })
    }

    /// Asks what was seen in those that are kept probed.
    pub fn tell(&self, number: u32) -> bool {
        self.order(&Order::Tell { number })
    }

    /// Lets it forget a process.
    pub fn forget(&self, pid: u32) -> bool {
        self.order(&Order::Forget { pid })
    }

    /// CPU time of that process and of those by which it calibrated, nanoseconds; what windows took of it is told when they close.
    pub fn cpu_ns(&mut self) -> u64 {
        self.aside.cpu_ns() + self.children_ns
    }

    fn order(&self, order: &Order) -> bool {
        matches!(self.aside.line.send(order), Ok(true))
    }

    /// What it has told. It tells of its own end once, as a failure.
    pub fn notices(&mut self) -> Vec<Notice> {
        let notices = self.aside.told(&mut self.over, |how| Notice::Failed {
            what: "all".to_owned(),
            reason: format!("the process that attaches the probes ended ({how})"),
        });
        for notice in &notices {
            if let Notice::Calibrated(calibration) = notice {
                self.children_ns = calibration.children_cpu_ns;
            }
        }
        notices
    }
}

/// The probes' maps.
struct Maps {
    window: Array<aya::maps::MapData, Packed<Window>>,
    state: Array<aya::maps::MapData, Packed<WindowState>>,
    hits: PerCpuArray<aya::maps::MapData, u64>,
    full: RingBuf<aya::maps::MapData>,
    calls: Table<CallsKey, Calls>,
    callers: Table<CallerKey, Caller>,
    stacks: StackTraceMap<aya::maps::MapData>,
    pending: Table<u32, Pending>,
    live: Table<MemoryKey, Allocated>,
    lifetimes: PerCpuArray<aya::maps::MapData, Packed<Lifetimes>>,
    /// The table of followed threads, which belongs to others.
    threads: threads::Borrowed,
    fds: Vec<std::os::fd::RawFd>,
}

impl Maps {
    fn take(ebpf: &mut Ebpf) -> Option<Self> {
        let threads = threads::Borrowed::of(ebpf)?;
        let mut fds = threads.descriptors().to_vec();
        let mut take = |name: &str| {
            let map = ebpf.take_map(name)?;
            fds.push(descriptor(&map)?);
            Some(map)
        };
        let maps = Self {
            window: Array::try_from(take("ALLOC_WINDOW")?).ok()?,
            state: Array::try_from(take("ALLOC_STATE")?).ok()?,
            hits: PerCpuArray::try_from(take("ALLOC_HITS")?).ok()?,
            full: RingBuf::try_from(take("ALLOC_FULL")?).ok()?,
            calls: table(take("ALLOC_CALLS")?)?,
            callers: table(take("ALLOC_CALLERS")?)?,
            stacks: StackTraceMap::try_from(take("ALLOC_STACKS")?).ok()?,
            pending: table(take("ALLOC_PENDING")?)?,
            live: table(take("ALLOC_LIVE")?)?,
            lifetimes: PerCpuArray::try_from(take("ALLOC_LIFETIMES")?).ok()?,
            threads,
            fds: Vec::new(),
        };
        Some(Self { fds, ..maps })
    }

    fn descriptors(&self) -> impl Iterator<Item = std::os::fd::RawFd> + '_ {
        self.fds.iter().copied()
    }
}

fn table<K: Wire, V: Wire>(map: Map) -> Option<Table<K, V>> {
    Table::new(map)
}
