//! Processes that take the CPUs of a job and that none of its threads is seen to wait for.

use super::{
    stories::TRAINER,
    tale::{Tale, at},
};
use crate::{
    analysis::{Finding, analyse},
    record::{
        Record,
        fact::{HostSample, NeighboursFact},
    },
    session::Session,
    time::KtimeNs,
};

const MATE: u32 = 101;
const BUSY: u32 = 900;
const BRIEF: u32 = 901;
const LENGTH_MS: f64 = 8_000.0;

/// The trainer waits behind its own team-mate for 50 of each 100 ms, and the host's other CPU does something else all the time.
fn beside_a_busy_cpu() -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).thread(TRAINER, MATE);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.preempted(TRAINER, begin, begin + 50.0, MATE);
    }
    let mut session = tale.session(LENGTH_MS);
    for (ms, busy_ns) in [(0.0, 0), (LENGTH_MS, 21_600_000_000)] {
        session.apply(&Record::Host(HostSample {
            at: KtimeNs(at(ms)),
            busy_ns,
            ..HostSample::default()
        }));
    }
    session
}

fn contention(session: &Session) -> Finding {
    let findings = analyse(session).findings;
    let found = findings
        .into_iter()
        .find(|found| found.kind == "cpu-contention");
    found.expect("contention")
}

#[test]
fn who_takes_cpus_is_named_though_nobody_was_seen_to_wait_for_it() {
    let mut session = beside_a_busy_cpu();
    let nameless = contention(&session);
    assert!(
        nameless.summary.contains("while other processes had it"),
        "{}",
        nameless.summary
    );
    assert_eq!(nameless.evidence["neighbours"], serde_json::json!([]));
    for (pid, command) in [(BUSY, "render"), (BRIEF, "backup")] {
        session.apply(&Record::Outsider {
            tid: pid,
            pid: Some(pid),
            name: Some("name".to_owned()),
        });
        session.apply(&Record::OutsiderCommand {
            pid,
            command: vec![command.to_owned()],
        });
    }
    session.apply(&Record::Neighbours(NeighboursFact {
        at: KtimeNs(at(7_500.0)),
        looked_ns: 7_000_000_000,
        most: vec![(BUSY, 6_300_000_000), (BRIEF, 400_000_000)],
    }));
    let named = contention(&session);
    assert!(
        named.summary.contains("while process 900 (render) had it"),
        "{}",
        named.summary
    );
    let told = serde_json::json!([{"pid": BUSY, "command": "render", "cpus": 0.9}]);
    assert_eq!(named.evidence["neighbours"], told);
    assert_eq!(named.share, nameless.share);
}
