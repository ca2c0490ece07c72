//! Stories of jobs that are slowed down while their calls are counted, which they are for a part of the watch.

use super::{
    python::alone,
    stories::{TRAINER, close, feeds, job, share, stall, trainer},
    tale::{By, FSYNC, On, Tale},
};
use crate::analysis::{Kind, Trainer, analyse, facts::Facts, steps::Clock};
use trainprof_common::op::{Class, Op};

/// Length of the watch, seconds.
const SECONDS: u32 = 20;

/// Calls are counted in the first so many of ten seconds.
const COUNTED: u32 = 3;

fn is_counted(second: u32) -> bool {
    second % 10 < COUNTED
}

/// A worker makes batches all the time. A step takes 200 ms while calls are counted, in 150 of which the trainer waits, and 100 ms, 50 of
/// them, while they are not. Those have a backward pass for which `has_pass` is true, of the second and the step's number.
fn slowed_while_counted(has_pass: impl Fn(u32, u32) -> bool) -> Tale {
    let mut tale = job(1);
    let mut number = 0;
    for second in 0..SECONDS {
        let begin = f64::from(second) * 1e3;
        let (steps, length) = if is_counted(second) {
            (5, 200.0)
        } else {
            tale.without_calls(begin, begin + 1e3);
            (10, 100.0)
        };
        for step in 0..steps {
            let begin = begin + f64::from(step) * length;
            let there = begin + length - 50.0;
            feeds(&mut tale, 201, begin + 0.2, there - 0.2);
            stall(&mut tale, begin, there, 201);
            if has_pass(second, number) {
                tale.backward(TRAINER, there + 10.0);
            }
            number += 1;
        }
    }
    tale
}

fn of(tale: &Tale) -> Trainer {
    trainer(tale, f64::from(SECONDS) * 1e3)
}

/// Told by the six seconds in which calls were counted.
fn is_told_by_counted_time(trainer: &Trainer) {
    close(share(trainer, Kind::InputCpu), 0.75, "input-cpu");
    let steps = trainer.steps.as_ref().expect("steps");
    assert!((26..=30).contains(&steps.spans.len()), "{steps:?}");
    assert_eq!(steps.quantile_ns(0.5) / 1_000_000, 200);
    // CPU time is of the same time: a worker, and a quarter of the trainer.
    let cpus = trainer.terms.cpu / trainer.wall;
    assert!((1.0..1.6).contains(&cpus), "{cpus}");
}

#[test]
fn passes_tell_the_steps_of_time_without_calls_as_well() {
    let analysis = analyse(&slowed_while_counted(|_, _| true).session(f64::from(SECONDS) * 1e3));
    // What trainprof itself does to steps is no tail.
    let kinds: Vec<_> = analysis.findings.iter().map(|f| f.kind).collect();
    assert!(!kinds.contains(&"tail-latency"), "{kinds:?}");
    let trainer = analysis.trainer.expect("a trainer");
    let steps = trainer.steps.as_ref().expect("steps");
    assert_eq!(steps.clock, Clock::BackwardPass);
    // 6 s of 5 a second, and 14 of 10.
    assert!((168..=170).contains(&steps.spans.len()), "{steps:?}");
    assert_eq!(steps.quantile_ns(0.5) / 1_000_000, 100);
    let counted = steps.others.first().expect("another clock");
    assert!((26..=30).contains(&counted.1), "{counted:?}");
    close(
        share(&trainer, Kind::InputCpu),
        (6.0 * 0.75 + 14.0 * 0.5) / 20.0,
        "input-cpu",
    );
}

/// A step thread makes its batches itself: in 140 of the 200 ms that a step takes while calls are counted, and 60 of 100 while they are not.
fn alone_slowed_while_counted() -> Tale {
    let mut tale = alone("Data.__getitem__", false);
    let (mut loads, mut computes) = (Vec::new(), Vec::new());
    for second in 0..SECONDS {
        let begin = f64::from(second) * 1e3;
        let (steps, length, load) = if is_counted(second) {
            (5, 200, 140)
        } else {
            tale.without_calls(begin, begin + 1e3);
            (10, 100, 60)
        };
        for step in 0..steps {
            let begin = begin + f64::from(step * length);
            for ms in (10..length).step_by(20) {
                let of = if ms < load { &mut loads } else { &mut computes };
                of.push(begin + f64::from(ms));
            }
            for ms in (0..load).step_by(2) {
                let when = begin + f64::from(ms);
                tale.touch(TRAINER, when, Op::Read, Class::File, 9, 4096);
            }
            tale.backward(TRAINER, begin + f64::from(load) + 10.0);
        }
    }
    tale.stack(1, &[4, 2, 1], TRAINER, loads.into_iter()).stack(
        2,
        &[3, 1],
        TRAINER,
        computes.into_iter(),
    );
    tale
}

#[test]
fn batches_that_the_step_thread_makes_are_seen_without_calls_where_stacks_show_them() {
    let trainer = of(&alone_slowed_while_counted());
    let steps = trainer.steps.as_ref().expect("steps");
    assert_eq!(steps.clock, Clock::BackwardPass);
    assert!((168..=170).contains(&steps.spans.len()), "{steps:?}");
    let truth = (6.0 * 0.7 + 14.0 * 0.6) / 20.0;
    close(share(&trainer, Kind::InputCpu), truth, "input-cpu");
}

#[test]
fn stacks_of_time_without_calls_do_not_count_beside_calls() {
    let session = alone_slowed_while_counted().session(f64::from(SECONDS) * 1e3);
    let of = |facts: &Facts| facts.python_samples(TRAINER).len();
    // One each 20 ms; calls are counted for six of twenty seconds, the last of which is not one of them.
    assert_eq!(of(&Facts::new(&session)), 300);
    let all = Facts::of_all_time(&session).expect("time without calls");
    assert_eq!(of(&all), 1000);
}

#[test]
fn without_passes_all_through_only_counted_time_tells() {
    let only_then = slowed_while_counted(|second, _| is_counted(second));
    is_told_by_counted_time(&of(&only_then));
    is_told_by_counted_time(&of(&slowed_while_counted(|_, _| false)));
    let analysis = analyse(&only_then.session(f64::from(SECONDS) * 1e3));
    assert!(analysis.steps_of_all.is_none());
}

#[test]
fn passes_of_several_batches_are_no_steps_of_time_without_calls() {
    is_told_by_counted_time(&of(&slowed_while_counted(|_, number| number % 2 == 0)));
}

#[test]
fn checkpoints_are_looked_for_while_calls_are_counted() {
    let mut tale = slowed_while_counted(|_, _| true);
    for second in (0..SECONDS).filter(|second| is_counted(*second)) {
        // After the batch of the first step, 45 ms before the next begins.
        let begin = f64::from(second) * 1e3 + 155.0;
        tale.touch(TRAINER, begin, Op::Write, Class::File, 9, 50_000_000);
        tale.wait(
            TRAINER,
            begin + 2.0,
            begin + 40.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
        tale.touch(TRAINER, begin + 40.0, Op::Fsync, Class::File, 9, 0);
    }
    let analysis = analyse(&tale.session(f64::from(SECONDS) * 1e3));
    let trainer = analysis.trainer.expect("a trainer");
    assert!(!trainer.checkpoints.is_empty());
    let steps = trainer.steps.as_ref().expect("steps");
    assert!(steps.spans.len() <= 30, "{steps:?}");
    // How many there were, and how long they took, passes tell all the same.
    let all = analysis.steps_of_all.expect("steps of all of the watch");
    assert!((168..=170).contains(&all.spans.len()), "{all:?}");
    assert_eq!(all.quantile_ns(0.5) / 1_000_000, 100);
}

#[test]
fn who_waits_for_files_without_calls_may_write_checkpoints_there() {
    let mut tale = slowed_while_counted(|_, _| true);
    for second in (0..SECONDS).filter(|second| !is_counted(*second)) {
        let begin = f64::from(second) * 1e3 + 55.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 40.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
    }
    is_told_by_counted_time(&of(&tale));
}
