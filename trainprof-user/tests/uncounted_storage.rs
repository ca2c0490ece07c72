//! What the kernel does not count is `null` in the report, never 0.

use trainprof_user::{
    env::kernel_member,
    record::{
        Record,
        fact::{Counters, Interval, ProcessSeen, ThreadEnd, ThreadSeen, ThreadTotals},
    },
    report::{self, Shown},
    session::Session,
    time::KtimeNs,
};

/// A process that ended, on a kernel that lacks a member.
fn storage(missing: Option<&str>) -> serde_json::Value {
    let mut session = Session::default();
    let at = KtimeNs(1);
    let missing = missing.map(|member| Record::Missing {
        what: kernel_member(member),
        reason: "this kernel does not have it".into(),
    });
    let end = ThreadEnd {
        at: KtimeNs(2),
        pid: 7,
        tid: 7,
        followed_since: at,
        totals: ThreadTotals::default(),
        counters: Counters {
            storage_read_bytes: 4096,
            ..Counters::default()
        },
        name: "job".into(),
    };
    let records = [
        Record::Process(ProcessSeen {
            at,
            pid: 7,
            parent: 1,
            name: "job".into(),
            facts: None,
            frameworks: None,
        }),
        Record::Thread(ThreadSeen {
            at,
            pid: 7,
            tid: 7,
            parent_tid: None,
            name: "job".into(),
        }),
        Record::Interval(Interval {
            from: at,
            to: KtimeNs(3),
            ended: vec![end],
            ..Interval::default()
        }),
    ];
    missing
        .iter()
        .chain(&records)
        .for_each(|r| session.apply(r));
    let json = report::to_json(&report::report(&session, Shown::default()));
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["job"]["processes"][0]["pid"], 7);
    assert_eq!(report["job"]["processes"][0]["faults"]["minor"], 0);
    report["job"]["processes"][0]["storage"].clone()
}

#[test]
fn storage_bytes_are_null_where_the_kernel_does_not_count_them() {
    assert_eq!(
        storage(None),
        serde_json::json!({"read": 4096, "written": 0})
    );
    assert_eq!(
        storage(Some("inode_dentries")),
        storage(None),
        "another member"
    );
    for member in ["task_read_bytes", "task_write_bytes"] {
        assert!(storage(Some(member)).is_null(), "{member}");
    }
}
