//! Checkpoint-like writes, and copies made inside the kernel.

use trainprof_tests::env::{root_test, skip};
use trainprof_tests::fixture::drop_cached;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};

#[test]
fn checkpoint_writes_are_exact() {
    let Some(_turn) = root_test("checkpoint_writes_are_exact") else {
        return;
    };
    let data = Data::new();
    let folder = data.folder("ckpt");
    let seen = observe("writer", &os(&[&folder, &"9", &"64", &"131072"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let total = &truth["total"];
    checks.operation(report, "open", &total["open"], false);
    checks.operation(report, "write", &total["write"], true);
    checks.operation(report, "close", &total["close"], false);
    checks.operation(report, "fsync", &truth["fsync"], false);
    checks.operation_seconds(report, "fsync", &truth["fsync"]);
    checks.operation(report, "rename", &truth["rename"], false);
    checks.exact(
        "io.writes",
        u64_at(total, "/write/count"),
        report.u64("/io/writes"),
    );
    checks.exact(
        "io.bytes_written",
        u64_at(total, "/write/bytes"),
        report.u64("/io/bytes_written"),
    );
    checks.exact("io.reads", 0, report.u64("/io/reads"));
    let path = folder.to_string_lossy();
    match report.directory(&path) {
        Some(row) => {
            checks.exact(
                "directory writes",
                u64_at(total, "/write/count"),
                u64_at(row, "/writes"),
            );
            let bytes = u64_at(total, "/write/bytes");
            checks.exact(
                "directory bytes written",
                bytes,
                u64_at(row, "/bytes_written"),
            );
        }
        None => checks.that(false, || {
            format!("no row of {path}: {}", report.at("/io/top"))
        }),
    }
    checks.done();
}

/// How often [`copies`] copies the file, each time in three ways.
const TIMES: u64 = 6;

/// Copies a file, which was read before or was not.
fn copies(data: &Data, warm: bool) -> (Observed, Checks, u64) {
    let size = 2_000_003;
    let from = data.files("from", 1, "", |_| size);
    let (from, to) = (from.join("0"), data.folder("to"));
    if !warm {
        drop_cached(&from);
    }
    let seen = observe("copy", &os(&[&from, &to, &TIMES.to_string()]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    checks.operation(report, "open", &truth["total"]["open"], false);
    // Each call counts once, at the file that it takes from; a splice out of a pipe takes from no file.
    let sum = |calls: &[&str], member: &str| -> u64 {
        calls.iter().map(|call| u64_at(&truth[*call], member)).sum()
    };
    let from_files = ["sendfile", "copy_file_range", "splice_to_pipe"];
    let to_files = ["sendfile", "copy_file_range", "splice_from_pipe"];
    let copied = sum(&from_files, "/bytes");
    checks.exact(
        "copies",
        sum(&from_files, "/count"),
        report.u64("/io/operations/copy/count"),
    );
    checks.exact(
        "copied bytes",
        copied,
        report.u64("/io/operations/copy/bytes"),
    );
    checks.exact("bytes taken", copied, report.u64("/io/bytes_read"));
    checks.exact(
        "bytes given",
        sum(&to_files, "/bytes"),
        report.u64("/io/bytes_written"),
    );
    checks.exact("reads", 0, report.u64("/io/reads"));
    checks.exact("writes", 0, report.u64("/io/writes"));
    checks.exact("all copies", 3 * TIMES * size as u64, copied);
    (seen, checks, copied)
}

/// What is in memory is not fetched for a copy, and what the copy itself adds to memory was never anywhere else.
#[test]
fn copies_inside_the_kernel_are_counted() {
    let Some(_turn) = root_test("copies_inside_the_kernel_are_counted") else {
        return;
    };
    let data = Data::new();
    let (seen, mut checks, _) = copies(&data, true);
    let hits = seen.report.f64("/io/cache_hit_ratio");
    checks.that(hits == 1.0, || format!("cache_hit_ratio {hits}, truth 1"));
    checks.done();
}

#[test]
fn a_copy_fetches_its_source_once() {
    let name = "a_copy_fetches_its_source_once";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let (seen, mut checks, copied) = copies(&data, false);
    let hits = seen.report.f64("/io/cache_hit_ratio");
    // The file's pages, the last one whole.
    let fetched = (copied / (3 * TIMES)).next_multiple_of(4096);
    let truth = 1.0 - fetched as f64 / copied as f64;
    checks.that((hits - truth).abs() < 0.002, || {
        format!("cache_hit_ratio {hits}, truth {truth}")
    });
    checks.done();
}
