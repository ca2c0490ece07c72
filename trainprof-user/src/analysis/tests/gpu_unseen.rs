//! Stories of a job on a GPU of which nothing is seen: a wait that spins is no computing.

use super::{
    stories::TRAINER,
    tale::{On, POLL, Tale},
};
use crate::{
    analysis::{Analysis, analyse},
    record::{
        Record,
        fact::{GpuCallKind, PlaceClass},
    },
    session::Session,
};

pub(crate) const NO_DRIVER: &str = "libnvidia-ml.so.1 cannot be opened";
const FORBIDDEN: &str = "this kernel lets nobody without CAP_SYS_ADMIN attach uprobes";

/// A trainer that runs all the time, with the driver's library in it; as many of ten clock samples are in that as `driver` says.
fn spins(driver: Option<u32>) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).library(TRAINER, "libcuda");
    tale.place(1, "libcuda.so.550.54.15", PlaceClass::GpuDriver);
    tale.place(2, "libtorch_cpu.so", PlaceClass::Other);
    for n in (0..800_u32).filter(|_| driver.is_some()) {
        let place = if n % 10 < driver.unwrap_or(0) { 1 } else { 2 };
        tale.sample(TRAINER, f64::from(n) * 10.0 + 3.0, place);
    }
    tale
}

fn lacks(session: &mut Session, what: &str, reason: &str) {
    let (what, reason) = (what.to_owned(), reason.to_owned());
    session.apply(&Record::Missing { what, reason });
}

/// Neither the driver nor calls are seen.
pub(crate) fn uses_a_gpu_unseen() -> Session {
    let mut session = spins(None).session(8000.0);
    lacks(&mut session, "gpu", NO_DRIVER);
    lacks(&mut session, "gpu-calls: all", FORBIDDEN);
    session
}

/// Whether there is a GPU was asked once; since then the model computes on the CPU.
pub(crate) fn asked_once_for_a_gpu() -> Session {
    let mut session = spins(Some(0)).session(8000.0);
    lacks(&mut session, "gpu", NO_DRIVER);
    session
}

fn verdict(analysis: &Analysis) -> (&'static str, &str) {
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    (verdict.bottleneck, &verdict.summary)
}

#[test]
fn running_beside_a_gpu_that_is_not_seen_is_no_computing() {
    let session = uses_a_gpu_unseen();
    let analysis = analyse(&session);
    let (bottleneck, summary) = verdict(&analysis);
    assert_eq!(bottleneck, "inconclusive", "{summary}");
    for said in ["the GPU was not seen", NO_DRIVER, FORBIDDEN, "as root"] {
        assert!(summary.contains(said), "no \"{said}\" in: {summary}");
    }
    let found = analysis.findings.iter().find(|f| f.kind == "compute");
    assert!(found.is_none(), "{found:?}");
}

#[test]
fn a_runtime_that_is_linked_statically_is_not_seen_though_its_library_is_probed() {
    let mut session = spins(Some(7)).session(8000.0);
    let library = "libcuda.so.550.54.15".to_owned();
    session.apply(&Record::GpuFunction {
        number: 1,
        library,
        name: "cuCtxSynchronize".to_owned(),
    });
    let analysis = analyse(&session);
    let (bottleneck, summary) = verdict(&analysis);
    assert_eq!(bottleneck, "inconclusive", "{summary}");
    assert!(summary.contains("linked statically"), "{summary}");
    assert!(summary.contains("--gpu"), "{summary}");
}

#[test]
fn a_library_that_nobody_calls_is_no_gpu_in_use() {
    let analysis = analyse(&asked_once_for_a_gpu());
    let (bottleneck, summary) = verdict(&analysis);
    assert_eq!(bottleneck, "compute", "{summary}");
    // Nor is the runtime of a framework that is built for GPUs, on a host without one.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1).library(TRAINER, "cuda-runtime");
    let analysis = analyse(&tale.session(8000.0));
    assert_eq!(verdict(&analysis).0, "compute");
}

#[test]
fn few_calls_through_a_runtime_that_is_probed_are_few_calls() {
    let mut tale = spins(None);
    tale.gpu_call(TRAINER, 10.0, 11.0, GpuCallKind::Allocate, 4096);
    let mut session = tale.session(8000.0);
    let library = "libcudart.so.12".to_owned();
    session.apply(&Record::GpuFunction {
        number: 1,
        library,
        name: "cudaStreamSynchronize".to_owned(),
    });
    let analysis = analyse(&session);
    assert_eq!(verdict(&analysis).0, "compute");
}

#[test]
fn where_no_cause_stands_out_it_is_said_that_the_gpu_was_not_seen() {
    let mut tale = spins(None);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let on = On::Pipe(9);
        tale.wait(
            TRAINER,
            begin,
            begin + 60.0,
            POLL,
            on,
            super::tale::By::Nobody,
        );
    }
    let mut session = tale.session(8000.0);
    lacks(&mut session, "gpu", NO_DRIVER);
    let analysis = analyse(&session);
    let (bottleneck, summary) = verdict(&analysis);
    assert_eq!(bottleneck, "inconclusive", "{summary}");
    assert!(summary.contains("the GPU was not seen"), "{summary}");
}
