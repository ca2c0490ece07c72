//! How the trainer's time is split where the kernel does not say whom it waited for.

use std::path::{Path, PathBuf};

use trainprof_user::{
    record::{Record, reader::Reader},
    report::{self, Shown},
    session::Session,
};

fn session(path: &Path) -> Session {
    let mut reader = Reader::open(path).expect("a recording");
    let mut session = Session::default();
    while let Some(record) = reader.next_record::<Record>().expect("a record") {
        session.apply(&record);
    }
    session
}

/// Every golden recording.
fn recordings() -> impl Iterator<Item = PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let entries = std::fs::read_dir(folder).expect("tests/golden");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
}

/// However few rows are shown, the others are summed up in rows of their own.
#[test]
fn rows_of_blame_add_up_to_the_time_that_was_walked() {
    let mut compared = 0;
    for path in recordings() {
        let session = session(&path);
        let mut walked = Vec::new();
        for top in [1, 3, 20] {
            let report = report::report(&session, Shown { top });
            let rows = &report.blame;
            let share: f64 = rows.iter().map(|row| row.share).sum();
            let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
            // Rows of less than a millisecond are left out, and shares have four digits.
            assert!(
                (share - 1.0).abs() < 0.005,
                "{}: {share} of all by {top} rows",
                path.display()
            );
            let named = rows.iter().filter(|row| row.path != ["other ways"]).count();
            assert!(
                (1..=top).contains(&named),
                "{}: {named} of {top}",
                path.display()
            );
            walked.push(seconds);
        }
        let most = walked.iter().copied().fold(0.0, f64::max);
        let least = walked.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            most - least < 0.02 && least > 1.0,
            "{}: {walked:?}",
            path.display()
        );
        compared += 1;
    }
    assert!(compared >= 15, "{compared} recordings");
}

/// It is what the eye falls on first.
#[test]
fn the_verdict_is_a_sentence_or_two() {
    for path in recordings() {
        let report = report::report(&session(&path), Shown::default());
        let summary = report.verdict.expect("a verdict").summary;
        // A number has no blank after its point.
        let sentences = summary.matches(". ").count() + 1;
        assert!(
            sentences <= 2 && (20..600).contains(&summary.len()),
            "{}: {summary}",
            path.display()
        );
    }
}

/// Who waits for Python's lock asks for it every 5 ms, so that a clock ends most of its waits, and nobody of the process.
#[test]
fn waits_for_the_interpreters_lock_are_for_threads_of_the_process() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gil-threads.rec");
    let report = report::report(&session(&path), Shown::default());
    // Those that decode under the lock; the step thread is the trainer.
    let loaders = report.threads.iter().filter(|row| row.role == "loader");
    let counted = report.workers.count;
    assert_eq!(
        (loaders.count(), counted),
        (counted, 4),
        "{:?}",
        report.threads
    );
    let share = report.trainer.expect("a trainer").share;
    // It waits for its loader threads (their batches, 0.13, and the lock while they have it) and for nothing else.
    assert!(share.other_wait < 0.01, "{share:?}");
    assert!(share.lock_wait > 0.2, "{share:?}");
    let sum = share.on_cpu + share.runnable + share.data_wait + share.lock_wait;
    assert!((sum - 1.0).abs() < 0.01, "{share:?}");
}
