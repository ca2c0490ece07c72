//! State that is written: by the trainer, by another rank, and between batches.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, bottleneck, close, share},
    tale::{By, FSYNC, FUTEX, On, RECV, Tale},
};
use crate::{
    analysis::{Analysis, Kind, analyse, steps::Clock},
    record::fact::PlaceClass,
};

const OPENAT: i16 = 257;

/// A file is opened in each of 40 turns of 200 ms, which takes 120, and then written or read.
fn opened(then: Op) -> Analysis {
    const SET: u32 = 5;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(SET, "/out", "ext4");
    for turn in 0..40 {
        let begin = f64::from(turn) * 200.0;
        let opened = begin + 180.0;
        tale.wait(
            TRAINER,
            begin + 60.0,
            opened,
            OPENAT,
            On::File(SET),
            By::Interrupt,
        );
        tale.touch(TRAINER, opened, Op::Open, Class::File, 7, 0);
        tale.touch(TRAINER, opened + 1.0, then, Class::File, 7, 8 << 20);
    }
    tale.ops(
        TRAINER,
        10.0,
        Op::Open,
        Class::File,
        SET,
        40,
        40 << 23,
        4800.0,
    );
    tale.ops(TRAINER, 10.0, then, Class::File, SET, 40, 40 << 23, 40.0);
    analyse(&tale.session(8000.0))
}

#[test]
fn waiting_for_a_file_to_be_opened_that_is_then_written_is_a_checkpoint() {
    // It is cut off (O_TRUNC), and what it held has to be written first.
    let analysis = opened(Op::Write);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "checkpoint", "{}", verdict.summary);
    let share = verdict.share.expect("a share");
    assert!((share - 0.6).abs() < 0.02, "{share}");
    assert!(
        verdict.summary.contains("up to 121 ms"),
        "{}",
        verdict.summary
    );
    assert_eq!(bottleneck(&opened(Op::Read)), "small-files");
}

/// Four files 3 ms apart and 25 ms of computing; after each tenth step state is written for 300 ms.
fn saves_between_batches() -> Analysis {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    let mut now = 5.0;
    for step in 0..200 {
        for file in 0..4_u32 {
            let id = u64::from(step % 50 * 4 + file);
            tale.touch(TRAINER, now, Op::Open, Class::File, 100 + id, 0);
            tale.touch(TRAINER, now + 0.5, Op::Read, Class::File, 100 + id, 30_000);
            now += 3.0 + f64::from(step % 3) * 0.1;
        }
        now += 25.0;
        if step % 10 == 9 {
            tale.touch(TRAINER, now, Op::Open, Class::File, 7, 0);
            tale.touch(TRAINER, now + 1.0, Op::Write, Class::File, 7, 8 << 20);
            tale.wait(
                TRAINER,
                now + 2.0,
                now + 300.0,
                FSYNC,
                On::File(5),
                By::Interrupt,
            );
            tale.touch(TRAINER, now + 300.0, Op::Fsync, Class::File, 7, 0);
            now += 301.0;
        }
    }
    analyse(&tale.session(now))
}

#[test]
fn a_checkpoint_does_not_part_batches() {
    let analysis = saves_between_batches();
    let steps = analysis.trainer.and_then(|t| t.steps).expect("steps");
    assert_eq!(steps.clock, Clock::OwnBatches);
    assert!(
        steps.spans.len().abs_diff(199) <= 2,
        "{}",
        steps.spans.len()
    );
}

#[test]
fn what_a_checkpoint_adds_to_a_step_is_told() {
    let analysis = saves_between_batches();
    let found = analysis.findings.iter().find(|f| f.kind == "checkpoint");
    let found = found.expect("a finding");
    let number = |key: &str| found.evidence[key].as_f64().expect("a number");
    // 20 of 301 ms each, in 200 steps.
    assert_eq!(number("count"), 20.0);
    for (key, expected) in [
        ("longest_s", 0.3),
        ("seconds_each", 0.3),
        ("added_ms_per_step", 30.1),
    ] {
        let told = number(key);
        assert!((told / expected - 1.0).abs() < 0.02, "{key}: {told}");
    }
    let said = ", which adds 30 ms to a step on average";
    assert!(found.summary.contains(said), "{}", found.summary);
}

#[test]
fn what_a_late_rank_does_while_the_others_wait_is_told() {
    // Rank 150 computes for half of its time, and syncs a file while 100 waits for it.
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(150, 50);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let sender = By::Sender(150);
        tale.wait(
            TRAINER,
            begin + 50.0,
            begin + 95.0,
            RECV,
            On::Socket(4),
            sender,
        );
        tale.wait(
            150,
            begin + 52.0,
            begin + 92.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
        let sender = By::Sender(TRAINER);
        tale.wait(150, begin + 96.0, begin + 97.0, RECV, On::Socket(5), sender);
    }
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![50];
    let analysis = analyse(&session);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    let told = "process 150, which spends 89 % of that time on checkpoint";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
}

#[test]
fn writing_to_other_ranks_is_no_checkpoint() {
    // A fifth of the time each of two ranks is in write(2): to a socket, or to a file.
    const WRITE: i16 = 1;
    let told = |class: Class| {
        let mut tale = Tale::default();
        tale.process(50, 1).process(TRAINER, 50).process(150, 50);
        tale.place(1, "[kernel]", PlaceClass::Kernel).place(
            2,
            "libtorch_cpu.so",
            PlaceClass::Other,
        );
        for (rank, other) in [(TRAINER, 150), (150, TRAINER)] {
            for step in 0..80 {
                let begin = f64::from(step) * 100.0;
                for n in 0..9 {
                    let when = begin + f64::from(n) * 10.0 + 5.0;
                    if n < 2 {
                        tale.sample_in(rank, when, 1, WRITE);
                    } else {
                        tale.sample(rank, when, 2);
                    }
                }
                let sender = By::Sender(other);
                tale.wait(
                    rank,
                    begin + 98.0,
                    begin + 99.0,
                    RECV,
                    On::Socket(4),
                    sender,
                );
            }
            tale.ops(rank, 10.0, Op::Write, class, 5, 80, 100 << 20, 1600.0);
        }
        let mut session = tale.session(8000.0);
        session.start.as_mut().expect("a start").targets = vec![50];
        let trainer = analyse(&session).trainer.expect("a trainer");
        trainer.ns(Kind::Checkpoint) / trainer.wall
    };
    assert!(told(Class::Socket) < 0.01);
    assert!(told(Class::File) > 0.15);
}

/// State of 8 MiB every 100 ms, of which its writer takes 60: opens a file, runs for 20, syncs for 40. Who that is, and what the trainer
/// waits for it on.
fn written_for_the_trainer(process: u32, tid: u32, on: On, by: By) -> Tale {
    const SET: u32 = 5;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(SET, "/out", "ext4");
    if process == TRAINER {
        tale.thread(TRAINER, tid);
    } else {
        tale.process(process, TRAINER);
    }
    for turn in 0..80 {
        let begin = f64::from(turn) * 100.0;
        let nr = if matches!(on, On::Socket(_)) {
            RECV
        } else {
            FUTEX
        };
        tale.wait(TRAINER, begin + 40.0, begin + 99.5, nr, on, by);
        let idle = if turn == 0 { 0.0 } else { begin - 0.5 };
        tale.wait(tid, idle, begin + 39.5, nr, on, By::Thread(TRAINER));
        let id = 7 + turn as u64 % 3;
        tale.touch(tid, begin + 39.8, Op::Open, Class::File, id, 0);
        tale.touch(tid, begin + 40.0, Op::Write, Class::File, id, 4 << 20);
        tale.touch(tid, begin + 59.0, Op::Write, Class::File, id, 4 << 20);
        let sync = On::File(SET);
        tale.wait(tid, begin + 59.5, begin + 99.0, FSYNC, sync, By::Interrupt);
        tale.touch(tid, begin + 99.0, Op::Fsync, Class::File, id, 0);
    }
    tale.ops(tid, 10.0, Op::Open, Class::File, SET, 80, 0, 10.0);
    tale.ops(tid, 10.0, Op::Write, Class::File, SET, 160, 640 << 20, 40.0);
    tale
}

#[test]
fn state_that_another_thread_writes_while_the_trainer_waits_is_a_checkpoint() {
    let tale = written_for_the_trainer(TRAINER, 101, On::Futex(0x7000), By::Thread(101));
    let trainer = analyse(&tale.session(8000.0)).trainer.expect("a trainer");
    close(share(&trainer, Kind::Checkpoint), 0.59, "waiting for it");
}

#[test]
fn who_is_given_state_to_write_is_no_worker() {
    let mut tale = written_for_the_trainer(300, 300, On::Socket(4), By::Thread(300));
    tale.ops(
        TRAINER,
        10.0,
        Op::Write,
        Class::Socket,
        0,
        80,
        640 << 20,
        40.0,
    );
    tale.ops(300, 10.0, Op::Read, Class::Socket, 0, 80, 640 << 20, 40.0);
    tale.ops(300, 10.0, Op::Write, Class::Socket, 0, 80, 400, 1.0);
    let analysis = analyse(&tale.session(8000.0));
    assert_eq!(bottleneck(&analysis), "checkpoint");
    let trainer = analysis.trainer.expect("a trainer");
    assert!(
        trainer.cast.workers.is_empty(),
        "{:?}",
        trainer.cast.workers
    );
    close(share(&trainer, Kind::Checkpoint), 0.59, "waiting for it");
}

#[test]
fn what_is_made_after_opening_a_file_is_part_of_it_however_often_memory_is_taken() {
    // Each 400 ms: it computes for 200, opens a file, turns state into bytes for 190, for which it takes memory again and again, and writes them.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/out", "ext4");
    for turn in 0..20 {
        let begin = f64::from(turn) * 400.0;
        let id = 7 + turn as u64 % 3;
        tale.touch(TRAINER, begin + 200.0, Op::Open, Class::File, id, 0);
        for n in 0..30 {
            let at = begin + 201.0 + 6.0 * f64::from(n);
            tale.touch(TRAINER, at, Op::Mmap, Class::Memory, 0, 1 << 20);
        }
        tale.touch(TRAINER, begin + 390.0, Op::Write, Class::File, id, 40 << 20);
        let sync = On::File(5);
        tale.wait(
            TRAINER,
            begin + 390.5,
            begin + 400.0,
            FSYNC,
            sync,
            By::Interrupt,
        );
    }
    tale.ops(TRAINER, 10.0, Op::Open, Class::File, 5, 20, 0, 1.0);
    tale.ops(
        TRAINER,
        10.0,
        Op::Write,
        Class::File,
        5,
        20,
        800 << 20,
        10.0,
    );
    let trainer = analyse(&tale.session(8000.0)).trainer.expect("a trainer");
    close(
        share(&trainer, Kind::Checkpoint),
        0.5,
        "with what is made for it",
    );
}

#[test]
fn computing_between_two_files_is_no_part_of_either() {
    // Each step of 10 ms computes for 4, and writes and syncs a file anew for 6.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/out", "ext4");
    tale.place(1, "[kernel]", PlaceClass::Kernel)
        .place(2, "libtorch_cpu.so", PlaceClass::Other);
    for step in 0..800 {
        let begin = f64::from(step) * 10.0;
        let id = 7 + step as u64 % 3;
        tale.sample(TRAINER, begin + 1.0, 2)
            .sample(TRAINER, begin + 3.0, 2)
            .sample_in(TRAINER, begin + 4.5, 1, 1);
        tale.touch(TRAINER, begin + 4.0, Op::Open, Class::File, id, 0);
        tale.touch(TRAINER, begin + 5.0, Op::Write, Class::File, id, 6 << 20);
        tale.wait(
            TRAINER,
            begin + 5.1,
            begin + 10.0,
            FSYNC,
            On::File(5),
            By::Interrupt,
        );
        tale.touch(TRAINER, begin + 10.0, Op::Fsync, Class::File, id, 0);
    }
    tale.ops(TRAINER, 10.0, Op::Open, Class::File, 5, 800, 0, 10.0);
    tale.ops(
        TRAINER,
        10.0,
        Op::Write,
        Class::File,
        5,
        800,
        4 << 30,
        800.0,
    );
    let trainer = analyse(&tale.session(8000.0)).trainer.expect("a trainer");
    close(share(&trainer, Kind::Checkpoint), 0.6, "writing");
    close(share(&trainer, Kind::Compute), 0.4, "computing");
}

#[test]
fn who_writes_in_the_background_already_is_not_advised_to() {
    // A thread for each state, for which the trainer waits before it begins another.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/state", "ext4");
    for save in 0..10 {
        let (saver, begin) = (TRAINER + 1 + save, f64::from(save) * 800.0);
        tale.thread(TRAINER, saver);
        let (on, by) = (On::File(5), By::Interrupt);
        tale.wait(saver, begin, begin + 400.0, FSYNC, on, by);
        let joined = (On::Futex(0x7000), By::Thread(saver));
        tale.wait(
            TRAINER,
            begin + 0.1,
            begin + 400.1,
            FUTEX,
            joined.0,
            joined.1,
        );
    }
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "checkpoint", "{}", verdict.summary);
    let findings = &analysis.findings;
    let found = findings
        .iter()
        .find(|found| found.kind == "checkpoint")
        .expect("a finding");
    assert_eq!(found.evidence["in_background"], true);
    let summary = &found.summary;
    assert!(
        summary.contains("/state") && summary.contains("in the background"),
        "{summary}"
    );
    assert!(
        found.advice.starts_with("write state less often"),
        "{}",
        found.advice
    );
}

/// A trainer that writes 200 small files after each eighth step of 20 ms, and waits for each to be synced: `apart` ms lie between two syncs.
/// Of so many calls none is noted.
fn many_small_files(apart: f64) -> Vec<(u64, u64)> {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/out", "ext4");
    let mut now = 0.0;
    for _ in 0..20 {
        for _ in 0..8 {
            tale.backward(TRAINER, now + 10.0);
            now += 20.0;
        }
        for _ in 0..200 {
            now += apart;
            let (from, on) = (now, On::File(5));
            now += 0.2;
            tale.wait(TRAINER, from, now, FSYNC, on, By::Interrupt);
        }
    }
    let analysis = analyse(&tale.session(now));
    analysis.trainer.expect("a trainer").checkpoints
}

#[test]
fn files_that_are_synced_one_after_the_other_are_a_checkpoint() {
    let found = many_small_files(0.6);
    assert_eq!(found.len(), 20);
    let ms = |span: &(u64, u64)| (span.1 - span.0) as f64 / 1e6;
    assert!(found.iter().all(|span| (ms(span) - 159.4).abs() < 0.1));
    // What lies between the syncs of a log is no writing.
    assert!(many_small_files(2.0).is_empty());
}

#[test]
fn making_state_ready_and_giving_back_what_it_replaces_are_part_of_it() {
    // Of each 200 ms: 90 of the model, 50 of making state ready, 20 of writing it, then closing its file for 10 and removing another
    // for 30.
    const CLOSE: i16 = 3;
    const UNLINK: i16 = 87;
    let job = |saves: bool| {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1)
            .function(1, "/home/me/train.py", "<module>")
            .function(
                2,
                "/usr/lib/python3/dist-packages/torch/nn/modules/module.py",
                "Module._call_impl",
            )
            .function(3, "/home/me/train.py", "keep")
            .fileset(5, "/out", "ext4");
        let times = |from: u32, to: u32| {
            let ms = (from..to).step_by(10).map(|ms| f64::from(ms) + 5.0);
            (0..40).flat_map(move |turn| ms.clone().map(move |ms| f64::from(turn) * 200.0 + ms))
        };
        tale.stack(1, &[2, 1], TRAINER, times(0, 90));
        if saves {
            tale.stack(2, &[3, 1], TRAINER, times(90, 200));
        }
        for turn in 0..40 {
            let ms = f64::from(turn) * 200.0;
            let on = On::File(5);
            tale.backward(TRAINER, ms + 60.0)
                .touch(TRAINER, ms + 140.0, Op::Write, Class::File, 7, 8 << 20)
                .wait(TRAINER, ms + 141.0, ms + 160.0, FSYNC, on, By::Interrupt)
                .wait(
                    TRAINER,
                    ms + 160.0,
                    ms + 170.0,
                    CLOSE,
                    On::Nothing,
                    By::Interrupt,
                )
                .wait(TRAINER, ms + 170.0, ms + 200.0, UNLINK, on, By::Interrupt);
        }
        analyse(&tale.session(8000.0)).trainer.expect("a trainer")
    };
    close(share(&job(true), Kind::Checkpoint), 0.55, "with stacks");
    // Without any, what is computed before it may be for anything.
    close(share(&job(false), Kind::Checkpoint), 0.3, "without");
}
