//! What watching costs, as the report tells it.

use std::ffi::OsString;

use trainprof_tests::env::{left_out_in_vm, root_test};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::{Observed, observe};

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
