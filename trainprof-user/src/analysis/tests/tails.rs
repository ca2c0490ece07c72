//! Stories of steps that take much longer than the others.

use super::stories::{TRAINER, job, stall};
use crate::{
    analysis::{Finding, analyse},
    record::fact::PlaceClass,
    session::Session,
};

pub(super) const MODEL: u32 = 1;
pub(super) const INTERPRETER: u32 = 2;

/// Steps of 20 ms, each twelfth of which computes for a quarter of a second more, in the given place.
pub(super) fn tailed(more_in: u32) -> Session {
    let mut tale = job(1);
    tale.place(MODEL, "libtorch_cpu.so", PlaceClass::Other);
    tale.place(INTERPRETER, "python3.11", PlaceClass::Other);
    let mut at = 0.0;
    for step in 0..121 {
        stall(&mut tale, at, at + 2.0, 201);
        let usual = at + 20.0;
        // The interpreter has a quarter of the usual steps.
        for (n, after) in [5.0, 9.0, 13.0, 17.0].into_iter().enumerate() {
            let place = if n == 1 { INTERPRETER } else { MODEL };
            tale.sample(TRAINER, at + after, place);
        }
        at = usual;
        if step % 12 == 11 {
            for n in 0..50 {
                let place = if n % 4 == 1 { INTERPRETER } else { more_in };
                tale.sample(TRAINER, usual + f64::from(n) * 5.0, place);
            }
            at += 250.0;
        }
    }
    tale.session(at)
}

fn tail(more_in: u32) -> Option<Finding> {
    analyse(&tailed(more_in))
        .findings
        .into_iter()
        .find(|finding| finding.kind == "tail-latency")
}

#[test]
fn slow_steps_that_run_other_code_are_a_tail_and_an_evaluation_is_none() {
    let collects = tail(INTERPRETER).expect("slow steps do what the others do not");
    assert_eq!(collects.evidence["slow_steps"], 10);
    assert_eq!(collects.evidence["code"], "python3.11");
    let share = collects.share.expect("a share");
    assert!((share - 2500.0 / 4900.0).abs() < 0.02, "{share}");
    assert!(
        collects.summary.contains("250 ms more on the CPU"),
        "{}",
        collects.summary
    );
    assert!(tail(MODEL).is_none(), "more of the same");
}
