//! From the probes' wire types to facts: pure, one function for each pair.

use std::collections::BTreeMap;

use trainprof_common::{
    cell::{HistCell, HistKey, OpCell, OpKey, WaitCell, WaitKey},
    event::{BackwardEvent, ExecutionEvent, GpuCallEvent, TouchEvent, UpdateEvent, WaitEvent},
    gpu::{Call, CallKind},
    hist::COARSE_BUCKETS,
    thread::{EndedKey, EndedThread, Object, State, ThreadState, WakerKind},
};

use crate::{
    event,
    record::Record,
    record::fact::{
        Counters, ExecutionFact, GpuCallFact, GpuCallKind, HistSum, ObjectFact, OpLatency, OpSum,
        PassFact, ThreadEnd, ThreadTotals, TouchFact, UpdateFact, WaitFact, WaitSum, WakerFact,
    },
    time::KtimeNs,
};

pub(super) fn totals(tid: u32, state: &ThreadState, at: KtimeNs) -> ThreadTotals {
    let current = if state.state == State::Run as u32 {
        at.since(KtimeNs(state.since))
    } else {
        0
    };
    ThreadTotals {
        tid,
        run_ns: state.run_ns + current,
        preemptions: state.preemptions,
        preempted_ns: state.preempted_ns,
    }
}

pub(super) fn object_fact(object: &Object) -> ObjectFact {
    ObjectFact {
        id: object.id,
        fileset: object.fileset,
        class: object.class as u8,
    }
}

fn waker_fact(kind: u8, tid: u32) -> WakerFact {
    let named = kind == WakerKind::Thread as u8
        || kind == WakerKind::Sender as u8
        || kind == WakerKind::Kernel as u8;
    WakerFact {
        kind,
        tid: if named { tid } else { 0 },
    }
}

pub(super) fn wait_fact(wait: &WaitEvent) -> WaitFact {
    WaitFact {
        tid: wait.tid,
        from: KtimeNs(wait.from),
        wait_ns: wait.woken.saturating_sub(wait.from),
        runnable_ns: wait.to.saturating_sub(wait.woken),
        ran_before: wait.ran_before,
        nr: wait.nr,
        object: object_fact(&wait.object),
        waker: waker_fact(wait.waker_kind, wait.waker),
        iowait: wait.iowait != 0,
    }
}

pub(super) fn touch_fact(touch: &TouchEvent) -> TouchFact {
    TouchFact {
        tid: touch.tid,
        at: KtimeNs(touch.at),
        op: touch.op as u8,
        object: object_fact(&touch.object),
        bytes: touch.bytes,
        skipped: touch.skipped,
    }
}

pub(super) fn wait_object(key: &WaitKey) -> ObjectFact {
    ObjectFact {
        id: key.object,
        fileset: key.fileset,
        class: key.class,
    }
}

pub(super) fn wait_sum(key: &WaitKey, cell: &WaitCell) -> WaitSum {
    WaitSum {
        tid: key.tid,
        nr: key.nr,
        object: wait_object(key),
        waker: waker_fact(key.waker_kind, key.waker),
        count: cell.count,
        wait_ns: cell.wait_ns,
        runnable_ns: cell.runnable_ns,
        iowait_ns: cell.iowait_ns,
        max_ns: cell.max_ns,
    }
}

pub(super) fn op_sum(key: &OpKey, cell: &OpCell) -> OpSum {
    OpSum {
        tid: key.tid,
        fileset: key.fileset,
        dev: key.dev,
        op: key.op,
        class: key.class,
        count: cell.count,
        errors: cell.errors,
        bytes: cell.bytes,
        ns: cell.ns,
    }
}

/// Latencies and sizes of each thread on each file system, in the order of their keys.
pub(super) fn histograms(hists: &[(HistKey, HistCell)]) -> Vec<HistSum> {
    let mut sums: Vec<HistSum> = hists
        .iter()
        .map(|(key, cell)| HistSum {
            tid: key.tid,
            dev: key.dev,
            op: key.op,
            class: key.class,
            latency: filled(&cell.latency),
            size: filled(&cell.size),
        })
        .collect();
    sums.sort_unstable_by_key(|sum| (sum.tid, sum.op, sum.class, sum.dev));
    sums
}

/// Latencies on each file set, in the order of their keys.
pub(super) fn latencies(ops: &[(OpKey, OpCell)]) -> Vec<OpLatency> {
    let mut sums = BTreeMap::<_, [u32; COARSE_BUCKETS]>::new();
    for (key, cell) in ops.iter().filter(|(key, _)| key.fileset != 0) {
        let of = (key.fileset, key.dev, key.op, key.class);
        let sum = sums.entry(of).or_insert([0; COARSE_BUCKETS]);
        sum.iter_mut()
            .zip(cell.latency)
            .for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    sums.into_iter()
        .map(|((fileset, dev, op, class), counts)| OpLatency {
            fileset,
            dev,
            op,
            class,
            latency: filled(&counts),
        })
        .filter(|of| !of.latency.is_empty())
        .collect()
}

/// (Bucket, count) of those not empty.
fn filled(counts: &[u32]) -> Vec<(u8, u32)> {
    (0..)
        .zip(counts)
        .filter(|(_, n)| **n > 0)
        .map(|(bucket, n)| (bucket, *n))
        .collect()
}

pub(super) fn thread_end(key: &EndedKey, ended: &EndedThread) -> ThreadEnd {
    ThreadEnd {
        at: KtimeNs(key.at),
        pid: ended.tgid,
        tid: key.tid,
        followed_since: KtimeNs(ended.followed_since),
        totals: ThreadTotals {
            tid: key.tid,
            run_ns: ended.run_ns,
            preemptions: ended.preemptions,
            preempted_ns: ended.preempted_ns,
        },
        counters: Counters {
            minor_faults: ended.counters.min_flt,
            major_faults: ended.counters.maj_flt,
            storage_read_bytes: ended.counters.read_bytes,
            storage_write_bytes: ended.counters.write_bytes,
        },
        name: event::name(&ended.comm),
    }
}

/// A backward pass.
pub(super) fn pass(pass: &BackwardEvent) -> Record {
    Record::Pass(PassFact {
        at: KtimeNs(pass.at),
        tid: pass.tid,
        sp: pass.sp,
        path: pass.path,
    })
}

/// An update of a model.
pub(super) fn update(update: &UpdateEvent) -> Record {
    Record::Update(UpdateFact {
        at: KtimeNs(update.at),
        tid: update.tid,
    })
}

/// What a framework compiled is computed.
pub(super) fn execution(execution: &ExecutionEvent) -> Record {
    Record::Execution(ExecutionFact {
        at: KtimeNs(execution.at),
        tid: execution.tid,
        what: execution.what,
    })
}

/// A call into the GPU's runtime; `None` when its kind is none.
pub(super) fn call(call: &GpuCallEvent) -> Option<Record> {
    Some(Record::GpuCall(GpuCallFact {
        tid: call.tid,
        from: KtimeNs(call.from),
        ns: call.ns,
        kind: gpu_call_kind(call.what)?,
        bytes: call.bytes,
        function: call.function,
    }))
}

/// A call that is under way at the end of the watch: as long as it was seen.
pub(super) fn gpu_call_under_way(tid: u32, call: &Call, at: KtimeNs) -> Option<Record> {
    Some(Record::GpuCall(GpuCallFact {
        tid,
        from: KtimeNs(call.from),
        ns: at.since(KtimeNs(call.from)),
        kind: gpu_call_kind(u32::from(call.kind))?,
        bytes: call.bytes,
        function: u32::from(call.function),
    }))
}

fn gpu_call_kind(number: u32) -> Option<GpuCallKind> {
    Some(match CallKind::from_number(number)? {
        CallKind::Synchronise => GpuCallKind::Synchronise,
        CallKind::Copy => GpuCallKind::Copy,
        CallKind::CopyAsync => GpuCallKind::CopyAsync,
        CallKind::Allocate => GpuCallKind::Allocate,
        CallKind::Free => GpuCallKind::Free,
        CallKind::Backward | CallKind::Scope | CallKind::Operator | CallKind::Execute => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainprof_common::op::{Class, Op};

    #[test]
    fn latencies_of_all_threads_are_told_by_file_set() {
        let of = |tid, fileset, bucket: usize, count| {
            let key = OpKey {
                tid,
                fileset,
                dev: 8,
                op: Op::Read.number(),
                class: Class::File as u8,
                pad: 0,
            };
            let mut cell = OpCell::EMPTY;
            cell.latency[bucket] = count;
            (key, cell)
        };
        let told = latencies(&[
            of(1, 7, 20, 3),
            of(2, 7, 20, 4),
            of(2, 7, 9, 1),
            of(1, 5, 63, 2),
            // A pipe, and calls of which none was timed.
            of(1, 0, 20, 9),
            of(1, 6, 20, 0),
        ]);
        let told: Vec<_> = (told.iter())
            .map(|of| (of.fileset, of.latency.as_slice()))
            .collect();
        assert_eq!(told, [(5, &[(63, 2)][..]), (7, &[(9, 1), (20, 7)])]);
    }
}
