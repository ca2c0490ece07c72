use super::*;
use crate::record::fact::{
    AllocCallsFact, AllocSiteFact, AllocWindowFact, CallsHidden, OpSum, OpenThread, ProcessSeen,
    Stop, StopReason, ThreadEnd, ThreadSeen, ThreadTotals, TouchFact, WaitSum, WakerFact,
};

const PID: u32 = 100;
/// The second life of [`PID`].
const AGAIN: u32 = PID | 1 << 22;

fn process(pid: u32, parent: u32, at: u64) -> Record {
    Record::Process(ProcessSeen {
        at: KtimeNs(at),
        pid,
        parent,
        name: String::new(),
        facts: None,
        frameworks: None,
    })
}

fn thread(pid: u32, tid: u32, at: u64) -> Record {
    Record::Thread(ThreadSeen {
        at: KtimeNs(at),
        pid,
        tid,
        parent_tid: Some(1),
        name: String::new(),
    })
}

fn exit(pid: u32, tid: u32, at: u64) -> Record {
    Record::Exit {
        at: KtimeNs(at),
        pid,
        tid,
    }
}

fn exec(pid: u32, old_tid: u32, at: u64) -> Record {
    Record::Exec {
        at: KtimeNs(at),
        pid,
        old_tid,
        name: String::new(),
    }
}

fn touch(tid: u32, at: u64) -> Record {
    Record::Touch(TouchFact {
        tid,
        at: KtimeNs(at),
        op: 0,
        object: Default::default(),
        bytes: 0,
        skipped: 0,
    })
}

fn end(pid: u32, tid: u32, since: u64, at: u64) -> ThreadEnd {
    ThreadEnd {
        at: KtimeNs(at),
        pid,
        tid,
        followed_since: KtimeNs(since),
        totals: totals(tid),
        counters: Default::default(),
        name: String::new(),
    }
}

fn totals(tid: u32) -> ThreadTotals {
    ThreadTotals {
        tid,
        ..ThreadTotals::default()
    }
}

fn op(tid: u32) -> OpSum {
    OpSum {
        tid,
        fileset: 1,
        dev: 1,
        op: 0,
        class: 0,
        count: 1,
        errors: 0,
        bytes: 0,
        ns: 0,
    }
}

/// Takes records in.
fn told(lives: &mut Lives, records: &[Record]) {
    for record in records {
        lives.tell_apart(record);
    }
}

/// An id that was had from 10 to 20 by a process, and is again from 30 on by another one.
fn twice() -> Lives {
    let mut lives = Lives::default();
    told(
        &mut lives,
        &[
            process(1, 0, 0),
            thread(1, 1, 0),
            process(PID, 1, 10),
            thread(PID, PID, 10),
            exit(PID, PID, 20),
            process(PID, 1, 30),
            thread(PID, PID, 30),
        ],
    );
    lives
}

/// Who a call at a time is told of.
fn toucher(lives: &mut Lives, tid: u32, at: u64) -> u32 {
    match lives.tell_apart(&touch(tid, at)).into_owned() {
        Record::Touch(touch) => touch.tid,
        other => panic!("{other:?}"),
    }
}

fn interval(lives: &mut Lives, interval: Interval) -> Interval {
    match lives.tell_apart(&Record::Interval(interval)).into_owned() {
        Record::Interval(interval) => interval,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_id_is_shown_as_the_kernel_has_it() {
    for id in [Id(PID), Id(AGAIN), Id(PID | 1023 << 22)] {
        assert_eq!(id.to_string(), "100");
        assert_eq!(format!("{id:>6}"), "   100");
        assert_eq!(serde_json::json!(id), serde_json::json!(100));
    }
    assert_ne!(Id(PID), Id(AGAIN));
}

#[test]
fn records_pass_untouched_as_long_as_no_id_comes_again() {
    let mut lives = Lives::default();
    for record in [
        process(PID, 1, 10),
        thread(PID, PID, 10),
        exec(PID, PID, 12),
        process(PID, 1, 12),
        touch(PID, 15),
        exit(PID, PID, 20),
        touch(PID, 25),
    ] {
        assert!(matches!(lives.tell_apart(&record), Cow::Borrowed(_)));
    }
    let record = thread(PID, PID, 30);
    assert!(matches!(lives.tell_apart(&record), Cow::Owned(_)));
}

#[test]
fn facts_are_told_of_the_life_of_their_time() {
    let mut lives = twice();
    let of = |lives: &mut Lives, at| toucher(lives, PID, at);
    assert_eq!([5, 15, 20].map(|at| of(&mut lives, at)), [PID; 3]);
    // Whoever has ended may still wake others, and facts may come late.
    assert_eq!(of(&mut lives, 29), PID);
    assert_eq!([30, 35].map(|at| of(&mut lives, at)), [AGAIN; 2]);
    assert_eq!(toucher(&mut lives, 7, 35), 7);
    // What has no time is of now.
    let cpus = "0".to_owned();
    let affinity = Record::Affinity { pid: PID, cpus };
    let named = lives.tell_apart(&affinity).into_owned();
    assert!(matches!(named, Record::Affinity { pid: AGAIN, .. }));
}

#[test]
fn who_begins_and_ends_is_told_by_life() {
    let mut lives = twice();
    let Record::Thread(seen) = lives.tell_apart(&thread(PID, 101, 40)).into_owned() else {
        panic!("another record");
    };
    assert_eq!((seen.pid, seen.tid, seen.parent_tid), (AGAIN, 101, Some(1)));
    // A child of the second life.
    let Record::Process(seen) = lives.tell_apart(&process(102, PID, 41)).into_owned() else {
        panic!("another record");
    };
    assert_eq!((seen.pid, seen.parent), (102, AGAIN));
    let ended = lives.tell_apart(&exit(PID, PID, 50)).into_owned();
    let expected = exit(AGAIN, AGAIN, 50);
    assert_eq!(ended, expected);
}

#[test]
fn an_id_may_be_a_threads_and_then_a_processs() {
    let mut lives = Lives::default();
    told(
        &mut lives,
        &[
            thread(1, 1, 0),
            thread(1, PID, 10),
            exit(1, PID, 20),
            process(PID, 1, 30),
        ],
    );
    let Record::Thread(seen) = lives.tell_apart(&thread(PID, PID, 30)).into_owned() else {
        panic!("another record");
    };
    assert_eq!((seen.pid, seen.tid), (AGAIN, AGAIN));
    assert_eq!(toucher(&mut lives, PID, 15), PID);
}

#[test]
fn wakers_are_those_of_the_time_of_the_wake_up() {
    let mut lives = twice();
    let mut wait = |from, wait_ns, runnable_ns| {
        let wait = Record::Wait(WaitFact {
            tid: 1,
            from: KtimeNs(from),
            wait_ns,
            runnable_ns,
            ran_before: PID,
            nr: 0,
            object: Default::default(),
            waker: WakerFact { kind: 1, tid: PID },
            iowait: false,
        });
        match lives.tell_apart(&wait).into_owned() {
            Record::Wait(wait) => (wait.tid, wait.waker.tid, wait.ran_before),
            other => panic!("{other:?}"),
        }
    };
    // By the first life, by its end, and by the second one; the last one had the CPU afterwards.
    assert_eq!(wait(12, 5, 1), (1, PID, PID));
    assert_eq!(wait(12, 9, 1), (1, PID, PID));
    assert_eq!(wait(12, 23, 1), (1, AGAIN, AGAIN));
    assert_eq!(wait(12, 10, 9), (1, PID, AGAIN));
}

#[test]
fn a_thread_that_executes_a_program_goes_on_under_its_processs_id() {
    let mut lives = Lives::default();
    told(
        &mut lives,
        &[
            process(PID, 1, 10),
            thread(PID, PID, 10),
            thread(PID, 101, 11),
            exit(PID, PID, 20),
            exec(PID, 101, 21),
            process(PID, 1, 21),
        ],
    );
    // The final account of the one whose id was taken over ends nothing.
    told(
        &mut lives,
        &[Record::Interval(Interval {
            ended: vec![end(PID, PID, 10, 20)],
            ..Interval::default()
        })],
    );
    assert!(!lives.again);
    // Nor is it the end when the one that took it over gives its account, which began under another id.
    told(&mut lives, &[exit(PID, PID, 30)]);
    let ended = Interval {
        ended: vec![end(PID, PID, 11, 30)],
        ..Interval::default()
    };
    assert_eq!(interval(&mut lives, ended.clone()), ended);
    assert!(!lives.again);
    // Both ids may come again.
    told(&mut lives, &[thread(1, 101, 25), process(PID, 1, 40)]);
    assert_eq!(toucher(&mut lives, 101, 26), 101 | 1 << 22);
    assert_eq!(toucher(&mut lives, PID, 22), PID);
    assert_eq!(toucher(&mut lives, PID, 41), AGAIN);
}

#[test]
fn sums_are_told_of_who_had_the_id_for_longest() {
    let mut lives = twice();
    let sums = |from, to| Interval {
        from: KtimeNs(from),
        to: KtimeNs(to),
        ops: vec![op(PID)],
        waits: vec![WaitSum {
            tid: PID,
            nr: 0,
            object: Default::default(),
            waker: WakerFact { kind: 1, tid: PID },
            count: 1,
            wait_ns: 1,
            runnable_ns: 0,
            iowait_ns: 0,
            max_ns: 1,
        }],
        ..Interval::default()
    };
    for (from, to, expected) in [
        (0, 15, PID),
        (12, 32, PID),
        (18, 40, AGAIN),
        (40, 50, AGAIN),
        // Nobody had it.
        (21, 29, PID),
    ] {
        let told = interval(&mut lives, sums(from, to));
        let ids = [told.ops[0].tid, told.waits[0].tid, told.waits[0].waker.tid];
        assert_eq!(ids, [expected; 3], "{from} to {to}");
    }
}

#[test]
fn accounts_are_those_of_their_own_life() {
    let mut lives = twice();
    let both = Interval {
        from: KtimeNs(0),
        to: KtimeNs(40),
        ended: vec![end(PID, PID, 10, 20)],
        running: vec![totals(PID), totals(1)],
        ..Interval::default()
    };
    let told = interval(&mut lives, both);
    let ended = &told.ended[0];
    assert_eq!([ended.pid, ended.tid, ended.totals.tid], [PID; 3]);
    assert_eq!([told.running[0].tid, told.running[1].tid], [AGAIN, 1]);
    // Told of the first life, though the second one has begun by the time that it is read.
    let mut lives = twice();
    let first = Interval {
        from: KtimeNs(0),
        to: KtimeNs(15),
        running: vec![totals(PID)],
        ..Interval::default()
    };
    assert_eq!(interval(&mut lives, first).running[0].tid, PID);
    // The second began between the interval's end and the look at who is there.
    let between = Interval {
        from: KtimeNs(15),
        to: KtimeNs(25),
        ended: vec![end(PID, PID, 10, 20)],
        running: vec![totals(PID)],
        ..Interval::default()
    };
    assert_eq!(interval(&mut lives, between).running[0].tid, AGAIN);
}

#[test]
fn a_life_whose_beginning_was_lost_is_told_by_its_account() {
    let first = [thread(PID, PID, 10), exit(PID, PID, 20)];
    let mut lives = Lives::default();
    told(&mut lives, &first);
    let account = Interval {
        ended: vec![end(PID, PID, 30, 40)],
        ..Interval::default()
    };
    assert_eq!(interval(&mut lives, account).ended[0].tid, AGAIN);
    let mut lives = Lives::default();
    told(&mut lives, &first);
    let open = OpenThread {
        pid: PID,
        tid: PID,
        followed_since: KtimeNs(30),
        name: String::new(),
        totals: totals(PID),
        state: 0,
        since: KtimeNs(30),
        nr: 0,
        object: Default::default(),
        counters: None,
    };
    let stop = Record::Stop(Stop {
        at: KtimeNs(50),
        reason: StopReason::Duration,
        threads: vec![open],
    });
    let Record::Stop(stop) = lives.tell_apart(&stop).into_owned() else {
        panic!("another record");
    };
    let open = &stop.threads[0];
    assert_eq!([open.pid, open.tid, open.totals.tid], [AGAIN; 3]);
}

#[test]
fn allocators_and_hidden_calls_are_told_by_life() {
    let mut lives = twice();
    let window = AllocWindowFact {
        number: 1,
        pid: PID,
        from: KtimeNs(12),
        to: KtimeNs(14),
        full: false,
        hit_ns: 0.0,
        functions: vec![],
        cpu_ns: None,
        calls: vec![AllocCallsFact {
            tid: PID,
            function: "malloc".to_owned(),
            allocates: true,
            count: 1,
            bytes: 1,
            sizes: vec![],
        }],
        stack_every: 0,
        lifetimes: None,
        lost: 0,
        sites: 0,
        hits: 0,
        job_ns: 0,
        pause_ns: 0,
        own_ns: 0,
    };
    let site = Record::AllocSite(AllocSiteFact {
        window: 1,
        pid: PID,
        function: "malloc".to_owned(),
        count: 1,
        bytes: 1,
        frames: vec![],
    });
    for (from, expected) in [(12, PID), (32, AGAIN)] {
        let mut window = window.clone();
        window.from = KtimeNs(from);
        let Record::AllocWindow(told) = lives.tell_apart(&Record::AllocWindow(window)).into_owned()
        else {
            panic!("another record");
        };
        assert_eq!([told.pid, told.calls[0].tid], [expected; 2]);
        let Record::AllocSite(told) = lives.tell_apart(&site).into_owned() else {
            panic!("another record");
        };
        assert_eq!(told.pid, expected);
        let hidden = Record::CallsHidden(CallsHidden {
            from: KtimeNs(from),
            to: KtimeNs(from + 5),
            counted: Some(vec![1, PID]),
            slowed: 0.0,
        });
        let Record::CallsHidden(told) = lives.tell_apart(&hidden).into_owned() else {
            panic!("another record");
        };
        assert_eq!(told.counted, Some(vec![1, expected]));
    }
}

#[test]
fn more_lives_than_can_be_told_apart_count_as_the_last() {
    let mut lives = Lives::default();
    for life in 0..2 * MOST_LIVES as u64 {
        let at = 10 * life;
        told(&mut lives, &[process(PID, 1, at), thread(PID, PID, at)]);
        let expected = life.min(MOST_LIVES as u64 - 1) as u32;
        assert_eq!(toucher(&mut lives, PID, at + 1), PID | expected << ID_BITS);
        told(&mut lives, &[exit(PID, PID, at + 5)]);
    }
    assert_eq!(lives.known[&PID].len(), MOST_LIVES);
    assert_eq!(toucher(&mut lives, PID, 11), AGAIN);
    let last = PID | (MOST_LIVES as u32 - 1) << ID_BITS;
    assert_eq!(last, PID | 0xffc0_0000);
    // Its account is told of it still.
    let at = 20 * MOST_LIVES as u64;
    told(&mut lives, &[thread(PID, PID, at)]);
    let running = Interval {
        from: KtimeNs(at),
        to: KtimeNs(at + 1),
        running: vec![totals(PID)],
        ..Interval::default()
    };
    assert_eq!(interval(&mut lives, running).running[0].tid, last);
}

#[test]
fn the_threads_of_a_process_are_found_also_when_one_executed_a_program() {
    let mut session = crate::session::Session::default();
    for record in [
        process(PID, 1, 1),
        thread(PID, PID, 1),
        thread(PID, 101, 2),
        thread(PID, 102, 3),
        process(200, PID, 4),
        thread(200, 200, 4),
        exec(PID, 102, 5),
    ] {
        session.apply(&record);
    }
    let of = |pid: u32| -> Vec<(u32, u64)> {
        let keys = session.threads_of(pid).map(|thread| thread.key);
        keys.map(|key| (key.tid, key.since.0)).collect()
    };
    assert_eq!(of(PID), [(PID, 1), (PID, 3), (101, 2)]);
    assert_eq!(of(200), [(200, 4)]);
    assert!(of(102).is_empty());
    for (key, thread) in &session.threads {
        let listed = session.threads_of(thread.pid);
        assert!(listed.into_iter().any(|other| other.key == *key));
    }
}
