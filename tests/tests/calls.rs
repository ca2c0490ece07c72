//! Every call of each family against what the workload counted, and what is attributed to threads.

use serde_json::Value;
use trainprof_tests::env::{left_out_in_vm, root_test};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Workload, observe, observe_with};

#[test]
fn each_call_of_a_family_is_counted() {
    let Some(_turn) = root_test("each_call_of_a_family_is_counted") else {
        return;
    };
    let data = Data::new();
    let folder = data.folder("calls");
    let seen = observe("calls", &os(&[&folder, &"17"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for (family, bytes) in [
        ("open", false),
        ("read", true),
        ("write", true),
        ("close", false),
        ("stat", false),
        ("getdents", true),
        ("fsync", false),
        ("rename", false),
        ("unlink", false),
    ] {
        assert!(u64_at(&truth[family], "/count") >= 17, "{family}: {truth}");
        checks.operation(report, family, &truth[family], bytes);
    }
    checks.done();
}

#[test]
fn each_thread_has_its_own_calls() {
    let Some(_turn) = root_test("each_thread_has_its_own_calls") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 60, "jpg", |i| 3_000 + i);
    let seen = observe(
        "files",
        &os(&[&"-t", &"6", &"-r", &"4", &"-l", &"-s", &"-e", &a]),
    );
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let threads = truth["threads"].as_array().expect("threads of the truth");
    assert_eq!(threads.len(), 6);
    for thread in threads {
        let tid = u64_at(thread, "/tid");
        let Some(row) = report.thread(tid) else {
            checks.that(false, || format!("no row of thread {tid}"));
            continue;
        };
        for (key, truth) in [
            ("opens", "/io/open/count"),
            ("reads", "/io/read/count"),
            ("bytes_read", "/io/read/bytes"),
        ] {
            checks.exact(
                &format!("{key} of thread {tid}"),
                u64_at(thread, truth),
                u64_at(row, &format!("/io/{key}")),
            );
        }
        checks.exact("bytes written", 0, u64_at(row, "/io/bytes_written"));
        for name in ["open", "read", "close", "stat", "getdents"] {
            // For opens bytes are the files' sizes.
            let bytes = (name == "read").then_some("bytes");
            for what in ["count", "errors"].into_iter().chain(bytes) {
                let of = |row, path: &str| u64_at(row, &format!("{path}/{name}/{what}"));
                let truly = of(thread, "/io");
                let told = of(row, "/operations");
                checks.exact(&format!("{what} of {name} of thread {tid}"), truly, told);
            }
        }
        // Half of them take as long or longer; the quantile is at most half off.
        for name in ["open", "read"] {
            let p50 = row.pointer(&format!("/latency_us/{name}/p50"));
            let p50 = p50.and_then(Value::as_f64).unwrap_or(0.0) / 1e6;
            let seconds = f64_at(row, &format!("/operations/{name}/seconds"));
            let half = u64_at(row, &format!("/operations/{name}/count")) as f64 / 2.0;
            checks.that(p50 > 0.0 && p50 * half / 1.5 <= seconds, || {
                format!("{name} of thread {tid}: p50 {p50} s of {seconds} s")
            });
        }
    }
    checks.done();
}

/// What a job of everyday makes of calls costs less than the budget: all are counted all the time.
#[test]
fn ten_thousand_calls_a_second_are_all_counted() {
    let name = "ten_thousand_calls_a_second_are_all_counted";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a processor that is as fast as a real one") {
        return;
    }
    let data = Data::new();
    let folder = data.files("f", 500, "jpg", |i| 4_000 + i);
    // Beyond the first seconds, in which all calls are counted in any case.
    let workload = Workload::start("files", os(&[&"-u", &"9", &"-w", &"380", &folder]));
    let pid = workload.pid();
    let seen = observe_with(workload, pid, &os(&[&"--overhead-budget", &"1%"]));
    let Observed { truth, report, .. } = &seen;
    let total = &truth["total"];
    let calls: u64 = ["open", "read", "close"]
        .iter()
        .map(|call| u64_at(total, &format!("/{call}/count")))
        .sum();
    let rate = calls as f64 / f64_at(truth, "/seconds");
    let mut checks = Checks::new();
    // Fewer where the host is busy.
    eprintln!("{rate:.0} calls a second");
    checks.that(rate < 20_000.0, || {
        format!("{rate:.0} calls a second are another job")
    });
    checks.nothing_lost(report);
    let counted = report.f64("/coverage/calls_counted_share");
    checks.that(counted == 1.0, || {
        format!("{counted} of the time, at {rate:.0} calls a second")
    });
    checks.operation(report, "open", &total["open"], false);
    checks.operation(report, "read", &total["read"], true);
    checks.operation(report, "close", &total["close"], false);
    checks.done();
}
