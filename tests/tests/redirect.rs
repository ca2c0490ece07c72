//! Descriptors that come to refer to something else, while there are so many calls that their beginnings are hidden.

use trainprof_tests::env::{in_vm, root_test};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

#[test]
fn redirected_descriptors_count_where_they_lead() {
    let Some(_turn) = root_test("redirected_descriptors_count_where_they_lead") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 1, "", |_| 100);
    let b = data.files("b", 1, "", |_| 3_000);
    let seen = observe("redirect", &os(&[&a, &b, &"2500"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for (name, folder) in [("a", &a), ("b", &b)] {
        let counts = &truth[name];
        checks.directory(
            report,
            &folder.to_string_lossy(),
            u64_at(counts, "/open/count"),
            Some(u64_at(counts, "/read/count")),
            u64_at(counts, "/read/bytes"),
        );
    }
    checks.member(
        report,
        "/memory/calls/brk/bytes",
        u64_at(truth, "/brk/bytes"),
    );
    checks.member(
        report,
        "/memory/calls/brk/count",
        u64_at(truth, "/brk/count"),
    );
    // An emulated machine does not make that many calls.
    let shed = report.rows("/cost/shed");
    checks.that(in_vm() || !shed.is_empty(), || {
        "beginnings of calls were never hidden".to_owned()
    });
    if !shed.is_empty() {
        let open = &report.at("/io/operations")["open"];
        let (count, seconds) = (u64_at(open, "/count"), open["seconds"].as_f64());
        let mean_us = seconds.map_or(0.0, |s| s * 1e6 / count as f64);
        checks.that((0.1..100.0).contains(&mean_us), || {
            format!("an open takes {mean_us} µs: the time of hidden calls is not estimated")
        });
    }
    checks.done();
}
