//! Threads that were runnable and got no CPU, because processes outside the job had it, or of its own that no step needs.

use super::{Answer, Look, look::clip};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::CpuContention;

/// Who had less than this part of it is not named.
const WORTH_NAMING: f64 = 0.05;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |_| {
        let names: Vec<String> = look
            .outsiders(KIND)
            .into_iter()
            .filter(|(_, ns)| *ns >= WORTH_NAMING * look.trainer.ns(KIND))
            .take(4)
            .map(|((pid, command), _)| format!("process {pid} ({})", clip(&command, 40)))
            .collect();
        let who = if names.is_empty() {
            "other processes".to_owned()
        } else {
            words::list(&names)
        };
        (
            format!("threads that the step needs wanted a CPU while {who} had it"),
            format!(
                "move these processes elsewhere, or give the job CPUs of its own (cpuset, taskset, exclusive cores); without them {}",
                look.effect(KIND)
            ),
        )
    })
}
