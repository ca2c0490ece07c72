//! Windows of probes on allocators: what they say is right, and the job is none the worse.

use std::{
    ffi::OsString,
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use trainprof_tests::{
    Watch, Workload,
    env::{left_out_in_vm, root_test, skip},
    report::{Report, f64_at},
    workload::program,
};

/// Generous, so that windows open soon and often: the limit for each thread holds all the same.
const BUDGET: &str = "25%";

fn options(extra: &[&str]) -> Vec<OsString> {
    ["--overhead-budget", BUDGET, "--gpu", "off"]
        .iter()
        .chain(extra)
        .map(Into::into)
        .collect()
}

/// The workload with the shared C library, for so many seconds.
fn workload(seconds: u32, extra: &[&str], preload: Option<&str>) -> Workload {
    let mut command = Command::new(program("allocate-shared"));
    command
        .args(["-", &seconds.to_string(), "2000"])
        .args(extra);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    Workload::spawn(command)
}

/// What a process has mapped of a library's code, or of its own program's.
struct Text {
    pid: i32,
    ranges: Vec<(u64, u64)>,
}

impl Text {
    fn of(pid: i32, library: &str) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        let ranges = maps
            .lines()
            .filter(|line| line.contains(" r-xp ") && line.contains(library))
            .filter_map(|line| {
                let (start, end) = line.split(' ').next()?.split_once('-')?;
                let hex = |text| u64::from_str_radix(text, 16).ok();
                Some((hex(start)?, hex(end)?))
            })
            .collect::<Vec<_>>();
        assert!(!ranges.is_empty(), "{library} is not mapped");
        Self { pid, ranges }
    }

    fn bytes(&self) -> Vec<u8> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).expect("its memory");
        let mut out = Vec::new();
        for (start, end) in &self.ranges {
            let mut part = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut part, *start).expect("code");
            out.extend(part);
        }
        out
    }

    /// Waits until a breakpoint is in it, or gives up.
    fn trapped(&self, before: &[u8], patience: Duration) -> bool {
        self.becomes(patience, |now| now != before)
    }

    fn becomes(&self, patience: Duration, is: impl Fn(&[u8]) -> bool) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if is(&self.bytes()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

fn windows(report: &Report) -> u64 {
    report.u64("/memory/allocation/windows")
}

/// Within a tenth, or three times the error that the report itself states.
fn close(what: &str, truth: f64, told: f64, error: f64) {
    let allowed = (truth * 0.1).max(3.0 * error);
    assert!(
        (told - truth).abs() <= allowed,
        "{what}: {told} told, {truth} true, {error} stated as its error"
    );
}

fn rates_are_right(name: &str, preload: Option<&str>, allocator: &str) {
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    if let Some(library) = preload
        && !Path::new(library).exists()
    {
        return skip(name, &format!("no {library}: `cargo xtask setup --test`"));
    }
    let mut workload = workload(24, &[], preload);
    let pid = workload.pid();
    let text = Text::of(pid, allocator);
    let before = text.bytes();
    let watch = Watch::attach(pid, &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    assert!(before == text.bytes(), "the job's code is as it was");
    let truth = workload.finish();
    assert!(windows(&report) >= 1, "{:?}", report.at("/cost"));
    close(
        "allocations a second",
        f64_at(&truth, "/calls_per_s"),
        report.f64("/memory/allocs_per_s"),
        report.f64("/memory/allocation/allocs_per_s_error"),
    );
    close(
        "bytes a second",
        f64_at(&truth, "/bytes_per_s"),
        report.f64("/memory/alloc_bytes_per_s"),
        report.f64("/memory/allocation/alloc_bytes_per_s_error"),
    );
    let processes = report.at("/memory/allocation/processes/0/allocator");
    assert!(
        processes
            .as_str()
            .is_some_and(|name| name.contains(allocator)),
        "{processes:?}"
    );
    // Three of four calls come from one function.
    let site = report.at("/memory/sites/0");
    assert_eq!(site["function"], "quick", "{site:?}");
    assert_eq!(site["module"], "allocate-shared", "{site:?}");
    close(
        "its share",
        0.75,
        site["share"].as_f64().expect("a share"),
        0.05,
    );
    if report.u64("/memory/allocation/paired_windows") > 0 {
        close(
            "given back at once",
            0.75,
            report.f64("/memory/allocation/lifetimes/freed_within_1ms_share"),
            report.f64("/memory/allocation/lifetimes/error").max(0.02),
        );
    }
    let worst = report.f64("/cost/windows/worst_thread_share");
    assert!(worst <= 0.012, "{worst} added to a thread");
}

#[test]
fn glibc_is_counted_right() {
    rates_are_right("glibc_is_counted_right", None, "libc.so");
}

#[test]
fn jemalloc_is_counted_right() {
    rates_are_right(
        "jemalloc_is_counted_right",
        Some("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
        "libjemalloc",
    );
}

#[test]
fn tcmalloc_is_counted_right() {
    rates_are_right(
        "tcmalloc_is_counted_right",
        Some("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
        "libtcmalloc",
    );
}

#[test]
fn a_stripped_static_program_has_a_reason() {
    let name = "a_stripped_static_program_has_a_reason";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "costs that are known within seconds") {
        return;
    }
    let mut command = Command::new(program("allocate-stripped"));
    command.args(["-", "9", "2000"]);
    let mut workload = Workload::spawn(command);
    let watch = Watch::attach(workload.pid(), &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    workload.finish();
    assert!(report.at("/memory/allocs_per_s").is_null());
    let missing = report.at("/coverage/missing").to_string();
    assert!(missing.contains("statically and stripped"), "{missing}");
}

#[test]
fn being_killed_in_a_window_leaves_no_trap() {
    let name = "being_killed_in_a_window_leaves_no_trap";
    let Some(_turn) = root_test(name) else { return };
    let mut workload = workload(40, &[], None);
    let pid = workload.pid();
    let text = Text::of(pid, "libc.so");
    let before = text.bytes();
    let watch = Watch::attach(pid, &options(&["--alloc", "full"]));
    workload.go();
    assert!(
        text.trapped(&before, Duration::from_secs(20)),
        "no probe was attached"
    );
    watch.signal(libc::SIGKILL);
    assert!(
        // The kernel takes them away one by one: tens of milliseconds each, seconds on an emulated processor.
        text.becomes(Duration::from_secs(60), |now| now == before),
        "traps are left in the job's code"
    );
    assert!(workload.is_alive());
    workload.kill();
}

#[test]
fn a_job_that_forks_loads_libraries_and_executes_is_unharmed() {
    let name = "a_job_that_forks_loads_libraries_and_executes_is_unharmed";
    let Some(_turn) = root_test(name) else { return };
    for mode in ["auto", "full"] {
        let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
        let mut workload = workload(8, &["-t", "2", "-f", "-d", library], None);
        let watch = Watch::attach(workload.pid(), &options(&["--alloc", mode]));
        workload.go();
        workload.wait_done();
        let finished = watch.stop();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        workload.finish();
    }
}

#[test]
fn every_call_is_seen_when_that_is_asked_for() {
    let name = "every_call_is_seen_when_that_is_asked_for";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let mut workload = workload(8, &[], None);
    let watch = Watch::attach(workload.pid(), &options(&["--alloc", "full"]));
    workload.go();
    workload.wait_done();
    let finished = watch.stop();
    assert!(
        finished.stderr.contains("--alloc full"),
        "{}",
        finished.stderr
    );
    let report = finished.report();
    workload.finish();
    let share = report.f64("/memory/allocation/lifetimes/freed_within_1ms_share");
    assert!((share - 0.75).abs() < 0.05, "{share}");
}

#[test]
fn no_window_opens_when_that_is_asked_for() {
    let name = "no_window_opens_when_that_is_asked_for";
    let Some(_turn) = root_test(name) else { return };
    let mut workload = workload(5, &[], None);
    let text = Text::of(workload.pid(), "libc.so");
    let before = text.bytes();
    let watch = Watch::attach(workload.pid(), &options(&["--alloc", "off"]));
    workload.go();
    assert!(!text.trapped(&before, Duration::from_secs(4)));
    workload.wait_done();
    let report = watch.stop().report();
    workload.finish();
    assert!(report.at("/memory/allocation").is_null());
    assert!(report.at("/cost/windows").is_null());
}
