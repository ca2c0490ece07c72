//! Calls that gathered in runs, and did not get into their cells.

use std::collections::HashMap;

use trainprof_common::{
    cell::{OpCell, OpKey},
    hist::{LATENCY_BUCKETS, SIZE_BUCKETS},
    run::CallRun,
};

/// Adds runs to the cells of the same interval.
pub fn add(ops: &mut Vec<(OpKey, OpCell)>, runs: &[CallRun]) {
    if runs.is_empty() {
        return;
    }
    let mut places: HashMap<OpKey, usize> = (0..)
        .zip(ops.iter())
        .map(|(n, (key, _))| (*key, n))
        .collect();
    for run in runs {
        let key = run.key();
        let place = *places.entry(key).or_insert_with(|| {
            ops.push((key, EMPTY));
            ops.len() - 1
        });
        let cell = &mut ops[place].1;
        cell.count += u64::from(run.count);
        cell.bytes += run.bytes;
        if let Some(size) = cell.size.get_mut(usize::from(run.bucket())) {
            *size += run.count;
        }
    }
}

const EMPTY: OpCell = OpCell {
    count: 0,
    errors: 0,
    bytes: 0,
    ns: 0,
    latency: [0; LATENCY_BUCKETS],
    size: [0; SIZE_BUCKETS],
};

#[cfg(test)]
mod tests {
    use super::*;
    use trainprof_common::op::{Class, Op};

    fn run(op: Op, count: u32, bytes: u64) -> CallRun {
        CallRun {
            who: CallRun::who(42, op.number(), Class::File as u8, 4),
            whence: CallRun::whence(1, 7),
            count,
            bytes,
            rest: 0,
            stay: 0,
        }
    }

    #[test]
    fn runs_get_into_the_cells_of_their_kind() {
        let mut ops = Vec::new();
        // The same thread on two CPUs.
        let runs = [
            run(Op::Close, 3, 0),
            run(Op::Read, 5, 60),
            run(Op::Close, 4, 0),
        ];
        add(&mut ops, &runs);
        add(&mut ops, &runs[1..2]);
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
        let close = (42, Op::Close.number(), 7, 7, 0, 7);
        assert_eq!(told, [close, (42, Op::Read.number(), 7, 10, 120, 10)]);
    }
}
