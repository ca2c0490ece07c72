//! Stalls: waits of the step thread that a producer ended, and what the producers did meanwhile.

use trainprof_common::thread::WakerKind;

use super::{Leaf, Part, Walked, Walker, What};
use crate::analysis::timeline::{Item, line};

/// Two waits of the step thread for the same object with less than this between them are one stall: a batch
/// came that was not the next in order.
const ONE_STALL_NS: u64 = 2_000_000;

/// A stall of at least this share of the time that a batch takes sees it made.
const MOST_OF_BATCH: f64 = 0.7;

/// Of a few waits alike the next one may take so many times as long as the longest.
const LONGER: f64 = 1.5;

/// What was made for two stalls of one producer is much the same where it began and ended as near to each other as this part of the time that
/// a batch takes: many short stalls while one batch is made need one walk.
const MUCH_THE_SAME: u64 = 16;

/// What a producer, and those behind it, did for a batch.
pub(super) struct Batch {
    from: u64,
    to: u64,
    /// Nanoseconds, in all and by leaf.
    total: f64,
    leaves: Vec<(u32, f64)>,
}

impl Walker<'_> {
    /// Where a span ends without a wait for a batch that its end cuts off: who was to end that is not known, and those that were
    /// seen whole tell the same. One that is plainly longer than all of them is another matter. What is waited for may be new: workers
    /// that are made anew hand over in a pipe of their own.
    pub(super) fn without_cut(&self, from: u64, to: u64) -> u64 {
        let items = self.facts.items(self.cast.step_tid);
        let upto = items.partition_point(|item| item.from < to);
        let Some((last, before)) = items[..upto].split_last() else {
            return to;
        };
        let cut = last.woken >= to && last.waker.kind == WakerKind::Unknown as u8;
        let same = |item: &&Item| line(&item.object) == line(&last.object);
        let new = !before.iter().any(|item| same(&item));
        let like = before
            .iter()
            .filter(|item| item.from >= from && self.cast.fed(item) && item.nr == last.nr)
            .filter(|item| same(item) || new && item.object.class == last.object.class)
            .map(|item| item.woken - item.from)
            .max();
        let longest = like.map_or(0.0, |longest| longest as f64 * LONGER);
        if cut && last.woken - last.from <= longest as u64 {
            last.from.max(from)
        } else {
            to
        }
    }

    /// The last stall that ends at or before `end`: waits of the step thread that a producer ended. Several on
    /// one object with hardly any time between are one.
    pub(super) fn last_stall(
        &self,
        tid: u32,
        from: u64,
        end: u64,
    ) -> Option<((u64, u64), Vec<Item>)> {
        let items = self.facts.items(tid);
        let mut at = items.partition_point(|item| item.from < end);
        let mut found: Option<((u64, u64), Vec<Item>)> = None;
        while at > 0 {
            at -= 1;
            let item = &items[at];
            if item.to <= from {
                break;
            }
            match &mut found {
                None => {
                    if self.cast.fed(item) {
                        let stretch = (item.from.max(from), item.woken.min(end));
                        if stretch.1 > stretch.0 {
                            found = Some((stretch, vec![*item]));
                        }
                    }
                }
                Some((stretch, group)) => {
                    let first = &group[group.len() - 1];
                    let again = stretch.0.saturating_sub(item.to) <= ONE_STALL_NS
                        && item.nr == first.nr
                        && line(&item.object) == line(&first.object)
                        && self.cast.fed(item);
                    if !again {
                        break;
                    }
                    stretch.0 = item.from.max(from);
                    group.push(*item);
                }
            }
        }
        found
    }

    /// One stall: explained by what its last waker and those behind it did, in the time that a batch takes.
    pub(super) fn stall(&mut self, tid: u32, stall: (u64, u64), items: &[Item], out: &mut Walked) {
        out.stalls.push(stall);
        let last = items[0];
        let mut hops = vec![self.hop(tid, &last, last.waker.tid)];
        let mut parts = Vec::new();
        // What the step thread itself did between the waits that make up one stall.
        let mut own = 0;
        for pair in items.windows(2) {
            let (later, earlier) = (pair[0], pair[1]);
            own += later.from.saturating_sub(earlier.woken);
            self.walk(
                tid,
                earlier.woken,
                later.from,
                &mut Vec::new(),
                false,
                &mut parts,
            );
        }
        for part in parts.drain(..) {
            let (stretch, ns) = (part.window, part.ns);
            out.add(part, stretch, ns);
        }
        let waited = (stall.1 - stall.0).saturating_sub(own);
        self.walk(
            last.waker.tid,
            stall.0,
            stall.1,
            &mut hops,
            false,
            &mut parts,
        );
        let walked: f64 = parts.iter().map(|part| part.ns).sum();
        if walked <= 0.0 {
            let leaf = self.leaf(&hops, What::Unknown { tid });
            let part = Part {
                leaf,
                window: stall,
                ns: waited as f64,
            };
            out.add(part, stall, waited as f64);
            return;
        }
        let scale = waited as f64 / walked;
        // What the producers did on the way is typical of the stall's end alone: a batch takes longer to make
        // than is waited for it. So their part is told by what they did for the whole batch.
        let mut pooled = Vec::new();
        for part in parts {
            if self.is_busy_producer(&part.leaf) {
                pooled.push(part);
            } else {
                let ns = part.ns * scale;
                out.add(part, stall, ns);
            }
        }
        if pooled.is_empty() {
            return;
        }
        let pooled_ns: f64 = pooled.iter().map(|part| part.ns * scale).sum();
        // Where nearly all of it is waited for, that is what was waited for.
        if (stall.1 - stall.0) as f64 >= MOST_OF_BATCH * self.batch_ns as f64 {
            for part in pooled {
                let ns = part.ns * scale;
                out.add(part, stall, ns);
            }
            return;
        }
        let begin = stall.1.saturating_sub(self.batch_ns).min(stall.0);
        let begin = begin.max(self.span_start(stall.0));
        let way = (hops[0], last.waker.tid);
        let known = self.batches.remove(&way).filter(|batch| {
            let near = |a: u64, b: u64| a.abs_diff(b) <= self.batch_ns / MUCH_THE_SAME;
            near(batch.from, begin) && near(batch.to, stall.1)
        });
        let batch = known.unwrap_or_else(|| {
            let mut parts = Vec::new();
            self.walk(last.waker.tid, begin, stall.1, &mut hops, true, &mut parts);
            // Where a producer stood back for the step thread, that one did not wait for it.
            let stood_back =
                |leaf: &Leaf| matches!(leaf.what, What::Runnable { by, .. } if by == tid);
            parts.retain(|part| self.is_busy_producer(&part.leaf) && !stood_back(&part.leaf));
            let total = parts.iter().map(|part| part.ns).sum();
            let leaves = out.pool(parts);
            Batch {
                from: begin,
                to: stall.1,
                total,
                leaves,
            }
        });
        if batch.leaves.is_empty() {
            for part in pooled {
                let ns = part.ns * scale;
                out.add(part, stall, ns);
            }
        }
        for (leaf, ns) in &batch.leaves {
            out.spend(*leaf, stall, pooled_ns * ns / batch.total);
        }
        self.batches.insert(way, batch);
    }

    fn span_start(&self, at: u64) -> u64 {
        self.facts
            .spans
            .iter()
            .rev()
            .find(|(from, _)| *from <= at)
            .map_or(at, |(from, _)| *from)
    }

    /// Whether a leaf is work of a producer, in whatever form.
    fn is_busy_producer(&self, leaf: &Leaf) -> bool {
        self.cast.makes_batches(leaf.what.tid())
            && !matches!(leaf.what, What::Idle { .. } | What::Absent { .. })
    }
}
