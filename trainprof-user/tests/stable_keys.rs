//! Keys of the report that scripts rely on: never renamed. They are listed here by hand, apart from the code and from docs/JSON.md, so
//! that a key that is renamed in both of them is still missed. Rows of `memory.sites`, which no golden recording has: tests/tests/alloc.rs.

mod common;

use common::reports;
use serde_json::Value;
use trainprof_user::report::{self, Shown};

const SHARE: [&str; 8] = [
    "on_cpu",
    "runnable",
    "data_wait",
    "io_wait",
    "gpu_wait",
    "lock_wait",
    "comm_wait",
    "other_wait",
];

/// Where something is, and the keys that it has wherever it is there. `[]`: in each row.
const STABLE: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "schema",
            "host",
            "job",
            "duration_s",
            "coverage",
            "steps",
            "trainer",
            "workers",
            "gpu",
            "io",
            "memory",
            "blame",
            "verdict",
            "findings",
            "cost",
        ],
    ),
    (
        "host",
        &["kernel", "cpus", "memory_bytes", "gpu_driver", "versions"],
    ),
    ("job", &["pid", "command", "started", "processes"]),
    (
        "job.processes[]",
        &["pid", "start_time", "role", "command", "threads"],
    ),
    ("coverage", &["events", "lost", "missing"]),
    ("coverage.missing[]", &["what", "reason"]),
    ("steps", &["count", "clock", "time_ms"]),
    ("steps.time_ms", &["p50", "p95", "p99", "max"]),
    ("trainer", &["pid", "share"]),
    ("trainer.share", &SHARE),
    ("workers", &["count", "share"]),
    ("workers.share", &SHARE),
    ("workers.share", &["slot_wait"]),
    ("gpu", &["available", "devices", "idle_blame"]),
    (
        "gpu.devices[]",
        &[
            "index",
            "name",
            "uuid",
            "util_mean",
            "idle_s",
            "memory_max_bytes",
        ],
    ),
    ("gpu.idle_blame[]", &["kind", "seconds", "share"]),
    (
        "io",
        &[
            "opens",
            "reads",
            "writes",
            "bytes_read",
            "bytes_written",
            "small_file_share",
            "cache_hit_ratio",
            "latency_us",
            "top",
        ],
    ),
    ("io.latency_us", &["open", "read"]),
    ("io.latency_us.open", &["p50", "p95", "p99"]),
    ("io.latency_us.read", &["p50", "p95", "p99"]),
    (
        "io.top[]",
        &[
            "path",
            "opens",
            "reads",
            "bytes",
            "mean_file_bytes",
            "wait_s",
            "filesystem",
        ],
    ),
    (
        "memory",
        &[
            "rss_bytes",
            "growth_bytes_per_s",
            "time_to_limit_s",
            "allocs_per_s",
            "alloc_bytes_per_s",
            "churn_share",
            "sites",
        ],
    ),
    ("memory.rss_bytes", &["first", "last", "max"]),
    ("blame[]", &["path", "seconds", "share"]),
    (
        "verdict",
        &[
            "bottleneck",
            "share",
            "speedup_bound",
            "summary",
            "confidence",
        ],
    ),
    (
        "findings[]",
        &["kind", "share", "evidence", "summary", "advice"],
    ),
    (
        "cost",
        &[
            "slowdown_estimate_pct",
            "bpf_ns",
            "bpf_runs",
            "collector_cpu_s",
            "collector_rss_max_bytes",
            "shed",
        ],
    ),
];

/// All that is at a place.
fn at<'a>(report: &'a Value, place: &str) -> Vec<&'a Value> {
    let mut found = vec![report];
    for name in place.split('.').filter(|name| !name.is_empty()) {
        let member = name.trim_end_matches("[]");
        found = found.into_iter().filter_map(|of| of.get(member)).collect();
        if member != name {
            let rows = found.into_iter().filter_map(Value::as_array);
            found = rows.flatten().collect();
        }
    }
    found.retain(|value| !value.is_null());
    found
}

#[test]
fn stable_keys_are_there_wherever_what_they_tell_of_is() {
    let mut seen = vec![0; STABLE.len()];
    for (path, report) in reports(Shown::default()) {
        let text = report::to_json(&report);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        for ((place, keys), seen) in STABLE.iter().zip(&mut seen) {
            for value in at(&json, place) {
                *seen += 1;
                for key in *keys {
                    let there = value.get(key).is_some();
                    assert!(there, "{}: no {key} in {place}: {value}", path.display());
                }
            }
        }
    }
    for ((place, _), seen) in STABLE.iter().zip(seen) {
        assert!(seen > 0, "no recording has {place:?}");
    }
}
