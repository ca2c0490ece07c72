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
    // Of much that cannot be told the largest part is told, not the computing beside it.
    let (kind, share) = match (largest(shares), of(shares, Kind::Compute)) {
        ((_, share), computing) if blurred < MIN_SHARE && computing >= share => {
            (Kind::Compute, computing)
        }
        (most, _) => most,
    };
    let words = doing(kind);
    let missing = missing(session, trainer);
    let next = match kind {
        // Waits for it are among both.
        Kind::Compute | Kind::Unknown if trainer.gpu_use.unseen() => {
            trainer.gpu_use.cure().to_owned()
        }
        kind => next(session, trainer, kind),
    };
    if kind == Kind::Stopped {
        return format!("{}; {next}", stopped(session, trainer, share));
    }
    if kind == Kind::Helper
        && let Some((pid, command)) = foremost(session, trainer, kind)
    {
        return format!(
            "for {} of the time process {} waits until process {pid} ({}){} is done; {next}",
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
        return format!("{words}; {next}");
    }
    if kind == Kind::Unknown
        && let Some(words) = hang(session, trainer)
    {
        return format!("{words}; {}", stack(Id(trainer.cast.trainer)));
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
        "{who} {} of the time {words}{waits}, and no cause stands out{missing}; {next}",
        words::percent(share)
    )
}

/// What was not seen. Without a GPU in use, that none is seen is no lack.
fn missing(session: &Session, trainer: &Trainer) -> String {
    if trainer.gpu_use.unseen() {
        return format!("; the GPU was not seen: {}", trainer.gpu_use.why());
    }
    session
        .missing
        .iter()
        .find(|(what, _)| what.as_str() != "gpu" || trainer.gpu_use.used)
        .map(|(what, reason)| format!("; {what} is missing: {reason}"))
        .unwrap_or_default()
}

/// What says nothing of a cause.
const SILENT: [Kind; 5] = [
    Kind::Unknown,
    Kind::Sleep,
    Kind::Stopped,
    Kind::Helper,
    Kind::NotAsked,
];

fn of(shares: &BTreeMap<Kind, f64>, kind: Kind) -> f64 {
    shares.get(&kind).copied().unwrap_or(0.0)
}

/// The largest part that says nothing, and its share.
pub fn largest(shares: &BTreeMap<Kind, f64>) -> (Kind, f64) {
    SILENT
        .into_iter()
        .map(|kind| (kind, of(shares, kind)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap_or((Kind::Unknown, 0.0))
}

/// What somebody does whose time goes to it.
pub const fn doing(kind: Kind) -> &'static str {
    match kind {
        Kind::Sleep => "sleeping of its own accord (a rate limit, a back-off, a loop that polls)",
        Kind::Stopped => "stopped",
        Kind::Helper => "waiting for a process of its own",
        Kind::NotAsked => "waiting for producers that had been asked for nothing",
        Kind::Compute => "computing",
        _ => "in waits that could not be followed to a cause",
    }
}

/// What would say more of it.
pub fn next(session: &Session, trainer: &Trainer, kind: Kind) -> String {
    let pid = Id(trainer.cast.trainer);
    let doer = doer(session, trainer, kind).map_or(pid, Id);
    match kind {
        Kind::Sleep => stack(doer),
        Kind::Stopped => format!("let it go on (kill -CONT {doer}) and watch again"),
        Kind::Helper => match foremost(session, trainer, kind) {
            Some((helper, _)) => format!(
                "`trainprof attach {helper}` shows what that process itself spends its time with"
            ),
            None => "watch again with the pid of that process".to_owned(),
        },
        Kind::NotAsked => {
            "let the loop ask for batches before it needs them (prefetch_factor), or see what it does before it asks".to_owned()
        }
        Kind::Compute => "watch longer, while the job trains".to_owned(),
        _ => match waited_for(session, trainer) {
            Some(((other, _), ..)) => {
                format!("also watch that process: `trainprof attach {pid} {other}`")
            }
            None => format!(
                "watch longer, and also attach to who ends these waits, where that is known; {}",
                stack(doer)
            ),
        },
    }
}

/// Where a process is, asked for from outside.
fn stack(pid: Id) -> String {
    format!("its stack shows in what (`py-spy dump --pid {pid}`)")
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

/// The process outside the job that most of what could not be followed to a cause was waited for, for how long (ns), and for how much
/// of that until it took what was written.
fn waited_for(session: &Session, trainer: &Trainer) -> Option<((Id, String), f64, f64)> {
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
    by_process
        .into_iter()
        .max_by(|a, b| a.1.0.total_cmp(&b.1.0))
        .filter(|(_, (ns, _))| *ns * 2.0 >= all)
        .map(|(process, (ns, written))| (process, ns, written))
}

/// Such waits, in words.
fn stranger(session: &Session, trainer: &Trainer) -> Option<String> {
    let ((pid, command), ns, written) = waited_for(session, trainer)?;
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
