//! What could not be seen is counted, by reason, and shown.

use std::{thread::sleep, time::Duration};

use trainprof_tests::{
    Checks, Finished, Watch, Workload,
    env::{left_out_in_vm, root_test},
    product::trainprof,
    report::u64_at,
};

/// Threads that are followed at once (`Limits::for_this_host`).
const FOLLOWED: u64 = 16_384;

/// The loss is in the sum, in the text, and in the report of the recording.
fn shown(checks: &mut Checks, ended: &Finished, reason: &str) -> u64 {
    let report = ended.report();
    let by_reason = report.at("/coverage/lost_by_reason");
    let lost = by_reason[reason].as_u64().unwrap_or(0);
    let sum = by_reason.as_object().expect("reasons").values();
    let sum = sum.filter_map(serde_json::Value::as_u64).sum();
    checks.exact("the sum of all reasons", sum, report.lost());
    let words = format!("{reason} {lost}");
    checks.that(ended.stdout.contains(&words), || {
        format!("no {words:?} in the text:\n{}", ended.stdout)
    });
    let recording = ended.recording.to_string_lossy().into_owned();
    let again = trainprof(["report", &recording, "--format", "json"]);
    checks.that(again.stdout.as_bytes() == ended.json, || {
        "the recording tells another loss".to_owned()
    });
    lost
}

#[test]
fn threads_that_there_is_no_room_for_are_counted() {
    let name = "threads_that_there_is_no_room_for_are_counted";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "memory for many threads") {
        return;
    }
    let threads = FOLLOWED + 600;
    let mut job = Workload::start("throng", [threads.to_string()]);
    let watch = Watch::attach(job.pid(), &["--alloc".into(), "off".into()]);
    job.go();
    job.wait_done();
    let ended = watch.stop();
    let truth = job.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &ended, "threads-full");
    checks.exact("threads lost", u64_at(&truth, "/threads") - FOLLOWED, lost);
    let row = ended.report();
    let row = row
        .process(u64_at(&truth, "/pid"))
        .expect("its row")
        .clone();
    checks.exact("threads seen", FOLLOWED, u64_at(&row, "/threads"));
    checks.done();
}

#[test]
fn events_that_nobody_fetches_in_time_are_counted() {
    let name = "events_that_nobody_fetches_in_time_are_counted";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a job that makes events faster than they are fetched") {
        return;
    }
    let mut job = Workload::start("flurry", ["4", "12000", "500"]);
    let watch = Watch::attach(job.pid(), &["--alloc".into(), "off".into()]);
    // A collector that gets no CPU for a long time.
    watch.signal(libc::SIGSTOP);
    job.go();
    sleep(Duration::from_secs(10));
    watch.signal(libc::SIGCONT);
    job.wait_done();
    let ended = watch.stop();
    job.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &ended, "ring-full");
    checks.that(lost > 0, || {
        format!("nothing lost: {}", ended.report().at("/coverage"))
    });
    checks.done();
}
