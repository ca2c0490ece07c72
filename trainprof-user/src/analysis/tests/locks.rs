//! What is a lock, who held it, and what is none.

use trainprof_common::{
    op::{Class, Op},
    thread::NR_FAULT,
};

use super::{
    stories::{TRAINER, bottleneck, close, feeder, feeds, job, share, stall, sums_up, trainer},
    tale::{By, FUTEX, On, POLL, READ, SLEEP, Tale},
};
use crate::{
    analysis::{Kind, Trainer, analyse, locks::LockId, walk::What},
    session::roles,
};

/// The lock that goes round.
const ROUND: LockId = LockId {
    pid: TRAINER,
    line: 0x7000 >> 6,
};

/// `computes`: how much of 40 ms the trainer runs.
fn goes_round(computes: f64) -> Tale {
    goes_round_anew(computes, 1)
}

/// The same with threads that are made anew, so many times in all.
fn goes_round_anew(computes: f64, times: u32) -> Tale {
    // Four loader threads take turns of 5 ms on the interpreter's lock, asking again when 5 ms are over; every
    // 40 ms one of them hands a batch to the trainer.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let gil = ROUND.line << 6;
    let turns = 1600 / times;
    let long = 8000.0 / f64::from(times);
    for n in 0..4 * times {
        let begin = f64::from(n / 4) * long;
        tale.thread(TRAINER, 101 + n);
        if times > 1 {
            tale.thread_lived(101 + n, begin, begin + long);
        }
        tale.ops(
            101 + n,
            begin + 10.0,
            Op::Open,
            Class::File,
            5,
            100,
            1 << 20,
            1.0,
        );
    }
    for turn in 0..1600_u32 {
        let begin = f64::from(turn) * 5.0;
        let first = 101 + turn / turns * 4;
        let runs = first + turn % 4;
        let before = first + (turn + 3) % 4;
        if turn % turns >= 4 {
            // It waited for the three turns of the others, asking again at each.
            for wait in 0..3_u32 {
                let from = begin - 15.0 + f64::from(wait) * 5.0 + 0.02;
                let by = if wait == 2 {
                    By::Thread(before)
                } else {
                    By::Interrupt
                };
                tale.wait(runs, from, from + 4.96, FUTEX, On::Futex(gil), by);
            }
        }
        if turn % 8 == 7 {
            tale.wait(
                TRAINER,
                begin - 34.9 + computes,
                begin + 4.9,
                FUTEX,
                On::Futex(0x100_000 + u64::from(turn) * 64),
                By::Thread(runs),
            );
        }
    }
    tale
}

#[test]
fn threads_that_are_made_anew_are_as_many_as_there_are_at_a_time() {
    let told = |times: u32| {
        let analysis = analyse(&goes_round_anew(9.9, times).session(8000.0));
        let mut found = analysis.findings.into_iter();
        let found = found
            .find(|found| found.kind == "serialization")
            .expect("the lock");
        let number = |key: &str| found.evidence[key].as_f64().expect("a number");
        let told = (number("waiting_share"), number("one_at_a_time_share"));
        (found.summary, told)
    };
    let (summary, (waiting, one)) = told(1);
    assert!(summary.starts_with("4 threads take turns"), "{summary}");
    let (summary, anew) = told(4);
    assert!(
        summary.starts_with("some 4 threads at a time (16 in all) take turns"),
        "{summary}"
    );
    assert!((anew.0 - waiting).abs() < 0.03, "{anew:?}, {waiting}");
    assert!((anew.1 - one).abs() < 0.03, "{anew:?}, {one}");
}

#[test]
fn a_lock_that_goes_round_is_one_cause() {
    let analysis = analyse(&goes_round(9.9).session(8000.0));
    let trainer = analysis.trainer.expect("a trainer");
    sums_up(&trainer);
    assert!(analysis.locks.contains_key(&ROUND));
    assert_eq!(trainer.cast.loader_threads.len(), 4);
    let found = share(&trainer, Kind::Serialization);
    assert!(found > 0.7, "{found}");
}

#[test]
fn a_lock_is_no_cause_where_there_is_no_cpu_for_who_waits_for_it() {
    let mut tale = goes_round(0.5);
    tale.allowed(TRAINER, "0");
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::Serialization), 0.0, "the lock");
    let input = share(&trainer, Kind::InputCpu);
    assert!(input > 0.7, "{input}");
}

#[test]
fn more_threads_are_not_advised_where_those_that_there_are_want_cpus() {
    // Eight loader threads, on the job's four CPUs, have one of them for 18 of 40 ms each; every 40 ms one hands a batch over.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for n in 0..8 {
        tale.thread(TRAINER, 101 + n);
        tale.ops(101 + n, 10.0, Op::Open, Class::File, 5, 100, 1 << 20, 1.0);
    }
    for turn in 0..200_u32 {
        let begin = f64::from(turn) * 40.0;
        for n in 0..8 {
            let from = begin + if n < 4 { 18.0 } else { 0.0 };
            tale.preempted(101 + n, from, from + 22.0, 101 + (n + 4) % 8);
        }
        let queue = On::Futex(0x100_000 + u64::from(turn) * 64);
        let by = By::Thread(101 + turn % 4);
        tale.wait(TRAINER, begin - 24.0, begin + 10.0, FUTEX, queue, by);
    }
    let analysis = analyse(&tale.session(8000.0));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(
        trainer.cast.loader_threads.len(),
        8,
        "{:?}",
        trainer.cast.loader_threads
    );
    assert!(share(trainer, Kind::InputCpu) > 0.7);
    let mut kinds = analysis.findings.iter().map(|finding| finding.kind);
    assert!(kinds.all(|kind| kind != "too-few-workers"));
}

#[test]
fn what_producers_do_under_a_lock_goes_with_their_work() {
    let trainer = trainer(&goes_round(9.9), 8000.0);
    // Without the lock two of them could work at once; without their work nobody has the lock.
    let locked = trainer.bound(Kind::Serialization);
    let input = trainer.bound(Kind::InputCpu);
    assert!(input > 1.3 * locked, "{input} {locked}");
}

#[test]
fn a_cpu_that_is_waited_for_is_not_the_lock_that_both_use() {
    // Loader threads decompress without the interpreter's lock, which goes round in a few milliseconds of each turn. They
    // take the trainer's CPU for 20 ms, and hand a batch over.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for tid in [101, 102] {
        tale.thread(TRAINER, tid);
        tale.ops(tid, 10.0, Op::Open, Class::File, 5, 100, 1 << 20, 1.0);
    }
    let gil = 0x7000;
    for turn in 0..160_u32 {
        let begin = f64::from(turn) * 50.0;
        for (tid, from, to, by) in [
            (TRAINER, 0.0, 3.0, 101),
            (101, 3.0, 5.0, TRAINER),
            (102, 5.0, 7.0, 101),
            (TRAINER, 7.0, 9.0, 102),
        ] {
            let (from, to) = (begin + from, begin + to);
            tale.wait(tid, from, to, FUTEX, On::Futex(gil), By::Thread(by));
        }
        tale.preempted(TRAINER, begin + 10.0, begin + 30.0, 101);
        let queue = On::Futex(0x100_000 + u64::from(turn) * 64);
        tale.wait(
            TRAINER,
            begin + 31.0,
            begin + 45.0,
            FUTEX,
            queue,
            By::Thread(102),
        );
    }
    let analysis = analyse(&tale.session(8000.0));
    let trainer = analysis.trainer.expect("a trainer");
    sums_up(&trainer);
    assert!(analysis.locks.contains_key(&LockId {
        pid: TRAINER,
        line: gil >> 6
    }));
    let lock = share(&trainer, Kind::Serialization);
    assert!(lock < 0.2, "{lock}");
    let input = share(&trainer, Kind::InputCpu);
    assert!(input > 0.6, "{input}");
}

#[test]
fn a_feeder_that_waits_while_the_next_batch_is_made_is_held_up_by_no_lock() {
    // One worker makes a batch in 40 ms and never waits. Its feeder needs the interpreter's lock three times to hand one over, and gets
    // it each time when the worker asks for something: 30 ms later.
    let mut tale = job(1);
    let gil = 0x7000;
    tale.interpreter(201, gil, 0x1000);
    for step in 0..200 {
        let begin = f64::from(step) * 40.0;
        feeds(&mut tale, 201, begin - 9.8, begin);
        for turn in 0..3 {
            let from = begin + 0.2 + f64::from(turn) * 10.0;
            let by = By::Thread(201);
            tale.wait(
                feeder(201),
                from,
                from + 5.0,
                FUTEX,
                On::Futex(gil),
                By::Interrupt,
            )
            .wait(
                feeder(201),
                from + 5.0,
                from + 9.8,
                FUTEX,
                On::Futex(gil),
                by,
            );
        }
        stall(&mut tale, begin - 5.0, begin + 30.1, 201);
    }
    let analysis = analyse(&tale.session(8000.0));
    assert_eq!(bottleneck(&analysis), "input-cpu");
    let trainer = analysis.trainer.expect("a trainer");
    sums_up(&trainer);
    assert!(share(&trainer, Kind::Serialization) < 0.05);
    assert!(share(&trainer, Kind::InputCpu) > 0.8);
    assert!(trainer.bound(Kind::InputCpu) > 4.0);
}

/// `all_woken`: whoever gives the lock back wakes all, and all but one find it taken and wait on.
fn held_over_reads(all_woken: bool) -> Tale {
    // Four loader threads read one after the other, each for 18 ms of its turn of 20 ms, under one lock: the reads are
    // not slow, they are one at a time. Every turn ends a wait of the trainer of 15 ms.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    tale.fileset(5, "/data", "ext4");
    let lock = 0x7000;
    for n in 0..4 {
        tale.thread(TRAINER, 101 + n);
        tale.ops(101 + n, 10.0, Op::Read, Class::File, 5, 100, 1 << 20, 1.0);
    }
    for turn in 4..400_u32 {
        let begin = f64::from(turn) * 20.0;
        let (runs, before) = (101 + turn % 4, 101 + (turn + 3) % 4);
        let mut from = begin - 60.0;
        for n in if all_woken { 1..3 } else { 0..0 } {
            let (woken, by) = (
                begin - 60.0 + 20.0 * f64::from(n) + 0.02,
                101 + (turn + n) % 4,
            );
            tale.wait(runs, from, woken, FUTEX, On::Futex(lock), By::Thread(by));
            from = woken + 0.01;
        }
        tale.wait(
            runs,
            from,
            begin,
            FUTEX,
            On::Futex(lock),
            By::Thread(before),
        );
        tale.wait(
            runs,
            begin + 1.0,
            begin + 19.0,
            READ,
            On::File(5),
            By::Interrupt,
        );
        tale.wait(
            TRAINER,
            begin + 4.9,
            begin + 19.9,
            FUTEX,
            On::Futex(0x100_000 + u64::from(turn) * 64),
            By::Thread(runs),
        );
    }
    tale
}

#[test]
fn a_lock_that_is_held_over_a_read_is_the_cause() {
    for all_woken in [false, true] {
        let analysis = analyse(&held_over_reads(all_woken).session(8000.0));
        let trainer = analysis.trainer.expect("a trainer");
        sums_up(&trainer);
        let serial = share(&trainer, Kind::Serialization);
        assert!(serial > 0.7, "{serial}, all woken: {all_woken}");
        assert!(share(&trainer, Kind::StorageIo) < 0.05);
    }
}

#[test]
fn a_lock_that_is_held_for_a_moment_and_wanted_again_at_once_is_one() {
    // Four loader threads, each of which has it for 40 µs and waits for it again 5 µs after it has handed it on.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for n in 0..4 {
        tale.thread(TRAINER, 101 + n);
    }
    for turn in 4..50_000_u32 {
        let begin = f64::from(turn) * 0.04;
        let (runs, before) = (101 + turn % 4, 101 + (turn + 3) % 4);
        let wait = (begin - 0.115, begin);
        tale.wait(
            runs,
            wait.0,
            wait.1,
            FUTEX,
            On::Futex(0x7000),
            By::Thread(before),
        );
    }
    let analysis = analyse(&tale.session(2100.0));
    assert!(analysis.locks.contains_key(&ROUND), "{:?}", analysis.locks);
}

#[test]
fn a_condition_variable_is_no_lock() {
    // One loader thread hands batches over; nobody contends for anything.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, 101);
    tale.ops(101, 10.0, Op::Open, Class::File, 5, 500, 1 << 20, 1.0);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin + 20.0,
            begin + 99.0,
            FUTEX,
            On::Futex(0x4000),
            By::Thread(101),
        );
    }
    let analysis = analyse(&tale.session(8000.0));
    assert!(analysis.locks.is_empty(), "{:?}", analysis.locks);
    let trainer = analysis.trainer.expect("a trainer");
    close(
        share(&trainer, Kind::InputCpu),
        0.79,
        "the loader's computing",
    );
}

#[test]
fn threads_of_a_parallel_region_compute_and_their_barrier_is_no_lock() {
    // The trainer starts two threads for each region and all meet at a barrier, again and again.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, 101)
        .thread(TRAINER, 102);
    for region in 0..800_u32 {
        let begin = f64::from(region) * 10.0;
        let (first, last) = if region % 2 == 0 {
            (101, 102)
        } else {
            (102, 101)
        };
        // The last one to arrive wakes all others at once.
        tale.wait(
            TRAINER,
            begin + 5.0,
            begin + 9.0,
            FUTEX,
            On::Futex(0x5000),
            By::Thread(last),
        );
        tale.wait(
            first,
            begin + 6.0,
            begin + 9.0,
            FUTEX,
            On::Futex(0x5000),
            By::Thread(last),
        );
        tale.wait(
            101,
            begin + 9.1,
            begin + 9.9,
            FUTEX,
            On::Futex(0x6000),
            By::Thread(TRAINER),
        );
        tale.wait(
            102,
            begin + 9.1,
            begin + 9.9,
            FUTEX,
            On::Futex(0x6000),
            By::Thread(TRAINER),
        );
    }
    let analysis = analyse(&tale.session(8000.0));
    assert!(analysis.locks.is_empty(), "{:?}", analysis.locks);
    let trainer = analysis.trainer.expect("a trainer");
    sums_up(&trainer);
    close(share(&trainer, Kind::Compute), 1.0, "computing");
}

#[test]
fn a_served_file_system_is_no_lock_of_the_job() {
    // The process that serves the file system belongs to the job's own tree.
    let mut tale = job(0);
    tale.process(300, TRAINER)
        .fileset(6, "/mnt/remote", "fuse.thing");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 70.0,
            READ,
            On::File(6),
            By::Thread(300),
        );
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::StorageIo), 0.7, "reading");
    assert!(
        trainer
            .walked
            .leaves
            .iter()
            .all(|(leaf, _)| { !matches!(leaf.what, What::Run { tid: 300 }) })
    );
}

/// A trainer and threads that take the interpreter's lock from it for 6 of 10 ms; they never wait for it themselves.
fn crowded_interpreter(handed_work: bool) -> Trainer {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for tid in [101, 102, 103] {
        tale.thread(TRAINER, tid);
    }
    let gil = On::Futex(0x7000);
    for turn in 0..800_u32 {
        let begin = f64::from(turn) * 10.0;
        // 101 gives and takes; 103 gives, and is hardly ever without it.
        let by = if turn % 2 == 0 { 101 } else { 103 };
        tale.wait(TRAINER, begin, begin + 5.0, FUTEX, gil, By::Interrupt);
        tale.wait(
            TRAINER,
            begin + 5.1,
            begin + 6.0,
            FUTEX,
            gil,
            By::Thread(by),
        );
        tale.wait(
            101,
            begin + 6.1,
            begin + 8.0,
            FUTEX,
            gil,
            By::Thread(TRAINER),
        );
        // 102 sleeps.
        tale.wait(102, begin, begin + 10.0, SLEEP, On::Nothing, By::Interrupt);
        if turn % 2 == 0 && handed_work {
            tale.wait(
                101,
                begin + 8.1,
                begin + 10.0,
                FUTEX,
                On::Futex(0x20_0000),
                By::Thread(TRAINER),
            );
        }
    }
    trainer(&tale, 8000.0)
}

#[test]
fn who_gets_the_interpreters_lock_as_soon_as_it_asks_waits_for_it_all_the_same() {
    // The second wait of each turn is too short to be seen, but for one in four.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, 101)
        .thread(TRAINER, 102);
    let gil = On::Futex(0x7000);
    for turn in 0..800_u32 {
        let begin = f64::from(turn) * 10.0;
        let other = 101 + turn % 2;
        let mut wait = |tid, from: f64, to: f64, by| {
            tale.wait(tid, begin + from, begin + to, FUTEX, gil, by);
        };
        wait(TRAINER, 0.0, 5.0, By::Interrupt);
        if turn % 4 < 2 {
            wait(TRAINER, 5.05, 5.3, By::Thread(other));
        }
        wait(other, 8.0, 8.5, By::Thread(TRAINER));
    }
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::Serialization), 0.5, "the lock");
}

#[test]
fn whoever_hands_the_interpreters_lock_on_has_had_it() {
    let trainer = crowded_interpreter(false);
    sums_up(&trainer);
    close(share(&trainer, Kind::Serialization), 0.6, "the lock");
}

#[test]
fn what_only_shares_the_interpreters_lock_is_needed_by_no_step() {
    // The second thread of the two is never handed anything, or gets work from the trainer each other turn.
    let apart = crowded_interpreter(false);
    assert!(
        apart.terms.cpu_apart > 0.3 * apart.wall,
        "{:?}",
        apart.terms
    );
    let tied = crowded_interpreter(true);
    assert!(tied.terms.cpu_apart < 0.01 * tied.wall, "{:?}", tied.terms);
}

#[test]
fn a_thread_that_hands_on_nothing_but_the_interpreters_lock_makes_no_batches() {
    // It sleeps for 7 ms of each 10 and computes in Python for 3, for which the trainer waits on a futex inside the interpreter.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, 101)
        .interpreter(TRAINER, 0x7000, 0x1000);
    let gil = On::Futex(0x71b0);
    for turn in 0..800_u32 {
        let begin = f64::from(turn) * 10.0;
        // Mostly the trainer lets the lock go just then.
        let waits = if turn % 20 == 0 { 2.0 } else { 0.0 };
        let woken = begin + 7.0 - waits;
        tale.wait(101, begin, woken, SLEEP, On::Nothing, By::Interrupt)
            .wait(
                TRAINER,
                begin + 7.0,
                begin + 9.9,
                FUTEX,
                gil,
                By::Thread(101),
            );
        if waits > 0.0 {
            tale.wait(101, woken, begin + 7.0, FUTEX, gil, By::Thread(TRAINER));
        }
    }
    let trainer = trainer(&tale, 8000.0);
    assert!(trainer.cast.loader_threads.is_empty(), "{:?}", trainer.cast);
    close(share(&trainer, Kind::Serialization), 0.29, "the lock");
    let bound = trainer.bound(Kind::Serialization);
    assert!((1.35..1.5).contains(&bound), "{bound}");
}

#[test]
fn threads_that_take_turns_at_the_network_wait_for_the_network() {
    // Three threads of a pool: one waits for the server, wakes the next one, and that the trainer.
    const POOL: [u32; 3] = [101, 102, 103];
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "server");
    for tid in POOL {
        tale.thread(TRAINER, tid);
        tale.ops(tid, 10.0, Op::Read, Class::Socket, 0, 100, 20 << 20, 5.0);
    }
    for step in 0..400_u32 {
        let begin = f64::from(step) * 20.0;
        let answered = begin + 18.0;
        let leader = POOL[step as usize % 3];
        let next = POOL[(step as usize + 1) % 3];
        let last = POOL[(step as usize + 2) % 3];
        tale.wait(
            leader,
            begin,
            answered,
            POLL,
            On::Socket(6),
            By::Sender(900),
        );
        for other in [next, last] {
            tale.wait(
                other,
                begin,
                answered + 0.1,
                FUTEX,
                On::Futex(64),
                By::Thread(leader),
            );
        }
        let by = By::Thread(next);
        tale.wait(TRAINER, begin + 8.0, answered + 0.2, POLL, On::Pipe(9), by);
    }
    let mut session = tale.session(8000.0);
    session
        .host
        .outsiders
        .insert(900, vec!["server".to_owned()]);
    let analysis = analyse(&session);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "network-io", "{}", verdict.summary);
}

#[test]
fn a_page_fault_waits_for_the_map_that_a_thread_of_its_process_holds_or_for_what_it_fetches() {
    const OWN: u32 = 150;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, OWN)
        .fileset(5, "/data", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (map, page) = (begin + 30.0, begin + 50.0);
        tale.wait(TRAINER, begin, map, NR_FAULT, On::Nothing, By::Thread(OWN))
            .wait(TRAINER, map, page, NR_FAULT, On::Mapped(5), By::Interrupt);
    }
    let session = tale.session(8000.0);
    let thread = session.thread(TRAINER).expect("its thread");
    let share = roles::share(&session, thread, &roles::roles(&session));
    close(share.lock_wait, 0.3, "for the map");
    close(share.io_wait, 0.2, "for pages");
}

/// Two loader threads take turns of 100 ms on a lock: who has it waits for a worker that computes for `computes` ms of them, then for a timer.
fn one_draws(computes: f64) -> Tale {
    const WORKER: u32 = 201;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(WORKER, TRAINER);
    for n in 0..2 {
        tale.thread(TRAINER, 101 + n);
        tale.ops(101 + n, 10.0, Op::Open, Class::File, 5, 100, 1 << 20, 1.0);
    }
    for turn in 0..80_u32 {
        let ms = f64::from(turn) * 100.0;
        let (has, wants) = (101 + turn % 2, 101 + (turn + 1) % 2);
        tale.wait(
            has,
            ms + 0.5,
            ms + 99.0,
            POLL,
            On::Pipe(9),
            By::Thread(WORKER),
        )
        .wait(
            wants,
            ms + 0.2,
            ms + 99.6,
            FUTEX,
            On::Futex(ROUND.line << 6),
            By::Thread(has),
        );
        if turn % 2 == 0 {
            // The trainer takes what is drawn in each second turn.
            let queue = On::Futex(0x100_000 + u64::from(turn) * 64);
            tale.wait(TRAINER, ms - 90.0, ms + 99.5, FUTEX, queue, By::Thread(has));
        }
        if computes < 99.0 {
            tale.wait(
                WORKER,
                ms + computes,
                ms + 98.9,
                SLEEP,
                On::Nothing,
                By::Interrupt,
            );
        }
    }
    tale
}

#[test]
fn a_lock_whose_holder_waits_for_a_busy_process_is_no_cause() {
    let busy = trainer(&one_draws(100.0), 8000.0);
    sums_up(&busy);
    let input = share(&busy, Kind::InputCpu);
    assert!(input > 0.9, "{input}");
    // One that sleeps could have served both at once.
    let idle = trainer(&one_draws(30.0), 8000.0);
    let locked = share(&idle, Kind::Serialization);
    assert!(locked > 0.4, "{locked}");
}
