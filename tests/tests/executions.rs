//! What frameworks compute as a whole, as a step clock: counted against a program's own account.

use trainprof_tests::env::root_test;
use trainprof_tests::report::{Report, f64_at, u64_at};
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Checks, Workload, observe_with};
use trainprof_user::record::{Reader, Record};

fn executions(recording: &std::path::Path) -> u64 {
    let mut reader = Reader::open(recording).expect("a recording");
    let records = reader.records::<Record>();
    let is_one = |record: &Record| matches!(record, Record::Execution(_));
    let records = records.map(|record| record.expect("a whole recording"));
    records.filter(is_one).count() as u64
}

fn report_missing(report: &Report) -> String {
    report.at("/coverage/missing").to_string()
}

/// Steps of a loop that computes by this library.
fn steps_by(name: &str, library: &str) {
    let Some(_turn) = root_test(name) else { return };
    let library = program(library);
    let workload = Workload::start("compiled", os(&[&library, &"200", &"30"]));
    let pid = workload.pid();
    let seen = observe_with(workload, pid, &[]);
    let mut checks = Checks::new();
    checks.nothing_lost(&seen.report);
    checks.exact(
        "executions",
        u64_at(&seen.truth, "/executions"),
        executions(&seen.finished.recording),
    );
    let steps = seen.report.at("/steps");
    let clock = steps.get("clock").and_then(|clock| clock.as_str());
    let missing = report_missing(&seen.report);
    assert_eq!(
        clock,
        Some("framework-calls"),
        "{steps}, missing: {missing}"
    );
    // From each beginning to the next one.
    let count = u64_at(&seen.truth, "/steps");
    checks.exact("steps", count - 1, u64_at(steps, "/count"));
    let mean = f64_at(&seen.truth, "/seconds") / count as f64 * 1e3;
    let p50 = f64_at(steps, "/time_ms/p50");
    checks.between("p50", (0.95 * mean, 1.05 * mean), p50);
    checks.done();
}

#[test]
fn rounds_of_boosting_are_steps() {
    steps_by("rounds_of_boosting_are_steps", "lib_lightgbm.so");
}

#[test]
fn graphs_that_are_run_as_a_whole_are_steps() {
    let name = "graphs_that_are_run_as_a_whole_are_steps";
    steps_by(name, "libtensorflow_cc.so.2");
}

#[test]
fn what_a_library_does_not_export_is_found_as_well() {
    let name = "what_a_library_does_not_export_is_found_as_well";
    steps_by(name, "libjax_common.so");
}
