//! What could not be seen is counted, by reason, and shown.

use std::{
    collections::BTreeSet,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

use serde_json::Value;
use trainprof_common::thread::{State, ThreadState};
use trainprof_tests::{
    Checks, Data, Finished, Observed, Watch, Workload,
    bpf_map::KernelMap,
    env::{left_out_in_vm, root_test},
    observe_in,
    product::trainprof,
    report::{f64_at, u64_at},
    workload::{os, program},
};

/// Threads that are followed at once (`Limits::for_this_host`).
const FOLLOWED: u64 = 16_384;

/// The loss is in the sum, in the text, and in the report of the recording.
fn shown(checks: &mut Checks, ended: &Finished, reason: &str) -> u64 {
    let report = ended.report();
    let by_reason = report.at("/coverage/lost_by_reason");
    let lost = by_reason[reason].as_u64().unwrap_or(0);
    let sum = by_reason.as_object().expect("reasons").values();
    let sum = sum.filter_map(serde_json::Value::as_u64).sum();
    checks.exact("the sum of all reasons", sum, report.lost());
    // It is told when, too; the 20 worst times are listed.
    let windows = report.rows("/coverage/lost_windows");
    let in_windows = windows.iter().map(|window| u64_at(window, "/lost")).sum();
    if windows.len() < 20 {
        checks.exact("the sum of all windows", report.lost(), in_windows);
    }
    for window in windows {
        let (from, to) = (f64_at(window, "/from_s"), f64_at(window, "/to_s"));
        checks.that(0.0 <= from && from < to, || format!("{window}"));
        checks.that(to <= report.f64("/duration_s") + 0.1, || {
            format!("{window}")
        });
    }
    let words = format!("{reason} {lost}");
    checks.that(ended.stdout.contains(&words), || {
        format!("no {words:?} in the text:\n{}", ended.stdout)
    });
    let recording = ended.recording.to_string_lossy().into_owned();
    let again = trainprof(["report", &recording, "--format", "json"]);
    checks.that(again.stdout.as_bytes() == ended.json, || {
        "the recording tells another loss".to_owned()
    });
    lost
}

#[test]
fn threads_that_there_is_no_room_for_are_counted() {
    let name = "threads_that_there_is_no_room_for_are_counted";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "memory for many threads") {
        return;
    }
    let threads = FOLLOWED + 600;
    let mut job = Workload::start("throng", [threads.to_string()]);
    let watch = Watch::attach(job.pid(), &["--alloc".into(), "off".into()]);
    job.go();
    job.wait_done();
    let ended = watch.stop();
    let truth = job.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &ended, "threads-full");
    checks.exact("threads lost", u64_at(&truth, "/threads") - FOLLOWED, lost);
    let row = ended.report();
    let row = row
        .process(u64_at(&truth, "/pid"))
        .expect("its row")
        .clone();
    checks.exact("threads seen", FOLLOWED, u64_at(&row, "/threads"));
    checks.done();
}

#[test]
fn events_that_nobody_fetches_in_time_are_counted() {
    let name = "events_that_nobody_fetches_in_time_are_counted";
    let Some(_turn) = root_test(name) else { return };
    let mut job = Workload::start("flurry", ["4", "12000", "500"]);
    let watch = Watch::attach(job.pid(), &["--alloc".into(), "off".into()]);
    // A collector that gets no CPU for a long time.
    watch.signal(libc::SIGSTOP);
    job.go();
    sleep(Duration::from_secs(10));
    watch.signal(libc::SIGCONT);
    job.wait_done();
    let ended = watch.stop();
    job.finish();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &ended, "ring-full");
    checks.that(lost > 0, || {
        format!("nothing lost: {}", ended.report().at("/coverage"))
    });
    checks.done();
}

/// A loss that is brought about by taking room or a member away: see `trainprof-user/src/kernel/taken.rs`.
struct Lack {
    reason: &'static str,
    variable: &'static str,
    value: &'static str,
    workload: &'static str,
    options: &'static [&'static str],
    /// What is true, and where the report tells it: no more than that.
    most: &'static [(&'static str, &'static str)],
}

const OPENS: &[(&str, &str)] = &[
    ("/total/open/count", "/io/operations/open/count"),
    ("/total/read/bytes", "/io/operations/read/bytes"),
    ("/total/close/count", "/io/operations/close/count"),
    ("/total/stat/count", "/io/operations/stat/count"),
];

const LACKS: &[Lack] = &[
    Lack {
        reason: "op-cells-full",
        variable: "TRAINPROF_ROOM",
        value: "OPS_A=1,OPS_B=1",
        workload: "files",
        options: &["-e", "-t", "4", "-r", "3"],
        most: OPENS,
    },
    Lack {
        reason: "wait-cells-full",
        variable: "TRAINPROF_ROOM",
        value: "WAITS_A=1,WAITS_B=1",
        workload: "files",
        options: &["-t", "4", "-p", "20000"],
        most: OPENS,
    },
    Lack {
        reason: "filesets-full",
        variable: "TRAINPROF_ROOM",
        value: "FILESETS=3",
        workload: "files",
        options: &["-s"],
        most: OPENS,
    },
    Lack {
        reason: "touches-full",
        variable: "TRAINPROF_ROOM",
        value: "TOUCHES=1",
        workload: "files",
        options: &["-t", "4", "-r", "20"],
        most: OPENS,
    },
    Lack {
        reason: "ended-full",
        variable: "TRAINPROF_ROOM",
        value: "ENDED=1",
        workload: "files",
        options: &["-t", "8"],
        most: OPENS,
    },
];

#[test]
fn each_table_that_is_full_is_a_loss_of_its_own() {
    let Some(_turn) = root_test("each_table_that_is_full_is_a_loss_of_its_own") else {
        return;
    };
    let data = Data::new();
    let folders: Vec<_> = (0..8)
        .map(|d| data.files(&format!("d{d}"), 5, "jpg", |i| 700 + 10 * d + i))
        .collect();
    for lack in LACKS {
        eprintln!("{}", lack.reason);
        let mut args: Vec<std::ffi::OsString> = lack.options.iter().map(Into::into).collect();
        args.extend(folders.iter().map(|folder| folder.clone().into_os_string()));
        let workload = Workload::start(lack.workload, &args);
        check_lack(lack, workload);
    }
    // A process whose heap's end is not known: by how much its first brk moved it is lost, not what follows.
    let unmatched = Lack {
        reason: "unmatched-exit",
        variable: "TRAINPROF_WITHOUT",
        value: "mm_brk",
        workload: "memcalls",
        options: &["30"],
        most: &[
            ("/calls/brk/count", "/memory/calls/brk/count"),
            ("/calls/mmap/bytes", "/memory/calls/mmap/bytes"),
        ],
    };
    check_lack(
        &unmatched,
        Workload::start(unmatched.workload, unmatched.options),
    );
    // Its read began before the watch, and its descriptor is gone when it returns: nothing has to be taken away.
    let unresolved = Lack {
        reason: "unresolved-descriptor",
        variable: "TRAINPROF_ROOM",
        value: "",
        workload: "blocked",
        options: &[],
        most: &[],
    };
    check_lack(
        &unresolved,
        Workload::start(unresolved.workload, unresolved.options),
    );
    let ring = Lack {
        reason: "io-uring-full",
        variable: "TRAINPROF_ROOM",
        value: "URING=1",
        workload: "iouring",
        options: &["-q8"],
        most: &[
            ("/uring/count", "/io/reads"),
            ("/uring/bytes", "/io/bytes_read"),
        ],
    };
    let large = data.files("ring", 1, "bin", |_| 1_000_000);
    let args = os(&[&ring.options[0], &large.join("0.bin")]);
    let Observed { truth, report, .. } = check_lack(&ring, Workload::start(ring.workload, &args));
    // Only their beginnings are lost: they are counted where they complete.
    assert_eq!(report.u64("/io/reads"), u64_at(&truth, "/uring/count"));
}

fn check_lack(lack: &Lack, workload: Workload) -> Observed {
    let pid = workload.pid();
    let seen = observe_in(
        workload,
        pid,
        &os(&[&"--gpu", &"off", &"--alloc", &"off"]),
        &[(lack.variable, lack.value)],
    );
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &seen.finished, lack.reason);
    checks.that(lost > 0, || {
        format!(
            "{}: nothing lost: {}",
            lack.reason,
            seen.report.at("/coverage")
        )
    });
    for (truth, reported) in lack.most {
        let (truth_is, says) = (u64_at(&seen.truth, truth), seen.report.u64(reported));
        checks.that(says <= truth_is, || {
            format!("{}: {reported} is {says}, truth {truth_is}", lack.reason)
        });
    }
    checks.done();
    seen
}

/// A shell that opens a file and then waits for a child for half a second, again and again.
const OPENS_AND_WAITS: &str = "while :; do : < /proc/self/stat; sleep 0.5; done";

/// The kernel shows each end and each switch here: what the probes know of a thread is falsified while it waits, as if one had not
/// been shown.
fn falsified(taken: &[(&str, &str)], falsify: impl Fn(&mut ThreadState)) -> Finished {
    let job = Command::new("sh").args(["-c", OPENS_AND_WAITS]).spawn();
    let job = Killed(job.expect("a job"));
    let pid = job.0.id();
    let options = os(&[&"--alloc", &"off", &"--gpu", &"off"]);
    let watch = Watch::attach_in(pid as i32, &options, taken);
    let places = KernelMap::<u32>::of(watch.pid(), "THREADS");
    let states = KernelMap::<ThreadState>::of(watch.pid(), "STATES");
    // It has opened, and its wait has just begun.
    sleep(Duration::from_secs(1));
    let place = places.get(pid).expect("it is followed");
    let begun = states.get(place).expect("its state").since;
    let waits = |state: &ThreadState| {
        state.since != begun && state.state == State::Wait as u32 && state.woken_at == 0
    };
    let mut looks = (0..1_000).map(|_| {
        sleep(Duration::from_millis(5));
        states.get(place).expect("its state")
    });
    let mut state = looks.find(waits).expect("it waits");
    falsify(&mut state);
    states.set(place, &state).expect("it is written");
    let written = states.get(place).expect("its state");
    assert_eq!(
        (written.state, written.op_enter),
        (state.state, state.op_enter),
        "it went on"
    );
    sleep(Duration::from_secs(1));
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    ended
}

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

#[test]
fn an_end_that_was_not_shown_is_a_loss() {
    let Some(_turn) = root_test("an_end_that_was_not_shown_is_a_loss") else {
        return;
    };
    let ended = falsified(&[], |state| state.op_enter = state.since);
    let mut checks = Checks::new();
    let lost = shown(&mut checks, &ended, "unmatched-entry");
    checks.exact("calls lost", 1, lost);
    checks.done();
}

#[test]
fn a_switch_that_was_not_shown_is_a_loss_where_nothing_tells_what_was_between() {
    let name = "a_switch_that_was_not_shown_is_a_loss_where_nothing_tells_what_was_between";
    let Some(_turn) = root_test(name) else { return };
    let runs = |state: &mut ThreadState| state.state = State::Run as u32;
    let mut checks = Checks::new();
    let ended = falsified(&[("TRAINPROF_WITHOUT", "task_exec_ns")], runs);
    let lost = shown(&mut checks, &ended, "unmatched-switch");
    checks.exact("switches lost", 1, lost);
    // The kernel's own account of CPU time tells how much of it the thread ran.
    let ended = falsified(&[], runs);
    checks.nothing_lost(&ended.report());
    checks.done();
}

#[test]
fn calls_of_32_bit_programs_are_no_others() {
    let Some(_turn) = root_test("calls_of_32_bit_programs_are_no_others") else {
        return;
    };
    let mut job = Command::new(program("foreign")).spawn().expect("a job");
    let watch = Watch::attach(job.id() as i32, &["-d".into(), "2s".into()]);
    let ended = watch.wait();
    drop(job.kill().and_then(|()| job.wait()));
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    for operation in ["stat", "fsync"] {
        let path = format!("/io/operations/{operation}/count");
        checks.exact(&path, 0, report.u64(&path));
    }
    let waits = report.process(job.id().into()).map(|row| &row["waits"]);
    let waits = waits.and_then(Value::as_array).expect("its waits");
    let mut named: BTreeSet<_> = waits.iter().map(|row| row["syscall"].as_str()).collect();
    // It may go on between the two looks at what it waits for when the watch begins.
    named.remove(&Some("unseen"));
    checks.that(
        named == BTreeSet::from([Some("32-bit syscall 162")]),
        || format!("it sleeps: {named:?}"),
    );
    checks.that(report.f64("/trainer/share/io_wait") == 0.0, || {
        report.at("/trainer").to_string()
    });
    let missing = report.rows("/coverage/missing").iter();
    let what: Vec<_> = missing.map(|row| row["what"].to_string()).collect();
    checks.that(what.iter().any(|what| what.contains("32-bit")), || {
        format!("what is missing is named: {what:?}")
    });
    checks.nothing_lost(&report);
    checks.done();
}
