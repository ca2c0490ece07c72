//! How sure a verdict is, by what was seen: each story lacks one thing that another one has.

use super::{
    rules,
    stories::{TRAINER, read_bound},
    tale::{By, On, POLL, READ, Tale},
};
use crate::{
    analysis::{
        Verdict, analyse,
        confidence::{Claim, Doubt, SHED_SAMPLES},
        kind::Kind,
        settle,
    },
    record::{Record, alloc::GovernorFact, fact::GpuMetric, touch::PlaceClass},
    session::Session,
    time::KtimeNs,
};

fn verdict(session: &Session) -> Verdict {
    analyse(session).verdict.expect("a verdict")
}

/// A trainer that reads for 40 of 100 ms, and waits for `unknown` ms for what nobody ends.
fn reads(unknown: f64) -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    for step in 0..150 {
        let begin = f64::from(step) * 100.0;
        let file = On::File(5);
        tale.wait(TRAINER, begin, begin + 40.0, READ, file, By::Interrupt);
        if unknown > 0.0 {
            let (from, to) = (begin + 50.0, begin + 50.0 + unknown);
            tale.wait(TRAINER, from, to, POLL, On::Pipe(9), By::Nobody);
        }
    }
    tale.session(15_000.0)
}

fn is_lower(by: f64, session: &Session, what: &str) {
    let (whole, found) = (verdict(&reads(0.0)), verdict(session));
    assert_eq!(whole.bottleneck, "storage-io", "{}", whole.summary);
    assert_eq!(found.bottleneck, "storage-io", "{}", found.summary);
    let ratio = found.confidence / whole.confidence;
    assert!((ratio - by).abs() < 0.03, "{what}: {ratio}, not {by}");
}

#[test]
fn time_that_could_not_be_followed_lowers_it() {
    is_lower(0.8, &reads(20.0), "unknown");
}

#[test]
fn lost_events_lower_it() {
    let mut session = reads(0.0);
    session.lost.insert(0, session.facts);
    is_lower(0.5, &session, "lost");
}

#[test]
fn what_the_cause_is_told_by_and_is_missing_lowers_it() {
    let lacks = |what: &str| {
        let mut session = reads(0.0);
        let (what, reason) = (what.to_owned(), "no such thing".to_owned());
        session.apply(&Record::Missing { what, reason });
        session
    };
    is_lower(0.8, &lacks("cache hits"), "cache hits");
    is_lower(0.6, &lacks("file operations"), "file operations");
    // What it does not rest on does not matter to it.
    is_lower(1.0, &lacks("samples"), "samples");
    is_lower(1.0, &lacks("gpu"), "gpu");
}

#[test]
fn computing_that_is_neither_sampled_nor_has_stacks_is_no_verdict() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let mut session = tale.session(15_000.0);
    assert_eq!(verdict(&session).bottleneck, "compute");
    for what in ["samples", "python-stacks"] {
        let (what, reason) = (what.to_owned(), "not permitted".to_owned());
        session.apply(&Record::Missing { what, reason });
    }
    let found = verdict(&session);
    assert_eq!(found.bottleneck, "inconclusive");
    assert!(found.summary.contains("not permitted"), "{}", found.summary);
    assert!(found.summary.contains("as root"), "{}", found.summary);
}

#[test]
fn samples_of_a_gpu_that_is_half_idle_in_each_lower_it() {
    // As much idling in all: in every second sample, and in half of each.
    let idles = |busy: fn(u32) -> f64| {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1);
        for step in 0..80 {
            let end = f64::from(step) * 100.0 + 90.0;
            tale.synchronise(TRAINER, end - 1.0, end);
        }
        let mut session = tale.session(8000.0);
        rules::device(&mut session);
        for n in 1..=48_u32 {
            let ms = f64::from(n) * 8000.0 / 48.0;
            rules::sample(&mut session, ms, 166, GpuMetric::Utilisation, busy(n));
        }
        verdict(&session)
    };
    let apart = idles(|n| f64::from(n % 2));
    let mixed = idles(|_| 0.5);
    assert_eq!(apart.bottleneck, "host-compute", "{}", apart.summary);
    assert_eq!(mixed.bottleneck, "host-compute", "{}", mixed.summary);
    let ratio = mixed.confidence / apart.confidence;
    assert!((ratio - 0.75).abs() < 0.03, "{ratio}");
}

#[test]
fn each_doubt_names_what_would_settle_it() {
    let (tale, ms) = read_bound(300.0, 40);
    let mut session = tale.session(ms);
    session.lost.insert(0, 100);
    for (what, reason) in [
        ("samples", "perf_event_paranoid is 3"),
        ("gpu", "no driver"),
    ] {
        let (what, reason) = (what.to_owned(), reason.to_owned());
        session.apply(&Record::Missing { what, reason });
    }
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    let claim = Claim {
        kind: Kind::StorageIo,
        share: 0.3,
        rival: Some((Kind::NetworkIo, 0.28)),
        blurred: 0.25,
        by_gpu: false,
    };
    let shares = [(Kind::Sleep, 0.2), (Kind::Unknown, 0.05)].into();
    for (doubt, said) in [
        (Doubt::Short, &["s were seen", "ten seconds or more"][..]),
        (
            Doubt::Unfollowed,
            &["25 %", "sleeping", "py-spy dump --pid"],
        ),
        (Doubt::Rival, &["network-io is close behind with 28 %"]),
        (Doubt::Lost, &["was lost (ring-full)", "fewer processes"]),
        (Doubt::Unsteady, &["watch longer (a minute"]),
        (
            Doubt::GpuUnseen,
            &["the GPU was not seen", "no driver", "--gpu"],
        ),
        (Doubt::GpuCoarse, &["which does not tell when"]),
        (Doubt::Guessed, &["its place in the loop", "watch longer"]),
        (
            Doubt::Missing("clock-samples"),
            &["raise --overhead-budget"],
        ),
        (
            Doubt::Missing("samples"),
            &["perf_event_paranoid is 3", "as root"],
        ),
    ] {
        let told = settle::told(&session, trainer, &claim, &shares, doubt);
        for said in said {
            assert!(told.contains(said), "{doubt:?}: no \"{said}\" in: {told}");
        }
    }
}

/// A trainer alone that computes, with clock samples for so many of 15 s: then they were given up.
fn sampled_for(seconds: u32) -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4").place(
        1,
        "libtorch_cpu.so",
        PlaceClass::Other,
    );
    for step in 0..150 {
        let begin = f64::from(step) * 100.0;
        let file = On::File(5);
        tale.wait(TRAINER, begin, begin + 1.0, READ, file, By::Interrupt);
    }
    for sample in 0..seconds * 100 {
        tale.sample(TRAINER, f64::from(sample) * 10.0 + 5.0, 1);
    }
    let mut session = tale.session(15_000.0);
    session.apply(&Record::Governor(GovernorFact {
        at: KtimeNs(0),
        budget: 0.01,
        job_ns: 0,
        probes_ns: 0,
        own_ns: 0,
        windows_ns: 0,
        windows: 0,
        worst_thread_ns: 0,
        shed: vec![SHED_SAMPLES.to_owned()],
    }));
    session
}

#[test]
fn what_runs_alone_is_told_as_far_as_there_are_samples() {
    let whole = verdict(&sampled_for(15));
    assert_eq!(whole.bottleneck, "compute");
    assert!(whole.confidence > 0.8, "{}", whole.confidence);
    let half = verdict(&sampled_for(8));
    assert!(half.confidence < 0.6, "{}", half.confidence);
    assert_eq!(verdict(&sampled_for(2)).bottleneck, "inconclusive");
}
