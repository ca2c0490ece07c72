//! Files read through memory maps and io_uring, where no read call is made.

use std::path::Path;

use trainprof_tests::env::{in_vm, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Workload, observe, observe_with};

fn check_map(seen: &Observed) -> Checks {
    let mut checks = Checks::new();
    let Observed { truth, report, .. } = seen;
    checks.nothing_lost(report);
    checks.operation(report, "open", &truth["total"]["open"], false);
    checks.operation(report, "stat", &truth["total"]["stat"], false);
    checks.operation(report, "close", &truth["total"]["close"], false);
    checks.exact(
        "maps",
        u64_at(truth, "/maps"),
        report.u64("/io/operations/mmap/count"),
    );
    checks.exact(
        "mapped bytes",
        u64_at(truth, "/mapped_bytes"),
        report.u64("/io/operations/mmap/bytes"),
    );
    checks.exact("reads", 0, report.u64("/io/reads"));
    checks.exact("bytes read", 0, report.u64("/io/bytes_read"));
    let process = report
        .process(u64_at(truth, "/pid"))
        .expect("a row of the process");
    checks.exact(
        "minor faults",
        u64_at(truth, "/faults/minor"),
        u64_at(process, "/faults/minor"),
    );
    checks.exact(
        "major faults",
        u64_at(truth, "/faults/major"),
        u64_at(process, "/faults/major"),
    );
    checks
}

/// What faults on the files of a folder had fetched.
fn fetched(checks: &mut Checks, seen: &Observed, folder: &Path, truth: u64) {
    let report = &seen.report;
    checks.exact(
        "fetched by faults",
        truth,
        report.u64("/io/operations/fault/bytes"),
    );
    let row = report.directory(&folder.to_string_lossy());
    checks.exact(
        "fetched there",
        truth,
        u64_at(row.expect("a row of the folder"), "/fault_bytes"),
    );
}

#[test]
fn faults_on_cached_maps_are_minor() {
    let Some(_turn) = root_test("faults_on_cached_maps_are_minor") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("maps", 5, "npy", |i| (1 << 20) + 4_096 * i + 17);
    let files: Vec<_> = (0..5)
        .map(|i| folder.join(format!("{i}.npy")).into_os_string())
        .collect();
    let seen = observe("mmapread", &files);
    let mut checks = check_map(&seen);
    fetched(&mut checks, &seen, &folder, 0);
    checks.done();
}

#[test]
fn each_cold_page_is_a_major_fault() {
    let name = "each_cold_page_is_a_major_fault";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let folder = data.files("maps", 2, "npy", |_| 4 << 20);
    let seen = observe(
        "mmapread",
        &os(&[&"-c", &folder.join("0.npy"), &folder.join("1.npy")]),
    );
    let mut checks = check_map(&seen);
    let major = u64_at(&seen.truth, "/faults/major");
    assert!(
        major >= 1_000,
        "the workload caused only {major} major faults"
    );
    checks.exact(
        "fault operations",
        major,
        seen.report.u64("/io/operations/fault/count"),
    );
    fetched(&mut checks, &seen, &folder, 2 * (4 << 20));
    // A fault takes as long as its thread is off the CPU, and no longer than all of the touch; a quarter is what the buckets leave open.
    // (An emulated processor takes as long for the clocks around it.)
    for q in ["p50", "p95"].into_iter().filter(|_| !in_vm()) {
        let [least, most] =
            ["off_cpu_us", "whole_us"].map(|what| f64_at(&seen.truth, &format!("/{what}/{q}")));
        let says = seen
            .report
            .f64(&format!("/io/operations/fault/latency_us/{q}"));
        checks.that(says >= least / 1.25 && says <= most * 1.25, || {
            format!("{q} of a fault {says} µs, truth {least} to {most}")
        });
        eprintln!("{q} of a fault {says} µs, truth {least} to {most}");
    }
    checks.done();
}

#[test]
fn io_uring_reads_count_as_reads() {
    let name = "io_uring_reads_count_as_reads";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.files("ring", 4, "tfrecord", |i| 1_000_000 + 333 * i);
    let paths: Vec<_> = (0..4)
        .map(|i| folder.join(format!("{i}.tfrecord")))
        .collect();
    for option in ["-q8", "-f", "-c"] {
        eprintln!("option {option}");
        if option == "-c" && !data.on_device() {
            continue;
        }
        let mut args = os(&[&option]);
        args.extend(paths.iter().map(|path| path.clone().into_os_string()));
        let workload = Workload::start("iouring", &args);
        let pid = workload.pid();
        let seen = observe_with(workload, pid, &[]);
        let Observed { truth, report, .. } = &seen;
        let mut checks = Checks::new();
        checks.nothing_lost(report);
        checks.operation(report, "open", &truth["total"]["open"], false);
        checks.exact(
            "reads",
            u64_at(truth, "/uring/count"),
            report.u64("/io/reads"),
        );
        checks.exact(
            "bytes",
            u64_at(truth, "/uring/bytes"),
            report.u64("/io/bytes_read"),
        );
        let (reads, bytes) = (u64_at(truth, "/uring/count"), u64_at(truth, "/uring/bytes"));
        checks.directory(report, &folder.to_string_lossy(), 4, Some(reads), bytes);
        checks.done();
    }
}

/// What a ring writes adds pages too, which were fetched from nowhere.
#[test]
fn io_uring_writes_count_as_writes() {
    let Some(_turn) = root_test("io_uring_writes_count_as_writes") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("ring", 4, "ckpt", |i| 16_384 * (50 + i));
    let paths: Vec<_> = (0..4).map(|i| folder.join(format!("{i}.ckpt"))).collect();
    for option in ["-w", "-fw"] {
        eprintln!("option {option}");
        let mut args = os(&[&option]);
        args.extend(paths.iter().map(|path| path.clone().into_os_string()));
        let workload = Workload::start("iouring", &args);
        let pid = workload.pid();
        let seen = observe_with(workload, pid, &[]);
        let Observed { truth, report, .. } = &seen;
        let mut checks = Checks::new();
        checks.nothing_lost(report);
        checks.operation(report, "open", &truth["total"]["open"], false);
        let (writes, bytes) = (u64_at(truth, "/uring/count"), u64_at(truth, "/uring/bytes"));
        checks.exact("all writes", (50 + 51 + 52 + 53) * 16_384, bytes);
        checks.exact("writes", writes, report.u64("/io/writes"));
        checks.exact("bytes", bytes, report.u64("/io/bytes_written"));
        checks.operation(report, "read", &truth["total"]["read"], true);
        let hits = report.f64("/io/cache_hit_ratio");
        checks.that(hits == 1.0, || format!("cache_hit_ratio {hits}, truth 1"));
        checks.done();
    }
}
