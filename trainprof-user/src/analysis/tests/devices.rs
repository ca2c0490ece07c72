//! Several GPUs: whose idle time is whose, and who trains where nothing but a GPU tells it.

use super::{
    rules,
    stories::TRAINER,
    tale::{By, FUTEX, On, READ, RECV, SLEEP, Tale, at},
};
use crate::{
    analysis::{Kind, analyse, idle::IdleBlame},
    record::{
        Record,
        fact::{GpuMetric, GpuProcessFact},
    },
    report::{Shown, model::IdleRow, report},
    session::Session,
    time::KtimeNs,
};

const LAUNCHER: u32 = 50;
const OTHER: u32 = 150;
const LOADER: u32 = 101;
const LENGTH: f64 = 8000.0;

/// A device that idles from one time to another of each 100 ms.
fn idles(session: &mut Session, device: u32, from: u32, to: u32) {
    rules::device_of(session, device, None);
    for step in 0..80 {
        let begin = 100 * step;
        for (end, length, busy) in [
            (begin + to, to - from, 0.0),
            (begin + from + 100, 100 - (to - from), 1.0),
        ] {
            let (end, length) = (f64::from(end), u64::from(length));
            if end <= LENGTH {
                let metric = GpuMetric::Utilisation;
                rules::sample_of(session, device, end, length, metric, busy);
            }
        }
    }
}

/// The driver lists a process on a device.
fn lists(session: &mut Session, device: u32, pid: u32) {
    session.apply(&Record::GpuProcess(GpuProcessFact {
        at: KtimeNs(at(10.0)),
        device,
        pid,
        memory_bytes: None,
        utilisation: None,
        name: None,
    }));
}

/// A job whose launcher was asked for.
fn launched(tell: impl Fn(&mut Tale)) -> Session {
    let mut tale = Tale::default();
    tale.process(LAUNCHER, 1)
        .process(TRAINER, LAUNCHER)
        .process(OTHER, LAUNCHER)
        .fileset(5, "/data", "ext4");
    tale.wait(LAUNCHER, 1.0, LENGTH, SLEEP, On::Nothing, By::Nobody);
    tell(&mut tale);
    tale.session(LENGTH)
}

fn is(found: f64, truth: f64) {
    assert!((found - truth).abs() < 0.1, "{found}, truth {truth}");
}

fn of(blame: &IdleBlame, kind: Kind) -> f64 {
    blame.by_kind.get(&kind).copied().unwrap_or(0.0)
}

fn reported(session: &Session) -> Vec<IdleRow> {
    report(session, Shown::default()).gpu.idle_blame
}

#[test]
fn two_devices_of_one_trainer_are_one_mean_device() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (on, by) = (On::File(5), By::Interrupt);
        tale.wait(TRAINER, begin, begin + 60.0, READ, on, by);
    }
    // One is idle while files are read, the other one also while the trainer computes.
    let mut session = tale.session(LENGTH);
    idles(&mut session, 0, 0, 60);
    idles(&mut session, 1, 0, 80);
    for device in 0..2 {
        lists(&mut session, device, TRAINER);
    }
    let idle = analyse(&session).trainer.expect("a trainer").idle;
    assert_eq!((idle.devices, idle.own), (2, true));
    is(idle.seen_s, 8.0);
    is(idle.idle_s, (4.8 + 6.4) / 2.0);
    is(of(&idle, Kind::StorageIo), 4.8);
    is(of(&idle, Kind::HostCompute), 0.8);
}

/// Rank 150 reads files for 60 of 100 ms, rank 100 waits for it for 65. Each has a device that idles meanwhile.
fn ranks() -> Session {
    let mut session = launched(|tale| {
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            let (on, by) = (On::File(5), By::Interrupt);
            tale.wait(OTHER, begin, begin + 60.0, READ, on, by);
            let (on, by) = (On::Socket(4), By::Sender(OTHER));
            tale.wait(TRAINER, begin + 30.0, begin + 95.0, RECV, on, by);
            let (on, by) = (On::Socket(5), By::Sender(TRAINER));
            tale.wait(OTHER, begin + 96.0, begin + 97.0, RECV, on, by);
        }
    });
    idles(&mut session, 0, 30, 95);
    idles(&mut session, 1, 0, 60);
    session
}

#[test]
fn each_rank_is_blamed_for_the_device_that_it_is_on() {
    let mut session = ranks();
    lists(&mut session, 0, TRAINER);
    lists(&mut session, 1, OTHER);
    let analysis = analyse(&session);
    let told = analysis.trainer.as_ref().expect("a trainer");
    let other = analysis.others.first().expect("the other rank");
    assert_eq!((told.cast.trainer, other.cast.trainer), (TRAINER, OTHER));
    for (idle, kind, seconds) in [
        (&told.idle, Kind::Communication, 5.2),
        (&other.idle, Kind::StorageIo, 4.8),
    ] {
        assert_eq!((idle.devices, idle.own), (1, true));
        is(idle.idle_s, seconds);
        is(of(idle, kind), seconds);
    }
    let mean = [(Kind::Communication, 2.6), (Kind::StorageIo, 2.4)];
    for (row, (kind, seconds)) in reported(&session).iter().zip(mean) {
        assert_eq!(row.kind, kind.name());
        is(row.seconds, seconds);
        is(row.share, seconds / 5.0);
    }
}

#[test]
fn devices_of_nobody_go_by_the_time_of_one_trainer() {
    let session = ranks();
    let told = analyse(&session).trainer.expect("a trainer").idle;
    assert_eq!((told.devices, told.own), (2, false));
    is(told.idle_s, 5.0);
    let rows = reported(&session);
    assert!(!rows.is_empty());
    for row in rows {
        let mut kinds = told.by_kind.iter();
        let kind = kinds.find(|(kind, _)| kind.name() == row.kind);
        is(row.seconds, *kind.expect("its kind").1);
    }
}

#[test]
fn who_drives_a_gpu_trains_however_busy_others_are() {
    // Process 150 uses a CPU all the time, the launcher's other child a tenth of one: the rest it waits.
    let job = |synchronises: bool| {
        launched(|tale| {
            for step in 0..80 {
                let (from, to) = (f64::from(step) * 100.0, f64::from(step) * 100.0 + 90.0);
                tale.wait(TRAINER, from, to, SLEEP, On::Nothing, By::Interrupt);
                if synchronises {
                    tale.synchronise(TRAINER, from + 1.0, to);
                }
            }
        })
    };
    let trainer = |session: &Session| {
        let trainer = analyse(session).trainer.expect("a trainer");
        trainer.cast.trainer
    };
    assert_eq!(trainer(&job(false)), OTHER);
    assert_eq!(trainer(&job(true)), TRAINER, "by its calls");
    let mut listed = job(false);
    lists(&mut listed, 0, TRAINER);
    assert_eq!(trainer(&listed), TRAINER, "by the driver");
    // The launcher only has a context.
    lists(&mut listed, 0, LAUNCHER);
    assert_eq!(trainer(&listed), TRAINER);
}

/// A main thread that waits for what thread 101 computes in 80 of each 100 ms, and hardly runs.
fn hardly_runs() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, LOADER);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (taken, done) = (begin + 80.0, begin + 99.9);
        tale.wait(
            TRAINER,
            begin,
            taken,
            FUTEX,
            On::Futex(0x9000),
            By::Thread(LOADER),
        );
        tale.wait(
            TRAINER,
            taken + 0.1,
            done,
            SLEEP,
            On::Nothing,
            By::Interrupt,
        );
    }
    tale
}

#[test]
fn who_calls_the_gpu_runs_the_loop_however_little_it_runs() {
    let mut feeds = hardly_runs();
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        feeds.synchronise(TRAINER, begin + 80.1, begin + 99.95);
    }
    let trainer = analyse(&feeds.session(8000.0)).trainer.expect("a trainer");
    assert_eq!(trainer.cast.step_tid, TRAINER);
    assert!(trainer.cast.loader_threads.contains(&LOADER));
    // Else it listens to the thread that trains.
    let trainer = analyse(&hardly_runs().session(8000.0)).trainer;
    assert_eq!(trainer.expect("a trainer").cast.step_tid, LOADER);
}

#[test]
fn a_process_that_calls_the_gpu_is_no_launcher_that_listens() {
    for (calls, expected) in [(true, TRAINER), (false, 201)] {
        let mut tale = Tale::default();
        tale.process(TRAINER, 1).process(201, TRAINER);
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            let (taken, done) = (begin + 80.0, begin + 99.95);
            tale.wait(TRAINER, begin, taken, READ, On::Pipe(9), By::Thread(201));
            tale.wait(
                TRAINER,
                taken + 0.05,
                done,
                SLEEP,
                On::Nothing,
                By::Interrupt,
            );
            if calls {
                tale.synchronise(TRAINER, taken + 0.01, done);
            }
        }
        let trainer = analyse(&tale.session(8000.0)).trainer;
        assert_eq!(
            trainer.expect("a trainer").cast.trainer,
            expected,
            "{calls}"
        );
    }
}
