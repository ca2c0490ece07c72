//! Every map. Aggregates come in pairs: the probes write into one while user space drains the other.

use core::{
    mem::transmute,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, Queue, RingBuf, StackTrace},
};
use trainprof_common::{
    alloc::{
        Allocated, Caller, CallerKey, Calls, CallsKey, HALVES, HIT_COUNTERS, Lifetimes, MemoryKey,
        Pending, Window, WindowState,
    },
    cell::{HistCell, HistKey, OpCell, OpKey, WaitCell, WaitKey},
    fileset::{FilesetInfo, FilesetKey, FilesetRef},
    gpu::{Call, MAX_FUNCTIONS},
    loss::Loss,
    offsets::BLOCK_BYTES,
    op::{MAX_SYSCALLS, SyscallInfo},
    python::PyThread,
    run::{BANKS, HistTable, RunTable},
    thread::{Described, EndedKey, EndedThread, Object, ThreadState},
    touch::{self, TouchState},
};

use crate::cpu::Cpu;

/// Places of followed threads in [`STATES`], by thread id (of the initial pid namespace). The sizes of these three are set at
/// load.
#[map]
pub static THREADS: HashMap<u32, u32> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
#[map]
pub static STATES: Array<ThreadState> = Array::with_max_entries(16_384, 0);
/// Never written: the zero that a place begins with.
#[map]
pub static NO_STATE: Array<ThreadState> = Array::with_max_entries(1, 0);
/// Places that are free, the longest first: whoever wakes a thread that has just ended may still write to its place.
#[map]
pub static FREE_PLACES: Queue<u32> = Queue::with_max_entries(16_384, 0);

/// What is remembered of each CPU.
#[map]
pub static CPU: PerCpuArray<Cpu> = PerCpuArray::with_max_entries(1, 0);

/// Threads that ended since the last drain. (User space looks at every bucket of these tables, so they are no larger than need
/// be.)
#[map]
pub static ENDED: HashMap<EndedKey, EndedThread> =
    HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

#[map]
pub static OPS_A: HashMap<OpKey, OpCell> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
#[map]
pub static OPS_B: HashMap<OpKey, OpCell> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
/// Latencies and sizes of the same calls.
#[map]
pub static HISTS_A: HashMap<HistKey, HistCell> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
#[map]
pub static HISTS_B: HashMap<HistKey, HistCell> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
/// Calls that did not get into those cells: the tables of each half of the aggregates.
#[map]
pub static RUNS: PerCpuArray<RunTable> = PerCpuArray::with_max_entries(2 * BANKS as u32, 0);
/// The same for latencies and sizes.
#[map]
pub static HIST_RUNS: PerCpuArray<HistTable> = PerCpuArray::with_max_entries(2, 0);
#[map]
pub static WAITS_A: HashMap<WaitKey, WaitCell> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
#[map]
pub static WAITS_B: HashMap<WaitKey, WaitCell> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// File sets seen: key to number.
#[map]
pub static FILESETS: HashMap<FilesetKey, FilesetRef> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
/// File sets that were looked up on this CPU, by some bits of their key: they never change.
#[map]
pub static KNOWN_FILESETS: PerCpuArray<KnownFileset> = PerCpuArray::with_max_entries(KNOWN, 0);
/// How many that are.
pub const KNOWN: u32 = 256;

/// See [`KNOWN_FILESETS`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KnownFileset {
    pub key: FilesetKey,
    pub set: FilesetRef,
}

/// File sets by number.
#[map]
pub static FILESET_INFO: HashMap<u32, FilesetInfo> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Files that descriptors refer to of which the cache of the thread that closes them may not tell it, by process and number: those of processes whose
/// threads share a table, and those that one thread has more of than its cache holds. `pad` is the stretch of calls ([`Control::CALLS`]) in
/// which it was kept. Some are lost where there are very many.
#[map]
pub static DESCRIPTORS: LruHashMap<u64, Object> = LruHashMap::with_max_entries(16_384, 0);

/// io_uring requests in flight, by the address of their `struct io_kiocb`.
#[map]
pub static URING: HashMap<u64, UringRequest> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// 1 for processes whose calls are noted one by one, by the lower bits of their id: what others with the
/// same bits do is noted too, which harms nobody. Written by user space.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss.touched")]
static mut TOUCHED: [u8; touch::TOUCHED] = [0; touch::TOUCHED];

/// Whether calls of a process are noted one by one.
#[inline(always)]
pub fn touched(tgid: u32) -> bool {
    // SAFETY: the index is bounded; user space writes whole bytes.
    unsafe {
        read_volatile(
            (&raw const TOUCHED)
                .cast::<u8>()
                .add(tgid as usize & (touch::TOUCHED - 1)),
        ) != 0
    }
}
/// What was noted of the threads of such processes.
#[map]
pub static TOUCHES: HashMap<u32, TouchState> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// Threads whose frames of Python can be found, by thread id. Written by user space.
#[map]
pub static PY_THREADS: HashMap<u32, PyThread> = HashMap::with_max_entries(1_024, BPF_F_NO_PREALLOC);

/// GPU calls under way, by thread id.
#[map]
pub static GPU_CALLS: HashMap<u32, Call> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
/// Calls so far, by [`trainprof_common::gpu::Function::number`]: calls inside others too.
#[map]
pub static GPU_COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(MAX_FUNCTIONS as u32, 0);

/// What the probes on allocators are to do, and what they tell of a window as a whole.
#[map]
pub static ALLOC_WINDOW: Array<Window> = Array::with_max_entries(1, 0);
#[map]
pub static ALLOC_STATE: Array<WindowState> = Array::with_max_entries(1, 0);
/// All hits by kind: see [`trainprof_common::alloc`].
#[map]
pub static ALLOC_HITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(HIT_COUNTERS as u32, 0);
/// Tells at once that a window is full.
#[map]
pub static ALLOC_FULL: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub static ALLOC_CALLS: HashMap<CallsKey, Calls> =
    HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);
#[map]
pub static ALLOC_CALLERS: HashMap<CallerKey, Caller> =
    HashMap::with_max_entries(8_192, BPF_F_NO_PREALLOC);
#[map]
pub static ALLOC_STACKS: StackTrace = StackTrace::with_max_entries(2_048, 0);
/// Allocations under way, by thread id, and memory that was not given back yet, by address.
#[map]
pub static ALLOC_PENDING: HashMap<u32, Pending> =
    HashMap::with_max_entries(4_096, BPF_F_NO_PREALLOC);
#[map]
pub static ALLOC_LIVE: HashMap<MemoryKey, Allocated> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
#[map]
pub static ALLOC_LIFETIMES: PerCpuArray<Lifetimes> =
    PerCpuArray::with_max_entries(HALVES as u32, 0);
/// What a new cell of [`ALLOC_CALLS`] begins as: never written.
#[map]
pub static NO_CALLS: Array<Calls> = Array::with_max_entries(1, 0);

#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// System calls by number: [`SyscallInfo`] as words. Set by user space before loading.
#[unsafe(no_mangle)]
pub static SYSCALLS: [u64; MAX_SYSCALLS] = [0; MAX_SYSCALLS];

/// How a system call is counted, and what it waits on.
#[inline(always)]
pub fn syscall(nr: i64) -> Option<SyscallInfo> {
    if nr as u64 >= MAX_SYSCALLS as u64 {
        return None;
    }
    // SAFETY: the index is bounded; every word is a valid `SyscallInfo`, which has its size.
    Some(unsafe {
        transmute::<u64, SyscallInfo>(read_volatile(
            (&raw const SYSCALLS).cast::<u64>().add(nr as usize),
        ))
    })
}

/// Control words, written by user space: see [`Control`].
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss.control")]
static mut CONTROL: [u64; Control::WORDS] = [0; Control::WORDS];

/// Counted calls and switches of followed threads so far: user space looks how many there are a second.
#[map]
pub static PACE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Calls by which threads gave up the CPU because they had nothing to do, of all processes.
#[map]
pub static YIELDS: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// End of a process's heap after its last brk(2), and [`Control::counted`] of then.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Break {
    pub at: u64,
    pub counted: u64,
}

/// By process id.
#[map]
pub static BREAKS: HashMap<u32, Break> = HashMap::with_max_entries(16_384, BPF_F_NO_PREALLOC);

/// Lost facts by [`Loss`].
#[map]
pub static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(Loss::COUNT as u32, 0);

/// Room to build what does not fit the stack.
#[map]
pub static SCRATCH_INFO: PerCpuArray<FilesetInfo> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static SCRATCH_OBJECT: PerCpuArray<Described> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static SCRATCH_HIST: PerCpuArray<HistCell> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub static SCRATCH_BLOCK: PerCpuArray<Blocks> = PerCpuArray::with_max_entries(1, 0);

/// How many file sets this CPU gave a number to.
#[map]
pub static FILESET_COUNT: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// Copies of parts of kernel structures: one read of a whole part costs no more than one of a member.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Blocks {
    pub file: [u8; BLOCK_BYTES],
    pub inode: [u8; BLOCK_BYTES],
    pub dentry: [u8; BLOCK_BYTES],
}

/// An io_uring request in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UringRequest {
    pub submitted: u64,
    pub tid: u32,
    pub pad: u32,
}

/// How this CPU picks the page faults that are sent.
#[map]
pub static FAULT_PACE: PerCpuArray<FaultPace> = PerCpuArray::with_max_entries(1, 0);

/// See [`FAULT_PACE`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FaultPace {
    /// Looks until the next one that is sent, and since the last.
    pub left: u32,
    pub since: u32,
    /// Looks for each one that is sent, on average.
    pub period: u32,
    /// Sent in this window, and when it and the last sample were.
    pub in_window: u32,
    pub window: u64,
    pub sampled: u64,
}

/// Indices into [`CONTROL`].
pub struct Control;

impl Control {
    /// 0: write into the `_A` maps; 1: into the `_B` maps.
    pub const EPOCH: usize = 0;
    /// Waits of at least so many nanoseconds are sent as single events.
    pub const EVENT_MIN_NS: usize = 1;
    /// Calls of one thread on the same object are noted again only after so many nanoseconds.
    pub const TOUCH_GAP_NS: usize = 2;
    /// Calls of one thread are noted once in so many nanoseconds on average.
    pub const TOUCH_SPACING_NS: usize = 3;
    /// Number of the stretch of time in which beginnings of calls are shown; 0: they are not.
    pub const ENTRIES: usize = 4;
    /// Page faults that are sent from each CPU in a fifth of a second, before they are thinned out.
    pub const FAULTS_IN_WINDOW: usize = 5;
    /// How many threads user space has added: one of them may be on a CPU as a bystander.
    pub const FOLLOWED: usize = 6;
    /// So many like calls in a row may go unlooked at, where calls are many: see [`crate::touch`].
    pub const MOST_PASSED: usize = 7;
    /// Number of the first of the [`Control::ENTRIES`] stretches since calls are counted; 0: they are not. What was known of a
    /// thread's calls and descriptors before that is out of date.
    pub const CALLS: usize = 8;
    /// Such a number since when calls of [`touched`] processes alone are counted, others' not; 0: that is not so.
    pub const TOUCHED_CALLS: usize = 9;
    /// How many there are.
    pub const WORDS: usize = 10;

    /// Which stretch of counting this is, of all calls or of some.
    #[inline(always)]
    pub fn counted() -> u64 {
        let all = control(Self::CALLS);
        if all != 0 {
            all
        } else {
            control(Self::TOUCHED_CALLS)
        }
    }
}

/// When the probes last changed [`THREADS`], ns: what was known before is out of date.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss.changed")]
static mut CHANGED: u64 = 0;

/// Reads [`CHANGED`].
#[inline(always)]
pub fn changed_at() -> u64 {
    // SAFETY: a word that is written whole.
    unsafe { read_volatile(&raw const CHANGED) }
}

/// [`THREADS`] was changed just now.
#[inline(always)]
pub fn changed() {
    // SAFETY: clock helper; a word that is written whole. Of two changes at once either time is one that nobody saw before both
    // were made.
    unsafe { write_volatile(&raw mut CHANGED, bpf_ktime_get_ns()) };
}

/// Reads a control word.
#[inline(always)]
pub fn control(index: usize) -> u64 {
    // SAFETY: the indices are the constants above; user space writes whole words.
    unsafe { read_volatile((&raw const CONTROL).cast::<u64>().add(index)) }
}
