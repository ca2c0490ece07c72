//! Windows of probes on allocators: what they say is right, and the job is none the worse.

use std::{
    ffi::OsString,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use trainprof_tests::{
    Watch, Workload,
    cgroup::Group,
    env::{has_tool, in_vm, left_out_in_vm, python_with, root_test, skip},
    product::trainprof,
    report::{Report, f64_at, u64_at},
    text::Text,
    workload::{BESIDE, program},
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
    built("allocate-shared", seconds, extra, preload)
}

fn built(name: &str, seconds: u32, extra: &[&str], preload: Option<&str>) -> Workload {
    let mut command = Command::new(program(name));
    command
        .args(["-", &seconds.to_string(), "2000"])
        .args(extra);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    Workload::spawn(command)
}

/// Nothing but its program, for so many seconds, with so much work between two allocations.
fn of_work(name: &str, seconds: u32, work: u32) -> Workload {
    let mut command = Command::new(program(name));
    command.args(["-", &seconds.to_string(), &work.to_string()]);
    Workload::spawn(command)
}

fn windows(report: &Report) -> u64 {
    report.u64("/memory/allocation/windows")
}

/// Within a tenth, or twice the error that the report itself states.
fn close(what: &str, truth: f64, told: f64, error: f64) {
    within(2.0, what, truth, told, error);
}

/// Within a tenth, or so many times the error that the report itself states.
fn within(times: f64, what: &str, truth: f64, told: f64, error: f64) {
    let allowed = (truth * 0.1).max(times * error);
    eprintln!("{what}: {told} told, {truth} true, {error} stated as its error");
    assert!(
        (told - truth).abs() <= allowed,
        "{what}: {told} told, {truth} true, {error} stated as its error"
    );
}

fn rates_are_right(name: &str, preload: Option<&str>, allocator: &str) {
    if let Some(library) = preload
        && !Path::new(library).exists()
    {
        return skip(name, &format!("no {library}: `cargo xtask setup --test`"));
    }
    let leak: &[&str] = if preload.is_none() {
        &["-l", "50"]
    } else {
        &[]
    };
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let mut workload = workload(24, leak, preload);
    let pid = workload.pid();
    let text = Text::of(pid, allocator);
    let before = text.bytes();
    let watch = Watch::attach(pid, &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    // A window that was open at the end is closed by the kernel, after trainprof has ended if that takes it long.
    let gone = text.becomes(Duration::from_secs(5), |now| now == before);
    assert!(gone, "traps are left in the job's code");
    let truth = workload.finish();
    assert!(windows(&report) >= 1, "{:?}", report.at("/cost"));
    let told = report.f64("/memory/allocs_per_s");
    let error = report.f64("/memory/allocation/allocs_per_s_error");
    close(
        "allocations a second",
        f64_at(&truth, "/calls_per_s"),
        told,
        error,
    );
    // Who states a larger one says nothing.
    assert!(error < 0.4 * told, "{told} ± {error}");
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
    // Three of four calls come from one function. Where few stacks were taken, another may be told in front of it, within the
    // errors that are stated.
    let sites = report.rows("/memory/sites");
    let site = sites
        .iter()
        .find(|site| site["function"] == "quick" && site["module"] == "allocate-shared")
        .unwrap_or_else(|| panic!("its site among {sites:?}"));
    for key in ["stack", "allocs_per_s", "bytes_per_s", "kept_bytes_per_s"] {
        assert!(site.get(key).is_some(), "no {key}: {site}");
    }
    let (least, most) = (
        f64_at(site, "/share") + f64_at(site, "/share_error"),
        f64_at(&sites[0], "/share") - f64_at(&sites[0], "/share_error"),
    );
    assert!(least >= most, "not in front: {sites:?}");
    if !leak.is_empty() {
        kept_is_right(&report, f64_at(&truth, "/leaked_per_s"));
    }
    close(
        "its share",
        0.75,
        f64_at(site, "/share"),
        f64_at(site, "/share_error").max(0.02),
    );
    if report.u64("/memory/allocation/paired_windows") > 0 {
        close(
            "given back at once",
            0.75,
            report.f64("/memory/allocation/lifetimes/freed_within_1ms_share"),
            report.f64("/memory/allocation/lifetimes/error").max(0.02),
        );
    }
    sizes_are_right(&report, &truth);
    errors_are_told(&report);
    // Both pauses were measured, and are none that a job would notice.
    for pause in ["open_pause_ms", "close_pause_ms"] {
        let ms = report.f64(&format!("/cost/windows/{pause}"));
        assert!((0.0..50.0).contains(&ms), "{pause}: {ms}");
    }
    let worst = report.f64("/cost/windows/worst_thread_share");
    assert!(worst <= 0.01, "{worst} added to a thread");
}

/// The workload's two sizes have their shares, and there is nothing else to speak of.
fn sizes_are_right(report: &Report, truth: &serde_json::Value) {
    let rows = report.rows("/memory/allocation/sizes");
    let (calls, quick) = (u64_at(truth, "/calls"), u64_at(truth, "/quick"));
    let counted: u64 = rows.iter().map(|row| u64_at(row, "/count")).sum();
    assert!(counted > 1_000, "{counted} calls tell nothing");
    for (size, truly) in [(64, quick), (5_000, calls - quick)] {
        let truly = truly as f64 / calls as f64;
        let of_size = rows.iter().filter(|row| {
            let from = u64_at(row, "/from_bytes");
            (from..2 * from).contains(&size)
        });
        let (mut count, mut share) = (0, 0.0);
        for row in of_size {
            count += u64_at(row, "/count");
            share += f64_at(row, "/share");
        }
        let by_count = count as f64 / counted as f64;
        assert!(
            (share - truly).abs() < 0.02 && (by_count - share).abs() < 1e-5,
            "{size} bytes: a share of {share}, by count {by_count}, truly {truly}: {rows:?}"
        );
    }
}

/// Each estimate has its error, and that of a rate is smaller than it is.
fn errors_are_told(report: &Report) {
    let sizes = report.rows("/memory/allocation/sizes");
    let of_64 = sizes.iter().position(|row| row["from_bytes"] == 64);
    let of_64 = of_64.expect("blocks of 64 bytes");
    let mut keys = vec![
        "/memory/allocation/processes/0/bytes_per_s".to_owned(),
        format!("/memory/allocation/sizes/{of_64}/share"),
        "/memory/sites/0/bytes_per_s".to_owned(),
    ];
    if report.u64("/memory/allocation/paired_windows") > 0 {
        keys.push("/memory/churn_share".to_owned());
        keys.push("/memory/allocation/lifetimes/freed_in_window_share".to_owned());
    }
    for key in keys {
        let (told, error) = (report.f64(&key), report.f64(&format!("{key}_error")));
        // What is given back before its window ends is little in short ones: a share near nothing may have an error beyond itself.
        let most = if key.ends_with("share") {
            told.max(0.3)
        } else {
            told
        };
        assert!(error > 0.0 && error < most, "{key}: {told} ± {error}");
    }
}

/// Shares of calls for blocks of this size and up to twice as many bytes.
fn share_of(rows: &serde_json::Value, size: u64) -> f64 {
    let rows = rows.as_array().expect("sizes");
    let of_size = rows.iter().filter(|row| {
        let from = u64_at(row, "/from_bytes");
        (from..2 * from).contains(&size)
    });
    of_size.map(|row| f64_at(row, "/share")).sum()
}

/// Two threads that ask for blocks of two sizes, at two rates.
#[test]
fn threads_are_told_apart_by_rate_and_size() {
    let name = "threads_are_told_apart_by_rate_and_size";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let mut workload = workload(24, &["-t", "2", "-o", "640"], None);
    let watch = Watch::attach(workload.pid(), &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    let truth = workload.finish();
    let process = report.at("/memory/allocation/processes/0");
    let rows = process["by_thread"].as_array().expect("threads");
    assert_eq!(rows.len(), 2, "{rows:?}");
    let (mut calls, mut counted) = (0.0, 0);
    for (thread, size) in truth["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .zip([64, 640])
    {
        let row = rows.iter().find(|row| row["tid"] == thread["tid"]);
        let row = row.expect("its row");
        for (key, truth) in [
            ("allocs_per_s", "/calls_per_s"),
            ("bytes_per_s", "/bytes_per_s"),
        ] {
            // Four of them: one is beyond twice its error every few runs.
            within(
                3.0,
                &format!("{key} of the thread with {size} bytes"),
                f64_at(thread, truth),
                f64_at(row, &format!("/{key}")),
                f64_at(row, &format!("/{key}_error")),
            );
        }
        let (small, other) = (
            share_of(&row["sizes"], size),
            share_of(&row["sizes"], 704 - size),
        );
        assert!(
            (small - 0.75).abs() < 0.02 && other < 0.01,
            "{small} {other}: {row}"
        );
        calls += f64_at(row, "/allocs_per_s");
        let sizes = row["sizes"].as_array().expect("sizes");
        counted += sizes.iter().map(|row| u64_at(row, "/count")).sum::<u64>();
    }
    let all = f64_at(process, "/allocs_per_s");
    assert!(
        (calls / all - 1.0).abs() < 1e-3,
        "{calls} of {all} calls a second"
    );
    let sizes = process["sizes"].as_array().expect("sizes");
    let of_process: u64 = sizes.iter().map(|row| u64_at(row, "/count")).sum();
    assert_eq!(counted, of_process, "{process}");
    for size in [64, 640, 5_000] {
        let (told, job) = (
            share_of(&process["sizes"], size),
            report.at("/memory/allocation/sizes"),
        );
        assert!(
            told > 0.1 && (told - share_of(job, size)).abs() < 1e-5,
            "{size}: {told}, {job}"
        );
    }
}

/// What the process keeps is kept by the one call site that keeps anything.
fn kept_is_right(report: &Report, truth: f64) {
    let sites = report.rows("/memory/sites");
    let of = |name: &str| {
        let site = sites.iter().find(|site| site["function"] == name);
        site.expect("its site")["kept_bytes_per_s"].as_f64()
    };
    assert!(truth > 1e6, "{truth} bytes a second do not tell anything");
    let kept = of("kept").expect("what `kept` keeps");
    // Of 5 000 bytes the first and the allocator's own at the end are touched: some pages between are not.
    assert!(
        (0.65..1.2).contains(&(kept / truth)),
        "{kept} bytes a second kept by its site, truly {truth}"
    );
    let quick = of("quick");
    assert!(quick.is_none_or(|rate| rate < 0.05 * truth), "{quick:?}");
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

/// Three of four blocks come from a function of its own. It is not probed in each window, and counts by how often it is called all the same.
#[test]
fn jemallocs_own_functions_are_counted() {
    let name = "jemallocs_own_functions_are_counted";
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !Path::new(library).exists() {
        return skip(name, &format!("no {library}: `cargo xtask setup --test`"));
    }
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let mut workload = workload(30, &["-x"], Some(library));
    let watch = Watch::attach(workload.pid(), &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    let truth = workload.finish();
    close(
        "allocations a second",
        f64_at(&truth, "/calls_per_s"),
        report.f64("/memory/allocs_per_s"),
        report.f64("/memory/allocation/allocs_per_s_error"),
    );
    let functions = report.at("/memory/allocation/processes/0/functions");
    let counted = |of: &str| functions[of].as_u64().unwrap_or(0);
    assert!(
        counted("malloc") > 0 && counted("mallocx") > 0,
        "{functions}"
    );
    let sizes = report.rows("/memory/allocation/sizes");
    let small = sizes.iter().find(|row| row["from_bytes"] == 64);
    let small = small.expect("blocks of 64 bytes");
    let truly = u64_at(&truth, "/quick") as f64 / u64_at(&truth, "/calls") as f64;
    close(
        "blocks of 64 bytes",
        truly,
        f64_at(small, "/share"),
        f64_at(small, "/share_error"),
    );
    let error = f64_at(small, "/share_error");
    assert!(error < 0.15, "{small}");
    // From the second or third paired window on it is known that it asks for much.
    if report.u64("/memory/allocation/paired_windows") > 2 {
        close(
            "given back at once",
            truly,
            report.f64("/memory/allocation/lifetimes/freed_within_1ms_share"),
            report.f64("/memory/allocation/lifetimes/error").max(0.02),
        );
    }
    let sites = report.rows("/memory/sites");
    let site = sites.iter().find(|site| site["function"] == "quick");
    let site = site.unwrap_or_else(|| panic!("its site among {sites:?}"));
    assert_eq!(site["allocator"], "mallocx");
    close(
        "its call site",
        truly,
        f64_at(site, "/share"),
        f64_at(site, "/share_error"),
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

/// Three of four blocks are given back at once. The fourth lives for so many rounds: for longer than a millisecond, or not.
#[test]
fn lifetimes_are_those_of_the_blocks() {
    let name = "lifetimes_are_those_of_the_blocks";
    let Some(_turn) = root_test(name) else { return };
    let (small, large) = (3.0 * 64.0, 5_000.0);
    // Four rounds take an emulated processor half a millisecond, some a whole one.
    let few = if in_vm() { "1" } else { "4" };
    // Calls and bytes that live for less than a millisecond.
    for (rounds, share, bytes_share) in [("4096", 0.75, small / (small + large)), (few, 1.0, 1.0)] {
        let mut workload = workload(8, &["-k", rounds], None);
        // Windows that follow blocks are rare: here all of them are followed.
        let watch = Watch::attach(workload.pid(), &options(&["--alloc", "full"]));
        workload.go();
        workload.wait_done();
        let report = watch.stop().report();
        let truth = workload.finish();
        let lived = f64_at(&truth, "/kept_s");
        let is_quick = share == 1.0;
        assert!(
            if is_quick {
                lived < 0.5e-3
            } else {
                lived > 3e-3
            },
            "{rounds} rounds take {lived} s"
        );
        let paired = report.u64("/memory/allocation/paired_windows");
        assert!(paired >= 1, "{:?}", report.at("/memory/allocation"));
        let told = report.at("/memory/allocation/lifetimes");
        eprintln!("{rounds} rounds, {lived} s: {told}");
        let followed = u64_at(told, "/followed");
        assert!(followed >= 200, "{told}");
        let allowed = (2.0 * f64_at(told, "/error")).max(0.02);
        for (key, truly) in [
            ("freed_within_1ms_share", share),
            ("freed_within_1ms_bytes_share", bytes_share),
        ] {
            let found = f64_at(told, &format!("/{key}"));
            assert!(
                (found - truly).abs() <= allowed,
                "{rounds} rounds: {key} {found}, truly {truly}: {told}"
            );
        }
        let churn = report.f64("/memory/churn_share");
        let in_window = f64_at(told, "/freed_in_window_bytes_share");
        assert!((churn - in_window).abs() < 1e-5, "{churn} {in_window}");
        assert!(!is_quick || churn > 0.9, "{churn}: {told}");
    }
}

#[test]
fn where_all_is_seen_each_call_is_told_to_the_jobs_end() {
    let name = "where_all_is_seen_each_call_is_told_to_the_jobs_end";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let mut workload = workload(2, &["-t", "2"], None);
    let text = Text::of(workload.pid(), "libc.so");
    let before = text.bytes();
    let watch = Watch::attach(workload.pid(), &options(&["--alloc", "full"]));
    let trapped = text.trapped(&before, Duration::from_secs(60));
    assert!(trapped, "no probe in libc.so");
    // The first is in: so are the others soon.
    std::thread::sleep(Duration::from_secs(2));
    workload.go();
    workload.wait_done();
    let truth = workload.finish();
    // The job has ended by itself: nothing of it is there to be asked any more.
    let report = watch.wait().report();
    let rows = report.rows("/memory/allocation/processes");
    let calls = rows.iter().map(|row| u64_at(row, "/functions/malloc"));
    let (told, truly): (u64, u64) = (calls.sum(), u64_at(&truth, "/calls"));
    eprintln!("{told} told, {truly} true");
    assert_eq!(rows.len(), 1, "{:?}", report.at("/memory/allocation"));
    // It counts while it tells; the program's own start and end allocate too.
    assert!(
        (truly..=truly + BESIDE).contains(&told),
        "{told} told, {truly} true"
    );
}

#[test]
fn musl_is_counted_right() {
    let name = "musl_is_counted_right";
    if !has_tool("musl-gcc") {
        return skip(name, "no musl-gcc: `cargo xtask setup --test`");
    }
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a processor of its own") {
        return;
    }
    // Its loader is its C library; linked statically, the program itself has the allocator.
    let builds = [
        ("allocate-musl", "libc.so"),
        ("allocate-musl-static", "allocate-musl-static"),
    ];
    // One after the other: side by side one of them may have no window in that time.
    for (what, allocator) in builds {
        let mut job = built(what, 24, &[], None);
        let pid = job.pid();
        let watch = Watch::attach(pid, &options(&[]));
        job.go();
        job.wait_done();
        let report = watch.stop().report();
        let truth = job.finish();
        let of_job = |rows: &str| {
            let row = report.rows(rows).iter().find(|row| row["pid"] == pid);
            row.unwrap_or_else(|| panic!("nothing of {what} in {rows}"))
                .clone()
        };
        let row = of_job("/memory/allocation/processes");
        close(
            what,
            f64_at(&truth, "/calls_per_s"),
            f64_at(&row, "/allocs_per_s"),
            f64_at(&row, "/allocs_per_s_error"),
        );
        assert_eq!(row["allocator"], allocator);
        let site = of_job("/memory/sites");
        assert_eq!(site["function"], "quick", "{site}");
        assert_eq!(site["module"], what, "{site}");
    }
}

/// Calls and bytes of one turn of `arrays.py`, and calls by size, counted in full by a library of our own.
fn counted(python: &Path) -> (f64, f64, Vec<(u64, f64)>) {
    let output = Command::new(python)
        .arg(program("arrays.py"))
        .args(["-", "count"])
        .env("LD_PRELOAD", program("counter.so"))
        .output()
        .expect("Python");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let truth: serde_json::Value = serde_json::from_slice(&output.stdout).expect("counts");
    let sizes = truth["sizes_per_turn"].as_object().expect("sizes");
    let turn = (
        f64_at(&truth, "/calls_per_turn"),
        f64_at(&truth, "/bytes_per_turn"),
        (sizes.iter())
            .map(|(from, n)| (from.parse().expect("bytes"), n.as_f64().expect("calls")))
            .collect(),
    );
    assert!(turn.0 >= 3.0, "{truth}");
    turn
}

/// A window is planned by how often the job called so far, and ends early where it calls a hundred times as often.
#[test]
fn a_window_ends_when_a_thread_has_had_enough() {
    let name = "a_window_ends_when_a_thread_has_had_enough";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    let mut workload = workload(25, &["-j", "12"], None);
    let watch = Watch::attach(workload.pid(), &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    workload.finish();
    let of = |key: &str| report.f64(&format!("/cost/windows/{key}"));
    let (windows, capped) = (of("count"), of("capped"));
    eprintln!(
        "{windows} windows, {capped} of them ended early, {} hits",
        of("hits")
    );
    assert!(capped >= 1.0, "{}", report.at("/cost/windows"));
    // A hundredth of ten seconds for one thread, of which a first window is planned to take half.
    let took_s = of("hits") * of("hit_ns") / 1e9;
    assert!(took_s < 0.1 * windows, "{}", report.at("/cost/windows"));
    let stepped = of("stepped_hit_ns") / of("hit_ns");
    assert!(
        (1.0..200.0).contains(&stepped),
        "{}",
        report.at("/cost/windows")
    );
}

#[test]
fn pythons_arrays_are_counted_right() {
    let name = "pythons_arrays_are_counted_right";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "numpy") {
        return;
    }
    let Some(python) = python_with("numpy") else {
        return skip(name, "no Python with numpy");
    };
    let (calls, bytes, sizes) = counted(&python);
    // What else runs here does not decide how soon it has used enough CPU time for a window.
    let group = Group::new("cpu", "arrays");
    group.set_heaviest();
    let mut workload = Workload::python(&python, "arrays.py", ["18"]);
    group.put(workload.pid());
    let watch = Watch::attach(workload.pid(), &options(&[]));
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    let truth = workload.finish();
    let turns = f64_at(&truth, "/turns_per_s");
    within(
        2.0,
        "allocations a second",
        calls * turns,
        report.f64("/memory/allocs_per_s"),
        report.f64("/memory/allocation/allocs_per_s_error"),
    );
    within(
        2.0,
        "bytes a second",
        bytes * turns,
        report.f64("/memory/alloc_bytes_per_s"),
        report.f64("/memory/allocation/alloc_bytes_per_s_error"),
    );
    let site = report.at("/memory/sites/0");
    let module = site["module"].as_str().unwrap_or_default();
    assert!(module.starts_with("_multiarray_umath."), "{site}");
    let rows = report.rows("/memory/allocation/sizes");
    for (from, n) in sizes {
        let row = rows.iter().find(|row| u64_at(row, "/from_bytes") == from);
        let told = row.map_or(0.0, |row| f64_at(row, "/share"));
        assert!(
            (told - n / calls).abs() < 0.02,
            "{from} bytes: {told} of the calls, truly {}",
            n / calls
        );
    }
    // Of the three arrays of a turn the smallest, half as large as the others, stays.
    let lived = f64_at(&truth, "/kept_s");
    assert!(lived > 2e-3, "{lived} s for {truth}");
    assert!(1.0 / turns < 0.5e-3, "{turns} turns a second");
    assert!(
        report.u64("/memory/allocation/paired_windows") > 0,
        "{}",
        report.at("/memory/allocation")
    );
    let told = report.at("/memory/allocation/lifetimes");
    let allowed = (2.0 * f64_at(told, "/error")).max(0.02);
    for (key, truly) in [
        ("freed_within_1ms_share", 2.0 / 3.0),
        ("freed_within_1ms_bytes_share", 4.0 / 5.0),
    ] {
        let found = f64_at(told, &format!("/{key}"));
        assert!(
            (found - truly).abs() <= allowed,
            "{key} {found}, truly {truly}: {told}"
        );
    }
}

#[test]
fn a_job_that_ends_in_a_window_ends_the_watch() {
    let name = "a_job_that_ends_in_a_window_ends_the_watch";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    // It exits while every call is probed, and is killed in the middle of a short window.
    for mode in ["full", "auto"] {
        let mut workload = workload(if mode == "full" { 2 } else { 40 }, &[], None);
        let text = Text::of(workload.pid(), "libc.so");
        let before = text.bytes();
        let watch = Watch::attach(workload.pid(), &options(&["--alloc", mode]));
        workload.go();
        assert!(
            text.trapped(&before, Duration::from_secs(30)),
            "{mode}: no probe was attached"
        );
        if mode == "full" {
            workload.wait_done();
            assert!(before != text.bytes(), "the probes are still there");
            workload.finish();
        } else {
            workload.kill();
        }
        let ended = watch.wait();
        assert_eq!(ended.code(), 0, "{mode}: {}", ended.stderr);
        let report = ended.report();
        assert_eq!(report.at("/ended"), "job-ended", "{mode}");
        assert!(report.lost() == 0, "{mode}: {:?}", report.at("/coverage"));
        // What was seen until then is told, and a recording tells the same.
        let cpu = report.f64("/threads/0/on_cpu_s");
        assert!(cpu > 0.05, "{mode}: {cpu} s");
        let recording = ended.recording.to_string_lossy().into_owned();
        let again = trainprof(["report", &recording, "--format", "json"]);
        assert_eq!(again.code(), 0, "{mode}: {}", again.stderr);
        assert_eq!(again.stdout.as_bytes(), ended.json, "{mode}");
    }
}

#[test]
fn a_stripped_static_program_has_a_reason() {
    let name = "a_stripped_static_program_has_a_reason";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "costs that are known within seconds") {
        return;
    }
    let mut workload = of_work("allocate-stripped", 9, 2_000);
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
    // What ends beside trainprof is put off by others that want the CPUs: then it may be in the middle of anything.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let times = if in_vm() { 1 } else { 6 };
        let left = (0..times).find_map(|_| left_by_a_killed_one());
        over.store(true, Ordering::Relaxed);
        assert_eq!(left, None, "traps are left in the job's code");
    });
}

/// Kills trainprof when its probes are in; what is left of them in the job.
fn left_by_a_killed_one() -> Option<Vec<String>> {
    let mut workload = workload(90, &[], None);
    let pid = workload.pid();
    let text = Text::of(pid, "libc.so");
    let before = text.bytes();
    let watch = Watch::attach(pid, &options(&["--alloc", "full"]));
    workload.go();
    if !text.trapped(&before, Duration::from_secs(20)) {
        return Some(vec!["no probe was attached".to_owned()]);
    }
    watch.signal(libc::SIGKILL);
    // The kernel takes them away one by one: tens of milliseconds each, seconds on an emulated processor.
    let gone = text.becomes(Duration::from_secs(60), |now| now == before);
    let alive = workload.is_alive();
    let differ = (before.iter().zip(text.bytes()).enumerate())
        .filter(|(_, (before, now))| *before != now)
        .map(|(at, (before, now))| format!("{at:#x}: {before:#x}, now {now:#x}"))
        .take(8);
    let differ: Vec<String> = differ.collect();
    workload.kill();
    (!gone || !alive).then_some(differ)
}

#[test]
fn a_job_that_forks_loads_libraries_and_executes_is_unharmed() {
    let name = "a_job_that_forks_loads_libraries_and_executes_is_unharmed";
    let Some(_turn) = root_test(name) else { return };
    // jemalloc's own thread-local memory keeps it from being loaded late.
    let library = program("other.so");
    let library = library.to_str().expect("a path that is text");
    for mode in ["auto", "full"] {
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
