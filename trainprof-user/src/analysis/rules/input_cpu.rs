//! CPU work of the loaders: decode, augment, collate, pickle.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Answer, Look, look::rounded};
use crate::analysis::Kind;

const KIND: Kind = Kind::InputCpu;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let functions = functions(look);
        if !functions.is_empty() {
            evidence.insert("functions", json!(functions));
        }
        let parallel = look.trainer.cast.parallel();
        evidence.insert("workers", json!(parallel));
        let most = functions
            .first()
            .map_or_else(String::new, |name| format!(", most of it in {name}"));
        let summary = if parallel == 0 {
            format!("the trainer makes its batches itself, between its steps{most}")
        } else if !look.behind_producers(KIND) {
            format!("the workers have the CPUs that the trainer wants{most}")
        } else {
            format!("{} are busy computing batches{most}", look.who(KIND))
        };
        let wanted = wanted_workers(look);
        if let Some(wanted) = wanted {
            evidence.insert("workers_needed", rounded(wanted));
        }
        let free = look.free_cpus();
        let cpus = look.trainer.terms.cpus;
        let more = look.let_on_more_cpus(evidence);
        let advice = match wanted {
            Some(wanted) if wanted - parallel as f64 <= look.free_cpus() + 0.5 && wanted > parallel as f64 => format!(
                "raise num_workers to about {:.0}; without this work in the way {}",
                wanted.ceil(),
                look.effect(KIND)
            ),
            _ => format!(
                "{more}make the work on each sample cheaper (decode to the size that is needed, vectorise, do it once and store the result), or move it to the GPU or to more CPUs: of the {cpus:.0} here {free:.1} are free; without it {}",
                look.effect(KIND)
            ),
        };
        (summary, advice)
    })
}

/// Workers that would keep up with the trainer: their work for the time in which the trainer needs a batch.
pub(super) fn wanted_workers(look: &Look) -> Option<f64> {
    let trainer = look.trainer;
    let own = trainer.terms.own;
    if own <= 0.0 {
        return None;
    }
    if trainer.cast.parallel() == 0 {
        let input = trainer.ns(KIND);
        let rest = trainer.wall - input;
        return (rest > 0.0).then(|| (input / rest).max(1.0));
    }
    let busy = trainer.demand.busy - trainer.demand.crowded;
    Some(busy / own)
}

/// Where samples of the producers fell, most first.
fn functions(look: &Look) -> Vec<String> {
    let mut counts = BTreeMap::<u32, usize>::new();
    let mut all = 0;
    let tids: Vec<u32> = if look.trainer.cast.producers.is_empty() {
        vec![look.trainer.cast.step_tid]
    } else {
        look.trainer.cast.producers.iter().copied().collect()
    };
    for tid in tids {
        for sample in look.facts.samples(tid) {
            *counts.entry(sample.place).or_default() += 1;
            all += 1;
        }
    }
    let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(place, n)| (std::cmp::Reverse(*n), *place));
    counts
        .into_iter()
        .filter(|(_, n)| *n * 20 >= all)
        .take(3)
        .filter_map(|(place, _)| {
            let place = look.session.places.get(&place)?;
            match (&place.module, &place.function) {
                (Some(module), Some(function)) => Some(format!("{module}:{function}")),
                (Some(module), None) => Some(module.clone()),
                _ => None,
            }
        })
        .collect()
}
