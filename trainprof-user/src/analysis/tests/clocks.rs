//! From a story to its steps: clocks of loops whose consumer never waits, and stories that have none.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{DATA_PIPE, TRAINER, job, stall},
    tale::{By, FSYNC, FUTEX, On, POLL, READ, RECV, Tale},
};
use crate::{
    analysis::{Steps, analyse, steps::Clock},
    record::fact::{GpuCallKind, PlaceClass},
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

pub(super) fn steps(tale: &Tale, ms: f64) -> Option<Steps> {
    analyse(&tale.session(ms)).trainer.and_then(|t| t.steps)
}

/// Lengths that differ as real ones do, ms.
pub(super) fn uneven(step: u32, ms: f64) -> f64 {
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

/// A trainer that computes for 25 ms in each of 200 steps, and then waits for its loader thread for 5; in every tenth it takes another 35 ms,
/// in which `long` tells what it does from one time to another.
fn long_ones(long: impl Fn(&mut Tale, f64, f64)) -> Option<Steps> {
    let mut tale = alone();
    tale.thread(TRAINER, LOADER);
    let mut now = 1.0;
    for step in 0..200 {
        let begin = now;
        now += uneven(step, 25.0);
        if step % 10 == 9 {
            long(&mut tale, begin + 5.0, begin + 40.0);
            now += 35.0;
        }
        let (queue, by) = (On::Futex(0x9000), By::Thread(LOADER));
        tale.wait(TRAINER, now, now + 5.0, FUTEX, queue, by);
        tale.sample(LOADER, now + 1.0, PYTHON);
        now += 5.0;
    }
    steps(&tale, now)
}

#[test]
fn a_step_that_had_no_cpu_for_long_is_not_two() {
    let neighbour = 900;
    let found = long_ones(|tale, from, to| {
        tale.preempted(TRAINER, from, to, neighbour);
    });
    let found = found.expect("steps");
    assert_eq!((found.clock, found.spans.len()), (Clock::Queue, 199));
    // One that computed for so long may be.
    assert!(long_ones(|_, _, _| ()).is_none());
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
fn a_thread_that_does_a_part_of_each_step_is_no_loader() {
    // 10 ms of the trainer, then 15 ms of the helper that it calls. Two wakes end each wait: work done, lock given up.
    let mut tale = alone();
    tale.thread(TRAINER, LOADER);
    let step = 25.3;
    for turn in 0..300 {
        let now = f64::from(turn) * step;
        let wait = |tale: &mut Tale, tid, from: f64, to: f64, on, by| {
            tale.wait(
                tid,
                now + from,
                now + to,
                FUTEX,
                On::Futex(on),
                By::Thread(by),
            );
        };
        wait(&mut tale, TRAINER, 10.0, 25.0, 0x20_000, LOADER);
        wait(&mut tale, TRAINER, 25.05, 25.2, 0x30_000, LOADER);
        wait(&mut tale, LOADER, 25.2, step + 10.0, 0x10_000, TRAINER);
        tale.sample(TRAINER, now + 5.0, MODEL);
        tale.sample(LOADER, now + 15.0, MODEL);
        tale.sample(LOADER, now + 24.0, PYTHON);
    }
    let analysis = analyse(&tale.session(300.0 * step));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert!(trainer.cast.loader_threads.is_empty());
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "compute", "{}", verdict.summary);
}

#[test]
fn waits_for_the_gpu_are_steps_however_many_each_has() {
    // After 28 ms of computing, the last of them beside a copy, the loss is waited for; once it is there, numbers that are there too.
    for numbers in [0_u32, 1, 4] {
        let mut tale = alone();
        let mut now = 5.0;
        for step in 0..160 {
            now += uneven(step, 40.0);
            tale.gpu_call(TRAINER, now - 15.0, now - 13.0, GpuCallKind::Copy, 1 << 20);
            tale.synchronise(TRAINER, now - 12.0, now);
            for n in 0..numbers {
                let from = now + 0.2 + f64::from(n) * 0.5;
                tale.synchronise(TRAINER, from, from + 0.1);
            }
        }
        let found = steps(&tale, now + 10.0).expect("steps");
        assert_eq!(found.clock, Clock::GpuSync, "{numbers}");
        let count = found.spans.len();
        assert!((158..=159).contains(&count), "{numbers}: {count}");
        let p50 = found.quantile_ns(0.5) as f64 / 1e6;
        assert!((p50 - 41.8).abs() < 0.2, "{numbers}: {p50}");
    }
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
fn a_step_that_takes_long_between_two_of_its_calls_is_one_step() {
    // Three maps of a size 5 ms apart, then 20 ms of computing; in each twelfth step 19 ms between two of them.
    let mut tale = alone();
    let mut now = 0.0;
    for step in 0..240 {
        let late = if step % 12 == 5 { 14.0 } else { 0.0 };
        maps(&mut tale, now, 50 << 20);
        maps(&mut tale, now + 5.0 + late, 50 << 20);
        maps(&mut tale, now + 10.0 + late, 50 << 20);
        now += uneven(step, 35.0) + late;
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::OwnCalls);
    let count = found.spans.len();
    assert!(count.abs_diff(239) <= 2, "{count}");
}

#[test]
fn a_call_that_is_sometimes_made_twice_counts_no_steps() {
    // Maps of two sizes in each step, and of one of them another in each fortieth.
    let mut tale = alone();
    let mut now = 0.0;
    for step in 0..200 {
        maps(&mut tale, now, 50 << 20);
        maps(&mut tale, now + 8.0, 4 << 20);
        if step % 40 == 7 {
            maps(&mut tale, now + 22.0, 4 << 20);
        }
        now += uneven(step, 35.0);
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::OwnCalls);
    let count = found.spans.len();
    assert!(count.abs_diff(199) <= 1, "{count}");
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

/// Moves of the heap's end, one every 30 ms or so.
fn heap(tale: &mut Tale, moves: u32, bytes: u64) -> f64 {
    let mut now = 0.0;
    for step in 0..moves {
        now += uneven(step, 30.0);
        tale.touch(TRAINER, now, Op::Brk, Class::Memory, 0, bytes);
    }
    now
}

#[test]
fn a_heap_that_grows_by_what_each_step_keeps_has_a_clock() {
    let mut tale = alone();
    let now = heap(&mut tale, 200, 400 << 10);
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::OwnCalls);
    let count = found.spans.len();
    assert!(count.abs_diff(199) <= 1, "{count}");
}

#[test]
fn a_heap_that_grows_by_what_is_spare_has_none() {
    // Small allocations: the heap's end moves when the spare memory is used up, whenever that is.
    let mut tale = alone();
    let now = heap(&mut tale, 200, 132 << 10);
    assert!(steps(&tale, now).is_none(), "small allocations");
    let mut tale = alone();
    tale.library(TRAINER, "tcmalloc");
    let now = heap(&mut tale, 200, 1 << 20);
    assert!(steps(&tale, now).is_none(), "an allocator's own pieces");
}

#[test]
fn a_step_begins_where_its_batch_is_waited_for() {
    // Batches come in threes, the first of each late: waits of 100 ms, then none; work of 20 ms after a wait, else 10.
    let mut tale = job(2);
    let mut now = 0.0;
    for _ in 0..60 {
        for (wait, work) in [(100.0, 20.0), (0.0, 10.0), (0.0, 10.0)] {
            if wait > 0.0 {
                stall(&mut tale, now, now + wait, 201);
            } else {
                tale.touch(TRAINER, now, Op::Read, Class::Pipe, DATA_PIPE, 4);
            }
            now += wait + work;
        }
    }
    let found = steps(&tale, now).expect("steps");
    let lengths = found.lengths();
    let near = |ms: f64| {
        lengths
            .iter()
            .filter(|ns| (**ns as f64 / 1e6 - ms).abs() < 1.0)
            .count()
    };
    // Counted from batch to batch there would be steps of 20, 10 and 110 ms.
    assert!(near(20.0) + near(110.0) <= 1, "{lengths:?}");
    assert!(near(120.0) >= 58 && near(10.0) >= 118, "{lengths:?}");
}

#[test]
fn what_lasts_long_before_calls_are_noted_is_no_step() {
    // Steps of 20 ms; calls are noted from the 25th on. The first request that is noted was asked for when the helper thread that
    // writes it was last seen to be woken: in the first step.
    let mut tale = job(2);
    tale.thread(TRAINER, LOADER);
    for step in 0..120_u32 {
        let now = 10.0 + 20.0 * f64::from(step);
        let asked = By::Thread(TRAINER);
        let queue = On::Futex(0x10_000);
        match step {
            0 => {
                tale.wait(LOADER, 1.0, now, FUTEX, queue, asked);
            }
            1..25 => {}
            _ => {
                stall(&mut tale, now - 0.3, now, 201);
                if step > 25 {
                    tale.wait(LOADER, now - 19.0, now, FUTEX, queue, asked);
                }
                tale.touch(LOADER, now + 0.1, Op::Write, Class::Pipe, 88, 40);
            }
        }
    }
    let found = steps(&tale, 2410.0).expect("steps");
    let most = found.lengths().last().copied().unwrap_or(0);
    assert!(most < 30_000_000, "a step of {} ms", most / 1_000_000);
    assert!(found.spans.len().abs_diff(94) <= 2, "{}", found.spans.len());
}

#[test]
fn a_request_counts_from_when_it_was_made() {
    // The helper threads that write requests get a CPU at once, or only just before the next step.
    let mut tale = job(2);
    tale.thread(TRAINER, LOADER).thread(TRAINER, LOADER + 1);
    for step in 0..200_u32 {
        let now = 20.0 + 10.0 * f64::from(step);
        let (helper, late) = (LOADER + step % 2, if step % 2 == 0 { 9.8 } else { 0.1 });
        stall(&mut tale, now - 0.3, now, 201 + step % 2);
        tale.wait(
            helper,
            now - 9.0,
            now,
            FUTEX,
            On::Futex(0x10_000 * u64::from(helper)),
            By::Thread(TRAINER),
        );
        tale.touch(
            helper,
            now + late,
            Op::Write,
            Class::Pipe,
            88 + u64::from(step % 2),
            40,
        );
    }
    let found = steps(&tale, 2020.0).expect("steps");
    assert_eq!(found.clock, Clock::BatchRequests);
    let count = found.spans.len();
    assert!(count.abs_diff(199) <= 2, "{count}");
    let p50 = found.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 10.0).abs() < 0.1, "{p50}");
}

/// A trainer that makes its batches itself, in a library that nobody knows. `clocks`: ms between samples of each.
pub(super) fn two_parts(making: f64, computing: f64, turns: u32, clocks: &[f64]) -> (Tale, f64) {
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
pub(super) const TWO: [f64; 2] = [1000.0 / 46.0, 1000.0 / 53.0];

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
    // That it makes batches is a guess: nothing but the two parts tells it.
    assert!(verdict.confidence < 0.7, "{}", verdict.confidence);
    let finding = analysis.findings.iter().find(|f| f.kind == "input-cpu");
    let advice = &finding.expect("a finding").advice;
    assert!(advice.contains("if that work makes batches"), "{advice}");
    assert!(
        analysis
            .findings
            .iter()
            .all(|f| f.kind != "too-few-workers")
    );
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

#[test]
fn exchanges_that_nobody_waits_for_are_steps() {
    // Ranks 100 and 150. A thread of each exchanges when its step thread calls it; 150 is late but for every third step, where
    // 100 finds everything done and does not wait.
    const LAUNCHER: u32 = 50;
    const OTHER: u32 = 150;
    let mut tale = Tale::default();
    tale.process(LAUNCHER, 1)
        .process(TRAINER, LAUNCHER)
        .process(OTHER, LAUNCHER)
        .thread(TRAINER, TRAINER + 1)
        .thread(OTHER, OTHER + 1);
    let mut now = 0.0;
    let mut slept = 0.0;
    for step in 0..150 {
        let end = now + uneven(step, 40.0);
        let waited = step % 3 > 0;
        let called = if waited { end - 15.0 } else { end - 1.0 };
        let futex = |tale: &mut Tale, tid, from: f64, to: f64, on, by| {
            tale.wait(tid, from, to, FUTEX, On::Futex(on), By::Thread(by));
        };
        futex(&mut tale, TRAINER + 1, slept, called, 0x10_000, TRAINER);
        let socket = |tale: &mut Tale, tid, from: f64, to: f64, by| {
            tale.wait(tid, from, to, RECV, On::Socket(4), By::Sender(by));
        };
        let came = end - 0.3;
        socket(&mut tale, TRAINER + 1, called + 0.1, came, OTHER + 1);
        if waited {
            futex(
                &mut tale,
                TRAINER,
                called + 0.1,
                end - 0.1,
                0x20_000,
                TRAINER + 1,
            );
        }
        socket(&mut tale, OTHER + 1, came - 0.5, came - 0.1, TRAINER + 1);
        (now, slept) = (end, end);
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::Collectives);
    assert!(
        found.spans.len().abs_diff(149) <= 2,
        "{}",
        found.spans.len()
    );
    let p95 = found.quantile_ns(0.95) as f64 / 1e6;
    assert!((p95 - 43.6).abs() < 1.0, "{p95}");
}

/// Epochs of six batches with two workers each: 20 ms of computing, 15 ms until the old workers are gone, 10 ms of making new
/// ones, 15 ms until the first batch. Truly an epoch's first step takes 60 ms.
#[test]
fn making_the_next_workers_belongs_to_the_step_that_needs_them() {
    let mut tale = alone();
    let mut now = 0.0;
    for epoch in 0..12_u32 {
        let (first, second) = (201 + 10 * epoch, 202 + 10 * epoch);
        let pipe = 1000 + u64::from(epoch);
        let waits = |tale: &mut Tale, from: f64, to: f64, pipe, by| {
            tale.wait(TRAINER, from, to, POLL, On::Pipe(pipe), By::Thread(by));
        };
        if epoch > 0 {
            waits(&mut tale, now, now + 15.0, 5000 + pipe, first - 10);
            now += 15.0;
        }
        let born = now;
        now += 10.0;
        waits(&mut tale, now, now + 15.0, pipe, first);
        now += 15.0;
        let mut done = now;
        for batch in 0..6 {
            tale.touch(TRAINER, now, Op::Read, Class::Pipe, pipe, 4);
            done = now + 20.0;
            if batch < 5 {
                waits(&mut tale, done, done + 0.2, pipe, first);
                now = done + 0.2;
            }
        }
        now = done;
        tale.process(first, TRAINER)
            .process(second, TRAINER)
            .lived(first, born + 1.0, now + 14.0)
            .lived(second, born + 3.0, now + 12.0);
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::BatchHandOver);
    let lengths = found.lengths();
    let long = lengths.iter().filter(|ns| **ns > 50_000_000).count();
    assert_eq!(long, 11, "{lengths:?}");
    let max = lengths[lengths.len() - 1] as f64 / 1e6;
    assert!((max - 60.0).abs() < 1.5, "{max}");
}

/// Steps of 30 ms of computing, each after reading `reads` pieces of something of `class`, of which the last one takes until it
/// is there: 1 to 60 ms, never twice alike. `sets`: how many things take turns.
fn reading(class: Class, reads: u32, sets: u32) -> (Tale, f64) {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let mut now = 5.0;
    for step in 0..160_u32 {
        let set = u64::from(7 + step % sets);
        for _ in 1..reads {
            tale.touch(TRAINER, now, Op::Read, class, set, 4096);
            now += 0.2;
        }
        let late = f64::from(1 + step * 23 % 60);
        tale.wait(TRAINER, now, now + late, READ, On::File(5), By::Interrupt);
        now += late + 0.1;
        tale.touch(TRAINER, now, Op::Read, class, set, 1 << 20);
        now += 30.0;
    }
    (tale, now)
}

#[test]
fn bursts_of_reading_are_steps_however_long_they_take() {
    for (reads, sets) in [(3, 1), (1, 1), (3, 160)] {
        let (tale, ms) = reading(Class::File, reads, sets);
        let steps = steps(&tale, ms).expect("steps");
        let count = steps.spans.len();
        assert!(count.abs_diff(159) <= 1, "{reads} reads: {count}");
    }
}

#[test]
fn sources_that_are_read_in_turn_show_a_part_of_the_steps_each() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..160_u32 {
        let now = 5.0 + f64::from(step) * 40.0;
        tale.touch(
            TRAINER,
            now,
            Op::Read,
            Class::Socket,
            0,
            u64::from(4 + step % 2),
        );
    }
    let steps = steps(&tale, 6400.0).expect("steps");
    assert!(
        steps.spans.len().abs_diff(159) <= 1,
        "{}",
        steps.spans.len()
    );
}

#[test]
fn files_that_are_written_are_no_batches() {
    let mut tale = alone();
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        // Two of three steps on, a file's writing takes long.
        for (n, at) in [0.0, 11.0, 22.0].into_iter().enumerate() {
            let now = begin + at;
            tale.touch(TRAINER, now, Op::Open, Class::File, 3 + n as u64, 0);
            tale.touch(
                TRAINER,
                now + 0.1,
                Op::Write,
                Class::File,
                3 + n as u64,
                20_000,
            );
        }
        tale.sample(TRAINER, begin + 50.0, MODEL);
    }
    let analysis = analyse(&tale.session(8000.0));
    let trainer = analysis.trainer.expect("a trainer");
    assert!(trainer.own_batches.is_empty() && trainer.steps.is_none());
}

#[test]
fn turns_that_nobody_waited_in_are_told_by_what_was_done_in_them() {
    // Each batch is worked on for 20 ms; a loader thread has one ready, or two, or three when it is asked.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, LOADER);
    let (mut now, mut steps_made) = (5.0, 0);
    for turn in 0..80_u32 {
        let ready = [1, 3, 2, 1][turn as usize % 4];
        let (from, to) = (
            now + 20.0 * f64::from(ready),
            now + 20.0 * f64::from(ready) + 35.0,
        );
        tale.wait(LOADER, now, to - 1.0, READ, On::File(5), By::Interrupt);
        tale.ops(LOADER, now, Op::Read, Class::File, 5, 1, 1 << 20, 30.0);
        tale.wait(
            TRAINER,
            from,
            to,
            FUTEX,
            On::Futex(0x9000),
            By::Thread(LOADER),
        );
        (now, steps_made) = (to, steps_made + ready);
    }
    let steps = steps(&tale, now).expect("steps");
    assert_eq!(steps.clock, Clock::Queue);
    let count = steps.spans.len() as u32;
    assert!(count.abs_diff(steps_made) <= 3, "{count} of {steps_made}");
    let p50 = steps.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 55.0).abs() < 1.0, "{p50}");
}

#[test]
fn exchanges_with_a_rank_that_is_not_watched_are_steps() {
    // It is met over a socket: as much goes out as comes in.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "python3");
    for step in 0..80 {
        let from = f64::from(step) * 100.0 + 40.0;
        let (on, by) = (On::Socket(6), By::Sender(900));
        tale.wait(TRAINER, from, from + uneven(step, 50.0), RECV, on, by);
    }
    for op in [Op::Read, Op::Write] {
        tale.ops(TRAINER, 10.0, op, Class::Socket, 0, 80, 40 << 20, 5.0);
    }
    let found = steps(&tale, 8000.0).expect("steps");
    assert_eq!(found.clock, Clock::Collectives);
    assert!((78..=80).contains(&found.spans.len()), "{found:?}");
}

#[test]
fn the_rest_of_a_batch_that_comes_late_is_no_step() {
    // A length, what fits into the pipe, and the rest: before that, in three batches of five, the trainer has no CPU for 4 ms.
    let (mut tale, neighbour) = (job(1), 900);
    let mut now = 1.0;
    for step in 0..200_u32 {
        stall(&mut tale, now, now + 0.5, 201);
        now += 0.55;
        tale.touch(TRAINER, now, Op::Read, Class::Pipe, DATA_PIPE, 64_712);
        if step * 7 % 5 < 3 {
            tale.preempted(TRAINER, now + 0.01, now + 4.0, neighbour);
            now += 4.0;
        }
        now += 0.03;
        tale.touch(TRAINER, now, Op::Read, Class::Pipe, DATA_PIPE, 36_864);
        now += uneven(step, 30.0);
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::BatchHandOver);
    assert!(
        found.spans.len().abs_diff(199) <= 1,
        "{}",
        found.spans.len()
    );
    let lengths = found.lengths();
    let alike = |ns: &&u64| (25_000_000..45_000_000).contains(*ns);
    assert!(lengths.iter().filter(alike).count() >= 197, "{lengths:?}");
}
