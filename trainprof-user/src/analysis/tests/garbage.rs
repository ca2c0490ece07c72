//! Stories of Python's garbage that is collected in the trainer.

use super::{
    python::alone,
    stories::{TRAINER, close, job, share, stall, trainer},
    tale::Tale,
};
use crate::{
    analysis::{Kind, analyse},
    record::fact::PlaceClass,
};

/// A trainer alone whose stacks tell nothing, with places 1 (a framework's), 2 (the interpreter's) and 3 and 4 (its collector's): of ten
/// samples of each 100 ms the last `collected` are of the collector, or of what it calls.
fn collects_garbage(collected: u32) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1);
    garbage(&mut tale, collected);
    tale
}

fn garbage(tale: &mut Tale, collected: u32) {
    let python = "libpython3.11.so.1.0";
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other)
        .place_in(2, python, "PyType_IsSubtype", PlaceClass::Python)
        .place_in(3, python, "gc_collect_main.constprop.0", PlaceClass::Python)
        .place_in(4, python, "list_traverse", PlaceClass::Python);
    for step in 0..80 {
        for n in 0..10 {
            let place = match 9 - n {
                of if of >= collected => 1,
                of if of + 1 == collected => 3,
                of => [3, 2, 4][of as usize % 3],
            };
            tale.sample(TRAINER, f64::from(step * 100 + n * 10 + 5), place);
        }
    }
}

#[test]
fn collecting_garbage_makes_no_batches() {
    let analysis = analyse(&collects_garbage(4).session(8000.0));
    let trainer = analysis.trainer.as_ref().expect("a trainer");
    close(share(trainer, Kind::HostCompute), 0.4, "garbage");
    close(share(trainer, Kind::InputCpu), 0.0, "input");
    let finding = analysis.findings.iter().find(|f| f.kind == "host-compute");
    let finding = finding.expect("a finding");
    assert!(
        finding
            .summary
            .contains("40 ms at a time, some 600 times a minute"),
        "{}",
        finding.summary
    );
    assert!(finding.advice.contains("gc.freeze()"), "{}", finding.advice);
    // Every program collects a little.
    let little = analyse(&collects_garbage(1).session(8000.0));
    let little = little.trainer.as_ref().expect("a trainer");
    close(share(little, Kind::HostCompute), 0.0, "garbage");
}

#[test]
fn what_the_model_does_between_two_collections_is_no_garbage() {
    let mut tale = collects_garbage(0);
    for step in 0..80 {
        for n in 0..2 {
            tale.sample(TRAINER, f64::from(step * 100 + n * 20 + 10), 3);
        }
    }
    // Two of twelve samples, each of which stands for 5 ms.
    let trainer = trainer(&tale, 8000.0);
    assert!(share(&trainer, Kind::HostCompute) < 0.12);
}

#[test]
fn collecting_garbage_beside_workers_is_no_model() {
    let mut tale = job(1);
    garbage(&mut tale, 4);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin, begin + 1.0, 201);
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::HostCompute), 0.4, "garbage");
}

#[test]
fn garbage_beside_batches_takes_nothing_from_them() {
    // Half of 100 ms the trainer makes its batch, a fifth it collects garbage.
    let mut tale = alone("Data.__getitem__", false);
    tale.place(1, "libtorch_cpu.so", PlaceClass::Other)
        .place(2, "libdata.so", PlaceClass::Other)
        .place_in(3, "python3.11", "gc_collect_main", PlaceClass::Python);
    let times = |from: u32, to: u32| {
        (0..80).flat_map(move |step| (from..to).map(move |n| f64::from(step * 100 + n * 10 + 5)))
    };
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 5))
        .stack(2, &[1], TRAINER, times(5, 7))
        .stack(3, &[3, 1], TRAINER, times(7, 10));
    for (place, from, to) in [(2, 0, 5), (3, 5, 7), (1, 7, 10)] {
        for when in times(from, to) {
            tale.sample(TRAINER, when, place);
        }
    }
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::HostCompute), 0.2, "garbage");
    close(share(&trainer, Kind::InputCpu), 0.5, "batches");
    close(share(&trainer, Kind::Compute), 0.3, "model");
}

#[test]
fn now_and_then_a_sample_of_the_collector_is_no_collection_all_the_time() {
    // One of five samples of a thread that runs the interpreter.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .place(2, "python3.11", PlaceClass::Python)
        .place_in(3, "python3.11", "gc_collect_main", PlaceClass::Python);
    for n in 0..800 {
        let place = if n % 5 == 0 { 3 } else { 2 };
        tale.sample(TRAINER, f64::from(n * 10) + 7.0, place);
    }
    let trainer = trainer(&tale, 8000.0);
    assert!(share(&trainer, Kind::HostCompute) < 0.25);
}
