//! Stories of processes that a trainer starts and that make no batches, and of its own threads that have nothing to do.

use trainprof_common::op::{Class, Op};

use super::{
    company::is_near,
    stories::{TRAINER, feeder, job, stall},
    tale::{By, FUTEX, On, POLL, Tale},
};
use crate::{
    analysis::{Analysis, Kind, analyse, facts::Facts},
    record::fact::PlaceClass,
};

const VFORK: i16 = 58;
const CHILD: u32 = 500;

fn share(analysis: &Analysis, kind: Kind) -> f64 {
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    let ns = trainer.by_kind().get(&kind).copied().unwrap_or(0.0);
    ns / trainer.wall
}

#[test]
fn who_takes_what_the_trainer_puts_out_is_no_worker() {
    // A queue with room for a few dumps, to a child that compresses them: 40 of 100 ms the trainer waits for room.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(CHILD, TRAINER);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let woken = begin + 40.0;
        tale.wait(
            TRAINER,
            begin,
            woken,
            FUTEX,
            On::Futex(7),
            By::Thread(CHILD),
        );
    }
    tale.ops(
        TRAINER,
        4000.0,
        Op::Write,
        Class::Pipe,
        0,
        80,
        64 << 20,
        9.0,
    );
    tale.ops(CHILD, 4000.0, Op::Read, Class::Pipe, 0, 900, 64 << 20, 9.0);
    let analysis = analyse(&tale.session(8000.0));
    is_near(share(&analysis, Kind::Helper), 0.4);
    is_near(share(&analysis, Kind::InputCpu), 0.0);
    let verdict = analysis.verdict.expect("a verdict");
    assert!(
        verdict.summary.contains("waits until process 500"),
        "{}",
        verdict.summary
    );
}

#[test]
fn a_worker_that_is_told_many_numbers_is_one() {
    // Large batches: their numbers take more bytes than saying where the batch is.
    let mut tale = job(1);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin, begin + 40.0, 201);
    }
    tale.ops(TRAINER, 4000.0, Op::Write, Class::Pipe, 0, 80, 2 << 20, 9.0);
    tale.ops(201, 4000.0, Op::Read, Class::Pipe, 0, 80, 2 << 20, 9.0);
    tale.ops(201, 4000.0, Op::Write, Class::Pipe, 0, 80, 80 * 300, 1.0);
    let analysis = analyse(&tale.session(8000.0));
    is_near(share(&analysis, Kind::Helper), 0.0);
    let cast = &analysis.trainer.as_ref().expect("a trainer").cast;
    assert!(!cast.workers.is_empty());
}

/// Three runs of a program, a second each, that write so many bytes to the trainer.
fn runs_programs(bytes: u64) -> Analysis {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for run in 0..3_u32 {
        let begin = f64::from(run) * 2500.0;
        let program = 600 + run;
        let pipe = On::Pipe(u64::from(program));
        tale.process(program, TRAINER);
        let by = By::Thread(program);
        tale.wait(TRAINER, begin, begin + 2.0, VFORK, On::Nothing, by);
        tale.wait(TRAINER, begin + 2.1, begin + 900.0, POLL, pipe, by);
        tale.wait(TRAINER, begin + 900.1, begin + 1000.0, POLL, pipe, by);
        tale.ops(program, begin, Op::Write, Class::Pipe, 0, 1, bytes, 0.1);
        tale.ops(TRAINER, begin, Op::Read, Class::Pipe, 0, 1, bytes, 0.1);
    }
    analyse(&tale.session(7500.0))
}

#[test]
fn a_program_that_hands_over_next_to_nothing_made_no_batches() {
    // An evaluation that prints a line, and one that decodes a film.
    let evaluation = runs_programs(40);
    is_near(share(&evaluation, Kind::Helper), 0.4);
    is_near(share(&evaluation, Kind::InputCpu), 0.0);
    let film = runs_programs(300 << 20);
    is_near(share(&film, Kind::InputCpu), 0.4);
}

/// A trainer that waits for a CPU for 30 of 100 ms behind a thread of its own, which is in a library then.
fn behind_its_own(library: &str) -> Analysis {
    const MATE: u32 = 101;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, MATE);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other);
    tale.place(2, library, PlaceClass::Other);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin + 50.0, begin + 80.0, MATE);
        tale.sample(MATE, begin + 60.0, 2);
        tale.sample(TRAINER, begin + 20.0, 1);
    }
    analyse(&tale.session(8000.0))
}

#[test]
fn thread_pools_that_look_for_work_take_each_others_cpus() {
    let fight = behind_its_own("libgomp-a34b3233.so.1");
    is_near(share(&fight, Kind::CpuContention), 0.3);
    let verdict = fight.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "cpu-contention", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("of the trainer's own"),
        "{}",
        verdict.summary
    );
    // Who computes has the CPU for the model.
    let team = behind_its_own("libopenblas.so.0");
    is_near(share(&team, Kind::CpuContention), 0.0);
}

#[test]
fn producers_that_live_one_after_the_other_are_one_at_once() {
    // Eighty workers for 100 ms each, each of which hands over four batches.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for n in 0..80_u32 {
        let (worker, begin) = (300 + n, f64::from(n) * 100.0);
        tale.process(worker, TRAINER)
            .thread(worker, feeder(worker))
            .lived(worker, begin, begin + 100.0);
        for batch in 0..4 {
            let from = begin + 5.0 + f64::from(batch) * 20.0;
            stall(&mut tale, from, from + 10.0, worker);
        }
    }
    let session = tale.session(8000.0);
    let cast = analyse(&session).trainer.expect("a trainer").cast;
    assert_eq!(cast.parallel(), 80);
    is_near(cast.at_once(&Facts::new(&session)), 1.0);
}
