//! A quota and a neighbour at once: who keeps a thread from the CPU is told apart.

use super::{
    stories::{TRAINER, close, share},
    tale::{Tale, at},
};
use crate::{
    analysis::{Kind, analyse},
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
