//! Adding to the aggregates. Each key names a thread, so each value has one writer and needs no atomics.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::maps::HashMap;
use trainprof_common::{
    cell::{HistCell, HistKey, OpCell, OpKey, WaitCell, WaitKey},
    fileset::NO_FILESET,
    hist::{LATENCY_BUCKETS, SIZE_BUCKETS, latency_bucket, size_bucket},
    loss::Loss,
    op::Op,
    thread::Object,
};

use crate::{
    emit,
    maps::{Control, HISTS_A, HISTS_B, OPS_A, OPS_B, SCRATCH_HIST, WAITS_A, WAITS_B, control},
};

/// One finished operation.
pub struct Done {
    pub tid: u32,
    pub op: Op,
    pub bytes: u64,
    pub ns: u64,
    pub failed: bool,
    /// Whether `ns` was measured: not when the call had begun before the watch.
    pub timed: bool,
}

/// Counts an operation under its file set, and its latency and size under its file system.
#[inline(always)]
pub fn operation(done: &Done, object: &Object) {
    let second = control(Control::EPOCH) != 0;
    let key = OpKey {
        tid: done.tid,
        fileset: object.fileset,
        dev: object.dev,
        op: done.op as u8,
        class: object.class as u8,
        pad: 0,
    };
    if second {
        add_operation(&OPS_B, key, done);
        add_histogram(&HISTS_B, done, object);
    } else {
        add_operation(&OPS_A, key, done);
        add_histogram(&HISTS_A, done, object);
    }
}

#[inline(always)]
fn add_operation(map: &HashMap<OpKey, OpCell>, key: OpKey, done: &Done) {
    if let Some(cell) = map.get_ptr_mut(key) {
        // SAFETY: one writer per key.
        let cell = unsafe { &mut *cell };
        cell.count += 1;
        cell.errors += u64::from(done.failed);
        cell.bytes += done.bytes;
        cell.ns += done.ns;
        return;
    }
    let cell = OpCell {
        count: 1,
        errors: u64::from(done.failed),
        bytes: done.bytes,
        ns: done.ns,
    };
    if map.insert(key, &cell, u64::from(BPF_NOEXIST)).is_err() {
        emit::lost(Loss::OpCellsFull);
        let _ = NO_FILESET;
    }
}

#[inline(always)]
fn add_histogram(map: &HashMap<HistKey, HistCell>, done: &Done, object: &Object) {
    let key = HistKey {
        tid: done.tid,
        dev: object.dev,
        op: done.op as u8,
        class: object.class as u8,
        pad: [0; 6],
    };
    let cell = match map.get_ptr_mut(key) {
        Some(cell) => cell,
        None => {
            let Some(zero) = SCRATCH_HIST.get_ptr_mut(0) else {
                return;
            };
            // SAFETY: the slot is never written: it is the zero that new cells start from.
            let _ = map.insert(key, unsafe { &*zero }, u64::from(BPF_NOEXIST));
            match map.get_ptr_mut(key) {
                Some(cell) => cell,
                None => {
                    emit::lost(Loss::HistFull);
                    return;
                }
            }
        }
    };
    let latency = latency_bucket(done.ns) as usize;
    let size = size_bucket(done.bytes) as usize;
    // SAFETY: one writer per key; both indices are bounded by the comparisons.
    unsafe {
        if done.timed && latency < LATENCY_BUCKETS {
            (*cell).latency[latency] += 1;
        }
        if !done.failed && size < SIZE_BUCKETS {
            (*cell).size[size] += 1;
        }
    }
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
pub fn faults(done: &Done, object: &Object, count: u32) {
    let key = OpKey {
        tid: done.tid,
        fileset: object.fileset,
        dev: object.dev,
        op: done.op as u8,
        class: object.class as u8,
        pad: 0,
    };
    let map = if control(Control::EPOCH) != 0 {
        &OPS_B
    } else {
        &OPS_A
    };
    if let Some(cell) = map.get_ptr_mut(key) {
        // SAFETY: one writer per key.
        unsafe { (*cell).count += u64::from(count) };
        return;
    }
    let cell = OpCell {
        count: u64::from(count),
        ..OpCell::default()
    };
    if map.insert(key, &cell, u64::from(BPF_NOEXIST)).is_err() {
        emit::lost(Loss::OpCellsFull);
    }
}
