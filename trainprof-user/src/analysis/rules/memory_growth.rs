//! Memory that is allocated and kept, step after step.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Answer, Finding, Look, look::rounded};
use crate::{
    analysis::{
        memory::{self, Grower, Site, Which},
        memory_limit::nearest,
        words,
    },
    record::fact::PageKind,
    session::{Id, Session},
};

/// Call sites that are told.
const SITES: usize = 5;
/// Fewer samples than this do not name a site.
const MIN_SAMPLES: usize = 8;

pub(super) fn rule(look: &Look) -> Answer {
    let session = look.session;
    let Some(growers) = memory::growers(session) else {
        return Answer::NotEnough("memory was seen for less than ten seconds");
    };
    let leaks: Vec<Grower> = growers.iter().filter(|g| !g.copied).copied().collect();
    let Some(worst) = leaks.first() else {
        return Answer::Clear;
    };
    let growth = worst.growth;
    let kind = match worst.which {
        Which::Anonymous => PageKind::Anonymous,
        Which::Shared => PageKind::Shared,
    };
    let pids: BTreeSet<u32> = leaks
        .iter()
        .filter(|grower| grower.which == worst.which)
        .map(|grower| grower.pid)
        .collect();
    let sites: Vec<Site> = memory::kept_sites(session, Some(&pids), &[kind])
        .into_iter()
        .filter(|site| site.samples >= MIN_SAMPLES)
        .take(SITES)
        .collect();
    // Everything that grows fills the same room.
    let limit = nearest(session, &growers);
    let left = limit.as_ref().and_then(|limit| limit.seconds);
    let (per_turn, turn) = look.per_turn(&growth);
    let role = role(look, worst.pid);
    let mut evidence: super::Evidence = [
        ("pid", json!(Id(worst.pid))),
        ("role", json!(role)),
        ("memory", json!(worst.which.name())),
        ("bytes_per_s", rounded(growth.slope)),
        ("margin_bytes_per_s", rounded(growth.margin)),
        ("file_bytes_per_s", files(session, worst.pid)),
        ("processes", processes(look, &leaks)),
        ("sites", sites.iter().map(site).collect()),
    ]
    .into();
    evidence.extend(per_turn);
    if let Some(left) = left {
        evidence.insert("time_to_limit_s", rounded(left));
    }
    if let Some(limit) = &limit {
        evidence.insert("limit_of", json!(limit.cgroup.as_deref().unwrap_or("host")));
        evidence.insert("room_bytes", rounded(limit.room_bytes));
    }
    let name = session
        .processes
        .get(&worst.pid)
        .map(|process| process.name.clone())
        .unwrap_or_default();
    let others = match leaks.iter().map(|g| g.pid).collect::<BTreeSet<_>>().len() {
        0 | 1 => String::new(),
        2 => ", and another process likewise".to_owned(),
        n => format!(", and {} other processes likewise", n - 1),
    };
    let until = left.map_or_else(String::new, |s| {
        let whose = match limit.as_ref().and_then(|limit| limit.cgroup.as_deref()) {
            Some(group) => format!("the limit of control group {group}"),
            None => "the end of the host's memory".to_owned(),
        };
        format!("; {whose} is reached in {}", words::time(s))
    });
    let kept = sites.first().map_or_else(String::new, |first| {
        format!(
            "; {} of what is kept is first touched in {}",
            words::percent(first.share),
            memory::site_name(first)
        )
    });
    Answer::Found(Finding {
        kind: "memory-growth",
        share: None,
        evidence,
        summary: format!(
            "the {role} (process {}, {name}) keeps {} of {} memory a second (± {}){turn}{others}{kept}{until}",
            Id(worst.pid),
            words::bytes(growth.slope),
            worst.which.name(),
            words::bytes(growth.margin)
        ),
        advice: format!(
            "look for what is kept from step to step: {}lists that grow, caches without a bound{}",
            with_graphs(session, worst.pid),
            spared(session, &growers, &leaks)
        ),
        effect: None,
    })
}

/// What keeps a graph of computing alive, where there are such: a set of trees grows by what it learns.
fn with_graphs(session: &Session, pid: u32) -> &'static str {
    let process = session.processes.get(&pid);
    let frameworks = process.and_then(|process| process.seen.frameworks.as_ref());
    let has = |name: &str| frameworks.is_some_and(|loaded| loaded.has(name));
    let boosts = ["xgboost", "lightgbm", "catboost"]
        .iter()
        .any(|name| has(name));
    if boosts && !has("torch") {
        "trees that are added (a set of them grows as it learns), "
    } else {
        "losses or outputs held with their graph (use .item() or .detach()), "
    }
}

/// What stopping these gains: for how long the memory that is left would last.
fn spared(session: &Session, growers: &[Grower], leaks: &[Grower]) -> String {
    let time = |growers: &[Grower]| {
        let seconds = nearest(session, growers)?.seconds;
        seconds.map(words::time)
    };
    let others: Vec<Grower> = growers.iter().filter(|g| g.copied).copied().collect();
    match (time(leaks), time(&others)) {
        (None, _) => String::new(),
        (Some(_), None) => "; without that growth the job does not run out of memory".to_owned(),
        (Some(_), Some(later)) => {
            format!("; without that growth the memory that is left lasts {later}")
        }
    }
}

/// The part that a process plays.
pub(super) fn role(look: &Look, pid: u32) -> &'static str {
    look.trainer
        .cast
        .roles
        .get(&pid)
        .map_or("helper", |role| role.name())
}

fn processes(look: &Look, growers: &[Grower]) -> Value {
    growers
        .iter()
        .take(2 * SITES)
        .map(|grower| {
            json!({
                "pid": Id(grower.pid),
                "role": role(look, grower.pid),
                "memory": grower.which.name(),
                "bytes_per_s": rounded(grower.growth.slope),
                "margin_bytes_per_s": rounded(grower.growth.margin),
                "file_bytes_per_s": files(look.session, grower.pid),
            })
        })
        .collect()
}

/// By what mapped files grow beside it.
fn files(session: &Session, pid: u32) -> Value {
    memory::file_growth(session, pid).map_or(Value::Null, rounded)
}

/// A call site as evidence.
pub(super) fn site(site: &Site) -> Value {
    json!({
        "function": site.frame.function,
        "module": site.frame.module,
        "python": site.function().map(|function| json!({
            "function": function.name,
            "file": function.file,
            "line": function.line,
        })),
        "share": rounded(site.share),
        "kept_bytes_per_s": rounded(site.bytes_per_s),
        "error_bytes_per_s": rounded(site.error_bytes_per_s),
        "samples": site.samples,
    })
}
