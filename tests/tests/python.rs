//! Python and PyTorch jobs: workers by fork, spawn and a fork server, threads, maps.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;
use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Watch, Workload, observe_with};

fn python(name: &str, module: &str) -> Option<PathBuf> {
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
    let mmap = seen.report.at("/io/operations/mmap");
    checks.exact("maps", 40, u64_at(mmap, "/count"));
    checks.exact(
        "mapped bytes",
        u64_at(&seen.truth, "/mapped_bytes"),
        u64_at(mmap, "/bytes"),
    );
    checks.done();
}

#[test]
fn the_libraries_of_a_launched_trainer_are_told() {
    let name = "the_libraries_of_a_launched_trainer_are_told";
    let Some(_turn) = root_test(name) else { return };
    let Some(python) = python(name, "torch") else {
        return;
    };
    // Neither the launcher nor the trainer has anything mapped when it is first seen.
    let script = "\"$0\" -c 'import time, torch\nt = torch.rand(300, 300)\n\
        end = time.monotonic() + 9\nwhile time.monotonic() < end: t = t @ t / 300'; :";
    let command = os(&[&"sh", &"-c", &script, &python]);
    let ended = Watch::run(&[], &command, &[]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    let version = |name: &str| {
        let libraries = report.at("/job/frameworks/libraries").as_array();
        let found = libraries.and_then(|all| all.iter().find(|library| library[0] == name));
        found.map(|library| library[1].clone())
    };
    checks.that(report.at("/job/frameworks/python").is_string(), || {
        format!(
            "Python: {}; {} s, trainer {}, processes {}",
            report.at("/job/frameworks"),
            report.at("/duration_s"),
            report.at("/trainer"),
            report.at("/job/processes"),
        )
    });
    checks.that(version("torch").is_some_and(|v| v.is_string()), || {
        format!("torch: {:?}", version("torch"))
    });
    let torch = version("torch").and_then(|v| v.as_str().map(str::to_owned));
    let said = format!("torch {}", torch.unwrap_or_default());
    // In lines that fit: a version may stand on the next one.
    let text: Vec<&str> = ended.stdout.split_whitespace().collect();
    checks.that(text.join(" ").contains(&said), || {
        format!("no {said:?} in the text:\n{}", ended.stdout)
    });
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
fn a_data_loader_with_forkserver_workers_is_exact() {
    loader(
        "a_data_loader_with_forkserver_workers_is_exact",
        &["--start", "forkserver", "--persistent"],
    );
}

#[test]
fn waits_for_workers_are_as_long_as_the_trainer_says() {
    let name = "waits_for_workers_are_as_long_as_the_trainer_says";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "batches that take as long as they say") {
        return;
    }
    let Some(python) = python(name, "torch") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("cats", 160, "jpg", |i| 3_000 + 11 * i);
    // Each batch takes one of two workers 32 ms, and the trainer 2 ms: it waits for most of its time.
    let options = ["--workers", "2", "--epochs", "12", "--item-ms", "2"];
    let mut args: Vec<OsString> = options.map(OsString::from).into();
    args.extend(["--persistent".into(), folder.into_os_string()]);
    let seen = watch(&python, "loader.py", &args);
    let (truth, report) = (&seen.truth, &seen.report);
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let trainer = report.thread(u64_at(truth, "/pid")).expect("its thread");
    let present = f64_at(trainer, "/present_s");
    // It also works in there: it unpacks batches.
    let waited = f64_at(truth, "/waited_s") - f64_at(truth, "/waited_cpu_s");
    let told = report.f64("/trainer/share/data_wait") * present;
    checks.that(waited > 0.6 * f64_at(truth, "/seconds"), || {
        format!("it hardly waits: {truth}")
    });
    // Its clock also sees the time from a wake-up to a CPU.
    let runnable = f64_at(trainer, "/runnable_s");
    checks.between("data_wait", (waited - runnable, waited), told);
    checks.done();
}

#[test]
fn a_data_loader_without_workers_is_exact() {
    loader(
        "a_data_loader_without_workers_is_exact",
        &["--workers", "0"],
    );
}
