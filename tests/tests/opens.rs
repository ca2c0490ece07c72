//! Every system call that opens a file counts as an open, where the file is.

use trainprof_tests::env::root_test;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

#[test]
fn each_call_that_opens_is_counted() {
    let Some(_turn) = root_test("each_call_that_opens_is_counted") else {
        return;
    };
    let data = Data::new();
    // Each has its own number of files: a call that is taken for another shows.
    let open = data.files("open", 11, "jpg", |i| 1_000 + i);
    let openat = data.files("openat", 13, "jpg", |i| 2_000 + i);
    let creat = data.files("creat", 17, "jpg", |_| 0);
    let openat2 = data.files("openat2", 19, "jpg", |i| 3_000 + i);
    let seen = observe("opens", &os(&[&"7", &open, &openat, &creat, &openat2]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let total = &truth["total"];
    for (name, bytes) in [
        ("open", false),
        ("read", true),
        ("write", true),
        ("close", false),
    ] {
        checks.operation(report, name, &total[name], bytes);
    }
    for (path, counts) in truth["dirs"].as_object().expect("directories of the truth") {
        let opened = u64_at(counts, "/open/count") - u64_at(counts, "/open/errors");
        let (reads, bytes) = (u64_at(counts, "/read/count"), u64_at(counts, "/read/bytes"));
        checks.directory(report, path, opened, Some(reads), bytes);
        if let Some(row) = report.directory(path) {
            for (member, key) in [("writes", "count"), ("bytes_written", "bytes")] {
                let truly = u64_at(counts, &format!("/write/{key}"));
                checks.exact(
                    &format!("{path}: {member}"),
                    truly,
                    u64_at(row, &format!("/{member}")),
                );
            }
        }
    }
    checks.done();
}
