//! A pool of threads that is made anew for each step.

use trainprof_common::op::{Class, Op};

use super::{
    clocks::uneven,
    stories::TRAINER,
    tale::{By, FUTEX, On, Tale},
};
use crate::analysis::{Trainer, analyse};

const FIRST: u32 = 1_000;

/// In each of 100 steps of 30 ms a thread begins, works for 20 ms, for which the trainer waits, and ends. Opens a file, or none.
fn pool_of_each_step(opens: bool) -> Trainer {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let mut now = 5.0;
    for step in 0..100 {
        let tid = FIRST + step;
        tale.thread(TRAINER, tid);
        tale.thread_lived(tid, now, now + 20.0);
        tale.wait(
            TRAINER,
            now,
            now + 20.0,
            FUTEX,
            On::Futex(0x20_000),
            By::Thread(tid),
        );
        if opens {
            tale.ops(tid, now, Op::Open, Class::File, 0, 2, 0, 0.1);
            tale.ops(tid, now, Op::Read, Class::File, 0, 4, 8_000, 0.1);
        }
        now += uneven(step, 30.0);
    }
    analyse(&tale.session(now)).trainer.expect("a trainer")
}

#[test]
fn threads_that_live_for_a_moment_are_loaders_together() {
    let trainer = pool_of_each_step(true);
    assert_eq!(trainer.cast.loader_threads.len(), 100);
    assert_eq!(trainer.cast.brief, trainer.cast.loader_threads);
    let first = trainer.cast.brief.first().copied();
    let passed = trainer.walked.leaves.iter();
    assert!(
        passed
            .flat_map(|(way, _)| &way.hops)
            .all(|hop| hop.tid == TRAINER || Some(hop.tid) == first)
    );
    let others = pool_of_each_step(false);
    assert!(others.cast.brief.is_empty());
}
