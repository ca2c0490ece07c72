//! The usual course of a test: attach at the start gate, let it work, detach at the end gate.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

use crate::env::in_vm;
use crate::product::{Finished, Watch};
use crate::replay::same_bytes;
use crate::report::Report;
use crate::workload::Workload;

/// What a workload did, and what was reported of it.
pub struct Observed {
    pub truth: Value,
    pub report: Report,
    pub finished: Finished,
    pub attach_time: Duration,
}

/// Watches a compiled workload from gate to gate.
pub fn observe(name: &str, args: &[OsString]) -> Observed {
    let workload = Workload::start(name, args);
    let pid = workload.pid();
    observe_with(workload, pid, &[])
}

/// Watches a workload that waits at its start gate. Every directory of the job is in the report.
pub fn observe_with(workload: Workload, pid: i32, extra: &[OsString]) -> Observed {
    observe_in(workload, pid, extra, &[])
}

/// The same with more in the environment of `trainprof`.
pub fn observe_in(
    mut workload: Workload,
    pid: i32,
    extra: &[OsString],
    env: &[(&str, &str)],
) -> Observed {
    let mut options = vec![OsString::from("--top"), "1000".into()];
    // Counts are exact where the budget has room for counting.
    if !extra.iter().any(|option| option == "--overhead-budget") {
        options.extend(["--overhead-budget".into(), "100%".into()]);
    }
    options.extend_from_slice(extra);
    let watch = Watch::attach_in(pid, &options, env);
    let attach_time = watch.attach_time;
    workload.go();
    workload.wait_done();
    let finished = watch.stop();
    assert_eq!(
        finished.code(),
        0,
        "exit status of the watch:\n{}",
        finished.stderr
    );
    assert!(workload.is_alive(), "Ctrl-C ends the watch and not the job");
    let truth = workload.finish();
    // Of whatever was watched; an emulated processor has no time for it.
    if !in_vm() {
        same_bytes(&finished);
    }
    let report = finished.report();
    Observed {
        truth,
        report,
        finished,
        attach_time,
    }
}
