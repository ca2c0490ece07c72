//! From a story to its steps: loops that are known by their backward passes.

use super::{
    clocks::{steps, uneven},
    stories::{TRAINER, batch, feeder, job, stall},
    tale::{By, FUTEX, On, Tale, at},
};
use crate::{analysis::steps::Clock, record::fact::PlaceClass};

const STEPS: u32 = 160;

/// A loop of 30 ms a step on what is in memory; the GPU is waited for in each `seldom`th. Its end, ms.
fn training(seldom: Option<u32>) -> (Tale, f64) {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other);
    let mut now = 5.0;
    for step in 0..STEPS {
        let ms = uneven(step, 30.0);
        tale.sample(TRAINER, now + 1.0, 1);
        tale.backward(TRAINER, now + 0.5 * ms);
        now += ms;
        if seldom.is_some_and(|n| step % n == n - 1) {
            tale.synchronise(TRAINER, now - 3.0, now);
        }
    }
    (tale, now)
}

#[test]
fn a_loop_on_what_is_in_memory_has_a_step_at_each_backward_pass() {
    let (tale, end) = training(None);
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    assert_eq!(found.spans.len(), STEPS as usize - 1);
    let p50 = found.quantile_ns(0.5) as f64 / 1e6;
    assert!((30.0..33.0).contains(&p50), "{p50}");
    // Alone no clock is as sure as with a second one.
    assert!(found.confidence < 0.9, "{}", found.confidence);
}

#[test]
fn who_waits_for_the_gpu_in_each_tenth_step_has_all_ten() {
    let (tale, end) = training(Some(10));
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    assert_eq!(found.spans.len(), STEPS as usize - 1);
}

#[test]
fn losses_in_turn_are_one_step() {
    // The second of each step's two is begun elsewhere in the program; from where is known after the first tenth.
    let (mut tale, end) = (Tale::default(), 6_000.0);
    tale.process(TRAINER, 1);
    let mut now = 5.0;
    for step in 0..STEPS {
        let ms = uneven(step, 30.0);
        let known = step >= STEPS / 10;
        for loss in [1, 2] {
            let path = if known { 70 + loss } else { 0 };
            tale.backward_from(TRAINER, now + 0.4 * ms * loss as f64, path);
        }
        now += ms;
    }
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    assert_eq!(found.spans.len(), STEPS as usize - 1);
}

#[test]
fn backward_passes_make_waits_for_the_gpu_surer() {
    let (tale, end) = training(Some(1));
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::GpuSync);
    let others = [(Clock::BackwardPass, STEPS as usize - 1)];
    assert_eq!(found.others, others);
    assert!(found.confidence > 0.95, "{}", found.confidence);
}

/// A trainer with a worker. In each step it begins `passes` backward passes; after every fifth one it evaluates with as many batches as
/// that says. Its end, ms.
fn fed(passes: u32, evaluated: u32) -> (Tale, f64) {
    let mut tale = job(1);
    let mut now = 5.0;
    for step in 0..STEPS {
        let batches = if step % 5 == 4 { 1 + evaluated } else { 1 };
        for n in 0..batches {
            let since = now;
            stall(&mut tale, now, now + 8.0, 201);
            batch(&mut tale, 201, since + 0.2, 6.0, now + 7.8);
            now += 8.0;
            let ms = uneven(step, 20.0);
            if n == 0 {
                for pass in 0..passes {
                    let at = now + 0.4 * ms + 0.2 * ms * f64::from(pass);
                    tale.backward(TRAINER, at);
                }
            }
            now += ms;
        }
    }
    (tale, now)
}

#[test]
fn batches_are_steps_where_each_has_its_passes() {
    for passes in [1, 2, 3] {
        let (tale, end) = fed(passes, 0);
        let found = steps(&tale, end).expect("steps");
        assert_eq!(found.clock, Clock::BatchHandOver, "{passes}");
        let count = found.spans.len();
        assert!((158..=160).contains(&count), "{passes}: {count}");
    }
}

#[test]
fn batches_that_nothing_is_learned_from_are_no_steps() {
    let (tale, end) = fed(1, 2);
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    let count = found.spans.len();
    assert!((158..=160).contains(&count), "{count}");
}

#[test]
fn passes_that_were_seen_late_say_nothing_against_batches() {
    let (mut tale, end) = fed(1, 0);
    tale.passes_from(0.3 * end);
    let found = steps(&tale, end).expect("steps");
    assert_eq!(found.clock, Clock::BatchHandOver);
}

#[test]
fn many_batches_that_are_handed_over_at_once_are_as_many_steps() {
    // Shards of four, each 30 ms a batch; every fourth gap between passes has the hand-over in it, and no more.
    let (mut tale, mut now) = (job(1), 5.0);
    for _ in 0..STEPS / 4 {
        let since = now;
        stall(&mut tale, now, now + 0.2, 201);
        batch(&mut tale, 201, since - 90.0, 60.0, now + 0.1);
        for step in 0..4 {
            let ms = uneven(step, 30.0);
            tale.backward(TRAINER, now + 0.5 * ms);
            now += ms;
        }
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    assert!(
        found.spans.len() >= STEPS as usize - 3,
        "{}",
        found.spans.len()
    );
}

#[test]
fn as_many_batches_as_happen_to_be_handed_over_together_are_as_many_steps() {
    // A table of 8, 16 or 24 batches each time, for which the trainer waits.
    let (mut tale, mut now, mut all) = (job(1), 5.0, 0);
    for table in 0..14 {
        let since = now;
        now += 200.0;
        stall(&mut tale, since, now, 201);
        batch(&mut tale, 201, since - 90.0, 260.0, now - 0.1);
        for step in 0..8 * (1 + table % 3) {
            let ms = uneven(step, 15.0);
            tale.backward(TRAINER, now + 0.5 * ms);
            now += ms;
            all += 1;
        }
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    let count = found.spans.len();
    assert!(count.abs_diff(all) <= 2, "{count} of {all}");
}

#[test]
fn batches_are_steps_where_one_pass_learns_from_several() {
    // Losses of two or three batches are added up before the pass.
    for several in [2, 3] {
        let mut tale = job(1);
        let mut now = 5.0;
        for step in 0..STEPS {
            stall(&mut tale, now, now + 8.0, 201);
            batch(&mut tale, 201, now + 0.2, 6.0, now + 7.8);
            now += 8.0 + uneven(step, 20.0);
            if step % several == several - 1 {
                tale.backward(TRAINER, now);
                now += 15.0;
            }
        }
        let found = steps(&tale, now).expect("steps");
        assert_eq!(found.clock, Clock::BatchHandOver, "{several}");
        let count = found.spans.len();
        assert!((158..=160).contains(&count), "{several}: {count}");
    }
}

#[test]
fn a_step_begins_with_its_batch_and_not_with_a_lock() {
    // After each pass the trainer wants the interpreter's lock, which who hands it its batches lets go.
    const GIL: u64 = 0x7000;
    let mut tale = job(1);
    tale.interpreter(TRAINER, GIL, 0x1000);
    let mut now = 5.0;
    let mut begins = Vec::new();
    for step in 0..STEPS {
        begins.push(at(now));
        // Every fifth has three batches, two of which nothing is learned from.
        for n in 0..if step % 5 == 4 { 3 } else { 1 } {
            stall(&mut tale, now, now + 8.0, 201);
            batch(&mut tale, 201, now + 0.2, 6.0, now + 7.8);
            now += 8.0 + uneven(step, 20.0);
            if n == 0 {
                tale.backward(TRAINER, now - 15.0);
                let by = By::Thread(feeder(201));
                tale.wait(TRAINER, now - 9.0, now - 8.0, FUTEX, On::Futex(GIL), by);
            }
        }
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::BackwardPass);
    // Where batches of an evaluation follow a pass they are taken to begin the next step.
    let as_told = found.spans.iter().filter(|span| begins.contains(&span.0));
    let part = as_told.count() as f64 / found.spans.len() as f64;
    assert!(part >= 0.75, "{part}");
}
