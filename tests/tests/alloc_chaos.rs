//! A job that executes, forks, loads another allocator or unmaps its own while probes are in that goes on unharmed.

use std::{ffi::OsString, process::Command, time::Duration};

use trainprof_tests::{
    Watch, Workload,
    env::{in_vm, root_test},
    report::u64_at,
    text::Text,
    workload::program,
};

/// Windows in which the job does it, and for how long it waits for them, seconds.
const TIMES: u64 = 2;
const PATIENCE: &str = "60";

/// The job does something in the middle of a window: it sees the trap in its own code the moment before.
fn goes_on(name: &str, way: &str) {
    let Some(_turn) = root_test(name) else { return };
    // An emulated machine may be too slow for a window within that time.
    let modes: &[&str] = if in_vm() {
        &["full"]
    } else {
        &["auto", "full"]
    };
    for &mode in modes {
        // Where each call is probed until the end, there is one window.
        let times = if mode == "auto" { TIMES } else { 1 };
        let mut command = Command::new(program("unsettle"));
        command
            .args(["-", way, &times.to_string(), PATIENCE])
            .args([program("slab.so"), program("other.so")]);
        let mut job = Workload::spawn(command);
        let pid = job.pid();
        let libraries = ["slab.so", "libc.so"];
        let before = libraries.map(|library| Text::of(pid, library).bytes());
        let options = ["--overhead-budget", "25%", "--gpu", "off", "--alloc", mode];
        let watch = Watch::attach(pid, &options.map(OsString::from));
        job.go();
        job.wait_done();
        let ended = watch.stop();
        assert_eq!(ended.code(), 0, "{mode}: {}", ended.stderr);
        for (library, before) in libraries.iter().zip(&before) {
            // It may lie elsewhere by now.
            let text = Text::of(pid, library);
            let gone = text.becomes(Duration::from_secs(10), |now| now == before);
            assert!(gone, "{mode}: traps are left in {library}");
        }
        let truth = job.finish();
        let acted = u64_at(&truth, "/acted");
        assert_eq!(acted, times, "{mode}: windows in which it did: {truth}");
        let calls = u64_at(&truth, "/calls");
        assert!(calls > 1_000, "{mode}: {truth}");
        for key in ["/taken", "/given"] {
            assert_eq!(u64_at(&truth, key), calls, "{mode}: {key} of {truth}");
        }
        let report = ended.report();
        let windows = report.u64("/memory/allocation/windows");
        assert!(windows >= 1, "{mode}: {}", report.at("/cost"));
        let rows = report.rows("/memory/allocation/processes");
        let row = rows.iter().find(|row| row["pid"] == pid);
        let allocator = &row.unwrap_or_else(|| panic!("{mode}: {rows:?}"))["allocator"];
        assert_eq!(allocator, "slab.so", "{mode}");
        assert_eq!(report.lost(), 0, "{mode}: {}", report.at("/coverage"));
    }
}

#[test]
fn a_job_that_executes_in_a_window_goes_on() {
    goes_on("a_job_that_executes_in_a_window_goes_on", "exec");
}

#[test]
fn a_job_that_forks_in_a_window_goes_on() {
    goes_on("a_job_that_forks_in_a_window_goes_on", "fork");
}

#[test]
fn a_job_that_loads_another_allocator_in_a_window_goes_on() {
    goes_on(
        "a_job_that_loads_another_allocator_in_a_window_goes_on",
        "load",
    );
}

#[test]
fn a_job_that_unmaps_its_probed_allocator_goes_on() {
    goes_on("a_job_that_unmaps_its_probed_allocator_goes_on", "unload");
}
