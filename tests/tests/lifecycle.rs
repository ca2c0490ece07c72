//! How a watch ends, what `run` passes on, and what is left in the kernel afterwards.

use std::process::Command;
use std::time::{Duration, Instant};

use trainprof_tests::bpf;
use trainprof_tests::env::{root_test, trainprof};
use trainprof_tests::product::{Watch, finish};
use trainprof_tests::report::{Report, u64_at};
use trainprof_tests::workload::{children, os, program};
use trainprof_tests::{Checks, Data, Workload};

#[test]
fn killing_trainprof_leaves_the_job_alone_and_no_probe_behind() {
    let name = "killing_trainprof_leaves_the_job_alone_and_no_probe_behind";
    let Some(_turn) = root_test(name) else { return };
    let before = bpf::held();
    let data = Data::new();
    let files = data.files("a", 50, "", |i| 100 + i);
    let mut workload = Workload::start("files", os(&[&"-r", &"200", &files]));
    let watch = Watch::attach(workload.pid(), &[]);
    assert!(
        !bpf::held().since(&before).programs.is_empty(),
        "probes are live while it watches"
    );
    workload.go();
    watch.signal(libc::SIGKILL);
    assert_eq!(watch.wait().code(), 128 + 9);
    workload.wait_done();
    assert!(workload.is_alive(), "the job goes on");
    let truth = workload.finish();
    assert_eq!(
        u64_at(&truth, "/total/read/errors"),
        0,
        "the job is unharmed"
    );
    bpf::wait_until_gone(&before);
}

/// Waits until none of these processes is there any more; a process that has ended and was not waited for is not.
fn wait_until_ended(what: &str, pids: &[i32]) {
    let lives = |pid: &&i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    };
    let until = Instant::now() + Duration::from_secs(30);
    while let Some(pid) = pids.iter().find(lives) {
        assert!(
            Instant::now() < until,
            "{what}: process {pid} is still there"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn killing_run_leaves_a_command_that_has_begun_alone() {
    let name = "killing_run_leaves_a_command_that_has_begun_alone";
    let Some(_turn) = root_test(name) else { return };
    let before = bpf::held();
    let data = Data::new();
    let [begun, done, go] = ["begun", "done", "go"].map(|name| data.path(name));
    let script = r#"echo $$ > "$0.new" && mv "$0.new" "$0"
        until [ -e "$2" ]; do sleep 0.1; done; echo > "$1""#;
    let command = os(&[&"sh", &"-c", &script, &begun, &done, &go]);
    let mut watch = Watch::run(&[], &command, &[]);
    watch.wait_watching();
    let until = Instant::now() + Duration::from_secs(60);
    while !begun.exists() {
        assert!(Instant::now() < until, "the command has not begun");
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = std::fs::read_to_string(&begun).expect("the command's number");
    let command: i32 = text.trim().parse().expect("a number");
    let all = children(watch.pid());
    let helpers: Vec<i32> = all.iter().copied().filter(|pid| *pid != command).collect();
    assert!(
        all.contains(&command) && !helpers.is_empty(),
        "{all:?}, command {command}"
    );
    watch.signal(libc::SIGKILL);
    wait_until_ended("trainprof", &[watch.pid()]);
    wait_until_ended("a helper", &helpers);
    bpf::wait_until_gone(&before);
    // SAFETY: signal 0 only asks whether the process is there.
    assert_eq!(unsafe { libc::kill(command, 0) }, 0, "the command goes on");
    std::fs::write(&go, "").expect("let go");
    wait_until_ended("the command", &[command]);
    assert!(done.exists(), "the command did not come to its end");
    // The command had its standard output, which this waits for.
    assert_eq!(watch.wait().code(), 128 + 9);
}

#[test]
fn a_command_that_has_not_begun_ends_with_run() {
    let name = "a_command_that_has_not_begun_ends_with_run";
    let Some(_turn) = root_test(name) else { return };
    let before = bpf::held();
    let data = Data::new();
    let begun = data.path("begun");
    let mut held = 0;
    for delay_ms in [0, 20, 50, 100, 200] {
        let command = os(&[&"sh", &"-c", &r#"echo > "$0"; sleep 1"#, &begun]);
        let watch = Watch::run(&[], &command, &[]);
        let until = Instant::now() + Duration::from_secs(60);
        // The first is the command, which waits to be let go.
        while children(watch.pid()).is_empty() {
            assert!(Instant::now() < until, "nothing was launched");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(delay_ms));
        let all = children(watch.pid());
        watch.signal(libc::SIGKILL);
        assert_eq!(watch.wait().code(), 128 + 9);
        wait_until_ended("the command or a helper", &all);
        if begun.exists() {
            // It had begun: it came to its end.
            std::fs::remove_file(&begun).expect("removed");
        } else {
            held += 1;
        }
    }
    assert!(held > 0, "none was killed before the command had begun");
    bpf::wait_until_gone(&before);
}

#[test]
fn nothing_is_left_in_the_kernel_after_a_watch() {
    let Some(_turn) = root_test("nothing_is_left_in_the_kernel_after_a_watch") else {
        return;
    };
    let before = bpf::held();
    let mut workload = Workload::start("memcalls", os(&[&"5"]));
    let watch = Watch::attach(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    assert_eq!(watch.stop().code(), 0);
    bpf::wait_until_gone(&before);
}

#[test]
fn only_clocks_of_whole_cpus_stay_open() {
    let Some(_turn) = root_test("only_clocks_of_whole_cpus_stay_open") else {
        return;
    };
    let workload = Workload::start("memcalls", os(&[&"5"]));
    let watch = Watch::attach(workload.pid(), &[]);
    let descriptors = format!("/proc/{}/fd", watch.pid());
    let events = || {
        let all = std::fs::read_dir(&descriptors).expect("descriptors");
        let links = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains("[perf_event]"))
            .count()
    };
    // Two clocks and page faults, of each CPU. One of a thread makes every switch on the host slower while it is open.
    // SAFETY: no preconditions.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize;
    assert!(events() > 3 * cpus, "{} at first", events());
    let until = Instant::now() + Duration::from_secs(60);
    while events() > 3 * cpus {
        assert!(Instant::now() < until, "{} stay open", events());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(events(), 3 * cpus);
    assert_eq!(watch.stop().code(), 0);
}

#[test]
fn signals_end_the_watch_and_not_the_job() {
    let Some(_turn) = root_test("signals_end_the_watch_and_not_the_job") else {
        return;
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut workload = Workload::start("memcalls", os(&[&"5"]));
        let watch = Watch::attach(workload.pid(), &[]);
        workload.go();
        workload.wait_done();
        watch.signal(signal);
        let ended = watch.wait();
        assert_eq!(ended.code(), 0, "signal {signal}:\n{}", ended.stderr);
        assert!(
            ended.stdout.len() > 100,
            "signal {signal}: the report is printed: {:?}",
            ended.stdout
        );
        assert!(ended.report().f64("/duration_s") > 0.0);
        assert!(workload.is_alive(), "signal {signal} ended the job");
        workload.finish();
    }
}

#[test]
fn a_duration_ends_the_watch() {
    let Some(_turn) = root_test("a_duration_ends_the_watch") else {
        return;
    };
    let mut workload = Workload::start("memcalls", os(&[&"5"]));
    let watch = Watch::attach(workload.pid(), &os(&[&"-d", &"1500ms"]));
    let started = Instant::now();
    let ended = watch.wait();
    let took = started.elapsed();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let mut checks = Checks::new();
    checks.that(took > Duration::from_millis(1_400), || {
        format!("ended after {took:?}")
    });
    checks.that(took < Duration::from_millis(4_000), || {
        format!("ended only after {took:?}")
    });
    let seconds = ended.report().f64("/duration_s");
    checks.that((1.45..2.0).contains(&seconds), || {
        format!("duration_s {seconds}, asked for 1.5")
    });
    checks.that(workload.is_alive(), || "the job ended".into());
    checks.done();
}

#[test]
fn the_end_of_the_job_ends_the_watch() {
    let Some(_turn) = root_test("the_end_of_the_job_ends_the_watch") else {
        return;
    };
    let data = Data::new();
    let files = data.files("a", 50, "", |i| 3_000 + i);
    let mut workload = Workload::start("files", os(&[&files]));
    let watch = Watch::attach(workload.pid(), &os(&[&"--top", &"1000"]));
    workload.go();
    workload.wait_done();
    let truth = workload.finish();
    let ended = watch.wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    let total = &truth["total"];
    checks.exact(
        "reads",
        u64_at(total, "/read/count"),
        report.u64("/io/reads"),
    );
    checks.exact(
        "opens",
        u64_at(total, "/open/count"),
        report.u64("/io/opens"),
    );
    checks.done();
}

#[test]
fn trainprof_is_not_of_the_job_that_it_was_started_in() {
    let Some(_turn) = root_test("trainprof_is_not_of_the_job_that_it_was_started_in") else {
        return;
    };
    // A shell that watches itself, starts a job once it is watched, and ends: then nobody of the job is left.
    let script = r#"
        "$0" attach $$ -d 100s -q -o "$1/rec" --json "$1/json" 2> "$1/said" &
        until grep -q 'trainprof: watching' "$1/said"; do sleep 0.1; done
        sleep 1.5"#;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(trainprof())
        .arg(folder.path());
    // Trainprof holds the shell's standard output open: this waits for both.
    let ended = finish(command);
    let said = std::fs::read_to_string(folder.path().join("said")).expect("what it said");
    assert_eq!(ended.code(), 0, "{said}{}", ended.stderr);
    let json = std::fs::read_to_string(folder.path().join("json")).expect("a report");
    let report = Report::parse(&json);
    let mut checks = Checks::new();
    checks.that(report.at("/ended") == "job-ended", || {
        format!("it ended by {}", report.at("/ended"))
    });
    let rows = report.rows("/job/processes");
    let commands = || rows.iter().map(|row| row["command"].to_string());
    checks.that(commands().any(|c| c.contains("\"1.5\"")), || {
        "the job is not in the report".into()
    });
    checks.that(
        !commands()
            .any(|c| c.contains("\"attach\"") && c.contains("\"-q\"") && !c.contains("\"-c\"")),
        || {
            format!(
                "trainprof is in the job: {:?}",
                commands().collect::<Vec<_>>()
            )
        },
    );
    checks.done();
}

#[test]
fn two_watches_of_one_process_are_both_right() {
    let Some(_turn) = root_test("two_watches_of_one_process_are_both_right") else {
        return;
    };
    let data = Data::new();
    let files = data.files("a", 100, "", |i| 3_000 + i);
    let mut workload = Workload::start("files", os(&[&"-r", &"10", &files]));
    let watches = [
        Watch::attach(workload.pid(), &[]),
        Watch::attach(workload.pid(), &[]),
    ];
    workload.go();
    workload.wait_done();
    let reports = watches.map(|watch| {
        let ended = watch.stop();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        ended.report()
    });
    let truth = workload.finish();
    let mut checks = Checks::new();
    for (which, report) in ["first", "second"].iter().zip(&reports) {
        checks.nothing_lost(report);
        let total = &truth["total"];
        checks.exact(
            &format!("{which}: reads"),
            u64_at(total, "/read/count"),
            report.u64("/io/reads"),
        );
        checks.exact(
            &format!("{which}: bytes"),
            u64_at(total, "/read/bytes"),
            report.u64("/io/bytes_read"),
        );
    }
    checks.done();
}

#[test]
fn several_processes_in_one_watch() {
    let Some(_turn) = root_test("several_processes_in_one_watch") else {
        return;
    };
    let data = Data::new();
    let (a, b) = (
        data.files("a", 30, "", |i| 100 + i),
        data.files("b", 40, "", |i| 200 + i),
    );
    let mut first = Workload::start("files", os(&[&a]));
    let mut second = Workload::start("files", os(&[&b]));
    let watch = Watch::attach(
        first.pid(),
        &os(&[&second.pid().to_string(), &"--top", &"1000"]),
    );
    for workload in [&mut first, &mut second] {
        workload.go();
        workload.wait_done();
    }
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    for (workload, folder) in [(first, &a), (second, &b)] {
        let total = workload.finish()["total"].clone();
        let (opens, reads) = (u64_at(&total, "/open/count"), u64_at(&total, "/read/count"));
        checks.directory(
            &report,
            &folder.to_string_lossy(),
            opens,
            Some(reads),
            u64_at(&total, "/read/bytes"),
        );
    }
    checks.done();
}

#[test]
fn run_passes_on_how_the_command_ended() {
    let Some(_turn) = root_test("run_passes_on_how_the_command_ended") else {
        return;
    };
    let sh = |script: &str| Watch::run(&[], &os(&[&"sh", &"-c", &script]), &[]).wait();
    assert_eq!(sh("exit 0").code(), 0);
    assert_eq!(sh("exit 7").code(), 7);
    assert_eq!(sh("exit 255").code(), 255);
    assert_eq!(sh("kill -TERM $$").code(), 128 + 15);
    assert_eq!(sh("kill -KILL $$").code(), 128 + 9);
    let ended = sh("echo from-the-job; echo to-stderr >&2; exit 3");
    assert_eq!(ended.code(), 3);
    assert!(ended.stdout.contains("from-the-job"), "{}", ended.stdout);
    assert!(ended.stderr.contains("to-stderr"), "{}", ended.stderr);
}

#[test]
fn run_sees_the_command_from_its_first_instruction() {
    let Some(_turn) = root_test("run_sees_the_command_from_its_first_instruction") else {
        return;
    };
    let data = Data::new();
    let files = data.files("a", 60, "", |i| 5_000 + i);
    let truth_path = data.path("truth.json");
    let ended = Watch::run(
        &os(&[&"--top", &"1000"]),
        &os(&[&program("files"), &truth_path, &"-r", &"3", &files]),
        &[("WL_NOGATE", "1")],
    )
    .wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let text = std::fs::read_to_string(&truth_path).expect("the ground truth");
    let truth: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let report = ended.report();
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    let total = &truth["total"];
    // The workload lists its folder before it works and writes its truth after: both are in this window.
    let opens = u64_at(total, "/open/count");
    let (reads, bytes) = (u64_at(total, "/read/count"), u64_at(total, "/read/bytes"));
    checks.directory(
        &report,
        &files.to_string_lossy(),
        opens + 1,
        Some(reads),
        bytes,
    );
    checks.exact("bytes", bytes, report.u64("/io/bytes_read"));
    checks.exact(
        "bytes written",
        text.len() as u64,
        report.u64("/io/bytes_written"),
    );
    checks.done();
}

#[test]
fn run_passes_signals_to_the_command() {
    let Some(_turn) = root_test("run_passes_signals_to_the_command") else {
        return;
    };
    let passed = [
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGPWR,
        libc::SIGRTMIN() + 1,
        libc::SIGRTMAX(),
    ];
    let traps = passed.map(|signal| format!("trap 'exit {}' {signal}; ", 40 + signal));
    let script = traps.concat() + "while :; do sleep 0.05; done";
    for signal in passed {
        let code = 40 + signal;
        let mut watch = Watch::run(&[], &os(&[&"sh", &"-c", &script]), &[]);
        watch.wait_watching();
        std::thread::sleep(Duration::from_millis(300));
        watch.signal(signal);
        let ended = watch.wait();
        assert_eq!(ended.code(), code, "signal {signal}:\n{}", ended.stderr);
        assert!(
            ended.report().f64("/duration_s") > 0.0,
            "the report is still written"
        );
    }
}
