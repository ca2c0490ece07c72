//! The verdict: the one cause that bounds the step, or that it cannot be told.

use std::collections::BTreeMap;

use trainprof_common::op::Class;

use super::{
    Analysis, Finding, Kind, Trainer,
    causes::outsider,
    rules::clip,
    running::{Call, call},
    walk::What,
    words,
};
use crate::record::fact::ObjectFact;
use crate::session::{Session, kind::syscall_name, roles::is_ancestor};

/// A cause that can be fixed is the verdict from this share of the wall time on; a smaller one is a finding
/// beside `compute`.
const MIN_SHARE: f64 = 0.15;
/// Every program allocates: that is the verdict from this share on.
const MIN_CHURN: f64 = 0.2;
/// A job that uses less than this share of one CPU does nothing.
const HANGS: f64 = 0.01;
/// Computing is the verdict from this share of the wall time on.
const MIN_COMPUTE: f64 = 0.5;
/// As long as no more than this part of it went to what cannot be told: that might be what could be fixed.
const MOST_BLURRED: f64 = 0.5;
/// Seconds of walking, or steps, that make a verdict.
const ENOUGH_S: f64 = 10.0;
const ENOUGH_STEPS: f64 = 20.0;
/// Least of either.
const MIN_S: f64 = 2.0;
/// How sure it is that work between what a framework computes makes batches, where nothing else tells: it might collect garbage.
const GUESSED: f64 = 0.6;
/// A verdict that is surer than this is one.
const MIN_CONFIDENCE: f64 = 0.3;
/// A bound below this is told as next to nothing.
const HARDLY: f64 = 1.02;
/// Stretches of the watch whose shares are compared.
const PARTS: usize = 10;

/// What bounds the job.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Name of a [`Kind`], or `inconclusive`.
    pub bottleneck: &'static str,
    /// Share (0–1) of what `share_of` says; `None` when inconclusive.
    pub share: Option<f64>,
    /// `trainer-wall-time`, `gpu-idle-time`, or `gpu-time` for computing on a GPU that is sampled.
    pub share_of: &'static str,
    /// How much faster the job could be without it, at most; `None` when not bounded or inconclusive.
    pub speedup_bound: Option<f64>,
    pub summary: String,
    /// 0–1.
    pub confidence: f64,
}

/// Judges one trainer.
pub fn verdict(session: &Session, analysis: &Analysis, trainer: &Trainer) -> Verdict {
    let by_gpu = trainer.idle.seen_s > 0.0;
    let mut shares = wall_shares(trainer, by_gpu);
    // Making workers is work of the input side.
    if let Some(start) = shares.remove(&Kind::WorkerStart) {
        *shares.entry(Kind::InputCpu).or_default() += start;
    }
    let of = |kind: Kind| shares.get(&kind).copied().unwrap_or(0.0);
    let busy_gpu = if by_gpu {
        1.0 - trainer.idle.idle_s / trainer.idle.seen_s
    } else {
        0.0
    };
    let compute = of(Kind::Compute).max(busy_gpu);
    let blurred: f64 = [
        Kind::Unknown,
        Kind::Sleep,
        Kind::Stopped,
        Kind::Helper,
        Kind::NotAsked,
        Kind::WorkerStart,
    ]
    .into_iter()
    .map(of)
    .sum();
    let mut fixable: Vec<(Kind, f64)> = shares
        .iter()
        .filter(|(kind, _)| kind.can_be_fixed())
        .map(|(kind, share)| (*kind, *share))
        .collect();
    fixable.sort_by(|a, b| b.1.total_cmp(&a.1));
    let seen = trainer.wall / 1e9;
    if seen < MIN_S {
        return inconclusive(
            by_gpu,
            0.0,
            format!(
                "only {} were seen; watch for ten seconds or more",
                words::time(seen)
            ),
        );
    }
    let mut likely = fixable
        .iter()
        .filter(|(kind, share)| *kind != Kind::AllocationChurn || *share >= MIN_CHURN)
        .copied();
    let first = likely.next();
    let second = likely.next().map_or(0.0, |(_, share)| share);
    let (kind, share, rival) = match first {
        Some((kind, share)) if share >= MIN_SHARE && share >= blurred => (kind, share, second),
        Some((_, share)) if share >= MIN_SHARE => {
            return inconclusive(
                by_gpu,
                0.2,
                blurred_words(session, trainer, &shares, blurred),
            );
        }
        _ if compute >= MIN_COMPUTE && blurred <= MOST_BLURRED * compute => {
            (Kind::Compute, compute, first.map_or(0.0, |f| f.1))
        }
        _ => {
            return inconclusive(
                by_gpu,
                0.2,
                blurred_words(session, trainer, &shares, blurred),
            );
        }
    };
    let confidence = confidence(session, trainer, kind, share, rival, blurred, by_gpu);
    if confidence < MIN_CONFIDENCE {
        return inconclusive(
            by_gpu,
            confidence,
            format!(
                "{} looks likely ({} of the time), but not surely: watch longer",
                kind.name(),
                words::percent(share)
            ),
        );
    }
    let found = |kind: Kind| {
        let mut findings = analysis.findings.iter();
        findings.find(|finding| finding.kind == kind.name())
    };
    let bound = if kind == Kind::Compute {
        // Everything but computing can be gone at best, and so can each cause that was found.
        let causes = fixable.iter().filter(|(kind, _)| found(*kind).is_some());
        causes
            .map(|(kind, _)| trainer.bound(*kind))
            .filter(|bound| bound.is_finite())
            .fold(1.0 / share.max(0.01), f64::max)
    } else {
        trainer.bound(kind)
    };
    let finding = found(kind);
    Verdict {
        bottleneck: kind.name(),
        share: Some(if by_gpu && kind != Kind::Compute {
            share * trainer.idle.seen_s / trainer.idle.idle_s.max(1e-9)
        } else {
            share
        }),
        share_of: if by_gpu && kind == Kind::Compute {
            "gpu-time"
        } else {
            share_of(by_gpu)
        },
        speedup_bound: bound.is_finite().then_some(bound),
        summary: summary(trainer, kind, share, bound, finding, by_gpu),
        confidence,
    }
}

fn share_of(by_gpu: bool) -> &'static str {
    if by_gpu {
        "gpu-idle-time"
    } else {
        "trainer-wall-time"
    }
}

/// Shares of the wall time by cause; where a GPU is sampled, only what it idled for.
fn wall_shares(trainer: &Trainer, by_gpu: bool) -> BTreeMap<Kind, f64> {
    if by_gpu {
        trainer
            .idle
            .by_kind
            .iter()
            .map(|(kind, s)| (*kind, s / trainer.idle.seen_s))
            .collect()
    } else {
        trainer
            .by_kind()
            .into_iter()
            .map(|(kind, ns)| (kind, ns / trainer.wall.max(1.0)))
            .collect()
    }
}

fn inconclusive(by_gpu: bool, confidence: f64, summary: String) -> Verdict {
    Verdict {
        bottleneck: "inconclusive",
        share: None,
        share_of: share_of(by_gpu),
        speedup_bound: None,
        summary: format!("inconclusive: {summary}"),
        confidence,
    }
}

/// What is in the way of a verdict: who spends most of the time on what says nothing, and what would say more.
fn blurred_words(
    session: &Session,
    trainer: &Trainer,
    shares: &BTreeMap<Kind, f64>,
    blurred: f64,
) -> String {
    let most = [
        (
            Kind::Unknown,
            "in waits that could not be followed to a cause",
        ),
        (
            Kind::Sleep,
            "sleeping of its own accord (a rate limit, a back-off, a loop that polls)",
        ),
        (Kind::Stopped, "stopped"),
        (Kind::Helper, "waiting for a process of its own"),
        (
            Kind::NotAsked,
            "waiting for producers that had been asked for nothing",
        ),
        (Kind::Compute, "computing"),
    ]
    .into_iter()
    // Of much that cannot be told the largest part is told, not the computing beside it.
    .filter(|(kind, _)| *kind != Kind::Compute || blurred < MIN_SHARE)
    .map(|(kind, words)| (shares.get(&kind).copied().unwrap_or(0.0), kind, words))
    .max_by(|a, b| a.0.total_cmp(&b.0));
    // Without a GPU in use, that none is seen is no lack.
    let missing = session
        .missing
        .iter()
        .find(|(what, _)| what.as_str() != "gpu" || trainer.gpu_calls)
        .map(|(what, reason)| format!("; {what} is missing: {reason}"))
        .unwrap_or_default();
    let Some((share, kind, words)) = most else {
        return format!("no cause stands out{missing}");
    };
    if kind == Kind::Stopped {
        return stopped(session, trainer, share);
    }
    if kind == Kind::Helper
        && let Some((pid, command)) = foremost(session, trainer, kind)
    {
        return format!(
            "for {} of the time process {} waits until process {pid} ({}){} is done",
            words::percent(share),
            trainer.cast.trainer,
            clip(&command.replace('\n', " "), 80),
            if is_ancestor(session, trainer.cast.trainer, pid) {
                ", which it started,"
            } else {
                ""
            },
        );
    }
    if kind == Kind::Unknown
        && let Some(words) = stranger(session, trainer)
    {
        return words;
    }
    if kind == Kind::Unknown
        && let Some(words) = hang(session, trainer)
    {
        return words;
    }
    let who = match doer(session, trainer, kind) {
        Some(pid) if trainer.cast.workers.contains(&pid) => {
            format!("the trainer waits while worker {pid}, or one like it, spends")
        }
        _ => match foremost_thread(session, trainer, kind) {
            Some(thread) if thread != trainer.cast.step_tid => {
                format!("the trainer waits while thread {thread} of its process spends")
            }
            _ => format!("process {} spends", trainer.cast.trainer),
        },
    };
    let waits = (kind == Kind::Unknown)
        .then(|| longest_wait(trainer))
        .flatten()
        .unwrap_or_default();
    format!(
        "{who} {} of the time {words}{waits}, and no cause stands out{missing}",
        words::percent(share)
    )
}

/// What most of the waits that could not be followed are made in, where that is one call on one thing.
fn longest_wait(trainer: &Trainer) -> Option<String> {
    let mut by_call = BTreeMap::<(i16, ObjectFact), f64>::new();
    let mut all = 0.0;
    for share in trainer
        .shares
        .iter()
        .filter(|share| share.kind == Kind::Unknown)
    {
        all += share.ns;
        if let What::Wait { nr, object, .. } = trainer.walked.leaves[share.leaf as usize].0.what {
            *by_call.entry((nr, object)).or_default() += share.ns;
        }
    }
    let ((nr, object), ns) = by_call.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let on = match Class::try_from(object.class) {
        Ok(Class::Pipe) => format!(" on pipe:[{}]", object.id),
        Ok(Class::Socket) => format!(" on socket:[{}]", object.id),
        _ => String::new(),
    };
    (ns * 2.0 >= all).then(|| format!(", most of it in {}{on}", syscall_name(nr)))
}

/// The thread of the trainer's process that most of a cause's time goes by.
fn foremost_thread(session: &Session, trainer: &Trainer, kind: Kind) -> Option<u32> {
    let mut by_tid = BTreeMap::<u32, f64>::new();
    for share in trainer.shares.iter().filter(|share| share.kind == kind) {
        *by_tid.entry(share.detail.tid).or_default() += share.ns;
    }
    let (tid, _) = by_tid.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let own = session.thread(tid)?.pid == trainer.cast.trainer;
    own.then_some(tid)
}

/// The process that a cause's largest part is told to come from.
fn foremost(session: &Session, trainer: &Trainer, kind: Kind) -> Option<(u32, String)> {
    let of_kind = trainer.shares.iter().filter(|share| share.kind == kind);
    let largest = of_kind.max_by(|a, b| a.ns.total_cmp(&b.ns))?;
    outsider(session, largest.detail.outsider)
}

/// Who was stopped, and who let it go on.
fn stopped(session: &Session, trainer: &Trainer, share: f64) -> String {
    let who = doer(session, trainer, Kind::Stopped).unwrap_or(trainer.cast.trainer);
    let again = foremost(session, trainer, Kind::Stopped)
        .map(|(pid, command)| {
            let command = clip(&command.replace('\n', " "), 80);
            format!("; process {pid} ({command}) let it go on")
        })
        .unwrap_or_default();
    format!(
        "for {} of the time process {who} was stopped, by a signal (SIGSTOP), a debugger or a freezer{again}",
        words::percent(share)
    )
}

/// A job of which nothing runs, and whose trainer waits for what nobody ends.
fn hang(session: &Session, trainer: &Trainer) -> Option<String> {
    let ran: u64 = session.threads.values().map(|thread| thread.run_ns).sum();
    if ran as f64 / 1e9 > HANGS * session.duration_s() {
        return None;
    }
    let of_kind = trainer
        .shares
        .iter()
        .filter(|share| share.kind == Kind::Unknown);
    let most = of_kind.max_by(|a, b| a.ns.total_cmp(&b.ns))?;
    let What::Wait { nr, .. } = trainer.walked.leaves[most.leaf as usize].0.what else {
        return None;
    };
    (most.ns >= 0.9 * trainer.wall).then(|| {
        format!(
            "nothing of the job runs: process {} waits in {} for {}, and nobody ends that; it may hang",
            trainer.cast.trainer,
            syscall_name(nr),
            words::time(trainer.wall / 1e9)
        )
    })
}

/// Waits for a process outside the job, where they are most of what could not be followed to a cause.
fn stranger(session: &Session, trainer: &Trainer) -> Option<String> {
    let mut by_process = BTreeMap::<(u32, String), (f64, f64)>::new();
    let mut all = 0.0;
    for share in trainer
        .shares
        .iter()
        .filter(|share| share.kind == Kind::Unknown)
    {
        all += share.ns;
        if let Some(process) = outsider(session, share.detail.outsider) {
            let (ns, written) = by_process.entry(process).or_default();
            *ns += share.ns;
            if let What::Wait { nr, .. } = trainer.walked.leaves[share.leaf as usize].0.what
                && call(nr) == Call::Write
            {
                *written += share.ns;
            }
        }
    }
    let ((pid, command), (ns, written)) = by_process
        .into_iter()
        .max_by(|a, b| a.1.0.total_cmp(&b.1.0))
        .filter(|(_, (ns, _))| *ns * 2.0 >= all)?;
    let what = if written * 2.0 >= ns {
        "takes what it writes"
    } else {
        "answers"
    };
    Some(format!(
        "for {} of the time process {} waits until process {pid} ({}), outside the job, {what}",
        words::percent(ns / trainer.wall.max(1.0)),
        trainer.cast.trainer,
        clip(&command.replace('\n', " "), 80),
    ))
}

/// The process that most of a cause's time goes by.
fn doer(session: &Session, trainer: &Trainer, kind: Kind) -> Option<u32> {
    let mut by_pid = BTreeMap::<u32, f64>::new();
    for share in trainer.shares.iter().filter(|share| share.kind == kind) {
        if let Some(thread) = session.thread(share.detail.tid) {
            *by_pid.entry(thread.pid).or_default() += share.ns;
        }
    }
    by_pid
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(pid, _)| pid)
}

/// From how much was explained, for how long, how evenly over time, and how far ahead of the next cause.
fn confidence(
    session: &Session,
    trainer: &Trainer,
    kind: Kind,
    share: f64,
    rival: f64,
    blurred: f64,
    by_gpu: bool,
) -> f64 {
    let seconds = trainer.wall / 1e9 / ENOUGH_S;
    let steps = trainer
        .steps
        .as_ref()
        .map_or(0.0, |steps| steps.spans.len() as f64 / ENOUGH_STEPS);
    let enough = seconds.max(steps).min(1.0).sqrt();
    let explained = (1.0 - blurred).clamp(0.0, 1.0);
    let ahead = if kind == Kind::Compute {
        ((share - rival) / share.max(0.01)).clamp(0.0, 1.0)
    } else {
        (0.5 + (share - rival) / share.max(0.01)).clamp(0.0, 1.0)
    };
    let lost: u64 = session.lost.values().sum::<u64>() + session.undecodable;
    let kept = 1.0 - lost as f64 / (session.facts + lost).max(1) as f64;
    let uncertain = if by_gpu {
        1.0 - 0.5 * (trainer.idle.uncertain_s / trainer.idle.seen_s.max(1e-9)).min(1.0)
    } else {
        1.0
    };
    let sure = if kind == Kind::InputCpu && trainer.own_batches_guessed {
        GUESSED
    } else {
        1.0
    };
    enough * explained * ahead * kept * uncertain * sure * steadiness(trainer, kind, share)
}

/// How alike the cause's share is in equal parts of the watch: 1 − its standard error relative to itself.
fn steadiness(trainer: &Trainer, kind: Kind, share: f64) -> f64 {
    let pieces = &trainer.walked.pieces;
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return 1.0;
    };
    let width = ((last.to - first.from) / PARTS as u64).max(1);
    let mut sums = [(0.0, 0.0); PARTS];
    for piece in pieces {
        let at = (((piece.from - first.from) / width) as usize).min(PARTS - 1);
        sums[at].1 += piece.ns;
        for (other, part) in &trainer.kinds_of_leaf[piece.leaf as usize] {
            if *other == kind {
                sums[at].0 += piece.ns * part;
            }
        }
    }
    let shares: Vec<f64> = sums
        .iter()
        .filter(|(_, all)| *all > 0.0)
        .map(|(of, all)| of / all)
        .collect();
    let n = shares.len() as f64;
    if n < 3.0 {
        return 0.8;
    }
    let mean = shares.iter().sum::<f64>() / n;
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();
    (1.0 - error / share.max(0.01)).clamp(0.3, 1.0)
}

fn summary(
    trainer: &Trainer,
    kind: Kind,
    share: f64,
    bound: f64,
    finding: Option<&Finding>,
    by_gpu: bool,
) -> String {
    let what = finding.map_or_else(String::new, |finding| finding.summary.clone());
    if kind == Kind::Compute {
        let rest = if bound < HARDLY {
            format!(
                "without all the rest it would gain less than {}",
                words::percent(HARDLY - 1.0)
            )
        } else {
            format!(
                "with all the rest gone the job would be at most {} as fast",
                words::factor(bound)
            )
        };
        return format!(
            "compute: nothing around the model is what holds this job back; {} of the time is {}{}; {rest}",
            words::percent(share),
            if by_gpu || trainer.gpu_calls {
                "work on the GPU"
            } else {
                "the model's own work on the CPU"
            },
            if by_gpu {
                format!(
                    " (the GPU idles {})",
                    words::percent(trainer.idle.idle_s / trainer.idle.seen_s)
                )
            } else {
                String::new()
            },
        );
    }
    let of = if by_gpu {
        "the GPU idled for it"
    } else {
        "it took"
    };
    let then = match &trainer.steps {
        Some(steps) if bound.is_finite() => {
            let step = steps.mean_ns() / 1e9;
            format!(
                " Without it a step would fall from {} to no less than {} (≤ {}).",
                words::time(step),
                words::time(step / bound),
                words::factor(bound)
            )
        }
        _ => format!(
            " Without it the job would be at most {} as fast.",
            words::factor(bound)
        ),
    };
    format!(
        "{}: {of} {} of the time; {what}.{then}",
        kind.name(),
        words::percent(share)
    )
}
