//! What is recorded one by one: calls of the trainer at their times, and waits from a threshold on that
//! gives way when too many arrive.

use std::path::Path;

use serde_json::Value;
use trainprof_tests::env::root_test;
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Observed, observe};
use trainprof_user::record::{
    Reader, Record,
    fact::{Interval, TouchFact, WaitFact},
};

/// Numbers of operations and classes in recordings.
const READ: u8 = 2;
const MMAP: u8 = 7;
const MUNMAP: u8 = 14;
const CLOCK_NANOSLEEP: i16 = 230;

fn records(path: &Path) -> Vec<Record> {
    let mut reader = Reader::open(path).expect("a recording");
    let records = reader
        .records()
        .collect::<Result<Vec<Record>, _>>()
        .expect("readable records");
    assert!(
        reader.completeness().is_complete(),
        "the recording is whole"
    );
    records
}

#[test]
fn calls_of_the_trainer_are_noted_at_their_times() {
    let Some(_turn) = root_test("calls_of_the_trainer_are_noted_at_their_times") else {
        return;
    };
    let seen = observe("touch", &os(&[&"75"]));
    let Observed {
        truth,
        report,
        finished,
        ..
    } = &seen;
    let (main, child) = (u64_at(truth, "/pid"), u64_at(truth, "/child"));
    let touches: Vec<TouchFact> = records(&finished.recording)
        .into_iter()
        .filter_map(|record| match record {
            Record::Touch(touch) => Some(touch),
            _ => None,
        })
        .collect();
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    checks.that(!touches.iter().any(|t| u64::from(t.tid) == child), || {
        "calls of a process that is no trainer were noted".to_owned()
    });
    let of_main: Vec<&TouchFact> = touches
        .iter()
        .filter(|t| u64::from(t.tid) == main)
        .collect();
    let pipe: Vec<&&TouchFact> = of_main
        .iter()
        .filter(|t| t.op == READ && t.object.id == u64_at(truth, "/pipe"))
        .collect();
    let reads: &Vec<Value> = truth["reads"].as_array().expect("reads of the truth");
    checks.exact("reads of the pipe", reads.len() as u64, pipe.len() as u64);
    for (read, touch) in reads.iter().zip(&pipe) {
        let (from, to) = (u64_at(read, "/from_ns"), u64_at(read, "/to_ns"));
        let bytes = u64_at(read, "/bytes");
        checks.that((from..=to).contains(&touch.at.0), || {
            format!("a read from {from} to {to} was noted at {}", touch.at.0)
        });
        checks.exact("bytes of a read", bytes, touch.bytes);
    }
    for (name, op) in [("mmap", MMAP), ("munmap", MUNMAP)] {
        let count = of_main.iter().filter(|t| t.op == op).count();
        checks.exact(name, u64_at(truth, "/maps"), count as u64);
    }
    // What was left out is told by number. The bursts were left out but for the first, or nearly.
    let skipped: u64 = of_main.iter().map(|t| u64::from(t.skipped)).sum();
    checks.exact(
        "calls noted and left out",
        u64_at(truth, "/calls"),
        of_main.len() as u64 + skipped,
    );
    checks.that(skipped > 10 * of_main.len() as u64 / 4, || {
        format!("{} calls noted, {skipped} left out", of_main.len())
    });
    checks.done();
}

#[test]
fn single_waits_tell_what_was_waited_for() {
    let Some(_turn) = root_test("single_waits_tell_what_was_waited_for") else {
        return;
    };
    const TIMES: u64 = 60;
    let seen = observe("objects", &os(&[&TIMES.to_string()]));
    let Observed {
        truth,
        report,
        finished,
        ..
    } = &seen;
    let waits: Vec<WaitFact> = records(&finished.recording)
        .into_iter()
        .filter_map(|record| match record {
            Record::Wait(wait) => Some(wait),
            _ => None,
        })
        .collect();
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    for thing in truth["things"].as_array().expect("things of the truth") {
        let name = thing["name"].as_str().unwrap_or_default();
        let (tid, nr, id) = (
            u64_at(thing, "/tid"),
            u64_at(thing, "/nr"),
            u64_at(thing, "/id"),
        );
        let of = |wait: &&WaitFact| {
            u64::from(wait.tid) == tid && wait.nr as u64 == nr && wait.wait_ns > 0
        };
        let found: Vec<&WaitFact> = waits.iter().filter(of).collect();
        let others = found.iter().filter(|wait| wait.object.id != id).count();
        checks.exact(
            &format!("waits for something else, {name}"),
            0,
            others as u64,
        );
        let told = found.len() as u64;
        checks.exact(&format!("waits, {name}"), u64_at(thing, "/waits"), told);
        // The test waits for what it says it does.
        checks.that(told >= TIMES * 9 / 10, || format!("{name}: {told} waits"));
        let by_first = found
            .iter()
            .filter(|wait| u64::from(wait.waker.tid) == u64_at(truth, "/pid"))
            .count() as u64;
        checks.that(by_first >= told * 9 / 10, || {
            format!("{name}: {by_first} of {told} were ended by who ended them")
        });
    }
    checks.done();
}

#[test]
fn single_waits_give_way_to_sums_when_there_are_too_many() {
    let Some(_turn) = root_test("single_waits_give_way_to_sums_when_there_are_too_many") else {
        return;
    };
    let seen = observe("flurry", &[]);
    let Observed {
        truth,
        report,
        finished,
        ..
    } = &seen;
    let records = records(&finished.recording);
    let waits: Vec<&WaitFact> = records
        .iter()
        .filter_map(|record| match record {
            Record::Wait(wait) => Some(wait),
            _ => None,
        })
        .collect();
    let intervals: Vec<&Interval> = records
        .iter()
        .filter_map(|record| match record {
            Record::Interval(interval) => Some(interval),
            _ => None,
        })
        .collect();
    let mut checks = Checks::new();
    checks.nothing_lost(report);
    let slept: u64 = intervals
        .iter()
        .flat_map(|interval| &interval.waits)
        .filter(|sum| sum.nr == CLOCK_NANOSLEEP)
        .map(|sum| sum.count)
        .sum();
    // A page fault that waits is a block as well, and no sleep.
    let (sleeps, blocks) = (u64_at(truth, "/sleeps"), u64_at(truth, "/blocks"));
    checks.that(
        slept <= blocks.min(sleeps) && slept as f64 >= 0.999 * blocks as f64,
        || format!("{slept} sleeps in the sums; {sleeps} were begun and {blocks} blocked"),
    );
    let per_s = f64_at(truth, "/per_s");
    let highest = intervals.iter().map(|i| i.event_min_ns).max();
    // An emulated machine may be too slow to make too many.
    if per_s > 10_000.0 {
        checks.that(highest >= Some(100_000), || {
            format!(
                "{} sleeps a second, and the threshold never rose: {highest:?}",
                truth["per_s"]
            )
        });
        // When 6 000 have come in a second the threshold doubles, and the count begins anew: an interval has a part of two
        // such seconds, and for each time that it rose as many again. It may have to rise at any time: an emulated machine is
        // not equally fast all the time.
        let begun = waits.iter().map(|wait| wait.from.0).min().unwrap_or(0);
        for pair in intervals.windows(2) {
            let [before, interval] = pair else { continue };
            if interval.from.0 < begun + 1_000_000_000 {
                continue;
            }
            let single = waits
                .iter()
                .filter(|w| w.from >= interval.from && w.from < interval.to)
                .count();
            let seconds = (interval.to.0 - interval.from.0) as f64 / 1e9;
            let single_per_s = single as f64 / seconds;
            let times = interval.event_min_ns as f64 / before.event_min_ns as f64;
            let rises = times.log2().max(0.0);
            checks.that(single_per_s < 6_000.0 * (2.0 + rises), || {
                format!(
                    "{single_per_s} waits one by one a second of {per_s}, the threshold rose {rises} times"
                )
            });
        }
    }
    checks.that(highest <= Some(1_600_000), || format!("{highest:?}"));
    let last = intervals.last().map(|i| i.event_min_ns);
    checks.that(last == Some(50_000), || {
        format!("after seconds of quiet the threshold is {last:?}")
    });
    // Above an interval's threshold single waits are complete: as many as the sums say at the least.
    for interval in &intervals {
        let single = |wait: &&&WaitFact| {
            let end = wait.from.0 + wait.wait_ns + wait.runnable_ns;
            wait.nr == CLOCK_NANOSLEEP && end >= interval.from.0 && end < interval.to.0
        };
        let longest = interval
            .waits
            .iter()
            .filter(|sum| sum.nr == CLOCK_NANOSLEEP)
            .map(|sum| sum.max_ns)
            .max()
            .unwrap_or(0);
        if longest > interval.event_min_ns {
            let found = waits.iter().filter(single).map(|w| w.wait_ns).max();
            checks.that(found >= Some(longest - 1), || {
                format!("a wait of {longest} ns is not there one by one: {found:?}")
            });
        }
    }
    checks.done();
}
