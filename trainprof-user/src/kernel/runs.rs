//! The small tables on each CPU in which calls gather, see [`trainprof_common::run`].

use aya::{
    Ebpf,
    maps::{MapData, MapError, PerCpuArray, PerCpuValues},
};
use trainprof_common::{
    Wire,
    run::{BANKS, CallRun, HIST_SETS, HIST_WAYS, HistRun, HistTable, RunTable, SETS, WAYS},
};

use super::{KernelError, load::take, map_error, wire::Packed};

pub(super) struct Runs {
    calls: PerCpuArray<MapData, Packed<RunTable>>,
    hists: PerCpuArray<MapData, Packed<HistTable>>,
}

const NO_CALLS: RunTable = RunTable {
    sets: [[CallRun::EMPTY; WAYS]; SETS],
};
const NO_HISTS: HistTable = HistTable {
    sets: [[HistRun::EMPTY; HIST_WAYS]; HIST_SETS],
};

impl Runs {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        Ok(Self {
            calls: PerCpuArray::try_from(take(ebpf, "RUNS")?).map_err(map_error("RUNS"))?,
            hists: PerCpuArray::try_from(take(ebpf, "HIST_RUNS")?)
                .map_err(map_error("HIST_RUNS"))?,
        })
    }

    /// Takes out what gathered in one half of the aggregates, into which nothing is written any more.
    pub(super) fn drain(&mut self, half: u32) -> Result<(Vec<CallRun>, Vec<HistRun>), KernelError> {
        let (mut calls, mut hists) = (Vec::new(), Vec::new());
        for bank in 0..BANKS as u32 {
            let number = half * BANKS as u32 + bank;
            drain_table(&mut self.calls, number, NO_CALLS, |table| {
                let runs = table.sets.iter().flatten();
                calls.extend(runs.filter(|run| run.count > 0));
                calls.len()
            })
            .map_err(map_error("RUNS"))?;
        }
        drain_table(&mut self.hists, half, NO_HISTS, |table| {
            let runs = table.sets.iter().flatten();
            hists.extend(runs.filter(|run| run.who != 0));
            hists.len()
        })
        .map_err(map_error("HIST_RUNS"))?;
        Ok((calls, hists))
    }
}

/// Shows each CPU's table with this number to `found`, which tells how much it has found so far, and empties them when there
/// was something in one.
fn drain_table<T: Wire>(
    map: &mut PerCpuArray<MapData, Packed<T>>,
    number: u32,
    empty: T,
    mut found: impl FnMut(&T) -> usize,
) -> Result<(), MapError> {
    let tables = map.get(&number, 0)?;
    let before = found(&empty);
    let mut after = before;
    for Packed(table) in tables.iter() {
        after = found(table);
    }
    if after > before {
        let none = PerCpuValues::try_from(vec![Packed(empty); tables.len()])?;
        map.set(number, none, 0)?;
    }
    Ok(())
}
