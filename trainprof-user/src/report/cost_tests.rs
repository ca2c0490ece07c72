//! What the report says of the budget, by what was recorded of it.

use super::{Shown, model::Cost, report};
use crate::{
    record::{
        Record,
        fact::{CostSample, GovernorFact, StartCost},
    },
    session::Session,
    time::KtimeNs,
};

const SECOND: u64 = 1_000_000_000;

/// `budget`, `spent_share` and `estimated` of a job that used 100 CPU seconds.
fn told(bpf_ns: Option<u64>, probes_ns: u64) -> (Option<f64>, Option<f64>, bool) {
    let cost = cost(bpf_ns, probes_ns, None);
    (cost.budget, cost.spent_share, cost.estimated)
}

fn cost(bpf_ns: Option<u64>, probes_ns: u64, start_ns: Option<u64>) -> Cost {
    let mut session = Session::default();
    if let Some(own_ns) = start_ns {
        session.apply(&Record::StartCost(StartCost {
            own_ns,
            ..StartCost::default()
        }));
    }
    session.apply(&Record::Cost(CostSample {
        bpf_ns,
        counted_ns: SECOND,
        host_busy_ns: Some(100 * SECOND),
        ..CostSample::default()
    }));
    session.apply(&Record::Governor(GovernorFact {
        at: Default::default(),
        budget: 0.01,
        job_ns: 100 * SECOND,
        probes_ns,
        own_ns: SECOND,
        windows_ns: 0,
        windows: 0,
        worst_thread_ns: 0,
        shed: Vec::new(),
    }));
    report(&session, Shown::default()).cost
}

#[test]
fn what_the_start_took_is_spent_too() {
    let with = cost(Some(SECOND), SECOND, Some(SECOND / 2));
    assert_eq!(
        (with.start_cpu_s, with.spent_share),
        (Some(0.5), Some(0.025))
    );
    let before = cost(Some(SECOND), SECOND, None);
    assert_eq!((before.start_cpu_s, before.spent_share), (None, Some(0.02)));
}

#[test]
fn an_estimate_is_told_from_what_was_counted_and_from_nothing() {
    let budget = Some(0.01);
    assert_eq!(told(Some(SECOND), SECOND), (budget, Some(0.02), false));
    assert_eq!(told(None, SECOND), (budget, Some(0.02), true));
    // A recording of before, without CAP_SYS_ADMIN: the probes' part was taken for nothing.
    assert_eq!(told(None, 0), (budget, None, false));
    // Counted, and there was nothing.
    assert_eq!(told(Some(0), 0), (budget, Some(0.01), false));
}

#[test]
fn what_sampling_takes_slows_down_too() {
    // Recordings of before tell nothing of it.
    for (probes_ns, percent) in [(3 * SECOND, 3.0), (0, 1.0)] {
        let told = cost(Some(SECOND), probes_ns, None).slowdown_estimate_pct;
        assert_eq!(told, Some(percent), "{probes_ns}");
    }
}

#[test]
fn what_was_left_out_for_a_time_is_told_too() {
    let mut session = Session::default();
    for (second, shed) in [
        (0, &[][..]),
        (10, &["windows", "stacks"]),
        (40, &["stacks"]),
        (60, &["stacks"]),
    ] {
        session.apply(&Record::Governor(GovernorFact {
            at: KtimeNs(second * SECOND),
            budget: 0.01,
            job_ns: 100 * SECOND,
            probes_ns: 0,
            own_ns: 0,
            windows_ns: 0,
            windows: 0,
            worst_thread_ns: 0,
            shed: shed.iter().map(ToString::to_string).collect(),
        }));
    }
    let shed = report(&session, Shown::default()).cost.shed;
    assert_eq!(shed, ["stacks", "windows: for 30 s, not at last"]);
}
