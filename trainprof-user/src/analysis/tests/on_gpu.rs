//! Stories of trainers that compute on a GPU, as they were seen on real ones: a thread of the engine's does the backward pass, results are
//! read back one by one, a checkpoint is fetched part by part.

use trainprof_common::op::{Class, Op};

use super::{
    clocks::{TWO, steps, two_parts, uneven},
    stories::TRAINER,
    tale::{By, FSYNC, FUTEX, On, Tale},
};
use crate::{
    analysis::{Kind, analyse, steps::Clock},
    record::fact::{GpuCallKind, PlaceClass},
};

const ENGINE: u32 = 101;
const WORD: u64 = 0x20_000;
const PYTHON: u32 = 3;

fn on_gpu() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, ENGINE);
    tale.place(PYTHON, "python3.12", PlaceClass::Python);
    tale
}

/// A backward pass: the engine's thread sleeps until it is called, the trainer until that is done.
fn backward(tale: &mut Tale, slept_since: f64, from: f64, to: f64) {
    tale.wait(
        ENGINE,
        slept_since,
        from,
        FUTEX,
        On::Futex(WORD + 0x10_000),
        By::Thread(TRAINER),
    );
    tale.wait(
        TRAINER,
        from,
        to,
        FUTEX,
        On::Futex(WORD),
        By::Thread(ENGINE),
    );
}

#[test]
fn backward_passes_are_steps_however_often_results_are_read_back() {
    for reads in [0_u32, 2, 20] {
        let mut tale = on_gpu();
        let (mut now, mut slept) = (5.0, 0.0);
        for step in 0..200 {
            let end = now + uneven(step, 30.0);
            // A batch is copied, which waits for the GPU too.
            tale.gpu_call(
                TRAINER,
                now + 1.0,
                now + 1.2,
                GpuCallKind::CopyAsync,
                1 << 20,
            );
            tale.synchronise(TRAINER, now + 1.2, now + 3.0);
            backward(&mut tale, slept, now + 6.0, now + 12.0);
            slept = now + 12.0;
            for read in 0..reads {
                let from = now + 13.0 + 0.7 * f64::from(read);
                tale.synchronise(TRAINER, from, from + 0.1);
            }
            now = end;
        }
        let found = steps(&tale, now).expect("steps");
        assert_eq!(found.clock, Clock::OwnThread, "{reads}");
        let count = found.spans.len();
        assert!((198..=200).contains(&count), "{reads}: {count}");
    }
}

#[test]
fn updates_after_much_that_is_done_for_all_of_them_are_one_step() {
    // An environment is stepped for 80 ms, then four updates of 1.5 ms each.
    let mut tale = on_gpu();
    let (mut now, mut slept) = (5.0, 0.0);
    for step in 0..100 {
        now += uneven(step, 80.0);
        for _ in 0..4 {
            backward(&mut tale, slept, now + 0.5, now + 1.2);
            slept = now + 1.2;
            now += 1.5;
        }
        tale.synchronise(TRAINER, now, now + 0.1);
    }
    let found = steps(&tale, now + 1.0).expect("steps");
    assert_eq!(found.clock, Clock::OwnThread);
    let count = found.spans.len();
    assert!((97..=100).contains(&count), "{count}");
}

#[test]
fn threads_that_compute_with_a_trainer_without_a_gpu_are_no_clock() {
    let mut tale = on_gpu();
    let (mut now, mut slept) = (5.0, 0.0);
    for step in 0..200 {
        for _ in 0..10 {
            backward(&mut tale, slept, now + 1.0, now + 2.0);
            slept = now + 2.0;
            now += 2.5;
        }
        now += uneven(step, 1.0);
    }
    let found = steps(&tale, now);
    assert!(found.is_none_or(|steps| steps.clock != Clock::OwnThread));
}

#[test]
fn a_thread_that_is_called_for_each_step_is_no_loader_when_the_watch_ends_while_it_sleeps() {
    // The last step writes a checkpoint, which takes as long as many steps. The engine's thread runs Python now and then.
    let mut tale = on_gpu();
    let (mut now, mut slept) = (5.0, 0.0);
    for step in 0..100 {
        backward(&mut tale, slept, now + 14.0, now + 16.5);
        slept = now + 16.5;
        tale.synchronise(TRAINER, now + 17.0, now + 18.0);
        tale.sample(ENGINE, now + 15.0, PYTHON);
        now += uneven(step, 20.0);
    }
    tale.wait(
        ENGINE,
        slept,
        now + 1500.0,
        FUTEX,
        On::Futex(WORD + 0x10_000),
        By::Nobody,
    );
    let analysis = analyse(&tale.session(now + 1500.0));
    let trainer = analysis.trainer.expect("a trainer");
    assert!(
        trainer.cast.producers.is_empty(),
        "{:?}",
        trainer.cast.producers
    );
}

#[test]
fn what_a_checkpoint_fetches_from_the_gpu_is_part_of_it() {
    // Every tenth step: ten tensors, each copied in 80 ms and written in 20, then synced for 100.
    let mut tale = on_gpu();
    let (mut now, mut slept, mut written) = (5.0, 0.0, 0.0);
    for step in 0..100_u32 {
        backward(&mut tale, slept, now + 6.0, now + 8.0);
        slept = now + 8.0;
        tale.synchronise(TRAINER, now + 8.0, now + 20.0);
        now += 20.0;
        if step % 10 != 9 {
            continue;
        }
        let begun = now;
        tale.touch(TRAINER, now, Op::Open, Class::File, 7, 0);
        for _ in 0..10 {
            tale.gpu_call(
                TRAINER,
                now + 1.0,
                now + 81.0,
                GpuCallKind::CopyAsync,
                64 << 20,
            );
            tale.touch(TRAINER, now + 82.0, Op::Write, Class::File, 7, 64 << 20);
            now += 102.0;
        }
        tale.wait(TRAINER, now, now + 100.0, FSYNC, On::File(5), By::Interrupt);
        now += 100.0;
        tale.touch(TRAINER, now, Op::Fsync, Class::File, 7, 0);
        written += now - begun;
        now += 1.0;
    }
    let analysis = analyse(&tale.session(now));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "checkpoint", "{}", verdict.summary);
    let share = verdict.share.expect("a share");
    assert!((share - written / now).abs() < 0.03, "{share}");
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(trainer.checkpoints.len(), 10);
}

#[test]
fn what_lies_between_a_copy_and_the_wait_for_what_is_computed_is_no_making_of_batches() {
    // A library that nobody knows works for 40 ms of each turn, after the batch was copied or before it is.
    let made = |before: GpuCallKind, after: GpuCallKind| {
        let (mut tale, ms) = two_parts(40.0, 25.0, 150, &TWO);
        let mut begin = 0.0;
        for turn in 0..150 {
            let end = begin + uneven(turn, 40.0);
            if turn > 0 {
                tale.gpu_call(TRAINER, begin - 3.0, begin - 0.1, before, 1 << 20);
            }
            tale.gpu_call(TRAINER, end + 0.1, end + 3.0, after, 1 << 20);
            begin = end + 25.0;
        }
        let trainer = analyse(&tale.session(ms)).trainer.expect("a trainer");
        trainer.ns(Kind::InputCpu) / trainer.wall
    };
    let launching = made(GpuCallKind::Copy, GpuCallKind::Synchronise);
    assert!(launching < 0.05, "{launching}");
    let making = made(GpuCallKind::Synchronise, GpuCallKind::Copy);
    assert!(making > 0.5, "{making}");
}
