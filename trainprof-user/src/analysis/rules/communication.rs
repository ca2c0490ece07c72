//! Waiting for another rank.

use serde_json::json;

use super::{
    Answer, Look,
    late_rank::more_of,
    look::{self, seconds},
};
use crate::{
    analysis::{Kind, Share, words::percent},
    session::Id,
};

const KIND: Kind = Kind::Communication;
/// A rank that waits for less than this part (0–1) of what another one does is late.
const ALIKE: f64 = 0.6;
/// What helps where the exchange itself is what takes long.
const LESS: &str = "exchange less, or less often: gradients of large tables as sparse ones or by their touched rows, accumulated over more batches (no_sync()), in half precision";
/// What helps where one rank saves for all of them: that cannot be shared evenly.
pub(super) const SAVES: &str = "save less often, or let that rank go on meanwhile: hand a copy of the state to a thread or process that writes it (torch.distributed.checkpoint.async_save); or let each rank write its own part";
/// What takes less of a rank's time (0–1) than this is not told beside what takes most.
const GOOD_PART: f64 = 0.3;
/// Of the time that all ranks but one have, between these parts is waited when one works at a time: less where several do, more where none
/// does, as while what they exchange is on its way.
const IN_TURN: std::ops::RangeInclusive<f64> = 0.8..=1.1;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let ranks = look.top(KIND, |share| {
            (share.detail.rank != 0).then_some(share.detail.rank)
        });
        evidence.insert(
            "waited_for",
            ranks
                .iter()
                .take(8)
                .map(|(pid, ns)| json!({"pid": Id(*pid), "seconds": seconds(*ns)}))
                .collect(),
        );
        let is_exchange = |share: &Share| share.detail.doing == Some(KIND);
        let by_what = look.top(KIND, |share| Some(what(share)));
        let sum = |of: What| -> f64 {
            let those = by_what.iter().filter(|(what, _)| *what == of);
            those.map(|(_, ns)| ns).sum()
        };
        let (exchange, rank, nobody) = (sum(What::Exchange), sum(What::Rank), sum(What::Nobody));
        evidence.insert("exchanging_s", seconds(exchange));
        // Who is waited for beside that may be a rank elsewhere, of which nothing is known.
        if exchange > rank + nobody {
            return (
                "the time goes into the exchange itself, which threads of the ranks copy, add up and send with CPU time: no rank is late".to_owned(),
                format!("{LESS}; or let it run beside the backward pass (DistributedDataParallel with buckets)"),
            );
        }
        if nobody > 2.0 * rank && nobody > exchange && all_wait_alike(&waiting(look)) {
            evidence.insert("on_its_way_s", seconds(nobody));
            return (
                "all ranks that are watched wait for about as long, and not for each other's work: what they exchange is on its way, as long as what connects them takes for it (or a rank elsewhere is late)".to_owned(),
                format!("{LESS}; or connect the ranks by something faster (check which interface they use: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME); where there are ranks elsewhere, watch these too: one of them may be late"),
            );
        }
        let late = look.top(KIND, |share| {
            let rank = share.detail.rank;
            (!is_exchange(share) && rank != 0).then_some(rank)
        });
        let Some((guilty, waited)) = late.first() else {
            return (
                "the trainer waited for ranks that are not on this host or not watched".to_owned(),
                "watch the other ranks too: one of them is late".to_owned(),
            );
        };
        let doing = look.top(KIND, |share| {
            let by_it = share.detail.rank == *guilty;
            share.detail.doing.filter(|kind| by_it && *kind != KIND)
        });
        let total: f64 = doing.iter().map(|(_, ns)| ns).sum::<f64>().max(1.0);
        // All ranks compute: what else takes a good part of its time is what the others need not do.
        let other = |(kind, ns): &&(Kind, f64)| *kind != Kind::Compute && *ns >= GOOD_PART * total;
        let busy_with = doing.iter().find(other).or(doing.first());
        if let Some((kind, _)) = busy_with {
            evidence.insert("guilty_is_busy_with", json!(kind.name()));
        }
        let told: Vec<String> = doing
            .iter()
            .enumerate()
            .filter(|(at, (_, ns))| *at == 0 || *at == 1 && *ns >= GOOD_PART * total)
            .map(|(_, (kind, ns))| format!("{} of that time on {}", percent(ns / total), kind.name()))
            .collect();
        let does = if told.is_empty() {
            String::new()
        } else {
            format!(", which spends {}", told.join(" and "))
        };
        let process = Id(*guilty);
        evidence.insert("guilty_pid", json!(process));
        let more = more_of(look, *guilty, *waited);
        let only_computes = doing.iter().take(told.len()).all(|(kind, _)| *kind == Kind::Compute);
        let does = match &more {
            Some((place, ns)) => {
                evidence.insert("guilty_runs", look::python(place));
                let share = percent(ns / look.trainer.wall);
                let (does, which) = if only_computes {
                    (String::new(), ", which")
                } else {
                    (does, "; it")
                };
                format!("{does}{which} is in {} for {share} of the time more than they are", place.name())
            }
            None => does,
        };
        let ranks = in_turn(look);
        if ranks > 0 {
            evidence.insert("in_turn", json!(ranks));
            return (
                format!("the {ranks} ranks work in turn: while one does, the others wait for what it hands on"),
                "let them work at the same time: split each batch into more parts (micro-batches), so that each rank works on one while the next has the one before; or give each rank whole batches of its own".to_owned(),
            );
        }
        (
            format!("the other ranks wait for the rank in process {process}{does}"),
            match (more, busy_with) {
                (_, Some((Kind::Checkpoint, _))) => SAVES.to_owned(),
                (Some((place, _)), _) => format!(
                    "make that rank's work as short as that of the others: {} first, or give each rank as much of it",
                    place.name()
                ),
                (None, Some((kind, _))) if *kind != Kind::Compute => format!(
                    "make that rank's work as short as that of the others, its {} first: attach to process {process} to see what is behind it",
                    kind.name()
                ),
                _ => format!(
                    "make that rank's work as short as that of the others (batches of the same cost for each rank, a CPU or GPU like theirs): attach to process {process} to see what it does"
                ),
            },
        )
    })
}

/// What a rank waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// CPU time of the exchange.
    Exchange,
    /// Another rank, which does something else.
    Rank,
    /// Nobody that is known: what was sent is not there yet, or a rank elsewhere has not sent it.
    Nobody,
}

fn what(share: &Share) -> What {
    match share.detail {
        ref detail if detail.doing == Some(KIND) => What::Exchange,
        ref detail if detail.rank != 0 => What::Rank,
        _ => What::Nobody,
    }
}

/// Which part (0–1) of its time each rank waits for the others.
fn waiting(look: &Look) -> Vec<f64> {
    std::iter::once(look.trainer)
        .chain(&look.analysis.others)
        .filter(|trainer| !trainer.coordinates)
        .map(|trainer| trainer.ns(KIND) / trainer.wall.max(1.0))
        .collect()
}

/// Whether several ranks wait, and none of them for much less of its time than the others: a late one would.
fn all_wait_alike(waiting: &[f64]) -> bool {
    let most = waiting.iter().copied().fold(0.0, f64::max);
    waiting.len() >= 2 && waiting.iter().all(|share| *share >= ALIKE * most)
}

/// How many ranks there are, where one works at a time and each waits for the others: each hands on what the next needs. 0: not so.
fn in_turn(look: &Look) -> usize {
    let waiting = waiting(look);
    if are_in_turn(&waiting) {
        waiting.len()
    } else {
        0
    }
}

/// `waiting`: which part (0–1) of its time each rank waits for the others.
fn are_in_turn(waiting: &[f64]) -> bool {
    let ranks = waiting.len();
    let others = ranks.saturating_sub(1) as f64;
    // Of as many as wait for a late one, that one never waits.
    let least = 0.5 * others / ranks as f64;
    ranks >= 2
        && waiting.iter().all(|share| *share >= least)
        && IN_TURN.contains(&(waiting.iter().sum::<f64>() / others))
}

#[cfg(test)]
mod tests {
    use super::{all_wait_alike, are_in_turn};

    #[test]
    fn ranks_work_in_turn_where_all_but_one_wait_at_any_time() {
        for waiting in [&[0.5, 0.5][..], &[0.6, 0.37], &[0.65, 0.68, 0.66]] {
            assert!(are_in_turn(waiting), "{waiting:?}");
        }
        // Nobody else; one that the other waits for; all wait at once; both work most of the time; one of three is late.
        for waiting in [
            &[0.9][..],
            &[0.9, 0.02],
            &[0.7, 0.7],
            &[0.3, 0.35],
            &[0.9, 0.9, 0.05],
        ] {
            assert!(!are_in_turn(waiting), "{waiting:?}");
        }
    }

    #[test]
    fn no_rank_is_late_where_all_wait_alike() {
        for waiting in [&[0.7, 0.7][..], &[0.9, 0.9, 0.6], &[0.85; 8], &[0.4; 16]] {
            assert!(all_wait_alike(waiting), "{waiting:?}");
        }
        // One is late; one is alone; none is there.
        for waiting in [
            &[0.9, 0.02][..],
            &[0.6, 0.25],
            &[0.9, 0.9, 0.05],
            &[0.9],
            &[],
        ] {
            assert!(!all_wait_alike(waiting), "{waiting:?}");
        }
    }
}
