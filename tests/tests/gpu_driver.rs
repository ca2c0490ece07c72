//! What the GPU's driver says, against what the fake one was told to say: `tests/workloads/gpu/fake_gpu.h`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::gpu::{Facts, fake};
use trainprof_tests::product::{Finished, Watch, trainprof};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Data, Workload};
use trainprof_user::record::gpu::{GpuMetric, GpuSampleFact};

/// The fake driver with a state file of its own.
struct Driver {
    data: Data,
    state: PathBuf,
}

impl Driver {
    fn new(state: &str) -> Self {
        let data = Data::new();
        let driver = Self {
            state: data.path("state"),
            data,
        };
        driver.set(state);
        driver
    }

    /// Changes what it says, all at once.
    fn set(&self, state: &str) {
        let new = self.data.path("state.new");
        std::fs::write(&new, state).expect("a state file");
        std::fs::rename(new, &self.state).expect("in its place");
    }

    fn watch(&self, pid: i32, extra: &[OsString]) -> Watch {
        let mut args = os(&[
            &"attach",
            &pid.to_string(),
            &"--gpu",
            &fake("libnvidia-ml.so.1"),
        ]);
        args.extend_from_slice(extra);
        let state = self.state.to_string_lossy().into_owned();
        let mut watch = Watch::spawn(args, &[("FAKE_NVML", &state)]);
        watch.wait_watching();
        watch
    }

    /// Watches something that does nothing, for so long.
    fn facts(&self, seconds: f64) -> (Facts, Finished) {
        let workload = Workload::start("memcalls", os(&[&"5"]));
        let ended = self
            .watch(workload.pid(), &os(&[&"-d", &seconds.to_string()]))
            .wait();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        (Facts::read(&ended.recording), ended)
    }
}

fn of(facts: &Facts, device: u32, metric: GpuMetric) -> Vec<&GpuSampleFact> {
    facts
        .samples
        .iter()
        .filter(|s| s.device == device && s.metric == metric)
        .collect()
}

/// Value of every sample of a metric, which must not change.
fn constant(checks: &mut Checks, facts: &Facts, device: u32, metric: GpuMetric, value: f64) {
    let samples = of(facts, device, metric);
    checks.that(!samples.is_empty(), || format!("no {metric:?} of {device}"));
    for sample in samples {
        checks.that((sample.value - value).abs() < 1e-6, || {
            format!("{metric:?} of {device}: {} for {value}", sample.value)
        });
    }
}

/// The collector went on: an interval about each second.
fn ticked(facts: &Facts, seconds: usize) {
    assert!(
        facts.intervals.len() + 1 >= seconds,
        "{} intervals in {seconds} s",
        facts.intervals.len()
    );
    for (from, to) in &facts.intervals {
        assert!(to - from < 1_700_000_000, "an interval of {} ns", to - from);
    }
}

#[test]
fn what_the_driver_says_is_recorded() {
    let Some(_turn) = root_test("what_the_driver_says_is_recorded") else {
        return;
    };
    let config = "devices 2\ndriver 555.1\n\
         device 0 name Fake A\ndevice 0 uuid GPU-aaaa\ndevice 0 util 75\ndevice 0 memory 1000 5000\n\
         device 0 power 321\ndevice 0 clocks 1410 1215\ndevice 0 throttle 0x44\ndevice 0 temperature 66\n\
         device 0 pcie 100 200\ndevice 0 ecc 3\ndevice 0 xid 79\ndevice 1 util 0\n";
    let driver = Driver::new(config);
    // They are fetched once a second, and when the watch ends.
    let (facts, ended) = driver.facts(3.6);
    let mut checks = Checks::new();
    checks.exact("devices", 2, facts.devices.len() as u64);
    let first = facts.device(0);
    checks.that(
        first.name.as_deref() == Some("Fake A")
            && first.uuid.as_deref() == Some("GPU-aaaa")
            && first.driver.as_deref() == Some("555.1")
            && first.memory_total_bytes == Some(5000)
            && first.mig.is_none(),
        || format!("{first:?}"),
    );
    for (metric, value) in [
        (GpuMetric::Utilisation, 0.75),
        (GpuMetric::MemoryUtilisation, 0.38),
        (GpuMetric::MemoryUsedBytes, 1000.0),
        (GpuMetric::PowerWatts, 321.0),
        (GpuMetric::SmClockMhz, 1410.0),
        (GpuMetric::MemoryClockMhz, 1215.0),
        (GpuMetric::ThrottleReasons, f64::from(0x44)),
        (GpuMetric::TemperatureC, 66.0),
        (GpuMetric::PcieTxBytesPerS, 102_400.0),
        (GpuMetric::PcieRxBytesPerS, 204_800.0),
        (GpuMetric::EccErrors, 3.0),
        (GpuMetric::Xid, 79.0),
    ] {
        constant(&mut checks, &facts, 0, metric, value);
    }
    constant(&mut checks, &facts, 1, GpuMetric::Utilisation, 0.0);
    checks.exact("XIDs", 1, of(&facts, 0, GpuMetric::Xid).len() as u64);
    // Buffered samples follow each other without a gap, and lie inside the watch.
    let samples = of(&facts, 0, GpuMetric::Utilisation);
    for pair in samples.windows(2) {
        let gap = pair[1].at.since(pair[0].at);
        checks.that(
            pair[1].span_ns == 100_000_000 && gap.abs_diff(pair[1].span_ns) < 2_000_000,
            || format!("a gap of {gap} ns before a span of {}", pair[1].span_ns),
        );
    }
    checks.that(samples.len() >= 31, || format!("{} samples", samples.len()));
    let last = samples.last().map_or(0, |sample| sample.at.0);
    let ended_at = facts.intervals.last().map_or(0, |(_, to)| *to);
    checks.that(ended_at.saturating_sub(last) < 300_000_000, || {
        format!("the last sample lies {} ns before the end", ended_at - last)
    });
    checks.that(facts.missing("gpu").is_empty(), || {
        format!("{:?}", facts.lacks)
    });
    checks.nothing_lost(&ended.report());
    checks.done();
}

/// Where the device counts, its samples, which take other things for work as well, are not asked for.
#[test]
fn what_a_device_counts_comes_before_its_samples() {
    let name = "what_a_device_counts_comes_before_its_samples";
    let Some(_turn) = root_test(name) else { return };
    let driver = Driver::new("gpm 1\ndevice 0 util 50\ndevice 0 pcie 2048 4096\n");
    let (facts, ended) = driver.facts(3.0);
    let mut checks = Checks::new();
    // Where an answer came late, samples of that time count: seldom, and nothing else is told.
    for (metric, counted, sampled) in [
        (GpuMetric::Utilisation, 0.45, 0.5),
        (GpuMetric::MemoryUtilisation, 0.05, 0.25),
    ] {
        let facts = of(&facts, 0, metric);
        let values: Vec<f64> = facts.iter().map(|fact| fact.value).collect();
        let are = |value: f64| values.iter().filter(|v| (**v - value).abs() < 1e-6).count();
        let (counted, sampled) = (are(counted), are(sampled));
        checks.that(
            counted + sampled == values.len() && counted > 9 * sampled,
            || format!("{metric:?}: {values:?}"),
        );
    }
    for (metric, value) in [
        (GpuMetric::SmActivity, 0.4),
        (GpuMetric::SmOccupancy, 0.2),
        (GpuMetric::TensorActivity, 0.1),
        (GpuMetric::PcieTxBytesPerS, 2_097_152.0),
        (GpuMetric::PcieRxBytesPerS, 4_194_304.0),
    ] {
        constant(&mut checks, &facts, 0, metric, value);
    }
    checks.nothing_lost(&ended.report());
    checks.done();
}

#[test]
fn utilisation_is_the_jobs_own_duty_cycle() {
    let Some(_turn) = root_test("utilisation_is_the_jobs_own_duty_cycle") else {
        return;
    };
    let driver = Driver::new("");
    let busy = driver.data.path("busy");
    driver.set(&format!("device 0 busy {}\n", busy.display()));
    // 3 ms of kernels for each step of 3 ms + 2 ms of computing: 60 %.
    let mut command = std::process::Command::new(fake("gpu_loop"));
    command.arg("-").arg(fake("libcudart.so.12"));
    command.args("-s 800 -n 3 -k 1000 -h 2000 -c 0".split(' '));
    command.env("FAKE_GPU", &busy);
    let mut workload = Workload::spawn(command);
    let pid = workload.pid();
    let watch = driver.watch(pid, &[]);
    workload.go();
    workload.wait_done();
    // The driver tells of a tenth of a second when it has passed, and is asked now and then only.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let ended = watch.stop();
    let facts = Facts::read(&ended.recording);
    let truth = workload.finish();
    let (ns, busy_ns) = of(&facts, 0, GpuMetric::Utilisation)
        .iter()
        .fold((0.0, 0.0), |(ns, busy), s| {
            (ns + s.span_ns as f64, busy + s.span_ns as f64 * s.value)
        });
    assert!(ns > 2e9, "{ns} ns are covered");
    let launched = 800.0 * 3.0 * 1e-3;
    eprintln!("{truth}, {} s busy", busy_ns / 1e9);
    assert!(
        (busy_ns / 1e9 - launched).abs() < 0.02 * launched,
        "busy for {} s of {launched}",
        busy_ns / 1e9
    );
    assert_eq!(facts.device(0).used_by_job, Some(true));
    assert!(
        facts
            .processes
            .iter()
            .any(|p| p.pid == pid as u32 && p.name.is_none())
    );
}

#[test]
fn a_driver_without_buffers_is_polled() {
    let Some(_turn) = root_test("a_driver_without_buffers_is_polled") else {
        return;
    };
    let driver = Driver::new("period_ms 0\nevents 0\ndevice 0 util 40\ndevice 0 power 120\n");
    let (facts, _) = driver.facts(3.0);
    let mut checks = Checks::new();
    constant(&mut checks, &facts, 0, GpuMetric::Utilisation, 0.4);
    constant(&mut checks, &facts, 0, GpuMetric::PowerWatts, 120.0);
    let polls = of(&facts, 0, GpuMetric::Utilisation);
    // By their own times: on a slow machine the watch is longer than was asked for.
    let apart = match (polls.first(), polls.last()) {
        (Some(first), Some(last)) => {
            last.at.seconds_since(first.at) / (polls.len() - 1).max(1) as f64
        }
        _ => 0.0,
    };
    checks.that(polls.len() >= 5 && apart >= 0.14, || {
        format!("{} polls, {apart} s apart", polls.len())
    });
    checks.that(of(&facts, 0, GpuMetric::SmActivity).is_empty(), || {
        "GPM where there is none".to_owned()
    });
    checks.that(facts.missing("gpu").is_empty(), || {
        format!("{:?}", facts.lacks)
    });
    checks.done();
}

#[test]
fn slices_are_devices_of_their_own() {
    let Some(_turn) = root_test("slices_are_devices_of_their_own") else {
        return;
    };
    let driver = Driver::new(
        "gpm 1\ndevice 0 util 50\ndevice 0 memory 700 70000\n\
         device 0 slice 0 MIG-one 3\ndevice 0 slice 2 MIG-two 5\n",
    );
    let (facts, _) = driver.facts(2.0);
    let found: Vec<_> = facts
        .devices
        .iter()
        .map(|d| (d.device, d.index, d.mig, d.uuid.clone()))
        .collect();
    let named = |uuid: &str| Some(uuid.to_owned());
    assert_eq!(
        found,
        [
            (
                0,
                0,
                None,
                named("GPU-00000000-0000-0000-0000-000000000000")
            ),
            (1, 0, Some(0), named("MIG-one")),
            (2, 0, Some(2), named("MIG-two")),
        ]
    );
    let mut checks = Checks::new();
    for slice in [1, 2] {
        constant(&mut checks, &facts, slice, GpuMetric::Utilisation, 0.45);
        constant(&mut checks, &facts, slice, GpuMetric::SmActivity, 0.4);
        constant(
            &mut checks,
            &facts,
            slice,
            GpuMetric::MemoryUsedBytes,
            100.0,
        );
    }
    checks.done();
}

#[test]
fn who_uses_a_device_is_told() {
    let Some(_turn) = root_test("who_uses_a_device_is_told") else {
        return;
    };
    let driver = Driver::new("");
    let mut stranger = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("sleep(1)");
    let mut command = std::process::Command::new(trainprof_tests::workload::program("memcalls"));
    command.args(["-", "5"]).env("CUDA_VISIBLE_DEVICES", "0,2");
    let workload = Workload::spawn(command);
    let pid = workload.pid();
    let both = format!("devices 3\ndevice 0 process {} 4000 30\n", stranger.id());
    driver.set(&both);
    let watch = driver.watch(pid, &[]);
    std::thread::sleep(Duration::from_millis(2500));
    // Now the job has a context too, on one of those that it may use.
    driver.set(&format!("{both}device 2 process {pid} 500 20\n"));
    std::thread::sleep(Duration::from_millis(2500));
    let facts = Facts::read(&watch.stop().recording);
    let _ = stranger.kill();
    let _ = stranger.wait();
    let first: Vec<_> = facts.devices[..3].iter().map(|d| d.used_by_job).collect();
    assert_eq!(first, [Some(true), Some(false), Some(true)]);
    assert_eq!(facts.device(2).used_by_job, Some(true));
    let strangers: Vec<_> = facts
        .processes
        .iter()
        .filter(|p| p.pid == stranger.id())
        .collect();
    assert!(strangers.len() >= 3, "{strangers:?}");
    for process in &strangers {
        assert_eq!(process.device, 0);
        assert_eq!(process.name.as_deref(), Some("sleep"));
        assert_eq!(process.memory_bytes, Some(4000));
    }
    // That is asked more seldom, and told once.
    let used: Vec<f64> = strangers.iter().filter_map(|p| p.utilisation).collect();
    assert!(!used.is_empty() && used.len() < strangers.len(), "{used:?}");
    assert!(used.iter().all(|used| *used == 0.3), "{used:?}");
    let ours: Vec<_> = facts
        .processes
        .iter()
        .filter(|p| p.pid == pid as u32)
        .collect();
    assert!(!ours.is_empty() && ours.iter().all(|p| p.device == 2 && p.name.is_none()));
}

#[test]
fn memory_that_grows_is_the_processs_that_takes_it() {
    let name = "memory_that_grows_is_the_processs_that_takes_it";
    let Some(_turn) = root_test(name) else { return };
    const RATE: f64 = 32e6;
    const TOTAL: f64 = 8e9;
    let driver = Driver::new("");
    let mut stranger = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("sleep(1)");
    let mut workload = Workload::start("keeper", ["shared", "1e6", "16"]);
    let pid = workload.pid();
    let taken = |bytes: f64| {
        let (ours, used) = (1e9 + bytes, 1.5e9 + bytes);
        driver.set(&format!(
            "device 0 memory {used:.0} {TOTAL:.0}\n\
             device 0 process {pid} {ours:.0} 50\ndevice 0 process {} 500000000 0\n",
            stranger.id()
        ));
    };
    taken(0.0);
    let asked = os(&[&"--fail-on", &"gpu-memory-growth"]);
    let watch = driver.watch(pid, &asked);
    workload.go();
    let begun = Instant::now();
    let mut bytes = 0.0;
    while begun.elapsed() < Duration::from_secs(16) {
        bytes = RATE * begun.elapsed().as_secs_f64();
        taken(bytes);
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = watch.stop();
    let _ = stranger.kill();
    let _ = stranger.wait();
    workload.wait_done();
    workload.finish();
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    let report = ended.report();
    let mut checks = Checks::new();
    let mut near = |what: &str, told: f64, truth: f64| {
        eprintln!("{what}: {told:.0}, truth {truth:.0}");
        checks.that((told / truth - 1.0).abs() < 0.1, || {
            format!("{what}: {told}, truth {truth}")
        });
    };
    let processes = report.rows("/gpu/devices/0/processes");
    let of = |pid: u32| {
        let row = processes.iter().find(|row| row["pid"] == pid);
        row.expect("its row")["memory_bytes"].clone()
    };
    let ours = of(pid as u32);
    near("its growth", f64_at(&ours, "/slope_bytes_per_s"), RATE);
    near("its last", f64_at(&ours, "/last"), 1e9 + bytes);
    near("its first", f64_at(&ours, "/first"), 1e9);
    let growth = report
        .rows("/findings")
        .iter()
        .find(|f| f["kind"] == "gpu-memory-growth");
    let evidence = &growth.expect("gpu-memory-growth")["evidence"];
    near("growth", f64_at(evidence, "/bytes_per_s"), RATE);
    let left = (TOTAL - 1.5e9 - bytes) / RATE;
    near("time left", f64_at(evidence, "/time_to_limit_s"), left);
    near(
        "of the process",
        f64_at(evidence, "/processes/0/bytes_per_s"),
        RATE,
    );
    checks.exact("who", pid as u64, u64_at(evidence, "/pid"));
    let growing = evidence["processes"].as_array().map_or(0, Vec::len);
    checks.exact("processes that grow", 1, growing as u64);
    let theirs = of(stranger.id());
    checks.that(theirs["first"] == theirs["last"], || format!("{theirs}"));
    checks.done();
}

#[test]
fn functions_of_python_that_keep_gpu_memory_are_named() {
    let name = "functions_of_python_that_keep_gpu_memory_are_named";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(
        name,
        "a look at Python's stacks that costs no more than it does",
    ) {
        return;
    }
    let Some(python) = python_with("ctypes") else {
        return skip(name, "no Python");
    };
    const RATE: f64 = 32e6;
    let driver = Driver::new("");
    let args = os(&[&fake("libcudart.so.12"), &RATE.to_string(), &"16"]);
    let mut workload = Workload::python(&python, "gpukeeper.py", args);
    let pid = workload.pid();
    let taken = |bytes: f64| {
        let used = 1e9 + bytes;
        driver.set(&format!(
            "device 0 memory {used:.0} 8000000000\ndevice 0 process {pid} {used:.0} 50\n"
        ));
    };
    taken(0.0);
    let watch = driver.watch(pid, &[]);
    workload.go();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(16) {
        taken(RATE * begun.elapsed().as_secs_f64());
        std::thread::sleep(Duration::from_millis(100));
    }
    let report = watch.stop().report();
    workload.wait_done();
    let truth = workload.finish();
    let growth = report
        .rows("/findings")
        .iter()
        .find(|f| f["kind"] == "gpu-memory-growth")
        .cloned()
        .expect("gpu-memory-growth");
    let sites = growth["evidence"]["sites"].as_array().expect("sites");
    let mut checks = Checks::new();
    checks.exact("functions that keep some", 2, sites.len() as u64);
    for (site, function) in sites.iter().zip(["often", "seldom"]) {
        let named = &site["python"]["function"];
        checks.that(named == function, || format!("{named} for {function}"));
        let truth = f64_at(&truth, &format!("/{function}")) / f64_at(&truth, "/seconds");
        let kept = f64_at(site, "/kept_bytes_per_s");
        eprintln!("{function}: {kept:.0} bytes a second, truly {truth:.0}");
        checks.that((kept / truth - 1.0).abs() < 0.05, || {
            format!("{function}: {kept}, truly {truth}")
        });
    }
    let advice = growth["advice"].as_str().unwrap_or_default();
    let begins = "most of what is kept is allocated in often (gpukeeper.py:";
    checks.that(advice.starts_with(begins), || advice.to_owned());
    checks.done();
}

#[test]
fn a_driver_in_trouble_never_stalls_the_watch() {
    let Some(_turn) = root_test("a_driver_in_trouble_never_stalls_the_watch") else {
        return;
    };
    for (trouble, words) in [
        ("hang nvmlInit_v2\n", "has not answered for 5 s"),
        ("hang nvmlDeviceGetSamples\n", "has not answered for 5 s"),
        ("crash nvmlDeviceGetMemoryInfo_v2\n", "ended (signal 6)"),
        ("init_error 9\n", "not loaded"),
        ("devices 0\n", "no devices"),
    ] {
        let driver = Driver::new(trouble);
        let workload = Workload::start("memcalls", os(&[&"5"]));
        let watch = driver.watch(workload.pid(), &[]);
        std::thread::sleep(Duration::from_millis(6800));
        let begun = Instant::now();
        let ended = watch.stop();
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{trouble}: the end took {:?}",
            begun.elapsed()
        );
        assert_eq!(ended.code(), 0, "{trouble}: {}", ended.stderr);
        let facts = Facts::read(&ended.recording);
        ticked(&facts, 6);
        let missing = facts.missing("gpu");
        assert!(
            missing.len() == 1 && missing[0].contains(words),
            "{trouble}: {missing:?}"
        );
    }
}

#[test]
fn a_driver_that_stops_answering_later_is_said_to() {
    let Some(_turn) = root_test("a_driver_that_stops_answering_later_is_said_to") else {
        return;
    };
    let driver = Driver::new("devices 2\ndevice 0 util 10\n");
    let workload = Workload::start("memcalls", os(&[&"5"]));
    let watch = driver.watch(workload.pid(), &[]);
    std::thread::sleep(Duration::from_millis(1500));
    driver.set("devices 2\ndevice 0 util 10\ndevice 0 lost 1\n");
    std::thread::sleep(Duration::from_millis(1500));
    driver.set("devices 2\ndevice 1 util 10\nslow * 700\n");
    std::thread::sleep(Duration::from_millis(6000));
    driver.set("hang *\n");
    std::thread::sleep(Duration::from_millis(7000));
    let begun = Instant::now();
    let ended = watch.stop();
    assert!(begun.elapsed() < Duration::from_secs(2));
    let facts = Facts::read(&ended.recording);
    ticked(&facts, 15);
    let mut missing = facts.missing("gpu");
    // Slow answers are answers; an emulated machine may be so slow that they are missed, and that is said again.
    missing.dedup();
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(missing[0].contains("GPU 0 is lost"), "{missing:?}");
    assert!(missing[1].contains("has not answered for"), "{missing:?}");
    assert!(!of(&facts, 1, GpuMetric::Utilisation).is_empty());
}

#[test]
fn no_driver_is_no_fuss() {
    let Some(_turn) = root_test("no_driver_is_no_fuss") else {
        return;
    };
    if !trainprof(["doctor"]).stdout.contains("none") {
        // A host with a driver is not what this is about.
        return;
    }
    let workload = Workload::start("memcalls", os(&[&"5"]));
    let watch = Watch::attach(workload.pid(), &os(&[&"-d", &"1s"]));
    let facts = Facts::read(&watch.wait().recording);
    let missing = facts.missing("gpu");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(missing[0].contains("libnvidia-ml"), "{missing:?}");
}

#[test]
fn a_library_that_is_none_is_an_error_of_whoever_named_it() {
    let name = "a_library_that_is_none_is_an_error_of_whoever_named_it";
    let Some(_turn) = root_test(name) else { return };
    let workload = Workload::start("memcalls", os(&[&"5"]));
    let pid = workload.pid().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("libnvidia-ml.so.1");
    // Long enough for an ELF header.
    std::fs::write(&text, "no library\n".repeat(100)).expect("a file");
    for (path, words) in [
        (Path::new("/nowhere/libnvidia-ml.so.1"), "no such file"),
        (text.as_path(), "invalid elf"),
        (&*fake("libcudart.so.12"), "not nvml"),
    ] {
        let begun = Instant::now();
        trainprof(os(&[&"attach", &pid, &"-d", &"1s", &"--gpu", &path]))
            .expect_failure(2, &[words]);
        assert!(begun.elapsed() < Duration::from_secs(3));
        trainprof(os(&[&"run", &"--gpu", &path, &"--", &"true"])).expect_failure(2, &[words]);
    }
}
