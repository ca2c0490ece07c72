//! What the producers spent on making batches, all of it, whether or not anybody waited: what limits how fast
//! batches can come.

use std::collections::BTreeMap;

use super::{
    cast::Cast,
    causes::Scene,
    facts::Facts,
    kind::Kind,
    locks::{Lock, LockId},
    walk::{Walked, Walker, What},
};
use crate::session::roles::leading_thread;

/// The producers' time by cause, ns, summed over them.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Not idle.
    pub busy: f64,
    pub by_kind: BTreeMap<Kind, f64>,
    /// Of `by_kind`: time on a CPU.
    pub run_by_kind: BTreeMap<Kind, f64>,
    /// Waiting for a lock that another one held.
    pub locked_out: f64,
    /// Wanting a CPU that another thread of the job had.
    pub crowded: f64,
    /// Producers at work at once, on average while any was there.
    pub parallel: f64,
}

/// Producers that are busy for this part (0–1) of the time never rest.
const RESTLESS: f64 = 0.97;
/// Part (0–1) of the time for which producers are waited for that are not ahead.
const WAITED: f64 = 0.1;

impl Demand {
    /// Whether producers are busy all the `wall` time and the step thread waits for them in what of that is not its `own` (ns): what it does
    /// otherwise costs no batch.
    pub fn never_rest(&self, wall: f64, own: f64) -> bool {
        let waited_for = self.parallel > 0.0 && wall - own >= WAITED * wall;
        waited_for && self.busy - self.crowded >= RESTLESS * self.parallel * wall
    }

    /// The same for a part (0–1) of the time.
    pub fn for_part(mut self, part: f64) -> Self {
        let kinds = self.by_kind.values_mut();
        kinds
            .chain(self.run_by_kind.values_mut())
            .chain([&mut self.busy, &mut self.locked_out, &mut self.crowded])
            .for_each(|ns| *ns *= part);
        self
    }

    /// Counts one cause as part of another one.
    pub fn count_as(&mut self, part: Kind, whole: Kind) {
        self.count_part_as(part, 1.0, whole);
    }

    /// The same of a part (0–1) of it.
    pub fn count_part_as(&mut self, part: Kind, of: f64, whole: Kind) {
        for by_kind in [&mut self.by_kind, &mut self.run_by_kind] {
            let ns = by_kind.get(&part).copied().unwrap_or(0.0) * of;
            if let Some(left) = by_kind.get_mut(&part) {
                *left -= ns;
            }
            *by_kind.entry(whole).or_default() += ns;
        }
    }
}

/// Measures it for one trainer.
pub fn demand(facts: &Facts, cast: &Cast, locks: &BTreeMap<LockId, Lock>, scene: &Scene) -> Demand {
    let session = facts.session;
    let makers: Vec<u32> = if cast.workers.is_empty() {
        cast.loader_threads.iter().copied().collect()
    } else {
        cast.makers
            .iter()
            .filter_map(|pid| Some(leading_thread(session, *pid)?.key.tid))
            .collect()
    };
    let mut out = Demand::default();
    let mut there = 0.0;
    for tid in makers {
        let mut walker = Walker::new(facts, cast, locks, 0);
        let walked = walker.producer(tid);
        let present: f64 = facts
            .spans
            .iter()
            .map(|(from, to)| {
                session.thread(tid).map_or(0, |thread| {
                    let upper = thread.until.map_or(*to, |until| until.0.min(*to));
                    upper.saturating_sub(thread.key.since.0.max(*from))
                }) as f64
            })
            .sum();
        there += present;
        count(scene, &walked, &mut out);
    }
    out.parallel = there / facts.walkable_ns().max(1) as f64;
    out
}

fn count(scene: &Scene, walked: &Walked, out: &mut Demand) {
    for share in scene.shares(walked) {
        let leaf = &walked.leaves[share.leaf as usize].0;
        if matches!(leaf.what, What::Idle { .. } | What::Absent { .. }) {
            continue;
        }
        out.busy += share.ns;
        if matches!(leaf.what, What::Runnable { .. })
            && share.kind != Kind::CpuContention
            && share.kind != Kind::CpuThrottled
        {
            out.crowded += share.ns;
            continue;
        }
        if share.kind == Kind::Serialization && !leaf.hops.is_empty() {
            out.locked_out += share.ns;
        }
        *out.by_kind.entry(share.kind).or_default() += share.ns;
        if matches!(leaf.what, What::Run { .. }) {
            *out.run_by_kind.entry(share.kind).or_default() += share.ns;
        }
    }
}
