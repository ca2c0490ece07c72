//! Stories of what else is in a job: its own helpers, a server above it, locks on files; and of what the trainer does with a
//! batch before it computes.

use trainprof_common::{
    op::{Class, Op},
    thread::NR_PREEMPTED,
};

use super::{
    clocks::steps,
    stories::{DATA_PIPE, TRAINER, close, feeder, feeds, job, share, stall, trainer},
    tale::{By, FUTEX, On, POLL, READ, RECV, SLEEP, Tale, at},
};
use crate::{
    analysis::{Analysis, Kind, analyse},
    record::{
        Record,
        fact::{HostSample, PlaceClass},
    },
    session::roles::{Role, roles},
    time::KtimeNs,
};

const HELPER: u32 = 500;
const WAIT4: i16 = 61;
const FCNTL: i16 = 72;
const INDEX_PIPE: u64 = 90;

/// What most of the time goes to that is no computing of the model, with its share of the time.
fn worst(analysis: &Analysis) -> (Kind, f64) {
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    let (kind, ns) = trainer
        .by_kind()
        .into_iter()
        .filter(|(kind, _)| *kind != Kind::Compute)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("causes");
    (kind, ns / trainer.wall)
}

pub(super) fn is_near(found: f64, truth: f64) {
    assert!((found - truth).abs() < 0.03, "{found}, truth {truth}");
}

/// A trainer that waits 40 of 100 ms for the end of a process that it started.
fn waits_for_helper() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(HELPER, TRAINER);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let woken = begin + 40.0;
        tale.wait(
            TRAINER,
            begin,
            woken,
            WAIT4,
            On::Nothing,
            By::Thread(HELPER),
        );
        tale.wait(
            HELPER,
            woken,
            begin + 99.9,
            READ,
            On::Pipe(3),
            By::Thread(TRAINER),
        );
    }
    tale
}

#[test]
fn a_process_that_is_waited_for_is_no_computing_of_the_model() {
    let analysis = analyse(&waits_for_helper().session(8000.0));
    let (kind, share) = worst(&analysis);
    assert_eq!(kind, Kind::Helper);
    is_near(share, 0.4);
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive");
    assert!(
        verdict.summary.contains("waits until process 500"),
        "{}",
        verdict.summary
    );
    let next = "`trainprof attach 500` shows";
    assert!(verdict.summary.contains(next), "{}", verdict.summary);
    // It writes what it was given to a file.
    let mut tale = waits_for_helper();
    tale.fileset(5, "/ckpt", "ext4");
    tale.ops(
        HELPER,
        4000.0,
        Op::Write,
        Class::File,
        5,
        100,
        64 << 20,
        9.0,
    );
    let analysis = analyse(&tale.session(8000.0));
    let (kind, share) = worst(&analysis);
    assert_eq!(kind, Kind::Checkpoint);
    is_near(share, 0.4);
}

#[test]
fn a_process_of_the_job_that_has_the_trainers_cpu_is_contention_and_named() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(HELPER, TRAINER);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin, begin + 50.0, HELPER);
        tale.preempted(HELPER, begin + 50.0, begin + 100.0, TRAINER);
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "cpu-contention", "{}", verdict.summary);
    is_near(verdict.share.expect("a share"), 0.5);
    assert!(
        verdict.summary.contains("process 500"),
        "{}",
        verdict.summary
    );
}

#[test]
fn a_time_out_on_what_nobody_of_the_job_ends_is_no_idling() {
    let paused = |nr, on: fn(u64) -> On| {
        let mut tale = job(1);
        for step in 0..40_u32 {
            let begin = f64::from(step) * 200.0;
            stall(&mut tale, begin + 100.0, begin + 199.9, 201);
            tale.wait(
                201,
                begin + 0.5,
                begin + 199.5,
                nr,
                on(step.into()),
                By::Interrupt,
            );
            feeds(&mut tale, 201, begin, begin + 199.8);
        }
        worst(&analyse(&tale.session(8000.0)))
    };
    // A name server that does not answer, each time on a socket of its own; and a limit to the rate.
    let (kind, share) = paused(POLL, |n| On::Socket(700 + n));
    assert_eq!(kind, Kind::NetworkIo);
    is_near(share, 0.5);
    let (kind, share) = paused(FUTEX, |n| On::Futex(0x9000 + 0x100 * n));
    assert_eq!(kind, Kind::Sleep);
    is_near(share, 0.5);
}

/// A trainer with one worker, whose steps of 100 ms have 60 in which it takes the batch in, or computes too. In some of these it copies
/// the batch out of the pipe that it came by.
fn takes_in(module: &str, copies: u32) -> Analysis {
    let mut tale = job(1);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other);
    tale.place(2, module, PlaceClass::Other);
    tale.place(3, "[kernel]", PlaceClass::Kernel);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin, begin + 1.0, 201);
        tale.touch(TRAINER, begin + 60.0, Op::Write, Class::Pipe, INDEX_PIPE, 8);
        tale.wait(
            201,
            begin,
            begin + 60.0,
            READ,
            On::Pipe(INDEX_PIPE),
            By::Thread(TRAINER),
        );
        for n in 0..10 {
            let (place, call) = match n {
                n if n < copies => (3, READ),
                0..6 => (2, NR_PREEMPTED),
                _ => (1, NR_PREEMPTED),
            };
            tale.sample_in(TRAINER, begin + 10.0 * f64::from(n) + 5.0, place, call);
        }
        if copies > 0 {
            let bytes = 10_000_000;
            tale.ops(TRAINER, begin, Op::Read, Class::Pipe, 0, 1, bytes, 1.0);
        }
    }
    analyse(&tale.session(8000.0))
}

#[test]
fn taking_a_batch_in_is_input_work_and_computing_before_asking_is_not() {
    let analysis = takes_in("python3.11", 0);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "input-cpu", "{}", verdict.summary);
    is_near(verdict.share.expect("a share"), 0.6);
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((2.4..2.8).contains(&bound), "{bound}");
    assert!(
        verdict.summary.contains("59 ms for each"),
        "{}",
        verdict.summary
    );
    let computes = takes_in("libtorch_python.so", 0);
    assert_eq!(computes.verdict.expect("a verdict").bottleneck, "compute");
}

#[test]
fn copying_a_batch_out_of_its_pipe_is_part_of_taking_it_in() {
    let analysis = takes_in("python3.11", 3);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    let share = |kind| share(trainer, kind);
    is_near(share(Kind::InputCpu), 0.6);
    is_near(share(Kind::Compute), 0.4);
}

#[test]
fn locks_on_files_are_told_as_such() {
    // Three workers take turns of 30 ms on a lock, and make a batch in each.
    let mut tale = job(3);
    for turn in 0..240_u32 {
        let begin = f64::from(turn) * 30.0;
        let (worker, next) = (201 + turn % 3, 201 + (turn + 1) % 3);
        stall(&mut tale, begin + 5.0, begin + 29.9, worker);
        if turn >= 2 {
            let since = begin - 30.0;
            tale.wait(
                next,
                since,
                begin + 29.5,
                FCNTL,
                On::File(5),
                By::Thread(worker),
            );
        }
        feeds(&mut tale, worker, (begin - 60.0).max(0.0), begin + 29.8);
    }
    let analysis = analyse(&tale.session(7200.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "serialization", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("(fcntl, flock) in /data"),
        "{}",
        verdict.summary
    );
}

#[test]
fn a_lock_on_a_file_that_a_process_outside_has_is_no_reading() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .outsider(900, "backup")
        .fileset(5, "/data", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (from, to) = (begin + 10.0, begin + 60.0);
        tale.wait(TRAINER, from, to, FCNTL, On::File(5), By::Thread(900));
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "serialization", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("(fcntl, flock) in /data")
            && verdict.summary.contains("process 900 (backup)"),
        "{}",
        verdict.summary
    );
    // Who slept for half of the time goes on with cold caches, and without the lock does not.
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((2.1..2.6).contains(&bound), "{bound}");
}

#[test]
fn the_wait_that_the_end_cuts_off_is_left_out() {
    // Steps of 1 s, of which 900 ms are waited for; the watch ends in the middle of one.
    let mut tale = job(1);
    for step in 0..8 {
        let begin = f64::from(step) * 1000.0;
        stall(&mut tale, begin + 100.0, begin + 999.9, 201);
        tale.wait(
            201,
            begin + 1.0,
            begin + 999.0,
            READ,
            On::File(5),
            By::Interrupt,
        );
        feeds(&mut tale, 201, begin, begin + 999.8);
    }
    tale.wait(
        TRAINER,
        8100.0,
        8800.0,
        POLL,
        On::Pipe(DATA_PIPE),
        By::Nobody,
    );
    let analysis = analyse(&tale.session(8800.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "storage-io", "{}", verdict.summary);
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((9.0..11.5).contains(&bound), "{bound}");
}

#[test]
fn a_wait_for_workers_made_anew_that_the_end_cuts_off_is_left_out_too() {
    // Epochs of 1 s, each with a worker and a pipe of its own; the watch ends while the next worker is waited for, a little longer
    // than ever before, or for so long that it is another matter.
    let told = |waits: f64| {
        let mut tale = job(0);
        for epoch in 0..8_u32 {
            let begin = f64::from(epoch) * 1000.0;
            let (worker, pipe) = (310 + epoch, 500 + u64::from(epoch));
            for (from, to) in [(60.0, 900.0), (930.0, 930.5), (960.0, 960.5)] {
                tale.wait(
                    TRAINER,
                    begin + from,
                    begin + to,
                    POLL,
                    On::Pipe(pipe),
                    By::Thread(feeder(worker)),
                );
                tale.touch(TRAINER, begin + to, Op::Read, Class::Pipe, pipe, 4);
            }
            tale.process(worker, TRAINER)
                .thread(worker, feeder(worker))
                .lived(worker, begin + 50.0, begin + 990.0);
        }
        let end = 8060.0 + waits;
        tale.wait(TRAINER, 8060.0, end, POLL, On::Pipe(600), By::Nobody);
        let trainer = analyse(&tale.session(end)).trainer.expect("a trainer");
        trainer.ns(Kind::Unknown) / trainer.wall
    };
    assert!(told(900.0) < 0.02, "{}", told(900.0));
    assert!(told(4000.0) > 0.25, "{}", told(4000.0));
}

#[test]
fn a_server_above_a_process_that_trains_is_not_the_trainer() {
    let kernel = 300;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(kernel, TRAINER);
    for beat in 0..40 {
        let begin = f64::from(beat) * 200.0;
        // What it prints is read; and it is asked whether it is there.
        tale.wait(
            TRAINER,
            begin,
            begin + 199.0,
            POLL,
            On::Pipe(3),
            By::Thread(kernel),
        );
        tale.ops(
            TRAINER,
            begin + 199.5,
            Op::Write,
            Class::Socket,
            0,
            1,
            8,
            0.1,
        );
        tale.ops(kernel, begin + 199.5, Op::Read, Class::Socket, 0, 1, 8, 0.1);
    }
    let trainer = |tale: &Tale| {
        let analysis = analyse(&tale.session(8000.0));
        analysis.trainer.expect("a trainer").cast.trainer
    };
    assert_eq!(trainer(&tale), TRAINER, "it feeds its parent");
    tale.library(kernel, "torch");
    assert_eq!(trainer(&tale), kernel);
}

#[test]
fn a_program_beside_a_trainers_work_is_no_trainer() {
    let (search, workers) = (300, [301, 302]);
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .library(TRAINER, "torch")
        .process(search, TRAINER);
    for pid in workers {
        tale.process(pid, search);
    }
    for beat in 0..40 {
        let begin = f64::from(beat) * 200.0;
        // It only collects what its own processes find out, and gives them more to do.
        let said = By::Thread(workers[beat as usize % 2]);
        tale.wait(search, begin, begin + 199.5, POLL, On::Pipe(3), said);
        for pid in workers {
            let asked = By::Thread(search);
            tale.wait(pid, begin + 199.6, begin + 199.8, READ, On::Pipe(4), asked);
        }
    }
    let part = |tale: &Tale, pid: u32| roles(&tale.session(8000.0))[&pid];
    assert_eq!(part(&tale, TRAINER), Role::Trainer);
    assert_eq!(part(&tale, search), Role::Helper);
    assert_eq!(workers.map(|pid| part(&tale, pid)), [Role::Helper; 2]);
    // A program that a trainer waits for makes its batches, whoever works for it.
    for beat in 0..40 {
        let begin = f64::from(beat) * 200.0;
        let said = By::Thread(search);
        tale.wait(TRAINER, begin, begin + 100.0, READ, On::Pipe(5), said);
    }
    assert_eq!(part(&tale, TRAINER), Role::Trainer);
    assert_eq!(part(&tale, search), Role::Worker);
    assert_eq!(workers.map(|pid| part(&tale, pid)), [Role::Worker; 2]);
}

#[test]
fn a_job_of_which_nothing_runs_may_hang() {
    let mut tale = job(1);
    for tid in [TRAINER, 201, feeder(201)] {
        tale.wait(tid, 0.0, 8000.0, POLL, On::Pipe(DATA_PIPE), By::Nobody);
    }
    let verdict = analyse(&tale.session(8000.0)).verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive");
    assert!(
        verdict.summary.contains("process 100 waits in poll"),
        "{}",
        verdict.summary
    );
    assert!(verdict.summary.contains("may hang"), "{}", verdict.summary);
}

#[test]
fn programs_that_a_worker_starts_work_for_it() {
    let mut tale = job(1);
    for step in 0..40_u32 {
        let begin = f64::from(step) * 200.0;
        // One for each batch, which ends a single wait.
        let program = 600 + step;
        tale.process(program, 201);
        stall(&mut tale, begin + 100.0, begin + 199.9, 201);
        tale.wait(
            201,
            begin + 0.5,
            begin + 199.5,
            WAIT4,
            On::Nothing,
            By::Thread(program),
        );
        feeds(&mut tale, 201, begin, begin + 199.8);
    }
    let (kind, share) = worst(&analyse(&tale.session(8000.0)));
    assert_eq!(kind, Kind::InputCpu);
    is_near(share, 0.5);
}

/// A trainer whose team-mate computes with it for 100 ms a step, and is 50 ms of them without a CPU that `by` has.
fn spins_while_its_mate_has_no_cpu(by: u32, in_team: bool) -> Analysis {
    const MATE: u32 = 101;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, MATE);
    tale.outsider(9000, "burner");
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other);
    tale.place(2, "libgomp-a34b3233.so.1", PlaceClass::Other);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(MATE, begin + 40.0, begin + 90.0, by);
        if in_team {
            tale.sample(MATE, begin + 1.0, 2);
        }
        for n in 0..10 {
            // Of a team that is not complete it waits at the barrier, and for a moment in each step anyway.
            let place = if (4..=9).contains(&n) { 2 } else { 1 };
            tale.sample(TRAINER, begin + 10.0 * f64::from(n) + 5.0, place);
        }
    }
    analyse(&tale.session(8000.0))
}

#[test]
fn spinning_for_a_thread_that_has_no_cpu_is_contention_for_that_cpu() {
    let analysis = spins_while_its_mate_has_no_cpu(9000, true);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "cpu-contention", "{}", verdict.summary);
    is_near(verdict.share.expect("a share"), 0.5);
    assert!(verdict.summary.contains("9000"), "{}", verdict.summary);
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((1.9..2.4).contains(&bound), "{bound}");
    // More team than CPUs: nobody else has them.
    let crowded = spins_while_its_mate_has_no_cpu(TRAINER, true);
    assert_eq!(crowded.verdict.expect("a verdict").bottleneck, "compute");
    // A thread of the process that computes with nobody is not spun for.
    let other = spins_while_its_mate_has_no_cpu(9000, false);
    assert_eq!(other.verdict.expect("a verdict").bottleneck, "compute");
}

/// A trainer that waits 60 of 100 ms for the CPU that threads of its own team have, which spin for most of that.
fn behind_its_own_team(mates: u32) -> Analysis {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other);
    tale.place(2, "", PlaceClass::Spinning);
    for mate in 101..=100 + mates {
        tale.thread(TRAINER, mate);
    }
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin, begin + 60.0, 101);
        for mate in 101..=100 + mates {
            for n in 0..10 {
                let place = if n < 8 { 2 } else { 1 };
                tale.sample(mate, begin + 10.0 * f64::from(n), place);
            }
        }
    }
    analyse(&tale.session(8000.0))
}

#[test]
fn a_team_larger_than_the_cpus_spins_where_its_mates_would_compute() {
    let trainer = |mates| behind_its_own_team(mates).trainer.expect("a trainer");
    let contention = |mates| share(&trainer(mates), Kind::CpuContention);
    is_near(contention(7), 0.6 * 0.8);
    let verdict = behind_its_own_team(7).verdict.expect("a verdict");
    assert!(
        verdict.summary.contains("more threads than there are CPUs"),
        "{}",
        verdict.summary
    );
}

#[test]
fn programs_beside_the_trainer_crowd_its_threads_as_strangers_do() {
    // The trainer waits behind its own team-mate for 50 of each 100 ms; what else the host did is one program of its launcher.
    const MATE: u32 = 101;
    let mut tale = Tale::default();
    tale.process(50, 1)
        .process(TRAINER, 50)
        .thread(TRAINER, MATE)
        .process(60, 50)
        .process(300, 60);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin, begin + 50.0, MATE);
        // Launchers sleep.
        for launcher in [50, 60] {
            tale.wait(
                launcher,
                begin,
                begin + 99.9,
                WAIT4,
                On::Nothing,
                By::Interrupt,
            );
        }
    }
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![TRAINER];
    for (ms, busy_ns) in [(0.0, 0), (8000.0, 21_600_000_000)] {
        session.apply(&Record::Host(HostSample {
            at: KtimeNs(at(ms)),
            busy_ns,
            ..HostSample::default()
        }));
    }
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(trainer.cast.trainer, TRAINER);
    is_near(trainer.ns(Kind::CpuContention) / trainer.wall, 0.5);
}

#[test]
fn workers_that_were_there_before_the_watch_were_not_made_in_it() {
    // They are found a moment after it began. The trainer computes, and waits for nothing in the first second.
    let mut tale = job(2);
    tale.found(201, 0.2).found(202, 0.4);
    for step in 10..80 {
        let done = f64::from(step) * 100.0;
        stall(&mut tale, done, done + 2.0, 201 + step % 2);
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::WorkerStart), 0.0, "making workers");
}

/// A thread of the trainer answers a program that asks for metrics, about as often as there are steps.
#[test]
fn who_is_served_by_another_thread_hands_over_nothing() {
    const SERVER: u32 = TRAINER + 7;
    const SCRAPER: u32 = 203;
    let mut tale = job(2);
    tale.thread(TRAINER, SERVER).process(SCRAPER, TRAINER);
    for step in 0..150 {
        let begin = f64::from(step) * 50.0;
        stall(&mut tale, begin, begin + 0.5, 201);
    }
    for turn in 0..145 {
        let begin = f64::from(turn) * 51.0;
        let (on, by) = (On::Socket(9), By::Sender(SCRAPER));
        tale.wait(SERVER, begin + 1.0, begin + 50.0, RECV, on, by);
        tale.touch(SERVER, begin + 50.1, Op::Read, Class::Socket, 9, 80);
        tale.touch(SERVER, begin + 50.4, Op::Write, Class::Socket, 9, 200);
        let (on, by) = (On::Nothing, By::Interrupt);
        tale.wait(SCRAPER, begin + 1.0, begin + 49.0, SLEEP, on, by);
    }
    let found = steps(&tale, 7500.0).expect("steps");
    let count = found.spans.len();
    assert!(
        count.abs_diff(150) <= 2,
        "{count} of 150, {:?}",
        found.clock
    );
}
