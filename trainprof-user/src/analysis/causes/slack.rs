//! Wanting a CPU while another rank works on: who waits for that rank afterwards had time.
//!
//! The walk comes back to the step thread where it began to wait for a rank, and finds it without a CPU before that. Had it had one, it
//! would have waited for longer. So of that time, as much as the other rank ran for longer than the step thread itself did meanwhile
//! is waiting for it, where it was that rank that had the CPU. Somebody else who had it would want it from both, were they alike: half of the
//! difference would then be the other rank's.

use std::collections::BTreeMap;

use trainprof_common::thread::NR_PREEMPTED;

use crate::{
    analysis::{
        cast::Cast,
        facts::Facts,
        walk::{HopKind, Walked},
    },
    session::roles::leading_thread,
};

/// Time of a step thread without a CPU that was waiting for a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slack {
    /// The process of the rank.
    pub rank: u32,
    /// Share (0–1) of all its time without a CPU.
    pub share: f64,
}

/// Nanoseconds that a thread ran, and wanted a CPU; of these such in which the rank had it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    ran: u64,
    wanted: u64,
    taken: u64,
}

impl Slack {
    pub fn new(facts: &Facts, cast: &Cast, walked: &Walked) -> Option<Self> {
        if cast.ranks.is_empty() {
            return None;
        }
        let mut by_rank = BTreeMap::<u32, f64>::new();
        let mut since = facts.spans.first()?.0;
        for (from, to, rank) in waits(facts, walked) {
            if from > since
                && let Some(thread) = leading_thread(facts.session, rank)
            {
                let own = spent(facts, cast.step_tid, since, from, rank);
                let theirs = spent(facts, thread.key.tid, since, from, rank);
                let longer = theirs.ran.saturating_sub(own.ran);
                let taken = longer.min(own.taken);
                let shared = (longer - taken) / 2;
                *by_rank.entry(rank).or_default() += (taken + shared).min(own.wanted) as f64;
            }
            since = since.max(to);
        }
        let slack: f64 = by_rank.values().sum();
        let (rank, _) = by_rank.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let wanted: u64 = facts
            .items(cast.step_tid)
            .iter()
            .map(|item| item.to - item.woken)
            .sum();
        Some(Self {
            rank,
            share: (slack / (wanted as f64).max(1.0)).min(1.0),
        })
    }
}

/// Waits for other ranks, in order: from, to, the rank.
fn waits(facts: &Facts, walked: &Walked) -> Vec<(u64, u64, u32)> {
    let rank = |leaf: u32| {
        let (leaf, _) = &walked.leaves[leaf as usize];
        let at = leaf.hops.iter().position(|hop| hop.how == HopKind::Rank)?;
        let next = leaf.hops.get(at + 1).map_or(leaf.what.tid(), |hop| hop.tid);
        facts.pid(next)
    };
    let mut out: Vec<(u64, u64, u32)> = walked
        .pieces
        .iter()
        .filter_map(|piece| Some((piece.from, piece.to, rank(piece.leaf)?)))
        .collect();
    out.sort_unstable();
    out
}

/// What a thread did between two times.
fn spent(facts: &Facts, tid: u32, from: u64, to: u64, rank: u32) -> Spent {
    let items = facts.items(tid);
    let first = items.partition_point(|item| item.to <= from);
    let inside = |a: u64, b: u64| b.min(to).saturating_sub(a.max(from));
    let mut out = Spent {
        ran: to - from,
        wanted: 0,
        taken: 0,
    };
    for item in items[first..].iter().take_while(|item| item.from < to) {
        let begin = if item.nr == NR_PREEMPTED {
            item.from
        } else {
            item.woken
        };
        let wanted = inside(begin, item.to);
        out.wanted += wanted;
        if facts.pid(item.ran_before) == Some(rank) {
            out.taken += wanted;
        }
        out.ran = out.ran.saturating_sub(inside(item.from, item.to));
    }
    out
}
