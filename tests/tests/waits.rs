//! Waits by kind, length and waker, time on the CPU, and time spent runnable.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::Value;
use trainprof_tests::env::root_test;
use trainprof_tests::report::{Report, f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Observed, observe};
use trainprof_user::record::{Reader, Record};

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

#[test]
fn waits_have_their_kind_length_and_waker() {
    let Some(_turn) = root_test("waits_have_their_kind_length_and_waker") else {
        return;
    };
    let seen = observe("sleeper", &os(&[&"2"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let threads = truth["threads"].as_array().expect("threads of the truth");
    for thread in threads {
        let (name, kind) = (text(thread, "name"), text(thread, "kind"));
        let Some(row) = report.thread(u64_at(thread, "/tid")) else {
            checks.that(false, || format!("{name}: no row of the thread"));
            continue;
        };
        checks.that(text(row, "name") == name, || {
            format!("{name} is called {}", row["name"])
        });
        checks.exact(
            &format!("{name} pid"),
            u64_at(thread, "/pid"),
            u64_at(row, "/pid"),
        );
        checks.near(
            &format!("{name} on CPU"),
            f64_at(thread, "/cpu_s"),
            f64_at(row, "/on_cpu_s"),
        );
        if kind.is_empty() {
            continue;
        }
        let waits: Vec<&Value> = row["waits"]
            .as_array()
            .map(|waits| {
                waits
                    .iter()
                    .filter(|wait| text(wait, "kind") == kind)
                    .collect()
            })
            .unwrap_or_default();
        checks.that(!waits.is_empty(), || {
            format!("{name}: no wait of kind {kind} in {}", row["waits"])
        });
        check_kinds(&mut checks, row, name);
        let count: u64 = waits.iter().map(|wait| u64_at(wait, "/count")).sum();
        // Measured from outside the call: until woken, and until on a CPU again.
        let seconds: f64 = waits
            .iter()
            .map(|wait| f64_at(wait, "/seconds") + f64_at(wait, "/runnable_s"))
            .sum();
        // The kernel counted these; the watch may begin or end in between.
        let truth_count = u64_at(thread, "/count");
        checks.that(count <= truth_count + 1 && count + 2 >= truth_count, || {
            format!("{name}: {count} waits of kind {kind}, truth {truth_count}")
        });
        checks.near(
            &format!("{name} {kind}"),
            f64_at(thread, "/seconds"),
            seconds,
        );
        check_waker(&mut checks, threads, thread, &waits);
    }
    checks.done();
}

/// Kinds hold all of a thread's waiting, and as much of each as its rows, of which there are few here.
fn check_kinds(checks: &mut Checks, row: &Value, name: &str) {
    let kinds = row["wait_s_by_kind"].as_object().expect("kinds of waits");
    let seconds = |value: &Value| value.as_f64().expect("seconds");
    let sum: f64 = kinds.values().map(seconds).sum();
    let all = f64_at(row, "/wait_s");
    checks.that((sum - all).abs() < 1e-6, || {
        format!("{name}: {sum} s of all kinds, of {all} s")
    });
    for (kind, told) in kinds {
        let rows = row["waits"].as_array().expect("waits").iter();
        let of_kind = rows.filter(|wait| text(wait, "kind") == kind);
        let listed: f64 = of_kind.map(|wait| f64_at(wait, "/seconds")).sum();
        checks.that((listed - seconds(told)).abs() < 1e-6, || {
            format!("{name}: {kind} {told} s, listed {listed}")
        });
    }
}

/// Nearly all of the time must be ended by the waker of the truth.
fn check_waker(checks: &mut Checks, threads: &[Value], thread: &Value, waits: &[&Value]) {
    let (name, waker) = (text(thread, "name"), text(thread, "waker"));
    if waker.is_empty() {
        return;
    }
    let expected = threads.iter().find(|other| text(other, "name") == waker);
    let right = |wait: &&&Value| match expected {
        None => text(&wait["waker"], "kind") == waker,
        Some(by) => text(&wait["waker"], "kind") == "thread" && wait["waker"]["tid"] == by["tid"],
    };
    let total: u64 = waits.iter().map(|wait| u64_at(wait, "/count")).sum();
    let good: u64 = waits
        .iter()
        .filter(right)
        .map(|wait| u64_at(wait, "/count"))
        .sum();
    checks.that(good * 20 >= total * 19, || {
        format!(
            "{name}: {good} of {total} waits ended by {waker}; {}",
            Value::from_iter(waits.iter().copied().cloned())
        )
    });
}

#[test]
fn runnable_time_is_the_schedulers_own() {
    let Some(_turn) = root_test("runnable_time_is_the_schedulers_own") else {
        return;
    };
    let seen = observe("contend", &os(&[&"4", &"2"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for thread in truth["threads"].as_array().expect("threads of the truth") {
        let name = text(thread, "name");
        let Some(row) = report.thread(u64_at(thread, "/tid")) else {
            checks.that(false, || format!("{name}: no row of the thread"));
            continue;
        };
        checks.near(
            &format!("{name} on CPU"),
            f64_at(thread, "/on_cpu_s"),
            f64_at(row, "/on_cpu_s"),
        );
        checks.near(
            &format!("{name} runnable"),
            f64_at(thread, "/runnable_s"),
            f64_at(row, "/runnable_s"),
        );
        let unseen = f64_at(row, "/unseen_s");
        checks.that(unseen < 0.01, || {
            format!("{name}: {unseen} s unseen, though it began in the window")
        });
    }
    checks.done();
}

#[test]
fn a_threads_time_adds_up_to_the_window() {
    let Some(_turn) = root_test("a_threads_time_adds_up_to_the_window") else {
        return;
    };
    let seen = observe("sleeper", &os(&[&"2"]));
    let report = &seen.report;
    let main = report
        .thread(u64_at(&seen.truth, "/pid"))
        .expect("a row of the main thread");
    let sum: f64 = ["on_cpu_s", "runnable_s", "wait_s", "unseen_s"]
        .iter()
        .map(|member| f64_at(main, &format!("/{member}")))
        .sum();
    let mut checks = Checks::new();
    // The thread lived through the whole window, which it began blocked at its start gate.
    checks.near(
        "sum of the main thread's states",
        report.f64("/duration_s"),
        sum,
    );
    checks.done();
}

/// Answers each request in two parts. The second one leaves only when the first is acknowledged, which the client's side does
/// some 40 ms late, by a timer of the network's (tcp(7), TCP_NODELAY and TCP_QUICKACK): mostly on an idle CPU.
fn serve_late() -> u16 {
    let server = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = server.local_addr().expect("its number").port();
    thread::spawn(move || {
        let (mut client, _) = server.accept().expect("a client");
        let mut request = [0; 16];
        while client.read_exact(&mut request).is_ok() {
            for part in [[1; 100], [2; 100]] {
                client.write_all(&part).expect("a client that listens");
            }
        }
    });
    port
}

#[test]
fn what_the_network_brings_to_an_idle_cpu_is_no_time_out() {
    let Some(_turn) = root_test("what_the_network_brings_to_an_idle_cpu_is_no_time_out") else {
        return;
    };
    let port = serve_late().to_string();
    let seen = observe("fetch", &os(&[&port, &"120"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let share = f64_at(truth, "/waited_s") / f64_at(truth, "/seconds");
    let bottleneck = report.at("/verdict/bottleneck").as_str().unwrap_or("");
    let summary = report.at("/verdict/summary");
    checks.that(bottleneck == "network-io", || {
        format!("{bottleneck} where {share:.2} of the time is waiting for a server: {summary}")
    });
    let found = report.f64("/verdict/share");
    checks.that((found - share).abs() < 0.05, || {
        format!("a share of {found:.2} instead of {share:.2}")
    });
    checks.done();
}

/// The first wait of a thread may be the longest of the watch: what it is for is told as of those that follow.
#[test]
fn waits_that_began_before_the_watch_are_for_what_they_are() {
    let name = "waits_that_began_before_the_watch_are_for_what_they_are";
    let Some(_turn) = root_test(name) else { return };
    let seen = observe("early", &os(&[&"400"]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let threads = report.at("/threads").as_array().expect("threads");
    let waits: Vec<&Value> = threads
        .iter()
        .filter_map(|thread| thread["waits"].as_array())
        .flatten()
        .collect();
    let id = |member: &str| u64_at(truth, member);
    for (kind, call, object) in [
        ("pipe", "read", format!("pipe:[{}]", id("/pipe"))),
        ("socket", "recvfrom", format!("socket:[{}]", id("/socket"))),
        ("poll", "poll", format!("pipe:[{}]", id("/polled"))),
    ] {
        let is_it = |wait: &&&Value| {
            text(wait, "kind") == kind
                && text(wait, "object") == object
                && text(wait, "syscall") == call
        };
        let found = waits.iter().find(is_it);
        let seconds = found.map_or(0.0, |wait| f64_at(wait, "/seconds"));
        checks.that(seconds >= 0.4, || {
            format!("{seconds} s in {call} of {object}: {waits:?}")
        });
    }
    // Of a futex that is waited on but once the report says only who ended that.
    let mut reader = Reader::open(&seen.finished.recording).expect("a recording");
    let mut records = reader.records::<Record>();
    let is_it = |record: Record| match record {
        Record::Wait(wait) => wait.object.id == id("/futex") && wait.wait_ns >= 400_000_000,
        _ => false,
    };
    checks.that(records.any(|record| record.is_ok_and(is_it)), || {
        "no wait for the futex is told".to_owned()
    });
    checks.done();
}

/// Waits of a thread of that kind: how many in all, and how many for an object.
fn waits_of(report: &Report, tid: u64, kind: &str) -> (u64, u64) {
    let row = report.thread(tid).expect("a row of the thread");
    let waits = row["waits"].as_array().expect("its waits");
    let of_kind = || waits.iter().filter(|wait| text(wait, "kind") == kind);
    let count = |wait: &Value| u64_at(wait, "/count");
    let of_objects = of_kind().filter(|wait| !wait["object"].is_null());
    (of_kind().map(count).sum(), of_objects.map(count).sum())
}

/// A fork holds the memory map. Who comes back from a sleep then waits for it inside the kernel, with the call still in its
/// registers; so does who touches memory, whatever file it has fetched a page of before.
#[test]
fn waits_for_the_memory_map_are_told_from_sleeps_and_files() {
    let name = "waits_for_the_memory_map_are_told_from_sleeps_and_files";
    let Some(_turn) = root_test(name) else { return };
    let data = Data::new();
    let folder = data.files("once", 1, "bin", |_| 4_096);
    let seen = observe("brood", &os(&[&folder.join("0.bin")]));
    let Observed { truth, report, .. } = &seen;
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let (sleeps, _) = waits_of(report, u64_at(truth, "/sleeper"), "sleep");
    checks.exact("sleeps", u64_at(truth, "/sleeps"), sleeps);
    let map = u64_at(truth, "/touching");
    checks.that(map >= 6, || format!("it waited {map} times for the map"));
    let (faults, of_file) = waits_of(report, u64_at(truth, "/faulter"), "fault");
    let cold = u64_at(truth, "/cold");
    checks.that(of_file <= cold, || {
        format!("{of_file} of {faults} waits are for a file that was waited for {cold} times")
    });
    checks.that(faults >= cold + map, || {
        format!("{faults} waits of faults, truth {cold} and {map}")
    });
    checks.done();
}
