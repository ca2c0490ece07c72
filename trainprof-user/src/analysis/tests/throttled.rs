//! A quota and a neighbour at once: who keeps a thread from the CPU is told apart.

use super::{
    stories::{TRAINER, close, feeds, job, share, stall},
    tale::{Tale, at},
};
use crate::{
    analysis::{Analysis, Kind, analyse},
    record::{Record, fact::QuotaSample},
    session::Session,
    time::KtimeNs,
};

const NEIGHBOUR: u32 = 900;

/// Of each second so much is waited for the quota, in pieces of 60 ms, and for a neighbour, in pieces of so many ms; the kernel counts
/// what the quota took.
fn watch(throttled: u32, neighbour: u32, piece: f64) -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(NEIGHBOUR, "stress");
    for second in 0..8 {
        let begin = f64::from(second) * 1000.0;
        for n in 0..throttled {
            let from = begin + 10.0 + f64::from(n) * 100.0;
            tale.preempted(TRAINER, from, from + 60.0, 0);
        }
        for n in 0..neighbour {
            let from = begin + 75.0 + f64::from(n % 10) * 100.0 + f64::from(n / 10) * 12.0;
            tale.preempted(TRAINER, from, from + piece, NEIGHBOUR);
        }
    }
    let mut session = tale.session(8000.0);
    for second in 0..=8_u64 {
        let hit = u64::from(throttled) * second;
        session.apply(&Record::Quota(QuotaSample {
            at: KtimeNs(at(second as f64 * 1e3)),
            cgroup: "/job".to_owned(),
            quota_us: 100_000,
            period_us: 100_000,
            periods: 10 * second,
            throttled_periods: hit,
            throttled_ns: 60_000_000 * hit,
        }));
    }
    session
}

#[test]
fn a_neighbour_beside_a_quota_keeps_its_share() {
    for (piece, what) in [(8.0, "short turns"), (11.0, "long turns")] {
        let analysis = analyse(&watch(5, 20, piece));
        let trainer = analysis.trainer.as_ref().expect("a trainer");
        close(share(trainer, Kind::CpuThrottled), 0.3, what);
        close(share(trainer, Kind::CpuContention), 0.02 * piece, what);
        let named = analysis
            .findings
            .iter()
            .find(|found| found.kind == "cpu-contention")
            .expect("a finding");
        assert!(named.summary.contains("process 900"), "{}", named.summary);
    }
}

#[test]
fn a_quota_while_others_have_the_cpu_is_a_quota() {
    // Whoever uses the CPUs meanwhile: the job's group was stopped for all of it.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(NEIGHBOUR, "stress");
    for n in 0..80 {
        let from = f64::from(n) * 100.0 + 10.0;
        tale.preempted(TRAINER, from, from + 60.0, NEIGHBOUR);
    }
    let mut session = tale.session(8000.0);
    for second in 0..=8_u64 {
        session.apply(&Record::Quota(QuotaSample {
            at: KtimeNs(at(second as f64 * 1e3)),
            cgroup: "/job".to_owned(),
            quota_us: 100_000,
            period_us: 100_000,
            periods: 10 * second,
            throttled_periods: 10 * second,
            throttled_ns: 600_000_000 * second,
        }));
    }
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    close(share(trainer, Kind::CpuThrottled), 0.6, "throttled");
}

/// A worker is stopped for 60 of each 100 ms by a quota, before the trainer gets its batch; later the trainer finds no CPU for 9. These
/// processes are in the group that has the quota, the other in none.
fn in_a_group(held: &[u32]) -> Analysis {
    let mut tale = job(1);
    for n in 0..80 {
        let from = f64::from(n) * 100.0;
        tale.preempted(201, from, from + 60.0, 0);
        feeds(&mut tale, 201, from, from + 70.0);
        stall(&mut tale, from, from + 70.0, 201);
        tale.preempted(TRAINER, from + 90.0, from + 99.0, 0);
    }
    for pid in [TRAINER, 201] {
        let group = if held.contains(&pid) {
            "/limited/job"
        } else {
            "/"
        };
        tale.cgroup(pid, group);
    }
    let mut session = tale.session(8000.0);
    for second in 0..=8_u64 {
        session.apply(&Record::Quota(QuotaSample {
            at: KtimeNs(at(second as f64 * 1e3)),
            cgroup: "/limited".to_owned(),
            quota_us: 40_000,
            period_us: 100_000,
            periods: 10 * second,
            throttled_periods: 10 * second,
            throttled_ns: 700_000_000 * second,
        }));
    }
    analyse(&session)
}

#[test]
fn a_quota_of_a_part_of_the_job_stops_that_part_alone() {
    let analysis = in_a_group(&[201]);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    close(share(trainer, Kind::CpuThrottled), 0.6, "the worker's");
    close(
        trainer.terms.cpus,
        trainer.terms.host_cpus,
        "CPUs that the trainer may use",
    );
    let finding = analysis.findings.iter().find(|f| f.kind == "cpu-throttled");
    let finding = finding.expect("a finding");
    assert!(
        finding
            .summary
            .contains("/limited, which holds process 201 of the job alone, may use 0.40 CPUs"),
        "{}",
        finding.summary
    );
    // It and its feeder run for 40 and 30 of the 100 ms, all in the 40 in which it is not stopped.
    let wanted = finding.evidence["wanted_cpus"].as_f64().expect("CPUs");
    close(wanted, 1.75, "wanted");
    let more = analysis
        .findings
        .iter()
        .any(|f| f.kind == "too-few-workers");
    assert!(!more, "more workers share what the quota leaves them");
}

#[test]
fn a_quota_that_holds_all_of_the_job_stops_all_of_it() {
    // Who went into a group later is in another one by what is known.
    for held in [&[TRAINER, 201][..], &[]] {
        let analysis = in_a_group(held);
        let trainer = analysis.trainer.as_ref().expect("a trainer");
        close(share(trainer, Kind::CpuThrottled), 0.69, "both");
        close(trainer.terms.cpus, 0.4, "CPUs that the job may use");
        let finding = analysis.findings.iter().find(|f| f.kind == "cpu-throttled");
        let finding = finding.expect("a finding");
        assert!(
            finding.summary.contains("/limited may use"),
            "{}",
            finding.summary
        );
    }
}

#[test]
fn quotas_of_groups_side_by_side_add_up() {
    let mut tale = job(1);
    for n in 0..80 {
        let from = f64::from(n) * 100.0;
        feeds(&mut tale, 201, from, from + 70.0);
        stall(&mut tale, from, from + 70.0, 201);
    }
    for (pid, group) in [(TRAINER, "/a"), (201, "/b")] {
        tale.cgroup(pid, group);
    }
    let mut session = tale.session(8000.0);
    for (cgroup, quota_us) in [("/a", 30_000), ("/b", 40_000)] {
        session.apply(&Record::Quota(QuotaSample {
            at: KtimeNs(at(0.0)),
            cgroup: cgroup.to_owned(),
            quota_us,
            period_us: 100_000,
            periods: 0,
            throttled_periods: 0,
            throttled_ns: 0,
        }));
    }
    let analysis = analyse(&session);
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    close(trainer.terms.cpus, 0.7, "CPUs of both");
}
