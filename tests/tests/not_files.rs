//! Pipes, sockets, shared memory, /proc and devices are kept apart from files; memory calls are counted.

use serde_json::Value;
use trainprof_tests::env::{left_out_in_vm, root_test};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Observed, observe};

#[test]
fn what_is_no_file_is_not_counted_as_one() {
    let Some(_turn) = root_test("what_is_no_file_is_not_counted_as_one") else {
        return;
    };
    let seen = observe("pipesock", &os(&[&"200"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for member in ["opens", "reads", "writes", "bytes_read", "bytes_written"] {
        checks.exact(
            &format!("io.{member}"),
            0,
            report.u64(&format!("/io/{member}")),
        );
    }
    for class in ["pipe", "socket", "shm", "proc", "device", "anon"] {
        for member in ["reads", "writes", "bytes_read", "bytes_written"] {
            checks.exact(
                &format!("{class} {member}"),
                u64_at(&truth["other"][class], &format!("/{member}")),
                report.u64(&format!("/io/other/{class}/{member}")),
            );
        }
    }
    checks.done();
}

/// With so many calls a second only their ends are looked at, and by then a descriptor that was closed refers to nothing.
#[test]
fn what_is_closed_in_a_hurry_is_not_taken_for_a_file() {
    let name = "what_is_closed_in_a_hurry_is_not_taken_for_a_file";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "more calls than an emulated processor makes") {
        return;
    }
    let seen = observe("pipesock", &os(&[&"200000"]));
    let report = &seen.report;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let shed = report.rows("/cost/shed");
    let hidden = |row: &Value| {
        row.as_str()
            .is_some_and(|row| row.contains("beginnings of calls were hidden"))
    };
    checks.that(shed.iter().any(hidden), || {
        format!("every call was seen to begin: {shed:?}")
    });
    for (operation, row) in report.at("/io/operations").as_object().expect("operations") {
        let (count, seconds) = (u64_at(row, "/count"), report.f64("/duration_s"));
        checks.that(count == 0, || {
            format!("{count} times {operation} of files in {seconds} s, where there are none")
        });
    }
    checks.done();
}

#[test]
fn memory_calls_and_faults_are_exact() {
    let Some(_turn) = root_test("memory_calls_and_faults_are_exact") else {
        return;
    };
    let seen = observe("memcalls", &os(&[&"60"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for call in ["mmap", "munmap", "brk", "madvise", "mremap"] {
        let counted = &truth["calls"][call];
        let at = format!("/memory/calls/{call}");
        checks.exact(
            &format!("{call} count"),
            u64_at(counted, "/count"),
            report.u64(&format!("{at}/count")),
        );
        checks.exact(
            &format!("{call} bytes"),
            u64_at(counted, "/bytes"),
            report.u64(&format!("{at}/bytes")),
        );
    }
    let process = report
        .process(u64_at(truth, "/pid"))
        .expect("a row of the process");
    checks.exact(
        "minor faults",
        u64_at(truth, "/faults/minor"),
        u64_at(process, "/faults/minor"),
    );
    checks.exact(
        "major faults",
        u64_at(truth, "/faults/major"),
        u64_at(process, "/faults/major"),
    );
    checks.done();
}
