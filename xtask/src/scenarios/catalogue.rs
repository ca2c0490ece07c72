//! All scenarios: which loop, which cause is injected, what the verdict must be.

use super::param::{Param, number, whole, word};

/// What surrounds a job. Sizes and rates are params, named here in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixture {
    /// A folder of random files (`files`, `file_kb`)
    Files,
    /// One random file (`blob_mb`)
    Blob,
    /// An empty folder
    Folder,
    /// The folder is seen through a FUSE file system that answers late (`getattr_ms`, `open_ms`, `read_ms`)
    Store,
    /// An HTTP server (`late_ms`, `body_kb`, `mb_s`)
    Objects,
    /// A process that permits each open late (`late_ms`)
    Scanner,
    /// The job's reads from disk are limited (`read_mb_s`), and its data is not cached
    ReadLimit,
    /// The job's writes to disk are limited (`write_mb_s`)
    WriteLimit,
    /// The job's CPU time is limited (`cpus`)
    Quota,
    /// Processes that use CPUs (`neighbours`)
    Neighbours,
    /// Processes that use CPUs (`bystanders`), and are not the cause: they stay when it goes
    Bystanders,
    /// Stand-ins for the GPU's libraries are built and found
    Gpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// One cause was injected; taking it away shows what it cost.
    Fault,
    /// Nothing is wrong with the step time. Findings that are no cause may be demanded still.
    Healthy,
}

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// A file of tests/scenarios, without `.py`
    pub script: &'static str,
    pub sort: Sort,
    /// The verdict's kind. The first is meant; others say the same in this case.
    pub expect: &'static [&'static str],
    /// Findings that must be there too
    pub findings: &'static [&'static str],
    /// A process that the report must name: the fixture's, or the one that the script names
    pub names: bool,
    pub params: &'static [Param],
    pub fixtures: &'static [Fixture],
    /// Among the few quick ones of `--smoke`
    pub smoke: bool,
}

const fn fault(
    name: &'static str,
    script: &'static str,
    expect: &'static [&'static str],
    about: &'static str,
) -> Scenario {
    Scenario {
        name,
        about,
        script,
        sort: Sort::Fault,
        expect,
        findings: &[],
        names: false,
        params: &[],
        fixtures: &[],
        smoke: false,
    }
}

const fn healthy(name: &'static str, script: &'static str, about: &'static str) -> Scenario {
    Scenario {
        sort: Sort::Healthy,
        ..fault(name, script, &["compute"], about)
    }
}

const START: Param = word("start", &["fork", "spawn", "forkserver"]);

pub const ALL: &[Scenario] = &[
    Scenario {
        params: &[
            whole("workers", 3, [1, 3]),
            whole("batch", 8, [8, 12]),
            number("compute_ms", 25.0, [15.0, 25.0]),
            number("decode_ms", 0.5, [0.2, 1.0]),
            whole("files", 1800, [2200, 2400]),
            whole("file_kb", 160, [120, 200]),
            number("read_mb_s", 14.0, [10.0, 18.0]),
            START,
        ],
        fixtures: &[Fixture::Files, Fixture::ReadLimit],
        smoke: true,
        ..fault(
            "cold-disk",
            "files",
            &["storage-io"],
            "files that are not cached on a disk with limited throughput",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 3]),
            whole("batch", 16, [12, 24]),
            number("compute_ms", 20.0, [10.0, 15.0]),
            number("decode_ms", 0.2, [0.1, 0.3]),
            whole("files", 6000, [5000, 8000]),
            whole("file_kb", 8, [4, 16]),
            number("getattr_ms", 4.0, [3.0, 6.0]),
            number("open_ms", 3.0, [2.0, 5.0]),
            number("read_ms", 0.3, [0.2, 0.5]),
            word("start", &["forkserver", "spawn", "fork"]),
        ],
        fixtures: &[Fixture::Files, Fixture::Store],
        names: true,
        smoke: true,
        ..fault(
            "small-files-fuse",
            "files",
            &["small-files"],
            "small files on a FUSE file system that answers look-ups and opens late",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 3]),
            whole("batch", 8, [6, 10]),
            number("compute_ms", 25.0, [15.0, 22.0]),
            number("decode_ms", 0.5, [0.2, 1.0]),
            whole("blob_mb", 384, [320, 448]),
            whole("row_kb", 64, [64, 64]),
            number("read_mb_s", 5.0, [4.0, 6.0]),
        ],
        fixtures: &[Fixture::Blob, Fixture::ReadLimit],
        ..fault(
            "mapped-cold",
            "mapped",
            &["storage-io"],
            "random rows of a mapped file that is not cached",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [6, 16]),
            number("compute_ms", 8.0, [5.0, 12.0]),
            number("decode_ms", 7.0, [6.0, 9.0]),
        ],
        smoke: true,
        ..fault(
            "augmentation",
            "augment",
            &["input-cpu"],
            "items that take much CPU time to make, on all CPUs",
        )
    },
    Scenario {
        params: &[
            whole("workers", 1, [1, 1]),
            whole("batch", 8, [6, 12]),
            number("compute_ms", 10.0, [5.0, 14.0]),
            number("decode_ms", 5.0, [4.0, 7.0]),
        ],
        findings: &["too-few-workers"],
        ..fault(
            "too-few-workers",
            "augment",
            &["input-cpu"],
            "one worker that does not keep up, and an idle CPU",
        )
    },
    Scenario {
        params: &[
            whole("workers", 0, [0, 0]),
            whole("batch", 8, [4, 16]),
            number("compute_ms", 20.0, [12.0, 25.0]),
            number("decode_ms", 5.0, [4.0, 7.0]),
        ],
        smoke: true,
        ..fault(
            "no-workers",
            "augment",
            &["input-cpu"],
            "the trainer decodes itself",
        )
    },
    Scenario {
        params: &[
            whole("threads", 4, [3, 6]),
            number("compute_ms", 8.0, [6.0, 10.0]),
            number("decode_ms", 24.0, [20.0, 30.0]),
        ],
        ..fault(
            "gil-threads",
            "threads",
            &["serialization"],
            "loader threads that decode in pure Python",
        )
    },
    Scenario {
        params: &[
            whole("workers", 3, [2, 4]),
            whole("batch", 8, [4, 12]),
            number("compute_ms", 4.0, [3.0, 6.0]),
            number("decode_ms", 4.0, [3.0, 5.0]),
        ],
        smoke: true,
        ..fault(
            "shared-lock",
            "lock",
            &["serialization"],
            "workers that decode under one lock",
        )
    },
    Scenario {
        params: &[
            whole("workers", 1, [1, 2]),
            whole("batch", 4, [4, 6]),
            number("compute_ms", 25.0, [20.0, 40.0]),
            number("decode_ms", 1.0, [0.5, 1.5]),
            whole("neighbours", 4, [3, 6]),
        ],
        fixtures: &[Fixture::Neighbours],
        names: true,
        ..fault(
            "cpu-neighbours",
            "crowd",
            &["cpu-contention"],
            "processes outside the job that use the same CPUs",
        )
    },
    Scenario {
        params: &[
            whole("workers", 1, [1, 2]),
            whole("batch", 4, [4, 6]),
            number("compute_ms", 25.0, [20.0, 40.0]),
            number("decode_ms", 1.5, [1.0, 2.0]),
            number("cpus", 0.6, [0.45, 0.7]),
        ],
        fixtures: &[Fixture::Quota],
        smoke: true,
        ..fault(
            "cpu-quota",
            "crowd",
            &["cpu-throttled"],
            "a CPU quota on the job's control group",
        )
    },
    Scenario {
        params: &[
            whole("workers", 1, [1, 1]),
            whole("batch", 4, [4, 6]),
            number("compute_ms", 25.0, [20.0, 40.0]),
            number("decode_ms", 1.0, [0.5, 1.5]),
            number("cpus", 0.5, [0.4, 0.55]),
            whole("bystanders", 1, [1, 1]),
        ],
        fixtures: &[Fixture::Quota, Fixture::Bystanders],
        ..fault(
            "quota-and-bystander",
            "crowd",
            &["cpu-throttled"],
            "a CPU quota, and a process outside the job that uses one of two CPUs",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            number("state_mb", 10.0, [8.0, 12.0]),
            whole("every", 10, [8, 12]),
            number("write_mb_s", 40.0, [30.0, 50.0]),
        ],
        fixtures: &[Fixture::Folder, Fixture::WriteLimit],
        smoke: true,
        ..fault(
            "checkpoint",
            "save",
            &["checkpoint"],
            "state written and synced every few steps",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 3]),
            whole("batch", 8, [8, 12]),
            number("compute_ms", 20.0, [12.0, 18.0]),
            number("decode_ms", 0.5, [0.2, 0.8]),
            number("late_ms", 12.0, [10.0, 16.0]),
            whole("body_kb", 96, [64, 192]),
            number("mb_s", 40.0, [30.0, 80.0]),
        ],
        fixtures: &[Fixture::Objects],
        names: true,
        ..fault(
            "object-store",
            "objects",
            &["network-io"],
            "objects from an HTTP server outside the job",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            number("array_mb", 48.0, [36.0, 64.0]),
            whole("arrays", 3, [2, 4]),
        ],
        ..fault(
            "churn-trainer",
            "temporaries",
            &["allocation-churn"],
            "big temporary arrays in the training step",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 4, [4, 8]),
            number("compute_ms", 8.0, [6.0, 10.0]),
            number("decode_ms", 0.5, [0.3, 0.8]),
            number("array_mb", 16.0, [12.0, 24.0]),
            whole("arrays", 2, [2, 3]),
        ],
        ..fault(
            "churn-workers",
            "temporaries_workers",
            &["allocation-churn"],
            "buffers mapped and unmapped for each item",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 3]),
            whole("batch", 4, [4, 8]),
            whole("epoch", 5, [4, 7]),
            number("compute_ms", 15.0, [10.0, 18.0]),
            number("decode_ms", 0.5, [0.3, 0.8]),
            word("start", &["fork", "spawn"]),
        ],
        findings: &["worker-respawn"],
        ..fault(
            "worker-respawn",
            "epochs",
            &["input-cpu"],
            "workers that are started anew for each short epoch",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            number("more_ms", 30.0, [25.0, 40.0]),
            whole("late", 1, [0, 1]),
            whole("gradient_kb", 256, [128, 512]),
            word("launch", &["multiprocessing"]),
            whole("workers", 0, [0, 1]),
            whole("batch", 8, [4, 8]),
            number("decode_ms", 0.5, [0.3, 0.7]),
            word("start", &["fork", "spawn"]),
        ],
        names: true,
        smoke: true,
        ..fault(
            "late-rank",
            "ranks",
            &["communication"],
            "one of two ranks has more to do",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            number("more_ms", 30.0, [25.0, 40.0]),
            whole("late", 1, [0, 1]),
            whole("gradient_kb", 256, [128, 512]),
            word("launch", &["torchrun"]),
            whole("workers", 0, [0, 1]),
            whole("batch", 8, [4, 8]),
            number("decode_ms", 0.5, [0.3, 0.7]),
        ],
        names: true,
        ..fault(
            "late-torchrun",
            "ranks",
            &["communication"],
            "one of two ranks that torchrun started has more to do",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            number("more_ms", 30.0, [25.0, 40.0]),
            whole("late", 1, [0, 1]),
            whole("gradient_kb", 256, [128, 512]),
            word("launch", &["multiprocessing"]),
            whole("workers", 1, [1, 2]),
            whole("batch", 8, [4, 8]),
            number("decode_ms", 0.5, [0.3, 0.7]),
            word("start", &["fork", "spawn"]),
        ],
        names: true,
        ..fault(
            "late-rank-loaders",
            "ranks",
            &["communication"],
            "one of two ranks has more to do, and each has workers that keep up",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 16, [12, 24]),
            number("compute_ms", 20.0, [12.0, 20.0]),
            number("decode_ms", 0.2, [0.1, 0.3]),
            whole("files", 3000, [2000, 4000]),
            whole("file_kb", 8, [4, 16]),
            number("late_ms", 6.0, [5.0, 8.0]),
            START,
        ],
        fixtures: &[Fixture::Files, Fixture::Scanner],
        names: true,
        ..fault(
            "open-scanner",
            "files",
            &["small-files"],
            "a process outside the job that looks at each file before it may be opened",
        )
    },
    Scenario {
        params: &[
            whole("workers", 1, [1, 1]),
            whole("batch", 8, [6, 10]),
            number("compute_ms", 10.0, [8.0, 14.0]),
            number("decode_ms", 5.0, [4.0, 5.5]),
            whole("files", 1800, [2200, 2400]),
            whole("file_kb", 160, [150, 180]),
            number("read_mb_s", 12.0, [11.0, 13.0]),
            START,
        ],
        findings: &["input-cpu"],
        fixtures: &[Fixture::Files, Fixture::ReadLimit],
        ..fault(
            "two-causes",
            "files",
            &["storage-io"],
            "a limited disk, and decoding that would not keep up either",
        )
    },
    Scenario {
        params: &[
            whole("workers", 3, [2, 4]),
            number("compute_ms", 4.0, [3.0, 6.0]),
            number("produce_ms", 20.0, [16.0, 26.0]),
            number("decode_ms", 1.0, [0.5, 1.5]),
            START,
        ],
        ..fault(
            "one-producer",
            "producer",
            &["serialization"],
            "one process that feeds all workers",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [6, 12]),
            number("compute_ms", 8.0, [5.0, 12.0]),
            number("decode_ms", 7.0, [6.0, 9.0]),
        ],
        ..fault(
            "helper-thread",
            "pinned",
            &["input-cpu"],
            "decoding behind a helper thread that hands batches on",
        )
    },
    Scenario {
        params: &[
            number("host_ms", 2.0, [1.0, 3.0]),
            number("device_ms", 30.0, [20.0, 40.0]),
            whole("kernels", 20, [10, 40]),
            number("copy_mb", 0.2, [0.1, 0.4]),
            number("copy_gb_s", 8.0, [6.0, 12.0]),
            whole("spin", 0, [0, 0]),
        ],
        fixtures: &[Fixture::Gpu],
        ..healthy(
            "gpu-bound-sleep",
            "gpu",
            "the GPU is busy; waiting for it sleeps",
        )
    },
    Scenario {
        params: &[
            number("host_ms", 2.0, [1.0, 3.0]),
            number("device_ms", 30.0, [20.0, 40.0]),
            whole("kernels", 20, [10, 40]),
            number("copy_mb", 0.2, [0.1, 0.4]),
            number("copy_gb_s", 8.0, [6.0, 12.0]),
            whole("spin", 1, [1, 1]),
        ],
        fixtures: &[Fixture::Gpu],
        ..healthy(
            "gpu-bound-spin",
            "gpu",
            "the GPU is busy; waiting for it spins on the CPU",
        )
    },
    Scenario {
        params: &[
            number("host_ms", 20.0, [15.0, 30.0]),
            number("device_ms", 5.0, [3.0, 8.0]),
            whole("kernels", 50, [30, 80]),
            number("copy_mb", 0.2, [0.1, 0.4]),
            number("copy_gb_s", 8.0, [6.0, 12.0]),
            whole("spin", 0, [0, 1]),
        ],
        fixtures: &[Fixture::Gpu],
        ..fault(
            "gpu-host-bound",
            "gpu_host",
            &["host-compute"],
            "launches with so much work of the CPU between them that the GPU idles",
        )
    },
    Scenario {
        params: &[
            number("host_ms", 2.0, [1.0, 3.0]),
            number("device_ms", 8.0, [6.0, 10.0]),
            whole("kernels", 10, [5, 20]),
            number("copy_mb", 40.0, [32.0, 48.0]),
            number("copy_gb_s", 1.6, [1.2, 2.0]),
            whole("spin", 0, [0, 1]),
        ],
        fixtures: &[Fixture::Gpu],
        ..fault(
            "gpu-copies",
            "gpu_copy",
            &["h2d-copy"],
            "blocking copies to the GPU",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            whole("keep_kb", 400, [300, 800]),
            whole("limit", 0, [0, 0]),
        ],
        findings: &["memory-growth"],
        smoke: true,
        ..healthy(
            "memory-growth",
            "memory",
            "the trainer keeps some memory of each step",
        )
    },
    Scenario {
        params: &[
            number("compute_ms", 20.0, [15.0, 30.0]),
            whole("keep_kb", 1024, [512, 1500]),
            whole("limit", 100, [60, 120]),
        ],
        ..healthy(
            "healthy-cache",
            "memory",
            "a cache that fills in the first seconds and then stays",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [4, 16]),
            whole("epoch", 200, [100, 300]),
            number("compute_ms", 40.0, [30.0, 60.0]),
            number("decode_ms", 1.0, [0.4, 1.4]),
            whole("accumulate", 1, [1, 1]),
            whole("evaluate", 0, [0, 0]),
            word("start", &["fork"]),
        ],
        smoke: true,
        ..healthy(
            "healthy-loader",
            "model",
            "a loader that is ahead of the model",
        )
    },
    Scenario {
        params: &[
            whole("batch", 64, [32, 256]),
            number("compute_ms", 30.0, [10.0, 80.0]),
        ],
        ..healthy("healthy-plain", "plain", "data in memory, no loader")
    },
    Scenario {
        params: &[
            whole("workers", 2, [2, 3]),
            whole("batch", 8, [6, 10]),
            number("compute_ms", 60.0, [50.0, 70.0]),
            number("decode_ms", 0.2, [0.1, 0.3]),
            whole("files", 4000, [3000, 5000]),
            whole("file_kb", 64, [32, 96]),
            number("getattr_ms", 2.0, [1.5, 2.5]),
            number("open_ms", 2.0, [1.5, 2.5]),
            number("read_ms", 3.0, [2.0, 4.0]),
            START,
        ],
        fixtures: &[Fixture::Files, Fixture::Store],
        ..healthy(
            "healthy-readers",
            "files",
            "workers that read all the time, and a trainer that never waits for them",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [4, 16]),
            whole("epoch", 60, [40, 80]),
            number("compute_ms", 30.0, [25.0, 40.0]),
            number("decode_ms", 0.6, [0.3, 0.8]),
            whole("accumulate", 4, [2, 8]),
            whole("evaluate", 12, [8, 16]),
            word("start", &["fork", "forkserver"]),
        ],
        ..healthy(
            "healthy-phases",
            "model",
            "gradients accumulated over several turns, and an evaluation after each epoch",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [4, 12]),
            whole("epoch", 150, [100, 200]),
            number("compute_ms", 35.0, [30.0, 60.0]),
            number("decode_ms", 1.0, [0.4, 1.4]),
            whole("accumulate", 1, [1, 1]),
            whole("evaluate", 0, [0, 0]),
            word("start", &["spawn"]),
        ],
        ..healthy(
            "healthy-spawn",
            "model",
            "as healthy-loader, workers spawned",
        )
    },
    Scenario {
        params: &[
            whole("workers", 2, [1, 2]),
            whole("batch", 8, [4, 12]),
            whole("epoch", 150, [100, 200]),
            number("compute_ms", 35.0, [30.0, 60.0]),
            number("decode_ms", 1.0, [0.4, 1.4]),
            whole("accumulate", 1, [1, 1]),
            whole("evaluate", 0, [0, 0]),
            word("start", &["forkserver"]),
        ],
        ..healthy(
            "healthy-forkserver",
            "model",
            "as healthy-loader, workers from a fork server",
        )
    },
    Scenario {
        params: &[
            whole("threads", 2, [1, 3]),
            number("compute_ms", 25.0, [20.0, 40.0]),
            number("decode_ms", 2.0, [1.0, 3.0]),
        ],
        ..healthy(
            "healthy-threads",
            "threads",
            "loader threads that are ahead of a trainer computing in numpy",
        )
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cmd::root;

    #[test]
    fn names_are_unique_and_scripts_exist() {
        let names: BTreeSet<_> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
        for scenario in ALL {
            let script = root().join(format!("tests/scenarios/{}.py", scenario.script));
            assert!(script.is_file(), "{}", script.display());
            assert!(!scenario.expect.is_empty());
        }
    }
}
