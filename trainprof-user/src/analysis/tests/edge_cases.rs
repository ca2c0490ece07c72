//! What a naive walk gets wrong, one test each.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, batch, close, feeder, job, read_bound, share, stall, sums_up, trainer},
    tale::{By, FUTEX, On, POLL, READ, RECV, SLEEP, Tale, WRITE, at},
};
use crate::{
    analysis::{Kind, analyse},
    record::fact::PlaceClass,
};

#[test]
fn a_stall_is_blamed_on_all_of_the_batch_not_on_its_end() {
    // 300 ms of every batch are reading, at its beginning; the trainer waits for the last 100 ms alone, in
    // which the worker only decodes.
    let (tale, ms) = read_bound(300.0, 40);
    let trainer = trainer(&tale, ms);
    sums_up(&trainer);
    close(share(&trainer, Kind::StorageIo), 0.5 * 0.75, "reading");
    close(share(&trainer, Kind::InputCpu), 0.5 * 0.25, "decoding");
    close(share(&trainer, Kind::Compute), 0.5, "computing");
}

#[test]
fn the_waker_of_the_last_wait_is_the_one_that_was_waited_for() {
    // Worker 202 is quick and its batches come out of order: they wake the trainer, which waits on. Worker 201
    // reads.
    let mut tale = job(2);
    for step in 0..40 {
        let begin = f64::from(step) * 200.0;
        tale.wait(
            TRAINER,
            begin + 100.0,
            begin + 120.0,
            POLL,
            On::Pipe(77),
            By::Thread(feeder(202)),
        );
        tale.wait(
            202,
            begin + 1.0,
            begin + 100.0,
            POLL,
            On::Pipe(9),
            By::Thread(TRAINER),
        );
        tale.wait(
            feeder(202),
            begin + 1.0,
            begin + 119.9,
            FUTEX,
            On::Futex(0x9000),
            By::Thread(202),
        );
        stall(&mut tale, begin + 120.5, begin + 199.9, 201);
        batch(&mut tale, 201, begin + 0.2, 190.0, begin + 199.8);
    }
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::StorageIo), 0.5 * 0.95, "reading");
}

#[test]
fn helper_threads_are_passed_through() {
    let (tale, ms) = read_bound(380.0, 40);
    let trainer = trainer(&tale, ms);
    // No time stays with the feeder, which only waited for its worker.
    let with_feeders: f64 = trainer
        .shares
        .iter()
        .filter(|share| share.detail.tid > 1000)
        .map(|share| share.ns)
        .sum();
    // But for the first batches, whose making is not told.
    assert!(with_feeders < trainer.wall * 0.02, "{with_feeders}");
    assert_eq!(trainer.cast.workers.len(), 2);
    assert_eq!(trainer.cast.trainer, TRAINER);
}

#[test]
fn a_waker_in_an_interrupt_is_no_cause_and_an_unknown_one_stays_unknown() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..50 {
        let begin = f64::from(step) * 100.0;
        tale.wait(TRAINER, begin, begin + 30.0, READ, On::Pipe(3), By::Nobody);
        tale.wait(
            TRAINER,
            begin + 40.0,
            begin + 60.0,
            RECV,
            On::Socket(8),
            By::Softirq,
        );
    }
    let trainer = trainer(&tale, 5000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::Unknown), 0.3, "unknown");
    close(share(&trainer, Kind::NetworkIo), 0.2, "network");
}

#[test]
fn polled_waits_of_idle_workers_are_idle() {
    // The workers are ahead: they poll an empty queue with a time-out. The trainer never waits.
    let mut tale = job(2);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for worker in [201, 202] {
            tale.wait(
                worker,
                begin + 10.0,
                begin + 50.0,
                POLL,
                On::Pipe(9),
                By::Interrupt,
            );
            tale.wait(
                worker,
                begin + 50.1,
                begin + 99.0,
                POLL,
                On::Pipe(9),
                By::Thread(TRAINER),
            );
            tale.ops(worker, begin, Op::Write, Class::Pipe, 0, 1, 100, 0.01);
        }
        tale.ops(TRAINER, begin, Op::Read, Class::Pipe, 0, 2, 100, 0.01);
    }
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    assert_eq!(trainer.cast.workers.len(), 2, "{:?}", trainer.cast.roles);
    close(share(&trainer, Kind::Compute), 1.0, "computing");
    close(trainer.demand.busy / (2.0 * trainer.wall), 0.11, "busy");
}

#[test]
fn busy_workers_do_not_bound_a_trainer_that_never_waits() {
    let mut tale = job(2);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for worker in [201, 202] {
            tale.wait(
                worker,
                begin,
                begin + 90.0,
                READ,
                On::File(5),
                By::Interrupt,
            );
            tale.wait(
                worker,
                begin + 95.0,
                begin + 96.0,
                POLL,
                On::Pipe(9),
                By::Thread(TRAINER),
            );
            tale.ops(worker, begin, Op::Write, Class::Pipe, 0, 1, 100, 0.01);
        }
        tale.ops(TRAINER, begin, Op::Read, Class::Pipe, 0, 2, 100, 0.01);
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "compute", "{}", verdict.summary);
}

#[test]
fn page_faults_on_mapped_files_are_reads() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 60.0,
            0,
            On::Mapped(5),
            By::Interrupt,
        );
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::StorageIo), 0.6, "page faults");
}

#[test]
fn a_thread_that_sleeps_is_not_waited_for_by_the_clock() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 90.0,
            SLEEP,
            On::Nothing,
            By::Interrupt,
        );
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive", "{}", verdict.summary);
}

#[test]
fn a_cpu_taken_by_an_outsider_is_contention_and_by_the_job_itself_is_not() {
    for (by, kind) in [(900, Kind::CpuContention), (201, Kind::InputCpu)] {
        let mut tale = job(1);
        tale.outsider(900, "stress");
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            tale.preempted(TRAINER, begin, begin + 40.0, by);
            tale.wait(
                201,
                begin + 50.0,
                begin + 51.0,
                POLL,
                On::Pipe(9),
                By::Thread(TRAINER),
            );
            tale.ops(201, begin, Op::Write, Class::Pipe, 0, 1, 100, 0.01);
            tale.ops(TRAINER, begin, Op::Read, Class::Pipe, 0, 2, 100, 0.01);
        }
        let trainer = trainer(&tale, 8000.0);
        sums_up(&trainer);
        close(share(&trainer, kind), 0.4, kind.name());
    }
}

#[test]
fn lock_step_circles_end() {
    // Two threads wake each other in turn, for ever, and the trainer waits for one of them all the time.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, 101)
        .thread(TRAINER, 102);
    for turn in 0..4000_u32 {
        let begin = f64::from(turn) * 2.0;
        tale.wait(
            101,
            begin,
            begin + 1.0,
            FUTEX,
            On::Futex(0x1000),
            By::Thread(102),
        );
        tale.wait(
            102,
            begin + 1.0,
            begin + 2.0,
            FUTEX,
            On::Futex(0x2000),
            By::Thread(101),
        );
    }
    tale.wait(
        TRAINER,
        1.0,
        7990.0,
        FUTEX,
        On::Futex(0x3000),
        By::Thread(101),
    );
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
}

#[test]
fn what_lies_before_the_watch_is_not_told() {
    let mut tale = job(1);
    // Began long before the watch.
    tale.wait(TRAINER, -500.0, 4000.0, POLL, On::Pipe(77), By::Interrupt);
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    assert!(
        trainer
            .walked
            .pieces
            .iter()
            .all(|piece| piece.from >= at(0.0))
    );
}

#[test]
fn a_process_that_takes_what_the_trainer_writes_is_no_worker() {
    // A program that reads the log, and is slow at it.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).process(201, TRAINER);
    for step in 0..100 {
        let now = f64::from(step) * 50.0;
        tale.wait(
            TRAINER,
            now + 10.0,
            now + 50.0,
            WRITE,
            On::Pipe(9),
            By::Thread(201),
        );
    }
    let analysis = analyse(&tale.session(5000.0));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(trainer.cast.trainer, TRAINER);
    assert!(trainer.cast.workers.is_empty(), "{:?}", trainer.cast.roles);
}

/// A trainer that blocks for 45 of 100 ms in a pipe whose other end a process outside the job has.
fn piped(call: i16) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "other");
    for step in 0..80 {
        let now = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            now + 10.0,
            now + 55.0,
            call,
            On::Pipe(9),
            By::Thread(900),
        );
    }
    tale
}

#[test]
fn who_takes_what_is_written_makes_no_batches_and_who_writes_does() {
    let analysis = analyse(&piped(WRITE).session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "inconclusive", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("process 900"),
        "{}",
        verdict.summary
    );
    let analysis = analyse(&piped(READ).session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "input-cpu", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("process 900"),
        "{}",
        verdict.summary
    );
    // No worker would make what that process makes.
    let few = |finding: &crate::analysis::Finding| finding.kind == "too-few-workers";
    assert!(!analysis.findings.iter().any(few));
}

#[test]
fn work_in_a_process_below_a_worker_is_that_workers() {
    // The worker reads what a program that it starts for each batch makes of a file.
    let mut tale = job(1);
    for step in 0..80_u32 {
        let begin = f64::from(step) * 100.0;
        let program = 300 + step;
        tale.process(program, 201)
            .lived(program, begin, begin + 99.0);
        stall(&mut tale, begin + 20.0, begin + 99.9, 201);
        tale.wait(
            feeder(201),
            begin,
            begin + 99.8,
            FUTEX,
            On::Futex(0x1000),
            By::Thread(201),
        );
        for part in 0..4 {
            let from = begin + f64::from(part) * 20.0;
            tale.wait(
                201,
                from,
                from + 19.0,
                READ,
                On::Pipe(9),
                By::Thread(program),
            );
        }
    }
    let analysis = analyse(&tale.session(8000.0));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(trainer.cast.parallel(), 1);
    assert!(
        (trainer.demand.parallel - 1.0).abs() < 0.05,
        "{:?}",
        trainer.demand
    );
    let kinds: Vec<_> = analysis.findings.iter().map(|f| f.kind).collect();
    assert!(!kinds.contains(&"worker-respawn"), "{kinds:?}");
}

#[test]
fn batches_are_copied_out_of_a_pipe_for_the_input_side() {
    let mut tale = job(1);
    tale.place(1, "vmlinux", PlaceClass::Kernel);
    tale.ops(TRAINER, 10.0, Op::Read, Class::Pipe, 0, 8000, 1 << 30, 5.0);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin + 50.0, begin + 60.0, 201);
        for n in 0..10 {
            // Half of its own time it reads.
            let when = begin + f64::from(n) * 5.0 + 1.0;
            if n % 2 == 0 {
                tale.sample_in(TRAINER, when, 1, READ);
            } else {
                tale.sample(TRAINER, when, 2);
            }
        }
    }
    let trainer = trainer(&tale, 8000.0);
    let own: f64 = trainer
        .shares
        .iter()
        .filter(|share| share.kind == Kind::InputCpu && !share.in_stall)
        .map(|share| share.ns / trainer.wall)
        .sum();
    close(own, 0.45, "reading from the pipe");
}

#[test]
fn files_that_are_opened_between_lists_of_files_are_no_batches() {
    // One file for each of 20 steps of 10 ms, then 100 ms of looking at all of them.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    tale.place(1, "vmlinux", PlaceClass::Kernel)
        .place(2, "libmodel.so", PlaceClass::Other);
    const STAT: i16 = 4;
    for epoch in 0..25 {
        let begin = f64::from(epoch) * 300.0;
        for step in 0..20 {
            let now = begin + f64::from(step) * 10.0;
            tale.touch(TRAINER, now, Op::Open, Class::File, 3, 0);
            tale.sample(TRAINER, now + 5.0, 2);
        }
        for n in 0..10 {
            tale.sample_in(TRAINER, begin + 205.0 + f64::from(n) * 10.0, 1, STAT);
        }
    }
    tale.ops(TRAINER, 10.0, Op::Open, Class::File, 5, 500, 1 << 20, 1.0);
    let trainer = trainer(&tale, 7500.0);
    let input = share(&trainer, Kind::InputCpu);
    assert!(input < 0.1, "{input}");
    close(share(&trainer, Kind::SmallFiles), 0.33, "looking at files");
}

#[test]
fn files_that_are_only_looked_up_cost_no_bytes() {
    const STAT: i16 = 262;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for n in 0..10 {
            let from = begin + f64::from(n) * 5.0;
            tale.wait(TRAINER, from, from + 4.5, STAT, On::File(5), By::Interrupt);
        }
        tale.ops(TRAINER, begin, Op::Stat, Class::File, 5, 10, 0, 45.0);
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "small-files", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("stat, readdir"),
        "{}",
        verdict.summary
    );
}

#[test]
fn workers_that_have_the_trainers_cpu_do_what_they_do_there_themselves() {
    const STAT: i16 = 262;
    let mut tale = job(1);
    tale.place(1, "vmlinux", PlaceClass::Kernel)
        .place(2, "libmodel.so", PlaceClass::Other)
        .fileset(5, "/data", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin + 20.0, begin + 30.0, 201);
        tale.preempted(TRAINER, begin + 40.0, begin + 90.0, 201);
        tale.ops(201, begin, Op::Stat, Class::File, 5, 1_000, 0, 60.0);
        for n in 0..6 {
            tale.sample_in(201, begin + 25.0 + f64::from(n) * 10.0, 1, STAT);
        }
        tale.sample(TRAINER, begin + 10.0, 2);
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "small-files", "{}", verdict.summary);
    assert!(
        verdict.summary.contains("its workers looked files up"),
        "{}",
        verdict.summary
    );
}

#[test]
fn a_large_file_that_is_slow_to_close_is_no_small_one() {
    const CLOSE: i16 = 3;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            begin,
            begin + 45.0,
            CLOSE,
            On::File(5),
            By::Interrupt,
        );
        tale.ops(TRAINER, begin, Op::Open, Class::File, 5, 1, 64 << 20, 0.1);
        tale.ops(TRAINER, begin, Op::Close, Class::File, 5, 1, 0, 45.0);
    }
    let trainer = trainer(&tale, 8000.0);
    assert!(share(&trainer, Kind::SmallFiles) < 0.01);
}

/// A trainer with 40 of 100 ms inside newfstatat(2) of files that are in the cache.
fn looks_at_files() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .place(1, "kernel", PlaceClass::Kernel)
        .place(2, "libtorch_cpu.so", PlaceClass::Other);
    for sample in 0..400_u32 {
        let when = f64::from(sample) * 20.0 + 10.0;
        if sample % 5 < 2 {
            tale.sample_in(TRAINER, when, 1, 262);
        } else {
            tale.sample(TRAINER, when, 2);
        }
    }
    tale
}

#[test]
fn a_trainer_that_looks_at_many_files_and_reads_none_has_small_files() {
    let mut tale = looks_at_files();
    for step in 0..80_u32 {
        let begin = f64::from(step) * 100.0;
        tale.ops(TRAINER, begin, Op::Stat, Class::File, 5, 500, 0, 40.0);
    }
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::SmallFiles), 0.4, "looking at files");
    close(share(&trainer, Kind::Compute), 0.6, "the model");
}

#[test]
fn running_for_files_of_many_directories_is_told_of_all_of_them() {
    // In eight directories of one mount alike; one more is written to.
    let mut tale = looks_at_files();
    for set in 11..19_u32 {
        tale.fileset(set, &format!("/data/train/{set}"), "ext4");
    }
    tale.fileset(30, "/data/out", "ext4");
    for step in 0..80_u32 {
        let begin = f64::from(step) * 100.0;
        for set in 11..19 {
            tale.ops(TRAINER, begin, Op::Stat, Class::File, set, 500, 0, 5.0);
        }
        tale.ops(TRAINER, begin, Op::Write, Class::File, 30, 1, 1000, 0.1);
    }
    let mut session = tale.session(8000.0);
    for fact in session.filesets.values_mut() {
        fact.mount_point = Some("/".to_owned());
    }
    let analysis = analyse(&session);
    let found = analysis.findings.iter().find(|f| f.kind == "small-files");
    let found = found.expect("a finding");
    let rate = found.evidence["lookups_per_s"].as_f64().expect("a rate");
    close(rate / 40_000.0, 1.0, "all directories");
    assert!(
        found
            .summary
            .contains("under /data/train (ext4, 8 directories)"),
        "{}",
        found.summary
    );
}

#[test]
fn who_looks_up_while_it_waits_is_not_waited_for_by_whom_it_waits_for() {
    // The trainer waits for a server, whose thread waits for another of its own, which a worker that always computes wakes when a batch
    // is there. In between the server's thread looks up after a time-out, and the other one is woken by that as well.
    let (server, other, worker) = (201, 202, 301);
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .process(server, TRAINER)
        .thread(server, other)
        .process(worker, TRAINER);
    for step in 0..80 {
        let ms = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            ms + 20.0,
            ms + 99.0,
            POLL,
            On::Pipe(77),
            By::Thread(server),
        )
        .touch(TRAINER, ms + 99.0, Op::Read, Class::Pipe, 77, 4)
        .wait(
            server,
            ms - 0.8,
            ms + 60.0,
            POLL,
            On::Nothing,
            By::Interrupt,
        )
        .wait(
            server,
            ms + 60.2,
            ms + 98.9,
            POLL,
            On::Nothing,
            By::Thread(other),
        )
        .wait(
            other,
            ms - 1.0,
            ms + 60.1,
            POLL,
            On::Nothing,
            By::Thread(server),
        )
        .wait(
            other,
            ms + 60.3,
            ms + 98.8,
            POLL,
            On::Nothing,
            By::Thread(worker),
        );
    }
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::InputCpu), 0.79, "the worker");
}
