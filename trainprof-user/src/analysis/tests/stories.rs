//! Common stories: a trainer with worker processes.

use trainprof_common::op::{Class, Op};

use super::tale::{By, FUTEX, On, POLL, READ, Tale};
use crate::analysis::{Analysis, Kind, Trainer, analyse};

/// Trainer 100; workers 201, 202, …, each with a feeder thread 1201, ….
pub const TRAINER: u32 = 100;
pub const DATA_PIPE: u64 = 77;

pub fn feeder(worker: u32) -> u32 {
    worker + 1000
}

pub fn job(workers: u32) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    for n in 0..workers {
        let worker = 201 + n;
        tale.process(worker, TRAINER).thread(worker, feeder(worker));
    }
    tale.fileset(5, "/data", "ext4");
    tale
}

/// One batch of `worker`: `read` ms waiting for a file and `decode` ms on the CPU, handed over at `done` by its
/// feeder, which sleeps until then since `since`.
pub fn batch(tale: &mut Tale, worker: u32, since: f64, read: f64, done: f64) {
    tale.wait(
        worker,
        since,
        since + read,
        READ,
        On::File(5),
        By::Interrupt,
    );
    feeds(tale, worker, since, done);
}

/// The feeder of `worker` sleeps until that one has a batch for it.
pub fn feeds(tale: &mut Tale, worker: u32, since: f64, done: f64) {
    tale.wait(
        feeder(worker),
        since,
        done,
        FUTEX,
        On::Futex(0x1000 * u64::from(worker)),
        By::Thread(worker),
    );
}

/// The trainer waits for the data pipe until `to`, when the feeder of `worker` writes it.
pub fn stall(tale: &mut Tale, from: f64, to: f64, worker: u32) {
    tale.wait(
        TRAINER,
        from,
        to,
        POLL,
        On::Pipe(DATA_PIPE),
        By::Thread(feeder(worker)),
    );
    tale.touch(TRAINER, to, Op::Read, Class::Pipe, DATA_PIPE, 4);
}

/// Two workers take 400 ms for a batch, `read` of it waiting for a file; the trainer computes for 100 ms of
/// each step of 200 ms.
pub fn read_bound(read: f64, steps: u32) -> (Tale, f64) {
    let mut tale = job(2);
    for step in 0..steps {
        let begin = f64::from(step) * 200.0;
        let worker = 201 + step % 2;
        stall(&mut tale, begin + 100.0, begin + 199.9, worker);
        if step >= 1 {
            batch(&mut tale, worker, begin - 200.0 + 0.2, read, begin + 199.8);
        }
    }
    (tale, f64::from(steps) * 200.0)
}

pub fn trainer(tale: &Tale, ms: f64) -> Trainer {
    analyse(&tale.session(ms)).trainer.expect("a trainer")
}

pub fn share(trainer: &Trainer, kind: Kind) -> f64 {
    trainer.ns(kind) / trainer.wall
}

pub fn close(got: f64, expected: f64, what: &str) {
    assert!(
        (got - expected).abs() < 0.02,
        "{what}: {got:.3} instead of {expected:.3}"
    );
}

/// Pieces are disjoint and sum to what was walked.
pub fn sums_up(trainer: &Trainer) {
    let total: f64 = trainer.shares.iter().map(|share| share.ns).sum();
    assert!(
        (total - trainer.wall).abs() < trainer.wall * 1e-3,
        "{total} of {}",
        trainer.wall
    );
}

/// What the verdict is.
pub fn bottleneck(analysis: &Analysis) -> &'static str {
    analysis.verdict.as_ref().map_or("none", |v| v.bottleneck)
}
