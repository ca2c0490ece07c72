//! Who answers: processes outside the job that use their CPUs up by themselves answer no more a second, however much is asked at a time.

use serde_json::json;

use super::{Evidence, Look, look::rounded};
use crate::{
    analysis::Kind,
    record::fact::OutsiderUse,
    session::{
        Session,
        kind::{WaitKind, wait_kind},
    },
};

/// A process of several threads that uses so many CPUs, and no more though more is asked of it at a time and CPUs are free, runs one
/// thread at a time.
const ONE: std::ops::Range<f64> = 0.93..1.05;
/// So much more than one for each process is asked at a time then, and so many CPUs are free.
const MORE_ASKED: f64 = 0.5;
const FREE: f64 = 0.3;
/// They are who the job waits for when so much (0–1) of the waiting is for them.
const MOSTLY: f64 = 0.5;
/// Answers take their own work where they compute for so much (0–1) of the time that they are asked for something.
const COMPUTES: f64 = 0.5;
/// More at a time than keeps them busy for so much (0–1) of the time is not worth asking.
const USED_UP: f64 = 0.8;
/// CPU time is counted in ticks of 10 ms: over less than this (ns) it tells nothing.
const TELLS_NS: u64 = 2_000_000_000;

/// Processes that answer the job, with what they use themselves.
pub(super) struct Server {
    pids: Vec<u32>,
    /// CPUs of all of them.
    cpus: f64,
    /// The same as a part (0–1) of those that they can use at most.
    pub busy: f64,
}

/// Who most of a cause's time was waited for, if these are processes of this host that were looked at, compute for their answers, and
/// can use no more than so many CPUs.
pub(super) fn server(look: &Look, kind: Kind) -> Option<Server> {
    let uses = &look.session.host.outsiders_use;
    let blamed = look.outsiders(kind);
    let timed: Vec<(&OutsiderUse, f64)> = blamed
        .iter()
        .filter_map(|((pid, _), ns)| Some((uses.get(&pid.0)?, *ns)))
        .filter(|(used, _)| used.looked_ns >= TELLS_NS)
        .collect();
    let for_them: f64 = timed.iter().map(|(_, ns)| ns).sum();
    if timed.is_empty() || for_them < MOSTLY * look.trainer.ns(kind) {
        return None;
    }
    let pids: Vec<u32> = timed.iter().map(|(used, _)| used.pid).collect();
    let asked = asked_at_a_time(look.session, &pids);
    let idle = look.idle_cpus();
    let is_free = idle.is_some_and(|idle| idle >= FREE);
    let serial = asked >= pids.len() as f64 + MORE_ASKED && is_free;
    let (mut cpus, mut most) = (0.0, 0.0);
    for (used, _) in &timed {
        let its = used.cpu_ns as f64 / used.looked_ns as f64;
        if used.threads > 1 && !(serial && ONE.contains(&its)) {
            return None;
        }
        cpus += its;
        let room = idle.unwrap_or(f64::INFINITY);
        most += (its + room).min(its.max(1.0));
    }
    let computing = cpus / asked.min(pids.len() as f64).max(1e-3);
    (most > 0.0 && computing >= COMPUTES).then(|| Server {
        pids,
        cpus,
        busy: (cpus / most).min(1.0),
    })
}

/// How many threads of the job waited at a time, on average, for what these processes sent.
fn asked_at_a_time(session: &Session, pids: &[u32]) -> f64 {
    let is_theirs = |tid: u32| {
        let outsider = session.outsiders.get(&tid);
        outsider.is_some_and(|(pid, _)| pid.is_some_and(|pid| pids.contains(&pid)))
    };
    let waits = session.threads.values().flat_map(|thread| &thread.waits);
    let asking = waits.filter(|(id, _)| {
        matches!(
            wait_kind(id),
            WaitKind::Socket | WaitKind::Pipe | WaitKind::Poll
        ) && is_theirs(id.waker.tid)
    });
    let ns: u64 = asking.map(|(_, total)| total.wait_ns).sum();
    ns as f64 / 1e9 / session.duration_s().max(1e-9)
}

impl Server {
    /// So many requests at a time, of `now`, keep them busy all the time; `None`: they do as it is.
    pub(super) fn most(&self, now: f64) -> Option<f64> {
        (self.busy < USED_UP).then(|| (now / self.busy.max(1e-3)).ceil())
    }

    pub(super) fn tell(&self, evidence: &mut Evidence) {
        evidence.insert("servers", json!(self.pids));
        evidence.insert("server_cpus", rounded(self.cpus));
        evidence.insert("server_busy_share", rounded(self.busy));
    }

    /// What there is to do about it.
    pub(super) fn advice(&self) -> String {
        let (who, uses, its, more) = match self.pids.as_slice() {
            [pid] => (format!("process {pid}"), "uses", "its", "several such"),
            pids => (
                format!("{} processes that answer", pids.len()),
                "use",
                "their",
                "more of these",
            ),
        };
        format!(
            "{who} {uses} {:.1} CPUs for {its} answers: make them cheaper to give, have {more} processes answer, or do that work in the workers",
            self.cpus
        )
    }
}
