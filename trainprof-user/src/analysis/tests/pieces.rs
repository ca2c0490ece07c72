//! Batches that come in pieces: through a program's pipe, or through a helper thread.

use trainprof_common::op::{Class, Op};

use super::{
    clocks::{steps, uneven},
    stories::{DATA_PIPE, TRAINER, feeder, feeds, job},
    tale::{By, FUTEX, On, READ, Tale},
};
use crate::analysis::steps::Clock;

/// A program writes batches in 16 pieces of a pipe's page size, one a millisecond; the trainer works for 4 ms on each.
fn through_a_programs_pipe() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(201, TRAINER);
    for batch in 0..400 {
        let begin = f64::from(batch) * 20.0;
        for piece in 0..16 {
            let from = begin + f64::from(piece);
            let by = By::Thread(201);
            tale.wait(TRAINER, from, from + 0.9, READ, On::Pipe(DATA_PIPE), by)
                .touch(TRAINER, from + 0.9, Op::Read, Class::Pipe, DATA_PIPE, 8192);
        }
    }
    tale
}

#[test]
fn waits_that_only_sums_tell_are_no_work_on_a_batch() {
    let found = |tale: &Tale| steps(tale, 8000.0).expect("a clock").spans.len();
    let mut tale = through_a_programs_pipe();
    assert!(found(&tale).abs_diff(400) <= 4);
    for second in [2.0, 3.0, 5.0] {
        tale.summed(second * 1000.0, second * 1000.0 + 1000.0);
    }
    let count = found(&tale);
    assert!(count.abs_diff(400) <= 8, "{count}");
}

/// Two workers make pieces, a thread of the trainer takes them; four make a batch, on which the trainer works for 4 ms of 16. In each
/// step of so many it waits for that thread in the midst of that, too.
fn taken_by_a_helper(interrupted: u32) -> (usize, u64) {
    let helper = 101;
    let mut tale = job(2);
    tale.thread(TRAINER, helper);
    let mut now = 0.0;
    for step in 0..400 {
        let begin = now;
        // In one step of 25 the first two pieces came while the trainer worked on the last batch: these two it takes at once.
        let waited = if step % 25 == 24 { 2 } else { 4 };
        for piece in 0..waited {
            let worker = 201 + piece % 2;
            let from = now;
            now += uneven(step + piece, 3.0);
            feeds(&mut tale, worker, from, now - 0.1);
            let by = By::Thread(feeder(worker));
            tale.wait(helper, from, now - 0.05, READ, On::Pipe(DATA_PIPE), by)
                .touch(helper, now - 0.04, Op::Read, Class::Pipe, DATA_PIPE, 4)
                .wait(
                    TRAINER,
                    from + 0.01,
                    now,
                    FUTEX,
                    On::Futex(0x9000),
                    By::Thread(helper),
                );
        }
        now = now.max(begin) + 4.0;
        if step % interrupted == 0 {
            let (from, to) = (now - 2.6, now - 2.3);
            let by = By::Thread(helper);
            tale.wait(TRAINER, from, to, FUTEX, On::Futex(0xa000), by);
        }
    }
    let steps = steps(&tale, now).expect("a clock");
    assert_eq!(steps.clock, Clock::BatchHandOver);
    (steps.spans.len(), steps.quantile_ns(0.5))
}

#[test]
fn what_a_helper_thread_takes_in_pieces_is_one_batch_when_the_step_thread_has_them_all() {
    for interrupted in [1000, 10] {
        let (count, p50) = taken_by_a_helper(interrupted);
        assert!(count.abs_diff(400) <= 4, "{interrupted}: {count}");
        assert!(p50.abs_diff(16_500_000) < 500_000, "{interrupted}: {p50}");
    }
}

#[test]
fn a_step_thread_that_waits_for_a_helper_now_and_then_takes_a_batch_with_each_message() {
    // It works for 10 ms on each, and waits for the helper before one in eight or so: then for the item, and for the lock beside it.
    let helper = 101;
    let mut tale = job(2);
    tale.thread(TRAINER, helper);
    for step in 0..400_u32 {
        let begin = f64::from(step) * 10.0;
        let worker = 201 + step % 2;
        feeds(&mut tale, worker, begin - 5.0, begin - 0.6);
        let by = By::Thread(feeder(worker));
        tale.wait(
            helper,
            begin - 5.0,
            begin - 0.5,
            READ,
            On::Pipe(DATA_PIPE),
            by,
        )
        .touch(helper, begin - 0.5, Op::Read, Class::Pipe, DATA_PIPE, 4);
        if step % 8 == 0 || step * 7 % 29 == 3 {
            for (from, to) in [(-0.4, -0.2), (-0.15, -0.1)] {
                let by = By::Thread(helper);
                let (from, to) = (begin + from, begin + to);
                tale.wait(TRAINER, from, to, FUTEX, On::Futex(0x9000), by);
            }
        }
    }
    let steps = steps(&tale, 4000.0).expect("a clock");
    let count = steps.spans.len();
    assert!(count.abs_diff(400) <= 8, "{count} by {:?}", steps.clock);
}

/// Three processes that the trainer asks and waits for in each step, each through a socket of its own; it works for 5 ms when it has what
/// all of them sent, or for 2 ms after each.
fn asked_together(after_each: bool) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let workers = [201, 202, 203];
    for worker in workers {
        tale.process(worker, TRAINER);
    }
    let mut now = 0.0;
    for step in 0..400 {
        for worker in workers.into_iter().filter(|_| !after_each) {
            tale.touch(
                TRAINER,
                now,
                Op::Write,
                Class::Socket,
                u64::from(worker),
                60,
            );
        }
        for worker in workers {
            let socket = u64::from(worker);
            let from = now;
            now += uneven(step * 3 + worker, 2.0);
            tale.wait(
                TRAINER,
                from,
                now,
                READ,
                On::Socket(socket),
                By::Thread(worker),
            )
            .touch(TRAINER, now, Op::Read, Class::Socket, socket, 4);
            now += if after_each { 2.0 } else { 0.02 };
        }
        now += if after_each { 0.0 } else { 5.0 };
    }
    tale
}

#[test]
fn what_several_processes_send_for_one_step_is_one_batch() {
    let found = steps(&asked_together(false), 4600.0).expect("a clock");
    assert_eq!(found.clock, Clock::BatchHandOver);
    assert!(found.spans.len().abs_diff(400) <= 2);
    let apart = steps(&asked_together(true), 5000.0).expect("a clock");
    assert!(
        apart.spans.len().abs_diff(1200) <= 6,
        "{}",
        apart.spans.len()
    );
}
