//! Threads that were runnable and got no CPU, because processes outside the job had it, or of its own that no step needs, or threads of
//! the trainer that only looked for work.

use super::{
    Answer, Look,
    look::{clip, seconds},
};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::CpuContention;

/// Who had less than this part of it is not named.
const WORTH_NAMING: f64 = 0.05;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let own = own(look);
        let names: Vec<String> = look
            .outsiders(KIND)
            .into_iter()
            .filter(|((pid, _), ns)| {
                pid.0 != look.trainer.cast.trainer && *ns >= WORTH_NAMING * look.trainer.ns(KIND)
            })
            .take(4)
            .map(|((pid, command), _)| format!("process {pid} ({})", clip(&command, 40)))
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
