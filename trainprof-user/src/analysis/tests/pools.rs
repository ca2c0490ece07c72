//! Stories of frameworks whose pools compute, or make batches, while the trainer sleeps.

use trainprof_common::op::{Class, Op};

use super::{
    clocks::{steps, uneven},
    company::is_near,
    python::alone,
    stories::{TRAINER, close, feeds, job, share, stall, trainer},
    tale::{By, FUTEX, On, POLL, READ, RECV, Tale},
};
use crate::{
    analysis::{Kind, Trainer, steps::Clock},
    record::fact::PlaceClass,
};

#[test]
fn threads_that_run_what_jax_compiled_load_nothing() {
    // 5 of 25 ms the trainer computes, then it waits for one of two threads in turn, which each other ends the waits of.
    // Now and then in its library; all else is in no file, which any compiler's may be.
    for (module, loaders) in [("libjax_common.so", 0), ("libpicture.so", 2)] {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1).library(TRAINER, "jaxlib");
        tale.place(1, module, PlaceClass::Other).compiled(2);
        let pool = [TRAINER + 1, TRAINER + 2];
        tale.thread(TRAINER, pool[0]).thread(TRAINER, pool[1]);
        for turn in 0..300 {
            let now = f64::from(turn) * 25.0;
            let (works, idles) = if turn % 2 == 0 {
                (pool[0], pool[1])
            } else {
                (pool[1], pool[0])
            };
            let by = By::Thread(works);
            let done = On::Futex(0x100_000 + u64::from(works) * 64);
            tale.wait(TRAINER, now + 5.0, now + 24.9, FUTEX, done, by);
            let told = On::Futex(0x200_000 + u64::from(idles) * 64);
            tale.wait(idles, now, now + 24.8, FUTEX, told, by);
            let place = if turn % 8 < 2 { 1 } else { 2 };
            tale.sample(works, now + 10.0, place);
        }
        let found = trainer(&tale, 7500.0).cast.loader_threads;
        assert_eq!(found.len(), loaders, "{module}: {found:?}");
    }
}

#[test]
fn a_pool_that_does_all_computing_shows_the_steps() {
    // Two models in turn: 12 ms of the pool for the one and 8 for the other, 1 ms of the trainer before each.
    const POOL: u32 = TRAINER + 1;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, POOL);
    let mut now = 5.0;
    for call in 0..400_u32 {
        let ms = uneven(call, if call % 2 == 0 { 12.0 } else { 8.0 });
        let (done, given) = (On::Futex(0x10_000), On::Futex(0x20_000));
        tale.wait(POOL, now - 1.0, now, FUTEX, given, By::Thread(TRAINER));
        tale.wait(TRAINER, now, now + ms, FUTEX, done, By::Thread(POOL));
        now += ms + 1.0;
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::OwnThread);
    assert!(
        found.spans.len().abs_diff(200) <= 2,
        "{}",
        found.spans.len()
    );
}

#[test]
fn a_pool_computes_what_the_trainer_has_made_itself() {
    // 50 of 100 ms the trainer makes a batch, as its stacks show, then it sleeps for a pool.
    const POOL: u32 = TRAINER + 1;
    let mut tale = alone("features", false);
    tale.thread(TRAINER, POOL);
    let made = (0..80).flat_map(|step| (0..5).map(move |n| f64::from(step * 100 + n * 10 + 5)));
    tale.stack(1, &[4, 2, 1], TRAINER, made);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let given = begin + 51.0;
        let by = By::Thread(TRAINER);
        tale.wait(POOL, begin - 1.0, given, FUTEX, On::Futex(0x20_000), by);
        let by = By::Thread(POOL);
        tale.wait(TRAINER, given, begin + 99.0, FUTEX, On::Futex(0x10_000), by);
    }
    let found = steps(&tale, 8000.0).expect("steps");
    assert_eq!(found.clock, Clock::OwnThread);
    assert!((78..=80).contains(&found.spans.len()), "{found:?}");
}

#[test]
fn a_frameworks_thread_that_runs_python_makes_batches() {
    // The trainer sleeps for a pool that waits for 15 of 24 ms for another thread of its own: for a part of the model, or for
    // Python that the pipeline calls.
    const POOL: u32 = TRAINER + 1;
    const OTHER: u32 = TRAINER + 2;
    let (model, numpy, python) = (1, 2, 3);
    for (calls, expected) in [([model, model], 0.0), ([numpy, python], 0.6)] {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1).library(TRAINER, "tensorflow");
        tale.thread(TRAINER, POOL).thread(TRAINER, OTHER);
        tale.place(model, "libtensorflow_cc.so.2", PlaceClass::Other)
            .place(numpy, "_multiarray_umath.so", PlaceClass::Other)
            .place(python, "python3.11", PlaceClass::Python);
        for turn in 0..320 {
            let now = f64::from(turn) * 25.0;
            let wait = |tale: &mut Tale, tid, from: f64, to: f64, on: u64, by| {
                let by = By::Thread(by);
                tale.wait(tid, now + from, now + to, FUTEX, On::Futex(on), by);
            };
            wait(&mut tale, OTHER, 15.0, 25.0, 0x30_000, TRAINER);
            wait(&mut tale, POOL, 0.5, 15.0, 0x20_000, OTHER);
            wait(&mut tale, TRAINER, 0.2, 24.0, 0x10_000, POOL);
            wait(&mut tale, POOL, 24.1, 25.2, 0x20_000, TRAINER);
            tale.sample(OTHER, now + 4.0, calls[turn as usize % 2]);
            tale.sample(POOL, now + 20.0, model);
        }
        let found = share(&trainer(&tale, 8000.0), Kind::InputCpu);
        is_near(found, expected);
    }
}

/// The trainer computes for 10 of 25 ms and then waits for a thread that waits for one of two others meanwhile. These run Python in turn, and
/// each waits for the other.
fn python_in_a_pool() -> Tale {
    const LAST: u32 = TRAINER + 1;
    let pool = [TRAINER + 2, TRAINER + 3];
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).library(TRAINER, "tensorflow");
    tale.place(1, "python3.11", PlaceClass::Python);
    for tid in [LAST, pool[0], pool[1]] {
        tale.thread(TRAINER, tid);
    }
    for turn in 0..300_u32 {
        let now = f64::from(turn) * 25.0;
        let works = pool[turn as usize % 2];
        let idles = pool[1 - turn as usize % 2];
        let told = |tid: u32| On::Futex(0x10_000 * u64::from(tid));
        let by = By::Thread(works);
        tale.wait(idles, now, now + 24.7, FUTEX, told(idles), by);
        tale.wait(LAST, now + 1.0, now + 24.8, FUTEX, told(LAST), by);
        tale.sample(LAST, now + 0.5, 1);
        let by = By::Thread(LAST);
        tale.wait(TRAINER, now + 10.0, now + 24.9, FUTEX, told(TRAINER), by);
        for n in 0..5 {
            tale.sample(works, now + 3.0 + 5.0 * f64::from(n), 1);
        }
    }
    tale
}

#[test]
fn a_pool_and_who_makes_batches_are_waited_for_on_one_semaphore() {
    // 10 of 40 ms the trainer waits for Python that the pipeline calls, and 27 for the pool that computes.
    const POOL: u32 = TRAINER + 1;
    const MAKER: u32 = TRAINER + 2;
    const OTHER: u32 = TRAINER + 3;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).library(TRAINER, "tensorflow");
    for tid in [POOL, MAKER, OTHER] {
        tale.thread(TRAINER, tid);
    }
    tale.place(1, "libtensorflow_cc.so.2", PlaceClass::Other)
        .place(2, "python3.11", PlaceClass::Python);
    for turn in 0..200 {
        let now = f64::from(turn) * 40.0;
        let (made, done) = (now + 10.0, now + 39.9);
        let semaphore = On::Futex(0x10_000);
        tale.wait(TRAINER, now, made, FUTEX, semaphore, By::Thread(MAKER));
        tale.wait(
            TRAINER,
            made + 2.5,
            done,
            FUTEX,
            semaphore,
            By::Thread(POOL),
        );
        // Another one makes batches in turn with it.
        let (others, own) = (On::Futex(0x40_000), On::Futex(0x30_000));
        tale.wait(MAKER, made + 0.1, done, FUTEX, own, By::Thread(OTHER));
        tale.wait(
            OTHER,
            done + 0.2,
            done + 10.1,
            FUTEX,
            others,
            By::Thread(MAKER),
        );
        tale.sample(OTHER, now + 20.0, 2);
        let by = By::Thread(TRAINER);
        tale.wait(
            POOL,
            done + 0.05,
            done + 10.5,
            FUTEX,
            On::Futex(0x20_000),
            by,
        );
        tale.sample(TRAINER, made + 1.0, 2);
        tale.sample(MAKER, now + 5.0, 2);
        tale.sample(POOL, now + 20.0, 1);
    }
    let found = steps(&tale, 8000.0).expect("steps");
    assert_eq!(found.clock, Clock::OwnThread, "{:?}", found.others);
    assert!(found.spans.len().abs_diff(200) <= 2, "{found:?}");
}

#[test]
fn a_pool_of_which_one_thread_after_the_other_works_has_no_single_producer() {
    let trainer = trainer(&python_in_a_pool(), 7500.0);
    is_near(share(&trainer, Kind::InputCpu), 0.6);
    is_near(share(&trainer, Kind::Serialization), 0.0);
}

#[test]
fn who_feeds_all_others_is_a_single_producer() {
    let mut tale = job(3);
    for step in 0..80_u32 {
        let begin = f64::from(step) * 100.0;
        for worker in [201, 202] {
            let by = By::Thread(203);
            tale.wait(worker, begin, begin + 95.0, READ, On::Pipe(5), by);
        }
        let worker = 201 + step % 2;
        feeds(&mut tale, worker, begin + 0.2, begin + 99.8);
        stall(&mut tale, begin + 40.0, begin + 99.9, worker);
    }
    let trainer = trainer(&tale, 8000.0);
    is_near(share(&trainer, Kind::Serialization), 0.55);
}

#[test]
fn threads_of_a_manager_that_take_turns_on_its_interpreter_are_one_producer() {
    // Each of two workers asks a thread of its own, of one process: of each 100 ms they run 45 each, one after the other.
    const MANAGER: u32 = 301;
    const GIL: u64 = 0x7000;
    let served = |interpreter: bool| {
        let mut tale = job(2);
        tale.process(MANAGER, TRAINER)
            .thread(MANAGER, 302)
            .thread(MANAGER, 303)
            .wait(MANAGER, 0.1, 7999.0, POLL, On::Socket(9), By::Interrupt);
        if interpreter {
            tale.interpreter(MANAGER, GIL - 0x1b0, 0x1000);
        }
        for step in 0..80_u32 {
            let begin = f64::from(step) * 100.0;
            for n in 0..2 {
                // The one that the trainer waits for is served last.
                let (worker, own) = (201 + (step + n + 1) % 2, 302 + (step + n + 1) % 2);
                let other = 605 - own;
                let from = begin + f64::from(n) * 45.0;
                let asked = On::Socket(u64::from(worker));
                tale.wait(
                    worker,
                    begin + 0.5,
                    from + 45.0,
                    RECV,
                    asked,
                    By::Thread(own),
                )
                // The lock is the other's first, and then nobody asks.
                .wait(
                    own,
                    from + 45.2,
                    begin + 100.3,
                    RECV,
                    asked,
                    By::Thread(worker),
                );
                if n == 1 {
                    tale.wait(
                        own,
                        begin + 0.6,
                        from,
                        FUTEX,
                        On::Futex(GIL),
                        By::Thread(other),
                    );
                }
            }
            let worker = 201 + step % 2;
            feeds(&mut tale, worker, begin + 0.2, begin + 99.8);
            stall(&mut tale, begin + 40.0, begin + 99.9, worker);
        }
        share(&trainer(&tale, 8000.0), Kind::Serialization)
    };
    is_near(served(true), 0.5);
    is_near(served(false), 0.0);
}

#[test]
fn a_codecs_thread_that_loader_threads_wait_for_makes_batches() {
    let trainer = waits_for_codec(TRAINER + 1);
    assert_eq!(trainer.cast.aides, [TRAINER + 2].into());
    close(share(&trainer, Kind::InputCpu), 0.6, "input");
    close(share(&trainer, Kind::Compute), 0.4, "compute");
    // A loader thread that waits for the codec is at work.
    close(trainer.demand.busy / trainer.wall, 1.0, "busy");
    // One that itself waits for the step thread brings that one what the loaders made.
    let trainer = waits_for_codec(TRAINER);
    assert!(trainer.cast.aides.is_empty());
}

/// A loader thread that waits for another thread, which waits for `by` before.
fn waits_for_codec(by: u32) -> Trainer {
    // A batch each 100 ms: a loader thread waits for a codec's. The trainer waits for it for 60 and computes for 40.
    const LOADER: u32 = TRAINER + 1;
    const CODEC: u32 = TRAINER + 2;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, LOADER)
        .thread(TRAINER, CODEC)
        .fileset(5, "/video", "ext4");
    let [batch, frame, work] = [0x10_000, 0x20_000, 0x30_000].map(On::Futex);
    for step in 1..81 {
        let now = f64::from(step) * 100.0;
        let mut wait = |who, from: f64, to: f64, on, by| {
            tale.wait(who, now + from, now + to, FUTEX, on, By::Thread(by));
        };
        wait(CODEC, -99.6, -98.8, work, by);
        wait(LOADER, -98.5, -1.0, frame, CODEC);
        wait(TRAINER, -60.0, 0.0, batch, LOADER);
        tale.ops(LOADER, now, Op::Read, Class::File, 5, 1, 1 << 20, 0.1);
    }
    let trainer = trainer(&tale, 8_100.0);
    assert!(trainer.cast.loader_threads.contains(&LOADER));
    assert!(!trainer.cast.loader_threads.contains(&CODEC));
    trainer
}
