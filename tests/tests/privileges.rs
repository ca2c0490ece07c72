//! What a watch needs to be allowed, and what it keeps of that.

use std::fs;

use trainprof_tests::env::{has_tool, root_test, skip};
use trainprof_tests::product::{ENOUGH, public_copy};
use trainprof_tests::report::{Report, u64_at};
use trainprof_tests::workload::{children, os};
use trainprof_tests::{Checks, Data, Watch, Workload};

/// Bits of capability sets (capability.h).
const DAC_READ_SEARCH: u64 = 1 << 2;
const KILL: u64 = 1 << 5;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// Looking at processes of others, which never ends.
const READ: u64 = DAC_READ_SEARCH | SYS_PTRACE;
/// What a process beside the collector may hold: who switches the kernel's counting, and who asks the driver; who attaches uprobes.
const HELPERS: [u64; 2] = [SYS_ADMIN, READ | PERFMON | BPF | SYS_ADMIN];

/// A field of /proc/PID/status that holds a capability set.
fn capabilities(pid: i32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    u64::from_str_radix(line.expect("the field").trim(), 16).expect("a set")
}

#[test]
fn capabilities_are_enough_to_watch_roots_job() {
    let name = "capabilities_are_enough_to_watch_roots_job";
    let Some(_turn) = root_test(name) else { return };
    if !has_tool("setpriv") {
        return skip(name, "needs setpriv (util-linux)");
    }
    let (_folder, binary) = public_copy();
    let data = Data::new();
    let source = data.files("source", 60, "jpg", |i| 2_000 + 7 * i);
    let mut workload = Workload::start("files", os(&[&source]));
    let watch = Watch::attach_as_nobody(workload.pid(), ENOUGH, &binary);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let truth = workload.finish();
    let report = ended.report();
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    let total = &truth["total"];
    for (what, key, found) in [
        ("opens", "/open/count", "/io/opens"),
        ("reads", "/read/count", "/io/reads"),
        ("bytes", "/read/bytes", "/io/bytes_read"),
    ] {
        checks.exact(what, u64_at(total, key), report.u64(found));
    }
    checks.that(!tells_of_other_users(&report), || {
        "all can be read, and the report says that it cannot".into()
    });
    checks.done();
}

fn tells_of_other_users(report: &Report) -> bool {
    let missing = report.at("/coverage/missing").to_string();
    missing.contains("another user's") && missing.contains("CAP_SYS_PTRACE")
}

#[test]
fn what_cannot_be_read_of_another_user_is_told() {
    let name = "what_cannot_be_read_of_another_user_is_told";
    let Some(_turn) = root_test(name) else { return };
    if !has_tool("setpriv") {
        return skip(name, "needs setpriv (util-linux)");
    }
    let (_folder, binary) = public_copy();
    let data = Data::new();
    let source = data.files("source", 5, "jpg", |_| 1_000);
    let mut workload = Workload::start("files", os(&[&source]));
    let watch = Watch::attach_as_nobody(workload.pid(), &["bpf", "perfmon"], &binary);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    workload.finish();
    assert!(tells_of_other_users(&ended.report()), "{}", ended.stdout);
}

#[test]
fn a_watch_keeps_no_privilege_that_it_needs_no_more() {
    let Some(_turn) = root_test("a_watch_keeps_no_privilege_that_it_needs_no_more") else {
        return;
    };
    let data = Data::new();
    let source = data.files("source", 5, "jpg", |_| 1_000);
    let mut workload = Workload::start("files", os(&[&source]));
    let watch = Watch::attach(workload.pid(), &[]);
    let mut checks = Checks::new();
    holds(&mut checks, "while it watches", watch.pid(), &[READ]);
    // Those who open probes later keep what that takes, and nothing else.
    // One that had nothing to do has ended, with all that it had.
    let lives = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| !c.is_empty());
    let mut helpers = 0;
    for child in children(watch.pid()).into_iter().filter(lives) {
        helpers += 1;
        holds(&mut checks, "beside the collector", child, &HELPERS);
    }
    checks.that(helpers > 0, || "nobody works beside the collector".into());
    workload.go();
    workload.wait_done();
    assert_eq!(watch.stop().code(), 0);
    workload.finish();
    let mut launched = Watch::run(&[], &os(&[&"sleep", &"30"]), &[]);
    launched.wait_watching();
    // And to pass signals on to a command that is another user's by then.
    holds(
        &mut checks,
        "while it runs a command",
        launched.pid(),
        &[READ | KILL],
    );
    launched.signal(libc::SIGTERM);
    assert_eq!(launched.wait().code(), 128 + libc::SIGTERM);
    checks.done();
}

/// Checks that a process holds exactly one of these sets, and can get nothing more.
fn holds(checks: &mut Checks, when: &str, pid: i32, one_of: &[u64]) {
    let own = capabilities(pid, "CapEff");
    checks.that(one_of.contains(&own), || {
        format!("{when}, process {pid} holds capabilities {own:x}, not one of {one_of:x?}")
    });
    for (field, expected) in [
        ("CapPrm", own),
        ("CapInh", 0),
        ("CapAmb", 0),
        ("CapBnd", own),
    ] {
        let set = capabilities(pid, field);
        checks.that(set == expected, || {
            format!("{when}, {field} of process {pid} is {set:x}, CapEff {own:x}")
        });
    }
}
