//! Calls that are counted in turns, since counting all of them costs more than the budget has room for.

use std::ffi::OsString;

use serde_json::Value;
use trainprof_tests::env::{has_tool, in_vm, left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::product::{ENOUGH, public_copy};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Watch, Workload, observe_with};

/// Three times as long as calls are counted whole at first.
const LONG_S: &str = "12";

fn budget(share: &str) -> Vec<OsString> {
    os(&[&"--overhead-budget", &share])
}

/// A job that opens, reads and closes 500 warm files again and again, for so many seconds.
fn watch_warm_files(seconds: &str, share: &str) -> Observed {
    let data = Data::new();
    let folder = data.files("warm", 500, "bin", |_| 1_024);
    let workload = Workload::start("files", os(&[&"-u", &seconds, &folder]));
    let pid = workload.pid();
    observe_with(workload, pid, &budget(share))
}

/// Numbers that were estimated: within a quarter.
fn about(checks: &mut Checks, what: &str, truth: &Value, report: &Value) {
    let (truth, report) = (f64_at(truth, ""), f64_at(report, ""));
    checks.that((report / truth - 1.0).abs() < 0.25, || {
        format!("{what}: truth {truth}, report {report}")
    });
}

/// It says so, and did so. What a call costs an emulated processor, and for how much of the time there is room for that, changes with
/// what its host leaves to it.
fn in_turns(checks: &mut Checks, seen: &Observed, most: f64) {
    let most = if in_vm() { 1.0 } else { most };
    let share = seen.report.f64("/coverage/calls_counted_share");
    checks.that(share < most, || {
        format!("{share} of the time calls were counted")
    });
    let shed = seen.report.rows("/cost/shed");
    let said = shed
        .iter()
        .filter_map(Value::as_str)
        .any(|shed| shed.starts_with("calls: counted"));
    checks.that(said, || format!("not among what was left out: {shed:?}"));
    checks.that(seen.report.u64("/coverage/lost") == 0, || {
        format!("lost: {}", seen.report.at("/coverage"))
    });
}

#[test]
fn calls_that_cost_too_much_are_counted_in_turns() {
    let name = "calls_that_cost_too_much_are_counted_in_turns";
    let Some(_turn) = root_test(name) else { return };
    // Watching alone takes more than the budget of an emulated processor.
    let seen = watch_warm_files(LONG_S, "1%");
    let total = &seen.truth["total"];
    let calls: u64 = ["open", "read", "close"]
        .map(|call| u64_at(total, &format!("/{call}/count")))
        .iter()
        .sum();
    let mut checks = Checks::new();
    in_turns(&mut checks, &seen, 0.7);
    let report = &seen.report;
    let runs = report.u64("/cost/bpf_runs");
    // A slow CPU has beginnings of calls shown too.
    checks.that(in_vm() || (runs as f64) < 0.8 * calls as f64, || {
        format!("{runs} runs of probes at {calls} calls")
    });
    // In an emulated machine the job's pace changes from one half of a second to the next.
    if !in_vm() {
        for (what, truth, pointer) in [
            ("opens", "/open/count", "/io/opens"),
            ("reads", "/read/count", "/io/reads"),
            ("bytes", "/read/bytes", "/io/bytes_read"),
        ] {
            about(
                &mut checks,
                what,
                total.pointer(truth).expect("it counts that"),
                report.at(pointer),
            );
        }
    }
    checks.done();
}

/// Seen with no window on an allocator and, in the second case, by somebody whom the kernel does not tell what probes cost.
fn keeps_to_its_budget(checks: &mut Checks, seen: &Observed, most: f64) {
    in_turns(checks, seen, 0.7);
    let report = &seen.report;
    let cost = report.at("/cost");
    checks.that(report.f64("/cost/budget") == 0.01, || cost.to_string());
    // The start is a larger part of it the slower the CPU is; an emulated one takes seconds for it.
    let processes = report.rows("/job/processes");
    let job_s: f64 = processes.iter().map(|row| f64_at(row, "/cpu_s")).sum();
    let spent = report.f64("/cost/spent_share") - report.f64("/cost/start_cpu_s") / job_s;
    // The first four seconds are counted whole, at a tenth to a third of the job's CPU time. What else trainprof does takes an
    // emulated CPU several times as long, and a job's call hardly: how much that is says nothing there.
    let few = in_vm() || spent < most;
    checks.that(spent > 0.01 && few, || format!("{spent}: {cost}"));
}

#[test]
fn calls_are_counted_in_turns_without_windows_too() {
    let name = "calls_are_counted_in_turns_without_windows_too";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.files("warm", 500, "bin", |_| 1_024);
    let workload = Workload::start("files", os(&[&"-u", &LONG_S, &folder]));
    let pid = workload.pid();
    let options = os(&[&"--overhead-budget", &"1%", &"--alloc", &"off"]);
    let seen = observe_with(workload, pid, &options);
    let mut checks = Checks::new();
    keeps_to_its_budget(&mut checks, &seen, 0.2);
    let cost = seen.report.at("/cost");
    checks.that(cost["windows"].is_null(), || cost.to_string());
    checks.that(
        cost["estimated"] == false && !cost["bpf_ns"].is_null(),
        || cost.to_string(),
    );
    checks.done();
}

#[test]
fn the_budget_is_kept_also_where_the_kernel_does_not_tell_what_probes_cost() {
    let name = "the_budget_is_kept_also_where_the_kernel_does_not_tell_what_probes_cost";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "more calls than an emulated processor makes") {
        return;
    }
    if !has_tool("setpriv") {
        return skip(name, "needs setpriv (util-linux)");
    }
    let (_copy, binary) = public_copy();
    let data = Data::new();
    let folder = data.files("warm", 500, "bin", |_| 1_024);
    let mut workload = Workload::start("files", os(&[&"-u", &LONG_S, &folder]));
    let watch = Watch::attach_as_nobody(workload.pid(), ENOUGH, &binary);
    let attach_time = watch.attach_time;
    workload.go();
    workload.wait_done();
    let finished = watch.stop();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let seen = Observed {
        truth: workload.finish(),
        report: finished.report(),
        finished,
        attach_time,
    };
    let mut checks = Checks::new();
    // What is estimated may be twice what the kernel would count.
    keeps_to_its_budget(&mut checks, &seen, 0.4);
    let (report, total) = (&seen.report, &seen.truth["total"]);
    about(
        &mut checks,
        "opens",
        &total["open"]["count"],
        report.at("/io/opens"),
    );
    let cost = report.at("/cost");
    checks.that(
        cost["estimated"] == true && cost["bpf_ns"].is_null(),
        || cost.to_string(),
    );
    let missing = report.rows("/coverage/missing");
    let said = missing.iter().any(|row| {
        row["what"] == "cost" && row["reason"].as_str().is_some_and(|r| r.contains("setcap"))
    });
    checks.that(said, || format!("{missing:?}"));
    checks.done();
}

#[test]
fn a_budget_with_room_for_all_calls_counts_them_all() {
    let name = "a_budget_with_room_for_all_calls_counts_them_all";
    let Some(_turn) = root_test(name) else { return };
    let seen = watch_warm_files("3", "100%");
    let mut checks = Checks::new();
    for call in ["open", "read", "close"] {
        checks.operation(&seen.report, call, &seen.truth["total"][call], false);
    }
    let share = seen.report.f64("/coverage/calls_counted_share");
    checks.that(share == 1.0, || format!("{share} of the time"));
    checks.done();
}

#[test]
fn steps_are_seen_while_calls_of_workers_are_not_counted() {
    let name = "steps_are_seen_while_calls_of_workers_are_not_counted";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "more calls than an emulated processor makes") {
        return;
    }
    let Some(python) = python_with("torch") else {
        return skip(name, "no Python with torch (TRAINPROF_PYTHON names one)");
    };
    let data = Data::new();
    let folder = data.files("cats", 1_280, "jpg", |i| 3_000 + 11 * i);
    let mut args = os(&[
        &"--workers",
        &"2",
        &"--seconds",
        &LONG_S,
        &"--batch",
        &"64",
        &"--persistent",
    ]);
    args.extend(os(&[&"--step-ms", &"1", &folder]));
    let workload = Workload::python(&python, "loader.py", &args);
    let pid = workload.pid();
    let seen = observe_with(workload, pid, &budget("2%"));
    let mut checks = Checks::new();
    let (path, counts) = seen.truth["dirs"]
        .as_object()
        .and_then(|dirs| dirs.iter().next())
        .expect("a directory of the truth");
    in_turns(&mut checks, &seen, 0.7);
    let row = seen
        .report
        .rows("/io/top")
        .iter()
        .find(|row| row["path"] == **path);
    let row = row.expect("the folder of the data");
    about(&mut checks, "opens", &counts["opens"], &row["opens"]);
    about(&mut checks, "bytes", &counts["bytes"], &row["bytes"]);
    let steps = [
        u64_at(&seen.truth, "/steps"),
        seen.report.u64("/steps/count"),
    ];
    checks.that(steps[0].abs_diff(steps[1]) * 50 <= steps[0], || {
        format!("steps: truth {}, report {}", steps[0], steps[1])
    });
    checks.done();
}
