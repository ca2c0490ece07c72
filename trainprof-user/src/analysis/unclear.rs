//! What an inconclusive verdict says: who spends most of the time on what says nothing, and what would say more.

use std::collections::BTreeMap;

use trainprof_common::op::Class;

use super::{
    Kind, Trainer,
    causes::outsider,
    rules::clip,
    running::{Call, call},
    verdict::MIN_SHARE,
    walk::What,
    words,
};
use crate::record::fact::ObjectFact;
use crate::session::{Id, Session, kind::syscall_name, roles::is_ancestor};

/// A job that uses less than this share of one CPU does nothing.
const HANGS: f64 = 0.01;

/// In words; `shares` are those of the trainer's wall time by cause, `blurred` the sum of those that say nothing.
pub fn told(
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
            Id(trainer.cast.trainer),
            clip(&command.replace('\n', " "), 80),
            if is_ancestor(session, trainer.cast.trainer, pid.0) {
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
            format!(
                "the trainer waits while worker {}, or one like it, spends",
                Id(pid)
            )
        }
        _ => match foremost_thread(session, trainer, kind) {
            Some(thread) if thread != trainer.cast.step_tid => {
                format!(
                    "the trainer waits while thread {} of its process spends",
                    Id(thread)
                )
            }
            _ => format!("process {} spends", Id(trainer.cast.trainer)),
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
fn foremost(session: &Session, trainer: &Trainer, kind: Kind) -> Option<(Id, String)> {
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
        "for {} of the time process {} was stopped, by a signal (SIGSTOP), a debugger or a freezer{again}",
        words::percent(share),
        Id(who)
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
            Id(trainer.cast.trainer),
            syscall_name(nr),
            words::time(trainer.wall / 1e9)
        )
    })
}

/// Waits for a process outside the job, where they are most of what could not be followed to a cause.
fn stranger(session: &Session, trainer: &Trainer) -> Option<String> {
    let mut by_process = BTreeMap::<(Id, String), (f64, f64)>::new();
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
        Id(trainer.cast.trainer),
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
