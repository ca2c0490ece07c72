//! Opens, reads, stats and listings of real files against what the workload counted.

use std::os::unix::fs::symlink;

use serde_json::Value;
use trainprof_common::fileset::EXT_BYTES;
use trainprof_tests::env::{in_vm, left_out_in_vm, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

/// Everything that a files workload counts, in total and per directory.
fn check_all(seen: &Observed) -> Checks {
    let mut checks = Checks::new();
    let Observed { truth, report, .. } = seen;
    checks.nothing_lost(report);
    let total = &truth["total"];
    checks.operation(report, "open", &total["open"], false);
    checks.operation(report, "read", &total["read"], true);
    checks.operation(report, "close", &total["close"], false);
    checks.operation(report, "stat", &total["stat"], false);
    checks.operation(report, "getdents", &total["getdents"], true);
    // One process made all of them.
    let process = report.process(u64_at(truth, "/pid")).expect("its row");
    for name in ["open", "read", "close", "stat", "getdents"] {
        // For opens bytes are the files' sizes.
        let bytes = (name == "read").then_some("bytes");
        for what in ["count", "errors"].into_iter().chain(bytes) {
            let truly = total[name][what].as_u64().unwrap_or(0);
            let path = format!("/operations/{name}/{what}");
            let told = process.pointer(&path).and_then(Value::as_u64);
            checks.exact(&path, truly, told.unwrap_or(0));
        }
    }
    let opened = u64_at(total, "/open/count") - u64_at(total, "/open/errors");
    checks.exact("io.opens", opened, report.u64("/io/opens"));
    checks.exact(
        "io.reads",
        u64_at(total, "/read/count"),
        report.u64("/io/reads"),
    );
    checks.exact(
        "io.bytes_read",
        u64_at(total, "/read/bytes"),
        report.u64("/io/bytes_read"),
    );
    checks.exact("io.writes", 0, report.u64("/io/writes"));
    checks.exact("io.bytes_written", 0, report.u64("/io/bytes_written"));
    for (path, counts) in truth["dirs"].as_object().expect("directories of the truth") {
        let opens = u64_at(counts, "/open/count") - u64_at(counts, "/open/errors");
        let (reads, bytes) = (u64_at(counts, "/read/count"), u64_at(counts, "/read/bytes"));
        checks.directory(report, path, opens, Some(reads), bytes);
        let row = report.directory(path).unwrap_or(&Value::Null);
        for (name, truly) in counts.as_object().expect("operations of a directory") {
            for what in ["count", "errors"] {
                let pointer = format!("/operations/{name}/{what}");
                let told = row.pointer(&pointer).and_then(Value::as_u64);
                let truly = truly[what].as_u64().unwrap_or(0);
                checks.exact(&format!("{path}: {pointer}"), truly, told.unwrap_or(0));
            }
        }
    }
    // What the job did is what it did on all file systems, and its reads and writes are of files of all extensions.
    for (name, all) in report.at("/io/operations").as_object().expect("operations") {
        let pointer = format!("/operations/{name}/count");
        let of = |row: &Value| row.pointer(&pointer).and_then(Value::as_u64);
        let sum_of = |rows| -> u64 { report.rows(rows).iter().filter_map(of).sum() };
        if matches!(name.as_str(), "read" | "write") {
            let sum = sum_of("/io/extensions");
            checks.exact(
                &format!("extensions: {pointer}"),
                u64_at(all, "/count"),
                sum,
            );
        }
        let sum = sum_of("/io/filesystems");
        checks.exact(
            &format!("filesystems: {pointer}"),
            u64_at(all, "/count"),
            sum,
        );
    }
    checks
}

#[test]
fn each_read_call_is_counted_with_its_bytes() {
    let Some(_turn) = root_test("each_read_call_is_counted_with_its_bytes") else {
        return;
    };
    let data = Data::new();
    let small = data.files("small", 200, "jpg", |i| 500 + 37 * i);
    let large = data.files("large", 3, "bin", |i| 3_000_000 + i);
    for mode in ["read", "pread", "readv", "preadv", "preadv2", "mix"] {
        eprintln!("mode {mode}");
        let seen = observe("files", &os(&[&"-m", &mode, &small, &large]));
        check_all(&seen).done();
    }
}

#[test]
fn listings_stats_and_failures_are_counted() {
    let Some(_turn) = root_test("listings_stats_and_failures_are_counted") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 120, "", |i| 100 + i);
    let b = data.files("b", 7, "", |i| 9_000 + i);
    let seen = observe("files", &os(&[&"-l", &"-e", &"-s", &"-r", &"3", &a, &b]));
    let mut checks = check_all(&seen);
    // A directory that is listed is no file, and files in it are none the less.
    for (folder, mean) in [(&a, 159.5), (&b, 9_003.0)] {
        let row = seen.report.directory(&folder.to_string_lossy());
        let got = row.map(|row| f64_at(row, "/mean_file_bytes"));
        checks.that(got.is_some_and(|got| (got - mean).abs() < 1.0), || {
            format!("mean size {got:?}, truth {mean}")
        });
    }
    let share = seen.report.f64("/io/small_file_share");
    checks.that(share > 0.999, || format!("small_file_share {share}"));
    checks.done();
}

#[test]
fn threads_add_up() {
    let Some(_turn) = root_test("threads_add_up") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 100, "", |i| 2_000 + i);
    let b = data.files("b", 100, "", |i| 70_000 + i);
    let seen = observe("files", &os(&[&"-t", &"8", &"-r", &"5", &"-s", &a, &b]));
    let mut checks = check_all(&seen);
    let pid = u64_at(&seen.truth, "/pid");
    let process = seen.report.process(pid).expect("a row of the process");
    let total = &seen.truth["total"];
    checks.exact(
        "process reads",
        u64_at(total, "/read/count"),
        u64_at(process, "/io/reads"),
    );
    checks.exact(
        "process bytes",
        u64_at(total, "/read/bytes"),
        u64_at(process, "/io/bytes_read"),
    );
    checks.exact(
        "process opens",
        u64_at(total, "/open/count"),
        u64_at(process, "/io/opens"),
    );
    checks.done();
}

#[test]
fn many_directories_and_files_stay_exact() {
    let Some(_turn) = root_test("many_directories_and_files_stay_exact") else {
        return;
    };
    let data = Data::new();
    let folders: Vec<_> = (0..300)
        .map(|d| data.files(&format!("class-{d:03}"), 10, "png", |i| 200 + 10 * d + i))
        .collect();
    let mut args = os(&[&"-r", &"2"]);
    args.extend(folders.iter().map(|folder| folder.clone().into_os_string()));
    check_all(&observe("files", &args)).done();
}

#[test]
fn sizes_and_extensions_are_known() {
    let Some(_turn) = root_test("sizes_and_extensions_are_known") else {
        return;
    };
    let data = Data::new();
    let jpg = data.files("photos", 50, "jpg", |i| 1_000 + 2 * i); // mean 1 049
    let bin = data.files("shards", 2, "bin", |_| 5_000_000);
    let seen = observe("files", &os(&[&jpg, &bin]));
    let mut checks = check_all(&seen);
    let report = &seen.report;
    for (folder, mean) in [(&jpg, 1_049.0), (&bin, 5_000_000.0)] {
        let path = folder.to_string_lossy();
        if let Some(row) = report.directory(&path) {
            let got = f64_at(row, "/mean_file_bytes");
            checks.that((got - mean).abs() < 1.0, || {
                format!("{path}: mean {got}, truth {mean}")
            });
        }
    }
    for (extension, opens, bytes) in [("jpg", 50, 50 * 1_049), ("bin", 2, 10_000_000)] {
        let row = report.rows("/io/extensions").iter().find(|row| {
            row["extension"]
                .as_str()
                .map(|name| name.trim_start_matches('.'))
                == Some(extension)
        });
        match row {
            Some(row) => {
                checks.exact(&format!("{extension} opens"), opens, u64_at(row, "/opens"));
                checks.exact(&format!("{extension} bytes"), bytes, u64_at(row, "/bytes"));
            }
            None => checks.that(false, || {
                format!(
                    "no extension {extension} in {}",
                    report.at("/io/extensions")
                )
            }),
        }
    }
    // 50 of the 52 files are small by any sensible limit, and both shards are not.
    let share = report.f64("/io/small_file_share");
    checks.that((share - 50.0 / 52.0).abs() < 0.01, || {
        format!("small_file_share {share}")
    });
    checks.done();
}

/// Extensions of each length that is told and the next, behind stems that put the dot into every place of the words that
/// the kernel side looks at; a dot at either end of a name makes none.
#[test]
fn extensions_of_every_length_are_told() {
    let Some(_turn) = root_test("extensions_of_every_length_are_told") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("mixed", 0, "", |_| 0);
    let stems = ["a", "abcd", "name.of", "a-name-of-many-letters"];
    let letters = "bcdfghjklmnpqrst";
    let mut names = Vec::new();
    for len in 1..=EXT_BYTES + 1 {
        names.extend(stems.map(|stem| format!("{stem}.{}", &letters[..len])));
    }
    let none = [
        ".b",
        ".bcdfghjk",
        ".bcdfghjklmnp",
        "ends.",
        "longer-ends.",
        "x.20261127",
        "plain",
        "plain-but-long",
    ];
    names.extend(none.map(str::to_owned));
    for name in &names {
        std::fs::write(folder.join(name), b"x").expect("a file of the test's own");
    }
    // Each file is opened, and looked up by its path and by its descriptor.
    let seen = observe("files", &os(&[&"-s", &folder]));
    let mut checks = check_all(&seen);
    let told = |extension: &str, what: &str| {
        let rows = seen.report.rows("/io/extensions");
        let row = rows.iter().find(|row| row["extension"] == extension);
        let count = row.and_then(|row| row.pointer(what)?.as_u64());
        count.unwrap_or(0)
    };
    let opens = |extension: &str| told(extension, "/opens");
    let stats = |extension: &str| told(extension, "/operations/stat/count");
    for len in 1..=EXT_BYTES {
        let extension = &letters[..len];
        checks.exact(extension, stems.len() as u64, opens(extension));
        checks.exact(extension, 2 * stems.len() as u64, stats(extension));
    }
    // The directory itself, which is listed before, is another set.
    let without = (stems.len() + none.len()) as u64;
    checks.exact("none", without, opens(""));
    checks.exact("stats of none", 2 * without, stats(""));
    checks.done();
}

/// What is named by a path with symbolic links in it is where they lead, as what is opened by it.
#[test]
fn links_lead_to_the_directory_itself() {
    let Some(_turn) = root_test("links_lead_to_the_directory_itself") else {
        return;
    };
    let data = Data::new();
    let real = data.files("real", 30, "jpg", |i| 1_000 + i);
    let [absolute, relative] = ["absolute", "relative"].map(|name| real.with_file_name(name));
    symlink(&real, &absolute).expect("a link of the test's own");
    symlink("real", &relative).expect("a link of the test's own");
    let seen = observe("files", &os(&[&"-s", &"-l", &absolute, &relative]));
    let (report, truth) = (&seen.report, &seen.truth);
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let row = report.directory(&real.to_string_lossy());
    for name in ["open", "read", "close", "stat", "getdents"] {
        let told = row.map(|row| u64_at(row, &format!("/operations/{name}/count")));
        let truly = u64_at(truth, &format!("/total/{name}/count"));
        checks.exact(name, truly, told.unwrap_or(0));
    }
    for link in [&absolute, &relative] {
        let row = report.directory(&link.to_string_lossy());
        checks.that(row.is_none(), || format!("a row of a link: {row:?}"));
    }
    checks.done();
}

#[test]
fn cold_reads_are_told_from_cached_ones() {
    let name = "cold_reads_are_told_from_cached_ones";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let folder = data.files("cold", 20, "", |_| 1 << 20);
    let cold = observe("files", &os(&[&"-c", &folder]));
    check_all(&cold).done();
    let ratio = cold.report.f64("/io/cache_hit_ratio");
    assert!(
        ratio < 0.05,
        "every byte came from the device, cache_hit_ratio {ratio}"
    );
    let warm = observe("files", &os(&[&folder]));
    check_all(&warm).done();
    // A host that gives back pages which nobody used lately (DAMON) may take some of them in between.
    let fetched = 512 * u64_at(&warm.truth, "/faults/blocks_fetched");
    let bytes = u64_at(&warm.truth["total"], "/read/bytes");
    let cached = 1.0 - fetched as f64 / bytes as f64;
    let ratio = warm.report.f64("/io/cache_hit_ratio");
    assert!(cached > 0.5, "{fetched} of {bytes} bytes were fetched");
    assert!(
        (ratio - cached).abs() < 0.01,
        "{cached} of the bytes were cached, cache_hit_ratio {ratio}"
    );
}

#[test]
fn direct_reads_count_and_take_as_long_as_they_took() {
    let name = "direct_reads_count_and_take_as_long_as_they_took";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let folder = data.files("direct", 4, "", |_| 16 << 20);
    let seen = observe(
        "files",
        &os(&[&"-d", &"-b", &"1048576", &"-r", &"3", &folder]),
    );
    let mut checks = check_all(&seen);
    checks.operation_seconds(&seen.report, "read", &seen.truth["total"]["read"]);
    checks.done();
}

/// So many calls that their beginnings are hidden, and more descriptors at a time than a thread's cache holds, or closed by another thread.
#[test]
fn files_that_are_held_count_as_closed() {
    let name = "files_that_are_held_count_as_closed";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.files("held", 64, "jpg", |i| 100 + i);
    for who in [&[][..], &["-t"]] {
        let mut args = os(&[&folder, &"3000"]);
        args.extend(os(&who.iter().map(|arg| arg as _).collect::<Vec<_>>()));
        let seen = observe("held", &args);
        let Observed { truth, report, .. } = &seen;
        let mut checks = Checks::new();
        checks.nothing_lost(report);
        let shed = report.rows("/cost/shed");
        let hidden = |row: &Value| row.as_str().is_some_and(|row| row.contains("were hidden"));
        checks.that(in_vm() || shed.iter().any(hidden), || {
            format!("every call was seen to begin: {shed:?}")
        });
        for call in ["open", "read", "close"] {
            checks.operation(report, call, &truth["total"][call], false);
        }
        checks.done();
    }
}

#[test]
fn waits_for_asynchronous_reads_are_waits_for_storage() {
    let name = "waits_for_asynchronous_reads_are_waits_for_storage";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "waits that are timed to a tenth of a millisecond") {
        return;
    }
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let file = data.files("aio", 1, "bin", |_| 64 << 20).join("0.bin");
    let seen = observe("aio", &os(&[&file, &"1000"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let thread = report.thread(u64_at(truth, "/pid")).expect("its row");
    let waits = thread["waits"].as_array().expect("its waits");
    let waited: f64 = waits
        .iter()
        .filter(|wait| wait["kind"] == "uring")
        .map(|wait| f64_at(wait, "/seconds") + f64_at(wait, "/runnable_s"))
        .sum();
    // Off the CPU: until woken, and until on one again.
    checks.near("waits", f64_at(truth, "/aio/seconds"), waited);
    let share = report.f64("/trainer/share/io_wait");
    let told = share * report.f64("/duration_s");
    checks.that(told > 0.9 * waited, || {
        format!("io_wait is {told} s of {waited}")
    });
    checks.done();
}

#[test]
fn latency_percentiles_are_ordered_and_bounded() {
    let Some(_turn) = root_test("latency_percentiles_are_ordered_and_bounded") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("a", 500, "", |_| 4_096);
    let seen = observe("files", &os(&[&"-r", &"4", &folder]));
    let mut checks = check_all(&seen);
    for name in ["open", "read", "close"] {
        let row = seen.report.at(&format!("/io/operations/{name}"));
        let at = |p: &str| f64_at(row, &format!("/latency_us/{p}"));
        let (p50, p95, p99) = (at("p50"), at("p95"), at("p99"));
        checks.that(0.0 < p50 && p50 <= p95 && p95 <= p99, || {
            format!("{name}: {p50} {p95} {p99}")
        });
        let mean = f64_at(row, "/seconds") / u64_at(row, "/count") as f64 * 1e6;
        checks.that(p50 < 20.0 * mean, || {
            format!("{name}: p50 {p50} µs, mean {mean} µs")
        });
    }
    assert!(seen.truth["total"] != Value::Null);
    checks.done();
}

/// Descriptors that come to refer to something else, while there are so many calls that their beginnings are hidden.
#[test]
fn redirected_descriptors_count_where_they_lead() {
    let Some(_turn) = root_test("redirected_descriptors_count_where_they_lead") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 1, "", |_| 100);
    let b = data.files("b", 1, "", |_| 3_000);
    let seen = observe("redirect", &os(&[&a, &b, &"2500"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for (name, folder) in [("a", &a), ("b", &b)] {
        let counts = &truth[name];
        checks.directory(
            report,
            &folder.to_string_lossy(),
            u64_at(counts, "/open/count"),
            Some(u64_at(counts, "/read/count")),
            u64_at(counts, "/read/bytes"),
        );
    }
    checks.member(
        report,
        "/memory/calls/brk/bytes",
        u64_at(truth, "/brk/bytes"),
    );
    checks.member(
        report,
        "/memory/calls/brk/count",
        u64_at(truth, "/brk/count"),
    );
    // An emulated machine does not make that many calls.
    let shed = report.rows("/cost/shed");
    checks.that(in_vm() || !shed.is_empty(), || {
        "beginnings of calls were never hidden".to_owned()
    });
    if !in_vm() && !shed.is_empty() {
        let open = &report.at("/io/operations")["open"];
        let (count, seconds) = (u64_at(open, "/count"), open["seconds"].as_f64());
        let mean_us = seconds.map_or(0.0, |s| s * 1e6 / count as f64);
        checks.that((0.1..100.0).contains(&mean_us), || {
            format!("an open takes {mean_us} µs: the time of hidden calls is not estimated")
        });
    }
    checks.done();
}
