//! Waiting for another rank.

use serde_json::json;

use super::{Answer, Look, look::seconds};
use crate::{
    analysis::{Kind, Share, words::percent},
    session::Id,
};

const KIND: Kind = Kind::Communication;
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
        let by_exchange = look.top(KIND, |share| Some(is_exchange(share)));
        let sum = |of: bool| -> f64 {
            let those = by_exchange.iter().filter(|(exchange, _)| *exchange == of);
            those.map(|(_, ns)| ns).sum()
        };
        evidence.insert("exchanging_s", seconds(sum(true)));
        // Who is waited for beside that may be a rank elsewhere, of which nothing is known.
        if sum(true) > sum(false) {
            return (
                "the time goes into the exchange itself, which threads of the ranks copy, add up and send with CPU time: no rank is late".to_owned(),
                "exchange less, or less often: gradients of large tables as sparse ones or by their touched rows, accumulated over more batches, in half precision; or let it run beside the backward pass (DistributedDataParallel with buckets)".to_owned(),
            );
        }
        let late = look.top(KIND, |share| {
            let rank = share.detail.rank;
            (!is_exchange(share) && rank != 0).then_some(rank)
        });
        let Some((guilty, _)) = late.first() else {
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
            match busy_with {
                Some((kind, _)) if *kind != Kind::Compute => format!(
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

/// How many ranks there are, where one works at a time and each waits for the others: each hands on what the next needs. 0: not so.
fn in_turn(look: &Look) -> usize {
    let waiting: Vec<f64> = std::iter::once(look.trainer)
        .chain(&look.analysis.others)
        .filter(|trainer| !trainer.coordinates)
        .map(|trainer| trainer.ns(KIND) / trainer.wall.max(1.0))
        .collect();
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
    use super::are_in_turn;

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
}
