//! Stories of epochs, and of jobs in which none can be told.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, feeder, job, stall},
    tale::Tale,
};
use crate::analysis::{
    analyse,
    epochs::{Epochs, Sign},
};

/// Steps of 200 ms, of which the trainer waits for half.
const STEP: f64 = 200.0;
const INDEX_PIPE: u64 = 78;

fn epochs(tale: &Tale, length: f64) -> Option<Epochs> {
    let analysis = analyse(&tale.session(length));
    analysis.trainer.expect("a trainer").epochs
}

fn step(tale: &mut Tale, begin: f64, worker: u32) -> f64 {
    let taken = begin + STEP / 2.0;
    stall(tale, begin, taken, worker);
    taken
}

/// Sets of two workers, for so many steps each.
pub(super) fn sets(lengths: &[u32]) -> (Tale, f64) {
    let mut tale = job(0);
    let mut at = 0.0;
    for (set, steps) in lengths.iter().enumerate() {
        let begin = at;
        let workers = [1, 2].map(|n| 300 + 10 * set as u32 + n);
        for pid in workers {
            tale.process(pid, TRAINER).thread(pid, feeder(pid));
        }
        for n in 0..*steps {
            step(&mut tale, at, workers[n as usize % 2]);
            at += STEP;
        }
        for pid in workers {
            tale.lived(pid, begin + 1.0, at - 20.0);
        }
    }
    (tale, at)
}

#[test]
fn a_set_of_workers_after_the_other_is_an_epoch_each() {
    let (tale, length) = sets(&[20, 20, 20, 20]);
    let found = epochs(&tale, length).expect("epochs");
    assert_eq!((found.sign, found.count), (Sign::WorkerSets, 3));
    assert!((found.mean_s - 4.0).abs() < 0.01, "{found:?}");
    // Each training set has one for the evaluation behind it.
    let (tale, length) = sets(&[20, 8, 20, 8, 20, 8]);
    let found = epochs(&tale, length).expect("epochs");
    assert!((found.mean_s - 5.6).abs() < 0.01, "{found:?}");
    for not in [&[20, 20][..], &[20, 7, 40, 11, 9]] {
        let (tale, length) = sets(not);
        assert_eq!(epochs(&tale, length), None, "{not:?}");
    }
}

/// Two workers that stay, and are asked for `ahead` batches before one is taken; in each epoch so many batches.
fn asked(ahead: u32, lengths: &[u32]) -> (Tale, f64) {
    let mut tale = job(2);
    let mut at = 0.0;
    let ask = |tale: &mut Tale, when: f64| {
        tale.touch(TRAINER, when, Op::Write, Class::Pipe, INDEX_PIPE, 40);
    };
    for batches in lengths {
        for n in 0..ahead {
            ask(&mut tale, at + 1.0 + 0.1 * f64::from(n));
        }
        for n in 0..*batches {
            let taken = step(&mut tale, at + 2.0, 201 + n % 2);
            if n + ahead < *batches {
                ask(&mut tale, taken + 0.2);
            }
            at += STEP;
        }
    }
    (tale, at)
}

#[test]
fn workers_that_stay_are_asked_for_many_batches_at_once_when_an_epoch_begins() {
    let (tale, length) = asked(4, &[25, 25, 25, 25, 25]);
    let found = epochs(&tale, length).expect("epochs");
    assert_eq!(found.sign, Sign::BatchRequests);
    assert!((found.mean_s - 5.0).abs() < 0.01, "{found:?}");
    assert!(found.error_s < 0.01, "{found:?}");
    // One long epoch; and pieces of no common length.
    for not in [&[120][..], &[25, 60, 10, 33]] {
        let (tale, length) = asked(4, not);
        assert_eq!(epochs(&tale, length), None, "{not:?}");
    }
}
