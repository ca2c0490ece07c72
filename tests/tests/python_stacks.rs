//! Sampled stacks of Python programs, compared with a program that measures where its time goes.

use std::collections::BTreeMap;

use serde_json::Value;
use trainprof_tests::env::{left_out_in_vm, python_with, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::{Observed, Workload, observe_with};
use trainprof_user::record::Record;
use trainprof_user::record::fact::PyFunctionFact;
use trainprof_user::record::reader::Reader;
use trainprof_user::session::{PythonSeen, Session};

/// Seconds of the two functions, as text.
const SECONDS: &str = "16";
/// Points by which a share may be off: its standard deviation at 400 samples is 2.3.
const TOLERANCE: f64 = 0.07;
/// What is kept of a stack.
const DEPTH: usize = 64;

fn watch(name: &str, options: &[&str]) -> Option<Observed> {
    if left_out_in_vm(name, "a steady clock") {
        return None;
    }
    let Some(python) = python_with("json") else {
        skip(name, "no Python (TRAINPROF_PYTHON names one)");
        return None;
    };
    let args = [SECONDS].iter().chain(options);
    let workload = Workload::python(&python, "pystacks.py", args);
    let pid = workload.pid();
    Some(observe_with(workload, pid, &[]))
}

fn seen(observed: &Observed) -> PythonSeen {
    let reader = Reader::open(&observed.finished.recording);
    let mut reader = reader.expect("a recording");
    let mut session = Session::default();
    for record in reader.records::<Record>() {
        session.apply(&record.expect("a record"));
    }
    let missing = |(what, _): &&(String, String)| what == "python-stacks";
    let missing = session.missing.iter().find(missing);
    assert_eq!(missing, None, "stacks are there");
    session.python
}

fn function<'a>(seen: &'a PythonSeen, name: &str) -> &'a PyFunctionFact {
    let mut found = seen.functions.values().filter(|f| f.name == name);
    let function = found.next();
    assert_eq!(found.next(), None, "{name} is told once");
    function.unwrap_or_else(|| panic!("{name} is not among {:?}", seen.functions))
}

/// The stacks of a process's samples, the innermost function first.
fn stacks(seen: &PythonSeen, pid: u32) -> Vec<&[u32]> {
    let samples = seen.samples.get(&pid).expect("samples of the process");
    assert!(samples.is_sorted_by_key(|(at, _)| *at), "in order");
    let stack = |(_, stack): &(u64, u32)| seen.stacks[stack].as_slice();
    samples.iter().map(stack).collect()
}

/// The part of samples in one of two functions with the part of time that was spent there.
fn compare(truth: &Value, found: f64) {
    let spent = |name| f64_at(truth, &format!("/spent_s/{name}"));
    let told = spent("left") / (spent("left") + spent("right"));
    eprintln!("left: truth {told:.3}, samples {found:.3}");
    assert!((told - found).abs() <= TOLERANCE, "{told} {found}");
}

fn check(observed: &Observed) {
    let (seen, truth) = (seen(observed), &observed.truth);
    let pid = u32::try_from(u64_at(truth, "/pid")).expect("a process id");
    let stacks = stacks(&seen, pid);
    let mut samples = BTreeMap::new();
    for name in ["left", "right", "deep"] {
        let function = function(&seen, name);
        let line = u64_at(truth, &format!("/lines/{name}"));
        assert_eq!(u64::from(function.line), line, "{name}");
        assert_eq!(truth["file"], *function.file, "{name}");
        assert!(!function.generator, "{name}");
        let within = stacks.iter().filter(|s| s.contains(&function.number));
        samples.insert(name, within.count());
    }
    eprintln!("{} samples: {samples:?}", stacks.len());
    let both = samples["left"] + samples["right"];
    assert!(both >= 100, "{samples:?}");
    compare(truth, samples["left"] as f64 / both as f64);
    // Within `left` it is in `busy`, which was called from there, from `turns`, from `main`, from the module.
    let [busy, turns, main, module] = ["busy", "turns", "main", "<module>"].map(|name| {
        let ours = |f: &&PyFunctionFact| f.name == name && truth["file"] == *f.file;
        seen.functions.values().find(ours).expect(name).number
    });
    let left = function(&seen, "left").number;
    let whole = [busy, left, turns, main, module];
    let whole = stacks.iter().filter(|s| **s == whole).count();
    assert!(whole * 10 > samples["left"] * 8, "{whole} {samples:?}");
    // Of the deepest stacks the innermost part is there.
    let deep = function(&seen, "deep").number;
    let deepest = stacks.iter().filter(|s| s.contains(&deep));
    for stack in deepest.clone() {
        assert!(stack.len() <= DEPTH, "{stack:?}");
    }
    let full = |s: &&&[u32]| s.len() == DEPTH && s[0] == busy && s[1..].iter().all(|f| *f == deep);
    let full = deepest.filter(full).count();
    assert!(
        full * 10 > samples["deep"] * 8 && full > 10,
        "{full} {samples:?}"
    );
}

#[test]
fn shares_of_functions_are_true() {
    let name = "shares_of_functions_are_true";
    let Some(_turn) = root_test(name) else { return };
    if let Some(observed) = watch(name, &[]) {
        check(&observed);
    }
}

#[test]
fn a_process_that_executes_python_again_is_read_again() {
    let name = "a_process_that_executes_python_again_is_read_again";
    let Some(_turn) = root_test(name) else { return };
    if let Some(observed) = watch(name, &["again"]) {
        check(&observed);
    }
}

#[test]
fn a_busy_thread_beside_the_main_one_is_read_too() {
    let name = "a_busy_thread_beside_the_main_one_is_read_too";
    let Some(_turn) = root_test(name) else { return };
    let Some(observed) = watch(name, &["aside"]) else {
        return;
    };
    let (seen, truth) = (seen(&observed), &observed.truth);
    let tid = u32::try_from(u64_at(truth, "/tid")).expect("a thread id");
    let stacks = stacks(&seen, tid);
    let [left, right] = ["left", "right"].map(|name| {
        let number = function(&seen, name).number;
        stacks.iter().filter(|s| s.contains(&number)).count()
    });
    eprintln!("{} samples: {left} {right}", stacks.len());
    assert!(left + right >= 100, "{left} {right}");
    compare(truth, left as f64 / (left + right) as f64);
    let pid = u32::try_from(u64_at(truth, "/pid")).expect("a process id");
    let number = function(&seen, "left").number;
    assert!(!self::stacks(&seen, pid).iter().any(|s| s.contains(&number)));
}
