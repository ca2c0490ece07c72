//! Recordings: replayed to the same report, private, and safe when the disk is full.

use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trainprof_tests::env::root_test;
use trainprof_tests::product::{Watch, trainprof};
use trainprof_tests::replay::same_bytes;
use trainprof_tests::report::u64_at;
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Checks, Data, Finished, Workload};

fn watched(name: &str, args: &[OsString], extra: &[OsString]) -> Finished {
    let mut workload = Workload::start(name, args);
    let mut options = os(&[&"--top", &"1000"]);
    options.extend_from_slice(extra);
    let watch = Watch::attach(workload.pid(), &options);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    ended
}

#[test]
fn the_replayed_report_is_the_live_one_byte_for_byte() {
    let Some(_turn) = root_test("the_replayed_report_is_the_live_one_byte_for_byte") else {
        return;
    };
    let data = Data::new();
    let a = data.files("a", 100, "jpg", |i| 1_000 + i);
    same_bytes(&watched("files", &os(&[&"-l", &"-e", &"-s", &a]), &[]));
    same_bytes(&watched("sleeper", &[], &[]));
    for way in [
        "fork", "grand", "exec", "short", "thread", "texec", "vfork", "orphan",
    ] {
        data.files(&format!("ways/{way}"), 2, "", |n| 900 + n);
    }
    same_bytes(&watched("forker", &os(&[&data.path("ways"), &"20"]), &[]));
}

#[test]
fn recordings_and_reports_are_private() {
    let Some(_turn) = root_test("recordings_and_reports_are_private") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (rec, json) = (folder.path().join("x.rec"), folder.path().join("x.json"));
    watched("memcalls", &[], &os(&[&"-o", &rec, &"--json", &json]));
    for path in [&rec, &json] {
        let mode = fs::metadata(path).expect("the file").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{} has mode {mode:o}", path.display());
    }
    // A link in its place is not followed to somebody else's file... it is the user's own business;
    // but a file that was open to all does not stay so.
    fs::set_permissions(&rec, fs::Permissions::from_mode(0o644)).expect("permissions");
    watched("memcalls", &[], &os(&[&"-o", &rec]));
    let mode = fs::metadata(&rec).expect("the file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "an overwritten recording has mode {mode:o}");
}

/// A file system of a few pages.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, bytes: usize) -> Self {
        fs::create_dir_all(at).expect("a mount point");
        let c = |text: &str| CString::new(text).expect("no NUL");
        let (kind, target, data) = (
            c("tmpfs"),
            c(&at.to_string_lossy()),
            c(&format!("size={bytes},mode=0755")),
        );
        // SAFETY: all pointers are NUL-terminated strings that live through the call.
        let rc = unsafe {
            libc::mount(
                kind.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                0,
                data.as_ptr().cast(),
            )
        };
        assert_eq!(rc, 0, "mount: {}", std::io::Error::last_os_error());
        Self(at.to_path_buf())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let target = CString::new(self.0.to_string_lossy().as_bytes()).expect("no NUL");
        // SAFETY: a NUL-terminated string that lives through the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

/// A disk with so much room (bytes), and 300 folders of files: more than a recording has room for there.
fn nearly_full(data: &Data, room: usize) -> (SmallDisk, Vec<OsString>) {
    let disk = SmallDisk::mount(&data.path("disk"), 256 << 10);
    let filler = disk.0.join("filler");
    fs::write(&filler, vec![1; (256 << 10) - room]).expect("fill the disk");
    let folders = (0..300)
        .map(|i| {
            data.files(&format!("a-{room}-{i}"), 2, "jpg", |i| 2_000 + i)
                .into_os_string()
        })
        .collect();
    (disk, folders)
}

/// The disk is said to be full, the report is printed and right all the same, and what was written can be read, or is refused in words.
fn check_full(ended: &Finished, truth: &Value, folders: &[OsString], recording: &Path) {
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(
        ended.stdout.len() > 100,
        "the text report is printed: {:?}\n{}",
        ended.stdout,
        ended.stderr
    );
    let said = ended.stderr.to_lowercase();
    for words in ["no space", "is not whole"] {
        assert!(
            said.contains(words),
            "no {words:?}: it is said that the disk is full, and what of the recording:\n{}",
            ended.stderr
        );
    }
    let mut checks = Checks::new();
    let report = ended.report();
    checks.nothing_lost(&report);
    let sum = |member: &str| -> u64 {
        let ours = folders.iter().filter_map(|path| path.to_str());
        let rows = ours.filter_map(|path| report.directory(path));
        rows.map(|row| u64_at(row, member)).sum()
    };
    let read = &truth["total"]["read"];
    checks.exact("reads", u64_at(read, "/count"), sum("/reads"));
    checks.exact("bytes", u64_at(read, "/bytes"), sum("/bytes"));
    checks.done();
    let replay = trainprof(os(&[&"report", &recording]));
    assert!(
        matches!(replay.code(), 0 | 2),
        "exit status {}:\n{}",
        replay.code(),
        replay.stderr
    );
    assert!(!replay.stderr.contains("panicked"), "{}", replay.stderr);
}

#[test]
fn a_full_disk_costs_the_recording_and_nothing_else() {
    let Some(_turn) = root_test("a_full_disk_costs_the_recording_and_nothing_else") else {
        return;
    };
    let data = Data::new();
    // Room for the head of the recording; then room for a little more.
    for room in [4 << 10, 8 << 10] {
        let (disk, folders) = nearly_full(&data, room);
        let mut workload = Workload::start("files", &folders);
        let recording = disk.0.join("x.rec");
        let watch = Watch::attach(workload.pid(), &os(&[&"-o", &recording, &"--top", &"1000"]));
        workload.go();
        workload.wait_done();
        let ended = watch.stop();
        assert!(workload.is_alive(), "the job is unharmed");
        let truth = workload.finish();
        assert_eq!(ended.code(), 2, "{}", ended.stderr);
        check_full(&ended, &truth, &folders, &recording);
    }
}

#[test]
fn a_full_disk_does_not_change_the_commands_status() {
    let name = "a_full_disk_does_not_change_the_commands_status";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    for (status, room) in [(0, 4 << 10), (7, 8 << 10)] {
        let (disk, folders) = nearly_full(&data, room);
        let (recording, truth) = (disk.0.join("x.rec"), data.path("truth"));
        let script = format!("\"$0\" \"$@\" && exit {status}");
        let mut command = os(&[&"sh", &"-c", &script, &program("files"), &truth]);
        command.extend_from_slice(&folders);
        let options = os(&[
            &"-o",
            &recording,
            &"--top",
            &"1000",
            &"--overhead-budget",
            &"100%",
        ]);
        let ended = Watch::run(&options, &command, &[("WL_NOGATE", "1")]).wait();
        assert_eq!(ended.code(), status, "{}", ended.stderr);
        let truth = fs::read_to_string(truth).expect("the truth");
        let truth = serde_json::from_str(&truth).expect("JSON");
        check_full(&ended, &truth, &folders, &recording);
    }
}

#[test]
fn a_recording_of_a_killed_trainprof_is_readable() {
    let Some(_turn) = root_test("a_recording_of_a_killed_trainprof_is_readable") else {
        return;
    };
    let data = Data::new();
    let files = data.files("a", 200, "jpg", |i| 2_000 + i);
    let recording = data.path("killed.rec");
    let mut workload = Workload::start("files", os(&[&"-r", &"50", &files]));
    let watch = Watch::attach(workload.pid(), &os(&[&"-o", &recording]));
    workload.go();
    workload.wait_done();
    // Long enough for at least one drain to reach the file.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    watch.signal(libc::SIGKILL);
    assert_eq!(watch.wait().code(), 128 + 9);
    let truth = workload.finish();
    let replay = trainprof(os(&[&"report", &recording, &"--format", &"json"]));
    assert_eq!(replay.code(), 0, "{}", replay.stderr);
    let report = trainprof_tests::Report::parse(&replay.stdout);
    let mut checks = Checks::new();
    // The work was over seconds before the kill: all of it is in whole blocks.
    checks.exact(
        "reads",
        u64_at(&truth, "/total/read/count"),
        report.u64("/io/reads"),
    );
    let missing = report.rows("/coverage/missing");
    checks.that(missing.iter().any(|row| row["what"] == "recording"), || {
        format!("coverage does not say that the recording is incomplete: {missing:?}")
    });
    checks.done();
}

#[test]
fn a_disk_that_is_full_from_the_start_is_said_at_once() {
    let Some(_turn) = root_test("a_disk_that_is_full_from_the_start_is_said_at_once") else {
        return;
    };
    let data = Data::new();
    let disk = SmallDisk::mount(&data.path("disk"), 256 << 10);
    // Ends with "no space left on device".
    let _ = fs::write(disk.0.join("filler"), vec![1; 512 << 10]);
    let mut workload = Workload::start("memcalls", os(&[&"5"]));
    let pid = workload.pid().to_string();
    let ended = trainprof(os(&[
        &"attach",
        &pid,
        &"-d",
        &"1s",
        &"-o",
        &disk.0.join("x.rec"),
    ]));
    ended.expect_failure(2, &["space"]);
    assert!(workload.is_alive(), "the job is unharmed");
    // A command is not started then.
    let started = data.path("started");
    let options = os(&[&"-o", &disk.0.join("x.rec")]);
    let ended = Watch::run(&options, &os(&[&"touch", &started]), &[]).wait();
    ended.expect_failure(2, &["space"]);
    assert!(!started.exists(), "{}", ended.stderr);
}
