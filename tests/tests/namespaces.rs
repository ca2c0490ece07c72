//! A target in pid and mount namespaces of its own, and mounts that are made while it is watched.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use trainprof_tests::env::root_test;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::{children, program};
use trainprof_tests::{Checks, Data, Observed, Watch, Workload, observe_with};

#[test]
fn a_target_in_other_namespaces_is_seen_as_well() {
    let Some(_turn) = root_test("a_target_in_other_namespaces_is_seen_as_well") else {
        return;
    };
    let data = Data::new();
    let source = data.files("source", 25, "jpg", |i| 4_000 + i);
    let target = data.folder("inside");
    let mut command = Command::new(program("inns"));
    command
        .arg(&source)
        .arg(&target)
        .arg(program("files"))
        .arg("-")
        .arg(&target);
    let workload = Workload::spawn(command);
    assert_eq!(
        workload.inner_pid, 1,
        "the workload is the first of its pid namespace"
    );
    let inside = children(workload.pid());
    assert_eq!(inside.len(), 1, "one child: {inside:?}");
    let seen = observe_with(workload, inside[0], &[]);
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let total = &truth["total"];
    checks.exact(
        "opens",
        u64_at(total, "/open/count"),
        report.u64("/io/opens"),
    );
    checks.exact(
        "reads",
        u64_at(total, "/read/count"),
        report.u64("/io/reads"),
    );
    checks.exact(
        "bytes",
        u64_at(total, "/read/bytes"),
        report.u64("/io/bytes_read"),
    );
    checks.exact(
        "job.pid is the host's",
        inside[0] as u64,
        report.u64("/job/pid"),
    );
    // Named as the job sees it, or as the host does: either way one row holds all of its reads.
    let row = report.rows("/io/top").iter().find(|row| {
        let path = row["path"].as_str().unwrap_or_default();
        path == target.to_string_lossy() || path == source.to_string_lossy()
    });
    match row {
        Some(row) => checks.exact(
            "reads of the row",
            u64_at(total, "/read/count"),
            u64_at(row, "/reads"),
        ),
        None => checks.that(false, || {
            format!("no row of the folder: {}", report.at("/io/top"))
        }),
    }
    checks.done();
}

#[test]
fn mounts_that_are_made_while_watching_are_told() {
    let name = "mounts_that_are_made_while_watching_are_told";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let (memory, disk) = (data.folder("memory"), data.folder("disk"));
    let image = data.path("image");
    // In a mount namespace of its own, so that whatever happens nothing stays mounted; both mounts come when it is watched already.
    let script = r#"
        read -r _
        mount -t tmpfs none "$1" && mount -o loop "$3" "$2" || exit 9
        for folder in "$1" "$2"; do
            for i in 1 2 3 4 5 6 7 8; do echo "$i" > "$folder/$i.txt"; done
            wc -l "$folder"/*.txt
        done
        sleep 2"#;
    let made = Command::new("sh")
        .args(["-c", "truncate -s 16M \"$0\" && mkfs.ext4 -q \"$0\""])
        .arg(&image)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "mkfs.ext4");
    let mut job = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([&memory, &disk, &image])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("unshare");
    let watch = Watch::attach(job.id() as i32, &[]);
    // Longer than the first look at what is new.
    std::thread::sleep(Duration::from_millis(1500));
    drop(job.stdin.take().map(|mut gate| gate.write_all(b"go\n")));
    assert!(job.wait().is_ok_and(|status| status.success()), "the job");
    let ended = watch.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    for (folder, filesystem) in [(&memory, "tmpfs"), (&disk, "ext4")] {
        let path = folder.to_string_lossy();
        let row = report.directory(&path);
        let told = row.map(|row| (&row["filesystem"], &row["mount"], &row["reads"]));
        checks.that(
            row.is_some_and(|row| {
                row["filesystem"] == filesystem
                    && row["mount"] == *path
                    && row["reads"].as_u64() >= Some(8)
            }),
            || {
                format!(
                    "{path} should be {filesystem}: {told:?} in {}",
                    report.at("/io/top")
                )
            },
        );
    }
    checks.done();
}
