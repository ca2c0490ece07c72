//! What an inconclusive verdict says to do next.

use super::{
    stories::TRAINER,
    tale::{By, On, POLL, SLEEP, Tale},
};
use crate::analysis::{analyse, kind::Kind, unclear::next};

/// A trainer that waits for 70 of each 100 ms.
fn waits(nr: i16, on: On, by: By) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "tracker");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(TRAINER, begin, begin + 70.0, nr, on, by);
    }
    tale
}

fn summary(tale: &Tale) -> String {
    let verdict = analyse(&tale.session(8000.0)).verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive", "{}", verdict.summary);
    verdict.summary
}

#[test]
fn what_would_say_more_is_named() {
    let sleeps = summary(&waits(SLEEP, On::Nothing, By::Interrupt));
    assert!(sleeps.ends_with("(`py-spy dump --pid 100`)"), "{sleeps}");
    let waits_for_nobody = summary(&waits(POLL, On::Pipe(9), By::Nobody));
    let said = "attach to who ends these waits";
    assert!(waits_for_nobody.contains(said), "{waits_for_nobody}");
    let writes = summary(&waits(super::tale::WRITE, On::Pipe(9), By::Thread(900)));
    assert!(writes.ends_with("`trainprof attach 100 900`"), "{writes}");
}

#[test]
fn each_kind_has_a_next_step() {
    let session = waits(SLEEP, On::Nothing, By::Interrupt).session(8000.0);
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    for (kind, said) in [
        (Kind::Sleep, "py-spy dump --pid 100"),
        (Kind::Stopped, "kill -CONT 100"),
        (Kind::Helper, "the pid of that process"),
        (Kind::NotAsked, "prefetch_factor"),
        (Kind::Compute, "watch longer"),
        (Kind::Unknown, "py-spy dump --pid 100"),
    ] {
        let told = next(&session, trainer, kind);
        assert!(told.contains(said), "{kind:?}: {told}");
    }
}
