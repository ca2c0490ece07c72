//! Calls into the GPU's runtime: counted and timed against the program's own account. The libraries are fakes.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use serde_json::Value;
use trainprof_tests::bpf;
use trainprof_tests::env::{in_vm, root_test};
use trainprof_tests::gpu::{Facts, fake, text_of};
use trainprof_tests::product::Watch;
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::os;
use trainprof_tests::{Checks, Workload};
use trainprof_user::record::gpu::GpuCallKind;

/// Starts the loop on the fake runtime with these options and environment, up to its start gate.
fn start(library: &str, options: &str, env: &[(&str, &str)]) -> Workload {
    let mut command = std::process::Command::new(fake("gpu_loop"));
    command.arg("-").arg(fake(library));
    command.args(options.split_whitespace());
    command.envs(env.iter().copied());
    Workload::spawn(command)
}

/// Totals of at least so many seconds are compared both ways.
const LONG_S: f64 = 0.1;
/// Most that the two probes of a call take of its caller, seconds: both may be single-stepped.
const TRAPS_S: f64 = 30e-6;

fn watch(pid: i32, options: &[OsString]) -> Watch {
    let mut all = os(&[&"--gpu", &"auto"]);
    all.extend_from_slice(options);
    Watch::attach(pid, &all)
}

/// Every function of the truth, but launches, which nobody watches.
fn compare(checks: &mut Checks, truth: &Value, facts: &Facts, library: &str) {
    for (name, count) in truth["calls"].as_object().expect("a truth of calls") {
        if name.contains("Launch") {
            checks.that(facts.calls_of(name).is_empty(), || {
                format!("{name} is watched")
            });
            continue;
        }
        let calls = facts.calls_of(name);
        checks.exact(name, u64_at(count, "/count"), calls.len() as u64);
        let ns: u64 = calls.iter().map(|call| call.ns).sum();
        // The program's own account includes the traps, which lie outside of what is measured.
        let truth_s = f64_at(count, "/seconds");
        let traps_s = calls.len() as f64 * TRAPS_S;
        let seconds = ns as f64 / 1e9;
        let most = (seconds + traps_s).min(truth_s).max(seconds);
        if truth_s >= LONG_S && !in_vm() {
            checks.near(name, truth_s, most);
        } else {
            // On a busy host a thread is often put off its CPU just after a trap, and an emulated processor takes as long
            // for a trap as for a copy: such calls have an upper bound only.
            checks.that(seconds <= truth_s + 0.002, || {
                format!("{name}: {seconds} s of {truth_s}")
            });
        }
        let bytes: u64 = calls.iter().map(|call| call.bytes).sum();
        checks.exact(&format!("{name}: bytes"), u64_at(count, "/bytes"), bytes);
        let library = match name.starts_with("cuda") {
            false => "libcuda.so.1",
            true => library,
        };
        if !calls.is_empty() {
            checks.that(facts.library_of(name) == Some(library), || {
                format!("{name} is in {:?}", facts.library_of(name))
            });
        }
    }
}

#[test]
fn calls_are_counted_and_timed() {
    let Some(_turn) = root_test("calls_are_counted_and_timed") else {
        return;
    };
    for (library, options, env) in [
        ("libcudart.so.12", "-s 100 -k 2000 -c 1000000", &[][..]),
        (
            "libcudart.so.12",
            "-s 100 -k 1500 -y event",
            &[("FAKE_CUDA_WAIT", "spin")],
        ),
        ("libcudart.so.12", "-s 100 -k 1500 -y device", &[]),
        // Calls inside others count once.
        (
            "libcudart.so.12",
            "-s 100 -k 1500",
            &[("FAKE_CUDA_NEST", "1")],
        ),
        ("libcuda.so.1", "-s 100 -k 1500 -d", &[]),
    ] {
        let mut workload = start(library, options, env);
        let pid = workload.pid();
        let watch = watch(pid, &[]);
        bpf::wait_for_traps(pid, library);
        workload.go();
        workload.wait_done();
        let ended = watch.stop();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        let truth = workload.finish();
        let facts = Facts::read(&ended.recording);
        let mut checks = Checks::new();
        compare(&mut checks, &truth, &facts, library);
        let missing = facts.missing("gpu-calls");
        checks.that(missing.is_empty(), || format!("{missing:?}"));
        checks.that(
            facts.calls.iter().all(|call| call.tid == pid as u32),
            || "a call of another thread".to_owned(),
        );
        checks.nothing_lost(&ended.report());
        checks.done();
        eprintln!("{library} {options}: {} calls", facts.calls.len());
    }
}

/// Calls that pass the runtime by count, and those that the runtime makes of its own do not count again.
#[test]
fn allocations_beside_the_runtime_are_counted_once() {
    let name = "allocations_beside_the_runtime_are_counted_once";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    let driver = fake("libcuda.so.1");
    for env in [&[][..], &[("FAKE_CUDA_NEST", "1")]] {
        let options = format!("-s 60 -m {}", driver.display());
        let mut workload = start(library, &options, env);
        let pid = workload.pid();
        let watch = watch(pid, &[]);
        bpf::wait_for_traps(pid, library);
        bpf::wait_for_traps(pid, "libcuda.so.1");
        workload.go();
        workload.wait_done();
        let ended = watch.stop();
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        let truth = workload.finish();
        let facts = Facts::read(&ended.recording);
        let mut checks = Checks::new();
        compare(&mut checks, &truth, &facts, library);
        for (name, kind) in [
            ("cudaMallocManaged", GpuCallKind::Allocate),
            ("cuMemCreate", GpuCallKind::Allocate),
            ("cuMemRelease", GpuCallKind::Free),
        ] {
            let calls = facts.calls_of(name);
            checks.that(
                calls.len() == 60 && calls.iter().all(|call| call.kind == kind),
                || format!("{name}: {calls:?}"),
            );
        }
        checks.nothing_lost(&ended.report());
        checks.done();
    }
}

#[test]
fn kinds_are_told() {
    let Some(_turn) = root_test("kinds_are_told") else {
        return;
    };
    let library = "libcudart.so.12";
    let mut workload = start(library, "-s 3", &[]);
    let watch = watch(workload.pid(), &[]);
    bpf::wait_for_traps(workload.pid(), library);
    workload.go();
    workload.wait_done();
    let facts = Facts::read(&watch.stop().recording);
    for (name, kind) in [
        ("cudaStreamSynchronize", GpuCallKind::Synchronise),
        ("cudaMemcpy", GpuCallKind::Copy),
        ("cudaMemcpyAsync", GpuCallKind::CopyAsync),
        ("cudaMalloc", GpuCallKind::Allocate),
        ("cudaHostAlloc", GpuCallKind::Allocate),
        ("cudaFree", GpuCallKind::Free),
    ] {
        let calls = facts.calls_of(name);
        assert!(!calls.is_empty(), "{name}");
        assert!(
            calls.iter().all(|call| call.kind == kind),
            "{name}: {calls:?}"
        );
    }
}

/// What a process has mapped is looked at so soon, milliseconds. Looks are as far apart as they take long: on a CPU in software that is
/// longer.
fn looked_at_within_ms() -> u32 {
    if in_vm() { 10_000 } else { 2_500 }
}

#[test]
fn a_library_that_comes_late_is_found() {
    let Some(_turn) = root_test("a_library_that_comes_late_is_found") else {
        return;
    };
    // Loaded half a second after the watch began; the first call comes later.
    let library = "libcudart.so.12";
    let late = format!("-s 20 -l 500 -w {}", looked_at_within_ms());
    let mut workload = start(library, &late, &[]);
    let watch = watch(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    let truth = workload.finish();
    let facts = Facts::read(&ended.recording);
    let mut checks = Checks::new();
    compare(&mut checks, &truth, &facts, library);
    checks.done();
}

#[test]
fn a_forked_process_that_loads_it_itself_is_watched() {
    let Some(_turn) = root_test("a_forked_process_that_loads_it_itself_is_watched") else {
        return;
    };
    let library = "libcudart.so.12";
    // The shell becomes a process that was forked after the watch began.
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(format!(
        "{} - {} -s 20 -l 300 -w {}; true",
        fake("gpu_loop").display(),
        fake(library).display(),
        looked_at_within_ms()
    ));
    let mut workload = Workload::spawn(command);
    let watch = watch(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    let truth = workload.finish();
    let facts = Facts::read(&ended.recording);
    let mut checks = Checks::new();
    compare(&mut checks, &truth, &facts, library);
    checks.done();
}

#[test]
fn a_worker_that_only_inherited_the_library_is_left_alone() {
    let name = "a_worker_that_only_inherited_the_library_is_left_alone";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    let mut workload = start(library, "-s 20 -f", &[]);
    let watch = watch(workload.pid(), &[]);
    bpf::wait_for_traps(workload.pid(), library);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let facts = Facts::read(&ended.recording);
    assert!(facts.calls.is_empty(), "{:?}", facts.calls);
    let truth = workload.finish();
    assert_eq!(u64_at(&truth, "/calls/cudaMemcpy/count"), 20, "{truth}");
}

#[test]
fn a_call_that_never_returns_ends_with_its_thread() {
    let name = "a_call_that_never_returns_ends_with_its_thread";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    let mut workload = start(library, "-x", &[]);
    let watch = watch(workload.pid(), &[]);
    bpf::wait_for_traps(workload.pid(), library);
    let begun = Instant::now();
    workload.go();
    // The job is gone half a second later, and the watch with it.
    let ended = watch.wait();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let facts = Facts::read(&ended.recording);
    let calls = facts.calls_of("cudaStreamSynchronize");
    assert_eq!(calls.len(), 1, "{calls:?}");
    let seconds = calls[0].ns as f64 / 1e9;
    assert!((0.45..1.0).contains(&seconds), "{seconds} s");
}

#[test]
fn a_call_under_way_at_the_end_is_told_up_to_then() {
    let name = "a_call_under_way_at_the_end_is_told_up_to_then";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    let mut workload = start(library, "-s 1 -n 1 -k 3000000", &[]);
    let watch = watch(workload.pid(), &[]);
    bpf::wait_for_traps(workload.pid(), library);
    workload.go();
    std::thread::sleep(Duration::from_millis(1500));
    let ended = watch.stop();
    let facts = Facts::read(&ended.recording);
    let calls = facts.calls_of("cudaStreamSynchronize");
    assert_eq!(calls.len(), 1, "{calls:?}");
    let seconds = calls[0].ns as f64 / 1e9;
    assert!((1.2..2.0).contains(&seconds), "{seconds} s");
    workload.wait_done();
}

#[test]
fn a_function_that_is_called_too_often_is_let_go() {
    let name = "a_function_that_is_called_too_often_is_let_go";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    // An emulated processor takes minutes for as many traps.
    let steps = if in_vm() { 60 } else { 200 };
    let mut workload = start(library, &format!("-s {steps} -k 2000 -z 20000"), &[]);
    let watch = watch(workload.pid(), &[]);
    bpf::wait_for_traps(workload.pid(), library);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    let truth = workload.finish();
    let facts = Facts::read(&ended.recording);
    let missing = facts.missing("gpu-calls: cudaStreamSynchronize");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(missing[0].contains("times a second"), "{missing:?}");
    // The others are still watched.
    let copies = u64_at(&truth, "/calls/cudaMemcpy/count");
    assert_eq!(facts.calls_of("cudaMemcpy").len() as u64, copies);
}

#[test]
fn the_traps_are_gone_after_a_watch_however_it_ends() {
    let name = "the_traps_are_gone_after_a_watch_however_it_ends";
    let Some(_turn) = root_test(name) else { return };
    let library = "libcudart.so.12";
    let workload = start(library, "-s 10", &[]);
    let pid = workload.pid();
    let clean = text_of(pid, library);
    let before = bpf::held();
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let watch = watch(pid, &[]);
        bpf::wait_for_traps(pid, library);
        assert_ne!(text_of(pid, library), clean, "probed");
        watch.signal(signal);
        watch.wait();
        let until = Instant::now() + Duration::from_secs(10);
        while text_of(pid, library) != clean {
            assert!(Instant::now() < until, "signal {signal}: traps are left");
            std::thread::sleep(Duration::from_millis(20));
        }
        bpf::wait_until_gone(&before);
    }
}

#[test]
fn off_watches_no_calls() {
    let Some(_turn) = root_test("off_watches_no_calls") else {
        return;
    };
    let library = "libcudart.so.12";
    let mut workload = start(library, "-s 10", &[]);
    let clean = text_of(workload.pid(), library);
    let watch = Watch::attach(workload.pid(), &os(&[&"--gpu", &"off"]));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(text_of(workload.pid(), library), clean);
    workload.go();
    workload.wait_done();
    let facts = Facts::read(&watch.stop().recording);
    assert!(facts.calls.is_empty() && facts.devices.is_empty());
    assert!(facts.missing("gpu").is_empty());
}

/// Two processes wait for the GPU at the same time, and there is room to note one such call.
#[test]
fn calls_that_there_is_no_room_to_note_are_counted() {
    let Some(_turn) = root_test("calls_that_there_is_no_room_to_note_are_counted") else {
        return;
    };
    let mut jobs = [0, 1].map(|_| start("libcudart.so.12", "-s 100", &[]));
    let mut args = os(&[&"attach"]);
    args.extend(jobs.iter().map(|job| job.pid().to_string().into()));
    args.extend(os(&[&"--gpu", &"auto", &"--overhead-budget", &"100%"]));
    let mut watch = Watch::spawn(args, &[("TRAINPROF_ROOM", "GPU_CALLS=1")]);
    watch.wait_watching();
    jobs.iter_mut().for_each(Workload::go);
    jobs.iter_mut().for_each(Workload::wait_done);
    let ended = watch.stop();
    let facts = Facts::read(&ended.recording);
    let truth: u64 = jobs
        .map(|job| u64_at(&job.finish(), "/calls/cudaStreamSynchronize/count"))
        .iter()
        .sum();
    let lost = ended
        .report()
        .u64("/coverage/lost_by_reason/gpu-calls-full");
    let told = facts.calls_of("cudaStreamSynchronize").len() as u64;
    assert!(
        lost > 0 && told < truth,
        "{told} of {truth} told, {lost} lost"
    );
    assert!(
        told + lost >= truth,
        "{told} told and {lost} lost of {truth}"
    );
}
