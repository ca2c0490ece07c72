//! Calls that gathered in runs, and did not get into their cells in the kernel.

use std::{collections::HashMap, hash::Hash};

use trainprof_common::{
    cell::{HistCell, HistKey, OpCell, OpKey},
    run::{CallRun, HistRun},
};

/// Adds runs to the cells of the same interval.
pub fn add(ops: &mut Vec<(OpKey, OpCell)>, runs: &[CallRun]) {
    let mut ops = Places::of(ops);
    for run in runs {
        run.add_to(ops.cell(run.key(), OpCell::EMPTY));
    }
}

/// Adds latencies and sizes to the cells of the same interval.
pub fn add_hists(hists: &mut Vec<(HistKey, HistCell)>, runs: &[HistRun]) {
    let mut hists = Places::of(hists);
    for run in runs {
        let cell = hists.cell(run.key(), HistCell::EMPTY);
        add_counts(&mut cell.latency, &run.cell.latency);
        add_counts(&mut cell.size, &run.cell.size);
    }
}

fn add_counts(to: &mut [u32], counts: &[u32]) {
    to.iter_mut().zip(counts).for_each(|(to, n)| *to += n);
}

/// Where the cell of a key lies in a list.
struct Places<'a, K, V> {
    cells: &'a mut Vec<(K, V)>,
    places: HashMap<K, usize>,
}

impl<'a, K: Copy + Eq + Hash, V> Places<'a, K, V> {
    fn of(cells: &'a mut Vec<(K, V)>) -> Self {
        let places = (0..)
            .zip(cells.iter())
            .map(|(n, (key, _))| (*key, n))
            .collect();
        Self { cells, places }
    }

    fn cell(&mut self, key: K, empty: V) -> &mut V {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.cells.push((key, empty));
            self.cells.len() - 1
        });
        &mut self.cells[place].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainprof_common::op::{Class, Op};

    fn run(op: Op, count: u32, bytes: u64, ns: u64) -> CallRun {
        CallRun {
            who: CallRun::who(42, op.number(), Class::File as u8),
            whence: CallRun::whence(1, 7),
            count,
            bytes,
            ns,
            ..CallRun::EMPTY
        }
    }

    #[test]
    fn runs_get_into_the_cells_of_their_kind() {
        let mut ops = Vec::new();
        // The same thread on two CPUs.
        let runs = [
            run(Op::Close, 3, 0, 0),
            run(Op::Read, 5, 60, 900),
            run(Op::Close, 4, 0, 80),
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
                    cell.ns,
                )
            })
            .collect();
        let close = (42, Op::Close.number(), 7, 7, 0, 80);
        assert_eq!(told, [close, (42, Op::Read.number(), 7, 10, 120, 1800)]);
    }

    #[test]
    fn latencies_and_sizes_add_up_by_file_system() {
        let of = |dev: u32, bucket: usize| {
            let mut run = HistRun {
                who: CallRun::who(42, Op::Read.number(), Class::File as u8),
                dev,
                ..HistRun::EMPTY
            };
            run.cell.latency[bucket] = 2;
            run.cell.size[4] = 3;
            run
        };
        let mut hists = Vec::new();
        add_hists(&mut hists, &[of(1, 9), of(2, 9), of(1, 10)]);
        let told: Vec<_> = hists
            .iter()
            .map(|(key, cell)| (key.dev, cell.latency[9], cell.latency[10], cell.size[4]))
            .collect();
        assert_eq!(told, [(1, 2, 2, 6), (2, 2, 0, 3)]);
    }
}
