//! Who answers: a process outside the job that uses CPUs up by itself answers no more a second, however much is asked at a time.

use serde_json::json;

use super::Evidence;
use super::{Look, look::rounded};
use crate::analysis::Kind;

/// A process that uses so many CPUs runs one thread at a time, however many it has: one CPU up, and no more.
const ONE: std::ops::Range<f64> = 0.85..1.1;
/// Answers take its own work where it computes for so much (0–1) of the time that it is waited for.
const COMPUTES: f64 = 0.5;
/// More at a time than keeps it busy for so much (0–1) of the time is not worth asking.
const USED_UP: f64 = 0.8;
/// It is who the job waits for when so much of the waiting is for it.
const MOSTLY: f64 = 0.5;

/// A process that answers the job, with what it uses itself.
pub(super) struct Server {
    pub pid: u32,
    /// CPUs.
    pub cpus: f64,
    /// As a part (0–1) of those that it can use at most.
    pub busy: f64,
    /// As a part of the time that it is waited for.
    computing: f64,
}

/// Who most of a cause's time was waited for, if it is a process of this host that was looked at.
pub(super) fn server(look: &Look, kind: Kind) -> Option<Server> {
    let ((pid, _), ns) = look.outsiders(kind).into_iter().next()?;
    if ns < MOSTLY * look.trainer.ns(kind) {
        return None;
    }
    let used = look.session.host.outsiders_use.get(&pid.0)?;
    let cpus = used.cpu_ns as f64 / used.looked_ns.max(1) as f64;
    let most = if used.threads <= 1 || ONE.contains(&cpus) {
        1.0
    } else {
        cpus + look.free_cpus()
    };
    Some(Server {
        pid: pid.0,
        cpus,
        busy: (cpus / most).min(1.0),
        computing: cpus * look.trainer.wall / ns.max(1.0),
    })
}

impl Server {
    /// Whether it is its own work that answers take.
    pub(super) fn computes(&self) -> bool {
        self.computing >= COMPUTES
    }

    /// So many requests at a time, of `now`, keep it busy all the time; `None`: they do as it is.
    pub(super) fn most(&self, now: f64) -> Option<f64> {
        (self.busy < USED_UP).then(|| (now / self.busy.max(1e-3)).ceil())
    }

    pub(super) fn tell(&self, evidence: &mut Evidence) {
        evidence.insert("server_cpus", rounded(self.cpus));
        evidence.insert("server_busy_share", rounded(self.busy));
        evidence.insert("server", json!(self.pid));
    }

    /// What there is to do about it.
    pub(super) fn advice(&self) -> String {
        format!(
            "process {} uses {:.1} CPUs for its answers: make them cheaper to give, have several such processes answer, or do that work in the workers",
            self.pid, self.cpus
        )
    }
}
