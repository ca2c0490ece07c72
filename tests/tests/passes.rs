//! Backward passes as a step clock: counted against a program's own account, and against a real training loop's timers.

use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::report::{Report, f64_at, u64_at};
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Checks, Workload, observe_with};
use trainprof_user::record::gpu::{PassFact, UpdateFact};
use trainprof_user::record::{Reader, Record};

fn told<T>(recording: &std::path::Path, which: impl Fn(Record) -> Option<T>) -> Vec<T> {
    let mut reader = Reader::open(recording).expect("a recording");
    let records = reader.records::<Record>();
    records
        .filter_map(|record| which(record.expect("a whole recording")))
        .collect()
}

fn passes(recording: &std::path::Path) -> Vec<PassFact> {
    told(recording, |record| match record {
        Record::Pass(pass) => Some(pass),
        _ => None,
    })
}

fn updates_of(recording: &std::path::Path) -> Vec<UpdateFact> {
    told(recording, |record| match record {
        Record::Update(update) => Some(update),
        _ => None,
    })
}

fn clock(report: &Report) -> &str {
    report.at("/steps/clock").as_str().unwrap_or("none")
}

/// Begins the loop of `passes.c`; the result holds `extra` options of the watch.
fn loop_of_passes(extra: &[&str]) -> trainprof_tests::Observed {
    let library = program("libtorch_cpu.so");
    let args = os(&[&library, &"200", &"40"]);
    let workload = Workload::start("passes", args);
    let pid = workload.pid();
    let extra: Vec<_> = extra.iter().map(Into::into).collect();
    observe_with(workload, pid, &extra)
}

#[test]
fn each_backward_pass_is_told_and_the_outer_ones_are_steps() {
    let name = "each_backward_pass_is_told_and_the_outer_ones_are_steps";
    let Some(_turn) = root_test(name) else { return };
    // They are no calls into a GPU's runtime.
    for extra in [&[][..], &["--gpu", "off"]] {
        let seen = loop_of_passes(extra);
        let mut checks = Checks::new();
        checks.nothing_lost(&seen.report);
        let told = passes(&seen.finished.recording);
        let truth = u64_at(&seen.truth, "/passes");
        checks.exact("passes", truth, told.len() as u64);
        // Other stretches with names begin as often.
        let updates = u64_at(&seen.truth, "/updates");
        let told = updates_of(&seen.finished.recording);
        checks.exact("updates", updates, told.len() as u64);
        let left = u64_at(&seen.truth, "/left");
        checks.that(left == 28, || format!("{left} passes were left by a jump"));
        checks.that(clock(&seen.report) == "backward-pass", || {
            format!("steps: {}", seen.report.at("/steps"))
        });
        // From each beginning to the next one, and the two to warm up.
        let steps = u64_at(&seen.truth, "/steps");
        checks.exact(
            "steps",
            steps + 1,
            u64_at(seen.report.at("/steps"), "/count"),
        );
        let mean = f64_at(&seen.truth, "/seconds") / steps as f64 * 1e3;
        let p50 = f64_at(seen.report.at("/steps"), "/time_ms/p50");
        checks.between("p50", (0.95 * mean, 1.05 * mean), p50);
        checks.done();
    }
}

fn train(name: &str, way: &str) {
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "more than a few steps in the time of a watch") {
        return;
    }
    let Some(python) = python_with("torch") else {
        return skip(name, "no Python with torch (TRAINPROF_PYTHON names one)");
    };
    let workload = Workload::python(&python, "pysteps.py", ["12", way]);
    let pid = workload.pid();
    let seen = observe_with(workload, pid, &[]);
    let mut checks = Checks::new();
    let steps = seen.report.at("/steps");
    checks.that(clock(&seen.report) == "backward-pass", || {
        format!("steps: {steps}")
    });
    let of = |truth: f64, part: f64| ((1.0 - part) * truth, (1.0 + part) * truth);
    let count = u64_at(&seen.truth, "/steps") as f64;
    checks.between("steps", of(count, 0.02), u64_at(steps, "/count") as f64);
    for quantile in ["p50", "p95"] {
        // The percentiles up to two points away, as in the suite of scenarios: a few steps more or less in between move it so far.
        let truth = |end| f64_at(&seen.truth, &format!("/{quantile}_ms/{end}"));
        let told = f64_at(steps, &format!("/time_ms/{quantile}"));
        checks.between(quantile, (0.95 * truth(0), 1.05 * truth(1)), told);
    }
    let failed = u64_at(&seen.truth, "/failed") as f64;
    checks.that((failed > 0.0) == (way == "exception"), || {
        format!("{failed} passes of {count} ended by an exception")
    });
    checks.done();
}

#[test]
fn steps_of_a_loop_on_what_is_in_memory_are_found() {
    train("steps_of_a_loop_on_what_is_in_memory_are_found", "plain");
}

#[test]
fn passes_for_checkpointed_parts_are_no_steps() {
    train("passes_for_checkpointed_parts_are_no_steps", "checkpoint");
}

#[test]
fn losses_that_each_step_has_are_one_step() {
    train("losses_that_each_step_has_are_one_step", "losses");
}

#[test]
fn passes_up_to_an_update_of_the_model_are_one_step() {
    train(
        "passes_up_to_an_update_of_the_model_are_one_step",
        "accumulate",
    );
}

#[test]
fn exceptions_out_of_backward_passes_harm_nothing() {
    train(
        "exceptions_out_of_backward_passes_harm_nothing",
        "exception",
    );
}
