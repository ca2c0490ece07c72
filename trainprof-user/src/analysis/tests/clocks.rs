//! From a story to its steps: clocks of loops whose consumer never waits, and stories that have none.

use trainprof_common::op::{Class, Op};

use super::{
    stories::TRAINER,
    tale::{By, FSYNC, FUTEX, On, Tale},
};
use crate::{
    analysis::{Steps, analyse, steps::Clock},
    record::fact::PlaceClass,
};

const LOADER: u32 = 101;
const MODEL: u32 = 1;
const DECODER: u32 = 2;
const PYTHON: u32 = 3;

fn alone() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    tale.place(MODEL, "libtorch_cpu.so", PlaceClass::Other)
        .place(DECODER, "libpicture.so", PlaceClass::Other)
        .place(PYTHON, "python3.11", PlaceClass::Python);
    tale
}

fn steps(tale: &Tale, ms: f64) -> Option<Steps> {
    analyse(&tale.session(ms)).trainer.and_then(|t| t.steps)
}

/// Lengths that differ as real ones do, ms.
fn uneven(step: u32, ms: f64) -> f64 {
    ms * (1.0 + 0.1 * f64::from(step * 7 % 11) / 11.0)
}

fn maps(tale: &mut Tale, at: f64, bytes: u64) {
    tale.touch(TRAINER, at, Op::Mmap, Class::Memory, 0, bytes);
}

#[test]
fn a_queue_that_is_always_full_has_a_clock() {
    // Two loader threads wait for room; the trainer takes a batch every 30 ms or so from either in turn.
    let mut tale = alone();
    tale.thread(TRAINER, LOADER).thread(TRAINER, LOADER + 1);
    let mut now = 0.0;
    let mut since = [0.0, 0.0];
    for step in 0..200 {
        now += uneven(step, 30.0);
        let loader = step % 2;
        tale.wait(
            LOADER + loader,
            since[loader as usize] + 2.0,
            now,
            FUTEX,
            On::Futex(0x10_000 * u64::from(loader + 1)),
            By::Thread(TRAINER),
        );
        tale.sample(LOADER + loader, now + 1.0, PYTHON);
        since[loader as usize] = now;
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::Queue);
    assert_eq!(found.spans.len(), 199);
    let p50 = found.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 31.4).abs() < 1.0, "{p50}");
}

#[test]
fn threads_of_a_parallel_region_are_no_clock() {
    // Three times a step the trainer wakes two threads at once; they never run the interpreter.
    let mut tale = alone();
    tale.thread(TRAINER, LOADER).thread(TRAINER, LOADER + 1);
    for region in 0..400 {
        let now = f64::from(region) * 20.0;
        for thread in 0..2 {
            tale.wait(
                LOADER + thread,
                now + 10.0,
                now + 19.9,
                FUTEX,
                On::Futex(0x10_000 * u64::from(thread + 1)),
                By::Thread(TRAINER),
            );
            tale.sample(LOADER + thread, now + 5.0, MODEL);
        }
    }
    assert!(steps(&tale, 8000.0).is_none());
}

#[test]
fn several_calls_in_each_step_are_one_step() {
    // Three maps of a size 5 ms apart, then 20 ms of computing.
    let mut tale = alone();
    let mut now = 0.0;
    for step in 0..200 {
        for call in 0..3 {
            maps(&mut tale, now + 5.0 * f64::from(call), 50 << 20);
        }
        now += uneven(step, 35.0);
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::OwnCalls);
    assert!(
        found.spans.len().abs_diff(199) <= 2,
        "{}",
        found.spans.len()
    );
    assert!(found.confidence < 0.9, "{}", found.confidence);
}

#[test]
fn calls_that_stop_or_disagree_are_no_clock() {
    // A cache that fills in the first quarter.
    let mut tale = alone();
    for step in 0..60 {
        maps(&mut tale, f64::from(step) * 30.0, 1 << 20);
    }
    assert!(steps(&tale, 8000.0).is_none(), "a part of the watch");
    // One size every 20 ms, another every 80: either may be a step.
    let mut tale = alone();
    for step in 0..400 {
        maps(&mut tale, f64::from(step) * 20.0, 1 << 20);
        if step % 4 == 0 {
            maps(&mut tale, f64::from(step) * 20.0 + 3.0, 64 << 20);
        }
    }
    assert!(steps(&tale, 8000.0).is_none(), "two clocks");
    // A line of the log, which may come every few steps.
    let mut tale = alone();
    for step in 0..400 {
        tale.touch(
            TRAINER,
            f64::from(step) * 20.0,
            Op::Write,
            Class::File,
            9,
            80,
        );
    }
    assert!(steps(&tale, 8000.0).is_none(), "a log");
}

#[test]
fn checkpoints_are_no_steps() {
    let mut tale = alone();
    tale.fileset(5, "/ckpt", "ext4");
    for step in 0..30 {
        let begin = f64::from(step) * 400.0;
        maps(&mut tale, begin + 300.5, 8 << 20);
        tale.touch(TRAINER, begin + 300.0, Op::Write, Class::File, 3, 8 << 20);
        tale.wait(
            TRAINER,
            begin + 301.0,
            begin + 390.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
        tale.touch(TRAINER, begin + 390.0, Op::Fsync, Class::File, 3, 0);
    }
    assert!(steps(&tale, 12_000.0).is_none());
}

/// A trainer that makes its batches itself, in a library that nobody knows. `clocks`: ms between samples of each.
fn two_parts(making: f64, computing: f64, turns: u32, clocks: &[f64]) -> (Tale, f64) {
    let mut tale = alone();
    let mut edges = Vec::new();
    let mut end = 0.0;
    for turn in 0..turns {
        let begin = end;
        end = begin + uneven(turn, making) + computing;
        edges.push((begin, begin + uneven(turn, making)));
    }
    let mut times: Vec<f64> = clocks
        .iter()
        .flat_map(|ms| (0..(end / ms) as u32).map(move |n| 3.0 + f64::from(n) * ms))
        .collect();
    times.sort_by(f64::total_cmp);
    for now in times {
        let inside = edges.iter().any(|(from, to)| (*from..*to).contains(&now));
        tale.sample(TRAINER, now, if inside { DECODER } else { MODEL });
    }
    (tale, end)
}

/// Two clocks at rates that do not go together, as they are recorded.
const TWO: [f64; 2] = [1000.0 / 46.0, 1000.0 / 53.0];

#[test]
fn batches_that_the_trainer_makes_itself_are_steps_and_input() {
    let (tale, ms) = two_parts(40.0, 25.0, 150, &TWO);
    let analysis = analyse(&tale.session(ms));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    let found = trainer.steps.as_ref().expect("steps");
    assert_eq!(found.clock, Clock::OwnBatches);
    assert!(
        found.spans.len().abs_diff(149) <= 2,
        "{}",
        found.spans.len()
    );
    let p50 = found.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 66.8).abs() < 3.0, "{p50}");
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "input-cpu", "{}", verdict.summary);
    let share = verdict.share.expect("a share");
    assert!((share - 41.8 / 66.8).abs() < 0.03, "{share}");
}

#[test]
fn parts_shorter_than_samples_and_one_part_alone_are_no_steps() {
    let (tale, ms) = two_parts(5.0, 4.0, 1000, &TWO);
    assert!(steps(&tale, ms).is_none(), "too fast");
    let (tale, ms) = two_parts(0.0, 25.0, 300, &TWO);
    assert!(steps(&tale, ms).is_none(), "computing alone");
}

#[test]
fn samples_at_even_intervals_count_no_steps() {
    // 5 and 4 ms look like 70 and 60 ms to a clock of 9.9 ms; shares are right all the same.
    for (making, computing) in [(5.0, 4.0), (40.0, 25.0)] {
        let (tale, ms) = two_parts(
            making,
            computing,
            (10_000.0 / (making + computing)) as u32,
            &[9.9],
        );
        let analysis = analyse(&tale.session(ms));
        let trainer = analysis.trainer.as_ref().expect("a trainer");
        assert!(trainer.steps.is_none(), "{making}");
    }
}
