//! What is told of the budget.

use super::*;
use crate::record::alloc::SHED_CALLS;

const SECOND: u64 = 1_000_000_000;

/// What is told of a job on two CPUs beside which counting all calls takes a quarter of one, and samples of the clock are many.
fn told(mode: Mode) -> Vec<GovernorFact> {
    let mut allocs = Allocs::new(mode, 0.01, 0, 1);
    let alive = BTreeMap::from([(7, 7)]);
    let mut out = Vec::new();
    for second in 1..=20_u64 {
        allocs.samples = 1_000_000;
        let interval = Interval {
            from: KtimeNs((second - 1) * SECOND),
            to: KtimeNs(second * SECOND),
            running: vec![crate::record::fact::ThreadTotals {
                tid: 7,
                run_ns: second * 2 * SECOND,
                ..Default::default()
            }],
            ..Interval::default()
        };
        let cost = CostSoFar {
            probes_ns: second * SECOND / 4,
            calls_ns: second * SECOND / 4,
            own_ns: 0,
            all_calls_rate: Some(SECOND as f64 / 4.0),
            hidden_calls: None,
        };
        allocs.interval(&interval, &alive, &cost, &mut out);
    }
    out.push(allocs.fact(KtimeNs(20 * SECOND)));
    out.into_iter()
        .map(|record| match record {
            Record::Governor(fact) => fact,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn what_is_given_up_and_what_is_spent_is_told_whatever_becomes_of_windows() {
    for mode in [Mode::Off, Mode::Auto, Mode::Full] {
        let facts = told(mode);
        assert_eq!(facts[0].shed, Vec::<String>::new(), "{mode:?}: at first");
        let last = facts.last().expect("a fact");
        assert_eq!(last.shed, [SHED_CALLS, "clock-samples"], "{mode:?}");
        assert_eq!((last.budget, last.job_ns), (0.01, 40 * SECOND), "{mode:?}");
        assert_eq!(last.probes_ns, 5 * SECOND, "{mode:?}");
    }
}
