//! Ranks that wait for each other unequally: one has more to do.

use serde_json::json;

use super::{Answer, Finding, Look, communication::SAVES};
use crate::{
    analysis::{Kind, words},
    session::Id,
};

/// Difference between the rank that waits most and the one that waits least, as a share of the time.
const MIN_DIFFERENCE: f64 = 0.15;

/// So much (0–1) of that difference is most of it.
const MOSTLY: f64 = 0.5;

pub(super) fn rule(look: &Look) -> Answer {
    let all: Vec<(u32, f64)> = std::iter::once(look.trainer)
        .chain(&look.analysis.others)
        .filter(|trainer| !trainer.coordinates)
        .map(|trainer| {
            (
                trainer.cast.trainer,
                trainer.ns(Kind::Communication) / trainer.wall.max(1.0),
            )
        })
        .collect();
    if all.len() < 2 {
        return Answer::Clear;
    }
    let least = all.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let most = all.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(least), Some(most)) = (least, most) else {
        return Answer::NotEnough("no ranks");
    };
    let difference = most.1 - least.1;
    if difference < MIN_DIFFERENCE {
        return Answer::Clear;
    }
    let mut trainers = std::iter::once(look.trainer).chain(&look.analysis.others);
    let late = trainers.find(|trainer| trainer.cast.trainer == least.0);
    let saving = late.map_or(0.0, |late| late.ns(Kind::Checkpoint) / late.wall.max(1.0));
    // Shared evenly, the work takes each as long as the mean of them now, and not as long as the busiest one.
    let mean = all.iter().map(|(_, share)| share).sum::<f64>() / all.len() as f64;
    let saved = words::percent(mean - least.1);
    Answer::Found(Finding {
        kind: "rank-imbalance",
        share: Some(difference),
        evidence: [(
            "waiting_share",
            all.iter()
                .map(|(pid, share)| json!({"pid": Id(*pid), "share": (share * 1e3).round() / 1e3}))
                .collect(),
        )]
        .into(),
        summary: format!(
            "the rank in process {} waits {} of the time for others, the one in process {} only {}",
            Id(most.0),
            words::percent(most.1),
            Id(least.0),
            words::percent(least.1)
        ),
        advice: if saving >= MOSTLY * difference {
            SAVES.to_owned()
        } else {
            format!(
                "give process {} less work or a faster place: the others wait for it; shared evenly, the work would take up to {saved} less time",
                Id(least.0)
            )
        },
        effect: None,
    })
}
