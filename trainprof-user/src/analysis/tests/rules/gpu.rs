//! Stories of GPUs.

use super::{Story, causes::alone, is};
use crate::{
    analysis::{
        Finding, NotTold, analyse,
        tests::{
            gpu_unseen::uses_a_gpu_unseen,
            memory::{MB, Memory, flat},
            stories::TRAINER,
            tale::at,
        },
    },
    record::{
        Record,
        fact::{GpuCallKind, GpuDeviceFact, GpuMetric, GpuProcessFact, GpuSampleFact},
    },
    session::Session,
    time::KtimeNs,
};

const STRANGER: u32 = 900;

pub(super) fn stories() -> [Story; 4] {
    [
        Story {
            rule: "host-compute",
            found: || busy(0.4),
            clear: || busy(0.99),
            lacks: (uses_a_gpu_unseen, "no samples of its use"),
            // Of the idle time.
            share: Some(1.0),
            proves: |evidence| {
                is(evidence, "synchronising_share", 0.1)
                    && is(evidence, "seconds", 4.8)
                    && is(evidence, "synchronised_per_step", 1.0)
            },
            advice: &[
                "give the GPU more to do at a time",
                "do not wait for it in each step",
                "at most",
            ],
        },
        Story {
            rule: "h2d-copy",
            found: || copies(40.0, 1 << 26),
            clear: || copies(1.0, 1 << 26),
            lacks: (uses_a_gpu_unseen, "CAP_SYS_ADMIN"),
            share: Some(0.4),
            proves: |evidence| {
                is(evidence, "copies", 80.0)
                    && is(evidence, "mean_s", 0.04)
                    && is(evidence, "mean_bytes", f64::from(1 << 26))
            },
            advice: &["pin_memory=True, non_blocking=True", "at most"],
        },
        Story {
            rule: "gpu-memory-growth",
            found: || fills(5.0 * MB),
            clear: || fills(0.0),
            lacks: (uses_a_gpu_unseen, "no GPU memory"),
            share: None,
            proves: |evidence| {
                is(evidence, "bytes_per_s", 5.0 * MB)
                    && is(evidence, "time_to_limit_s", 1000.0)
                    && evidence["pid"] == TRAINER
            },
            advice: &["kept from step to step", "would not be full in 17 min"],
        },
        Story {
            rule: "gpu-shared",
            found: || used_by(STRANGER),
            clear: || used_by(TRAINER),
            lacks: (uses_a_gpu_unseen, "no GPU was seen"),
            share: None,
            proves: |evidence| {
                evidence["processes"][0]["pid"] == STRANGER
                    && evidence["processes"][0]["name"] == "viewer"
                    && evidence["processes"][0]["utilisation"] == 0.3
            },
            advice: &["a GPU of its own", "frees 30 % of its time and 500 MB"],
        },
    ]
}

/// Bytes of a device's memory.
const TOTAL: f64 = 5450.0 * MB;

/// The one device that the job uses.
pub(in crate::analysis::tests) fn device(session: &mut Session) {
    device_of(session, 0, Some(TOTAL));
}

pub(in crate::analysis::tests) fn device_of(
    session: &mut Session,
    device: u32,
    total: Option<f64>,
) {
    session.apply(&Record::GpuDevice(GpuDeviceFact {
        device,
        index: device,
        mig: None,
        uuid: None,
        name: None,
        driver: None,
        memory_total_bytes: total.map(|bytes| bytes as u64),
        used_by_job: Some(true),
    }));
}

pub(in crate::analysis::tests) fn sample(
    session: &mut Session,
    ms: f64,
    span_ms: u64,
    metric: GpuMetric,
    value: f64,
) {
    sample_of(session, 0, ms, span_ms, metric, value);
}

pub(in crate::analysis::tests) fn sample_of(
    session: &mut Session,
    device: u32,
    ms: f64,
    span_ms: u64,
    metric: GpuMetric,
    value: f64,
) {
    session.apply(&Record::GpuSample(GpuSampleFact {
        device,
        at: KtimeNs(at(ms)),
        span_ns: span_ms * 1_000_000,
        metric,
        value,
    }));
}

/// The GPU is busy for this share of all time; the trainer waits for it for 10 of 100 ms and computes.
fn busy(share: f64) -> Session {
    let mut session = alone(|tale, begin| {
        tale.synchronise(TRAINER, begin + 80.0, begin + 90.0);
    });
    device(&mut session);
    for n in 1..=48_u32 {
        let ms = f64::from(n) * 8000.0 / 48.0;
        sample(&mut session, ms, 166, GpuMetric::Utilisation, share);
    }
    session
}

/// A copy that blocks for so long in each 100 ms.
fn copies(ms: f64, bytes: u64) -> Session {
    alone(|tale, begin| {
        let (from, to) = (begin + 10.0, begin + 10.0 + ms);
        tale.gpu_call(TRAINER, from, to, GpuCallKind::Copy, bytes);
    })
}

#[test]
fn small_copies_read_results_back() {
    let small = analyse(&copies(40.0, 4));
    let found = small.findings.iter().find(|f| f.kind == "h2d-copy");
    let advice = &found.expect("a finding").advice;
    assert!(advice.contains("read results back less often"), "{advice}");
}

/// The trainer's memory on the GPU grows for 30 s.
fn fills(bytes_per_s: f64) -> Session {
    filled(&[(Some(TOTAL), &|t| bytes_per_s * t)])
}

/// Size of a device, and the bytes that the trainer has on it beyond the first 300 MB after so many seconds.
type Device<'a> = (Option<f64>, &'a dyn Fn(f64) -> f64);

/// The trainer's memory on each GPU over 30 s.
fn filled(devices: &[Device]) -> Session {
    let mut session = Memory::new().process(TRAINER, flat, flat).session;
    for (device, (total, taken)) in (0..).zip(devices) {
        device_of(&mut session, device, *total);
        for second in 0..=30_u32 {
            let t = f64::from(second);
            let (ms, bytes) = (t * 1e3, 300.0 * MB + taken(t));
            session.apply(&Record::GpuProcess(GpuProcessFact {
                at: KtimeNs(at(ms)),
                device,
                pid: TRAINER,
                memory_bytes: Some(bytes as u64),
                utilisation: None,
                name: None,
            }));
            let metric = GpuMetric::MemoryUsedBytes;
            sample_of(&mut session, device, ms, 0, metric, bytes);
        }
    }
    session
}

fn growth(session: &Session) -> Option<Finding> {
    let analysis = analyse(session);
    let unknown = |told: &NotTold| told.kind == "gpu-memory-growth";
    assert!(!analysis.not_told.iter().any(unknown));
    let mut findings = analysis.findings.into_iter();
    findings.find(|found| found.kind == "gpu-memory-growth")
}

#[test]
fn the_device_that_is_full_first_is_told_and_the_others_with_it() {
    let (slow, fast) = (|t: f64| 5.0 * MB * t, |t: f64| 10.0 * MB * t);
    let none = |_: f64| 0.0;
    let told = |session: &Session| {
        let found = growth(session).expect("growth");
        let others = found.evidence["other_devices"].as_array().cloned();
        (found, others.expect("a list"))
    };
    // The second grows no faster, and is full in 100 s.
    let (found, others) = told(&filled(&[
        (Some(TOTAL), &slow),
        (Some(950.0 * MB), &slow),
        (Some(TOTAL), &none),
    ]));
    assert_eq!(found.evidence["device"], 1);
    assert!(is(&found.evidence, "time_to_limit_s", 100.0));
    assert!(
        found.summary.contains("on GPU 1 grows")
            && found
                .summary
                .ends_with("full in 100.0 s; GPU 0 fills likewise"),
        "{}",
        found.summary
    );
    assert_eq!(others.len(), 1, "{others:?}");
    assert_eq!(others[0]["device"], 0);
    assert_eq!(others[0]["time_to_limit_s"], 1000.0);
    // Without sizes: the one that grows by the larger part of what is on it.
    let (found, others) = told(&filled(&[(None, &slow), (None, &fast), (None, &slow)]));
    assert_eq!(found.evidence["device"], 1);
    assert!(found.evidence["time_to_limit_s"].is_null());
    let indexes: Vec<_> = others.iter().map(|other| &other["device"]).collect();
    assert_eq!(indexes, [0, 2]);
    // One whose size is known is full some day.
    let (found, _) = told(&filled(&[(None, &fast), (Some(TOTAL), &slow)]));
    assert_eq!(found.evidence["device"], 1);
    let (_, others) = told(&fills(5.0 * MB));
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn memory_of_a_gpu_that_levels_off_is_no_growth() {
    // An allocator that takes memory in pieces of 20 MB until it has 400 MB, nearly; one that is done in 6 s; one that gives all back.
    let cache = |t: f64| (400.0 * (1.0 - (-t / 8.0).exp()) / 20.0).floor() * 20.0 * MB;
    let warm = |t: f64| 50.0 * MB * t.min(6.0);
    let saw = |t: f64| 30.0 * MB * (t % 10.0);
    for taken in [&cache as &dyn Fn(f64) -> f64, &warm, &saw] {
        let found = growth(&filled(&[(Some(TOTAL), taken)]));
        assert!(found.is_none(), "{found:?}");
    }
}

fn used_by(pid: u32) -> Session {
    let mut session = alone(|_, _| ());
    device(&mut session);
    for second in 0..8_u32 {
        session.apply(&Record::GpuProcess(GpuProcessFact {
            at: KtimeNs(at(f64::from(second) * 1e3)),
            device: 0,
            pid,
            memory_bytes: Some((500.0 * MB) as u64),
            utilisation: Some(0.3),
            name: Some("viewer".to_owned()),
        }));
    }
    session
}
