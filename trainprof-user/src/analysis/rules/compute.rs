//! The model's own computing: nothing on the host to fix.

use super::{Answer, Finding, Look, look::seconds};
use crate::analysis::{Kind, words::percent};

/// A smaller share is not what a job is held back by.
const MIN_SHARE: f64 = 0.5;

pub(super) fn rule(look: &Look) -> Answer {
    if !look.enough() {
        return Answer::NotEnough("less than a second was seen");
    }
    let idle = &look.trainer.idle;
    let on_gpu = look.by_gpu() || look.trainer.gpu_calls;
    let (share, on) = if look.by_gpu() {
        (1.0 - idle.idle_s / idle.seen_s, "the GPU's computing")
    } else if look.trainer.gpu_calls {
        (look.wall_share(Kind::Compute), "the GPU's computing")
    } else {
        (
            look.wall_share(Kind::Compute),
            "the model's computing on the CPU",
        )
    };
    if share < MIN_SHARE {
        return Answer::Clear;
    }
    let mut evidence = [("seconds", seconds(share * look.trainer.wall))].into();
    let more = if on_gpu {
        String::new()
    } else {
        look.let_on_more_cpus(&mut evidence)
    };
    Answer::Found(Finding {
        kind: Kind::Compute.name(),
        share: Some(share),
        evidence,
        summary: format!("{} of the time is {on}", percent(share)),
        advice: format!("{more}make the model's own work faster: little around it is in the way"),
    })
}
