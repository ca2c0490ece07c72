//! Waiting for another rank.

use serde_json::json;

use super::{Answer, Look, look::seconds};
use crate::{
    analysis::{Kind, words::percent},
    session::Id,
};

const KIND: Kind = Kind::Communication;

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
        let Some((guilty, _)) = ranks.first() else {
            return (
                "the trainer waited for ranks that are not on this host or not watched".to_owned(),
                "watch the other ranks too: one of them is late".to_owned(),
            );
        };
        let doing = look.top(KIND, |share| {
            let by_it = share.detail.rank == *guilty;
            share.detail.doing.filter(|kind| by_it && *kind != KIND)
        });
        let total: f64 = doing.iter().map(|(_, ns)| ns).sum();
        let does = doing.first().map_or_else(String::new, |(kind, ns)| {
            evidence.insert("guilty_is_busy_with", json!(kind.name()));
            format!(
                ", which spends {} of that time on {}",
                percent(ns / total.max(1.0)),
                kind.name()
            )
        });
        let process = Id(*guilty);
        evidence.insert("guilty_pid", json!(process));
        (
            format!("the other ranks wait for the rank in process {process}{does}"),
            match doing.first() {
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
