//! The rules: one file each, every one with three answers.

mod allocation_churn;
mod asking;
mod checkpoint;
mod communication;
mod compute;
mod copy_on_write;
mod cpu_contention;
mod cpu_throttled;
mod device_memory;
mod fd_growth;
mod gpu_memory_growth;
mod gpu_shared;
pub mod growth;
mod h2d_copy;
mod host_compute;
mod in_flight;
mod input_cpu;
mod late_rank;
mod loader;
mod look;
mod memory_growth;
mod needs;
mod network_io;
mod one_at_a_time;
mod page_cache_thrash;
mod rank_imbalance;
mod serialization;
mod server;
mod small_files;
mod storage_io;
mod tail_latency;
mod tiny_reads;
mod too_few_workers;
mod worker_respawn;

use std::collections::BTreeMap;

use serde_json::Value;

pub use look::{Look, clip};

use super::{Analysis, facts::Facts};
use crate::session::Session;

/// Facts that a finding rests on, by name.
pub type Evidence = BTreeMap<&'static str, Value>;

/// One cause, or one thing worth knowing, with what it rests on and what to do.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Name in reports.
    pub kind: &'static str,
    /// Share of the trainer's wall time (0–1), or of the GPU's idle time where a GPU is sampled; `None` where
    /// a share means nothing.
    pub share: Option<f64>,
    pub evidence: Evidence,
    pub summary: String,
    pub advice: String,
    /// Of a cause: what the job would gain without it, at most.
    pub effect: Option<String>,
}

/// What a rule says.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Looked at, and not so.
    Clear,
    Found(Finding),
    /// What is missing to tell.
    NotEnough(&'static str),
}

/// A rule.
pub type Rule = fn(&Look) -> Answer;

/// Every rule, by the name of what it finds. Causes first.
pub const RULES: &[(&str, Rule)] = &[
    ("storage-io", storage_io::rule),
    ("small-files", small_files::rule),
    ("network-io", network_io::rule),
    ("input-cpu", input_cpu::rule),
    ("serialization", serialization::rule),
    ("cpu-contention", cpu_contention::rule),
    ("cpu-throttled", cpu_throttled::rule),
    ("allocation-churn", allocation_churn::rule),
    ("checkpoint", checkpoint::rule),
    ("communication", communication::rule),
    ("host-compute", host_compute::rule),
    ("h2d-copy", h2d_copy::rule),
    ("compute", compute::rule),
    ("too-few-workers", too_few_workers::rule),
    ("worker-respawn", worker_respawn::rule),
    ("tail-latency", tail_latency::rule),
    ("rank-imbalance", rank_imbalance::rule),
    ("page-cache-thrash", page_cache_thrash::rule),
    ("copy-on-write", copy_on_write::rule),
    ("memory-growth", memory_growth::rule),
    ("gpu-memory-growth", gpu_memory_growth::rule),
    ("fd-growth", fd_growth::rule),
    ("gpu-shared", gpu_shared::rule),
];

/// What is told of one rule.
#[derive(Clone, Debug)]
pub enum Told {
    Clear,
    Found(Finding),
    /// It cannot be told, and why.
    NotEnough(String),
}

/// What a rule says, and whether what it rests on was seen: what was not looked at is not clear.
pub fn told(look: &Look, kind: &str, rule: Rule) -> Told {
    match rule(look) {
        Answer::Found(finding) => Told::Found(finding),
        _ if needs::is_pointless(look, kind) => Told::Clear,
        Answer::NotEnough(reason) => Told::NotEnough(reason.to_owned()),
        Answer::Clear => needs::lack(look, kind).map_or(Told::Clear, Told::NotEnough),
    }
}

/// A rule that could not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotTold {
    /// What it would find.
    pub kind: &'static str,
    pub reason: String,
}

/// What all rules find, the largest share first; what has no share comes last. And what could not be told, in the order of the rules.
pub fn findings(
    session: &Session,
    facts: &Facts,
    analysis: &Analysis,
) -> (Vec<Finding>, Vec<NotTold>) {
    let Some(trainer) = &analysis.trainer else {
        let reason = "nothing could be walked";
        let all = RULES.iter().map(|(kind, _)| NotTold {
            kind,
            reason: reason.to_owned(),
        });
        return (Vec::new(), all.collect());
    };
    let look = Look {
        session,
        facts,
        analysis,
        trainer,
    };
    let (mut found, mut not_told) = (Vec::new(), Vec::new());
    for (kind, rule) in RULES {
        match told(&look, kind, *rule) {
            Told::Found(finding) => found.push(finding),
            Told::NotEnough(reason) => not_told.push(NotTold { kind, reason }),
            Told::Clear => {}
        }
    }
    found.sort_by(|a: &Finding, b: &Finding| {
        let of = |f: &Finding| f.share.unwrap_or(-1.0);
        of(b).total_cmp(&of(a))
    });
    (found, not_told)
}
