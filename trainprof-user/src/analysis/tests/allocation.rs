//! Stories of programs that ask for memory too often.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, job},
    tale::{Tale, at},
};
use crate::{
    analysis::{Analysis, Finding, analyse},
    record::{
        Record,
        fact::{
            AllocCallsFact, AllocFrame, AllocLifetimesFact, AllocSiteFact, AllocWindowFact,
            PlaceClass,
        },
    },
    session::Session,
    time::KtimeNs,
};

/// Windows of 10 ms, in each of which the trainer makes so many calls.
const WINDOWS: u32 = 5;
const CALLS: u64 = 8_000;

/// A trainer that is in malloc for 6 of 20 samples and never faults; four of five blocks are of 48 bytes and for `tokenize`, the fifth
/// is of 4 000 and for `collate`.
fn small_blocks(windows: bool) -> Session {
    small_blocks_of(job(0), windows)
}

fn small_blocks_of(mut tale: Tale, windows: bool) -> Session {
    tale.place(1, "libtokenizers.so", PlaceClass::Other)
        .place(2, "libc.so.6", PlaceClass::Malloc);
    for n in 0..600 {
        let place = if n % 20 < 6 { 2 } else { 1 };
        tale.sample(TRAINER, 10.0 + f64::from(n) * 20.0, place);
    }
    let mut session = tale.session(12_000.0);
    for number in 1..=if windows { WINDOWS } else { 0 } {
        let from = at(2_000.0 * f64::from(number));
        session.apply(&Record::AllocWindow(window(number, from)));
        for (function, count, bytes) in [("tokenize", 100, 48), ("collate", 25, 4_000)] {
            session.apply(&Record::AllocSite(AllocSiteFact {
                window: number,
                pid: TRAINER,
                function: "malloc".to_owned(),
                count,
                bytes: count * bytes,
                frames: vec![AllocFrame {
                    address: 1,
                    module: Some("/opt/lib/libtokenizers.so".to_owned()),
                    offset: 1,
                    function: Some(function.to_owned()),
                }],
            }));
        }
    }
    session
}

#[test]
fn shared_memory_that_is_removed_is_memory_given_back() {
    const MUNMAP: i16 = 11;
    const UNLINK: i16 = 87;
    // Of twenty samples three are in munmap and three remove something; files of its own are kept, or used as well.
    let found = |files: u64| {
        let mut tale = job(0);
        tale.place(1, "libtorch_cpu.so", PlaceClass::Other).place(
            2,
            "[kernel]",
            PlaceClass::Kernel,
        );
        for n in 0..600 {
            let when = 10.0 + f64::from(n) * 20.0;
            match n % 20 {
                0..3 => tale.sample_in(TRAINER, when, 2, MUNMAP),
                3..6 => tale.sample_in(TRAINER, when, 2, UNLINK),
                _ => tale.sample(TRAINER, when, 1),
            };
        }
        tale.ops(TRAINER, 5.0, Op::Open, Class::File, 5, files, 0, 1.0);
        let analysis = analyse(&tale.session(12_000.0));
        let mut found = analysis.findings.into_iter();
        found.find(|found| found.kind == "allocation-churn")
    };
    let removed = found(0).expect("churn");
    assert!(
        (removed.share.unwrap_or(0.0) - 0.3).abs() < 0.02,
        "{removed:?}"
    );
    assert!(
        removed.advice.contains("shared memory"),
        "{}",
        removed.advice
    );
    assert!(
        removed.summary.contains("shared memory"),
        "{}",
        removed.summary
    );
    let beside_files = found(9).expect("churn");
    assert!(
        (beside_files.share.unwrap_or(0.0) - 0.15).abs() < 0.02,
        "{beside_files:?}"
    );
    assert!(
        !beside_files.advice.contains("shared memory"),
        "{}",
        beside_files.advice
    );
}

fn window(number: u32, from: u64) -> AllocWindowFact {
    let (small, large) = (CALLS / 5 * 4, CALLS / 5);
    AllocWindowFact {
        number,
        pid: TRAINER,
        from: KtimeNs(from),
        to: KtimeNs(from + 10_000_000),
        full: false,
        hit_ns: 0.0,
        functions: vec!["malloc".to_owned()],
        cpu_ns: None,
        calls: vec![AllocCallsFact {
            tid: TRAINER,
            function: "malloc".to_owned(),
            allocates: true,
            count: CALLS,
            bytes: small * 48 + large * 4_000,
            sizes: vec![(6, small as u32), (12, large as u32)],
        }],
        stack_every: 64,
        lifetimes: Some(AllocLifetimesFact {
            one_in: 4,
            tracked: 2_000,
            tracked_bytes: 500 * 4_000 + 1_500 * 48,
            freed: 1_800,
            freed_bytes: 1_400 * 48,
            quick: 1_600,
            quick_bytes: 1_300 * 48,
            ns: Vec::new(),
        }),
        lost: 0,
        sites: 2,
        hits: CALLS,
        job_ns: 0,
        pause_ns: 0,
        own_ns: 0,
    }
}

fn churn(analysis: &Analysis) -> &Finding {
    let mut findings = analysis.findings.iter();
    findings
        .find(|finding| finding.kind == "allocation-churn")
        .expect("allocation-churn")
}

#[test]
fn small_blocks_that_fault_no_page_have_sites_sizes_and_advice_of_their_own() {
    let analysis = analyse(&small_blocks(true));
    let found = churn(&analysis);
    let evidence = &found.evidence;
    let close = |key: &str, truth: f64| {
        let told = evidence[key].as_f64().expect(key);
        assert!((told / truth - 1.0).abs() < 0.01, "{key}: {told}");
    };
    close("allocs_per_s", CALLS as f64 / 10e-3);
    close(
        "alloc_bytes_per_s",
        (0.8 * 48.0 + 0.2 * 4_000.0) * CALLS as f64 / 10e-3,
    );
    close("freed_within_1ms_share", 0.8);
    close("allocator_share_of_cpu", 0.3);
    for key in ["allocs_per_s_error", "freed_within_1ms_share_error"] {
        assert!(
            evidence[key].as_f64().is_some_and(|error| error > 0.0),
            "{key}"
        );
    }
    assert_eq!(evidence["sites"], serde_json::json!([]));
    let site = &evidence["allocation_sites"][0];
    assert_eq!(site["function"], "tokenize", "{site}");
    assert_eq!(site["module"], "libtokenizers.so");
    assert_eq!(site["allocator"], "malloc");
    assert_eq!(
        (&site["share"], &site["mean_bytes"]),
        (&0.8.into(), &48.0.into())
    );
    let size = &evidence["allocation_sizes"][0];
    assert_eq!(
        (&size["from_bytes"], &size["share"]),
        (&32.into(), &0.8.into())
    );
    let named = "tokenize (libtokenizers.so)";
    for text in [&found.summary, &found.advice] {
        assert!(text.contains(named), "{text}");
    }
    assert!(
        found.advice.contains("fewer small objects"),
        "{}",
        found.advice
    );
    let rate = "80 % of its 800 thousand allocations a second are made by tokenize";
    assert!(found.summary.contains(rate), "{}", found.summary);
    let quick = "80 % of blocks are given back within a millisecond";
    assert!(found.summary.contains(quick), "{}", found.summary);
}

/// Samples of its Python are in `encode` when memory is asked for, and else in `forward`.
#[test]
fn where_asking_costs_more_than_pages_what_is_kept_of_them_does_not_matter() {
    let mut session = small_blocks(true);
    for (ms, rss_bytes) in [(100.0, 1 << 30), (11_900.0, 2 << 30)] {
        session.apply(&Record::Memory {
            at: KtimeNs(at(ms)),
            pid: TRAINER,
            rss_bytes,
        });
    }
    let analysis = analyse(&session);
    let advice = &churn(&analysis).advice;
    assert!(advice.contains("fewer small objects"), "{advice}");
}

#[test]
fn the_jobs_own_function_that_allocates_is_named() {
    let mut tale = job(0);
    let at = |from: u32, count: u32| {
        (0..30).flat_map(move |turn| {
            (from..from + count).map(move |n| f64::from(turn * 400 + n * 20 + 12))
        })
    };
    tale.function(1, "/home/me/train.py", "encode")
        .function(2, "/home/me/train.py", "forward")
        .stack(1, &[1], TRAINER, at(0, 6))
        .stack(2, &[2], TRAINER, at(6, 14));
    let analysis = analyse(&small_blocks_of(tale, false));
    let found = churn(&analysis);
    let row = &found.evidence["python"][0];
    assert_eq!(row["function"], "encode", "{row}");
    assert!(
        row["share"].as_f64().is_some_and(|share| share > 0.95),
        "{row}"
    );
    assert!(
        found.advice.starts_with("in encode (train.py:1): "),
        "{}",
        found.advice
    );
    assert!(
        found.summary.contains("of it in encode (train.py:1)"),
        "{}",
        found.summary
    );
}

#[test]
fn without_windows_nothing_is_made_up() {
    let analysis = analyse(&small_blocks(false));
    let found = churn(&analysis);
    for key in [
        "allocs_per_s",
        "alloc_bytes_per_s",
        "freed_within_1ms_share",
    ] {
        assert_eq!(found.evidence[key], serde_json::Value::Null, "{key}");
    }
    assert_eq!(found.evidence["allocation_sites"], serde_json::json!([]));
    assert!(
        found.advice.starts_with("reuse buffers"),
        "{}",
        found.advice
    );
}
