//! A kernel whose structures lack a member: what needs that is left out and named, and all else goes on.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;
use trainprof_common::offsets::Offsets;
use trainprof_tests::{
    Checks, Data, Observed, Report, Workload,
    env::{left_out_in_vm, root_test, trainprof},
    observe_in,
    product::{finish, trainprof as run_trainprof},
    report::{f64_at, u64_at},
    workload::os,
};

/// Takes members away: see `trainprof-user/src/kernel/taken.rs`.
const WITHOUT: &str = "TRAINPROF_WITHOUT";

/// Without these no thread can be told from another.
const ESSENTIAL: [&str; 3] = ["task_pid", "task_tgid", "task_flags"];

fn names(rows: &[Value], member: &str) -> BTreeSet<String> {
    rows.iter()
        .filter_map(|row| Some(row[member].as_str()?.to_owned()))
        .collect()
}

/// What `doctor` finds wanting.
fn diagnosis(without: &str) -> String {
    let mut command = Command::new(trainprof());
    command.args(["doctor", "--json"]).env(WITHOUT, without);
    finish(command).stdout
}

/// Seconds that the process's first thread waited in sleeps.
fn slept(report: &Report, pid: u64) -> f64 {
    let row = report.thread(pid).expect("a row of the thread");
    let waits = row["waits"].as_array().expect("its waits");
    waits
        .iter()
        .filter(|wait| wait["kind"] == "sleep")
        .map(|wait| f64_at(wait, "/seconds") + f64_at(wait, "/runnable_s"))
        .sum()
}

fn watch_without(member: &str) -> Observed {
    let workload = Workload::start("memcalls", ["20"]);
    let pid = workload.pid();
    observe_in(
        workload,
        pid,
        &os(&[&"--gpu", &"off", &"--alloc", &"off"]),
        &[(WITHOUT, member)],
    )
}

#[test]
fn each_member_that_is_missing_is_named_and_the_watch_goes_on() {
    let name = "each_member_that_is_missing_is_named_and_the_watch_goes_on";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "some forty watches") {
        return;
    }
    let mut checks = Checks::new();
    let members = Offsets::MEMBERS.iter().map(|(name, ..)| *name);
    let optional = members.filter(|name| !ESSENTIAL.contains(name));
    for member in optional.chain(["iowait", "page_head_bit"]) {
        let seen = watch_without(member);
        let missing = names(seen.report.rows("/coverage/missing"), "what");
        checks.that(missing.contains(&format!("kernel member {member}")), || {
            format!("{member} is not among {missing:?}")
        });
        for call in ["mmap", "munmap", "madvise", "mremap"] {
            checks.exact(
                &format!("{call} without {member}"),
                u64_at(&seen.truth, &format!("/calls/{call}/count")),
                seen.report.u64(&format!("/memory/calls/{call}/count")),
            );
        }
        let found = diagnosis(member);
        checks.that(found.contains(&format!("what reads {member}")), || {
            format!("doctor does not name {member}: {found}")
        });
    }
    checks.done();
}

/// Waits need no descriptors: a sleep is one by its call.
#[test]
fn without_descriptors_waits_go_on_and_files_are_said_to_be_missing() {
    let Some(_turn) = root_test("without_descriptors_waits_go_on_and_files_are_said_to_be_missing")
    else {
        return;
    };
    let data = Data::new();
    let folder = data.files("f", 20, "jpg", |i| 500 + i);
    for member in ["fdt_fd", "inode_mode", "sb_magic"] {
        eprintln!("without {member}");
        let workload = Workload::start("files", os(&[&"-r", &"3", &"-p", &"10000", &folder]));
        let pid = workload.pid();
        let seen = observe_in(workload, pid, &[], &[(WITHOUT, member)]);
        let Observed { truth, report, .. } = &seen;
        let mut checks = Checks::new();
        checks.nothing_lost(report);
        checks.near(
            "sleeps",
            f64_at(truth, "/threads/0/slept_s"),
            slept(report, u64_at(truth, "/pid")),
        );
        let missing = names(report.rows("/coverage/missing"), "what");
        checks.that(missing.contains("file operations"), || {
            format!("file operations are not among {missing:?}")
        });
        // What was not seen is not 0.
        let unseen = ["/io/opens", "/io/reads", "/io/bytes_read"];
        let of_rows = [
            "/job/processes/0/io",
            "/threads/0/io",
            "/io/cache_hit_ratio",
        ];
        for what in unseen.iter().chain(&of_rows) {
            checks.that(report.at(what).is_null(), || {
                format!("{what}: {}", report.at(what))
            });
        }
        checks.that(
            seen.finished.stdout.contains("files: not seen here"),
            || seen.finished.stdout.clone(),
        );
        let found = diagnosis(member);
        checks.that(found.contains("file operations"), || found.clone());
        checks.done();
    }
}

#[test]
fn without_what_tells_threads_apart_there_is_no_watch() {
    let Some(_turn) = root_test("without_what_tells_threads_apart_there_is_no_watch") else {
        return;
    };
    let mut command = Command::new(trainprof());
    command
        .args(["attach", &std::process::id().to_string(), "-d", "1s"])
        .env(WITHOUT, "task_pid");
    finish(command).expect_failure(3, &["kernel"]);
    // The variable is what made the difference.
    assert_eq!(run_trainprof(["doctor"]).code(), 0);
}
