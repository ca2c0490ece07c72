//! Stories of memory, the page cache and descriptors.

use super::{Story, causes::alone, is};
use crate::{
    analysis::tests::{
        memory::{KEEP, MB, Memory, WORKER, flat},
        stories::{TRAINER, read_bound},
        tale::at,
    },
    record::{
        Record,
        fact::{CgroupMemorySample, PageKind, ProcessSample},
    },
    session::Session,
    time::KtimeNs,
};

pub(super) fn stories() -> [Story; 4] {
    [
        Story {
            rule: "page-cache-thrash",
            found: || reads_again(10_000.0),
            clear: || reads_again(100.0),
            lacks: (|| alone(|_, _| ()), "refaults"),
            share: None,
            proves: |evidence| {
                is(evidence, "refaults_per_s", 10_000.0)
                    && is(evidence, "cgroup_limit_bytes", 1000.0 * MB)
            },
            advice: &["give the job more memory", "up to 41.0 MB a second"],
        },
        Story {
            rule: "copy-on-write",
            found: || copies(100),
            clear: || copies(0),
            lacks: (|| alone(|_, _| ()), "ten seconds"),
            share: None,
            proves: |evidence| {
                evidence["workers"][0] == WORKER
                    && evidence["sites"][0]["function"] == "keep"
                    // 100 samples of 170 pages each in 30 s.
                    && is(evidence, "bytes_per_s", 2.3 * MB)
            },
            advice: &[
                "numpy arrays or Arrow tables",
                " MB a minute from being copied",
            ],
        },
        Story {
            rule: "memory-growth",
            found: || keeps(5.0 * MB),
            clear: || keeps(0.0),
            lacks: (|| alone(|_, _| ()), "ten seconds"),
            share: None,
            proves: |evidence| {
                evidence["pid"] == TRAINER
                    && is(evidence, "bytes_per_s", 5.0 * MB)
                    && is(evidence, "time_to_limit_s", 100.0)
            },
            advice: &[
                "what is kept from step to step",
                "does not run out of memory",
            ],
        },
        Story {
            rule: "fd-growth",
            found: || opens(2.0),
            clear: || opens(0.0),
            lacks: (|| alone(|_, _| ()), "ten seconds"),
            share: None,
            proves: |evidence| {
                evidence["pid"] == TRAINER
                    && is(evidence, "descriptors_per_s", 2.0)
                    && is(evidence, "descriptors", 80.0)
            },
            advice: &[
                "close files",
                "set_sharing_strategy",
                "the usual limit (ulimit -n), in",
            ],
        },
    ]
}

fn group(second: f64, usage: f64, refaults: f64) -> Record {
    Record::CgroupMemory(CgroupMemorySample {
        at: KtimeNs(at(second * 1e3)),
        cgroup: "/job".to_owned(),
        usage_bytes: (usage * MB) as u64,
        limit_bytes: Some((1000.0 * MB) as u64),
        file_bytes: Some(0),
        anon_bytes: None,
        refaults_file: Some(refaults as u64),
        oom_kills: None,
    })
}

/// Workers that read for three quarters of a batch, pages of which so many a second were dropped before.
fn reads_again(pages_per_s: f64) -> Session {
    let (tale, length) = read_bound(300.0, 40);
    let mut session = tale.session(length);
    for second in 0..=8_u32 {
        let second = f64::from(second);
        session.apply(&group(second, 990.0, 5e6 + pages_per_s * second));
    }
    session
}

fn copies(samples: u32) -> Session {
    Memory::new()
        .process(TRAINER, flat, flat)
        .process(WORKER, flat, flat)
        .faults(WORKER, PageKind::CopyOnWrite, KEEP, samples, true)
        .session
}

fn keeps(bytes_per_s: f64) -> Session {
    let leak = |t: f64| 300.0 * MB + bytes_per_s * t;
    let mut session = Memory::new().process(TRAINER, leak, flat).session;
    session.apply(&group(30.0, 500.0, 0.0));
    session
}

fn opens(descriptors_per_s: f64) -> Session {
    let mut session = Memory::new().session;
    for second in 0..=30_u32 {
        let descriptors = 20.0 + descriptors_per_s * f64::from(second);
        session.apply(&Record::ProcessMemory(ProcessSample {
            at: KtimeNs(at(f64::from(second) * 1e3)),
            pid: TRAINER,
            descriptors: Some(descriptors as u32),
            ..ProcessSample::default()
        }));
    }
    session
}
