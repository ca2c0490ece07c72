//! Calls that threads keep in runs, and that had not got into their cells when the watch ended.

use trainprof_common::{
    cell::{OpCell, OpKey},
    hist::{LATENCY_BUCKETS, SIZE_BUCKETS},
    thread::{CallRun, ThreadState},
};

/// Adds the runs of one half of the aggregates to its cells.
pub fn add(ops: &mut Vec<(OpKey, OpCell)>, threads: &[(u32, ThreadState)], half: u8) {
    for (tid, state) in threads {
        let left = state.runs.iter().filter(|run| run.count > 0);
        for run in left.filter(|run| CallRun::half(run.what) == half) {
            add_run(ops, *tid, run);
        }
    }
}

fn add_run(ops: &mut Vec<(OpKey, OpCell)>, tid: u32, run: &CallRun) {
    let key = OpKey {
        tid,
        fileset: run.fileset,
        dev: run.dev,
        op: CallRun::op(run.what),
        class: CallRun::class(run.what),
        pad: 0,
    };
    let at = ops.iter().position(|(known, _)| *known == key);
    let at = at.unwrap_or_else(|| {
        let none = OpCell {
            count: 0,
            errors: 0,
            bytes: 0,
            ns: 0,
            latency: [0; LATENCY_BUCKETS],
            size: [0; SIZE_BUCKETS],
        };
        ops.push((key, none));
        ops.len() - 1
    });
    let cell = &mut ops[at].1;
    cell.count += u64::from(run.count);
    cell.bytes += run.bytes;
    if let Some(size) = cell.size.get_mut(usize::from(CallRun::bucket(run.what))) {
        *size += run.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainprof_common::op::{Class, Op};

    fn run(op: Op, half: u8, count: u32, bytes: u64) -> CallRun {
        CallRun {
            fileset: 7,
            dev: 1,
            what: CallRun::what(op.number(), Class::File as u8, half, 4),
            count,
            bytes,
            ..CallRun::default()
        }
    }

    fn threads(runs: [CallRun; 4]) -> Vec<(u32, ThreadState)> {
        let state = ThreadState {
            runs,
            ..ThreadState::default()
        };
        vec![(42, state)]
    }

    #[test]
    fn what_a_thread_kept_gets_into_its_cell() {
        let none = CallRun::default();
        let threads = threads([run(Op::Close, 1, 3, 0), none, run(Op::Read, 1, 5, 60), none]);
        let mut ops = Vec::new();
        add(&mut ops, &threads, 1);
        add(&mut ops, &threads, 1);
        let told: Vec<_> = ops
            .iter()
            .map(|(key, cell)| {
                (
                    key.tid,
                    key.op,
                    key.fileset,
                    cell.count,
                    cell.bytes,
                    cell.size[4],
                )
            })
            .collect();
        let close = (42, Op::Close.number(), 7, 6, 0, 6);
        assert_eq!(told, [close, (42, Op::Read.number(), 7, 10, 120, 10)]);
    }

    #[test]
    fn what_was_counted_after_the_end_is_left_out() {
        let none = CallRun::default();
        let threads = threads([none, none, run(Op::Read, 0, 5, 60), none]);
        let mut ops = Vec::new();
        add(&mut ops, &threads, 1);
        assert!(ops.is_empty());
    }
}
