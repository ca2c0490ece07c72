//! Threads that were runnable and got no CPU, because processes outside the job had it, or of its own that no step needs, or threads of
//! the trainer that only looked for work.

use serde_json::json;

use super::{
    Answer, Look,
    look::{clip, rounded, seconds},
};
use crate::{
    analysis::{Kind, causes::outsider, words},
    session::Id,
};

const KIND: Kind = Kind::CpuContention;

/// Who had less than this part of it is not named.
const WORTH_NAMING: f64 = 0.05;

/// Processes that are named in the sentence.
const MOST_NAMED: usize = 4;

/// Who had fewer CPUs than this took no CPU from anybody for long.
const WORTH_CALLING_NEIGHBOUR: f64 = 0.1;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let own = own(look);
        let neighbours = neighbours(look);
        let told = neighbours.iter().map(|(pid, command, cpus)| {
            json!({"pid": pid, "command": command, "cpus": rounded(*cpus)})
        });
        evidence.insert("neighbours", told.collect());
        let names: Vec<String> = who(look, neighbours)
            .into_iter()
            .take(MOST_NAMED)
            .map(|(pid, command)| format!("process {pid} ({})", clip(&command, 40)))
            .collect();
        if own * 2.0 >= look.trainer.ns(KIND) || own > 0.0 && names.is_empty() {
            evidence.insert("own_threads_s", seconds(own));
            return own_threads(look);
        }
        let who = if names.is_empty() {
            "other processes".to_owned()
        } else {
            words::list(&names)
        };
        (
            format!("threads that the step needs wanted a CPU while {who} had it"),
            "move these processes elsewhere, or give the job CPUs of its own (cpuset, taskset, exclusive cores)".to_owned(),
        )
    })
}

/// Who had the CPUs, in the order in which they are named: those that were seen to have one that was wanted, after those that must
/// have had the others where nobody was seen to have one for most of the time.
fn who(look: &Look, neighbours: Vec<(Id, String, f64)>) -> Vec<(Id, String)> {
    let total = look.trainer.ns(KIND);
    let trainer = look.trainer.cast.trainer;
    let seen = look.outsiders(KIND).into_iter();
    let seen = seen.filter(|((pid, _), ns)| pid.0 != trainer && *ns >= WORTH_NAMING * total);
    let seen = seen.map(|(who, _)| who);
    let nobodys = look.parts(KIND).filter(|share| share.detail.outsider == 0);
    if nobodys.map(|share| share.ns).sum::<f64>() * 2.0 <= total {
        return seen.collect();
    }
    let mut all: Vec<_> = neighbours
        .into_iter()
        .map(|(pid, command, _)| (pid, command))
        .collect();
    for who in seen {
        if !all.contains(&who) {
            all.push(who);
        }
    }
    all
}

/// Processes outside the job that had CPUs while the host was crowded, with how many, most first.
fn neighbours(look: &Look) -> Vec<(Id, String, f64)> {
    let named = |(pid, cpus): (u32, f64)| {
        let (id, command) = outsider(look.session, pid)?;
        (cpus >= WORTH_CALLING_NEIGHBOUR).then_some((id, command, cpus))
    };
    let all = look.session.host.neighbours.cpus();
    all.filter_map(named).collect()
}

/// For how long (ns) threads of the trainer's own had the CPU.
fn own(look: &Look) -> f64 {
    let trainer = look.trainer.cast.trainer;
    look.parts(KIND)
        .filter(|share| {
            let by = look.session.thread(share.detail.outsider);
            by.is_some_and(|thread| thread.pid == trainer)
        })
        .map(|share| share.ns)
        .sum()
}

/// What is said where that is most of it.
fn own_threads(look: &Look) -> (String, String) {
    (
        "threads that the step needs wanted a CPU while others of the trainer's own had it, which only looked for work: its thread pools (OpenMP, BLAS) have more threads than there are CPUs for them".to_owned(),
        format!("let the pools have fewer threads, one for each of the {:.0} CPUs in all (torch.set_num_threads, OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, MKL_NUM_THREADS), or let them sleep instead of looking (OMP_WAIT_POLICY=passive)", look.trainer.terms.cpus),
    )
}
