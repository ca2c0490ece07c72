//! Who answers the workers' questions, and whether it could answer more.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, bottleneck},
    tale::{By, On, POLL, RECV, Tale},
};
use crate::{
    analysis::{Analysis, analyse},
    record::{
        Record,
        fact::{HostSample, OutsiderUse},
    },
    time::KtimeNs,
};

const WORKER: u32 = 200;

/// Two workers that wait for a server all the time, 90 of 100 ms each turn.
fn asking(cpu_ns: u64, threads: u32) -> Analysis {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "server");
    for worker in [WORKER, WORKER + 1] {
        tale.process(worker, TRAINER);
    }
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let worker = WORKER + step as u32 % 2;
        for asks in [WORKER, WORKER + 1] {
            let answered = begin + if asks == worker { 88.0 } else { 98.0 };
            let by = By::Sender(900);
            tale.wait(asks, begin + 1.0, answered, RECV, On::Socket(6), by);
        }
        let given = By::Sender(worker);
        tale.wait(
            TRAINER,
            begin + 10.0,
            begin + 90.0,
            POLL,
            On::Pipe(5),
            given,
        );
    }
    for worker in [WORKER, WORKER + 1] {
        tale.ops(worker, 10.0, Op::Read, Class::Socket, 0, 80, 40 << 20, 5.0);
        tale.ops(worker, 10.0, Op::Write, Class::Socket, 0, 80, 1 << 10, 5.0);
    }
    let mut session = tale.session(8000.0);
    session
        .host
        .outsiders
        .insert(900, vec!["server".to_owned()]);
    for (at, idle_ns) in [(0, 0), (8_000_000_000, 4_000_000_000)] {
        session.apply(&Record::Host(HostSample {
            at: KtimeNs(at),
            idle_ns,
            ..HostSample::default()
        }));
    }
    session.apply(&Record::OutsiderUse(OutsiderUse {
        at: KtimeNs(8_000_000_000),
        pid: 900,
        looked_ns: 8_000_000_000,
        cpu_ns,
        threads,
    }));
    analyse(&session)
}

#[test]
fn a_server_that_uses_its_cpu_up_is_not_asked_for_more() {
    let advice = |analysis: &Analysis, kind: &str| {
        let found = analysis.findings.iter().find(|found| found.kind == kind);
        found.map(|found| found.advice.clone())
    };
    // It waits itself, as for a disk: more at a time is answered at once.
    let idle = asking(400_000_000, 1);
    assert_eq!(bottleneck(&idle), "network-io");
    let told = advice(&idle, "network-io").expect("advice");
    assert!(told.starts_with("keep more requests in flight"), "{told}");
    assert!(advice(&idle, "too-few-workers").is_some());
    // Of one thread, or of several that take turns.
    for threads in [1, 8] {
        let busy = asking(7_900_000_000, threads);
        assert_eq!(bottleneck(&busy), "network-io");
        let told = advice(&busy, "network-io").expect("advice");
        assert!(told.contains("uses 1.0 CPUs for its answers"), "{told}");
        assert!(!told.contains("in flight"), "{told}");
        assert_eq!(advice(&busy, "too-few-workers"), None);
    }
    // It computes for half of the time: twice as many at a time, and no more.
    let half = asking(4_000_000_000, 1);
    let told = advice(&half, "network-io").expect("advice");
    assert!(told.contains("uses 0.5 CPUs for its answers"), "{told}");
    assert!(told.contains("about 4 instead of 2 are what"), "{told}");
}

#[test]
fn a_server_that_waits_itself_is_asked_for_more_however_few_cpus_are_free() {
    // Several threads, a little work: what it could use is not known.
    let few = asking(400_000_000, 8);
    let advice = few.findings.iter().find(|found| found.kind == "network-io");
    let advice = advice.expect("found").advice.clone();
    assert!(
        advice.starts_with("keep more requests in flight"),
        "{advice}"
    );
    // Nor of one with several threads that uses most of a CPU, as one that waits in part does.
    let most = asking(6_400_000_000, 8);
    let advice = most
        .findings
        .iter()
        .find(|found| found.kind == "network-io");
    let advice = advice.expect("found").advice.clone();
    assert!(
        advice.starts_with("keep more requests in flight"),
        "{advice}"
    );
}
