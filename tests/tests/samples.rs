//! Clock samples: shares of CPU time by class of place, compared with threads that measure their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use trainprof_tests::env::{in_vm, left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::{children, os, program};
use trainprof_tests::{Data, Observed, Workload, observe, observe_with};
use trainprof_user::record::Record;
use trainprof_user::record::fact::{PlaceClass, PlaceFact, SampleFact};
use trainprof_user::record::reader::Reader;

/// Seconds of CPU time that each workload spends.
const SECONDS: f64 = 10.0;
/// `nr` of a page fault, and of a sample in user mode.
const FAULT: i16 = -1;
const USER: i16 = -2;

/// Samples of one thread, with their places, and the rate of the clock.
struct Samples {
    hz: u32,
    rows: Vec<(SampleFact, PlaceFact)>,
}

impl Samples {
    fn of(seen: &Observed, tid: u64) -> Self {
        let reader = Reader::open(&seen.finished.recording);
        let mut reader = reader.expect("a recording");
        let mut hz = 0;
        let mut places = BTreeMap::new();
        let mut rows = Vec::new();
        for record in reader.records::<Record>() {
            match record.expect("a record") {
                Record::Sampling(sampling) => hz = sampling.hz,
                Record::Place(place) => {
                    places.insert(place.number, place);
                }
                Record::Sample(sample) if u64::from(sample.tid) == tid => {
                    let place = places.get(&sample.place).cloned();
                    rows.push((sample, place.expect("a place before its sample")));
                }
                Record::Missing { what, reason } => assert_ne!(what, "samples", "{reason}"),
                _ => {}
            }
        }
        Self { hz, rows }
    }

    fn share(&self, holds: impl Fn(&SampleFact, &PlaceFact) -> bool) -> f64 {
        let found = self
            .rows
            .iter()
            .filter(|(sample, place)| holds(sample, place));
        found.count() as f64 / self.rows.len() as f64
    }

    /// Counts by class, call and function, for messages.
    fn summary(&self) -> String {
        let mut counts = BTreeMap::new();
        for (sample, place) in &self.rows {
            let key = (place.class, sample.nr, &place.module, &place.function);
            *counts.entry(key).or_insert(0) += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().map(|(key, n)| (n, key)).collect();
        counts.sort_by(|a, b| b.cmp(a));
        let lines = counts.iter().take(25);
        lines.map(|line| format!("{line:?}\n")).collect()
    }
}

/// The truth's share of one way to spend time.
fn truth(truth: &Value, way: &str) -> f64 {
    let spent = truth["spent_s"].as_object().expect("ways of the truth");
    let total: f64 = spent.values().filter_map(Value::as_f64).sum();
    f64_at(truth, &format!("/spent_s/{way}")) / total
}

/// Points by which a share may be off: its standard deviation at 900 samples is below 1.7.
fn tolerance() -> f64 {
    if in_vm() { 0.10 } else { 0.05 }
}

fn near(samples: &Samples, what: &str, truth: f64, found: f64) {
    eprintln!("{what}: truth {truth:.3}, samples {found:.3}");
    assert!(
        (truth - found).abs() <= tolerance(),
        "{what}: truth {truth:.3}, samples {found:.3}\n{}",
        samples.summary()
    );
}

fn check_spender(seen: &Observed) -> Samples {
    let samples = Samples::of(seen, u64_at(&seen.truth, "/tid"));
    assert!((90..=110).contains(&samples.hz), "{} Hz", samples.hz);
    // The CPU time says how many there must be, but for those of threads that move between the CPUs' clocks.
    let spent = seen.truth["spent_s"]
        .as_object()
        .expect("ways of the truth");
    let cpu_s: f64 = spent.values().filter_map(Value::as_f64).sum();
    let expected = cpu_s * f64::from(samples.hz);
    let count = samples.rows.len() as f64;
    eprintln!("{count} samples, {expected:.0} expected");
    if !in_vm() {
        assert!(count >= 900.0, "{count} samples");
        assert!(
            (count / expected - 1.0).abs() < 0.10,
            "{count} samples of {expected}"
        );
    }
    let class = |wanted| samples.share(|_, place| place.class == wanted);
    let call = |wanted: &[i16]| {
        samples
            .share(|sample, place| place.class == PlaceClass::Kernel && wanted.contains(&sample.nr))
    };
    let way = |way| truth(&seen.truth, way);
    let function =
        |wanted: &'static str| move |place: &PlaceFact| place.function.as_deref() == Some(wanted);
    let (arithmetic, touching) = (function("spend_arithmetic"), function("spend_touch"));
    let shares = [
        ("allocate", way("allocate"), class(PlaceClass::Malloc)),
        (
            "arithmetic",
            way("arithmetic"),
            samples.share(|_, place| place.class == PlaceClass::Other && arithmetic(place)),
        ),
        ("read", way("read"), call(&[17])),
        (
            "touch",
            way("touch") + way("rewrite"),
            call(&[FAULT]) + samples.share(|_, place| touching(place)),
        ),
        ("map", way("map"), call(&[9, 11])),
    ];
    for (name, truth, found) in shares {
        near(&samples, name, truth, found);
    }
    assert!(
        samples
            .rows
            .iter()
            .all(|(sample, place)| { (sample.nr == USER) == (place.class != PlaceClass::Kernel) }),
        "user mode and kernel mode are told apart"
    );
    let cpu = memory_share(seen);
    // A fault is all that touching costs over writing the same bytes once more: what of it runs with interrupts off
    // shows in samples as the program's own.
    let faults = way("touch") - way("rewrite");
    for (what, key, way) in [
        ("allocator in the report", "allocator", way("allocate")),
        ("calls in the report", "calls", way("map")),
        ("faults in the report", "faults", faults),
    ] {
        near(&samples, what, way, f64_at(cpu, &format!("/{key}/share")));
    }
    samples
}

/// What the report says of memory's share of the process's CPU time.
fn memory_share(seen: &Observed) -> &Value {
    let pid = u64_at(&seen.truth, "/pid");
    let rows = seen.report.rows("/memory/processes");
    let row = rows.iter().find(|row| row["pid"] == pid);
    &row.expect("the process's row")["cpu"]
}

#[test]
fn shares_with_another_allocator_are_true() {
    let name = "shares_with_another_allocator_are_true";
    let Some(_turn) = root_test(name) else { return };
    for library in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let library = format!("/usr/lib/x86_64-linux-gnu/{library}");
        if !Path::new(&library).exists() {
            return skip(name, &format!("no {library}: `cargo xtask setup --test`"));
        }
        let mut command = Command::new(program("spender-shared"));
        command.args(["-", "10"]).env("LD_PRELOAD", &library);
        let workload = Workload::spawn(command);
        let pid = workload.pid();
        let seen = observe_with(workload, pid, &[]);
        let told = &memory_share(&seen)["allocator"];
        // What the allocator calls in the C library, and the loop that calls it, is none of its code.
        let samples = Samples::of(&seen, u64_at(&seen.truth, "/tid"));
        let around = samples.share(|_, place| {
            let module = place.module.as_deref().unwrap_or_default();
            place.class == PlaceClass::Other
                && (module.starts_with("libc.so")
                    || place.function.as_deref() == Some("spend_allocate"))
        });
        let truth = truth(&seen.truth, "allocate") - around;
        let found = f64_at(told, "/share");
        eprintln!("{library}: truth {truth:.3}, report {found:.3}");
        let allowed = f64_at(told, "/error").max(tolerance());
        assert!(
            (truth - found).abs() <= allowed,
            "{library}: truth {truth:.3}, report {found:.3}"
        );
    }
}

#[test]
fn shares_of_a_static_program_are_true() {
    let Some(_turn) = root_test("shares_of_a_static_program_are_true") else {
        return;
    };
    let samples = check_spender(&observe("spender", &os(&[&SECONDS.to_string()])));
    // It is not stripped: every address in it has a function.
    let known = samples.share(|_, place| place.function.is_some());
    let user = samples.share(|sample, _| sample.nr == USER);
    assert!(
        known > 0.98 * user,
        "{known} of {user}\n{}",
        samples.summary()
    );
}

#[test]
fn shares_with_the_distributions_c_library_are_true() {
    let name = "shares_with_the_distributions_c_library_are_true";
    let Some(_turn) = root_test(name) else { return };
    check_spender(&observe("spender-shared", &os(&[&SECONDS.to_string()])));
}

#[test]
fn pythons_allocator_and_interpreter_are_told_apart() {
    let name = "pythons_allocator_and_interpreter_are_told_apart";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    let Some(python) = python_with("ctypes") else {
        return skip(name, "no Python with ctypes");
    };
    let workload = Workload::python(&python, "pyspend.py", os(&[&SECONDS.to_string()]));
    let pid = workload.pid();
    let seen = observe_with(workload, pid, &[]);
    let samples = Samples::of(&seen, u64_at(&seen.truth, "/tid"));
    assert!(samples.rows.len() >= 900, "{} samples", samples.rows.len());
    let class = |wanted| samples.share(|_, place| place.class == wanted);
    let way = |way| truth(&seen.truth, way);
    // The loop that calls the allocator is a small part of that time.
    let allocator = class(PlaceClass::PyMalloc);
    let caller = samples.share(|_, place| place.module.as_deref() == Some("pyspend.so"));
    assert!(caller < 0.3 * allocator, "{}", samples.summary());
    near(
        &samples,
        "object allocator",
        way("allocate"),
        allocator + caller,
    );
    near(
        &samples,
        "object allocator in the report",
        way("allocate"),
        f64_at(memory_share(&seen), "/allocator/share") + caller,
    );
    near(
        &samples,
        "interpreter",
        way("interpret"),
        class(PlaceClass::Python),
    );
}

#[test]
fn an_allocator_of_device_memory_has_a_class_of_its_own() {
    let name = "an_allocator_of_device_memory_has_a_class_of_its_own";
    let Some(_turn) = root_test(name) else { return };
    let library = program("cached.so");
    let seen = observe("cacher", &os(&[&"6", &library]));
    let samples = Samples::of(&seen, u64_at(&seen.truth, "/tid"));
    let share = truth(&seen.truth, "cached");
    let of_class = samples.share(|_, place| place.class == PlaceClass::GpuAllocator);
    near(&samples, "class", share, of_class);
    let in_report = f64_at(memory_share(&seen), "/allocator/share");
    near(&samples, "allocator in the report", share, in_report);
    let (of_class, elsewhere): (Vec<_>, Vec<_>) = (samples.rows.iter())
        .map(|(_, place)| place)
        .partition(|place| place.class == PlaceClass::GpuAllocator);
    // The class is that function's, and nothing else of the library's or the program's.
    assert!(
        (of_class.iter()).all(|place| place.module.as_deref() == Some("cached.so")),
        "{}",
        samples.summary()
    );
    assert!(
        (elsewhere.iter()).all(|place| place.class != PlaceClass::Malloc),
        "{}",
        samples.summary()
    );
}

#[test]
fn a_program_of_another_mount_namespace_has_its_functions() {
    let Some(_turn) = root_test("a_program_of_another_mount_namespace_has_its_functions") else {
        return;
    };
    let data = Data::new();
    let source = data.folder("source");
    std::fs::copy(program("spender"), source.join("spender")).expect("a copy of the program");
    // Empty on the host: only inside is the program at this path.
    let target = data.folder("inside");
    let mut command = Command::new(program("inns"));
    command.arg(&source).arg(&target);
    command.arg(target.join("spender"));
    command.arg("-").arg(SECONDS.to_string());
    let workload = Workload::spawn(command);
    let inside = children(workload.pid());
    let seen = observe_with(workload, inside[0], &[]);
    // The workload's own thread id is that of its namespace.
    let samples = Samples::of(&seen, inside[0] as u64);
    let named = samples.share(|_, place| {
        place.module.as_deref() == Some("spender")
            && place.function.as_deref() == Some("spend_arithmetic")
    });
    near(
        &samples,
        "arithmetic by name",
        truth(&seen.truth, "arithmetic"),
        named,
    );
}
