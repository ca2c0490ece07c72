//! The analysis' part of the report: steps, blame, verdict, findings.

use std::collections::BTreeMap;

use trainprof_common::thread::WakerKind;

use super::{
    io::round,
    model::{
        BlameRow, FindingRow, NotToldRow, OtherClock, StepTimes, Steps, VerdictRow, WalkedSteps,
    },
};
use crate::{
    analysis::{
        Analysis, Cast, Detail, Kind, Trainer,
        causes::outsider,
        walk::{Hop, HopKind, Leaf, What},
        words::place,
    },
    session::{
        Id, Session, WaitId,
        kind::{WaitKind, syscall_name, wait_kind},
        roles::Role,
    },
};

/// A way with a smaller share of the time is put together with those like it.
const MIN_SHARE: f64 = 0.002;

pub fn steps(analysis: &Analysis) -> Steps {
    let walked = analysis.trainer.as_ref().and_then(|t| t.steps.as_ref());
    let Some(steps) = analysis.steps_of_all.as_ref().or(walked) else {
        return Steps::default();
    };
    let ms = |ns: u64| round(ns as f64 / 1e6, 3);
    Steps {
        count: Some(steps.spans.len() as u64),
        clock: Some(steps.clock.name()),
        confidence: Some(round(steps.confidence, 3)),
        time_ms: Some(StepTimes {
            mean: round(steps.mean_ns() / 1e6, 3),
            p50: ms(steps.quantile_ns(0.5)),
            p95: ms(steps.quantile_ns(0.95)),
            p99: ms(steps.quantile_ns(0.99)),
            max: ms(steps.quantile_ns(1.0)),
        }),
        others: steps
            .others
            .iter()
            .map(|(clock, count)| OtherClock {
                clock: clock.name(),
                count: *count as u64,
            })
            .collect(),
        walked: walked
            .filter(|_| analysis.steps_of_all.is_some())
            .map(|walked| WalkedSteps {
                count: walked.spans.len() as u64,
                mean_ms: round(walked.mean_ns() / 1e6, 3),
            }),
    }
}

pub fn verdict(analysis: &Analysis) -> Option<VerdictRow> {
    let verdict = analysis.verdict.as_ref()?;
    Some(VerdictRow {
        bottleneck: verdict.bottleneck,
        share: verdict.share.map(|share| round(share, 4)),
        share_of: verdict.share_of,
        speedup_bound: verdict.speedup_bound.map(|bound| round(bound, 3)),
        summary: verdict.summary.clone(),
        confidence: round(verdict.confidence, 3),
    })
}

pub fn findings(analysis: &Analysis) -> Vec<FindingRow> {
    analysis
        .findings
        .iter()
        .map(|finding| FindingRow {
            kind: finding.kind,
            share: finding.share.map(|share| round(share, 4)),
            evidence: finding.evidence.clone(),
            summary: finding.summary.clone(),
            advice: finding.advice.clone(),
            effect: finding.effect.clone(),
        })
        .collect()
}

pub fn not_told(analysis: &Analysis) -> Vec<NotToldRow> {
    let rows = analysis.not_told.iter().map(|not| NotToldRow {
        kind: not.kind,
        reason: not.reason.clone(),
    });
    rows.collect()
}

/// The ways that the step thread's time went, the longest first; the seconds of all of them sum to the time
/// that was walked.
pub fn blame(session: &Session, analysis: &Analysis, top: usize) -> Vec<BlameRow> {
    let Some(trainer) = &analysis.trainer else {
        return Vec::new();
    };
    let mut rows = BTreeMap::<(Vec<String>, Kind), f64>::new();
    for share in &trainer.shares {
        let leaf = &trainer.walked.leaves[share.leaf as usize].0;
        let path = path(session, trainer, leaf, share.kind, &share.detail);
        *rows.entry((path, share.kind)).or_default() += share.ns;
    }
    let mut rows: Vec<((Vec<String>, Kind), f64)> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let least = trainer.wall * MIN_SHARE;
    let mut rest = BTreeMap::<Kind, f64>::new();
    let mut out = Vec::new();
    for (at, ((path, kind), ns)) in rows.into_iter().enumerate() {
        if at < top.max(1) && ns >= least {
            out.push(row(trainer, path, kind, ns));
        } else {
            *rest.entry(kind).or_default() += ns;
        }
    }
    for (kind, ns) in rest {
        if ns >= 1e6 {
            out.push(row(trainer, vec!["other ways".to_owned()], kind, ns));
        }
    }
    out
}

fn row(trainer: &Trainer, path: Vec<String>, kind: Kind, ns: f64) -> BlameRow {
    BlameRow {
        path,
        kind: kind.name(),
        seconds: round(ns / 1e9, 6),
        share: round(ns / trainer.wall.max(1.0), 4),
    }
}

fn path(
    session: &Session,
    trainer: &Trainer,
    leaf: &Leaf,
    kind: Kind,
    detail: &Detail,
) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut push = |text: String| {
        if out.last() != Some(&text) {
            out.push(text);
        }
    };
    let mut next = leaf
        .hops
        .iter()
        .skip(1)
        .map(|hop| hop.tid)
        .chain([leaf.what.tid()]);
    for hop in &leaf.hops {
        let to = next.next().unwrap_or(0);
        push(format!(
            "{}: {}",
            who(session, &trainer.cast, hop.tid),
            hop_words(&trainer.cast, hop, to)
        ));
    }
    push(format!(
        "{}: {}",
        who(session, &trainer.cast, leaf.what.tid()),
        end_words(leaf, kind)
    ));
    if let Some(place) = place(session, detail.fileset) {
        push(place);
    }
    if let Some(peer) = session
        .host
        .sockets
        .get(&detail.socket)
        .and_then(|socket| socket.peer.clone())
    {
        push(peer);
    }
    if let Some((pid, command)) = outsider(session, detail.outsider) {
        push(format!("process {pid} ({command})"));
    }
    out
}

/// A thread by its part: workers are told apart by nothing but their process.
fn who(session: &Session, cast: &Cast, tid: u32) -> String {
    let Some(thread) = session.thread(tid) else {
        return format!("thread {}", Id(tid));
    };
    let pid = thread.pid;
    let role = cast.roles.get(&pid).copied().unwrap_or(Role::Helper).name();
    if tid == cast.step_tid || (tid == pid && pid != cast.trainer) {
        format!("{role} {}", Id(pid))
    } else if cast.loader_threads.contains(&tid) {
        format!("loader thread {} ({})", Id(tid), thread.name)
    } else {
        format!("{role} {}, thread {}", Id(pid), thread.name)
    }
}

fn hop_words(cast: &Cast, hop: &Hop, to: u32) -> &'static str {
    match hop.how {
        HopKind::Lock(_) => "lock_wait",
        HopKind::KernelLock => "kernel_lock_wait",
        HopKind::Rank => "comm_wait",
        HopKind::HandOver if cast.producers.contains(&to) => "data_wait",
        HopKind::HandOver if hop.wait == WaitKind::Child => "child_wait",
        HopKind::HandOver => "wait",
    }
}

fn end_words(leaf: &Leaf, kind: Kind) -> String {
    match leaf.what {
        What::Run { .. } => match kind {
            Kind::StorageIo | Kind::SmallFiles => "on_cpu in file calls".to_owned(),
            Kind::NetworkIo => "on_cpu in socket calls".to_owned(),
            Kind::AllocationChurn => "on_cpu allocating".to_owned(),
            Kind::Checkpoint => "on_cpu writing state".to_owned(),
            _ => "on_cpu".to_owned(),
        },
        What::GpuCall { .. } => "gpu_wait".to_owned(),
        What::Runnable { .. } => "runnable".to_owned(),
        What::Idle { .. } => "idle".to_owned(),
        What::Absent { .. } => "not there".to_owned(),
        What::Unknown { .. } => "unknown".to_owned(),
        What::Wait {
            nr, object, waker, ..
        } => {
            let wait = wait_kind(&WaitId { nr, object, waker });
            let call = syscall_name(nr);
            if waker.kind == WakerKind::Unknown as u8 && wait == WaitKind::Other {
                format!("{call} (woken by nobody seen)")
            } else {
                call
            }
        }
    }
}
