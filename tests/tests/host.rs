//! Hosts that lack something: the type information of the kernel, and what is not needed (tracefs).

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use serde_json::Value;
use trainprof_tests::env::{has_tool, root_test, skip, trainprof};
use trainprof_tests::product::{Finished, finish};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Checks, Data, Report, Workload};

/// `trainprof` in a mount namespace in which `before` was done; `None`: there are none here.
fn after(name: &str, before: &str) -> Option<Command> {
    if !has_tool("unshare") {
        skip(name, "needs unshare (util-linux)");
        return None;
    }
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c"])
        .arg(format!("{before} && exec \"$0\" \"$@\""))
        .arg(trainprof());
    Some(command)
}

/// Runs `trainprof attach` for a moment in such a namespace.
fn attach_after(name: &str, before: &str) -> Option<Finished> {
    let mut command = after(name, before)?;
    let workload = Workload::start("memcalls", os(&[&"5"]));
    command
        .args(["attach", &workload.pid().to_string(), "-d", "500ms"])
        .current_dir("/tmp")
        .args(["-o", "trainprof-host-test.rec"]);
    let ended = finish(command);
    let _ = std::fs::remove_file("/tmp/trainprof-host-test.rec");
    Some(ended)
}

#[test]
fn a_kernel_without_btf_is_refused_with_the_cure() {
    let name = "a_kernel_without_btf_is_refused_with_the_cure";
    let Some(_turn) = root_test(name) else { return };
    let hide = "mount -t tmpfs none /sys/kernel/btf";
    if let Some(ended) = attach_after(name, hide) {
        ended.expect_failure(3, &["CONFIG_DEBUG_INFO_BTF"]);
    }
}

#[test]
fn tracefs_is_not_needed() {
    let name = "tracefs_is_not_needed";
    let Some(_turn) = root_test(name) else { return };
    // A file system that hides it even where it is mounted more than once.
    let hide = "mount -t tmpfs none /sys/kernel/tracing && { ! [ -d /sys/kernel/debug/tracing ] || mount -t tmpfs none /sys/kernel/debug; } \
        && ! [ -e /sys/kernel/tracing/events ] && ! [ -e /sys/kernel/debug/tracing/events ]";
    let data = Data::new();
    let files = data.files("a", 60, "jpg", |i| 2_000 + i);
    let mut missing = Vec::new();
    for before in [hide, "true"] {
        let Some(mut command) = after(name, before) else {
            return;
        };
        let truth = data.path("truth");
        command
            .args(["run", "--overhead-budget", "100%", "--json", "-", "--"])
            .arg(program("files"))
            .args([&truth, &files])
            .env("WL_NOGATE", "1");
        let ended = finish(command);
        assert_eq!(ended.code(), 0, "{before}: {}", ended.stderr);
        let report = Report::parse(&ended.stdout);
        let truth = std::fs::read_to_string(truth).expect("the truth");
        let truth: Value = serde_json::from_str(&truth).expect("JSON");
        let mut checks = Checks::new();
        checks.nothing_lost(&report);
        let read = &truth["total"]["read"];
        checks.exact("reads", u64_at(read, "/count"), report.u64("/io/reads"));
        checks.exact(
            "bytes",
            u64_at(read, "/bytes"),
            report.u64("/io/bytes_read"),
        );
        checks.done();
        let rows = report.rows("/coverage/missing").iter();
        missing.push(rows.map(|row| row["what"].clone()).collect::<Vec<_>>());
    }
    // Nothing else is missing for it.
    assert_eq!(missing[0], missing[1]);
}

#[test]
fn a_pid_namespace_of_its_own_is_refused_with_the_cure() {
    let name = "a_pid_namespace_of_its_own_is_refused_with_the_cure";
    let Some(_turn) = root_test(name) else { return };
    if !has_tool("unshare") {
        skip(name, "needs unshare (util-linux)");
        return;
    }
    // The first process there has the number 1, and is not the host's.
    for command in [&["attach", "1", "-d", "1s"][..], &["run", "--", "true"]] {
        let mut inside = Command::new("unshare");
        inside.args(["--fork", "--pid", "--mount-proc"]);
        inside.arg(trainprof()).args(command);
        finish(inside).expect_failure(3, &["--pid=host"]);
    }
}

#[test]
fn what_sudo_makes_belongs_to_who_called_it() {
    let name = "what_sudo_makes_belongs_to_who_called_it";
    let Some(_turn) = root_test(name) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // As /tmp is.
    let everybody = Permissions::from_mode(0o1777);
    std::fs::set_permissions(folder.path(), everybody).expect("our folder");
    let workload = Workload::start("memcalls", os(&[&"3"]));
    // Root's own file stays root's.
    let (recording, json) = (
        folder.path().join("job.rec"),
        folder.path().join("job.json"),
    );
    std::fs::write(&json, "kept").expect("a file");
    let mut command = Command::new(trainprof());
    command
        .args(["attach", &workload.pid().to_string(), "-d", "500ms", "-o"])
        .arg(&recording)
        .arg("--json")
        .arg(&json)
        .envs([("SUDO_UID", "1234"), ("SUDO_GID", "2345")]);
    let ended = finish(command);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let owner = |path| {
        let there = std::fs::metadata(path).expect("a file");
        (there.uid(), there.gid(), there.mode() & 0o777)
    };
    assert_eq!(owner(&recording), (1234, 2345, 0o600));
    assert_eq!(owner(&json), (0, 0, 0o600));
}

#[test]
fn doctor_names_what_is_missing() {
    let name = "doctor_names_what_is_missing";
    let Some(_turn) = root_test(name) else { return };
    let here = trainprof_tests::product::trainprof(["doctor"]);
    assert!(!here.stderr.contains("panicked"), "{}", here.stderr);
    assert_eq!(
        here.code(),
        0,
        "this host can be watched:\n{}{}",
        here.stdout,
        here.stderr
    );
    if !has_tool("unshare") {
        return skip(name, "needs unshare (util-linux)");
    }
    let mut command = Command::new("unshare");
    command
        .args([
            "-m",
            "sh",
            "-c",
            "mount -t tmpfs none /sys/kernel/btf && exec \"$0\" doctor",
        ])
        .arg(trainprof());
    let ended = finish(command);
    let said = (ended.stdout.clone() + &ended.stderr).to_lowercase();
    for words in ["kernel btf", "config_debug_info_btf=y"] {
        assert!(
            said.contains(words),
            "doctor names no {words:?}, the lack and its cure:\n{said}"
        );
    }
    assert_ne!(ended.code(), 0, "doctor finds nothing wrong:\n{said}");
}
