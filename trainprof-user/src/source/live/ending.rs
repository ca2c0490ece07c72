//! The end of a watch: what is under way then is told up to then.

use std::{collections::BTreeSet, time::Duration};

use trainprof_common::thread::ThreadState;

use super::{Live, SourceError, comm};
use crate::{
    kernel::FaultEdge,
    record::{
        Record,
        fact::{Counters, OpenThread, Stop, StopReason},
    },
    source::{
        convert::{gpu_call_under_way, object_fact, totals},
        own,
        pressure::Job,
        scan,
    },
    time::KtimeNs,
};

/// Faults per nanosecond of the watch: at a tenth of a microsecond each, a thousandth of a CPU.
const FAULTS_THAT_MATTER: f64 = 0.001 / 100.0;

/// How long the end waits for functions that are being looked up.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

impl Live {
    /// Ends the watch: `at` is the time of the last [`Self::switch_over`], whose aggregates were collected.
    pub fn stop(&mut self, at: KtimeNs, reason: StopReason) -> Result<(), SourceError> {
        self.places.finish(LAST_PATIENCE, &mut self.out);
        self.stacks
            .finish(LAST_PATIENCE, &mut self.places, &mut self.out);
        self.pythons.drain(&mut self.out);
        // However short they have lived.
        self.look_at_newcomers(KtimeNs(u64::MAX));
        self.allocs.finish(
            own::now(),
            self.probes.alloc.as_mut(),
            &mut self.places,
            &mut self.out,
        );
        let resident = self.resident();
        let job = Job {
            resident: &resident,
            ran_ns: self.ran_ns,
        };
        self.pressure
            .last(own::now(), job, &mut self.outsiders, &mut self.out);
        self.fault_edge(at);
        let job: BTreeSet<u32> = self.alive.values().copied().collect();
        self.gpus.finish(&job, &mut self.out);
        let hidden = self.turns.hidden(own::now());
        let helpers_ns = self.helpers_ns().all();
        self.out.extend(self.cost.sample(hidden, helpers_ns));
        // Of those that are still there: their numbers may be others' by now.
        self.frameworks(self.leading().intersection(&job).copied());
        for (tid, call) in self.probes.gpu_calls_under_way() {
            if self.members.contains(&tid) {
                self.out.extend(gpu_call_under_way(tid, &call, at));
            }
        }
        let threads = self
            .threads
            .iter()
            .map(|(tid, state)| open_thread(*tid, state, at))
            .collect();
        self.out.push(Record::Stop(Stop {
            at,
            reason,
            threads,
        }));
        Ok(())
    }

    /// Measures once what no clock sample shows of page faults, where these were so many that it matters.
    pub(super) fn fault_edge(&mut self, at: KtimeNs) {
        let watched_ns = at.since(self.begun) as f64;
        if self.edge_is_told || (self.all_faults as f64) < watched_ns * FAULTS_THAT_MATTER {
            return;
        }
        // Where the one that was opened while we might is closed, the kernel may still allow another (kernel.perf_event_paranoid).
        let held = self.probes.fault_edge.take();
        let edge = held.map_or_else(FaultEdge::open, Ok);
        match edge.and_then(|edge| edge.measure()) {
            Ok(Some(ns)) => {
                self.edge_is_told = true;
                self.out.push(Record::FaultEdge { ns });
            }
            Ok(None) => tracing::info!("a clock of our own was stopped"),
            Err(error) => tracing::info!(%error, "a clock of our own did not run"),
        }
    }
}

fn open_thread(tid: u32, state: &ThreadState, at: KtimeNs) -> OpenThread {
    let counters = scan::counters(state.tgid, tid).map(|total| Counters {
        minor_faults: total.minor_faults.saturating_sub(state.base.min_flt),
        major_faults: total.major_faults.saturating_sub(state.base.maj_flt),
        storage_read_bytes: total
            .storage_read_bytes
            .saturating_sub(state.base.read_bytes),
        storage_write_bytes: total
            .storage_write_bytes
            .saturating_sub(state.base.write_bytes),
    });
    OpenThread {
        pid: state.tgid,
        tid,
        followed_since: KtimeNs(state.followed_since),
        name: comm(state.tgid, tid).unwrap_or_default(),
        totals: totals(tid, state, at),
        state: state.state as u8,
        since: KtimeNs(state.since),
        nr: state.nr,
        object: object_fact(&state.object),
        counters,
    }
}
