//! Waiting for another rank.

use serde_json::json;

use super::{Answer, Look, look::seconds};
use crate::analysis::Kind;

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
                .map(|(pid, ns)| json!({"pid": pid, "seconds": seconds(*ns)}))
                .collect(),
        );
        let Some((guilty, _)) = ranks.first() else {
            return (
                "the trainer waited for ranks that are not on this host or not watched".to_owned(),
                format!(
                    "watch the other ranks too: one of them is late; if none waits any more, {}",
                    look.effect(KIND)
                ),
            );
        };
        let does = look
            .analysis
            .others
            .iter()
            .find(|other| other.cast.trainer == *guilty)
            .and_then(|other| {
                other
                    .by_kind()
                    .into_iter()
                    .filter(|(kind, _)| *kind != KIND)
                    .max_by(|a, b| a.1.total_cmp(&b.1))
            })
            .map_or_else(String::new, |(kind, ns)| {
                evidence.insert("guilty_is_busy_with", json!(kind.name()));
                format!(
                    ", which spends {} of its time on {}",
                    crate::analysis::words::percent(ns / look.trainer.wall),
                    kind.name()
                )
            });
        evidence.insert("guilty_pid", json!(guilty));
        (
            format!("the other ranks wait for the rank in process {guilty}{does}"),
            format!(
                "make that rank's work as short as that of the others; if none waited for it {}",
                look.effect(KIND)
            ),
        )
    })
}
