//! How the trainer's time is split where the kernel does not say whom it waited for.

use std::path::Path;

use trainprof_user::{
    record::{Record, reader::Reader},
    report::{self, Shown},
    session::Session,
};

/// Who waits for Python's lock asks for it every 5 ms, so that a clock ends most of its waits, and nobody of the process.
#[test]
fn waits_for_the_interpreters_lock_are_for_threads_of_the_process() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gil-threads.rec");
    let mut reader = Reader::open(&path).expect("a recording");
    let mut session = Session::default();
    while let Some(record) = reader.next_record::<Record>().expect("a record") {
        session.apply(&record);
    }
    let report = report::report(&session, Shown::default());
    let share = report.trainer.expect("a trainer").share;
    // It waits for its loader threads (their batches, 0.13, and the lock while they have it) and for nothing else.
    assert!(share.other_wait < 0.01, "{share:?}");
    assert!(share.lock_wait > 0.2, "{share:?}");
    let sum = share.on_cpu + share.runnable + share.data_wait + share.lock_wait;
    assert!((sum - 1.0).abs() < 0.01, "{share:?}");
}
