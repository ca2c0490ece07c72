//! Stories of what is worth knowing beside the cause.

use trainprof_common::op::{Class, Op};

use super::{
    Story,
    causes::{alone, ranks, short},
    is,
};
use crate::{
    analysis::{
        analyse,
        tests::{
            stories::{TRAINER, feeder, job, stall},
            tails::{INTERPRETER, MODEL, tailed},
            tale::{By, On, READ, RECV, Tale},
            verdicts::{decode_bound, late},
        },
    },
    session::Session,
};

pub(super) fn stories() -> [Story; 4] {
    [
        Story {
            rule: "too-few-workers",
            found: || decode_bound().session(8000.0),
            clear: || alone(|_, _| ()),
            lacks: (short, "less than a second"),
            share: Some(0.79),
            proves: |evidence| {
                is(evidence, "workers", 1.0)
                    && is(evidence, "busy_share", 1.0)
                    && is(evidence, "workers_needed", 4.9)
            },
            // A third of a batch's 100 ms.
            advice: &["num_workers from 1 to about 3", "33 ms instead of 100 ms"],
        },
        Story {
            rule: "worker-respawn",
            found: || made_anew(4),
            clear: || made_anew(1),
            lacks: (|| without_beginning(made_anew(4)), "no beginning"),
            // Half a second of each set's 4.5.
            share: Some(0.11),
            proves: |evidence| {
                is(evidence, "workers_started", 8.0)
                    && is(evidence, "workers_ended", 8.0)
                    && is(evidence, "every_s", 4.5)
            },
            advice: &["persistent_workers=True", "ms every 4.5 s"],
        },
        Story {
            rule: "tail-latency",
            found: || tailed(INTERPRETER),
            clear: || tailed(MODEL),
            lacks: (|| alone(|_, _| ()), "no step clock"),
            share: Some(2500.0 / 4900.0),
            proves: |evidence| is(evidence, "slow_steps", 10.0) && evidence["code"] == "python3.11",
            advice: &["gc.freeze()", "would save at most 51 % of the time"],
        },
        Story {
            rule: "rank-imbalance",
            found: || ranks(late),
            clear: || ranks(even),
            lacks: (waits_for_a_rank_elsewhere, "not watched"),
            share: Some(0.64),
            proves: |evidence| {
                let shares = &evidence["waiting_share"];
                shares[0]["pid"] == TRAINER && shares[1]["pid"] == 150
            },
            advice: &["give process 150 less work", "32 % less time"],
        },
    ]
}

/// vfork(2), which `subprocess` and `multiprocessing` start programs with.
const VFORK: i16 = 58;

/// So many sets of two workers, each of which takes the trainer half a second to make and lasts for 20 steps of 200 ms.
fn made_anew(sets: u32) -> Session {
    let (tale, now) = sets_of_two(sets, &|tale, pid| {
        tale.program(pid, "/usr/bin/python3.11");
    });
    tale.session(now)
}

#[test]
fn what_new_workers_begin_with_is_named() {
    let advice = |from: f64| {
        let (mut tale, now) = sets_of_two(4, &|tale, pid| {
            tale.program(pid, "/usr/bin/python3.11");
        });
        tale.function(1, "/job/data.py", "Words.build")
            .function(2, "/job/data.py", "Words.pick");
        for set in 0..4_u32 {
            let begun = f64::from(set) * 4_500.0;
            for pid in [1, 2].map(|n| 300 + 10 * set + n) {
                let at = move |n: i32| begun + from + f64::from(n) * 10.0;
                tale.stack(1, &[1], pid, (0..48).map(at));
                let at = move |n: i32| begun + 600.0 + f64::from(n) * 40.0;
                tale.stack(2, &[2], pid, (48..90).map(at));
            }
        }
        let findings = analyse(&tale.session(now)).findings;
        let found = findings.iter().find(|found| found.kind == "worker-respawn");
        found.expect("workers made anew").advice.clone()
    };
    let told = advice(10.0);
    assert!(
        told.contains("does anew in Words.build (data.py:1)"),
        "{told}"
    );
    // Not while the trainer waits for them.
    let told = advice(1_000.0);
    assert!(!told.contains("Words"), "{told}");
}

#[test]
fn programs_that_end_with_their_file_are_no_workers_to_be_kept() {
    let found = |run: &dyn Fn(&mut Tale, u32)| {
        let (tale, now) = sets_of_two(4, run);
        let findings = analyse(&tale.session(now)).findings;
        findings.iter().any(|found| found.kind == "worker-respawn")
    };
    for (program, is_kept) in [("/usr/bin/python3.11", true), ("/usr/bin/xz", false)] {
        let run = |tale: &mut Tale, pid: u32| {
            tale.program(pid, program);
        };
        assert_eq!(found(&run), is_kept, "{program}");
    }
    // Those that were gone before they could be looked at have the name of what they executed; one that executed nothing is forked.
    for (name, is_kept) in [("python3", true), ("xz", false)] {
        let run = |tale: &mut Tale, pid: u32| {
            tale.executed(pid, name);
        };
        assert_eq!(found(&run), is_kept, "{name}");
    }
    assert!(found(&|_, _| ()));
    // A script runs its interpreter's file.
    assert!(!found(&|tale, pid| {
        tale.program(pid, "/usr/bin/python3.11")
            .executed(pid, "decode.py");
    }));
}

#[test]
fn readers_that_keep_up_are_advised_where_the_trainer_waits_for_files_itself() {
    let analysis = analyse(&alone(|tale, begin| {
        let (on, by) = (On::File(5), By::Interrupt);
        tale.wait(TRAINER, begin, begin + 70.0, READ, on, by);
    }));
    let mut findings = analysis.findings.iter();
    let few = findings.find(|found| found.kind == "too-few-workers");
    let few = few.expect("too few workers");
    assert_eq!(few.evidence["workers_needed"], 3.0);
    for words in ["num_workers=3", "70 % of the time, if the storage serves"] {
        assert!(few.advice.contains(words), "{}", few.advice);
    }
}

#[test]
fn a_directory_with_files_of_several_kinds_is_told_once() {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .fileset(4, "/other", "ext4")
        .fileset(5, "/data", "ext4")
        .fileset(6, "/data", "ext4");
    for turn in 0..80 {
        let begin = f64::from(turn) * 100.0;
        for (after, length, fileset) in [(0.0, 20.0, 5), (30.0, 25.0, 4), (60.0, 20.0, 6)] {
            let (from, on) = (begin + after, On::File(fileset));
            tale.wait(TRAINER, from, from + length, READ, on, By::Interrupt);
        }
    }
    let analysis = analyse(&tale.session(8000.0));
    let mut findings = analysis.findings.iter();
    let storage = findings.find(|found| found.kind == "storage-io");
    let directories = &storage.expect("storage-io").evidence["directories"];
    let rows = directories.as_array().expect("rows").iter();
    let rows: Vec<_> = rows.map(|row| (&row["path"], &row["seconds"])).collect();
    assert_eq!(
        rows,
        [
            (&"/data".into(), &3.2.into()),
            (&"/other".into(), &2.0.into())
        ]
    );
}

fn sets_of_two(sets: u32, run: &dyn Fn(&mut Tale, u32)) -> (Tale, f64) {
    let mut tale = job(0);
    tale.program(TRAINER, "/usr/bin/python3.11");
    let mut now = 0.0;
    for set in 0..sets {
        let begun = now + 1.0;
        let workers = [1, 2].map(|n| 300 + 10 * set + n);
        for (pid, born) in workers.into_iter().zip([begun, begun + 4.0]) {
            tale.process(pid, TRAINER).thread(pid, feeder(pid));
            run(&mut tale, pid);
            // Who starts a program in a new process waits until it has begun.
            tale.wait(
                TRAINER,
                born + 1.0,
                born + 3.0,
                VFORK,
                On::Nothing,
                By::Thread(pid),
            );
        }
        now += 500.0;
        for n in 0..20 {
            stall(&mut tale, now, now + 100.0, workers[n % 2]);
            now += 200.0;
        }
        for pid in workers {
            tale.lived(pid, begun, now - 20.0);
        }
    }
    (tale, now)
}

fn without_beginning(mut session: Session) -> Session {
    session.start = None;
    session
}

/// A trainer that waits for a process outside that gets as much as it gives.
fn waits_for_a_rank_elsewhere() -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).outsider(900, "python3");
    for step in 0..80 {
        let from = f64::from(step) * 100.0 + 40.0;
        let (on, by) = (On::Socket(6), By::Sender(900));
        tale.wait(TRAINER, from, from + 56.0, RECV, on, by);
    }
    for op in [Op::Read, Op::Write] {
        tale.ops(TRAINER, 10.0, op, Class::Socket, 0, 80, 40 << 20, 5.0);
    }
    tale.session(8000.0)
}

/// Each rank waits for the other for as long.
fn even(tale: &mut Tale) {
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for (tid, by, after, socket) in [(TRAINER, 150, 30.0, 4), (150, TRAINER, 60.0, 5)] {
            let from = begin + after;
            let on = On::Socket(socket);
            tale.wait(tid, from, from + 20.0, RECV, on, By::Sender(by));
        }
    }
}
