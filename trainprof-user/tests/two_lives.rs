//! An id that the kernel gives out again stands for another process or thread: each has rows of its own, under the id that people know.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use trainprof_common::op::{Class, Op};
use trainprof_user::{
    env::process::ProcessFacts,
    record::{
        Reader, Record,
        fact::{
            Counters, Interval, ObjectFact, OpSum, ProcessSample, ProcessSeen, ThreadEnd,
            ThreadSeen, ThreadTotals, WaitSum, WakerFact,
        },
    },
    report::{self, Report, Shown},
    session::Session,
    time::KtimeNs,
};

const SECOND: u64 = 1_000_000_000;
const PARENT: u32 = 50;
const PID: u32 = 100;
/// A second life of [`PID`] as it must never be shown.
const INSIDE: &str = "4194404";

fn process(pid: u32, at: u64, command: &str) -> Record {
    let facts = ProcessFacts {
        pid,
        start_time_ticks: at / 10_000_000,
        ppid: PARENT,
        uid: 0,
        comm: command.to_owned(),
        command: vec![command.to_owned()],
        exe: None,
        cwd: None,
        started_unix: None,
        threads: 1,
        nspid: None,
        cgroup: None,
    };
    Record::Process(ProcessSeen {
        at: KtimeNs(at),
        pid,
        parent: if pid == PARENT { 1 } else { PARENT },
        name: command.to_owned(),
        facts: Some(facts),
        frameworks: None,
    })
}

fn thread(pid: u32, tid: u32, at: u64, name: &str) -> Record {
    Record::Thread(ThreadSeen {
        at: KtimeNs(at),
        pid,
        tid,
        parent_tid: None,
        name: name.to_owned(),
    })
}

fn exit(pid: u32, tid: u32, at: u64) -> Record {
    Record::Exit {
        at: KtimeNs(at),
        pid,
        tid,
    }
}

fn opens(tid: u32, count: u64) -> OpSum {
    OpSum {
        tid,
        fileset: 1,
        dev: 1,
        op: Op::Open.number(),
        class: Class::File as u8,
        count,
        errors: 0,
        bytes: 0,
        ns: 0,
    }
}

fn totals(tid: u32, run_ns: u64) -> ThreadTotals {
    ThreadTotals {
        tid,
        run_ns,
        ..ThreadTotals::default()
    }
}

fn end(at: u64, since: u64, run_ns: u64, minor_faults: u64, name: &str) -> ThreadEnd {
    ThreadEnd {
        at: KtimeNs(at),
        pid: PID,
        tid: PID,
        followed_since: KtimeNs(since),
        totals: totals(PID, run_ns),
        counters: Counters {
            minor_faults,
            ..Counters::default()
        },
        name: name.to_owned(),
    }
}

/// The parent's wait until a child has ended.
fn waited_for_child(ns: u64) -> WaitSum {
    WaitSum {
        tid: PARENT,
        nr: 61,
        object: ObjectFact::default(),
        waker: WakerFact { kind: 1, tid: PID },
        count: 1,
        wait_ns: ns,
        runnable_ns: 0,
        iowait_ns: 0,
        max_ns: ns,
    }
}

fn memory(at: u64, anon_bytes: u64) -> [Record; 2] {
    let sample = ProcessSample {
        at: KtimeNs(at),
        pid: PID,
        anon_bytes,
        ..ProcessSample::default()
    };
    let resident = Record::Memory {
        at: KtimeNs(at),
        pid: PID,
        rss_bytes: anon_bytes,
    };
    [resident, Record::ProcessMemory(sample)]
}

fn interval(second: u64, ops: Vec<OpSum>, waits: Vec<WaitSum>) -> Interval {
    Interval {
        from: KtimeNs(second * SECOND),
        to: KtimeNs((second + 1) * SECOND),
        ops,
        waits,
        ..Interval::default()
    }
}

/// A parent that starts two programs, one after the other, which get the same id.
fn family() -> Report {
    let mut records = vec![
        process(PARENT, SECOND, "parent"),
        thread(PARENT, PARENT, SECOND, "parent"),
        process(PID, SECOND + 1, "first"),
        thread(PID, PID, SECOND + 1, "first"),
    ];
    records.extend(memory(SECOND + 2, 1_000));
    records.push(exit(PID, PID, 2 * SECOND - 1));
    records.push(Record::Interval(Interval {
        ended: vec![end(2 * SECOND - 1, SECOND + 1, SECOND / 2, 11, "first")],
        running: vec![totals(PARENT, 1)],
        ..interval(1, vec![opens(PID, 3)], vec![waited_for_child(7)])
    }));
    records.push(process(PID, 3 * SECOND, "second"));
    records.push(thread(PID, PID, 3 * SECOND, "second"));
    records.extend(memory(3 * SECOND + 1, 9_000));
    records.push(thread(PID, PID + 1, 3 * SECOND + 2, "helper"));
    records.push(Record::Interval(Interval {
        running: vec![
            totals(PARENT, 2),
            totals(PID, SECOND / 4),
            totals(PID + 1, SECOND / 8),
        ],
        ..interval(
            3,
            vec![opens(PID, 5), opens(PID + 1, 2)],
            vec![waited_for_child(9)],
        )
    }));
    let mut session = Session::default();
    records.iter().for_each(|record| session.apply(record));
    report::report(&session, Shown::default())
}

fn json(report: &Report) -> Value {
    serde_json::from_str(&report::to_json(report)).expect("JSON")
}

#[test]
fn two_lives_of_a_process_id_are_two_rows() {
    let report = family();
    let text = report::to_text(&report, 20, 80);
    let told = json(&report);
    for told in [&text, &told.to_string()] {
        assert!(!told.contains(INSIDE), "{told}");
    }
    let rows: Vec<&Value> = told["job"]["processes"]
        .as_array()
        .expect("processes")
        .iter()
        .filter(|row| row["pid"] == PID)
        .collect();
    let of = |key: &str| rows.iter().map(|row| row[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("start_time"), [json!(100), json!(300)]);
    assert_eq!(of("command"), [json!(["first"]), json!(["second"])]);
    assert_eq!(of("parent"), [json!(PARENT), json!(PARENT)]);
    assert_eq!(of("threads"), [json!(1), json!(2)]);
    assert_eq!(of("ended"), [json!(true), json!(false)]);
    assert_eq!(of("cpu_s"), [json!(0.5), json!(0.375)]);
    let opens: Vec<_> = rows.iter().map(|row| &row["io"]["opens"]).collect();
    assert_eq!(opens, [3, 7]);
    assert_eq!(rows[0]["faults"]["minor"], 11);
    assert!(rows[1]["faults"].is_null());
    let rss: Vec<_> = rows.iter().map(|row| &row["rss_bytes"]["max"]).collect();
    assert_eq!(rss, [1_000, 9_000]);
    let memory = told["memory"]["processes"].as_array().expect("memory");
    assert_eq!(memory.iter().filter(|row| row["pid"] == PID).count(), 2);
    assert!(text.matches("\n     100 ").count() >= 2, "{text}");
}

#[test]
fn two_lives_of_a_thread_id_are_two_timelines() {
    let told = json(&family());
    let threads = told["threads"].as_array().expect("threads");
    let lives: Vec<_> = threads
        .iter()
        .filter(|row| row["tid"] == PID)
        .map(|row| (&row["name"], row["io"]["opens"].as_u64()))
        .collect();
    assert_eq!(lives.len(), 2);
    assert!(lives.contains(&(&json!("first"), Some(3))), "{lives:?}");
    assert!(lives.contains(&(&json!("second"), Some(5))), "{lives:?}");
    // Each ended a wait of the parent.
    let parent = threads
        .iter()
        .find(|row| row["tid"] == PARENT)
        .expect("the parent");
    let wakers: BTreeSet<&str> = parent["waits"]
        .as_array()
        .expect("waits")
        .iter()
        .filter(|wait| wait["waker"]["tid"] == PID && wait["waker"]["pid"] == PID)
        .filter_map(|wait| wait["waker"]["name"].as_str())
        .collect();
    assert_eq!(wakers, BTreeSet::from(["first", "second"]));
}

#[test]
fn a_thread_that_executes_a_program_keeps_its_own_account() {
    let old_tid = PID + 1;
    let records = [
        process(PID, SECOND, "job"),
        thread(PID, PID, SECOND, "main"),
        thread(PID, old_tid, SECOND + 1, "other"),
        exit(PID, PID, SECOND + 5),
        Record::Exec {
            at: KtimeNs(SECOND + 6),
            pid: PID,
            old_tid,
            name: "program".to_owned(),
        },
        process(PID, SECOND + 6, "program"),
        Record::Interval(Interval {
            ended: vec![end(SECOND + 5, SECOND, SECOND / 2, 11, "main")],
            running: vec![totals(PID, SECOND / 4)],
            ..interval(1, vec![opens(PID, 3)], vec![])
        }),
    ];
    let mut session = Session::default();
    records.iter().for_each(|record| session.apply(record));
    let told = json(&report::report(&session, Shown::default()));
    let rows = told["job"]["processes"].as_array().expect("processes");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["command"], json!(["program"]));
    assert_eq!(
        (&rows[0]["threads"], &rows[0]["ended"]),
        (&json!(2), &json!(false))
    );
    assert_eq!(rows[0]["cpu_s"], 0.75);
    let threads = told["threads"].as_array().expect("threads");
    let on_cpu: Vec<_> = threads
        .iter()
        .map(|row| (&row["name"], &row["on_cpu_s"]))
        .collect();
    assert_eq!(
        on_cpu,
        [
            (&json!("main"), &json!(0.5)),
            (&json!("program"), &json!(0.25))
        ]
    );
    assert_eq!(
        (&threads[0]["tid"], &threads[1]["tid"]),
        (&json!(PID), &json!(PID))
    );
    assert_eq!(threads[1]["io"]["opens"], 3);
}

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let entries = fs::read_dir(folder).expect("tests/golden");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
        .collect()
}

/// The report of a recording; `again`: all ids but those that were asked for were somebody else's once.
fn replayed(path: &Path, again: bool) -> Value {
    let mut reader = Reader::open(path).expect("a recording");
    let mut session = Session::default();
    let mut asked = BTreeSet::new();
    while let Some(record) = reader.next_record::<Record>().expect("a record") {
        match &record {
            Record::Start(start) => asked.extend(start.targets.iter().copied()),
            Record::Process(ProcessSeen { pid: id, .. })
            | Record::Thread(ThreadSeen { tid: id, .. })
                if again && asked.insert(*id) =>
            {
                session.apply(&thread(*id, *id, 0, "before"));
                session.apply(&exit(*id, *id, 1));
            }
            _ => {}
        }
        session.apply(&record);
    }
    let report = report::report(&session, Shown::default());
    let mut told = json(&report);
    let threads = told["threads"].as_array_mut().expect("threads");
    // Of those that never ran, whoever they were, as many are told as there is room for.
    threads.retain(|row| row["name"] != "before" && row["on_cpu_s"] != 0.0);
    // The list holds so many rows at most.
    threads.truncate(5);
    told["text"] = report::to_text(&report, 20, 80).into();
    told
}

#[test]
fn whoever_has_an_id_again_is_told_of_like_anybody() {
    for path in recordings() {
        let (first, again) = (replayed(&path, false), replayed(&path, true));
        for (key, value) in first.as_object().expect("a report") {
            assert_eq!(*value, again[key], "{key} of {}", path.display());
        }
    }
}
