//! The model's own computing: nothing on the host to fix.

use super::{
    Answer, Finding, Look,
    look::{python, rounded, seconds},
};
use crate::analysis::{
    Kind,
    alternation::{is_interpreter, of_framework},
    words::percent,
};

/// A smaller share is not what a job is held back by.
const MIN_SHARE: f64 = 0.5;
/// Samples that tell what the CPU time goes to, and the part of the interpreter in it that is told.
const MIN_SAMPLES: usize = 100;
const WORTH_TELLING: f64 = 0.3;
/// And how much of the time that is: a thread that waits for the framework's own threads hardly runs.
const WORTH_OF_TIME: f64 = 0.2;

pub(super) fn rule(look: &Look) -> Answer {
    if !look.enough() {
        return Answer::NotEnough("less than a second was seen");
    }
    if look.trainer.gpu_use.unseen() {
        return Answer::NotEnough("whether it computes or waits for the GPU is not known");
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
    let alone = match look.trainer.bound_alone() {
        Some(_) => "give the job its GPU for itself (gpu-shared); then ",
        None => "",
    };
    let places = look.computing_in_python();
    if !places.is_empty() {
        evidence.insert("python", places.iter().map(python).collect());
    }
    let most = match places.first() {
        Some(place) => format!(
            ", first of all in {} ({} of its samples)",
            place.name(),
            percent(place.share)
        ),
        None => String::new(),
    };
    let in_python = interpreter_share(look).filter(|share| *share >= WORTH_TELLING);
    let first = match in_python {
        Some(share) => {
            evidence.insert("interpreter_share", rounded(share));
            format!(
                "; {} of its CPU time is the Python interpreter's own and not the framework's: look there first (samples that are made in the loop, code that goes element by element, logging)",
                percent(share)
            )
        }
        None => String::new(),
    };
    Answer::Found(Finding {
        kind: Kind::Compute.name(),
        share: Some(share),
        evidence,
        summary: format!("{} of the time is {on}", percent(share)),
        advice: format!("{alone}{more}make the model's own work faster{most}{first}"),
        effect: None,
    })
}

/// Part (0–1) of the step thread's clock samples that hit the interpreter, where a framework computes on that thread too.
fn interpreter_share(look: &Look) -> Option<f64> {
    let samples = look.facts.samples(look.trainer.cast.step_tid);
    let (mut interpreter, mut framework) = (0, 0);
    for sample in samples {
        let place = look.session.places.get(&sample.place);
        let module = place.and_then(|place| place.module.as_deref());
        interpreter += usize::from(module.is_some_and(is_interpreter));
        framework += usize::from(of_framework(look.session, sample.place));
    }
    let ran = look.session.thread(look.trainer.cast.step_tid)?.run_ns as f64 / 1e9;
    let share = interpreter as f64 / samples.len().max(1) as f64;
    let worth = share * ran >= WORTH_OF_TIME * look.session.duration_s();
    (samples.len() >= MIN_SAMPLES && framework > 0 && worth).then_some(share)
}
