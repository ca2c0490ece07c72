//! What the interpreter does around calls on files.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, close, feeder, job, share, stall, trainer},
    tale::{By, On, POLL},
};
use crate::{
    analysis::{kind::Kind, trainer::Trainer},
    record::fact::PlaceClass,
};

const WORKER: u32 = 201;

/// A thread that looks up files for 20 of each 100 ms, runs its interpreter for 40, and computes: so many look-ups in a step. It is the
/// trainer's own, or a worker's that the trainer waits for all the time.
fn looks_up(who: u32, calls: u64) -> Trainer {
    const STAT: i16 = 262;
    let mut tale = job(1);
    tale.fileset(5, "/data", "ext4");
    tale.place(1, "vmlinux", PlaceClass::Kernel)
        .place(2, "libmodel.so", PlaceClass::Other)
        .place(3, "python3.11", PlaceClass::Python);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        if who == TRAINER {
            let idle = [WORKER, feeder(WORKER)];
            for tid in idle {
                tale.wait(tid, begin, begin + 99.9, POLL, On::Pipe(8), By::Nobody);
            }
        } else {
            stall(&mut tale, begin + 1.0, begin + 99.0, WORKER);
        }
        tale.ops(who, begin, Op::Stat, Class::File, 5, calls, 0, 20.0);
        for n in 0..10 {
            let when = begin + 10.0 * f64::from(n);
            match n {
                0..2 => tale.sample_in(who, when, 1, STAT),
                2..6 => tale.sample(who, when, 3),
                _ => tale.sample(who, when, 2),
            };
        }
    }
    trainer(&tale, 8000.0)
}

#[test]
fn the_interpreter_around_a_call_on_a_file_is_the_price_of_that_file() {
    // 4 µs each.
    let looked_up = |calls| share(&looks_up(TRAINER, calls), Kind::SmallFiles);
    close(looked_up(5_000), 0.4, "with the interpreter around them");
    close(looked_up(50_000), 0.6, "no more than it took");
    close(looked_up(50), 0.2, "calls that are few");
}

#[test]
fn it_may_take_twice_as_long_as_usual() {
    let bound = |calls| looks_up(WORKER, calls).bound(Kind::SmallFiles);
    // Without 20 of 100 ms; without 40, and what else the interpreter did may be around the calls too.
    assert!((1.2..1.4).contains(&bound(50)), "{}", bound(50));
    assert!(bound(5_000) > 3.0, "{}", bound(5_000));
}
