//! Stories of memory: leaks, caches, garbage, copies, shared memory, limits.

use trainprof_common::{
    op::{Class, Op},
    thread::NR_FAULT,
};

use super::{
    stories::{TRAINER, job},
    tale::{Tale, at},
};
use crate::{
    analysis::{Analysis, Finding, analyse, memory, memory_limit::nearest},
    env::{
        cgroup::{CgroupFacts, Groups},
        process::ProcessFacts,
    },
    record::{
        Record,
        fact::{
            CgroupMemorySample, FaultFact, FaultSamplingFact, FrameFact, GpuCallKind,
            GpuDeviceFact, GpuMetric, GpuProcessFact, GpuSampleFact, HostSample, PageKind,
            PagesGone, PlaceClass, ProcessSample, ProcessSeen, PyFaultFact, PyFunctionFact,
            PyStackFact, StackFact,
        },
    },
    session::Session,
    time::KtimeNs,
};

pub(super) const MB: f64 = 1e6;
pub(super) const WORKER: u32 = 201;
/// Stacks: through malloc and memset to `keep`, and to `churn`.
pub(super) const KEEP: u32 = 1;
const CHURN: u32 = 2;
/// And two to a library without names of functions.
const NAMELESS: u32 = 3;

/// The interpreter calls everything: that it called a library says nothing.
#[test]
fn a_library_without_names_is_one_place() {
    let kept =
        |stack| move |memory: Memory| memory.faults(100, PageKind::Anonymous, stack, 50, true);
    let session = kept(NAMELESS + 1)(kept(NAMELESS)(Memory::new())).session;
    let sites = memory::kept_sites(&session, None, &[PageKind::Anonymous]);
    let told: Vec<_> = sites.iter().map(memory::site_name).collect();
    assert_eq!(told, ["arrays.so"]);
    assert_eq!(sites[0].frame.function, None);
}

/// One function of a library is called by several of the job's own: each is a place, and code of packages in between is none.
#[test]
fn what_functions_of_python_keep_is_told_apart() {
    let mut memory = Memory::new();
    for (number, file, name) in [
        (
            1,
            "/usr/lib/python3/dist-packages/numpy/core/numeric.py",
            "ones",
        ),
        (2, "/job/train.py", "collect"),
        (3, "/job/train.py", "log"),
    ] {
        memory.session.apply(&Record::PyFunction(PyFunctionFact {
            number,
            file: file.to_owned(),
            name: name.to_owned(),
            line: 10 * number,
            generator: false,
        }));
    }
    for (number, functions) in [(1, vec![1, 2]), (2, vec![3])] {
        memory
            .session
            .apply(&Record::PyStack(PyStackFact { number, functions }));
    }
    for (faults, stack) in [(40, Some(1)), (20, Some(2)), (10, None)] {
        let from = memory.number;
        memory = memory.faults(TRAINER, PageKind::Anonymous, KEEP, faults, true);
        for fault in from + 1..=memory.number {
            let told = stack.map(|stack| Record::PyFault(PyFaultFact { fault, stack }));
            told.iter().for_each(|record| memory.session.apply(record));
        }
    }
    let sites = memory::kept_sites(&memory.session, None, &[PageKind::Anonymous]);
    let told: Vec<_> = sites
        .iter()
        .map(|site| (memory::site_name(site), site.python.len()))
        .collect();
    let native = "keep (model.so)";
    assert_eq!(
        told,
        [
            (format!("collect (train.py:20), through {native}"), 2),
            (format!("log (train.py:30), through {native}"), 1),
            (native.to_owned(), 0),
        ]
    );
}

/// A job of 30 s with memory told second by second.
pub(super) struct Memory {
    pub(super) session: Session,
    number: u32,
}

impl Memory {
    pub(super) fn new() -> Self {
        let mut session = job(1).session(30_000.0);
        session.apply(&Record::FaultSampling(FaultSamplingFact {
            period: 17,
            page_bytes: 4096,
        }));
        for (number, module, function, class) in [
            (1, "libc.so.6", None, PlaceClass::Other),
            (2, "libc.so.6", Some("malloc"), PlaceClass::Malloc),
            (3, "model.so", Some("keep"), PlaceClass::Other),
            (4, "model.so", Some("churn"), PlaceClass::Other),
            (5, "python3.11", Some("main"), PlaceClass::Python),
            // A static function of a stripped library.
            (6, "model.so", None, PlaceClass::Other),
            // Two more, of one without any names.
            (7, "arrays.so", None, PlaceClass::Other),
            (8, "arrays.so", None, PlaceClass::Other),
        ] {
            session.apply(&Record::Frame(FrameFact {
                number,
                module: Some(module.to_owned()),
                offset: 64 * u64::from(number),
                function: function.map(str::to_owned),
                source: None,
                class,
            }));
        }
        for (number, caller) in [(KEEP, 3), (CHURN, 4)] {
            session.apply(&Record::Stack(StackFact {
                number,
                frames: vec![1, 2, 6, caller, 5],
                whole: true,
            }));
        }
        for (number, caller) in [(NAMELESS, 7), (NAMELESS + 1, 8)] {
            session.apply(&Record::Stack(StackFact {
                number,
                frames: vec![1, 2, caller, 5],
                whole: true,
            }));
        }
        Self { session, number: 0 }
    }

    /// The process's memory, bytes by seconds.
    pub(super) fn process(
        self,
        pid: u32,
        anon: impl Fn(f64) -> f64,
        shared: impl Fn(f64) -> f64,
    ) -> Self {
        self.with_files(pid, anon, shared, |t| t * 50.0 * MB)
    }

    fn with_files(
        mut self,
        pid: u32,
        anon: impl Fn(f64) -> f64,
        shared: impl Fn(f64) -> f64,
        files: impl Fn(f64) -> f64,
    ) -> Self {
        for second in 0..=30 {
            let t = f64::from(second);
            self.session.apply(&Record::ProcessMemory(ProcessSample {
                at: KtimeNs(at(t * 1e3)),
                pid,
                anon_bytes: anon(t) as u64,
                file_bytes: files(t) as u64,
                shmem_bytes: shared(t) as u64,
                ..ProcessSample::default()
            }));
        }
        self
    }

    /// `count` sampled faults, evenly spread, each for 170.
    pub(super) fn faults(
        self,
        pid: u32,
        kind: PageKind,
        stack: u32,
        count: u32,
        kept: bool,
    ) -> Self {
        self.faults_until(pid, 30.0, kind, stack, count, kept)
    }

    /// The same, all in the first seconds.
    fn faults_until(
        mut self,
        pid: u32,
        seconds: f64,
        kind: PageKind,
        stack: u32,
        count: u32,
        kept: bool,
    ) -> Self {
        for n in 0..count {
            self.number += 1;
            let when = f64::from(n) * seconds * 1e3 / f64::from(count);
            self.session.apply(&Record::Fault(FaultFact {
                number: self.number,
                at: KtimeNs(at(when)),
                tid: pid,
                pid,
                faults: 170,
                kind,
                in_kernel: false,
                stack,
            }));
            if !kept {
                self.session.apply(&Record::PagesGone(PagesGone {
                    at: KtimeNs(at(when + 1e3)),
                    faults: vec![self.number],
                }));
            }
        }
        self
    }

    fn analyse(&self) -> Analysis {
        analyse(&self.session)
    }
}

fn found<'a>(analysis: &'a Analysis, kind: &str) -> Option<&'a Finding> {
    analysis
        .findings
        .iter()
        .find(|finding| finding.kind == kind)
}

pub(super) fn flat(_: f64) -> f64 {
    200.0 * MB
}

/// A trainer without workers of whose running so many of 20 samples are page faults on new memory.
pub(super) fn computing(faults: u32) -> Session {
    computing_for(12, faults).session(12_000.0)
}

fn computing_for(seconds: u32, faults: u32) -> Tale {
    let mut tale = job(0);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other)
        .place(2, "vmlinux", PlaceClass::Kernel);
    for n in 0..50 * seconds {
        let when = 10.0 + f64::from(n) * 20.0;
        if n % 20 < faults {
            tale.sample_in(TRAINER, when, 2, NR_FAULT);
        } else {
            tale.sample(TRAINER, when, 1);
        }
    }
    tale
}

fn computes(faults: u32) -> Analysis {
    analyse(&computing(faults))
}

#[test]
fn new_memory_again_and_again_is_told_before_it_is_what_holds_the_job_back() {
    // Every program takes some.
    assert!(found(&computes(1), "allocation-churn").is_none());
    let analysis = computes(3);
    let churn = found(&analysis, "allocation-churn").expect("a finding");
    let share = churn.share.expect("a share");
    assert!((share - 0.15).abs() < 0.01, "{share}");
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.bottleneck, "compute", "{}", verdict.summary);
    // Nothing is gained by less than what is told beside it.
    let bound = verdict.speedup_bound.expect("a bound");
    assert!((1.17..1.3).contains(&bound), "{bound}");
    let verdict = computes(6).verdict.expect("a verdict");
    assert_eq!(
        verdict.bottleneck, "allocation-churn",
        "{}",
        verdict.summary
    );
}

#[test]
fn a_leak_names_process_role_and_call_site_and_the_time_left() {
    let leak = |t: f64| 300.0 * MB + 5.0 * MB * t + MB * (t * 1.3).sin();
    let mut memory = Memory::new()
        .process(100, leak, flat)
        .process(WORKER, flat, flat)
        .faults(100, PageKind::Anonymous, KEEP, 300, true)
        .faults(100, PageKind::Anonymous, CHURN, 3000, false);
    for (cgroup, limit, usage) in [("/job", 10_000.0, 500.0), ("/job/step", 1_000.0, 400.0)] {
        memory
            .session
            .apply(&Record::CgroupMemory(CgroupMemorySample {
                at: KtimeNs(at(29_000.0)),
                cgroup: cgroup.to_owned(),
                usage_bytes: ((usage + 100.0) * MB) as u64,
                limit_bytes: Some((limit * MB) as u64),
                file_bytes: Some((100.0 * MB) as u64),
                anon_bytes: None,
                refaults_file: None,
                oom_kills: None,
            }));
    }
    memory.session.apply(&Record::Host(HostSample {
        at: KtimeNs(at(29_000.0)),
        memory_available_bytes: Some(8_000_000_000),
        ..HostSample::default()
    }));
    let analysis = memory.analyse();
    let leak = found(&analysis, "memory-growth").expect("a leak");
    let number = |key: &str| leak.evidence[key].as_f64().expect("a number");
    assert!((number("bytes_per_s") / (5.0 * MB) - 1.0).abs() < 0.05);
    assert_eq!(leak.evidence["role"], "trainer");
    assert_eq!(leak.evidence["limit_of"], "/job/step");
    assert!((number("time_to_limit_s") - 120.0).abs() < 6.0);
    assert_eq!(leak.evidence["sites"][0]["function"], "keep");
    assert!(leak.summary.contains("keep (model.so)"), "{}", leak.summary);
    // Files that it reads grow ten times as fast: told, but no part of it.
    assert_eq!(number("file_bytes_per_s"), 50.0 * MB);
    let process = &leak.evidence["processes"][0];
    assert_eq!(process["file_bytes_per_s"], 50.0 * MB, "{process}");
    // Nothing tells of steps and epochs here, so nothing is said of them.
    assert_eq!(leak.evidence["bytes_per_epoch"], serde_json::Value::Null);
    assert!(!leak.summary.contains("epoch"), "{}", leak.summary);
    assert!(found(&analysis, "copy-on-write").is_none());
    let sites = memory::kept_sites(&memory.session, None, &[PageKind::Anonymous]);
    assert_eq!(sites.len(), 1, "what is given back is not kept");
    let truly = 300.0 * 170.0 * 4096.0 / 30.0;
    assert!((sites[0].bytes_per_s / truly - 1.0).abs() < 0.02);
    assert!(sites[0].error_bytes_per_s > 0.1 * truly);
}

/// A process's growth fills its own control group, and the room above that; not that of another one.
#[test]
fn each_control_group_is_filled_by_what_grows_in_it() {
    let leak = |rate: f64| move |t: f64| 300.0 * MB + rate * MB * t;
    let mut memory = Memory::new()
        .process(100, leak(5.0), flat)
        .process(WORKER, leak(20.0), flat);
    for (pid, path) in [(100, "/pod/a"), (WORKER, "/pod/b")] {
        let process = memory.session.processes.get(&pid).expect("a process");
        let mut seen = process.seen.clone();
        let cgroup = CgroupFacts {
            path_v1: vec![
                ("cpu,cpuacct".into(), "/".into()),
                ("memory".into(), path.into()),
            ],
            ..CgroupFacts::default()
        };
        // Of some process: only its group matters here.
        let some = ProcessFacts::read(
            crate::time::KtimeNs(0),
            std::process::id(),
            &mut Groups::default(),
        )
        .expect("our own facts");
        seen.facts = Some(ProcessFacts {
            cgroup: Some(cgroup),
            ..some
        });
        memory.session.apply(&Record::Process(seen));
    }
    for (cgroup, room) in [("/pod/a", 1_000.0), ("/pod/b", 6_000.0), ("/pod", 10_000.0)] {
        memory
            .session
            .apply(&Record::CgroupMemory(CgroupMemorySample {
                at: KtimeNs(at(29_000.0)),
                cgroup: cgroup.to_owned(),
                usage_bytes: 0,
                limit_bytes: Some((room * MB) as u64),
                file_bytes: None,
                anon_bytes: None,
                refaults_file: None,
                oom_kills: None,
            }));
    }
    let growers = memory::growers(&memory.session).expect("growth");
    let near = |pids: &[u32]| {
        let some: Vec<_> = growers
            .iter()
            .filter(|g| pids.contains(&g.pid))
            .copied()
            .collect();
        let limit = nearest(&memory.session, &some).expect("a limit");
        (
            limit.cgroup.expect("a group"),
            limit.seconds.map(f64::round),
        )
    };
    // 1 000 MB at 5 a second, 6 000 at 20, 10 000 at 25.
    assert_eq!(near(&[100, WORKER]), ("/pod/a".to_owned(), Some(200.0)));
    assert_eq!(near(&[WORKER]), ("/pod/b".to_owned(), Some(300.0)));
    assert_eq!(near(&[]), ("/pod/a".to_owned(), None));
}

#[test]
fn warming_up_caches_garbage_and_page_cache_are_no_growth() {
    type Curve = fn(f64) -> f64;
    let curves: [(&str, Curve); 5] = [
        ("warm-up", |t| t.min(8.0) * 100.0 * MB),
        ("a cache", |t| 500.0 * MB * (1.0 - (-t / 8.0).exp())),
        ("a slow cache", |t| 500.0 * MB * (1.0 - (-t / 25.0).exp())),
        ("garbage", |t| (200.0 + (t % 7.0) * 30.0) * MB),
        ("a burst", |t| if t < 20.0 { 1e8 } else { 3e8 }),
    ];
    for (name, curve) in curves {
        let analysis = Memory::new().process(100, curve, flat).analyse();
        assert!(found(&analysis, "memory-growth").is_none(), "{name}");
    }
    // The loader's tensors come and go in shared memory.
    let cycling = |t: f64| (100.0 + 80.0 * (t * 2.1).sin()) * MB;
    let memory = Memory::new()
        .process(100, flat, cycling)
        .process(WORKER, flat, cycling);
    assert!(found(&memory.analyse(), "memory-growth").is_none());
    let growers = memory::growers(&memory.session).expect("enough was seen");
    assert_eq!(memory::growth_bytes_per_s(&growers), 0.0);
}

#[test]
fn shared_memory_that_grows_is_growth_and_grows_once() {
    let leak = |t: f64| (100.0 + 4.0 * t) * MB;
    let memory = Memory::new()
        .process(100, flat, leak)
        .process(WORKER, flat, leak);
    let analysis = memory.analyse();
    let found = found(&analysis, "memory-growth").expect("growth");
    assert_eq!(found.evidence["memory"], "shared");
    let growers = memory::growers(&memory.session).expect("enough was seen");
    let total = memory::growth_bytes_per_s(&growers);
    assert!((total / (4.0 * MB) - 1.0).abs() < 0.01, "{total}");
}

#[test]
fn a_worker_that_copies_its_parents_pages_does_not_leak() {
    let grows = |t: f64| (50.0 + 3.0 * t) * MB;
    // Pages that a fork shares count as its own from the beginning.
    let copies = Memory::new()
        .process(100, flat, flat)
        .process(WORKER, flat, flat)
        .faults(WORKER, PageKind::CopyOnWrite, KEEP, 100, true)
        .faults(WORKER, PageKind::Anonymous, KEEP, 10, true);
    let analysis = copies.analyse();
    assert!(found(&analysis, "memory-growth").is_none());
    let found_copies = found(&analysis, "copy-on-write").expect("copies");
    assert_eq!(found_copies.evidence["workers"][0], WORKER);
    let slope = found_copies.evidence["bytes_per_s"].as_f64();
    let truly = 100.0 * 170.0 * 4096.0 / 30.0;
    assert!(
        slope.is_some_and(|slope| (slope / truly - 1.0).abs() < 0.1),
        "{slope:?} {truly}"
    );
    // Each page is copied once: the more are, the fewer are left. That is no growth, but copying all the same.
    let mut fading = Memory::new()
        .process(100, flat, flat)
        .process(WORKER, flat, flat);
    for until in [6.0, 12.0, 18.0, 24.0, 30.0] {
        fading = fading.faults_until(WORKER, until, PageKind::CopyOnWrite, KEEP, 60, true);
    }
    let analysis = fading.analyse();
    assert!(found(&analysis, "copy-on-write").is_some());
    assert!(found(&analysis, "memory-growth").is_none());
    let growers = memory::growers(&fading.session).expect("enough was seen");
    assert_eq!(memory::growth_bytes_per_s(&growers), 0.0);
    // A trainer that forks again and again copies what it shares with the last ones: they give it back.
    let mut forks =
        Memory::new()
            .process(100, flat, flat)
            .faults(100, PageKind::CopyOnWrite, KEEP, 200, true);
    for (second, child) in [(5, 401), (15, 402), (25, 403)] {
        forks.session.apply(&Record::Process(ProcessSeen {
            at: KtimeNs(at(f64::from(second) * 1e3)),
            pid: child,
            parent: 100,
            name: "python3".to_owned(),
            facts: None,
            frameworks: None,
        }));
    }
    assert!(found(&forks.analyse(), "copy-on-write").is_none());
    // All at once, when the workers began, and then no more.
    let begun = Memory::new().process(WORKER, flat, flat).faults_until(
        WORKER,
        3.0,
        PageKind::CopyOnWrite,
        KEEP,
        300,
        true,
    );
    assert!(found(&begun.analyse(), "copy-on-write").is_none());
    let leaks = Memory::new()
        .process(100, flat, flat)
        .process(WORKER, grows, flat)
        .faults(WORKER, PageKind::CopyOnWrite, KEEP, 10, true)
        .faults(WORKER, PageKind::Anonymous, KEEP, 100, true);
    let analysis = leaks.analyse();
    assert!(found(&analysis, "copy-on-write").is_none());
    assert!(found(&analysis, "memory-growth").is_some());
}

#[test]
fn a_worker_that_copies_much_and_leaks_little_leaks() {
    let both = Memory::new()
        .process(100, flat, flat)
        .process(WORKER, |t| (500.0 + 2.0 * t) * MB, flat)
        .faults(WORKER, PageKind::CopyOnWrite, KEEP, 80, true)
        .faults(WORKER, PageKind::Anonymous, KEEP, 20, true);
    let analysis = both.analyse();
    let rate = |kind| {
        let finding = found(&analysis, kind).expect(kind);
        finding.evidence["bytes_per_s"].as_f64().expect("a rate")
    };
    assert!((rate("memory-growth") / MB - 2.0).abs() < 0.02);
    let copied = 80.0 * 170.0 * 4096.0 / 30.0;
    assert!((rate("copy-on-write") / copied - 1.0).abs() < 0.1);
}

#[test]
fn pages_of_a_mapped_file_that_become_a_workers_own_are_copies() {
    let becomes_own = |files: fn(f64) -> f64| {
        let anon = |t| (50.0 + 4.0 * t) * MB;
        let memory = Memory::new()
            .process(100, flat, flat)
            .with_files(WORKER, anon, flat, files);
        let analysis = memory.analyse();
        ["memory-growth", "copy-on-write"].map(|kind| found(&analysis, kind).is_some())
    };
    assert_eq!(becomes_own(|t| (900.0 - 4.0 * t) * MB), [false, true]);
    assert_eq!(becomes_own(|_| 900.0 * MB), [true, false]);
}

#[test]
fn a_leak_of_a_large_process_is_one() {
    let grows = |slope: f64| {
        let memory = Memory::new().process(100, |t| (200_000.0 + slope * t) * MB, flat);
        found(&memory.analyse(), "memory-growth").is_some()
    };
    // Sixty megabytes in half a minute may come and go.
    assert_eq!([4.0, 1.0].map(grows), [true, false]);
}

#[test]
fn growth_is_told_by_step_and_by_epoch_and_for_each_process_on_a_gpu() {
    let (tale, length) = super::epochs::sets(&[20; 8]);
    let mut session = tale.session(length);
    session.apply(&Record::FaultSampling(FaultSamplingFact {
        period: 17,
        page_bytes: 4096,
    }));
    let second = |t: u32| KtimeNs(at(f64::from(t) * 1e3));
    let leak = |t: u32| 300_000_000 + 5_000_000 * u64::from(t);
    session.apply(&Record::GpuDevice(GpuDeviceFact {
        device: 0,
        index: 0,
        mig: None,
        uuid: None,
        name: None,
        driver: None,
        memory_total_bytes: Some(1 << 33),
        used_by_job: Some(true),
    }));
    for t in 0..=(length / 1e3) as u32 {
        session.apply(&Record::ProcessMemory(ProcessSample {
            at: second(t),
            pid: 100,
            anon_bytes: leak(t),
            ..ProcessSample::default()
        }));
        for (pid, bytes) in [(100, leak(t)), (301, 50_000_000)] {
            session.apply(&Record::GpuProcess(GpuProcessFact {
                at: second(t),
                device: 0,
                pid,
                memory_bytes: Some(bytes),
                utilisation: None,
                name: None,
            }));
        }
        session.apply(&Record::GpuSample(GpuSampleFact {
            device: 0,
            at: second(t),
            span_ns: 0,
            metric: GpuMetric::MemoryUsedBytes,
            value: 50e6 + leak(t) as f64,
        }));
    }
    let analysis = analyse(&session);
    for kind in ["memory-growth", "gpu-memory-growth"] {
        let found = found(&analysis, kind).expect(kind);
        let number = |key: &str| found.evidence[key].as_f64().expect(key);
        // Steps of 200 ms, twenty in an epoch.
        for (key, truth) in [("bytes_per_step", MB), ("bytes_per_epoch", 20.0 * MB)] {
            let margin = number(&format!("margin_{key}"));
            assert!((number(key) / truth - 1.0).abs() < 0.02, "{kind} {key}");
            assert!((0.0..0.1 * truth).contains(&margin), "{kind} {margin}");
        }
        assert!(
            found.summary.contains(" an epoch of 4.0 s"),
            "{}",
            found.summary
        );
    }
    let gpu = &found(&analysis, "gpu-memory-growth")
        .expect("growth")
        .evidence;
    let processes = gpu["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 1, "{processes:?}");
    assert_eq!(processes[0]["pid"], 100);
    let slope = processes[0]["bytes_per_s"].as_f64().expect("a slope");
    assert!((slope / (5.0 * MB) - 1.0).abs() < 0.02);
}

#[test]
fn pinned_memory_is_counted_in_the_time_that_history_keeps() {
    // Four allocations a second, beside a process of so many noted calls that not all seconds are kept.
    let mut tale = computing_for(40, 6);
    tale.process(WORKER, 1);
    for second in 0..40_u32 {
        let begin = f64::from(second) * 1e3;
        for n in 0..5_000_u32 {
            let when = begin + f64::from(n) / 5.0;
            tale.touch(WORKER, when, Op::Write, Class::File, 9, 80);
        }
        for n in 0..4 {
            let from = begin + 100.0 + f64::from(n) * 200.0;
            tale.gpu_call(TRAINER, from, from + 1.0, GpuCallKind::Allocate, 8);
        }
    }
    let mut session = tale.session(40_000.0);
    session.apply(&Record::GpuFunction {
        number: 0,
        library: "libcudart.so.12".to_owned(),
        name: "cudaHostAlloc".to_owned(),
    });
    assert!(session.history.thinned);
    let analysis = analyse(&session);
    let churn = found(&analysis, "allocation-churn").expect("a finding");
    let pinned = churn.evidence["pinned_allocations_per_s"].as_f64();
    let pinned = pinned.expect("a rate");
    assert!((pinned - 4.0).abs() < 0.1, "{pinned}");
}

#[test]
fn too_short_a_watch_says_nothing() {
    let session = job(1).session(3_000.0);
    assert!(memory::growers(&session).is_none());
}
