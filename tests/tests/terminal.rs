//! What is for the eye: on standard error while a watch goes on, when that is a terminal; and lines that fit it.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip, trainprof};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Workload};

const COLUMNS: u16 = 60;
/// By when a first verdict is there, seconds.
const FIRST_VERDICT_S: u64 = 10;
const CLEARED: &str = "\r\x1b[2K";

/// The two ends of a terminal of so many columns: what a person sees, and what a program writes to.
fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut seen, mut written) = (-1, -1);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: two places for descriptors and a valid size; no name and no modes are wanted.
    let made = unsafe {
        libc::openpty(
            &raw mut seen,
            &raw mut written,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(made, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: fresh descriptors, each owned by one value from here on.
    unsafe { (File::from_raw_fd(seen), OwnedFd::from_raw_fd(written)) }
}

#[test]
fn a_first_verdict_comes_within_ten_seconds_and_progress_takes_one_row() {
    let name = "a_first_verdict_comes_within_ten_seconds_and_progress_takes_one_row";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "PyTorch within ten seconds") {
        return;
    }
    let Some(python) = python_with("torch") else {
        return skip(name, "no Python with torch (TRAINPROF_PYTHON names one)");
    };
    let data = Data::new();
    let folder = data.files("cats", 1_280, "jpg", |i| 3_000 + 11 * i);
    let mut args = os(&[&"--workers", &"1", &"--seconds", &"20", &"--batch", &"64"]);
    args.extend(os(&[&"--persistent", &"--step-ms", &"0.1", &folder]));
    let mut workload = Workload::python(&python, "loader.py", &args);
    workload.go();
    let (mut seen, written) = terminal(COLUMNS);
    let mut watch = Command::new(trainprof())
        .args(["attach", &workload.pid().to_string()])
        .args(["-d", "12s"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(written)
        .spawn()
        .expect("start trainprof");
    let started = Instant::now();
    let reader = std::thread::spawn(move || {
        let (mut text, mut verdict_at) = (String::new(), None);
        let mut bytes = [0; 4096];
        // The other end's last close is an error here (EIO).
        while let Ok(n) = seen.read(&mut bytes) {
            if n == 0 {
                break;
            }
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
            if text.contains(" s → ") {
                verdict_at.get_or_insert_with(|| started.elapsed());
            }
        }
        (text, verdict_at)
    });
    let mut report = String::new();
    let mut stdout = watch.stdout.take().expect("a piped standard output");
    stdout.read_to_string(&mut report).expect("a report");
    assert!(watch.wait().expect("an end").success());
    let (text, verdict_at) = reader.join().expect("what the terminal showed");
    workload.kill();

    let mut checks = Checks::new();
    // Attaching takes less than a second of it.
    let within = Duration::from_secs(FIRST_VERDICT_S + 1);
    checks.that(verdict_at.is_some_and(|at| at < within), || {
        format!("a first verdict after {verdict_at:?}")
    });
    let first = text
        .split_once(" s → ")
        .map_or("", |(_, rest)| rest.lines().next().unwrap_or(""));
    checks.that(
        !first.is_empty() && !first.starts_with("inconclusive"),
        || format!("the first verdict: {first}"),
    );
    let rows: Vec<&str> = text
        .split(['\r', '\n'])
        .map(|row| row.trim_start_matches("\x1b[2K"))
        .filter(|row| row.starts_with("trainprof: ") && row.contains(" s, "))
        .collect();
    checks.that(rows.len() >= 8, || format!("{} rows", rows.len()));
    for row in &rows {
        checks.that(row.chars().count() < COLUMNS.into(), || {
            format!("longer than a row: {row}")
        });
    }
    checks.that(text.ends_with(CLEARED), || format!("left behind: {text:?}"));
    // Progress is nothing for a file.
    checks.that(
        !report.contains("(Ctrl-C") && !report.contains('\x1b'),
        || report.clone(),
    );
    checks.done();
}

#[test]
fn there_is_no_progress_without_a_terminal() {
    let name = "there_is_no_progress_without_a_terminal";
    let Some(_turn) = root_test(name) else { return };
    let done = Command::new(trainprof())
        .args(["run", "--", "sleep", "3"])
        .stdin(Stdio::null())
        .output()
        .expect("start trainprof");
    let said = String::from_utf8_lossy(&done.stderr);
    let mut checks = Checks::new();
    checks.that(done.status.success(), || format!("{}: {said}", done.status));
    // Scripts wait for this line.
    let watching = said
        .lines()
        .filter(|line| line.starts_with("trainprof: watching "));
    checks.that(watching.count() == 1, || said.to_string());
    // Neither rows that are written over nor what they say.
    let for_the_eye = ["\r", "\x1b", "(Ctrl-C", " s, ", " s → "];
    let seen: Vec<&str> = for_the_eye
        .into_iter()
        .filter(|mark| said.contains(mark))
        .collect();
    checks.that(seen.is_empty(), || format!("{seen:?} in {said:?}"));
    checks.done();
}

#[test]
fn the_report_fits_the_terminal() {
    let name = "the_report_fits_the_terminal";
    let Some(_turn) = root_test(name) else { return };
    let mut checks = Checks::new();
    // The widest line that is allowed, and what it must at least be as wide as: text is not wrapped earlier than it has to be.
    for (columns, most) in [(84, 84), (40, 80), (250, 100)] {
        let (mut seen, written) = terminal(columns);
        let mut watch = Command::new(trainprof())
            .args(["run", "--", "sleep", "1"])
            .stdin(Stdio::null())
            .stdout(written)
            .stderr(Stdio::null())
            .spawn()
            .expect("start trainprof");
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // The other end's last close is an error here (EIO).
            let _ = seen.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).replace('\r', "")
        });
        checks.that(watch.wait().expect("an end").success(), || {
            format!("{columns} columns: no report")
        });
        let text = reader.join().expect("what the terminal showed");
        let longest = text.lines().map(|line| line.chars().count()).max();
        checks.that(longest.is_some_and(|n| n <= most && n + 12 > most), || {
            format!("{columns} columns: a line of {longest:?} in {text}")
        });
    }
    checks.done();
}

/// Counts Ctrl-C until it is told that this is enough.
const COUNTS: &str = r#"
n=0
trap 'n=$((n+1))' INT
trap 'echo $n > "$0/got"; exit 0' USR1
: > "$0/ready"
while :; do sleep 0.05; done
"#;

#[test]
fn a_command_gets_each_signal_once() {
    let name = "a_command_gets_each_signal_once";
    let Some(_turn) = root_test(name) else { return };
    let mut checks = Checks::new();
    // From the terminal, which tells the command itself, and from another process, which does not: whatever standard input is.
    for (by_terminal, input_is_terminal) in
        [(true, true), (true, false), (false, true), (false, false)]
    {
        let data = Data::new();
        let folder = data.folder("told");
        let (mut keys, written) = terminal(COLUMNS);
        let input = match input_is_terminal {
            true => Stdio::from(written.try_clone().expect("another descriptor")),
            false => Stdio::null(),
        };
        let end = written.as_raw_fd();
        let mut command = Command::new(trainprof());
        command
            .args(["run", "-q", "--", "sh", "-c", COUNTS])
            .arg(&folder)
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(written.try_clone().expect("another descriptor"));
        // SAFETY: system calls only: the child leads a session of its own, whose terminal is ours.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                match libc::ioctl(end, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
        let mut run = command.spawn().expect("start trainprof");
        let pid = i32::try_from(run.id()).expect("a pid");
        let until = Instant::now() + Duration::from_secs(120);
        while !folder.join("ready").exists() {
            assert!(Instant::now() < until, "the command does not run");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(300));
        if by_terminal {
            keys.write_all(b"\x03").expect("press Ctrl-C");
        } else {
            // SAFETY: a process of our own.
            unsafe { libc::kill(pid, libc::SIGINT) };
        }
        std::thread::sleep(Duration::from_millis(1_000));
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGUSR1) };
        let status = run.wait().expect("an end");
        let got = fs::read_to_string(folder.join("got")).unwrap_or_default();
        checks.that(got.trim() == "1" && status.success(), || {
            format!(
                "by the terminal: {by_terminal}, standard input is it: {input_is_terminal}: got {got:?}, {status}"
            )
        });
    }
    checks.done();
}
