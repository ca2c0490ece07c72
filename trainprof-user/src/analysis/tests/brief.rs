//! A pool of threads that is made anew for each step.

use std::collections::BTreeSet;

use trainprof_common::op::{Class, Op};

use super::{
    clocks::uneven,
    stories::TRAINER,
    tale::{By, FUTEX, On, Tale},
};
use crate::analysis::{Trainer, analyse};

const FIRST: u32 = 1_000;

/// In each of 100 steps of 30 ms two threads begin. The trainer waits 20 ms for the first, and that one 10 for the second. They open files, or
/// none.
fn pool_of_each_step(opens: bool) -> Trainer {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let mut now = 5.0;
    for step in 0..100 {
        let (tid, other) = (FIRST + 2 * step, FIRST + 2 * step + 1);
        tale.thread(TRAINER, tid).thread(TRAINER, other);
        tale.thread_lived(tid, now, now + 20.0);
        tale.thread_lived(other, now, now + 15.0);
        tale.wait(
            tid,
            now + 5.0,
            now + 15.0,
            FUTEX,
            On::Futex(0x40_000),
            By::Thread(other),
        );
        tale.wait(
            TRAINER,
            now,
            now + 20.0,
            FUTEX,
            On::Futex(0x20_000),
            By::Thread(tid),
        );
        if opens {
            for tid in [tid, other] {
                tale.ops(tid, now, Op::Open, Class::File, 0, 2, 0, 0.1);
                tale.ops(tid, now, Op::Read, Class::File, 0, 4, 8_000, 0.1);
            }
        }
        now += uneven(step, 30.0);
    }
    analyse(&tale.session(now)).trainer.expect("a trainer")
}

#[test]
fn threads_that_live_for_a_moment_are_loaders_together() {
    let trainer = pool_of_each_step(true);
    assert_eq!(trainer.cast.loader_threads.len(), 200);
    assert_eq!(trainer.cast.brief, trainer.cast.loader_threads);
    let ways = trainer.walked.leaves.iter();
    let passed: BTreeSet<u32> = ways
        .flat_map(|(way, _)| &way.hops)
        .map(|hop| hop.tid)
        .collect();
    assert_eq!(passed, BTreeSet::from([TRAINER, FIRST]));
    let others = pool_of_each_step(false);
    assert!(others.cast.brief.is_empty());
}
