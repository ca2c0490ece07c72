//! Files of a stacked file system (overlayfs), as every container has them: its own files lie in the lower directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trainprof_tests::env::root_test;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::program;
use trainprof_tests::{Checks, Data, Observed, Report, Workload, observe_with};

/// Starts a workload in a mount namespace of its own, in which `merged` shows the files of `lower` through an overlay.
fn in_overlay(data: &Data, lower: &Path, args: &[&str]) -> (PathBuf, Workload) {
    let [upper, work, merged] = ["upper", "work", "merged"].map(|name| data.folder(name));
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let script = r#"mount -t overlay overlay -o "$0" "$1" && cd "$1" && shift && exec "$@""#;
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script, &options])
        .arg(&merged)
        .arg(program(args[0]))
        .arg("-")
        .args(&args[1..]);
    (merged, Workload::spawn(command))
}

/// The row of the overlay's mount.
fn mount<'a>(report: &'a Report, merged: &Path) -> Option<&'a Value> {
    let path = merged.to_string_lossy();
    let mounts = report.rows("/io/mounts").iter();
    mounts.rev().find(|mount| mount["mount_point"] == *path)
}

#[test]
fn reads_through_an_overlay_are_exact() {
    let Some(_turn) = root_test("reads_through_an_overlay_are_exact") else {
        return;
    };
    let data = Data::new();
    let lower = data.files("lower", 20, "bin", |i| 300_000 + i);
    let (merged, workload) = in_overlay(&data, &lower, &["files", "-c", "-l", "-s", "."]);
    let pid = workload.pid();
    let Observed { truth, report, .. } = observe_with(workload, pid, &[]);
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    let total = &truth["total"];
    for (name, bytes) in [
        ("open", false),
        ("read", true),
        ("close", false),
        ("stat", false),
        ("getdents", true),
    ] {
        checks.operation(&report, name, &total[name], bytes);
    }
    let row = report.directory(&merged.to_string_lossy());
    let row = row.unwrap_or_else(|| panic!("{}", report.at("/io/top")));
    checks.exact("reads", u64_at(total, "/read/count"), u64_at(row, "/reads"));
    checks.exact("bytes", u64_at(total, "/read/bytes"), u64_at(row, "/bytes"));
    checks.that(row["filesystem"] == "overlay", || row.to_string());
    if data.on_device() {
        let ratio = report.f64("/io/cache_hit_ratio");
        checks.that(ratio < 0.05, || {
            format!("every byte came from the device, cache_hit_ratio {ratio}")
        });
        let told = mount(&report, &merged);
        let device = told.and_then(|mount| mount.pointer("/storage/device"));
        let below = device_of(&lower);
        checks.that(device.and_then(Value::as_str) == below.as_deref(), || {
            format!("the files lie on {below:?}: {told:?}")
        });
    }
    checks.done();
}

/// The disk that a folder lies on, as sysfs names it.
fn device_of(folder: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let dev = fs::metadata(folder).expect("a folder").dev();
    let link = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
    let device = fs::canonicalize(link).ok()?;
    let disk = match device.join("partition").exists() {
        true => device.parent()?,
        false => &device,
    };
    Some(disk.file_name()?.to_string_lossy().into_owned())
}

#[test]
fn maps_through_an_overlay_are_exact() {
    let Some(_turn) = root_test("maps_through_an_overlay_are_exact") else {
        return;
    };
    let data = Data::new();
    let lower = data.files("lower", 3, "npy", |_| 2 << 20);
    let args = ["mmapread", "-c", "0.npy", "1.npy", "2.npy"];
    let (merged, workload) = in_overlay(&data, &lower, &args);
    let pid = workload.pid();
    let Observed { truth, report, .. } = observe_with(workload, pid, &[]);
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    checks.exact(
        "maps",
        u64_at(&truth, "/maps"),
        report.u64("/io/operations/mmap/count"),
    );
    checks.exact(
        "mapped bytes",
        u64_at(&truth, "/mapped_bytes"),
        report.u64("/io/operations/mmap/bytes"),
    );
    if data.on_device() {
        checks.exact(
            "fetched by faults",
            3 * (2 << 20),
            report.u64("/io/operations/fault/bytes"),
        );
        let row = report.directory(&merged.to_string_lossy());
        let row = row.unwrap_or_else(|| panic!("{}", report.at("/io/top")));
        eprintln!("{}", report.at("/io/top"));
        checks.exact("fetched there", 3 * (2 << 20), u64_at(row, "/fault_bytes"));
    }
    checks.done();
}
