//! Stories of causes.

use trainprof_common::op::{Class, Op};

use super::{Story, is};
use crate::{
    analysis::tests::{
        gpu_unseen::uses_a_gpu_unseen,
        memory,
        stories::{TRAINER, read_bound},
        tale::{By, FSYNC, FUTEX, On, READ, RECV, Tale, at},
        verdicts::{decode_bound, late},
    },
    record::{Record, fact::QuotaSample},
    session::Session,
    time::KtimeNs,
};

const STAT: i16 = 262;
const OPENAT: i16 = 257;
const STRANGER: u32 = 900;
const LENGTH: f64 = 8000.0;

pub(super) fn stories() -> [Story; 12] {
    [
        Story {
            rule: "storage-io",
            found: || reads(300.0),
            clear: || reads(20.0),
            lacks: (short, "less than a second"),
            // Half of a step is waited for, and three quarters of a batch are reading.
            share: Some(0.375),
            proves: |evidence| {
                evidence["directories"][0]["path"] == "/data"
                    && evidence["directories"][0]["filesystem"] == "ext4"
            },
            advice: &[
                "faster or local storage",
                "a step would fall from 200 ms to",
            ],
        },
        Story {
            rule: "small-files",
            found: || looks_up(10.0),
            clear: || looks_up(1.0),
            lacks: (short, "less than a second"),
            share: Some(0.45),
            proves: |evidence| is(evidence, "lookups_per_s", 100.0),
            advice: &["look each file up once", "at most"],
        },
        Story {
            rule: "small-files",
            found: || opens(10.0),
            clear: || opens(1.0),
            lacks: (short, "less than a second"),
            share: Some(0.45),
            proves: |evidence| {
                is(evidence, "opens_per_s", 100.0)
                    && is(evidence, "mean_file_bytes", 50_000.0)
                    && is(evidence, "opens", 800.0)
            },
            // 256 MB of files of 50 kB.
            advice: &[
                "pack these files (800 opens in 8.0 s, mean 50.0 KB) into shards",
                "many of them in each shard",
                "at most",
            ],
        },
        Story {
            rule: "network-io",
            found: || asks(By::Sender(STRANGER)),
            clear: || alone(|_, _| ()),
            lacks: (short, "less than a second"),
            share: Some(0.56),
            proves: |evidence| {
                evidence["outsiders"][0]["command"] == "tracker"
                    && is(evidence, "in_flight_needed", 2.0)
            },
            advice: &["ask ahead", "about 2 would keep up", "at most"],
        },
        Story {
            rule: "input-cpu",
            found: || decode_bound().session(LENGTH),
            clear: || reads(390.0),
            lacks: (|| alone(|_, _| ()), "too few samples"),
            share: Some(0.79),
            proves: |evidence| is(evidence, "workers", 1.0) && is(evidence, "workers_needed", 4.9),
            advice: &["at most"],
        },
        Story {
            rule: "serialization",
            found: || reads_under_a_lock(60.0),
            clear: || alone(|_, _| ()),
            lacks: (short, "less than a second"),
            share: Some(0.75),
            proves: |evidence| {
                is(evidence, "threads", 4.0)
                    && is(evidence, "hand_overs_per_s", 50.0)
                    && is(evidence, "one_at_a_time_share", 1.0)
            },
            advice: &["hold the lock for less", "4 threads", "as fast"],
        },
        Story {
            rule: "cpu-contention",
            found: || pushed_aside(STRANGER),
            clear: || alone(|_, _| ()),
            lacks: (short, "less than a second"),
            share: Some(0.4),
            proves: |evidence| {
                evidence["outsiders"][0]["pid"] == STRANGER
                    && evidence["outsiders"][0]["command"] == "stress"
            },
            advice: &["move these processes elsewhere", "at most"],
        },
        Story {
            rule: "cpu-throttled",
            found: || throttled(8),
            clear: || throttled(0),
            lacks: (
                || in_a_group_that_is_not_read(pushed_aside(0)),
                "control group",
            ),
            share: Some(0.4),
            proves: |evidence| {
                evidence["cgroup"] == "/job"
                    && is(evidence, "quota_cpus", 1.5)
                    && is(evidence, "throttled_periods_share", 0.8)
            },
            advice: &["raise the quota from 1.50 to about 2.5 CPUs", "at most"],
        },
        Story {
            rule: "allocation-churn",
            found: || memory::computing(6),
            clear: || memory::computing(1),
            lacks: (|| alone(|_, _| ()), "too few samples"),
            share: Some(0.3),
            proves: |evidence| is(evidence, "fault_share_of_cpu", 0.3),
            advice: &["reuse buffers", "at most"],
        },
        Story {
            rule: "checkpoint",
            found: || saves(250.0),
            clear: || saves(10.0),
            lacks: (short, "less than a second"),
            // What is computed between two writes belongs to it.
            share: Some(0.30),
            proves: |evidence| is(evidence, "count", 8.0) && is(evidence, "longest_s", 0.3),
            advice: &[
                "let a thread or process write it",
                "instead of every",
                "at most",
            ],
        },
        Story {
            rule: "communication",
            found: || ranks(late),
            clear: || alone(|_, _| ()),
            lacks: (short, "less than a second"),
            share: Some(0.65),
            proves: |evidence| evidence["guilty_pid"] == 150,
            advice: &["as short as that of the others", "at most"],
        },
        Story {
            rule: "compute",
            found: || alone(|_, _| ()),
            clear: || {
                alone(|tale, begin| {
                    let on = On::File(5);
                    tale.wait(TRAINER, begin, begin + 97.0, READ, on, By::Interrupt);
                })
            },
            lacks: (uses_a_gpu_unseen, "waits for the GPU"),
            share: Some(1.0),
            proves: |evidence| is(evidence, "seconds", 8.0),
            advice: &["make the model's own work faster"],
        },
    ]
}

fn reads(ms: f64) -> Session {
    let (tale, length) = read_bound(ms, 40);
    tale.session(length)
}

/// A trainer without anybody, and what it does in turns of 100 ms besides computing.
pub(super) fn alone(turn: impl Fn(&mut Tale, f64)) -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    for n in 0..80 {
        turn(&mut tale, f64::from(n) * 100.0);
    }
    tale.session(LENGTH)
}

/// A watch of less than a second.
pub(super) fn short() -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    tale.session(900.0)
}

/// A job whose control group could not be read.
fn in_a_group_that_is_not_read(mut session: Session) -> Session {
    let facts = serde_json::json!({
        "pid": TRAINER, "start_time_ticks": 1, "ppid": 1, "uid": 0, "comm": "python3", "command": ["python3"],
        "exe": null, "cwd": null, "started_unix": null, "threads": 1, "nspid": null, "cgroup": null
    });
    let trainer = session.processes.get_mut(&TRAINER).expect("a trainer");
    trainer.seen.facts = Some(serde_json::from_value(facts).expect("facts of a process"));
    session
}

/// Looks files up, for 4.5 ms each.
fn looks_up(files: f64) -> Session {
    alone(|tale, begin| {
        for n in 0..files as u32 {
            let from = begin + f64::from(n) * 5.0;
            let on = On::File(5);
            tale.wait(TRAINER, from, from + 4.5, STAT, on, By::Interrupt);
        }
        let count = files as u64;
        tale.ops(TRAINER, begin, Op::Stat, Class::File, 5, count, 0, 45.0);
    })
}

/// Opens files of 50 kB, for 4.5 ms each.
fn opens(files: f64) -> Session {
    alone(|tale, begin| {
        for n in 0..files as u32 {
            let from = begin + f64::from(n) * 5.0;
            let on = On::File(5);
            tale.wait(TRAINER, from, from + 4.5, OPENAT, on, By::Interrupt);
        }
        let count = files as u64;
        let bytes = count * 50_000;
        tale.ops(TRAINER, begin, Op::Open, Class::File, 5, count, bytes, 45.0);
    })
}

/// Waits for answers of a process outside the job.
fn asks(by: By) -> Session {
    let mut session = alone(|tale, begin| {
        tale.wait(TRAINER, begin + 40.0, begin + 96.0, RECV, On::Socket(6), by);
    });
    let (tid, name) = (STRANGER, Some("tracker".to_owned()));
    session.apply(&Record::Outsider {
        tid,
        pid: Some(tid),
        name,
    });
    session
        .host
        .outsiders
        .insert(STRANGER, vec!["tracker".to_owned()]);
    session
}

/// Four loader threads read in turns of 20 ms, each under one lock that the next one has waited for so long; every turn ends a
/// wait of the trainer of 15 ms.
fn reads_under_a_lock(waited: f64) -> Session {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).fileset(5, "/data", "ext4");
    for tid in 101..105 {
        tale.thread(TRAINER, tid);
        tale.ops(tid, 10.0, Op::Read, Class::File, 5, 100, 1 << 20, 1.0);
    }
    for turn in 4..400_u32 {
        let begin = f64::from(turn) * 20.0;
        let (runs, before) = (101 + turn % 4, 101 + (turn + 3) % 4);
        let (lock, by) = (On::Futex(0x7000), By::Thread(before));
        tale.wait(runs, begin - waited, begin, FUTEX, lock, by);
        let (from, to) = (begin + 1.0, begin + 19.0);
        tale.wait(runs, from, to, READ, On::File(5), By::Interrupt);
        let batch = On::Futex(0x100_000 + u64::from(turn) * 64);
        let (from, to) = (begin + 4.9, begin + 19.9);
        tale.wait(TRAINER, from, to, FUTEX, batch, By::Thread(runs));
    }
    tale.session(LENGTH)
}

#[test]
fn one_at_a_time_is_when_all_others_wait() {
    use crate::analysis::analyse;
    // Three of four wait for the lock; two, and of the other two one reads for 18 of 20 ms; never more than one beside that one.
    for (waited, expected) in [(60.0, 0.99), (40.0, 0.89), (10.0, 0.0)] {
        let analysis = analyse(&reads_under_a_lock(waited));
        let found = analysis.findings.iter().find(|f| f.kind == "serialization");
        let found = found.expect("a finding");
        let share = found.evidence["one_at_a_time_share"].as_f64();
        let share = share.expect("a share");
        assert!((share - expected).abs() < 0.01, "{share} of {expected}");
        let said = format!(
            "for {:.0} % of the time at most one of them can go on",
            share * 100.0
        );
        assert!(found.summary.contains(&said), "{}", found.summary);
    }
}

/// A stranger has the CPU for 40 ms.
fn pushed_aside(by: u32) -> Session {
    let mut session = alone(|tale, begin| {
        tale.preempted(TRAINER, begin, begin + 40.0, by);
    });
    session.apply(&Record::Outsider {
        tid: by,
        pid: Some(by),
        name: Some("stress".to_owned()),
    });
    session.host.outsiders.insert(by, vec!["stress".to_owned()]);
    session
}

/// A quota of 1.5 CPUs is hit in so many of the ten periods of each second; nobody else has the CPU meanwhile.
fn throttled(hit: u64) -> Session {
    let mut session = pushed_aside(0);
    for second in 0..=8_u64 {
        session.apply(&Record::Quota(QuotaSample {
            at: KtimeNs(at(second as f64 * 1e3)),
            cgroup: "/job".to_owned(),
            quota_us: 150_000,
            period_us: 100_000,
            periods: 10 * second,
            throttled_periods: hit * second,
            throttled_ns: 50_000_000 * hit * second,
        }));
    }
    session
}

/// Every second two writes 40 ms apart, and a wait for storage.
fn saves(ms: f64) -> Session {
    alone(|tale, begin| {
        if begin % 1000.0 != 600.0 {
            return;
        }
        let synced = begin + 50.0 + ms;
        for after in [0.0, 40.0] {
            let when = begin + after;
            tale.touch(TRAINER, when, Op::Write, Class::File, 3, 4 << 20);
        }
        let on = On::File(5);
        tale.wait(TRAINER, begin + 50.0, synced, FSYNC, on, By::Interrupt);
        tale.touch(TRAINER, synced, Op::Fsync, Class::File, 3, 0);
    })
}

/// Ranks 100 and 150 under a launcher.
pub(super) fn ranks(turns: impl Fn(&mut Tale)) -> Session {
    let mut tale = Tale::default();
    tale.process(50, 1).process(TRAINER, 50).process(150, 50);
    turns(&mut tale);
    let mut session = tale.session(LENGTH);
    session.start.as_mut().expect("a start").targets = vec![50];
    session
}
