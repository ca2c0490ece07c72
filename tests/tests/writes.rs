//! Checkpoint-like writes, and copies made inside the kernel.

use trainprof_tests::env::root_test;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

#[test]
fn checkpoint_writes_are_exact() {
    let Some(_turn) = root_test("checkpoint_writes_are_exact") else {
        return;
    };
    let data = Data::new();
    let folder = data.folder("ckpt");
    let seen = observe("writer", &os(&[&folder, &"9", &"64", &"131072"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let total = &truth["total"];
    checks.operation(report, "open", &total["open"], false);
    checks.operation(report, "write", &total["write"], true);
    checks.operation(report, "close", &total["close"], false);
    checks.operation(report, "fsync", &truth["fsync"], false);
    checks.operation_seconds(report, "fsync", &truth["fsync"]);
    checks.operation(report, "rename", &truth["rename"], false);
    checks.exact(
        "io.writes",
        u64_at(total, "/write/count"),
        report.u64("/io/writes"),
    );
    checks.exact(
        "io.bytes_written",
        u64_at(total, "/write/bytes"),
        report.u64("/io/bytes_written"),
    );
    checks.exact("io.reads", 0, report.u64("/io/reads"));
    let path = folder.to_string_lossy();
    match report.directory(&path) {
        Some(row) => {
            checks.exact(
                "directory writes",
                u64_at(total, "/write/count"),
                u64_at(row, "/writes"),
            );
            let bytes = u64_at(total, "/write/bytes");
            checks.exact(
                "directory bytes written",
                bytes,
                u64_at(row, "/bytes_written"),
            );
        }
        None => checks.that(false, || {
            format!("no row of {path}: {}", report.at("/io/top"))
        }),
    }
    checks.done();
}

#[test]
fn copies_inside_the_kernel_are_counted() {
    let Some(_turn) = root_test("copies_inside_the_kernel_are_counted") else {
        return;
    };
    let data = Data::new();
    let from = data.files("from", 1, "", |_| 2_000_003);
    let to = data.folder("to");
    let seen = observe("copy", &os(&[&from.join("0"), &to, &"6"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    checks.operation(report, "open", &truth["total"]["open"], false);
    // Each call counts once, at the file that it takes from; a splice out of a pipe takes from no file.
    let from_files = ["sendfile", "copy_file_range", "splice_to_pipe"];
    let sum = |member: &str| {
        from_files
            .iter()
            .map(|call| u64_at(&truth[*call], member))
            .sum()
    };
    checks.exact(
        "copies",
        sum("/count"),
        report.u64("/io/operations/copy/count"),
    );
    checks.exact(
        "copied bytes",
        sum("/bytes"),
        report.u64("/io/operations/copy/bytes"),
    );
    checks.exact("reads", 0, report.u64("/io/reads"));
    checks.exact("writes", 0, report.u64("/io/writes"));
    checks.done();
}
