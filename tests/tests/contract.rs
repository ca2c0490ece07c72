//! The keys of the JSON report that scripts may rely on are there in every report, whatever the job did.

use trainprof_tests::env::root_test;
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, observe};

/// Pointers into every report of a watch; `null` is a value.
const KEYS: &[&str] = &[
    "/schema",
    "/host/kernel",
    "/host/cpus",
    "/host/memory_bytes",
    "/host/gpu_driver",
    "/host/versions/trainprof",
    "/job/pid",
    "/job/command",
    "/job/started",
    "/job/processes/0/pid",
    "/job/processes/0/start_time",
    "/job/processes/0/role",
    "/job/processes/0/command",
    "/job/processes/0/threads",
    "/job/processes/0/share/on_cpu",
    "/job/processes/0/share/runnable",
    "/job/processes/0/share/io_wait",
    "/job/processes/0/present_s",
    "/job/processes/0/waits",
    "/job/cgroup",
    "/job/frameworks",
    "/job/processes/0/io/opens",
    "/job/processes/0/io/reads",
    "/job/processes/0/io/writes",
    "/job/processes/0/io/bytes_read",
    "/job/processes/0/io/bytes_written",
    "/job/processes/0/faults/minor",
    "/job/processes/0/faults/major",
    "/threads/0/pid",
    "/threads/0/tid",
    "/threads/0/name",
    "/threads/0/on_cpu_s",
    "/threads/0/runnable_s",
    "/threads/0/wait_s",
    "/threads/0/unseen_s",
    "/threads/0/waits",
    "/duration_s",
    "/not_told",
    "/coverage/events",
    "/coverage/lost",
    "/coverage/missing",
    "/steps",
    "/trainer/pid",
    "/trainer/share",
    "/workers/count",
    "/workers/share",
    "/gpu/available",
    "/gpu/devices",
    "/gpu/idle_blame",
    "/blame",
    "/verdict",
    "/findings",
    "/io/opens",
    "/io/reads",
    "/io/writes",
    "/io/bytes_read",
    "/io/bytes_written",
    "/io/small_file_share",
    "/io/cache_hit_ratio",
    "/io/latency_us/open",
    "/io/latency_us/read",
    "/io/top",
    "/io/extensions",
    "/memory/rss_bytes",
    "/memory/churn_share",
    "/memory/churn_share_error",
    "/memory/cgroup_pressure",
    "/memory/oom_kills",
    "/memory/growth_bytes_per_s",
    "/memory/time_to_limit_s",
    "/memory/allocs_per_s",
    "/memory/alloc_bytes_per_s",
    "/memory/churn_share",
    "/memory/sites",
    "/memory/processes/0/proportional_bytes",
    "/cost/slowdown_estimate_pct",
    "/cost/bpf_ns",
    "/cost/bpf_runs",
    "/cost/collector_cpu_s",
    "/cost/start_cpu_s",
    "/cost/collector_rss_max_bytes",
    "/cost/shed",
    "/cost/budget",
    "/cost/spent_share",
    "/cost/estimated",
];

/// Of the verdict, which is `null` for a job that could not be walked.
const OF_VERDICT: [&str; 5] = [
    "bottleneck",
    "share",
    "speedup_bound",
    "summary",
    "confidence",
];
const OPERATIONS: [&str; 11] = [
    "open", "read", "write", "close", "stat", "getdents", "mmap", "fsync", "rename", "copy",
    "fault",
];
const CLASSES: [&str; 6] = ["pipe", "socket", "shm", "proc", "device", "anon"];
const CALLS: [&str; 5] = ["mmap", "munmap", "brk", "madvise", "mremap"];

#[test]
fn every_key_of_the_contract_is_there() {
    let Some(_turn) = root_test("every_key_of_the_contract_is_there") else {
        return;
    };
    // A job that does next to nothing: what it did not do is still there, as zero.
    let seen = observe("contend", &os(&[&"1", &"0.3"]));
    let mut keys: Vec<String> = KEYS.iter().map(|&key| key.to_owned()).collect();
    for name in OPERATIONS {
        for member in ["count", "errors", "bytes", "seconds", "latency_us"] {
            keys.push(format!("/io/operations/{name}/{member}"));
        }
    }
    for name in CLASSES {
        for member in ["reads", "writes", "bytes_read", "bytes_written"] {
            keys.push(format!("/io/other/{name}/{member}"));
        }
    }
    for name in CALLS {
        keys.extend(["count", "bytes"].map(|member| format!("/memory/calls/{name}/{member}")));
    }
    let mut checks = Checks::new();
    let report = &seen.report;
    checks.that(!report.at("/verdict").is_null(), || "no verdict".into());
    keys.extend(OF_VERDICT.map(|member| format!("/verdict/{member}")));
    for key in keys {
        checks.that(report.0.pointer(&key).is_some(), || {
            format!("{key} is not in the report")
        });
    }
    // What is not timed is not told as zero; what was not done is.
    for name in OPERATIONS {
        let seconds = report.at(&format!("/io/operations/{name}/seconds"));
        checks.that(seconds.is_null() == (name == "fault"), || {
            format!("{name}: {seconds} s")
        });
    }
    checks.that(report.at("/schema") == "trainprof.report/1", || {
        format!("schema {}", report.at("/schema"))
    });
    checks.done();
}
