//! What stacks of Python code tell of a trainer's work beside its model and its batches.

use trainprof_common::op::{Class, Op};

use super::{
    python::{MODULE, SCRIPT, alone, times},
    stories::{TRAINER, close, job, share, stall, sums_up, trainer},
    tale::{By, FUTEX, On, SLEEP, Tale},
};
use crate::{
    analysis::{Kind, Trainer, analyse},
    record::fact::PlaceClass,
};

#[test]
fn a_function_under_which_no_framework_computes_is_not_the_model() {
    // 80 of 100 ms in `tok`; the model is too quick for clock samples to alternate.
    let with = |library: &str, module: &str| {
        let mut tale = alone("tok", false);
        tale.library(TRAINER, library)
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, module, PlaceClass::Other);
        tale.stack(1, &[4, 1], TRAINER, times(0, 4))
            .stack(2, &[3, 1], TRAINER, times(4, 1));
        for when in times(0, 4) {
            tale.sample(TRAINER, when + 1.0, 1);
        }
        for when in times(4, 1) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        trainer(&tale, 8000.0)
    };
    let told = with("torch", "libtorch_cpu.so");
    close(share(&told, Kind::InputCpu), 0.8, "beside the model");
    assert!(told.own_batches_guessed);
    // Without a framework it may be the model.
    let alone = with("numpy", "_multiarray_umath.so");
    close(share(&alone, Kind::Compute), 1.0, "computing");
}

#[test]
fn a_class_that_the_framework_calls_is_part_of_the_model() {
    // Of 100 ms, 60 in the first half of a function of the job's own, which C code calls, and 20 in the second one.
    let with = |second: &str| {
        let mut tale = alone("Warp.forward", false);
        tale.function(5, SCRIPT, second)
            .function(
                6,
                "/usr/lib/python3/dist-packages/torch/autograd/__init__.py",
                "backward",
            )
            .library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .stack(1, &[4, 1], TRAINER, times(0, 3))
            .stack(2, &[3, 1], TRAINER, times(3, 1))
            .stack(3, &[5, 6, 1], TRAINER, times(4, 1));
        for (from, count, place) in [(0, 3, 1), (3, 1, 2), (4, 1, 1)] {
            for when in times(from, count) {
                tale.sample(TRAINER, when + 1.0, place);
            }
        }
        trainer(&tale, 8000.0)
    };
    let model = with("Warp.backward");
    close(share(&model, Kind::Compute), 1.0, "the same class");
    let beside = with("Other.backward");
    close(share(&beside, Kind::InputCpu), 0.6, "another one");
}

#[test]
fn what_a_model_is_made_to_tell_of_itself_is_no_model() {
    const STAT: i16 = 4;
    // Of 100 ms, 60 in which the model's code is followed by stacks and their sources, a third of it in calls that look files up.
    let told = |mut tale: Tale, describing: &[u32], computing: &[u32]| {
        tale.function(
            5,
            "/usr/lib/python3.11/traceback.py",
            "StackSummary.extract",
        )
        .function(6, "/usr/lib/python3.11/linecache.py", "checkcache")
        .function(7, "/usr/lib/python3.11/cProfile.py", "runctx")
        .library(TRAINER, "torch")
        .place(1, "python3.11", PlaceClass::Python)
        .place(2, "libtorch_cpu.so", PlaceClass::Other)
        .place(3, "[kernel]", PlaceClass::Kernel)
        .stack(1, describing, TRAINER, times(0, 3))
        .stack(2, computing, TRAINER, times(3, 2));
        for (n, when) in times(0, 3).enumerate() {
            match n % 3 {
                0 => tale.sample_in(TRAINER, when + 1.0, 3, STAT),
                _ => tale.sample(TRAINER, when + 1.0, 1),
            };
        }
        for when in times(3, 2) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        tale
    };
    let alone = || alone("Cell.forward", false);
    let tale = told(alone(), &[6, 5, 4, 3, 1], &[3, 1]);
    let describing = trainer(&tale, 8000.0);
    sums_up(&describing);
    close(share(&describing, Kind::HostCompute), 0.6, "beside it");
    close(share(&describing, Kind::SmallFiles), 0.0, "sources");
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "host-compute");
    assert!(verdict.confidence > 0.8, "{}", verdict.confidence);
    let found = analysis.findings.iter().find(|f| f.kind == "host-compute");
    let advice = &found.expect("host-compute").advice;
    assert!(advice.contains("anomaly detection"), "{advice}");
    // A whole program that a profiler of Python runs is not the profiler's work.
    let run = trainer(&told(alone(), &[4, 3, 1, 7], &[3, 1, 7]), 8000.0);
    close(share(&run, Kind::HostCompute), 0.0, "run by cProfile");
    // Nor does a file of the job's own become that by its name.
    let mut named = alone();
    named.function(8, "/home/me/job/traceback.py", "mask");
    let own = trainer(&told(named, &[8, 3, 1], &[3, 1]), 8000.0);
    close(share(&own, Kind::HostCompute), 0.0, "of the same name");
    // With a worker that is always ahead, too.
    let mut tale = job(1);
    tale.function(1, SCRIPT, "<module>")
        .function(3, MODULE, "Module._call_impl")
        .function(4, SCRIPT, "Cell.forward");
    let mut tale = told(tale, &[6, 5, 4, 3, 1], &[3, 1]);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        stall(&mut tale, begin, begin + 0.5, 201);
        tale.touch(TRAINER, begin + 0.6, Op::Write, Class::Pipe, 78, 60);
    }
    let beside = trainer(&tale, 8000.0);
    close(share(&beside, Kind::HostCompute), 0.6, "with a worker");
}

#[test]
fn what_is_done_with_a_batch_before_the_model_has_it_is_input() {
    // A worker is always ahead. The trainer's 100 ms: 40 in `pad`, and 60 in the model, in this order or the other one.
    let told = |pad: u32, model: &[(u32, u32)], stack: &[u32]| {
        let mut tale = job(1);
        tale.function(1, SCRIPT, "<module>")
            .function(3, MODULE, "Module._call_impl")
            .function(4, SCRIPT, "pad")
            .library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .stack(1, stack, TRAINER, times(pad, 2));
        for when in times(pad, 2) {
            tale.sample(TRAINER, when + 1.0, 1);
        }
        for (from, count) in model {
            tale.stack(2, &[3, 1], TRAINER, times(*from, *count));
            for when in times(*from, *count) {
                tale.sample(TRAINER, when + 1.0, 2);
            }
        }
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            stall(&mut tale, begin, begin + 0.5, 201);
            tale.touch(TRAINER, begin + 0.6, Op::Write, Class::Pipe, 78, 60);
        }
        tale
    };
    let before = trainer(&told(0, &[(2, 3)], &[4, 1]), 8000.0);
    close(share(&before, Kind::InputCpu), 0.4, "before the model");
    // After it, it is a metric, say.
    let tale = told(3, &[(0, 3)], &[4, 1]);
    let after = trainer(&tale, 8000.0);
    sums_up(&after);
    close(share(&after, Kind::InputCpu), 0.0, "after it");
    close(share(&after, Kind::HostCompute), 0.4, "beside it");
    close(share(&after, Kind::Compute), 0.6, "the model");
    let analysis = analyse(&tale.session(8000.0));
    let verdict = analysis.verdict.expect("a verdict");
    assert_eq!(verdict.bottleneck, "host-compute");
    assert!(
        verdict.summary.contains("in pad (train.py"),
        "{}",
        verdict.summary
    );
    assert!(verdict.confidence < 0.7, "{}", verdict.confidence);
    // What it waits for there goes with it.
    let mut tale = told(3, &[(0, 3)], &[4, 1]);
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (from, to) = (begin + 72.0, begin + 88.0);
        tale.wait(TRAINER, from, to, SLEEP, On::Nothing, By::Interrupt);
    }
    let waits = trainer(&tale, 8000.0);
    close(share(&waits, Kind::HostCompute), 0.24, "its running");
    assert!(
        waits.bound(Kind::HostCompute) > 1.0 / 0.6,
        "{}",
        waits.bound(Kind::HostCompute)
    );
    // Between two halves of the model it may be a part of it, as a loss is.
    let between = trainer(&told(2, &[(0, 2), (4, 1)], &[4, 1]), 8000.0);
    close(share(&between, Kind::HostCompute), 0.0, "a loss");
    // What the framework calls is part of the model.
    let called = trainer(&told(3, &[(0, 3)], &[4, 3, 1]), 8000.0);
    close(
        share(&called, Kind::HostCompute),
        0.0,
        "called by the model",
    );
}

#[test]
fn code_that_a_package_makes_is_not_the_jobs_own() {
    let mut tale = alone("auc", false);
    tale.function(5, "<__array_function__ internals>", "argsort")
        .stack(1, &[5, 4, 1], TRAINER, times(0, 5));
    let session = tale.session(8000.0);
    let analysis = analyse(&session);
    let compute = analysis.findings.iter().find(|f| f.kind == "compute");
    let evidence = &compute.expect("computing").evidence;
    assert_eq!(evidence["python"][0]["function"], "auc");
}

#[test]
fn a_metric_is_known_by_the_backward_pass_where_many_batches_are_taken_at_once() {
    // A worker hands over eight batches at a time. A step's 100 ms: from the backward pass on 40 in that, then 40 in `decode`, then 20 forward;
    // or these two the other way round, as for a loss.
    let told = |decode: u32, forward: u32| {
        let mut tale = job(1);
        tale.function(1, SCRIPT, "<module>")
            .function(3, MODULE, "Module._call_impl")
            .function(4, SCRIPT, "decode")
            .library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .stack(1, &[4, 1], TRAINER, times(decode, 2))
            .stack(2, &[3, 1], TRAINER, times(forward, 1))
            .stack(3, &[1], TRAINER, times(0, 2));
        for when in times(decode, 2) {
            tale.sample(TRAINER, when + 1.0, 1);
        }
        for when in times(forward, 1).chain(times(0, 2)) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        for step in 0..80 {
            let begin = f64::from(step) * 100.0;
            tale.backward(TRAINER, begin);
            if step % 8 == 0 {
                let taken = begin + 20.0 * f64::from(forward);
                stall(&mut tale, taken - 0.5, taken, 201);
                tale.touch(TRAINER, taken + 0.1, Op::Write, Class::Pipe, 78, 60);
            }
        }
        trainer(&tale, 8000.0)
    };
    let metric = told(2, 4);
    sums_up(&metric);
    close(share(&metric, Kind::HostCompute), 0.4, "a metric");
    let loss = told(3, 2);
    close(share(&loss, Kind::HostCompute), 0.0, "a loss");
}

#[test]
fn what_is_done_before_the_next_batch_is_drawn_is_not_done_for_it() {
    // 100 ms of a trainer alone: 40 of a backward pass and the optimizer, 40 in `auc`, 20 forward. Every tenth step shows that it draws a
    // batch, so many ms after the beginning.
    let told = |drawn: f64| {
        let mut tale = alone("auc", false);
        tale.generator(5, SCRIPT, "batches")
            .library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .stack(1, &[4, 1], TRAINER, times(2, 2))
            .stack(2, &[3, 1], TRAINER, times(4, 1))
            .stack(3, &[1], TRAINER, times(0, 2));
        let draws = (0..8).map(|n| f64::from(n) * 1000.0 + drawn);
        tale.stack(4, &[5, 1], TRAINER, draws);
        for when in times(2, 2) {
            tale.sample(TRAINER, when + 1.0, 1);
        }
        for when in times(0, 2).chain(times(4, 1)) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        for step in 0..80 {
            tale.backward(TRAINER, f64::from(step) * 100.0);
        }
        trainer(&tale, 8000.0)
    };
    let metric = told(82.0);
    sums_up(&metric);
    close(share(&metric, Kind::HostCompute), 0.4, "a metric");
    close(share(&metric, Kind::InputCpu), 0.0, "no batch");
    let prepares = told(42.0);
    close(share(&prepares, Kind::HostCompute), 0.0, "no metric");
    close(share(&prepares, Kind::InputCpu), 0.4, "a batch");
    assert!(prepares.own_batches_guessed);
}

#[test]
fn what_has_no_computing_after_it_until_the_backward_pass_is_for_the_loss() {
    // 100 ms of a trainer alone: 40 of a backward pass and the optimizer, and 20 forward, before or after 40 in `assign`.
    let told = |forward: u32, assigns: u32| {
        let mut tale = alone("assign", false);
        tale.library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .stack(1, &[4, 1], TRAINER, times(assigns, 2))
            .stack(2, &[3, 1], TRAINER, times(forward, 1))
            .stack(3, &[1], TRAINER, times(0, 2));
        for when in times(assigns, 2) {
            tale.sample(TRAINER, when + 1.0, 1);
        }
        for when in times(0, 2).chain(times(forward, 1)) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        for step in 0..80 {
            tale.backward(TRAINER, f64::from(step) * 100.0);
        }
        trainer(&tale, 8000.0)
    };
    let loss = told(2, 3);
    sums_up(&loss);
    close(share(&loss, Kind::HostCompute), 0.4, "a loss");
    close(share(&loss, Kind::InputCpu), 0.0, "no batch");
    let prepares = told(4, 2);
    close(share(&prepares, Kind::InputCpu), 0.4, "a batch");
    assert!(prepares.own_batches_guessed);
}

/// A step of 100 ms: 40 of the model, then 60 in a library's `library`, in 24 of which another thread of the trainer has the interpreter's
/// lock.
fn records(library: &str) -> Trainer {
    const GIL: u64 = 0x7000;
    const WRITER: u32 = 150;
    let mut tale = job(1);
    tale.thread(TRAINER, WRITER)
        .interpreter(TRAINER, GIL - 0x1b0, 0x1000)
        .function(1, SCRIPT, "<module>")
        .function(3, MODULE, "Module._call_impl")
        .function(4, library, "add_histogram")
        .library(TRAINER, "torch")
        .place(1, "python3.11", PlaceClass::Python)
        .place(2, "libtorch_cpu.so", PlaceClass::Other)
        .stack(1, &[3, 1], TRAINER, times(0, 2))
        .stack(2, &[4, 1], TRAINER, times(2, 3));
    for when in times(0, 2) {
        tale.sample(TRAINER, when + 1.0, 2);
    }
    for when in times(2, 3) {
        tale.sample(TRAINER, when + 1.0, 1);
    }
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        tale.backward(TRAINER, begin + 20.0);
        stall(&mut tale, begin - 0.5, begin, 201);
        for part in 0..3 {
            let from = begin + 51.0 + f64::from(part) * 20.0;
            tale.wait(
                TRAINER,
                from,
                from + 8.0,
                FUTEX,
                On::Futex(GIL),
                By::Thread(WRITER),
            );
            tale.wait(
                WRITER,
                from + 8.0,
                from + 19.5,
                FUTEX,
                On::Futex(GIL),
                By::Thread(TRAINER),
            );
        }
    }
    trainer(&tale, 8000.0)
}

#[test]
fn keeping_records_is_the_trainers_own_work_with_its_waits_for_the_interpreter() {
    let tracker = "/usr/lib/python3/dist-packages/torch/utils/tensorboard/writer.py";
    let told = records(tracker);
    sums_up(&told);
    close(share(&told, Kind::HostCompute), 0.6, "keeping records");
    close(share(&told, Kind::Serialization), 0.0, "the lock");
    // What another library does is not known.
    let told = records("/usr/lib/python3/dist-packages/other/writer.py");
    close(share(&told, Kind::HostCompute), 0.0, "another library");
    close(share(&told, Kind::Serialization), 0.24, "its lock");
}

#[test]
fn python_code_of_the_loop_itself_is_no_model() {
    // For 80 of 100 ms the interpreter collects garbage, say, for the loop's own function, in a Python whose functions have no names. Who
    // takes the samples takes the CPU for that, or has another one.
    let with = |taken: bool, place: u32| {
        let mut tale = alone("tok", false);
        tale.library(TRAINER, "torch")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libtorch_cpu.so", PlaceClass::Other)
            .place(3, "libnumbers.so", PlaceClass::Other)
            .stack(1, &[1], TRAINER, times(0, 4))
            .stack(2, &[3, 1], TRAINER, times(4, 1));
        for when in times(0, 4) {
            tale.sample(TRAINER, when + 1.0, place);
        }
        for when in times(4, 1) {
            tale.sample(TRAINER, when + 1.0, 2);
        }
        if taken {
            for when in times(0, 5) {
                tale.preempted(TRAINER, when - 0.1, when + 0.1, 900);
            }
        }
        trainer(&tale, 8000.0)
    };
    for taken in [false, true] {
        let told = with(taken, 1);
        close(share(&told, Kind::HostCompute), 0.8, "beside the model");
    }
    // A library that it calls may be the model's.
    let library = with(true, 3);
    close(share(&library, Kind::HostCompute), 0.0, "a library");
}

#[test]
fn what_a_library_that_trains_calls_back_is_no_model() {
    // 80 of 100 ms in a metric that LightGBM calls after each round, or in what XGBoost draws its data from.
    let with = |name: &str, library: &str, place: u32| {
        let mut tale = alone(name, false);
        let package = format!("/usr/lib/python3/dist-packages/{library}/engine.py");
        tale.function(5, &package, "train")
            .function(
                6,
                "/usr/lib/python3/dist-packages/pandas/core/frame.py",
                "DataFrame.sort_values",
            )
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "lib_lightgbm.so", PlaceClass::Other)
            .stack(1, &[6, 4, 5, 1], TRAINER, times(0, 4))
            .stack(2, &[5, 1], TRAINER, times(4, 1));
        for (from, count, place) in [(0, 4, place), (4, 1, 2)] {
            for when in times(from, count) {
                tale.sample(TRAINER, when + 1.0, place);
            }
        }
        share(&trainer(&tale, 8000.0), Kind::HostCompute)
    };
    close(with("average", "lightgbm", 1), 0.8, "a metric");
    close(with("Pages.next", "xgboost", 1), 0.0, "data");
    close(with("average", "sklearn", 1), 0.0, "part of a model");
    close(with("average", "lightgbm", 2), 0.0, "what computes");
}

#[test]
fn what_is_called_back_may_have_the_library_compute_for_it() {
    // XGBoost calls for a metric after each round. For 20 of 100 ms that predicts; for 60 ms, or not at all, another function works on it.
    let with = |works: u32| {
        let mut tale = alone("Metric.after_iteration", false);
        let package = |file: &str| format!("/usr/lib/python3/dist-packages/xgboost/{file}");
        tale.function(5, &package("training.py"), "train")
            .function(6, &package("core.py"), "Booster.predict")
            .function(7, "ranking.py", "by_group")
            .place(1, "python3.11", PlaceClass::Python)
            .place(2, "libxgboost.so", PlaceClass::Other)
            .stack(1, &[7, 4, 5, 1], TRAINER, times(0, works))
            .stack(2, &[6, 4, 5, 1], TRAINER, times(works, 1))
            .stack(3, &[5, 1], TRAINER, times(works + 1, 4 - works));
        for (from, count, place) in [(0, works, 1), (works, 1, 2), (works + 1, 4 - works, 2)] {
            for when in times(from, count) {
                tale.sample(TRAINER, when + 1.0, place);
            }
        }
        share(&trainer(&tale, 8000.0), Kind::HostCompute)
    };
    close(with(3), 0.8, "with what it has predicted");
    close(with(0), 0.0, "a prediction alone");
}
