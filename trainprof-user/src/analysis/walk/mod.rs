//! The walk: where the time of a stretch of the step thread's life went, back along wake-ups.
//!
//! Pieces are disjoint and sum to the stretch. A wait that a thread of the job ended on purpose is explained
//! by what that thread did meanwhile, and so on; what nobody of the job ended is explained by what was waited
//! for. After Giraldeau and Dagenais, "Wait analysis of distributed systems using kernel tracing" (2016), and
//! Zhou et al., "wPerf" (OSDI 2018).

mod back;
mod stalls;
mod ways;

use std::collections::BTreeMap;

use super::{
    cast::Cast,
    facts::Facts,
    locks::{Lock, LockId},
};
pub use back::is_served;
use ways::Part;
pub use ways::{Hop, HopKind, Leaf, Piece, Spent, Walked, What};

/// Length of one walk at most, but for watches of days.
const STRETCH_NS: u64 = 1_000_000_000;
/// Walks at most.
const MOST_STRETCHES: u64 = 200_000;

/// Walks for one trainer.
pub struct Walker<'a> {
    pub facts: &'a Facts<'a>,
    pub cast: &'a Cast,
    pub locks: &'a BTreeMap<LockId, Lock>,
    /// How far back a producer's work on one batch reaches at most, ns.
    pub batch_ns: u64,
    stretch_ns: u64,
    steps: u32,
    depth: u32,
    /// What was made for the last stall of each kind that each producer ended.
    batches: BTreeMap<(Hop, u32), stalls::Batch>,
}

impl<'a> Walker<'a> {
    pub fn new(
        facts: &'a Facts<'a>,
        cast: &'a Cast,
        locks: &'a BTreeMap<LockId, Lock>,
        batch_ns: u64,
    ) -> Self {
        Self {
            facts,
            cast,
            locks,
            batch_ns,
            stretch_ns: STRETCH_NS.max(facts.walkable_ns() / MOST_STRETCHES),
            steps: 0,
            depth: 0,
            batches: BTreeMap::new(),
        }
    }

    /// Explains the step thread's time in all spans.
    pub fn explain(&mut self) -> Walked {
        let mut out = Walked::new(&self.cast.brief);
        for (from, to) in self.facts.spans_of(self.cast.step_tid) {
            let end = self.without_cut(from, to);
            out.cut += to - end;
            out.spans.push((from, end));
            self.span(from, end, &mut out);
        }
        out.pieces.sort_by_key(|piece| piece.from);
        out.stalls.sort_unstable();
        out
    }

    /// Explains a producer's time in all spans: work, and being idle.
    pub fn producer(&mut self, tid: u32) -> Walked {
        let mut out = Walked::new(&self.cast.brief);
        for (from, to) in self.facts.spans.clone() {
            let mut end = to;
            while end > from {
                let begin = end.saturating_sub(self.stretch_ns).max(from);
                self.steps = 0;
                let mut parts = Vec::new();
                self.walk(tid, begin, end, &mut Vec::new(), true, &mut parts);
                for part in parts {
                    let (stretch, ns) = (part.window, part.ns);
                    out.add(part, stretch, ns);
                }
                end = begin;
            }
        }
        out
    }

    /// Explains one stretch of the step thread's time.
    fn span(&mut self, from: u64, to: u64, out: &mut Walked) {
        let tid = self.cast.step_tid;
        let mut end = to;
        while end > from {
            self.steps = 0;
            let Some((stall, items)) = self.last_stall(tid, from, end) else {
                self.plain(tid, from, end, out);
                return;
            };
            // Behind the stall, the step thread's own time.
            self.plain(tid, stall.1, end, out);
            self.stall(tid, stall, &items, out);
            end = stall.0;
        }
    }

    /// Time without stalls.
    fn plain(&mut self, tid: u32, from: u64, to: u64, out: &mut Walked) {
        let mut end = to;
        while end > from {
            let begin = end.saturating_sub(self.stretch_ns).max(from);
            self.steps = 0;
            let mut parts = Vec::new();
            self.walk(tid, begin, end, &mut Vec::new(), false, &mut parts);
            for part in parts {
                let (stretch, ns) = (part.window, part.ns);
                out.add(part, stretch, ns);
            }
            end = begin;
        }
    }
}
