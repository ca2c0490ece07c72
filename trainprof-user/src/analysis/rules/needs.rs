//! What a rule rests on: where that was not seen, finding nothing means nothing.

use super::Look;
use crate::{
    analysis::{
        Kind,
        confidence::{SAMPLES, SHED_SAMPLES, STACKS, given_up},
        walk::What,
    },
    env::FILE_OPERATIONS,
    session::Session,
};

/// Threads that ran for a smaller share (0–1) of the walked time without samples hide no cause that is worth a finding.
const UNSAMPLED: f64 = 0.2;
/// Wanting a CPU for less than this share is no loss, whoever had it.
const WANTED: f64 = 0.07;
/// Waiting for other ranks for less is no imbalance that is worth a finding.
const FOR_RANKS: f64 = 0.15;
/// Fewer stacks say nothing.
const MIN_STACKS: usize = 25;
/// Readings of a quota between which it may have been hit.
const READINGS: usize = 2;

/// Whether a rule is about something that this job does not have: then it has not got that trouble either.
pub(super) fn is_pointless(look: &Look, kind: &str) -> bool {
    match kind {
        "h2d-copy" | "gpu-memory-growth" | "gpu-shared" => !look.trainer.gpu_use.used,
        "host-compute" => !look.trainer.gpu_use.used && !may_do_other_work(look),
        _ => false,
    }
}

/// What a rule that found nothing lacked; `None`: it could have found it.
pub(super) fn lack(look: &Look, kind: &str) -> Option<String> {
    let gpu = &look.trainer.gpu_use;
    match kind {
        "host-compute" if !gpu.used => (!has_stacks(look)).then(|| {
            missing(look.session, STACKS).unwrap_or_else(|| {
                "too few stacks of Python code tell what the trainer does".to_owned()
            })
        }),
        "host-compute" => gpu.unseen().then(|| gpu.why()),
        "h2d-copy" => (gpu.used && !gpu.called).then(|| gpu.why_no_calls()),
        "allocation-churn" => unsampled(look),
        "input-cpu" => {
            let alone = look.trainer.cast.producers.is_empty();
            (alone && !has_stacks(look))
                .then(|| unsampled(look))
                .flatten()
        }
        "cpu-throttled" => (wanted_cpu(look) >= WANTED)
            .then(|| unreadable_quota(look.session))
            .flatten(),
        "rank-imbalance" => {
            let alone = look.analysis.others.is_empty();
            (alone && look.wall_share(Kind::Communication) >= FOR_RANKS).then(|| {
                "the ranks that it waits for are not watched: attach to what started them all"
                    .to_owned()
            })
        }
        "storage-io" | "small-files" | "network-io" | "checkpoint" => {
            missing(look.session, FILE_OPERATIONS)
        }
        _ => None,
    }
}

/// Why something is missing.
fn missing(session: &Session, name: &str) -> Option<String> {
    let mut missing = session.missing.iter();
    let (what, reason) = missing.find(|(what, _)| what == name)?;
    Some(format!("{what} is missing: {reason}"))
}

/// Whether a trainer runs Python code, which may be for other things than its model, and has others make its input.
fn may_do_other_work(look: &Look) -> bool {
    let cast = &look.trainer.cast;
    let process = look.session.processes.get(&cast.trainer);
    let loaded = process.and_then(|process| process.seen.frameworks.as_ref());
    !cast.producers.is_empty() && loaded.is_some_and(|loaded| loaded.python.is_some())
}

/// Whether stacks of the trainer's code tell what it does.
fn has_stacks(look: &Look) -> bool {
    let samples = look.facts.python_samples(look.trainer.cast.trainer);
    samples.len() >= MIN_STACKS
}

/// Why what threads ran for is not known.
fn unsampled(look: &Look) -> Option<String> {
    if look.trainer.unsampled < UNSAMPLED {
        return None;
    }
    Some(missing(look.session, SAMPLES).unwrap_or_else(|| {
        if given_up(look.session, SHED_SAMPLES) {
            "samples of what runs were given up to keep to the budget: raise --overhead-budget"
        } else {
            "too few samples tell what ran"
        }
        .to_owned()
    }))
}

/// Share (0–1) of the walked time in which a thread wanted a CPU.
fn wanted_cpu(look: &Look) -> f64 {
    let leaves = look.trainer.walked.leaves.iter();
    let wanted = leaves.filter(|(leaf, _)| matches!(leaf.what, What::Runnable { .. }));
    wanted.map(|(_, spent)| spent.ns).sum::<f64>() / look.trainer.wall.max(1.0)
}

/// Why a quota, if there is one, could not be told.
fn unreadable_quota(session: &Session) -> Option<String> {
    let mut read = session.host.quotas.values();
    if read.any(|series| series.len() >= READINGS) {
        return None;
    }
    let mut processes = session.processes.values();
    let facts = processes.find_map(|process| process.seen.facts.as_ref())?;
    match &facts.cgroup {
        Some(group) => group
            .cpu_quota
            .map(|_| "how often its quota was hit could not be read (cpu.stat)".to_owned()),
        None => Some("its control group could not be read".to_owned()),
    }
}
