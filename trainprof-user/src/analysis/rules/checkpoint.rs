//! Writes, fsync and rename of state between steps.

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::Checkpoint;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let bursts = &look.trainer.checkpoints;
        let longest = bursts.iter().map(|(from, to)| to - from).max().unwrap_or(0) as f64 / 1e9;
        evidence.insert("count", json!(bursts.len()));
        evidence.insert("longest_s", rounded(longest));
        let between = bursts
            .windows(2)
            .map(|pair| (pair[1].0 - pair[0].0) as f64 / 1e9)
            .sum::<f64>()
            / (bursts.len().max(2) - 1) as f64;
        let places = look.places(KIND);
        let to = if places.is_empty() {
            String::new()
        } else {
            format!(" to {}", words::list(&places))
        };
        let how_often = if bursts.len() >= 2 {
            format!(
                " {} times, every {}, up to {} each",
                bursts.len(),
                words::time(between),
                words::time(longest)
            )
        } else {
            String::new()
        };
        (
            format!("the trainer stood still to write state{to}{how_often}"),
            "write it in the background (copy to memory, then a thread or process), less often, or to faster storage".to_owned(),
        )
    })
}
