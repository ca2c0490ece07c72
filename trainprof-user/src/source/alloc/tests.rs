//! What is told of the budget.

use super::*;
use crate::record::alloc::SHED_CALLS;

const SECOND: u64 = 1_000_000_000;

/// What is told of a job on two CPUs beside which counting all calls takes a quarter of one, and samples of the clock are many.
fn told(mode: Mode) -> Vec<GovernorFact> {
    let mut allocs = Allocs::new(mode, 0.01, 1);
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
            windows_ns: 0,
            all_calls_rate: Some(SECOND as f64 / 4.0),
            hidden_calls: None,
            interrupt_ns: 0.0,
            faults_in_turns: false,
            halvable: true,
            cells: 0,
            came: false,
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
        assert_eq!(last.shed, [SHED_CALLS], "{mode:?}");
        assert_eq!((last.budget, last.job_ns), (0.01, 40 * SECOND), "{mode:?}");
        assert_eq!(last.probes_ns, 5 * SECOND, "{mode:?}");
    }
}

#[test]
fn what_a_window_takes_is_told_once() {
    let mut allocs = Allocs::new(Mode::Auto, 0.01, 1);
    allocs.begins(100, 50);
    assert_eq!(allocs.governor.totals.start_ns, 150);
    // One is under way; when it is over, it tells all that it took.
    assert_eq!(allocs.beside_windows(105), 5);
    allocs.told.windows_ns = 105;
    allocs.in_windows_ns = 8;
    assert_eq!(allocs.beside_windows(108), -5);
    allocs.told.windows_ns = 108;
    assert_eq!(allocs.beside_windows(120), 12, "calibrating, say");
}

#[test]
fn traps_of_gpu_calls_cost_beside_the_programs() {
    let mut allocs = Allocs::new(Mode::Auto, 0.01, 1);
    let calls = CallsSeen {
        emulated: 10,
        stepped: 1,
    };
    assert_eq!(allocs.traps_ns(CallsSeen::default()), 0);
    assert_eq!(allocs.traps_ns(calls), 10 * 1_000 + 9_500);
    allocs.calibration = Some(Calibration {
        emulated_ns: 700.0,
        stepped_ns: 9_200.0,
        // With following a block.
        return_ns: 1_100.0,
        trap_return_ns: 400.0,
        run_ns: 200.0,
        ..Calibration::default()
    });
    assert_eq!(allocs.traps_ns(calls), 10 * 900 + 9_400);
}

#[test]
fn who_begins_to_allocate_late_is_seen_soon() {
    let mut process = Process::default();
    let share = |process: &Process| process.in_allocator as f64 / process.samples as f64;
    for _ in 0..360_000 {
        process.sampled(false);
    }
    assert!(share(&process) < 1e-9);
    // A twentieth of its time for ten seconds, after an hour without.
    for n in 0..1_000_u32 {
        process.sampled(n % 20 == 0);
    }
    assert!(share(&process) > 0.02, "{}", share(&process));
}

#[test]
fn why_nothing_is_known_of_allocations_is_told_where_calibrating_takes_long() {
    let told = |allocs: &mut Allocs, at: u64| {
        let mut out = Vec::new();
        allocs.tell_why_none(KtimeNs(at), &mut out);
        out
    };
    let mut allocs = Allocs::new(Mode::Auto, 0.01, 1);
    assert_eq!(told(&mut allocs, 60 * SECOND), [], "it was not asked for");
    allocs.asked_to_calibrate = Some(KtimeNs(SECOND));
    assert_eq!(told(&mut allocs, 3 * SECOND), [], "a short watch");

    let mut failed = Allocs::new(Mode::Auto, 0.01, 1);
    failed.asked_to_calibrate = Some(KtimeNs(SECOND));
    failed.failed.insert("allocations: probes".to_owned());
    assert_eq!(told(&mut failed, 9 * SECOND), [], "another reason was told");

    let reasons = told(&mut allocs, 9 * SECOND);
    assert!(
        matches!(&reasons[..], [Record::Missing { what, reason }]
            if what == "allocations" && reason.contains("not over after 8 s")),
        "{reasons:?}"
    );

    allocs.failed.clear();
    allocs.calibration = Some(Calibration::default());
    assert_eq!(told(&mut allocs, 9 * SECOND), [], "it is over");
}
