//! Adding to the aggregates. Each key names a thread, so each value has one writer and needs no atomics.

use core::hint::black_box;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::maps::HashMap;
use trainprof_common::{
    cell::{OpCell, OpKey, WaitCell, WaitKey},
    hist::{LATENCY_BUCKETS, SIZE_BUCKETS, latency_bucket, size_bucket},
    loss::Loss,
    op::Op,
    thread::Object,
};

use crate::{
    emit,
    maps::{Control, OPS_A, OPS_B, PACE, SCRATCH_CELL, WAITS_A, WAITS_B, control},
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
}

/// One more call or switch of a followed thread.
#[inline(always)]
pub fn pace() {
    if let Some(count) = PACE.get_ptr_mut(0) {
        // SAFETY: a per-CPU slot; a count that an interrupt took away does not matter.
        unsafe { *count += 1 };
    }
}

/// Counts an operation, with its latency and size, under its file set.
#[inline(always)]
pub fn operation(done: &Done, object: &Object) {
    let key = OpKey {
        tid: done.tid,
        fileset: object.fileset,
        dev: object.dev,
        op: done.op,
        class: object.class as u8,
        pad: 0,
    };
    let Some(cell) = op_cell(&key) else {
        emit::lost(Loss::OpCellsFull);
        return;
    };
    // The compiler knows what they can give, the verifier does not: the comparisons below must stay.
    let latency = if done.timed {
        black_box(bucket_of_latency(done.ns)) as usize
    } else {
        LATENCY_BUCKETS
    };
    let size = black_box(bucket_of_size(done.bytes)) as usize;
    // SAFETY: one writer per key; both indices are bounded by the comparisons.
    unsafe {
        (*cell).count += 1;
        (*cell).errors += u64::from(done.failed);
        (*cell).bytes += done.bytes;
        (*cell).ns += done.ns;
        if latency < LATENCY_BUCKETS {
            (*cell).latency[latency] += 1;
        }
        if !done.failed && size < SIZE_BUCKETS {
            (*cell).size[size] += 1;
        }
    }
}

// Their branches are looked at once by the verifier, since these are global functions; inlined, they would
// multiply with those of every caller.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn bucket_of_latency(ns: u64) -> u32 {
    latency_bucket(ns)
}

#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn bucket_of_size(bytes: u64) -> u32 {
    size_bucket(bytes)
}

#[inline(always)]
fn op_cell(key: &OpKey) -> Option<*mut OpCell> {
    if control(Control::EPOCH) != 0 {
        OPS_B.get_ptr_mut(key).or_else(|| new_op_cell(&OPS_B, key))
    } else {
        OPS_A.get_ptr_mut(key).or_else(|| new_op_cell(&OPS_A, key))
    }
}

#[inline(always)]
fn new_op_cell(map: &HashMap<OpKey, OpCell>, key: &OpKey) -> Option<*mut OpCell> {
    let zero = SCRATCH_CELL.get(0)?;
    // The slot is never written: it is the zero that new cells start from.
    let _ = map.insert(key, zero, u64::from(BPF_NOEXIST));
    map.get_ptr_mut(key)
}

/// Counts one interval off the CPU.
#[inline(always)]
pub fn wait(key: WaitKey, wait_ns: u64, runnable_ns: u64, iowait: bool) {
    if control(Control::EPOCH) != 0 {
        add_wait(&WAITS_B, key, wait_ns, runnable_ns, iowait);
    } else {
        add_wait(&WAITS_A, key, wait_ns, runnable_ns, iowait);
    }
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

/// Counts `count` page faults under the file set that the thread last filled pages of.
#[inline(always)]
pub fn faults(tid: u32, object: &Object, count: u32) {
    let key = OpKey {
        tid,
        fileset: object.fileset,
        dev: object.dev,
        op: Op::Fault.number(),
        class: object.class as u8,
        pad: 0,
    };
    match op_cell(&key) {
        // SAFETY: one writer per key.
        Some(cell) => unsafe { (*cell).count += u64::from(count) },
        None => emit::lost(Loss::OpCellsFull),
    }
}
