//! Input that cannot be worked with: a clear message, the right exit status, never a panic.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use trainprof_tests::bpf;
use trainprof_tests::env::{self, has_tool, root_test, skip};
use trainprof_tests::product::{Watch, finish, trainprof};
use trainprof_tests::workload::{folder, os, program};
use trainprof_tests::{Data, Workload};
use trainprof_user::record::format::{BlockHeader, BlockKind, FORMAT, FileHeader};

#[test]
fn no_such_process() {
    let Some(_turn) = root_test("no_such_process") else {
        return;
    };
    let pid = unused_pid();
    trainprof(["attach", &pid.to_string(), "-d", "1s"])
        .expect_failure(2, &["no such process", "no process", "does not exist"]);
    trainprof(["attach", "abc"]).expect_failure(2, &["invalid"]);
    trainprof(["attach"]).expect_failure(2, &["required", "pid"]);
    trainprof(["attach", "0"]).expect_failure(2, &["pid", "process"]);
    trainprof(["attach", "-5"]).expect_failure(2, &["-5", "unexpected"]);
    trainprof(["attach", "1", "-d", "soon"]).expect_failure(2, &["duration", "soon"]);
    trainprof(["no-such-command"]).expect_failure(2, &["no-such-command"]);
}

/// Near the top of the range, where pids come last.
fn unused_pid() -> i32 {
    let max: i32 = fs::read_to_string("/proc/sys/kernel/pid_max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(32_768);
    (1..max)
        .rev()
        .find(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        .expect("an unused pid")
}

#[test]
fn a_kernel_thread() {
    let Some(_turn) = root_test("a_kernel_thread") else {
        return;
    };
    // kthreadd and its children have no memory map of their own.
    trainprof(["attach", "2", "-d", "1s"]).expect_failure(2, &["kernel thread"]);
}

#[test]
fn a_zombie() {
    let Some(_turn) = root_test("a_zombie") else {
        return;
    };
    let mut zombie = Command::new(program("files"))
        .spawn()
        .expect("start a process that fails at once");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = bpf::held();
    let ended = trainprof(["attach", &zombie.id().to_string(), "-d", "1s"]);
    ended.expect_failure(2, &["ended", "exited", "zombie", "no such process", "gone"]);
    let _ = zombie.wait();
    bpf::wait_until_gone(&before);
}

#[test]
fn the_id_of_a_thread() {
    let Some(_turn) = root_test("the_id_of_a_thread") else {
        return;
    };
    let data = Data::new();
    let files = data.files("a", 1, "", |_| 10);
    let workload = Workload::start("crowd", os(&[&files, &"1", &"2"]));
    let process = trainprof_tests::workload::children(workload.pid())[0];
    let thread = fs::read_dir(format!("/proc/{process}/task"))
        .expect("the threads")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .find(|tid| *tid != process)
        .expect("a second thread");
    // Refused with the reason, or taken for its process; never a watch of nothing.
    let ended = Watch::spawn(os(&[&"attach", &thread.to_string(), &"-d", &"300ms"]), &[]).wait();
    if ended.code() == 0 {
        assert_eq!(ended.report().u64("/job/pid"), process as u64);
    } else {
        ended.expect_failure(2, &["thread"]);
    }
}

#[test]
fn a_process_that_ends_during_attach() {
    let Some(_turn) = root_test("a_process_that_ends_during_attach") else {
        return;
    };
    let mut job = Command::new("sleep").arg("60").spawn().expect("sleep");
    let from = Instant::now();
    let watch = Watch::attach(job.id() as i32, &os(&[&"--gpu", &"off"]));
    let attach = from.elapsed();
    drop(watch);
    job.kill().expect("kill the job");
    job.wait().expect("wait for the job");
    // Whenever it ends: before the scan (2), or after (a report of what there was).
    let mut codes = Vec::new();
    for eighths in 0..=12 {
        let delay = attach * eighths / 8;
        let mut job = Command::new("sleep").arg("60").spawn().expect("sleep");
        let watch = Watch::spawn(
            os(&[&"attach", &job.id().to_string(), &"--gpu", &"off"]),
            &[],
        );
        std::thread::sleep(delay);
        job.kill().expect("kill the job");
        job.wait().expect("wait for the job");
        let ended = watch.wait();
        assert!(
            !ended.stderr.contains("panicked"),
            "after {delay:?}:\n{}",
            ended.stderr
        );
        match ended.code() {
            0 => assert!(ended.report().f64("/duration_s") >= 0.0),
            2 => assert!(!ended.stderr.is_empty(), "a message after {delay:?}"),
            code => panic!("after {delay:?}: exit status {code}:\n{}", ended.stderr),
        }
        codes.push(ended.code());
    }
    eprintln!("attaching takes {attach:?}; after each eighth of it: {codes:?}");
    assert!(codes.contains(&2), "none ended before it was found");
    assert!(codes.contains(&0), "none ended while probes were attached");
}

#[test]
fn not_enough_privilege() {
    let name = "not_enough_privilege";
    let Some(_turn) = root_test(name) else { return };
    if !has_tool("setpriv") {
        return skip(name, "needs setpriv (util-linux)");
    }
    // The binary where nobody can run it.
    let public = tempfile::tempdir_in("/tmp").expect("a folder");
    fs::set_permissions(public.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    let binary = public.path().join("trainprof");
    fs::copy(trainprof_tests::env::trainprof(), &binary).expect("copy the binary");
    let mut job = Command::new("sleep").arg("30").spawn().expect("sleep");
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--inh-caps=-all",
        ])
        .arg(&binary)
        .args(["attach", &job.id().to_string(), "-d", "1s"])
        .current_dir("/tmp");
    let ended = finish(command);
    let _ = job.kill();
    let _ = job.wait();
    ended.expect_failure(3, &["root", "cap_bpf", "privilege", "permitted"]);
}

/// A recording of a real watch, to be damaged.
fn recorded() -> (Vec<u8>, Vec<u8>) {
    let data = Data::new();
    let files = data.files("a", 40, "", |i| 700 + i);
    let mut workload = Workload::start("files", os(&[&files]));
    let watch = Watch::attach(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let bytes = fs::read(&ended.recording).expect("the recording");
    (bytes, ended.json.clone())
}

fn report_of(bytes: &[u8]) -> trainprof_tests::Finished {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.rec");
    fs::write(&path, bytes).expect("write a recording");
    trainprof(os(&[&"report", &path, &"--format", &"json"]))
}

#[test]
fn damaged_recordings() {
    let Some(_turn) = root_test("damaged_recordings") else {
        return;
    };
    let (good, _) = recorded();
    assert!(good.len() > 200, "a recording of {} bytes", good.len());

    trainprof(["report", "/no/such/recording"])
        .expect_failure(2, &["no such file", "/no/such/recording"]);
    trainprof(["report", "/"]).expect_failure(2, &["directory", "regular"]);
    report_of(b"").expect_failure(2, &["empty", "not a recording", "not a trainprof", "short"]);
    report_of(&b"#!/bin/sh\necho hello\n".repeat(40))
        .expect_failure(2, &["not a recording", "not a trainprof"]);
    report_of(&vec![0; 10_000]).expect_failure(2, &["not a recording", "not a trainprof"]);

    // Cut off anywhere: what is there is reported, and the report says that the end is missing.
    let mut reported = 0;
    for percent in [99, 90, 75, 50, 25, 10, 3] {
        let cut = report_of(&good[..good.len() * percent / 100]);
        assert!(
            !cut.stderr.contains("panicked"),
            "cut to {percent} %:\n{}",
            cut.stderr
        );
        match cut.code() {
            0 => {
                reported += 1;
                let report = trainprof_tests::Report::parse(&cut.stdout);
                let missing = report.at("/coverage").to_string() + &cut.stderr;
                let said = ["no end mark", "truncated", "cut off"]
                    .iter()
                    .any(|word| missing.contains(word));
                assert!(said, "cut to {percent} %, and not said: {missing}");
            }
            2 => assert!(!cut.stderr.is_empty(), "a message"),
            code => panic!("cut to {percent} %: exit status {code}:\n{}", cut.stderr),
        }
    }
    assert!(reported > 0, "no cut recording gave a report");

    // One wrong byte anywhere: said or reported in part, never a crash and never silently used.
    for step in 1..24 {
        let mut bytes = good.clone();
        let at = bytes.len() * step / 24;
        bytes[at] ^= 0x55;
        let ended = report_of(&bytes);
        assert!(
            !ended.stderr.contains("panicked"),
            "byte {at}:\n{}",
            ended.stderr
        );
        assert!(
            matches!(ended.code(), 0 | 2),
            "byte {at}: exit status {}:\n{}",
            ended.code(),
            ended.stderr
        );
        if ended.code() == 0 {
            let said = (ended.stderr.clone() + &ended.stdout).to_lowercase();
            let named = ["corrupt", "damaged", "checksum", "incomplete", "truncated"]
                .iter()
                .any(|word| said.contains(word));
            assert!(named, "byte {at} was changed and nothing is said of it");
        } else {
            assert!(!ended.stderr.is_empty(), "byte {at}: a message");
        }
    }
}

/// A recording of one record, which is not whole, as another trainprof left it.
fn of_another_trainprof(format: u16, writer: &str, record: &[u8]) -> Vec<u8> {
    let file = FileHeader {
        format,
        flags: 0,
        writer: writer.to_owned(),
    };
    let block = BlockHeader::of(BlockKind::Records, 0, 1, record).expect("a block");
    [file.encode().as_slice(), &block.encode(), record].concat()
}

#[test]
fn recordings_of_a_newer_trainprof() {
    // Another layout of the file: nothing of it can be read.
    report_of(&of_another_trainprof(FORMAT + 1, "97.1.0", &[0]))
        .expect_failure(2, &["upgrade trainprof to 97.1.0 or later"]);
    // One more kind of record: what comes before it can.
    let newer = of_another_trainprof(FORMAT, "97.1.0", &[0xff, 0x7f, 1, 2, 3]);
    let ended = report_of(&newer);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = trainprof_tests::Report::parse(&ended.stdout);
    let missing = report.at("/coverage/missing").to_string();
    for said in [&ended.stderr, &missing] {
        assert!(
            said.contains("Read it with trainprof 97.1.0 or later") && !said.contains("corrupt"),
            "{said}"
        );
    }
}

#[test]
fn run_of_what_cannot_be_started() {
    let Some(_turn) = root_test("run_of_what_cannot_be_started") else {
        return;
    };
    let missing = Watch::run(&[], &os(&[&"/no/such/program"]), &[]).wait();
    missing.expect_failure(127, &["/no/such/program"]);
    let unknown = Watch::run(&[], &os(&[&"no-such-program-on-the-path"]), &[]).wait();
    unknown.expect_failure(127, &["no-such-program-on-the-path"]);
    let plain = Data::new().files("plain", 1, "", |_| 10).join("0");
    let folder = folder();
    for (what, path) in [
        ("a directory", folder.as_path()),
        ("no program", plain.as_path()),
    ] {
        if path.exists() {
            let ended = Watch::run(&[], &[OsString::from(path)], &[]).wait();
            assert_eq!(ended.code(), 126, "{what}:\n{}", ended.stderr);
        }
    }
    trainprof(["run", "--"]).expect_failure(2, &["required", "cmd", "command"]);
}

#[test]
fn an_output_that_cannot_be_written() {
    let Some(_turn) = root_test("an_output_that_cannot_be_written") else {
        return;
    };
    let mut job = Command::new("sleep").arg("30").spawn().expect("sleep");
    let pid = job.id().to_string();
    for option in ["-o", "--json"] {
        let ended = trainprof(["attach", &pid, "-d", "1s", option, "/no/such/folder/file"]);
        ended.expect_failure(2, &["/no/such/folder"]);
    }
    assert!(matches!(job.try_wait(), Ok(None)), "the job goes on");
    let _ = job.kill();
    let _ = job.wait();
}

#[test]
fn standard_error_that_cannot_be_written() {
    let name = "standard_error_that_cannot_be_written";
    let Some(_turn) = root_test(name) else { return };
    let full = || fs::File::create("/dev/full").expect("/dev/full");
    let gone = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let run = |args: &[&str], stderr: std::process::Stdio| {
        Command::new(env::trainprof())
            .args(args)
            .stderr(stderr)
            .output()
            .expect("run trainprof")
    };
    // The command runs, its status is passed on, and the report is printed.
    for stderr in [full().into(), gone().into()] {
        let ended = run(&["run", "--", "sh", "-c", "sleep 0.3; exit 7"], stderr);
        assert_eq!(ended.status.code(), Some(7));
        assert!(String::from_utf8_lossy(&ended.stdout).contains("watched"));
    }
    let pid = std::process::id().to_string();
    let ended = run(&["attach", &pid, "-d", "300ms"], full().into());
    assert_eq!(ended.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("watched"));
    let ended = run(&["report", "/no/such"], full().into());
    assert_eq!(ended.status.code(), Some(2));
}

#[test]
fn a_report_in_place_of_something_else() {
    let name = "a_report_in_place_of_something_else";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.folder("reports");
    let pid = std::process::id().to_string();
    let attach = |options: &[OsString]| {
        let mut args = os(&[&"attach", &pid, &"-d", &"300ms"]);
        args.extend_from_slice(options);
        trainprof(args)
    };
    // The recording and the report in one file, which need not exist.
    let one = folder.join("one");
    let again = folder.join(".").join("one");
    for before in [None, Some("kept")] {
        if let Some(text) = before {
            fs::write(&one, text).expect("write");
        }
        attach(&os(&[&"-o", &one, &"--json", &again])).expect_failure(2, &["both"]);
        assert_eq!(fs::read_to_string(&one).ok().as_deref(), before);
    }
    // What a link names is not replaced.
    let target = folder.join("target");
    fs::write(&target, "kept").expect("write");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).expect("permissions");
    let link = folder.join("link");
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    attach(&os(&[&"--json", &link])).expect_failure(2, &["symbolic link"]);
    assert_eq!(fs::read_to_string(&target).expect("read"), "kept");
    let mode = fs::metadata(&target).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    // Memory that looks like a disk holds files as well, which are their owner's business only.
    let shared = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(shared.path(), open).expect("permissions");
    let ended = attach(&os(&[&"-q", &"--json", &shared.path()]));
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mode = fs::metadata(shared.path()).expect("a file").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    // Names of what others opened are links, too.
    let ended = attach(&os(&[&"-q", &"--json", &"/dev/stdout"]));
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert!(ended.stdout.starts_with('{'), "{}", ended.stdout);
}

#[test]
fn a_watch_longer_than_any_clock() {
    let name = "a_watch_longer_than_any_clock";
    let Some(_turn) = root_test(name) else { return };
    let ended = trainprof(["run", "-d", "1e19", "--", "sleep", "0.3"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

/// Runs a shell's command with trainprof as `$0`.
fn in_shell(script: &str) -> std::process::Output {
    Command::new("sh")
        .args(["-c", script])
        .arg(env::trainprof())
        .output()
        .expect("a shell")
}

#[test]
fn a_low_limit_of_descriptors() {
    let name = "a_low_limit_of_descriptors";
    let Some(_turn) = root_test(name) else { return };
    for most in [30, 130] {
        let ended = in_shell(&format!("ulimit -n {most}; exec \"$0\" attach $PPID -d 1s"));
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{told}");
        assert!(told.contains(&format!("may have {most}")), "{told}");
        assert!(told.contains("ulimit -n"), "{told}");
    }
    // A soft limit is raised, for us and not for the command.
    let script = "ulimit -Sn 60; exec \"$0\" run -q -- sh -c 'ulimit -Sn >&2; sleep 0.3'";
    let ended = in_shell(script);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{told}");
    assert!(told.lines().any(|line| line == "60"), "{told}");
}
