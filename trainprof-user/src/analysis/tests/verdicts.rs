//! From a story to its verdict, steps and bound.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, bottleneck, feeder, job, read_bound},
    tale::{By, FSYNC, FUTEX, On, POLL, RECV, SLEEP, Tale, WRITE},
};
use crate::analysis::{Kind, analyse, steps::Clock};

#[test]
fn reading_is_the_verdict_and_the_bound_is_the_next_bottleneck() {
    let (tale, ms) = read_bound(300.0, 40);
    let analysis = analyse(&tale.session(ms));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "storage-io", "{}", verdict.summary);
    // Without reading the trainer's own 100 of 200 ms remain.
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((2.0..2.25).contains(&bound), "{bound}");
    assert!(verdict.summary.contains("/data"), "{}", verdict.summary);
    assert!(verdict.confidence > 0.5, "{}", verdict.confidence);
    let steps = analysis.trainer.and_then(|t| t.steps).expect("steps");
    assert_eq!(steps.clock, Clock::BatchHandOver);
    assert!(steps.spans.len().abs_diff(39) <= 1, "{}", steps.spans.len());
    let p50 = steps.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 200.0).abs() < 2.0, "{p50}");
}

#[test]
fn a_write_that_nobody_takes_is_named() {
    let mut tale = job(0);
    for step in 0..20 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 10.0,
            SLEEP,
            On::Nothing,
            By::Interrupt,
        );
    }
    tale.wait(TRAINER, 2000.0, 8000.0, WRITE, On::Pipe(77), By::Nobody);
    let verdict = analyse(&tale.session(8000.0)).verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive");
    let said = "most of it in write on pipe:[77]";
    assert!(verdict.summary.contains(said), "{}", verdict.summary);
}

/// A worker that decodes all the time, and a trainer that waits for it 79 of 100 ms.
pub(super) fn decode_bound() -> Tale {
    let mut tale = job(1);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin + 20.0,
            begin + 99.9,
            POLL,
            On::Pipe(77),
            By::Thread(feeder(201)),
        );
        tale.touch(TRAINER, begin + 99.9, Op::Read, Class::Pipe, 77, 4);
        tale.wait(
            feeder(201),
            begin + 0.1,
            begin + 99.8,
            FUTEX,
            On::Futex(0x1000),
            By::Thread(201),
        );
    }
    tale
}

fn advice_on_workers(tale: &Tale) -> String {
    let analysis = analyse(&tale.session(8000.0));
    assert_eq!(bottleneck(&analysis), "input-cpu");
    let few = analysis
        .findings
        .iter()
        .find(|finding| finding.kind == "too-few-workers")
        .expect("too few workers");
    assert_eq!(few.evidence["workers"], 1.0);
    few.advice.clone()
}

#[test]
fn workers_that_decode_are_input_cpu_and_too_few() {
    let advice = advice_on_workers(&decode_bound());
    assert!(advice.contains("from 1 to about 3"), "{advice}");
}

#[test]
fn more_workers_than_the_job_has_cpus_are_not_advised() {
    let mut tale = decode_bound();
    tale.allowed(TRAINER, "2").allowed(201, "3");
    let advice = advice_on_workers(&tale);
    assert!(advice.contains("from 1 to about 2"), "{advice}");
    // It needs as much CPU time as now.
    assert!(advice.contains("about 60 ms instead of 100"), "{advice}");
    // It uses 1.2 CPUs: its other threads may use more than the first ones.
    let mut tale = decode_bound();
    tale.allowed(TRAINER, "2").allowed(201, "2");
    let advice = advice_on_workers(&tale);
    assert!(advice.contains("from 1 to about 3"), "{advice}");
}

#[test]
fn writing_state_between_steps_is_a_checkpoint() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/ckpt", "ext4");
    for step in 0..8 {
        let begin = f64::from(step) * 1000.0;
        tale.touch(TRAINER, begin + 600.0, Op::Write, Class::File, 3, 4 << 20);
        tale.touch(TRAINER, begin + 640.0, Op::Write, Class::File, 3, 4 << 20);
        tale.wait(
            TRAINER,
            begin + 650.0,
            begin + 900.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
        tale.touch(TRAINER, begin + 900.0, Op::Fsync, Class::File, 3, 0);
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "checkpoint", "{}", verdict.summary);
    // What is computed between two writes belongs to it: 300 of 1000 ms.
    let share = verdict.share.expect("a share");
    assert!((share - 0.30).abs() < 0.01, "{share}");
}

/// Ranks 100 and 150: 150 is late in each of 80 steps, 100 waits for its message.
pub(super) fn late(tale: &mut Tale) {
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin + 30.0,
            begin + 95.0,
            RECV,
            On::Socket(4),
            By::Sender(150),
        );
        tale.wait(
            150,
            begin + 96.0,
            begin + 97.0,
            RECV,
            On::Socket(5),
            By::Sender(TRAINER),
        );
    }
}

#[test]
fn a_late_rank_is_named() {
    // Ranks 100 and 150 under a launcher; 150 is late, 100 waits for its message.
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(150, 50);
    late(&mut tale);
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![50];
    let analysis = analyse(&session);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    assert!(verdict.summary.contains("150"), "{}", verdict.summary);
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((bound - 1.0 / 0.35).abs() < 0.1, "{bound}");
}

/// Steps of 100 ms: server 100 waits for 150 and then for 160, which compute and then wait for it for 10.
fn served() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 50)
        .process(50, 1)
        .process(150, 50)
        .process(160, 50);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (computed, next) = (begin + 90.0, begin + 100.0);
        for (worker, from, to, own, socket) in [
            (150, begin + 0.5, computed - 2.0, computed - 2.0, 4),
            (160, computed - 1.9, computed, computed, 6),
        ] {
            tale.wait(
                TRAINER,
                from,
                to,
                RECV,
                On::Socket(socket),
                By::Sender(worker),
            );
            let on = On::Socket(socket + 1);
            tale.wait(worker, own + 0.1, next, RECV, on, By::Sender(TRAINER));
        }
    }
    tale
}

#[test]
fn who_brings_the_results_of_ranks_together_is_none_of_them() {
    let mut session = served().session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![TRAINER];
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_ne!(trainer.cast.trainer, TRAINER);
    let share = trainer.ns(Kind::Communication) / trainer.wall;
    assert!((share - 0.11).abs() < 0.03, "{share}");
    // The other one computes as long: no more than the waiting can go.
    let bound = trainer.bound(Kind::Communication);
    assert!((1.08..1.2).contains(&bound), "{bound}");
}

#[test]
fn what_another_rank_sends_is_no_input() {
    // A thread of rank 150 reads what 100 sends, and another one writes.
    const READER: u32 = 151;
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(150, 50);
    tale.thread(150, READER);
    late(&mut tale);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let sender = By::Sender(TRAINER);
        tale.wait(READER, begin, begin + 96.0, RECV, On::Socket(6), sender);
    }
    tale.ops(READER, 10.0, Op::Read, Class::Socket, 0, 80, 40 << 20, 5.0);
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![50];
    let analysis = analyse(&session);
    let ranks = analysis.trainer.iter().chain(&analysis.others);
    assert_eq!(ranks.clone().count(), 2);
    for rank in ranks {
        assert!(rank.cast.producers.is_empty(), "{:?}", rank.cast);
    }
}

#[test]
fn a_rank_that_the_first_one_made_is_no_worker() {
    // They send each other as much; whoever gives little back makes batches.
    for (back, kind) in [(40 << 20, "communication"), (1 << 20, "input-cpu")] {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1).process(150, TRAINER);
        late(&mut tale);
        for (tid, gives, gets) in [(TRAINER, back, 40 << 20), (150, 40 << 20, back)] {
            tale.ops(tid, 10.0, Op::Write, Class::Socket, 0, 80, gives, 5.0);
            tale.ops(tid, 10.0, Op::Read, Class::Socket, 0, 80, gets, 5.0);
        }
        let analysis = analyse(&tale.session(8000.0));
        assert_eq!(bottleneck(&analysis), kind);
    }
}

#[test]
fn a_service_of_this_host_is_no_rank() {
    // As much goes out as comes in, as with the log of an experiment; who answers runs another program.
    let told = |command: Option<&str>| {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1).outsider(900, "server");
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            let sender = By::Sender(900);
            tale.wait(
                TRAINER,
                begin + 40.0,
                begin + 96.0,
                RECV,
                On::Socket(6),
                sender,
            );
        }
        for op in [Op::Read, Op::Write] {
            tale.ops(TRAINER, 10.0, op, Class::Socket, 0, 80, 40 << 20, 5.0);
        }
        let mut session = tale.session(8000.0);
        if let Some(command) = command {
            session.host.outsiders.insert(900, vec![command.to_owned()]);
        }
        bottleneck(&analyse(&session)).to_owned()
    };
    assert_eq!(told(Some("tracker")), "network-io");
    assert_eq!(told(None), "communication");
}

#[test]
fn too_little_is_inconclusive() {
    let (tale, _) = read_bound(300.0, 40);
    let analysis = analyse(&tale.session(1000.0));
    assert_eq!(bottleneck(&analysis), "inconclusive");
}
