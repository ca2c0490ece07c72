//! What is given up, and when.

use super::*;

/// Runs a job of so many CPUs beside which counting all calls takes `all` CPUs, `part` of that while they are hidden, and all else `rest`; what the last minute cost in all, CPUs, and
/// the part of it in which all calls were counted.
fn calls_in_turns(all: f64, rest: f64, part: f64, cpus: f64) -> (f64, f64) {
    let mut governor = Governor::new(0.01);
    let hidden = if part < 1.0 { part * all } else { 0.0 };
    let (mut cost, mut counted) = (0.0, 0.0);
    for second in 0..180 {
        let share = governor.calls_share();
        let calls = share * all + (1.0 - share) * hidden;
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: (cpus * 1e9) as u64,
            probes_ns: ((calls + rest / 2.0) * 1e9) as u64,
            own_ns: (rest / 2.0 * 1e9) as u64,
            samples: 99,
            calls_ns: (calls * 1e9) as u64,
            all_calls_rate: Some(all * 1e9),
            hidden_calls: (part < 1.0).then_some(part),
            ..Load::default()
        });
        if second >= 120 {
            cost += (calls + rest) / 60.0;
            counted += share / 60.0;
        }
    }
    (cost, counted)
}

#[test]
fn calls_are_counted_in_turns_where_the_budget_has_no_room_for_all() {
    let (cost, counted) = calls_in_turns(0.010, 0.014, 0.25, 2.0);
    assert!((0.018..0.0205).contains(&cost), "{cost}");
    assert!((0.3..0.7).contains(&counted), "{counted}");
    // A loader that does nothing but read warm files: a quarter of a CPU.
    let (cost, counted) = calls_in_turns(0.25, 0.010, 1.0, 2.0);
    assert!((0.015..0.021).contains(&cost), "{cost}");
    assert!((0.02..0.06).contains(&counted), "{counted}");
}

#[test]
fn calls_are_all_counted_where_that_costs_little_or_nobody_gains() {
    for (all, rest, part, cpus) in [
        (0.005, 0.010, 0.25, 2.0),
        (0.003, 0.050, 0.25, 2.0),
        (0.005, 0.010, 0.25, 0.1),
        // A trainer's own calls.
        (0.070, 0.010, 1.0, 2.0),
    ] {
        let counted = calls_in_turns(all, rest, part, cpus).1;
        assert!(counted > 0.999, "{all} {rest} {part} {cpus}: {counted}");
    }
}

#[test]
fn samples_are_given_up_without_windows_too() {
    for mut governor in [Governor::new(0.01), Governor::without_windows(0.01)] {
        if !governor.windows {
            governor.calibrated(COSTS);
        }
        let shed_at = |governor: &mut Governor, busy_processes| {
            (0..20).find(|_| {
                governor.interval(&Load {
                    seconds: 1.0,
                    job_cpu_ns: SECOND,
                    own_ns: SECOND / 20,
                    samples: 5_000,
                    busy_processes,
                    ..Load::default()
                });
                governor.shed() == [Shed::ClockSamples]
            })
        };
        // Nothing else tells what a process does that works alone.
        assert_eq!(shed_at(&mut governor, 1), None);
        assert_eq!(shed_at(&mut governor, 2), Some(0));
        assert_eq!(shed_at(&mut governor, 1), Some(0), "not taken up again");
        assert_eq!(shed_at(&mut Governor::without_windows(0.01), 2), Some(10));
    }
}

/// When half of the clock samples are given up beside so many busy processes on two CPUs, in which an interrupt takes so long and
/// everything costs this part of the time: the second.
fn halves_at(busy_processes: usize, interrupt_ns: f64, cost: f64) -> Option<u32> {
    let mut governor = Governor::without_windows(0.01);
    (0..40).find(|_| {
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: 2 * SECOND,
            own_ns: (cost * 2e9) as u64,
            samples: 200,
            interrupt_ns,
            busy_processes,
            halvable: true,
            ..Load::default()
        });
        governor.shed() == [Shed::HalfSamples]
    })
}

#[test]
fn half_of_the_samples_go_where_several_work_and_that_helps() {
    assert_eq!(halves_at(3, 40_000.0, 0.012), Some(10));
    // One that works alone needs them, the budget suffices, or they are cheap.
    assert_eq!(halves_at(1, 40_000.0, 0.012), None);
    assert_eq!(halves_at(3, 40_000.0, 0.008), None);
    assert_eq!(halves_at(3, 500.0, 0.012), None);
}

/// A watch of a minute, begun with 0.2 s of CPU time, of a job that uses so many CPUs, in which fixed costs take so many: the second at which
/// intervals become long.
fn long_at(governor: &mut Governor, cpus: f64, fixed: f64, cells: usize) -> Option<u32> {
    governor.started(SECOND / 5);
    (1..=60).find(|_| {
        governor.interval(&Load {
            seconds: 1.0,
            job_cpu_ns: (cpus * 1e9) as u64,
            own_ns: (fixed * 1e9) as u64,
            cells,
            ..Load::default()
        });
        governor.shed().contains(&Shed::ShortIntervals)
    })
}

#[test]
fn intervals_become_long_where_the_start_is_not_paid_back() {
    for mut governor in [Governor::new(0.01), Governor::without_windows(0.01)] {
        assert_eq!(long_at(&mut governor, 0.3, 0.005, 100), Some(30));
    }
    // Beside one that sleeps too.
    let mut governor = Governor::new(0.01);
    assert_eq!(long_at(&mut governor, 0.0, 0.005, 100), Some(30));
    // The budget suffices, or the tables have no room for four times as many.
    assert_eq!(long_at(&mut Governor::new(0.01), 2.0, 0.005, 100), None);
    assert_eq!(long_at(&mut Governor::new(0.01), 0.3, 0.005, 10_000), None);
}

#[test]
fn intervals_are_short_while_threads_come() {
    let mut governor = Governor::new(0.01);
    let mut interval = |came: bool| {
        governor.interval(&Load {
            seconds: 4.0,
            job_cpu_ns: SECOND,
            own_ns: SECOND / 50,
            came,
            ..Load::default()
        });
        governor.shed().contains(&Shed::ShortIntervals)
    };
    assert!((0..10).all(|_| !interval(true)));
    assert!(interval(false));
    assert!(!interval(true));
}

#[test]
fn intervals_are_short_again_once_the_job_works() {
    let mut governor = Governor::new(0.01);
    assert!(long_at(&mut governor, 0.3, 0.005, 100).is_some());
    let mut now_uses = |cpus: f64| {
        for _ in 0..30 {
            governor.interval(&Load {
                seconds: 4.0,
                job_cpu_ns: (4.0 * cpus * 1e9) as u64,
                own_ns: SECOND / 100,
                cells: 400,
                ..Load::default()
            });
        }
        governor.shed().contains(&Shed::ShortIntervals)
    };
    // That they cost less now is no reason to go back.
    assert!(now_uses(0.5));
    assert!(!now_uses(4.0));
}
