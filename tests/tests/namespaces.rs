//! A target in pid and mount namespaces of its own.

use std::process::Command;

use trainprof_tests::env::root_test;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::{children, program};
use trainprof_tests::{Checks, Data, Observed, Workload, observe_with};

#[test]
fn a_target_in_other_namespaces_is_seen_as_well() {
    let Some(_turn) = root_test("a_target_in_other_namespaces_is_seen_as_well") else {
        return;
    };
    let data = Data::new();
    let source = data.files("source", 25, "jpg", |i| 4_000 + i);
    let target = data.folder("inside");
    let mut command = Command::new(program("inns"));
    command
        .arg(&source)
        .arg(&target)
        .arg(program("files"))
        .arg("-")
        .arg(&target);
    let workload = Workload::spawn(command);
    assert_eq!(
        workload.inner_pid, 1,
        "the workload is the first of its pid namespace"
    );
    let inside = children(workload.pid());
    assert_eq!(inside.len(), 1, "one child: {inside:?}");
    let seen = observe_with(workload, inside[0], &[]);
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
    checks.exact(
        "job.pid is the host's",
        inside[0] as u64,
        report.u64("/job/pid"),
    );
    // Named as the job sees it, or as the host does: either way one row holds all of its reads.
    let row = report.rows("/io/top").iter().find(|row| {
        let path = row["path"].as_str().unwrap_or_default();
        path == target.to_string_lossy() || path == source.to_string_lossy()
    });
    match row {
        Some(row) => checks.exact(
            "reads of the row",
            u64_at(total, "/read/count"),
            u64_at(row, "/reads"),
        ),
        None => checks.that(false, || {
            format!("no row of the folder: {}", report.at("/io/top"))
        }),
    }
    checks.done();
}
