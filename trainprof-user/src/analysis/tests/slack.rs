//! Stories of threads that want a CPU while somebody works whom they would wait for otherwise, and of those that only spin.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, bottleneck, close, share, trainer},
    tale::{By, FUTEX, On, RECV, SLEEP, Tale},
};
use crate::{
    analysis::{Kind, analyse},
    record::fact::PlaceClass,
};

const OTHER: u32 = 150;
const SCHED_YIELD: i16 = 24;
const FLOCK: i16 = 73;

/// Two ranks with steps of 100 ms: 100 runs for 20, has no CPU while `by` has it for 50, and waits for the other one for 30.
fn pushed_aside(by: u32, other_works: bool) -> Tale {
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(OTHER, 50);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin + 20.0, begin + 70.0, by);
        let sender = By::Sender(OTHER);
        tale.wait(
            TRAINER,
            begin + 70.0,
            begin + 99.9,
            RECV,
            On::Socket(4),
            sender,
        );
        if !other_works {
            tale.preempted(OTHER, begin + 20.0, begin + 69.0, 7777);
        }
        let sender = By::Sender(TRAINER);
        tale.wait(
            OTHER,
            begin + 99.9,
            begin + 100.0,
            RECV,
            On::Socket(5),
            sender,
        );
    }
    tale
}

#[test]
fn who_has_no_cpu_while_another_rank_works_on_would_wait_for_it() {
    let told = |tale: &Tale| {
        let mut session = tale.session(8000.0);
        session.start.as_mut().expect("a start").targets = vec![50];
        let analysis = analyse(&session);
        let trainer = analysis
            .others
            .iter()
            .chain(&analysis.trainer)
            .find(|trainer| trainer.cast.trainer == TRAINER)
            .expect("the rank that waits");
        share(trainer, Kind::Communication)
    };
    close(told(&pushed_aside(OTHER, true)), 0.8, "the other one works");
    // With as much to do, both would have lost half of these 50 ms.
    let shared = told(&pushed_aside(7777, true));
    close(shared, 0.55, "somebody else has the CPU");
    // Neither gets on: who waits longer is chance.
    close(told(&pushed_aside(7777, false)), 0.3, "both want a CPU");
}

/// The trainer asks a process outside the job for 80 of 100 ms; for 40 of them that one has the trainer's own CPU.
#[test]
fn a_service_that_has_the_askers_cpu_is_waited_for() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(7777, "tokenizerd");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin + 20.0, begin + 60.0, 7777);
        let answer = By::Sender(7777);
        tale.wait(
            TRAINER,
            begin + 60.0,
            begin + 100.0,
            RECV,
            On::Socket(4),
            answer,
        );
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::NetworkIo), 0.8, "the service");
    close(share(&trainer, Kind::CpuContention), 0.0, "contention");
}

/// Two loader threads take turns at a lock on a file and sleep while they have it.
#[test]
fn a_lock_on_a_file_that_is_held_asleep_is_the_cause() {
    let mut tale = super::stories::job(2);
    tale.fileset(6, "/locks", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (holder, waiter) = (201 + step % 2, 202 - step % 2);
        let from = begin + 0.5;
        tale.wait(
            holder,
            from,
            begin + 99.0,
            SLEEP,
            On::Nothing,
            By::Interrupt,
        );
        tale.wait(
            waiter,
            from,
            begin + 99.5,
            FLOCK,
            On::File(6),
            By::Thread(holder),
        );
        let since = (begin - 100.5).max(0.0);
        super::stories::feeds(&mut tale, holder, since, begin + 99.2);
        super::stories::stall(&mut tale, begin + 5.0, begin + 99.4, holder);
    }
    let analysis = analyse(&tale.session(8000.0));
    assert_eq!(bottleneck(&analysis), "serialization");
    let trainer = analysis.trainer.expect("a trainer");
    close(share(&trainer, Kind::Serialization), 0.93, "the lock");
}

#[test]
fn a_thread_that_only_gives_the_cpu_up_is_not_the_one_that_trains() {
    // The main thread waits for the other rank nearly always; a thread of its library for linear algebra spins.
    const SPINS: u32 = TRAINER + 1;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, SPINS);
    tale.place(1, "[kernel]", PlaceClass::Kernel)
        .place(2, "libopenblas.so.0", PlaceClass::Other);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin + 2.0,
            begin + 99.0,
            RECV,
            On::Socket(4),
            By::Softirq,
        );
        for n in 0..9 {
            let when = begin + f64::from(n) * 10.0 + 5.0;
            if n < 6 {
                tale.sample_in(SPINS, when, 1, SCHED_YIELD);
            } else {
                tale.sample(SPINS, when, 2);
            }
        }
    }
    let found = trainer(&tale, 8000.0);
    assert_eq!(found.cast.step_tid, TRAINER);
    close(share(&found, Kind::NetworkIo), 0.97, "the network");
    // It needs no CPU either: 3 of 100 ms are left.
    let bound = found.bound(Kind::NetworkIo);
    assert!(bound > 20.0, "{bound}");
}

/// Results of a pool's tasks: the trainer waits for eight, one after the other, and computes when it has them all.
#[test]
fn results_that_are_waited_for_one_by_one_are_one_step() {
    const LOADER: u32 = TRAINER + 1;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, LOADER);
    tale.fileset(5, "/data", "fuse");
    let mut now = 0.0;
    for step in 0..60_u32 {
        for task in 0..8_u32 {
            let done = now + 9.0 + f64::from((step * 7 + task * 3) % 5);
            tale.wait(
                LOADER,
                now + 0.1,
                done - 0.2,
                257,
                On::File(5),
                By::Interrupt,
            );
            let futex = On::Futex(0x1000 * (1 + u64::from(task)));
            tale.wait(TRAINER, now + 0.2, done, FUTEX, futex, By::Thread(LOADER));
            now = done;
        }
        now += 20.0;
    }
    tale.ops(LOADER, 10.0, Op::Open, Class::File, 5, 480, 4 << 20, 4500.0);
    let steps = trainer(&tale, now).steps.expect("steps");
    assert!(steps.spans.len().abs_diff(59) <= 1, "{}", steps.spans.len());
}

#[test]
fn an_exchange_that_is_waited_for_in_parts_is_one_step() {
    // Steps of 40 ms: 12 of computing, and two waits for the other rank with next to no work between them.
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(OTHER, 50);
    for step in 0..150 {
        let begin = f64::from(step) * 40.0;
        let other = By::Sender(OTHER);
        for (from, to) in [(12.0, 28.0), (28.8, 39.9)] {
            tale.wait(
                TRAINER,
                begin + from,
                begin + to,
                RECV,
                On::Socket(4),
                other,
            );
        }
        let first = By::Sender(TRAINER);
        tale.wait(OTHER, begin + 0.1, begin + 0.9, RECV, On::Socket(5), first);
    }
    let mut session = tale.session(6000.0);
    session.start.as_mut().expect("a start").targets = vec![50];
    let analysis = analyse(&session);
    let all = analysis.others.iter().chain(&analysis.trainer);
    let steps = all
        .filter(|trainer| trainer.cast.trainer == TRAINER)
        .find_map(|trainer| trainer.steps.as_ref())
        .expect("steps");
    assert!(
        steps.spans.len().abs_diff(149) <= 1,
        "{}",
        steps.spans.len()
    );
}
