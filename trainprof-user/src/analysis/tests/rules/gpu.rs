//! Stories of GPUs.

use super::{Story, causes::alone, is};
use crate::{
    analysis::tests::{
        gpu_unseen::uses_a_gpu_unseen,
        memory::{MB, Memory, flat},
        stories::TRAINER,
        tale::at,
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
                is(evidence, "synchronising_share", 0.1) && is(evidence, "seconds", 4.8)
            },
            advice: &["launch larger or fewer kernels", "at most"],
        },
        Story {
            rule: "h2d-copy",
            found: || copies(40.0, 1 << 26),
            clear: || copies(1.0, 1 << 26),
            lacks: (uses_a_gpu_unseen, "CAP_SYS_ADMIN"),
            share: Some(0.4),
            proves: |evidence| is(evidence, "copies", 80.0) && is(evidence, "mean_s", 0.04),
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

pub(in crate::analysis::tests) fn device(session: &mut Session) {
    session.apply(&Record::GpuDevice(GpuDeviceFact {
        device: 0,
        index: 0,
        mig: None,
        uuid: None,
        name: None,
        driver: None,
        memory_total_bytes: Some((5450.0 * MB) as u64),
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
    session.apply(&Record::GpuSample(GpuSampleFact {
        device: 0,
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
    let small = crate::analysis::analyse(&copies(40.0, 4));
    let found = small.findings.iter().find(|f| f.kind == "h2d-copy");
    let advice = &found.expect("a finding").advice;
    assert!(advice.contains("read results back less often"), "{advice}");
}

/// The trainer's memory on the GPU over 30 s.
fn fills(bytes_per_s: f64) -> Session {
    let mut session = Memory::new().process(TRAINER, flat, flat).session;
    device(&mut session);
    for second in 0..=30_u32 {
        let t = f64::from(second);
        let bytes = 300.0 * MB + bytes_per_s * t;
        session.apply(&Record::GpuProcess(GpuProcessFact {
            at: KtimeNs(at(t * 1e3)),
            device: 0,
            pid: TRAINER,
            memory_bytes: Some(bytes as u64),
            utilisation: None,
            name: None,
        }));
        sample(&mut session, t * 1e3, 0, GpuMetric::MemoryUsedBytes, bytes);
    }
    session
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
