//! Who belongs to the job: processes and threads from before the attach, and all that come later.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use trainprof_tests::env::{in_vm, left_out_in_vm, root_test};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, Watch, observe};

const WAYS: [&str; 8] = [
    "fork", "grand", "exec", "short", "thread", "texec", "vfork", "orphan",
];

fn pids(rows: &Value) -> BTreeSet<u64> {
    let rows = rows.as_array().expect("pids of the truth");
    rows.iter().filter_map(Value::as_u64).collect()
}

#[test]
fn whoever_is_started_while_watching_is_followed() {
    let Some(_turn) = root_test("whoever_is_started_while_watching_is_followed") else {
        return;
    };
    let data = Data::new();
    for (i, way) in WAYS.iter().enumerate() {
        data.files(&format!("ways/{way}"), 3 + i, "", |n| 1_500 * (n + 1) + i);
    }
    let seen = observe("forker", &os(&[&data.path("ways"), &"100"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for (path, counts) in truth["dirs"].as_object().expect("directories of the truth") {
        let (opens, reads) = (u64_at(counts, "/open/count"), u64_at(counts, "/read/count"));
        checks.directory(
            report,
            path,
            opens,
            Some(reads),
            u64_at(counts, "/read/bytes"),
        );
    }
    let total = &truth["total"];
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
    let known: BTreeSet<u64> = report
        .rows("/job/processes")
        .iter()
        .filter_map(|row| row["pid"].as_u64())
        .collect();
    for pid in pids(&truth["pids"]) {
        checks.that(known.contains(&pid), || {
            format!("process {pid} read files and is not in the report")
        });
    }
    checks.done();
}

/// More come at a time than are looked at as they come.
#[test]
fn whoever_comes_in_numbers_and_lives_for_a_while_is_described() {
    let Some(_turn) = root_test("whoever_comes_in_numbers_and_lives_for_a_while_is_described")
    else {
        return;
    };
    const LIVE: usize = 60;
    let script = format!("for i in $(seq {LIVE}); do env sleep 4 & env true; done; wait");
    let ended = Watch::run(&[], &os(&[&"sh", &"-c", &script]), &[]).wait();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report = ended.report();
    let processes = report.rows("/job/processes");
    let described = |row: &&Value| row["command"] == json!(["sleep", "4"]);
    let mut checks = Checks::new();
    checks.nothing_lost(&report);
    // With the shell and what it has numbers from.
    checks.exact("processes", 2 + 2 * LIVE as u64, processes.len() as u64);
    let described: Vec<&Value> = processes.iter().filter(described).collect();
    checks.exact("described", LIVE as u64, described.len() as u64);
    for row in described {
        checks.that(row["name"] == "sleep" && row["ended"] == true, || {
            row.to_string()
        });
        checks.that(f64_at(row, "/start_time") > 0.0, || row.to_string());
    }
    checks.done();
}

/// `pthread_exit(3)` in `main` ends the first thread, not the process: what its other threads do is told all the same, and by one of them.
#[test]
fn a_process_whose_first_thread_has_ended_is_watched() {
    let Some(_turn) = root_test("a_process_whose_first_thread_has_ended_is_watched") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("left", 40, "", |n| 500 * (n + 1));
    let seen = observe("headless", &os(&[&folder, &"40"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    checks.directory(
        report,
        &folder.to_string_lossy(),
        u64_at(truth, "/opens"),
        Some(u64_at(truth, "/reads")),
        u64_at(truth, "/bytes"),
    );
    let process = &report.rows("/job/processes")[0];
    assert_eq!(process["pid"], truth["pid"]);
    let command = process["command"].to_string();
    assert!(command.contains("headless"), "the command line: {command}");
    checks.near(
        "seconds on a CPU of who goes on",
        f64_at(truth, "/cpu_s"),
        f64_at(process, "/share/on_cpu") * report.f64("/duration_s"),
    );
    let resident = u64_at(process, "/rss_bytes/first");
    checks.that(resident > 0, || format!("its memory: {resident} bytes"));
    let missing = report.rows("/coverage/missing");
    let told = format!("calls in libraries of process {}", report.u64("/job/pid"));
    checks.that(missing.iter().any(|row| row["what"] == told), || {
        format!("not told that {told} are not seen: {missing:?}")
    });
    checks.done();
}

/// Attaching takes a moment, in which a job makes processes and threads: none of them slips through.
#[test]
fn whoever_is_made_while_we_attach_is_followed() {
    let name = "whoever_is_made_while_we_attach_is_followed";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "an attach that takes less than ten seconds") {
        return;
    }
    const KINDS: [&str; 3] = ["child", "grandchild", "thread"];
    let data = Data::new();
    let folders = KINDS.map(|kind| data.files(&format!("made/{kind}"), 3, "", |n| 1_000 + n));
    let seen = observe("spawning", &os(&[&data.path("made")]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let before = u64_at(truth, "/made_before_the_gate");
    assert!(before >= 100, "only {before} were made in time");
    for (kind, folder) in KINDS.iter().zip(&folders) {
        let of = |what: &str| u64_at(truth, &format!("/{kind}/{what}"));
        assert_eq!(
            of("tally/open/count"),
            3 * of("made"),
            "the workload's own count"
        );
        checks.directory(
            report,
            &folder.to_string_lossy(),
            of("tally/open/count"),
            Some(of("tally/read/count")),
            of("tally/read/bytes"),
        );
    }
    let mut all = pids(&truth["pids"]);
    all.insert(u64_at(truth, "/pid"));
    let told: BTreeSet<u64> = report
        .rows("/job/processes")
        .iter()
        .filter_map(|row| row["pid"].as_u64())
        .collect();
    checks.that(all == told, || {
        format!(
            "not told: {:?}, not of the job: {:?}",
            all.difference(&told),
            told.difference(&all)
        )
    });
    checks.done();
}

#[test]
fn two_processes_with_one_id_are_told_apart() {
    let Some(_turn) = root_test("two_processes_with_one_id_are_told_apart") else {
        return;
    };
    let data = Data::new();
    let folder = data.files("first", 40, "", |n| 1_000 + n);
    let other = data.files("second", 70, "", |n| 3_000 + n);
    let seen = observe("again", &os(&[&folder, &other]));
    let Observed { truth, report, .. } = &seen;
    let id = &truth["id"];
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let of = |rows: &str, key: &str| -> Vec<Value> {
        let rows = report.rows(rows).iter();
        rows.filter(|row| row[key] == *id).cloned().collect()
    };
    let rows = of("/job/processes", "pid");
    assert_eq!(rows.len(), 2, "rows of process {id}: {rows:#?}");
    let workload = |row: &Value| {
        row["command"][0]
            .as_str()
            .is_some_and(|c| c.ends_with("again"))
    };
    checks.that(workload(&rows[0]), || {
        format!("the first one ran {}", rows[0]["command"])
    });
    let executed = json!(["another", "--read", other]);
    checks.that(rows[1]["command"] == executed, || {
        format!("the second one ran {}", rows[1]["command"])
    });
    let lives = truth["lives"].as_array().expect("lives of the truth");
    for (which, (life, row)) in ["first", "second"].iter().zip(lives.iter().zip(&rows)) {
        let mut exact = |what: &str, truth: &str, report: &str| {
            let what = format!("{what} of the {which}");
            checks.exact(&what, u64_at(life, truth), u64_at(row, report));
        };
        exact("start time", "/start_time", "/start_time");
        exact("opens", "/files/open/count", "/io/opens");
        exact("reads", "/files/read/count", "/io/reads");
        exact("bytes", "/files/read/bytes", "/io/bytes_read");
        checks.exact(
            &format!("threads of the {which}"),
            1,
            u64_at(row, "/threads"),
        );
        checks.that(row["parent"] == truth["pid"], || {
            format!("the parent of the {which} is {}", row["parent"])
        });
        checks.that(row["ended"] == true, || {
            format!("the {which} has not ended")
        });
        // Beginning, exec and end are outside the workload's own account.
        let cpu = f64_at(life, "/cpu_s");
        let told = f64_at(row, "/cpu_s");
        let most = cpu + if in_vm() { 0.3 } else { 0.02 };
        checks.between(&format!("CPU time of the {which}"), (cpu, most), told);
    }
    let threads = of("/threads", "tid");
    checks.exact("rows of the thread", 2, threads.len() as u64);
    checks.done();
}

fn crowd(processes: usize, threads: usize, files: usize) {
    let data = Data::new();
    let folder = data.files("data", files, "", |i| 600 + i);
    let seen = observe(
        "crowd",
        &os(&[&folder, &processes.to_string(), &threads.to_string()]),
    );
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
    let rows = report.rows("/job/processes").len() as u64;
    checks.exact("processes", u64_at(truth, "/processes"), rows);
    eprintln!(
        "attached to {processes} x {threads} in {:?}",
        seen.attach_time
    );
    checks.done();
}

#[test]
fn processes_and_threads_from_before_the_attach_are_followed() {
    let name = "processes_and_threads_from_before_the_attach_are_followed";
    let Some(_turn) = root_test(name) else { return };
    crowd(20, 5, 30);
}

#[test]
fn a_thousand_processes_and_ten_thousand_threads() {
    let Some(_turn) = root_test("a_thousand_processes_and_ten_thousand_threads") else {
        return;
    };
    // An emulated machine gets a tenth: it has neither the memory nor the speed.
    if in_vm() {
        crowd(100, 10, 3)
    } else {
        crowd(1_000, 10, 3)
    }
}
