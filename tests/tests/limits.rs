//! Page faults, swap, pressure and the end of memory, against what the workload, the kernel's files and the control
//! group say.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use trainprof_tests::cgroup::Group;
use trainprof_tests::env::{left_out_in_vm, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Report, Watch, Workload, observe};

/// The row of a process in the report's memory.
fn memory_of(report: &Report, pid: u64) -> &serde_json::Value {
    let rows = report.rows("/memory/processes");
    let row = rows.iter().find(|row| row["pid"] == pid);
    row.expect("the process's memory")
}

#[test]
fn faults_are_counted_and_their_share_of_the_cpu_is_right() {
    let name = "faults_are_counted_and_their_share_of_the_cpu_is_right";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let data = Data::new();
    if !data.on_device() {
        return skip(
            name,
            "the test folder is in memory; name another in TRAINPROF_TEST_DIR",
        );
    }
    let folder = data.files("cold", 1, "npy", |_| 8 << 20);
    let file = folder.join("0.npy");
    // In each step new pages for two or three milliseconds, and four of the 2 048 of the file.
    let seen = observe("faulter", &os(&[&"5", &file, &"1500", &"4"]));
    let truth = &seen.truth;
    let row = memory_of(&seen.report, u64_at(truth, "/pid"));
    let thread = seen.report.thread(u64_at(truth, "/tid"));
    let present = f64_at(thread.expect("its thread"), "/present_s");
    let mut checks = Checks::new();
    for kind in ["minor", "major"] {
        let truly = u64_at(truth, &format!("/faults/{kind}")) as f64;
        let told = f64_at(row, &format!("/faults/{kind}_per_s")) * present;
        checks.that((told / truly - 1.0).abs() < 0.02, || {
            format!("{kind}: {told:.0} told, truly {truly}")
        });
    }
    let (cold, major) = (u64_at(truth, "/cold"), u64_at(truth, "/faults/major"));
    checks.that(major >= cold / 2 && cold >= 100, || {
        format!("only {major} of {cold} pages were cold")
    });
    let (share, error) = (
        f64_at(row, "/cpu/faults/share"),
        f64_at(row, "/cpu/faults/error"),
    );
    let truly = f64_at(truth, "/fault_share_of_cpu");
    checks.that((0.2..0.9).contains(&truly), || {
        format!("{truly} of the CPU time are not what this is about")
    });
    checks.that((share - truly).abs() < error.max(0.05), || {
        format!("{share} ± {error} of the CPU time in faults, truly {truly}")
    });
    checks.done();
}

/// A sixth of a fault runs with interrupts off: clock samples show it as the code that faulted.
#[test]
fn what_no_sample_shows_of_faults_is_theirs() {
    let name = "what_no_sample_shows_of_faults_is_theirs";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let data = Data::new();
    let folder = data.files("cold", 1, "npy", |_| 1 << 16);
    // New pages for some 15 ms, then 3 ms of computing, and so on.
    let file = folder.join("0.npy");
    let seen = observe("faulter", &os(&[&"10", &file, &"20000", &"0"]));
    let row = memory_of(&seen.report, u64_at(&seen.truth, "/pid"));
    let share = f64_at(row, "/cpu/faults/share");
    let truly = f64_at(&seen.truth, "/fault_share_of_cpu");
    println!("{share} of the CPU time in faults, truly {truly}");
    let mut checks = Checks::new();
    checks.that((0.6..0.95).contains(&truly), || {
        format!("{truly} of the CPU time are not what this is about")
    });
    checks.that((share - truly).abs() < 0.05, || {
        format!("{share} of the CPU time in faults, truly {truly}")
    });
    checks.done();
}

/// A swap file that is in use as long as this value.
struct Swap {
    path: PathBuf,
}

impl Swap {
    /// `Err`: the kernel does not want one here.
    fn on(data: &Data, bytes: u64) -> Result<Self, std::io::Error> {
        const PAGE: u64 = 4096;
        let path = data.folder("swap").join("file");
        let file = File::create(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        // Without holes. The header is that of mkswap(8): version, last page, and the signature at the first page's end.
        let zeros = vec![0; 1 << 20];
        for at in (0..bytes).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.write_all_at(&1_u32.to_ne_bytes(), 1024)?;
        file.write_all_at(&((bytes / PAGE - 1) as u32).to_ne_bytes(), 1028)?;
        file.write_all_at(b"SWAPSPACE2", PAGE - 10)?;
        file.sync_all()?;
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: a path that ends with NUL.
        if unsafe { libc::swapon(name.as_ptr(), 0) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { path })
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Ok(name) = std::ffi::CString::new(self.path.as_os_str().as_encoded_bytes()) {
            // SAFETY: a path that ends with NUL.
            unsafe { libc::swapoff(name.as_ptr()) };
        }
    }
}

/// Seconds in which some thread of the host had stalled for memory since boot.
fn stalled_s() -> f64 {
    let text = fs::read_to_string("/proc/pressure/memory").expect("pressure of memory");
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("some ")?.split_once("total="));
    let microseconds: f64 = total.and_then(|(_, n)| n.parse().ok()).expect("a total");
    microseconds / 1e6
}

#[test]
fn what_is_swapped_out_and_the_pressure_of_that_are_told() {
    let name = "what_is_swapped_out_and_the_pressure_of_that_are_told";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let _swap = match Swap::on(&data, 128 << 20) {
        Ok(swap) => swap,
        Err(error) => return skip(name, &format!("no swap file can be used here: {error}")),
    };
    let group = Group::new("memory", "swap");
    group.set_memory_limit(48 << 20);
    let mut workload = Workload::start("squeeze", ["swap", "3", "96"]);
    group.put(workload.pid());
    let before = stalled_s();
    let watch = Watch::attach(workload.pid(), &[]);
    let attached = stalled_s();
    workload.go();
    workload.wait_done();
    let stopping = stalled_s();
    let ended = watch.stop();
    let after = stalled_s();
    let truth = workload.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let row = memory_of(&report, u64_at(&truth, "/pid"));
    let mut checks = Checks::new();
    let swapped = u64_at(&truth, "/swapped_bytes") as f64;
    checks.that(swapped > 40e6, || format!("only {swapped} bytes swapped"));
    let told = f64_at(row, "/swap_bytes/last");
    checks.that((told / swapped - 1.0).abs() < 0.1, || {
        format!("{told} bytes told to be swapped out, truly {swapped}")
    });
    checks.that(u64_at(row, "/swap_bytes/first") == 0, || {
        "something was swapped out before".into()
    });
    // Pages come back from the disk.
    let major = report.u64("/memory/faults/major");
    checks.exact("major faults", u64_at(&truth, "/faults/major"), major);
    checks.that(major > 1_000, || format!("only {major} major faults"));
    let stalled = report.f64("/memory/pressure/some_s");
    let (least, most) = (stopping - attached, after - before);
    // The totals are added up every two seconds.
    checks.that(stalled >= least - 0.1 && stalled <= most + 0.1, || {
        format!("stalled for {stalled} s, truly {least} to {most}")
    });
    checks.that(most > 0.2, || format!("stalled for {most} s only"));
    checks.done();
}

#[test]
fn a_process_that_is_killed_for_want_of_memory_is_named() {
    let name = "a_process_that_is_killed_for_want_of_memory_is_named";
    let Some(_turn) = root_test(name) else { return };
    let group = Group::new("memory", "outgrow");
    let limit = 24 << 20;
    group.set_memory_limit(limit);
    let mut workload = Workload::start("squeeze", ["outgrow", "64"]);
    group.put(workload.pid());
    let watch = Watch::attach(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    let truth = workload.finish();
    assert_eq!(u64_at(&truth, "/signal"), libc::SIGKILL as u64, "{truth}");
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let child = u64_at(&truth, "/child");
    let killed = report.rows("/memory/oom_kills");
    assert_eq!(killed.len(), 1, "{killed:?}");
    assert_eq!(u64_at(&killed[0], "/pid"), child);
    let at = f64_at(&killed[0], "/at_s");
    assert!(at > 0.0 && at <= report.f64("/duration_s"), "{at}");
    let groups = report.rows("/memory/cgroups");
    let row = groups.iter().find(|g| g["cgroup"] == group.path.as_str());
    assert_eq!(u64_at(row.expect("its group"), "/oom_kills"), 1);
    let text = format!("{child} (squeeze) was killed");
    assert!(ended.stdout.contains(&text), "{}", ended.stdout);
    let of = format!("control group {} ran out of its", group.path);
    assert!(ended.stdout.contains(&of), "{}", ended.stdout);
}
