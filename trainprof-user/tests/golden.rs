//! Recordings of real jobs, against what the jobs timed themselves: verdict, share and steps must stay right.
//!
//! Beside each recording in tests/golden lies what is true of it: `expect` (kinds that the verdict may be), `share` (of the
//! trainer's wall time), `clock` (null: no clock may be found) and `steps` (count, p50 and p95 with the range of the
//! percentiles around them, ms). Where that is known: `gain` (step time with the fault over step time without, of the same run),
//! `findings` (kinds that must be found beside the verdict), `share_within` (where the truth itself is off). The recordings come
//! from `cargo xtask scenarios --keep`.
//!
//! Recordings with `without_ms` are from before gains were kept. It is the step time (ms) without the fault in a later run of the suite with
//! the same sizes (docs/ACCURACY.md, trainprof 76c00d0): how much work makes up a wanted time is measured anew for each run, so that it carries
//! over. `gain` is then their mean step time over that.
//!
//! gil-threads is from before the truth was read without giving the lock up: being put off the CPU by that is told as the
//! lock's, so that its share is too large.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use trainprof_user::{
    analysis::{Analysis, Steps, Verdict, analyse},
    record::{Record, reader::Reader},
    session::Session,
};

/// The suite's own tolerances: docs/ACCURACY.md.
const COUNT: f64 = 0.02;
const TIME: f64 = 0.05;
const SHARE: f64 = 0.05;
/// A bound is at most so many times the gain: no scenario of the suite has it further above.
const LOOSE: f64 = 1.4;
/// And at least so many times.
const TIGHT: f64 = 0.98;
/// A share is as exact as this.
const NOISE: f64 = 0.95;

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut out: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("tests/golden")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
        .collect();
    out.sort();
    out
}

fn analysed(path: &Path) -> Analysis {
    analysed_until(path, f64::INFINITY)
}

/// Of the first `seconds`: what a watch says while it goes on.
fn analysed_until(path: &Path, seconds: f64) -> Analysis {
    let mut reader = Reader::open(path).expect("a recording");
    let mut session = Session::default();
    while let Some(record) = reader.next_record::<Record>().expect("a record") {
        session.apply(&record);
        if session.duration_s() >= seconds {
            break;
        }
    }
    analyse(&session)
}

fn misses(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path.with_extension("json")).expect("the truth");
    let truth: Value = serde_json::from_str(&text).expect("JSON");
    let analysis = analysed(path);
    let mut out = Vec::new();
    let verdict = analysis.verdict.as_ref().expect("a verdict");
    let expected = truth["expect"].as_array().expect("kinds");
    if !expected.iter().any(|kind| kind == verdict.bottleneck) {
        out.push(format!("verdict {}", verdict.bottleneck));
    }
    let share = truth["share"].as_f64().expect("a share");
    if verdict
        .share
        .is_none_or(|found| (found - share).abs() > truth["share_within"].as_f64().unwrap_or(SHARE))
    {
        out.push(format!("share {:?} of {share:.3}", verdict.share));
    }
    out.extend(bound_miss(verdict, &truth));
    for kind in truth["findings"].as_array().into_iter().flatten() {
        if !analysis.findings.iter().any(|found| found.kind == kind) {
            out.push(format!("no {kind}"));
        }
    }
    let steps = analysis
        .trainer
        .as_ref()
        .and_then(|trainer| trainer.steps.as_ref());
    let clock = steps.map(|steps| steps.clock.name());
    if clock != truth["clock"].as_str() {
        out.push(format!("clock {clock:?}"));
    } else if let Some(steps) = steps {
        out.extend(step_misses(steps, &truth["steps"]));
    }
    out
}

/// Where the gain is known the bound is at least that, and not much more. Else a job without the cause needs no more than the rest
/// of its time: but the work under a lock, and the model's own, is still to be done.
fn bound_miss(verdict: &Verdict, truth: &Value) -> Option<String> {
    let Some(bound) = verdict.speedup_bound.filter(|bound| bound.is_finite()) else {
        return Some("no bound".to_owned());
    };
    let share = truth["share"].as_f64().expect("a share");
    let (least, most) = match (truth["gain"].as_f64(), verdict.bottleneck) {
        (Some(gain), _) => (gain * TIGHT, gain * LOOSE),
        (None, "serialization" | "compute") => (1.0, f64::INFINITY),
        (None, _) => (NOISE / (1.0 - share), f64::INFINITY),
    };
    (!(least..=most).contains(&bound))
        .then(|| format!("bound {bound:.2} of {least:.2} to {most:.2}"))
}

fn step_misses(steps: &Steps, truth: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let (found, count) = (
        steps.spans.len() as f64,
        truth["count"].as_f64().expect("a count"),
    );
    // The watch cuts the first step and the last one.
    if (found - count).abs() > (COUNT * count).max(2.0) {
        out.push(format!("{found} steps of {count}"));
    }
    for (name, q) in [("p50", 0.5), ("p95", 0.95)] {
        let ms = steps.quantile_ns(q) as f64 / 1e6;
        let range = &truth[format!("{name}_range_ms")];
        let (low, high) = (
            range[0].as_f64().expect("ms"),
            range[1].as_f64().expect("ms"),
        );
        if !(low * (1.0 - TIME)..=high * (1.0 + TIME)).contains(&ms) {
            out.push(format!("{name} {ms:.1} of {low:.1} to {high:.1} ms"));
        }
    }
    out
}

#[test]
fn a_bound_below_the_gain_or_far_above_it_is_a_miss() {
    let path = recordings()
        .into_iter()
        .find(|path| path.ends_with("cold-disk.rec"));
    let verdict = analysed(&path.expect("a recording"))
        .verdict
        .expect("a verdict");
    let misses = |bound: Option<f64>, gain: Option<f64>, share: f64| {
        let verdict = Verdict {
            speedup_bound: bound,
            ..verdict.clone()
        };
        bound_miss(&verdict, &json!({"share": share, "gain": gain})).is_some()
    };
    for (bound, gain, share, expected) in [
        (Some(1.95), Some(2.0), 0.5, true),
        (Some(1.97), Some(2.0), 0.5, false),
        (Some(2.7), Some(2.0), 0.5, false),
        (Some(2.9), Some(2.0), 0.5, true),
        // Without half of the time it is twice as fast.
        (Some(2.0), None, 0.5, false),
        (Some(1.8), None, 0.5, true),
        (None, None, 0.5, true),
    ] {
        assert_eq!(misses(bound, gain, share), expected, "{bound:?} {gain:?}");
    }
}

#[test]
fn recordings_say_what_is_true() {
    let all = recordings();
    assert!(all.len() >= 8, "{} recordings", all.len());
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|path| {
            let misses = misses(path);
            let name = path.file_stem().expect("a name").to_string_lossy();
            (!misses.is_empty()).then(|| format!("{name}: {}", misses.join(", ")))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// From the first second on a verdict is right or there is none, and after ten seconds there is one.
#[test]
fn first_verdicts_are_right() {
    let mut wrong = Vec::new();
    for path in recordings() {
        let text = fs::read_to_string(path.with_extension("json")).expect("the truth");
        let truth: Value = serde_json::from_str(&text).expect("JSON");
        let expected = truth["expect"].as_array().expect("kinds");
        for seconds in [1.0, 2.0, 3.0, 5.0, 8.0, 10.0] {
            let analysis = analysed_until(&path, seconds);
            let told = analysis
                .verdict
                .as_ref()
                .map_or("none", |verdict| verdict.bottleneck);
            let right = expected.iter().any(|kind| kind == told);
            let open = seconds < 10.0 && ["none", "inconclusive"].contains(&told);
            if !right && !open {
                let confidence = analysis.verdict.map(|verdict| verdict.confidence);
                wrong.push(format!(
                    "{}: {told} after {seconds} s ({confidence:?})",
                    path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
