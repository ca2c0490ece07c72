//! What a watch needs to be allowed, and what it keeps of that.

use std::fs;

use trainprof_tests::env::{has_tool, root_test, skip};
use trainprof_tests::product::{ENOUGH, public_copy};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::{children, os};
use trainprof_tests::{Checks, Data, Watch, Workload};

/// Bit of CAP_SYS_ADMIN in capability sets (capability.h).
const SYS_ADMIN: u64 = 1 << 21;

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
    checks.done();
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
    let own = capabilities(watch.pid(), "CapEff");
    checks.that(own & SYS_ADMIN == 0 && own.count_ones() <= 6, || {
        format!("while it watches it holds capabilities {own:x}")
    });
    for field in ["CapPrm", "CapInh", "CapAmb"] {
        let set = capabilities(watch.pid(), field);
        checks.that(set & !own == 0, || {
            format!("{field} is {set:x}, CapEff {own:x}")
        });
    }
    // Those who open probes later keep what that takes, and nothing else.
    // One that had nothing to do has ended, with all that it had.
    let lives = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| !c.is_empty());
    for child in children(watch.pid()).into_iter().filter(lives) {
        let set = capabilities(child, "CapEff");
        checks.that(set.count_ones() <= 6, || {
            format!("helper {child} holds capabilities {set:x}")
        });
    }
    workload.go();
    workload.wait_done();
    assert_eq!(watch.stop().code(), 0);
    workload.finish();
    checks.done();
}
