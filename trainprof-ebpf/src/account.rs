//! Adding to the aggregates. Each key names a thread, so each value has one writer and needs no atomics.

use core::hint::black_box;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::maps::HashMap;
use trainprof_common::{
    cell::{HistCell, HistKey, OpCell, OpKey, WaitCell, WaitKey},
    hist::{COARSE_BUCKETS, LATENCY_BUCKETS, SIZE_BUCKETS, latency_bucket, size_bucket},
    loss::Loss,
    op::Op,
    run::{BANKS, CallRun, HistRun, LATENCY_WORDS, SETS, WAYS},
    thread::Object,
};

use crate::{
    emit,
    maps::{
        Control, HIST_RUNS, HISTS_A, HISTS_B, OPS_A, OPS_B, PACE, RUNS, SCRATCH_HIST, WAITS_A,
        WAITS_B, control,
    },
};

/// One finished operation.
pub struct Done {
    pub tid: u32,
    /// [`trainprof_common::op::Op`] number.
    pub op: u8,
    pub bytes: u64,
    pub ns: u64,
    pub failed: bool,
    /// Whether `ns` was measured: not when the call had begun before the watch.
    pub timed: bool,
    /// Kernel time of its return; 0: that was not looked at.
    pub at: u64,
}

/// One more call or switch of a followed thread.
#[inline(always)]
pub fn pace() {
    if let Some(count) = PACE.get_ptr_mut(0) {
        // SAFETY: a per-CPU slot; a count that an interrupt took away does not matter.
        unsafe { *count += 1 };
    }
}

/// The half of the aggregates that is written into: 0 or 1.
#[inline(always)]
fn half() -> u8 {
    control(Control::EPOCH) as u8 & 1
}

/// Counts a call of the current thread. Calls gather in runs, which cost less than cells. Gives the run of like calls that
/// it joined.
#[inline(always)]
pub fn call(done: &Done, object: &Object) -> Option<&'static mut CallRun> {
    if done.failed {
        operation(done, object);
        return None;
    }
    let who = CallRun::who(done.tid, done.op, object.class as u8);
    let whence = CallRun::whence(object.dev, object.fileset);
    let (bank, place) = CallRun::place(who, whence);
    let number = u32::from(half()) * BANKS as u32 + bank as u32;
    let way = find_run(who, whence, number) as usize;
    if way >= WAYS {
        operation(done, object);
        return None;
    }
    let table = RUNS.get_ptr_mut(number)?;
    // SAFETY: this CPU's table, with preemption off; interrupts do not get here.
    let run = unsafe { &mut (*table).sets[place][way] };
    run.count += 1;
    run.bytes += done.bytes;
    run.ns += done.ns;
    if done.timed || done.bytes != 0 || MOVES_BYTES >> (done.op & 31) & 1 != 0 {
        let timed = u64::from(done.timed) * TIMED;
        let bucket = add_shape(who | timed, object.dev, done.bytes, done.ns);
        if done.timed {
            run.took(bucket);
        }
    }
    Some(run)
}

/// Operations of which a size of 0 tells something too, by number.
const MOVES_BYTES: u32 = 1 << Op::Open.number()
    | 1 << Op::Read.number()
    | 1 << Op::Write.number()
    | 1 << Op::Copy.number();

// Global functions: the verifier looks at them once, and not again on every path that leads to a call of them. When user space
// has just switched to the other half of the aggregates, what they add belongs to the next interval.

/// Which run of its set in that table is the one of such calls; it begins one where there is none. `WAYS`: there is no room.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn find_run(who: u64, whence: u64, number: u32) -> u32 {
    let Some(table) = RUNS.get_ptr_mut(number) else {
        return WAYS as u32;
    };
    let (_, place) = CallRun::place(who, whence);
    // SAFETY: this CPU's table, with preemption off; interrupts do not get here.
    let set = unsafe { &raw mut (*table).sets[place] };
    let (mut shortest, mut least) = (WAYS, u32::MAX);
    for n in 0..WAYS {
        // SAFETY: as above; `spill` changes it while this is not looked at.
        let run = unsafe { &(*set)[n] };
        if run.who == who && run.whence == whence {
            if run.count >= CallRun::MOST {
                spill(number, place as u32, n as u32);
            }
            return n as u32;
        }
        // A cell has one writer, its thread: another thread's run stays where it is.
        if (run.count == 0 || run.tid() == (who >> 32) as u32) && run.count < least {
            (shortest, least) = (n, run.count);
        }
    }
    if shortest == WAYS {
        return WAYS as u32;
    }
    spill(number, place as u32, shortest as u32);
    // SAFETY: as above.
    let run = unsafe { &mut (*set)[shortest & (WAYS - 1)] };
    (run.who, run.whence, run.rest) = (who, whence, 0);
    shortest as u32
}

/// Adds what one run of a table has gathered to its cell: it begins anew.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn spill(number: u32, place: u32, way: u32) -> u32 {
    let Some(table) = RUNS.get_ptr_mut(number) else {
        return 0;
    };
    // SAFETY: this CPU's table, with preemption off; interrupts do not get here.
    let run = unsafe { &mut (*table).sets[place as usize % SETS][way as usize % WAYS] };
    if run.count == 0 {
        return 0;
    }
    match op_cell(&run.key(), half()) {
        // SAFETY: one writer per key.
        Some(cell) => run.add_to(unsafe { &mut *cell }),
        None => emit::lost_many(Loss::OpCellsFull, u64::from(run.count)),
    }
    (run.count, run.bytes, run.ns) = (0, 0, 0);
    run.latency = [0; LATENCY_WORDS];
    0
}

// `who` is thread, operation, class and flags. Gives the bucket of its latency.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn add_shape(who: u64, dev: u32, bytes: u64, ns: u64) -> u32 {
    let (timed, who) = (who & TIMED != 0, who & !TIMED);
    let half = half();
    let latency = bucket_of_latency(ns);
    let Some(table) = HIST_RUNS.get_ptr_mut(u32::from(half)) else {
        return latency;
    };
    // SAFETY: this CPU's table, with preemption off; interrupts do not get here.
    let set = unsafe { &mut (*table).sets[HistRun::set(who, dev)] };
    for run in set {
        if run.who == 0 {
            (run.who, run.dev) = (who, dev);
        }
        if run.who == who && run.dev == dev {
            count_shape(&mut run.cell, timed, latency, bytes);
            return latency;
        }
    }
    match hist_cell(&HistRun::key_of(who, dev), half) {
        // SAFETY: one writer per key.
        Some(cell) => count_shape(unsafe { &mut *cell }, timed, latency, bytes),
        None => emit::lost(Loss::OpCellsFull),
    }
    latency
}

// The compiler knows which buckets there are, the verifier does not: the comparisons must stay.

#[inline(always)]
fn count_latency(cell: &mut HistCell, timed: bool, latency: u32) {
    if timed {
        let latency = black_box(latency) as usize;
        if latency < LATENCY_BUCKETS {
            cell.latency[latency] += 1;
        }
    }
}

#[inline(always)]
fn count_shape(cell: &mut HistCell, timed: bool, latency: u32, bytes: u64) {
    count_latency(cell, timed, latency);
    let size = black_box(size_bucket(bytes)) as usize;
    if size < SIZE_BUCKETS {
        cell.size[size] += 1;
    }
}

/// Counts an operation, with its latency and size, under its file set.
#[inline(always)]
pub fn operation(done: &Done, object: &Object) {
    let kind = u64::from(done.op) | u64::from(object.class as u8) << 8;
    let flags = (u64::from(done.failed) * FAILED) | (u64::from(done.timed) * TIMED);
    add_operation(
        u64::from(done.tid) << 32 | kind | flags,
        u64::from(object.dev) << 32 | u64::from(object.fileset),
        done.ns,
        done.bytes,
    );
}

const FAILED: u64 = 1 << 16;
const TIMED: u64 = 1 << 17;

// `who` is thread, operation, class and flags, `whence` device and file set.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn add_operation(who: u64, whence: u64, ns: u64, bytes: u64) -> u32 {
    let half = half();
    let key = OpKey {
        tid: (who >> 32) as u32,
        fileset: whence as u32,
        dev: (whence >> 32) as u32,
        op: who as u8,
        class: (who >> 8) as u8,
        pad: 0,
    };
    let (Some(cell), Some(hist)) = (op_cell(&key, half), hist_cell(&key.hist(), half)) else {
        emit::lost(Loss::OpCellsFull);
        return 0;
    };
    let (failed, timed) = (who & FAILED != 0, who & TIMED != 0);
    // SAFETY: one writer per key.
    let (cell, hist) = unsafe { (&mut *cell, &mut *hist) };
    cell.count += 1;
    cell.errors += u64::from(failed);
    cell.bytes += bytes;
    cell.ns += ns;
    let latency = bucket_of_latency(ns);
    if timed {
        // Not by a comparison: Linux 6.1 follows the next one of the same number both ways.
        cell.latency[latency as usize / 2 % COARSE_BUCKETS] += 1;
    }
    if failed {
        count_latency(hist, timed, latency);
    } else {
        count_shape(hist, timed, latency, bytes);
    }
    0
}

// Its branches are looked at once by the verifier, since this is a global function; inlined, they would multiply with those
// of every caller.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn bucket_of_latency(ns: u64) -> u32 {
    latency_bucket(ns)
}

#[inline(always)]
fn op_cell(key: &OpKey, half: u8) -> Option<*mut OpCell> {
    if half != 0 {
        cell_of(&OPS_B, key, || Some(&OpCell::EMPTY))
    } else {
        cell_of(&OPS_A, key, || Some(&OpCell::EMPTY))
    }
}

#[inline(always)]
fn hist_cell(key: &HistKey, half: u8) -> Option<*mut HistCell> {
    // The slot is never written: it is the zero that new cells start from.
    if half != 0 {
        cell_of(&HISTS_B, key, || SCRATCH_HIST.get(0))
    } else {
        cell_of(&HISTS_A, key, || SCRATCH_HIST.get(0))
    }
}

#[inline(always)]
fn cell_of<'a, K, V: 'a>(
    map: &HashMap<K, V>,
    key: &K,
    zero: impl Fn() -> Option<&'a V>,
) -> Option<*mut V> {
    map.get_ptr_mut(key).or_else(|| {
        let _ = map.insert(key, zero()?, u64::from(BPF_NOEXIST));
        map.get_ptr_mut(key)
    })
}

/// Counts one interval off the CPU.
#[inline(always)]
pub fn wait(key: WaitKey, wait_ns: u64, runnable_ns: u64, iowait: bool) {
    let what = u64::from(key.nr as u16) << 16
        | u64::from(key.class) << 8
        | u64::from(key.waker_kind)
        | u64::from(key.fileset) << 32;
    count_wait(
        key.object,
        u64::from(key.tid) << 32 | u64::from(key.waker),
        what,
        wait_ns,
        runnable_ns << 1 | u64::from(iowait),
    );
}

// `who` is thread and waker, `what` file set, call, class and kind of waker; the lowest bit of `runnable` is I/O wait.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn count_wait(object: u64, who: u64, what: u64, wait_ns: u64, runnable: u64) -> u32 {
    let key = WaitKey {
        object,
        tid: (who >> 32) as u32,
        waker: who as u32,
        fileset: (what >> 32) as u32,
        nr: (what >> 16) as i16,
        class: (what >> 8) as u8,
        waker_kind: what as u8,
    };
    let (runnable_ns, iowait) = (runnable >> 1, runnable & 1 != 0);
    if half() == 0 {
        add_wait(&WAITS_A, key, wait_ns, runnable_ns, iowait);
    } else {
        add_wait(&WAITS_B, key, wait_ns, runnable_ns, iowait);
    }
    0
}

#[inline(always)]
fn add_wait(
    map: &HashMap<WaitKey, WaitCell>,
    key: WaitKey,
    wait_ns: u64,
    runnable_ns: u64,
    iowait: bool,
) {
    let iowait_ns = if iowait { wait_ns } else { 0 };
    if let Some(cell) = map.get_ptr_mut(key) {
        // SAFETY: one writer per key.
        let cell = unsafe { &mut *cell };
        cell.count += 1;
        cell.wait_ns += wait_ns;
        cell.runnable_ns += runnable_ns;
        cell.iowait_ns += iowait_ns;
        if wait_ns > cell.max_ns {
            cell.max_ns = wait_ns;
        }
        return;
    }
    let cell = WaitCell {
        count: 1,
        wait_ns,
        runnable_ns,
        iowait_ns,
        max_ns: wait_ns,
    };
    if map.insert(key, &cell, u64::from(BPF_NOEXIST)).is_err() {
        emit::lost(Loss::WaitCellsFull);
    }
}

/// Counts the time that a page fault on a file kept its thread off the CPU.
#[inline(always)]
pub fn fault_wait(tid: u32, object: &Object, ns: u64) {
    add_fault_wait(
        u64::from(tid) << 32 | u64::from(object.class),
        object.dev,
        ns,
    );
}

// `who` is thread and class. Rare: a page fault that sleeps.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn add_fault_wait(who: u64, dev: u32, ns: u64) -> u32 {
    let key = HistKey {
        tid: (who >> 32) as u32,
        dev,
        op: Op::Fault.number(),
        class: who as u8,
        pad: 0,
    };
    match hist_cell(&key, half()) {
        // SAFETY: one writer per key.
        Some(cell) => count_latency(unsafe { &mut *cell }, true, bucket_of_latency(ns)),
        None => emit::lost(Loss::OpCellsFull),
    }
    0
}

/// Counts `count` page faults under the file set that the thread last filled pages of.
#[inline(always)]
pub fn faults(tid: u32, object: &Object, count: u32) {
    add_faults(
        tid,
        u64::from(object.dev) << 32 | u64::from(object.fileset),
        object.class,
        count,
    );
}

// `whence` is device and file set.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn add_faults(tid: u32, whence: u64, class: u32, count: u32) -> u32 {
    let half = half();
    let key = OpKey {
        tid,
        fileset: whence as u32,
        dev: (whence >> 32) as u32,
        op: Op::Fault.number(),
        class: class as u8,
        pad: 0,
    };
    match op_cell(&key, half) {
        // SAFETY: one writer per key.
        Some(cell) => unsafe { (*cell).count += u64::from(count) },
        None => emit::lost(Loss::OpCellsFull),
    }
    0
}
