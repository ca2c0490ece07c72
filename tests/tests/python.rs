//! Python and PyTorch jobs: fork and spawn workers, threads, maps.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;
use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Workload, observe_with};

fn python(name: &str, module: &str) -> Option<PathBuf> {
    if left_out_in_vm(name, "Python") {
        return None;
    }
    let found = python_with(module);
    if found.is_none() {
        skip(
            name,
            &format!("no Python with {module} (TRAINPROF_PYTHON names one)"),
        );
    }
    found
}

fn watch(python: &std::path::Path, script: &str, args: &[OsString]) -> Observed {
    let workload = Workload::python(python, script, args);
    let pid = workload.pid();
    observe_with(workload, pid, &[])
}

/// The data folders only: what the interpreter itself opens is not counted by the script.
fn check_folders(checks: &mut Checks, seen: &Observed) {
    checks.nothing_lost(&seen.report);
    for (path, counts) in seen.truth["dirs"]
        .as_object()
        .expect("directories of the truth")
    {
        let reads = counts["reads"].as_u64();
        checks.directory(
            &seen.report,
            path,
            u64_at(counts, "/opens"),
            reads,
            u64_at(counts, "/bytes"),
        );
    }
}

#[test]
fn plain_python_is_exact() {
    let name = "plain_python_is_exact";
    let Some(_turn) = root_test(name) else { return };
    let Some(python) = python(name, "json") else {
        return;
    };
    let data = Data::new();
    let folders = ["os", "open", "map", "threads"]
        .map(|folder| data.files(folder, 40, "dat", |i| 5_000 + 900 * i));
    let seen = watch(&python, "pyfiles.py", &folders.map(PathBuf::into_os_string));
    let mut checks = Checks::new();
    check_folders(&mut checks, &seen);
    checks.done();
}

fn loader(name: &str, options: &[&str]) {
    let Some(_turn) = root_test(name) else { return };
    let Some(python) = python(name, "torch") else {
        return;
    };
    let data = Data::new();
    let a = data.files("cats", 150, "jpg", |i| 3_000 + 11 * i);
    let b = data.files("dogs", 150, "jpg", |i| 90_000 + 13 * i);
    let mut args = os(&[&"--workers", &"2", &"--epochs", &"2"]);
    args.extend(options.iter().map(OsString::from));
    args.extend(os(&[&a, &b]));
    let seen = watch(&python, "loader.py", &args);
    let mut checks = Checks::new();
    check_folders(&mut checks, &seen);
    let report = &seen.report;
    let role = |pid: u64| {
        report
            .process(pid)
            .map(|row| row["role"].clone())
            .unwrap_or(Value::Null)
    };
    let trainer = u64_at(&seen.truth, "/pid");
    checks.that(role(trainer) == "trainer", || {
        format!("trainer {trainer} has role {}", role(trainer))
    });
    checks.exact("trainer.pid", trainer, report.u64("/trainer/pid"));
    for worker in seen.truth["workers"]
        .as_array()
        .expect("workers of the truth")
        .iter()
        .filter_map(Value::as_u64)
    {
        checks.that(role(worker) == "worker", || {
            format!("worker {worker} has role {}", role(worker))
        });
    }
    checks.done();
}

#[test]
fn a_data_loader_with_forked_workers_is_exact() {
    loader("a_data_loader_with_forked_workers_is_exact", &[]);
}

#[test]
fn a_data_loader_with_persistent_workers_is_exact() {
    loader(
        "a_data_loader_with_persistent_workers_is_exact",
        &["--persistent"],
    );
}

#[test]
fn a_data_loader_with_spawned_workers_is_exact() {
    loader(
        "a_data_loader_with_spawned_workers_is_exact",
        &["--start", "spawn", "--persistent"],
    );
}

#[test]
fn a_data_loader_without_workers_is_exact() {
    loader(
        "a_data_loader_without_workers_is_exact",
        &["--workers", "0"],
    );
}
