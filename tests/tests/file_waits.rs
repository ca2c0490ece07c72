//! Waits for files, by calls and by page faults, against what the workload measured around them. The disk is slow on purpose.

use std::path::Path;

use serde_json::Value;
use trainprof_tests::cgroup::{Group, disk_of};
use trainprof_tests::env::{in_vm, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Workload, observe_with};

const MIB: u64 = 1 << 20;

/// Watches a workload that may read so many bytes a second from the disk below its data.
fn limited(
    data: &Data,
    name: &str,
    bytes_per_s: u64,
    workload: &str,
    args: &[std::ffi::OsString],
) -> Option<Observed> {
    let Some(disk) = disk_of(&data.path("")) else {
        skip(
            name,
            "the test folder lies on no disk; name another in TRAINPROF_TEST_DIR",
        );
        return None;
    };
    let group = Group::of_disks("slow");
    group.set_read_limit(&disk, bytes_per_s);
    let workload = Workload::start(workload, args);
    let pid = workload.pid();
    group.put(pid);
    Some(observe_with(workload, pid, &[]))
}

/// What the thread waited for in waits of a kind, with the time until it was on a CPU again, seconds.
fn waited(row: &Value, kind: &str) -> f64 {
    let waits = row["waits"].as_array().expect("waits");
    let of_kind = waits.iter().filter(|wait| wait["kind"] == kind);
    of_kind
        .map(|wait| f64_at(wait, "/seconds") + f64_at(wait, "/runnable_s"))
        .sum()
}

/// All of `truth` seconds were waits of that kind: of the thread, of the process, and in the folder.
fn check_wait(seen: &Observed, kind: &str, folder: &Path, truth: f64) {
    let mut checks = Checks::new();
    checks.nothing_lost(&seen.report);
    checks.that(truth > 2.0, || format!("it waited for {truth} s only"));
    let pid = u64_at(&seen.truth, "/pid");
    let thread = seen.report.thread(pid).expect("its thread");
    checks.near(
        &format!("waits of kind {kind}"),
        truth,
        waited(thread, kind),
    );
    let process = seen.report.process(pid).expect("its process");
    let share = f64_at(process, "/share/io_wait");
    // The workload's clock also sees the time from a wake-up to a CPU.
    let (io_wait, runnable) = (
        share * f64_at(thread, "/present_s"),
        f64_at(thread, "/runnable_s"),
    );
    checks.between("io_wait", (truth - runnable, truth), io_wait);
    let row = seen.report.directory(&folder.to_string_lossy());
    let row = row.expect("the folder's row");
    let wait = f64_at(row, "/wait_s");
    checks.between("wait_s of the folder", (truth - runnable, truth), wait);
    // The kernel counts waits for a disk as waits for I/O, and none of those at the gate.
    for wait in thread["waits"].as_array().expect("waits") {
        let of_disk = if wait["kind"] == kind {
            f64_at(wait, "/seconds")
        } else {
            0.0
        };
        let what = format!("iowait_s of a wait of kind {}", wait["kind"]);
        checks.near(&what, of_disk, f64_at(wait, "/iowait_s"));
    }
    checks.done();
}

/// A disk's answer is an interrupt, or comes by a thread of the kernel: no thread of the host did it on purpose. The kernel leaves a
/// program out that would run on top of itself, so beside others that wake threads all the time a few wakers are not known.
fn check_wakers(seen: &Observed) {
    let pid = u64_at(&seen.truth, "/pid");
    let row = seen.report.thread(pid).expect("its thread");
    let mut checks = Checks::new();
    let (mut of_all, mut of_disk) = (0.0, 0.0);
    for wait in row["waits"].as_array().expect("waits") {
        if wait["kind"] != "file" {
            continue;
        }
        let kind = &wait["waker"]["kind"];
        let seconds = f64_at(wait, "/seconds");
        of_all += seconds;
        if kind == "interrupt" || kind == "kernel" {
            of_disk += seconds;
        }
    }
    checks.that(of_disk >= 0.9 * of_all, || {
        format!(
            "{of_disk} of {of_all} s were ended by the disk: {}",
            row["waits"]
        )
    });
    checks.that(of_all > 2.0, || format!("waits of {of_all} s only"));
    checks.done();
}

/// Within the width of a bucket, which is stated, and what two clocks may differ by.
fn check_latencies(seen: &Observed, folder: &Path) {
    if in_vm() {
        return;
    }
    let truth = &seen.truth["read_us"];
    let mut checks = Checks::new();
    checks.that(u64_at(truth, "/count") > 50, || format!("{truth}"));
    for quantile in ["p50", "p95", "p99"] {
        let (is, says) = (
            f64_at(truth, &format!("/{quantile}")),
            seen.report.f64(&format!("/io/latency_us/read/{quantile}")),
        );
        checks.that((says / is - 1.0).abs() <= 0.125 + 0.02, || {
            format!("{quantile}: truth {is:.0} us, report {says:.0} us")
        });
        // Of the folder, and of its files' extension, in buckets twice as wide.
        let directory = seen.report.directory(&folder.to_string_lossy());
        let extensions = seen.report.rows("/io/extensions");
        let extension = extensions.iter().find(|row| row["extension"] == "bin");
        for row in [directory, extension].map(|row| row.expect("its row")) {
            let says = f64_at(row, &format!("/latency_us/read/{quantile}"));
            checks.that((says / is - 1.0).abs() <= 0.25 + 0.02, || {
                format!("{quantile}: truth {is:.0} us, {says:.0} us told of {row}")
            });
        }
    }
    checks.done();
}

#[test]
fn latencies_are_told_by_directory() {
    let name = "latencies_are_told_by_directory";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    // At so many bytes a second a large file is waited for long, again and again.
    let slow = data.files("slow", 2, "bin", |_| 8 << 20);
    let quick = data.files("quick", 200, "txt", |_| 4_096);
    let args = os(&[&"-c", &"-b", &"262144", &slow, &quick]);
    let seen = limited(&data, name, 4 * MIB, "files", &args);
    let Some(seen) = seen else { return };
    let mut checks = Checks::new();
    checks.nothing_lost(&seen.report);
    let at = |row: &Value, q: &str| f64_at(row, &format!("/latency_us/read/{q}"));
    let folder = |folder: &Path| {
        let row = seen.report.directory(&folder.to_string_lossy());
        row.expect("the folder's row")
    };
    let extension = |of: &str| {
        let rows = seen.report.rows("/io/extensions");
        rows.iter()
            .find(|row| row["extension"] == of)
            .expect("its row")
    };
    for (slow, quick) in [
        (folder(&slow), folder(&quick)),
        (extension("bin"), extension("txt")),
    ] {
        for row in [slow, quick] {
            checks.that(at(row, "p50") <= at(row, "p99"), || format!("{row}"));
        }
        let mean_us = f64_at(slow, "/seconds") / u64_at(slow, "/reads") as f64 * 1e6;
        checks.that(at(slow, "p99") > mean_us / 1.5, || format!("{slow}"));
        checks.that(at(quick, "p95") < at(slow, "p95") / 10.0, || {
            format!("{quick} against {slow}")
        });
    }
    checks.done();
}

#[test]
fn waits_for_reads_are_as_long_as_they_were() {
    let name = "waits_for_reads_are_as_long_as_they_were";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    // Past the page cache, and into it.
    for option in ["-d", "-c"] {
        let folder = data.files(option, 2, "bin", |_| 8 << 20);
        let args = os(&[&"-c", &option, &"-b", &"262144", &folder]);
        let Some(seen) = limited(&data, name, 4 * MIB, "files", &args) else {
            return;
        };
        eprintln!("files {option}");
        let truth = f64_at(&seen.truth, "/total/read/seconds");
        check_wait(&seen, "file", &folder, truth);
        check_wakers(&seen);
        check_latencies(&seen, &folder);
    }
}

#[test]
fn waits_for_cold_pages_are_as_long_as_they_were() {
    let name = "waits_for_cold_pages_are_as_long_as_they_were";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.files("mapped", 2, "npy", |_| 2 << 20);
    let args = os(&[&"-c", &folder.join("0.npy"), &folder.join("1.npy")]);
    let Some(seen) = limited(&data, name, MIB, "mmapread", &args) else {
        return;
    };
    let major = u64_at(&seen.truth, "/faults/major");
    assert!(major > 900, "only {major} pages were cold");
    check_wait(&seen, "fault", &folder, f64_at(&seen.truth, "/waited_s"));
}
