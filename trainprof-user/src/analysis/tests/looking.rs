//! Waiting without being woken: who looks for others' messages, or for files, again and again; and waits that name no file.

use trainprof_common::op::{Class, Op};

use super::{
    python::alone,
    stories::{TRAINER, close, share, sums_up, trainer},
    tale::{By, On, POLL, READ, SLEEP, Tale, WRITE, at},
};
use crate::{
    analysis::{Analysis, Kind, analyse},
    record::fact::PlaceClass,
    session::roles::{Role, roles},
};

const MSYNC: i16 = 26;
const YIELD: i16 = 24;
const SENDFILE: i16 = 40;

#[test]
fn a_rank_that_looks_for_another_ones_message_waits_for_it() {
    const LAUNCHER: u32 = 90;
    const LATE: u32 = 101;
    const WORKER: u32 = 301;
    let told = |library: &str, loads: bool| {
        let mut tale = Tale::default();
        tale.process(LAUNCHER, 1);
        tale.wait(LAUNCHER, 0.0, 8_000.0, SLEEP, On::Nothing, By::Interrupt);
        for rank in [TRAINER, LATE] {
            tale.process(rank, LAUNCHER)
                .program(rank, "/usr/bin/python3");
        }
        tale.place(1, "libtorch_cpu.so", PlaceClass::Other)
            .place(2, library, PlaceClass::Other)
            .place(3, "vmlinux", PlaceClass::Kernel);
        // Both compute for 40 of 100 ms, one goes on, the other one looks, and gives the CPU up in between.
        for n in 0..800 {
            let when = f64::from(n) * 10.0 + 5.0;
            match n % 10 {
                0..4 => tale.sample(TRAINER, when, 1),
                4 => tale.sample(TRAINER, when, 2),
                _ => tale.sample_in(TRAINER, when, 3, YIELD),
            };
            tale.sample(LATE, when, 1);
        }
        if loads {
            // It waits for a worker of its own in place of going on.
            tale.process(WORKER, LATE);
            for step in 0..80 {
                let now = f64::from(step) * 100.0;
                let by = By::Thread(WORKER);
                tale.wait(LATE, now + 40.0, now + 99.0, POLL, On::Pipe(7), by);
            }
        }
        tale.session(8_000.0)
    };
    let rank = |analysis: &Analysis| {
        let mut shares = analysis.trainer.iter().flat_map(|trainer| &trainer.shares);
        let late = shares.find(|share| share.kind == Kind::Communication);
        late.map(|share| share.detail.rank)
    };
    assert_eq!(rank(&analyse(&told("libmpi.so.12", true))), Some(LATE));
    let session = told("libmpi.so.12", false);
    let analysis = analyse(&session);
    assert_eq!(rank(&analysis), Some(LATE));
    let told_of = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(told_of.cast.trainer, TRAINER);
    close(share(told_of, Kind::Communication), 0.6, "communication");
    close(share(told_of, Kind::Compute), 0.4, "compute");
    sums_up(told_of);
    close(
        share(&analysis.others[0], Kind::Communication),
        0.0,
        "of the late one",
    );
    // A library that computes is no sign of another rank.
    let session = told("libcompute.so", false);
    let trainers = roles(&session).into_values();
    assert_eq!(trainers.filter(|role| *role == Role::Trainer).count(), 1);
}

#[test]
fn a_wait_for_a_mapped_file_to_be_written_is_a_checkpoint() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for step in 0..80 {
        let now = f64::from(step) * 100.0;
        tale.wait(
            TRAINER,
            now + 60.0,
            now + 100.0,
            MSYNC,
            On::Nothing,
            By::Softirq,
        );
    }
    let trainer = trainer(&tale, 8_000.0);
    close(share(&trainer, Kind::Checkpoint), 0.4, "checkpoint");
}

/// A trainer that looks every 10 ms, for 60 of each 100 ms, whether something came, and a child.
fn looks(child: impl Fn(&mut Tale, f64)) -> Tale {
    const STAGER: u32 = 201;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .process(STAGER, TRAINER)
        .fileset(5, "/bucket", "fuse");
    for step in 0..80 {
        let now = f64::from(step) * 100.0;
        for nap in 4..10 {
            let from = now + f64::from(nap) * 10.0;
            tale.wait(
                TRAINER,
                from + 0.1,
                from + 10.0,
                SLEEP,
                On::Nothing,
                By::Interrupt,
            );
        }
        child(&mut tale, now);
    }
    tale
}

#[test]
fn files_that_a_child_fetches_are_what_a_trainer_that_looks_for_them_waits_for() {
    const STAGER: u32 = 201;
    for call in [READ, SENDFILE] {
        let fetches = looks(|tale, now| {
            tale.ops(STAGER, now, Op::Read, Class::File, 5, 10, 1 << 20, 90.0);
            for n in 0..10 {
                let from = now + f64::from(n) * 10.0;
                tale.wait(STAGER, from, from + 9.0, call, On::File(5), By::Interrupt);
            }
        });
        let told = trainer(&fetches, 8_000.0);
        close(share(&told, Kind::StorageIo), 0.54, "storage");
    }
    // One that writes is none that brings anything.
    let writes = looks(|tale, now| {
        tale.ops(STAGER, now, Op::Read, Class::File, 5, 10, 1 << 20, 90.0);
        tale.wait(STAGER, now, now + 99.0, WRITE, On::File(5), By::Interrupt);
    });
    close(
        share(&trainer(&writes, 8_000.0), Kind::StorageIo),
        0.0,
        "storage",
    );
    // One that has nothing to do is not what it waits for.
    let idles = looks(|tale, now| {
        tale.wait(STAGER, now, now + 99.0, SLEEP, On::Nothing, By::Interrupt);
    });
    close(
        share(&trainer(&idles, 8_000.0), Kind::StorageIo),
        0.0,
        "storage",
    );
}

#[test]
fn batches_that_come_several_at_a_time_are_each_a_step() {
    // Two batches in each file, of 20 ms each; gradients of both may also be added up for one update.
    let told = |each: bool, path: u64| {
        let mut tale = looks(|tale, now| {
            tale.ops(201, now, Op::Read, Class::File, 5, 10, 1 << 20, 90.0);
            for n in 0..10 {
                let from = now + f64::from(n) * 10.0;
                tale.wait(201, from, from + 9.0, READ, On::File(5), By::Interrupt);
            }
        });
        for step in 0..80 {
            let now = f64::from(step) * 100.0;
            for batch in [0.0, 20.0] {
                tale.backward_from(TRAINER, now + batch + 10.0, if step < 2 { 0 } else { path });
                if each || batch > 0.0 {
                    tale.updated(TRAINER, now + batch + 18.0);
                }
            }
        }
        let steps = trainer(&tale, 8_000.0).steps.expect("steps");
        steps.spans.len()
    };
    assert!(told(true, 1).abs_diff(160) <= 2, "{}", told(true, 1));
    assert!(told(false, 1).abs_diff(80) <= 2, "{}", told(false, 1));
    // Nothing is known of what called for them: they may be of two losses.
    assert!(told(true, 0).abs_diff(80) <= 2, "{}", told(true, 0));
}

#[test]
fn what_most_is_done_for_is_named_where_no_single_function_has_most() {
    use crate::analysis::{facts::Facts, python::Python};
    let mut tale = alone("search", false);
    tale.function(5, "/home/me/train.py", "rollout")
        .function(6, "/home/me/train.py", "won")
        .function(7, "/home/me/train.py", "log");
    // Of each 100 ms 40 in two functions that `search` calls, 20 in itself, 20 in another one, 20 in the script.
    let times = |n: u32| (0..80).map(move |step| f64::from(step * 100 + n * 20 + 10));
    tale.stack(1, &[5, 4, 1], TRAINER, times(0))
        .stack(2, &[6, 5, 4, 1], TRAINER, times(1))
        .stack(3, &[4, 1], TRAINER, times(2))
        .stack(4, &[7, 1], TRAINER, times(3))
        .stack(5, &[1], TRAINER, times(4));
    let session = tale.session(8_000.0);
    let facts = Facts::new(&session);
    let python = Python::new(&facts);
    let name = |least| {
        let place = python.around(&[TRAINER], None, least);
        place.map(|place| (place.function.name.clone(), (place.share * 100.0).round()))
    };
    assert_eq!(name(0.55), Some(("search".to_owned(), 60.0)));
    assert_eq!(name(0.35), Some(("rollout".to_owned(), 40.0)));
    assert_eq!(name(0.7), None);
    // While that or always: who is on as large a part of the stacks at other times calls this and more.
    let within = |from: f64, to: f64| {
        let spans: Vec<_> = (0..80)
            .map(|step| f64::from(step) * 100.0)
            .map(|now| (at(now + from), at(now + to)))
            .collect();
        let place = python.around(&[TRAINER], Some(&spans), 0.5);
        place.map(|place| place.function.name.clone())
    };
    assert_eq!(within(0.0, 60.0).as_deref(), Some("rollout"));
    assert_eq!(within(40.0, 80.0).as_deref(), Some("log"));
}
