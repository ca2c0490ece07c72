//! What watching costs, as the report tells it.

use std::{ffi::OsString, process::Command};

use trainprof_tests::env::{left_out_in_vm, root_test};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Observed, Watch, Workload, bpf, observe};

fn watch(what: &str) -> Observed {
    let args: Vec<OsString> = vec![what.into()];
    let seen = observe("yielder", &args);
    eprintln!(
        "{what}: {:#}, {} calls in {} s",
        seen.report.0["cost"], seen.truth["calls"], seen.truth["took_s"]
    );
    seen
}

/// Nanoseconds in the probes for each call of the job; of them in calls that only give up the CPU; and the estimate in percent.
fn cost(seen: &Observed) -> (f64, f64, f64) {
    let calls = u64_at(&seen.truth, "/calls") as f64;
    let cost = &seen.report.0["cost"];
    (
        f64_at(cost, "/bpf_ns") / calls,
        f64_at(cost, "/bpf_spin_ns") / calls,
        f64_at(cost, "/slowdown_estimate_pct"),
    )
}

#[test]
fn a_thread_that_has_nothing_to_do_is_not_slowed_down() {
    let name = "a_thread_that_has_nothing_to_do_is_not_slowed_down";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a clock that tells nanoseconds") {
        return;
    }
    let (yielding, calling) = (watch("yield"), watch("other"));
    let (all, spin, estimate) = cost(&yielding);
    assert!(spin > 0.7 * all, "{spin} ns of {all} ns a yield");
    let (all_other, spin_other, estimate_other) = cost(&calling);
    assert!(
        spin_other < 0.05 * all_other,
        "{spin_other} ns of {all_other} ns a call that does not yield"
    );
    assert!(
        estimate < 0.5 * estimate_other,
        "{estimate} % of a thread that yields, {estimate_other} % of one that works"
    );
}

/// The kernel's check of the probes is nearly half of a start. How much of it there is is counted in instructions: one that is
/// followed along many ways counts many times (docs/ARCHITECTURE.md, *What the verifier taught*).
#[test]
fn the_kernel_checks_the_probes_without_going_along_many_ways() {
    let name = "the_kernel_checks_the_probes_without_going_along_many_ways";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(
        name,
        "the checks of a present kernel: older ones prune less",
    ) {
        return;
    }
    let before = bpf::held();
    let workload = Workload::start("sleeper", os(&[]));
    let watch = Watch::attach(workload.pid(), &os(&[&"--gpu", &"off"]));
    let programs = bpf::held().since(&before).programs;
    let checked = bpf::verified_instructions(&programs);
    drop((watch, workload));
    eprintln!("{} programs, {checked} instructions", programs.len());
    assert!(checked > 10_000, "not all programs were seen: {programs:?}");
    assert!(checked < 80_000, "{checked} instructions are checked");
}

/// Seconds after which two busy CPUs have paid for the start, twice over: docs/ARCHITECTURE.md, *The governor*.
const REPAID_S: &str = "60";

#[test]
fn all_that_watching_costs_comes_below_the_budget() {
    let name = "all_that_watching_costs_comes_below_the_budget";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "CPUs that an emulator does not take") {
        return;
    }
    let mut jobs = [(); 2].map(|()| {
        let mut command = Command::new(program("allocate-shared"));
        command.args(["-", REPAID_S, "200"]);
        Workload::spawn(command)
    });
    let other = jobs[1].pid().to_string();
    let watch = Watch::attach(jobs[0].pid(), &os(&[&other, &"--gpu", &"off"]));
    for job in &mut jobs {
        job.go();
    }
    for job in &mut jobs {
        job.wait_done();
    }
    let report = watch.stop().report();
    for job in jobs {
        job.finish();
    }
    let cost = report.at("/cost");
    let processes = report.rows("/job/processes");
    let used: f64 = processes.iter().map(|p| f64_at(p, "/cpu_s")).sum();
    eprintln!("{used} s of CPU time: {cost:#}");
    let (spent, budget) = (f64_at(cost, "/spent_share"), f64_at(cost, "/budget"));
    assert_eq!(budget, 0.01);
    assert!(f64_at(cost, "/start_cpu_s") > 0.01, "{cost}");
    assert!(spent <= budget, "{spent} of {used} s: {cost}");
    // A short watch has some, and more open when the start is paid for.
    assert!(u64_at(cost, "/windows/count") >= 1, "{cost}");
    let worst = f64_at(cost, "/windows/worst_thread_share");
    assert!(worst <= 0.01, "{worst} added to a thread");
}
