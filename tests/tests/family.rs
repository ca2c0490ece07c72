//! Who belongs to the job: processes and threads from before the attach, and all that come later.

use std::collections::BTreeSet;

use trainprof_tests::env::{in_vm, root_test};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

const WAYS: [&str; 8] = [
    "fork", "grand", "exec", "short", "thread", "texec", "vfork", "orphan",
];

#[test]
fn whoever_is_started_while_watching_is_followed() {
    let Some(_turn) = root_test("whoever_is_started_while_watching_is_followed") else {
        return;
    };
    let data = Data::new();
    for (i, way) in WAYS.iter().enumerate() {
        data.files(&format!("ways/{way}"), 3 + i, "", |n| 1_500 * (n + 1) + i);
    }
    let seen = observe("forker", &os(&[&data.path("ways"), &"100"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for (path, counts) in truth["dirs"].as_object().expect("directories of the truth") {
        let (opens, reads) = (u64_at(counts, "/open/count"), u64_at(counts, "/read/count"));
        checks.directory(
            report,
            path,
            opens,
            Some(reads),
            u64_at(counts, "/read/bytes"),
        );
    }
    let total = &truth["total"];
    checks.exact(
        "reads",
        u64_at(total, "/read/count"),
        report.u64("/io/reads"),
    );
    checks.exact(
        "bytes",
        u64_at(total, "/read/bytes"),
        report.u64("/io/bytes_read"),
    );
    let known: BTreeSet<u64> = report
        .rows("/job/processes")
        .iter()
        .filter_map(|row| row["pid"].as_u64())
        .collect();
    for pid in truth["pids"]
        .as_array()
        .expect("pids of the truth")
        .iter()
        .filter_map(|pid| pid.as_u64())
    {
        checks.that(known.contains(&pid), || {
            format!("process {pid} read files and is not in the report")
        });
    }
    checks.done();
}

fn crowd(processes: usize, threads: usize, files: usize) {
    let data = Data::new();
    let folder = data.files("data", files, "", |i| 600 + i);
    let seen = observe(
        "crowd",
        &os(&[&folder, &processes.to_string(), &threads.to_string()]),
    );
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let total = &truth["total"];
    checks.exact(
        "opens",
        u64_at(total, "/open/count"),
        report.u64("/io/opens"),
    );
    checks.exact(
        "reads",
        u64_at(total, "/read/count"),
        report.u64("/io/reads"),
    );
    checks.exact(
        "bytes",
        u64_at(total, "/read/bytes"),
        report.u64("/io/bytes_read"),
    );
    let rows = report.rows("/job/processes").len() as u64;
    checks.exact("processes", u64_at(truth, "/processes"), rows);
    eprintln!(
        "attached to {processes} x {threads} in {:?}",
        seen.attach_time
    );
    checks.done();
}

#[test]
fn processes_and_threads_from_before_the_attach_are_followed() {
    let name = "processes_and_threads_from_before_the_attach_are_followed";
    let Some(_turn) = root_test(name) else { return };
    crowd(20, 5, 30);
}

#[test]
fn a_thousand_processes_and_ten_thousand_threads() {
    let Some(_turn) = root_test("a_thousand_processes_and_ten_thousand_threads") else {
        return;
    };
    // An emulated machine gets a tenth: it has neither the memory nor the speed.
    if in_vm() {
        crowd(100, 10, 3)
    } else {
        crowd(1_000, 10, 3)
    }
}
