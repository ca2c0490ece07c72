//! Ranks that wait for each other: what the late one does, and what a step is.

use trainprof_common::op::{Class, Op};

use super::{
    clocks::{steps, uneven},
    stories::TRAINER,
    tale::{By, FUTEX, On, RECV, Tale},
};
use crate::{
    analysis::{Verdict, analyse, steps::Clock},
    record::{Record, fact::SocketFact},
};

const LAUNCHER: u32 = 50;
const OTHER: u32 = 150;
const LOADER: &str = "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py";
const MODULE: &str = "/usr/lib/python3/dist-packages/torch/nn/modules/module.py";

fn two_ranks() -> Tale {
    let mut tale = Tale::default();
    tale.process(LAUNCHER, 1)
        .process(TRAINER, LAUNCHER)
        .process(OTHER, LAUNCHER);
    tale
}

#[test]
fn a_late_rank_that_makes_its_batches_itself_is_told_so() {
    // Rank 150 makes a batch for 60 of 100 ms and computes for 30; 100 has one after 10, computes for 30 too, and waits.
    let mut tale = two_ranks();
    tale.function(1, LOADER, "_BaseDataLoaderIter.__next__")
        .function(2, MODULE, "Module._call_impl");
    let samples = |from: u32, to: u32| {
        (0..80_u32).flat_map(move |step| {
            (from..to)
                .step_by(10)
                .map(move |ms| f64::from(step * 100 + ms + 5))
        })
    };
    tale.stack(1, &[1], OTHER, samples(0, 60))
        .stack(2, &[2], OTHER, samples(60, 90));
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (on, by) = (On::Socket(4), By::Sender(OTHER));
        tale.wait(TRAINER, begin + 40.0, begin + 95.0, RECV, on, by);
        let (on, by) = (On::Socket(5), By::Sender(TRAINER));
        tale.wait(OTHER, begin + 96.0, begin + 97.0, RECV, on, by);
    }
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
    let analysis = analyse(&session);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    let told = "and 36 % of that time on input-cpu";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
    let found = analysis.findings.iter().find(|f| f.kind == "communication");
    let evidence = &found.expect("a finding").evidence;
    assert_eq!(evidence["guilty_is_busy_with"], "input-cpu");
    // What the other one runs was not sampled.
    assert_eq!(evidence.get("guilty_runs"), None);
}

#[test]
fn what_a_late_rank_does_more_of_than_the_others_is_named() {
    // Both compute for 30 of 100 ms; rank 150 parses for 60 ms, the other one for so many.
    let told = |other_parses: u32| {
        let mut tale = two_ranks();
        tale.function(1, "/job/train.py", "Shard.parse").function(
            2,
            "/job/train.py",
            "Net.forward",
        );
        let samples = |from: u32, to: u32| {
            (0..80_u32).flat_map(move |step| {
                (from..to)
                    .step_by(2)
                    .map(move |ms| f64::from(step * 100 + ms) + 0.5)
            })
        };
        tale.stack(1, &[1], OTHER, samples(0, 60))
            .stack(2, &[2], OTHER, samples(60, 90))
            .stack(1, &[1], TRAINER, samples(0, other_parses))
            .stack(2, &[2], TRAINER, samples(other_parses, other_parses + 30));
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            let (on, by) = (On::Socket(4), By::Sender(OTHER));
            let waits = begin + f64::from(other_parses) + 30.0;
            tale.wait(TRAINER, waits, begin + 95.0, RECV, on, by);
            let (on, by) = (On::Socket(5), By::Sender(TRAINER));
            tale.wait(OTHER, begin + 96.0, begin + 97.0, RECV, on, by);
        }
        let mut session = tale.session(8000.0);
        session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
        let findings = analyse(&session).findings;
        let found = findings.into_iter().find(|f| f.kind == "communication");
        found.expect("a finding")
    };
    let late = told(10);
    assert_eq!(late.evidence["guilty_runs"]["function"], "Shard.parse");
    // Two thirds of the 99 ms that it runs, less a quarter of the other one's 45.
    let share = "150, which is in Shard.parse (train.py:1) for 55 % of the time more than they are";
    assert!(late.summary.contains(share), "{}", late.summary);
    assert!(
        late.advice.contains("Shard.parse (train.py:1) first"),
        "{}",
        late.advice
    );
}

#[test]
fn parameters_that_are_exchanged_one_by_one_are_one_step() {
    // 20 to 22 ms of computing, then 15 exchanges of 1 ms with 50 µs between two of them; the first is waited for for longer.
    let mut tale = two_ranks();
    let mut now = 0.0;
    for step in 0..100 {
        now += uneven(step, 20.0);
        for exchange in 0..15 {
            let to = now + if exchange == 0 { 12.0 } else { 1.0 };
            tale.wait(TRAINER, now, to, RECV, On::Socket(4), By::Sender(OTHER));
            tale.wait(
                OTHER,
                to - 0.8,
                to - 0.2,
                RECV,
                On::Socket(5),
                By::Sender(TRAINER),
            );
            now = to + 0.05;
        }
    }
    let found = steps(&tale, now).expect("steps");
    assert_eq!(found.clock, Clock::Collectives);
    let count = found.spans.len();
    assert!(count.abs_diff(99) <= 1, "{count} of 99");
    let p50 = found.quantile_ns(0.5) as f64 / 1e6;
    assert!((p50 - 47.6).abs() < 1.0, "{p50}");
}

/// Two ranks compute for 40 of 100 ms and then wait for a thread of their own, which works for 60 and takes something from the other
/// rank's so many times meanwhile.
fn exchanging(times: u32) -> Tale {
    let mut tale = two_ranks();
    let ranks = [(TRAINER, TRAINER + 1), (OTHER, OTHER + 1)];
    for (rank, thread) in ranks {
        tale.thread(rank, thread);
    }
    let piece = 60.0 / f64::from(times);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for (n, (rank, thread)) in ranks.into_iter().enumerate() {
            let asked = By::Thread(rank);
            tale.wait(
                rank,
                begin + 40.0,
                begin + 99.9,
                FUTEX,
                On::Futex(8),
                By::Thread(thread),
            );
            tale.wait(thread, begin, begin + 39.9, FUTEX, On::Futex(16), asked);
            let (_, peer) = ranks[1 - n];
            for part in 0..times {
                let from = begin + 40.0 + f64::from(part) * piece + 0.4 * f64::from(n as u32);
                let on = On::Socket(4 + n as u64);
                tale.wait(thread, from, from + 0.3, RECV, on, By::Sender(peer));
            }
        }
    }
    tale
}

fn verdict(tale: &Tale) -> Verdict {
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
    analyse(&session).verdict.expect("a verdict")
}

/// Nobody is late: threads of both ranks copy and add up what they exchange.
#[test]
fn what_threads_do_that_exchange_is_the_exchange() {
    let verdict = verdict(&exchanging(15));
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    assert!((verdict.share.expect("a share") - 0.6).abs() < 0.03);
    let told = "the exchange itself";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
}

/// Of the 60 ms in which threads exchange, the kernel's thread for packets has their CPU for 30; by sockets of which family, and by bytes
/// that move in each step.
fn packets_of(thread: &str, family: &str, bytes: u64) -> Verdict {
    const KERNEL: u32 = 14;
    let mut tale = exchanging(15);
    tale.outsider(KERNEL, thread);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        for worker in [TRAINER + 1, OTHER + 1] {
            for part in 0..15 {
                let from = begin + 41.5 + f64::from(part) * 4.0;
                tale.preempted(worker, from, from + 2.0, KERNEL);
            }
            for op in [Op::Read, Op::Write] {
                tale.ops(worker, begin + 99.0, op, Class::Socket, 0, 15, bytes, 1.0);
            }
        }
    }
    let mut session = tale.session(8000.0);
    session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
    session.apply(&Record::Socket(SocketFact {
        inode: 4,
        family: family.to_owned(),
        peer: None,
    }));
    analyse(&session).verdict.expect("a verdict")
}

#[test]
fn what_the_kernel_does_with_the_packets_of_an_exchange_is_the_exchange() {
    let exchange = packets_of("ksoftirqd/0", "tcp", 20_000_000);
    assert_eq!(exchange.bottleneck, "communication", "{}", exchange.summary);
    assert!((exchange.share.expect("a share") - 0.6).abs() < 0.03);
    let told = "the exchange itself";
    assert!(exchange.summary.contains(told), "{}", exchange.summary);
    // Packets of somebody else; sockets without any; another thread of the kernel.
    for other in [
        packets_of("ksoftirqd/0", "tcp", 20_000),
        packets_of("ksoftirqd/0", "unix", 20_000_000),
        packets_of("kswapd0", "tcp", 20_000_000),
    ] {
        assert_eq!(other.bottleneck, "cpu-contention", "{}", other.summary);
    }
}

/// Most of the time they wait for somebody who is not on this host: whether that one is late nobody knows.
#[test]
fn where_ranks_elsewhere_are_waited_for_nobody_says_that_none_is_late() {
    let mut tale = exchanging(15);
    for step in 0..80 {
        let begin = 8_000.0 + f64::from(step) * 100.0;
        for (rank, socket) in [(TRAINER, 90), (OTHER, 91)] {
            let on = On::Socket(socket);
            tale.wait(rank, begin, begin + 99.0, RECV, on, By::Softirq);
            let asked = By::Thread(rank);
            tale.wait(rank + 1, begin, begin + 99.9, FUTEX, On::Futex(16), asked);
        }
    }
    let mut session = tale.session(16_000.0);
    session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
    let verdict = analyse(&session).verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    let told = "no rank is late";
    assert!(!verdict.summary.contains(told), "{}", verdict.summary);
    // All wait at once, and for none of them.
    let told = "is on its way";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
    let told = "a rank elsewhere is late";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
}

/// A thread that works for long between two messages has work of its own.
#[test]
fn a_thread_that_also_exchanges_computes() {
    let verdict = verdict(&exchanging(2));
    assert_eq!(verdict.bottleneck, "compute", "{}", verdict.summary);
}

/// Two stages of a model, each a rank: of 100 ms one computes for 50, and then the other for 50. A thread of each takes what the other
/// sends, and lets its step thread go on.
#[test]
fn ranks_that_work_in_turn_are_told_so_and_have_no_loaders() {
    let mut tale = two_ranks();
    let ranks = [(TRAINER, TRAINER + 1), (OTHER, OTHER + 1)];
    for (rank, thread) in ranks {
        tale.thread(rank, thread);
    }
    for step in 0..80 {
        for (n, (rank, thread)) in ranks.into_iter().enumerate() {
            let begin = f64::from(step) * 100.0 + 50.0 * n as f64;
            let (_, peer) = ranks[1 - n];
            let (on, by) = (On::Socket(4 + n as u64), By::Sender(peer));
            tale.wait(thread, begin + 0.3, begin + 99.5, RECV, on, by);
            let by = By::Thread(thread);
            tale.wait(rank, begin + 50.0, begin + 99.8, FUTEX, On::Futex(8), by);
        }
    }
    let mut session = tale.session(8_050.0);
    session.start.as_mut().expect("a start").targets = vec![LAUNCHER];
    let analysis = analyse(&session);
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "communication", "{}", verdict.summary);
    let told = "the 2 ranks work in turn";
    assert!(verdict.summary.contains(told), "{}", verdict.summary);
    let kinds: Vec<_> = analysis.findings.iter().map(|found| found.kind).collect();
    assert!(!kinds.contains(&"too-few-workers"), "{kinds:?}");
    assert!(!kinds.contains(&"rank-imbalance"), "{kinds:?}");
    let rank = analysis.trainer.as_ref().expect("a trainer");
    assert_eq!(rank.cast.loader_threads, [].into());
}
