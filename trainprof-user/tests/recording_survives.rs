//! Recordings that end before their time: a full disk, a file size limit, a killed recorder.

use std::env;
use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use trainprof_user::record::{Completeness, Incomplete, Reader, WriteError, Writer};

const LIMIT: u64 = 64 * 1024;

/// The nth record: its number, and bytes so that a block of some does not end where a page does.
fn nth(n: u64) -> (u64, Vec<u8>) {
    (n, vec![n as u8; 700])
}

/// Records without end until the file takes no more, and checks that what is left is whole.
fn record_until_refused(path: &Path, errno: i32) {
    let mut writer = Writer::create(path).expect("created");
    let mut pushed = 0;
    let mut errors = Vec::new();
    for n in 0..2 * LIMIT / 700 {
        pushed += 1;
        errors.extend(writer.push(&nth(n)).err());
        if n % 7 == 6 {
            errors.extend(writer.flush_block().err());
        }
    }
    errors.extend(writer.sync().err());
    let written = writer.written();
    assert!(written.blocks > 3, "some of it fits: {written:?}");
    assert_eq!(written.records + writer.lost(), pushed);
    let [WriteError::Io { offset, source, .. }] = errors.as_slice() else {
        panic!("one error, once: {errors:?}");
    };
    assert_eq!(source.raw_os_error(), Some(errno), "{source}");
    assert_eq!(*offset, written.bytes);
    assert_eq!(fs::metadata(path).expect("stat").len(), written.bytes);
    assert!(writer.finish().is_err(), "a failed recording cannot finish");

    let (records, completeness) = read(path);
    assert_eq!(records, written.records);
    let expected = Incomplete::NoEndMark {
        offset: written.bytes,
    };
    assert_eq!(completeness, expected.into());
}

/// Checks that the recording at `path` holds the first records, and counts them.
fn read(path: &Path) -> (u64, Completeness) {
    let mut reader = Reader::open(path).expect("a recording");
    let mut records = 0;
    for record in reader.records::<(u64, Vec<u8>)>() {
        assert_eq!(record.expect("readable"), nth(records));
        records += 1;
    }
    (records, reader.completeness().clone())
}

/// Mounts a tmpfs of 64 KiB at `dir`, in a mount namespace that ends with this thread.
fn mount_small_tmpfs(dir: &Path) -> io::Result<()> {
    let check = |result: i32| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let dir = CString::new(dir.as_os_str().as_bytes())?;
    let none = std::ptr::null();
    // SAFETY: unshare takes no pointers, and affects this thread only.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the target is a NUL-terminated literal; mount(2) ignores the other pointers for a change
    // of propagation.
    check(unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) })?;
    let tmpfs = c"tmpfs".as_ptr();
    let options = c"size=64k".as_ptr();
    // SAFETY: all are NUL-terminated strings that outlive the call.
    check(unsafe { libc::mount(tmpfs, dir.as_ptr(), tmpfs, 0, options.cast()) })
}

#[test]
fn a_full_disk_leaves_whole_blocks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mount_point = dir.path().to_owned();
    // A thread of its own, for the mount namespace.
    let done = thread::spawn(move || match mount_small_tmpfs(&mount_point) {
        Ok(()) => record_until_refused(&mount_point.join("rec"), libc::ENOSPC),
        Err(error) if env::var_os("CI").is_none() => {
            eprintln!(
                "SKIPPED a_full_disk_leaves_whole_blocks: cannot mount a tmpfs ({error}); run it as root"
            );
        }
        Err(error) => panic!("cannot mount a tmpfs, and under CI nothing is skipped: {error}"),
    });
    done.join().expect("see above");
}

/// Set in the children that the tests below start: where to record to.
const CHILD_PATH: &str = "TRAINPROF_TEST_RECORD_TO";

/// This test program again, running only `test`, which finds `path` in its environment.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("a path"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_PATH, path);
    command
}

fn child_path() -> Option<PathBuf> {
    env::var_os(CHILD_PATH).map(PathBuf::from)
}

#[test]
fn a_file_size_limit_leaves_whole_blocks() {
    if let Some(path) = child_path() {
        return record_until_refused(&path, libc::EFBIG);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = child(
        "a_file_size_limit_leaves_whole_blocks",
        &dir.path().join("rec"),
    );
    let limit = || {
        let limit = libc::rlimit {
            rlim_cur: LIMIT,
            rlim_max: LIMIT,
        };
        // SAFETY: `limit` outlives the call, which only reads it.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
        // Without this the kernel kills the writer instead of refusing the write (setrlimit(2)).
        // SAFETY: no handler is installed: the signal is ignored.
        let ignored = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        match limited == 0 && ignored != libc::SIG_ERR {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: setrlimit and signal are system calls without locks or allocation: safe after fork.
    unsafe { command.pre_exec(limit) };
    let status = command.status().expect("started");
    assert!(status.success(), "{status}");
}

#[test]
fn a_killed_recorder_leaves_all_that_it_flushed() {
    if let Some(path) = child_path() {
        return record_and_say_so(&path);
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("rec");
    let mut recorder = child("a_killed_recorder_leaves_all_that_it_flushed", &path)
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stderr = BufReader::new(recorder.stderr.take().expect("a pipe"));
    let flushed = stderr
        .by_ref()
        .lines()
        .map(|line| line.expect("a line"))
        .filter(|line| line == "flushed")
        .take(50)
        .count() as u64;
    recorder.kill().expect("killed");
    let status = recorder.wait().expect("waited for");
    assert_eq!(
        status.signal(),
        Some(libc::SIGKILL),
        "it was still recording"
    );
    assert_eq!(flushed, 50);
    let (records, completeness) = read(&path);
    assert!(records >= 3 * flushed, "{records} of {flushed} blocks");
    assert!(matches!(completeness, Completeness::Incomplete(_)));
}

/// Flushes blocks of three records, and says so each time, until killed.
fn record_and_say_so(path: &Path) {
    let mut writer = Writer::create(path).expect("created");
    for n in 0..3_000_000 {
        writer.push(&nth(n)).expect("stored");
        if n % 3 == 2 {
            writer.flush_block().expect("written");
            eprintln!("flushed");
        }
    }
}
