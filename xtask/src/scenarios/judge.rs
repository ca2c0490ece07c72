//! Compares what the report says with what the job timed itself. Pure functions.

use serde_json::Value;

use super::{
    catalogue::{Scenario, Sort},
    place::Culprit,
    run::Outcome,
    speedup::Speedup,
};

/// Shares may differ by so much.
const SHARE: f64 = 0.05;
/// Step counts may differ by this part, and by one step, since the watch cuts the first and the last.
const COUNT: f64 = 0.02;
/// Percentiles of the step time may differ by this part.
const TIME: f64 = 0.05;
/// Two runs of one loop differ by as much: a bound is too low only if it is lower than that below the gain.
const GAIN_NOISE: f64 = 0.02;
/// And lower by more than so many standard errors of the gain.
const GAIN_ERRORS: f64 = 2.0;
/// A cause below this share of the time is not blamed for anything.
const BLAMES: f64 = 0.05;
/// With more CPUs than this used by others, what was measured says little.
pub const FOREIGN: f64 = 0.15;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    pub found: Option<String>,
    pub share: Option<f64>,
    pub share_true: Option<f64>,
    pub bound: Option<f64>,
    /// At the speed that the machine had in the watch: what the bound is held against
    pub gain: Option<Speedup>,
    pub gain_as_timed: Option<Speedup>,
    pub gain_at_one_speed: Option<Speedup>,
    /// Seconds in which the GPU idled for the cause, and all that it idled by the truth
    pub idle_s: [Option<f64>; 2],
    pub idle_of_s: Option<f64>,
    pub count: [Option<f64>; 2],
    pub p50_ms: [Option<f64>; 2],
    pub p95_ms: [Option<f64>; 2],
    /// What is wrong; empty: passed
    pub misses: Vec<String>,
}

/// Whether what a user acts on is wrong: how much, and how many steps there are, is a question of degree; that no steps could be told is said, and
/// no verdict is made of it.
pub fn is_wrong(misses: &[&str]) -> bool {
    const DEGREES: [&str; 6] = [
        "share",
        "step count",
        "no steps",
        "p50",
        "p95",
        "idle blame",
    ];
    !misses.iter().all(|miss| DEGREES.contains(miss))
}

pub fn judge(scenario: &Scenario, outcome: &Outcome) -> Verdict {
    let truth = &outcome.truth;
    let gain = outcome.gain.as_ref();
    let share_key = match scenario.sort {
        Sort::Fault => "share",
        Sort::Healthy => "compute_share",
    };
    let mut verdict = Verdict {
        share_true: truth[share_key].as_f64(),
        gain: gain.and_then(|gain| Speedup::at_speed_of_watch(truth, gain)),
        gain_as_timed: gain.and_then(Speedup::as_timed),
        gain_at_one_speed: gain.and_then(|gain| Speedup::at_one_speed(truth, gain)),
        idle_s: [None, truth["idle_cause_s"].as_f64()],
        idle_of_s: truth["idle_s"].as_f64(),
        count: [None, truth["steps"]["count"].as_f64()],
        p50_ms: [None, truth["steps"]["p50_ms"].as_f64()],
        p95_ms: [None, truth["steps"]["p95_ms"].as_f64()],
        ..Verdict::default()
    };
    let Some(report) = &outcome.report else {
        return verdict;
    };
    verdict.found = report["verdict"]["bottleneck"].as_str().map(str::to_owned);
    verdict.share = report["verdict"]["share"].as_f64();
    verdict.bound = report["verdict"]["speedup_bound"].as_f64();
    let mut misses = Vec::new();
    let right = verdict
        .found
        .as_deref()
        .is_some_and(|found| scenario.expect.contains(&found));
    if !right {
        misses.push("verdict".to_owned());
    }
    verdict.share_true = truth[share_of(report, share_key)].as_f64();
    misses.extend(share(right, &verdict));
    misses.extend(bound(right, &verdict));
    misses.extend(idle(scenario, &mut verdict, report));
    misses.extend(steps(&mut verdict, report, truth));
    misses.extend(findings(scenario, report));
    misses.extend(kept(report, truth));
    if scenario.names && !outcome.named.iter().any(|one| is_named(report, one)) {
        misses.push("culprit not named".to_owned());
    }
    verdict.misses = misses;
    verdict
}

/// What the report says that its share is one of: where a GPU is seen, of that one's time or of its idle time.
fn share_of<'a>(report: &Value, of_trainer: &'a str) -> &'a str {
    match report["verdict"]["share_of"].as_str() {
        Some("gpu-idle-time") => "idle_share",
        Some("gpu-time") => "busy_share",
        _ => of_trainer,
    }
}

/// A share of something that the script tells no truth of is wrong too.
fn share(right: bool, verdict: &Verdict) -> Option<String> {
    let near = |(found, truth): (f64, f64)| (found - truth).abs() <= SHARE;
    let both = verdict.share.zip(verdict.share_true);
    (right && !both.is_some_and(near)).then(|| "share".to_owned())
}

fn bound(right: bool, verdict: &Verdict) -> Option<String> {
    let gain = verdict.gain.filter(|_| right)?;
    match verdict.bound {
        None => Some("no bound".to_owned()),
        Some(bound) => is_below(bound, gain).then(|| "bound below gain".to_owned()),
    }
}

/// Lower than what was measured, and than what errors of measuring explain.
fn is_below(bound: f64, gain: Speedup) -> bool {
    bound < gain.all * (1.0 - GAIN_NOISE) - GAIN_ERRORS * gain.error.unwrap_or(0.0)
}

/// The same, whatever the error.
pub fn is_strictly_below(bound: f64, gain: Speedup) -> bool {
    bound < gain.all * (1.0 - GAIN_NOISE)
}

/// The seconds in which a GPU idled for the cause, to a part of all of its idle time.
fn idle(scenario: &Scenario, verdict: &mut Verdict, report: &Value) -> Option<String> {
    let (truth, all) = (verdict.idle_s[1]?, verdict.idle_of_s?);
    let rows = report["gpu"]["idle_blame"].as_array();
    let found = rows
        .into_iter()
        .flatten()
        .filter(|row| {
            row["kind"]
                .as_str()
                .is_some_and(|kind| scenario.expect.contains(&kind))
        })
        .filter_map(|row| row["seconds"].as_f64())
        .sum::<f64>();
    verdict.idle_s[0] = Some(found);
    ((found - truth).abs() > SHARE * all).then(|| "idle blame".to_owned())
}

/// Whether a time of steps is right by itself: that neighbouring percentiles are far from it excuses nothing.
pub fn is_strict([found, truth]: [Option<f64>; 2]) -> bool {
    matches!((found, truth), (Some(found), Some(truth)) if (found - truth).abs() <= TIME * truth)
}

/// A turn of an evaluation loop may be counted as a step or not.
fn steps(verdict: &mut Verdict, report: &Value, truth: &Value) -> Vec<String> {
    let found = &report["steps"];
    let count = found["count"].as_f64();
    let near = |truth: &Value| match (count, truth["count"].as_f64()) {
        (Some(found), Some(truth)) => (found - truth).abs() <= (truth * COUNT).max(1.0),
        _ => false,
    };
    let both = &truth["steps_with_evaluation"];
    let truth = if !near(&truth["steps"]) && near(both) {
        both
    } else {
        &truth["steps"]
    };
    verdict.count = [count, truth["count"].as_f64()];
    if count.is_none() {
        for (name, pair) in [("p50", &mut verdict.p50_ms), ("p95", &mut verdict.p95_ms)] {
            *pair = [None, truth[format!("{name}_ms")].as_f64()];
        }
        return vec!["no steps".to_owned()];
    }
    let mut misses: Vec<String> = Vec::new();
    if !near(truth) {
        misses.push("step count".to_owned());
    }
    for (name, pair) in [("p50", &mut verdict.p50_ms), ("p95", &mut verdict.p95_ms)] {
        *pair = [
            found["time_ms"][name].as_f64(),
            truth[format!("{name}_ms")].as_f64(),
        ];
        let range = &truth[format!("{name}_range_ms")];
        let fine = match (pair[0], range[0].as_f64(), range[1].as_f64()) {
            (Some(found), Some(low), Some(high)) => {
                (low * (1.0 - TIME)..=high * (1.0 + TIME)).contains(&found)
            }
            _ => false,
        };
        if !fine {
            misses.push(name.to_owned());
        }
    }
    misses
}

fn findings(scenario: &Scenario, report: &Value) -> Vec<String> {
    let found: Vec<(&str, Option<f64>)> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|finding| Some((finding["kind"].as_str()?, finding["share"].as_f64())))
        .collect();
    let mut misses: Vec<String> = scenario
        .findings
        .iter()
        .filter(|wanted| !found.iter().any(|(kind, _)| kind == *wanted))
        .map(|wanted| format!("no {wanted}"))
        .collect();
    if scenario.sort == Sort::Healthy {
        misses.extend(
            found
                .iter()
                .filter(|(kind, share)| {
                    !["compute", "inconclusive"].contains(kind)
                        && !scenario.findings.contains(kind)
                        && share.is_none_or(|share| share >= BLAMES)
                })
                .map(|(kind, _)| format!("false alarm {kind}")),
        );
    }
    misses
}

/// Where the script knows how much memory it keeps of each step: that must be told, and within the stated margin or a tenth.
fn kept(report: &Value, truth: &Value) -> Option<String> {
    let truly = truth["kept_bytes_per_step"].as_f64()?;
    let findings = report["findings"].as_array().into_iter().flatten();
    let evidence = findings
        .filter(|finding| finding["kind"] == "memory-growth")
        .map(|finding| &finding["evidence"])
        .next()?;
    let margin = evidence["margin_bytes_per_step"].as_f64().unwrap_or(0.0);
    let told = evidence["bytes_per_step"].as_f64();
    let right = told.is_some_and(|told| (told - truly).abs() <= margin.max(0.1 * truly));
    (!right).then(|| "kept by step".to_owned())
}

/// Whether a culprit stands among what the report blames: one outside the job with the program that it runs, another process by its number.
fn is_named(report: &Value, culprit: &Culprit) -> bool {
    let Some(program) = &culprit.program else {
        return is_told(report, culprit.pid);
    };
    let findings = report["findings"].as_array().into_iter().flatten();
    let outsiders = findings.flat_map(|finding| finding["evidence"]["outsiders"].as_array());
    outsiders.flatten().any(|outsider| {
        let command = outsider["command"].as_str().unwrap_or_default();
        outsider["pid"] == culprit.pid && command.split(' ').any(|word| word == program)
    })
}

/// Whether a process's number stands anywhere in what the report blames.
fn is_told(report: &Value, pid: u32) -> bool {
    let text = [&report["blame"], &report["findings"], &report["verdict"]]
        .map(Value::to_string)
        .join(" ");
    let pid = pid.to_string();
    text.split(|c: char| !c.is_ascii_digit())
        .any(|number| number == pid)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{catalogue::ALL, gain::Gain};
    use super::*;

    fn scenario(name: &str) -> &'static Scenario {
        ALL.iter().find(|scenario| scenario.name == name).unwrap()
    }

    fn steps_of(mean_ms: f64) -> Value {
        json!({
            "count": 100, "mean_ms": mean_ms,
            "p50_ms": mean_ms, "p50_range_ms": [mean_ms, mean_ms],
            "p95_ms": 2.0 * mean_ms, "p95_range_ms": [2.0 * mean_ms, 2.0 * mean_ms],
        })
    }

    fn outcome(report: Value) -> Outcome {
        Outcome {
            settings: json!({}),
            report: Some(report),
            truth: json!({"turn_ms": [150.0], "model_ms": [60.0], "fixed_ms": [60.0], "share": 0.6, "compute_share": 0.6, "steps": steps_of(100.0), "steps_with_evaluation": steps_of(100.0)}),
            gain: Some(Gain {
                truth_with: json!({"turn_ms": [100.0], "model_ms": [30.0], "fixed_ms": [60.0]}),
                truth_without: json!({"turn_ms": [40.0], "model_ms": [20.0], "fixed_ms": [10.0]}),
            }),
            named: vec![
                Culprit {
                    pid: 76,
                    program: Some("store.py".to_owned()),
                },
                Culprit {
                    pid: 77,
                    program: Some("store.py".to_owned()),
                },
            ],
            foreign_cpus: 0.0,
        }
    }

    fn report(kind: &str, share: f64, bound: f64) -> Value {
        json!({
            "verdict": {"bottleneck": kind, "share": share, "speedup_bound": bound},
            "steps": {"count": 101, "time_ms": {"p50": 102.0, "p95": 195.0}},
            "findings": [{
                "kind": kind, "share": share,
                "evidence": {"outsiders": [{"pid": 77, "command": "/usr/bin/python3 store.py 1"}]},
            }],
            "blame": [{"path": ["trainer 5: data_wait", "worker 9: open"]}],
        })
    }

    #[test]
    fn right_in_all() {
        let verdict = judge(
            scenario("cold-disk"),
            &outcome(report("storage-io", 0.63, 2.1)),
        );
        assert_eq!(verdict.misses, Vec::<String>::new());
        // The machine was half as fast in the watch: 60 + 2 * 40 over 10 + 2 * 30, and 150 over 60 + 20.
        assert_eq!(verdict.gain.unwrap().all, 2.0);
        assert_eq!(verdict.gain_as_timed.unwrap().all, 2.5);
        assert_eq!(verdict.gain_at_one_speed.unwrap().all, 1.875);
    }

    #[test]
    fn each_miss_is_named() {
        let wrong = judge(scenario("cold-disk"), &outcome(report("compute", 0.1, 1.0)));
        assert_eq!(wrong.misses, ["verdict"]);
        let off = judge(
            scenario("cold-disk"),
            &outcome(report("storage-io", 0.7, 1.9)),
        );
        assert_eq!(off.misses, ["share", "bound below gain"]);
        let mut empty = report("storage-io", 0.6, 2.0);
        empty["steps"] = json!({"count": null, "time_ms": null});
        let none = judge(scenario("cold-disk"), &outcome(empty));
        assert_eq!(none.misses, ["no steps"]);
    }

    #[test]
    fn a_bound_may_lie_below_by_errors_of_the_gain() {
        let gain = |error| Speedup {
            all: 2.0,
            error,
            range: [1.9, 2.1],
        };
        assert!(is_below(1.95, gain(None)) && is_below(1.95, gain(Some(0.0))));
        assert!(!is_below(1.95, gain(Some(0.02))));
        assert!(is_below(1.91, gain(Some(0.02))));
        assert!(is_strictly_below(1.95, gain(Some(0.02))));
        assert!(!is_strictly_below(1.97, gain(Some(0.02))));
    }

    /// With a GPU the report says what its share is one of.
    #[test]
    fn a_share_is_held_against_the_truth_of_what_it_is_one_of() {
        let mut outcome = outcome(report("h2d-copy", 0.95, 2.0));
        let truth = outcome.truth.as_object_mut().unwrap();
        truth.extend(
            [("share", 0.7), ("idle_share", 0.95), ("busy_share", 0.3)]
                .map(|(key, value)| (key.to_owned(), json!(value))),
        );
        let mut told = |of: &str| {
            outcome.report.as_mut().unwrap()["verdict"]["share_of"] = of.into();
            let verdict = judge(scenario("gpu-copies"), &outcome);
            (verdict.share_true, verdict.misses)
        };
        assert_eq!(told("gpu-idle-time"), (Some(0.95), vec![]));
        let wall = (Some(0.7), vec!["share".to_owned()]);
        assert_eq!(told("trainer-wall-time"), wall);
        let busy = (Some(0.3), vec!["share".to_owned()]);
        assert_eq!(told("gpu-time"), busy);
    }

    #[test]
    fn a_share_without_truth_is_wrong() {
        let mut report = report("storage-io", 0.6, 2.0);
        report["verdict"]["share_of"] = "gpu-idle-time".into();
        assert_eq!(
            judge(scenario("cold-disk"), &outcome(report)).misses,
            ["share"]
        );
    }

    #[test]
    fn idle_time_of_a_gpu_is_held_against_the_truth() {
        let told = |blame: Value| {
            let mut report = report("h2d-copy", 0.6, 2.0);
            report["gpu"] = json!({"idle_blame": blame});
            let mut outcome = outcome(report);
            outcome.truth["idle_s"] = json!(8.0);
            outcome.truth["idle_cause_s"] = json!(6.0);
            judge(scenario("gpu-copies"), &outcome).misses
        };
        let rows = |seconds: f64| json!([{"kind": "h2d-copy", "seconds": seconds}, {"kind": "compute", "seconds": 6.0}]);
        assert!(told(rows(6.3)).is_empty());
        assert_eq!(told(rows(6.5)), ["idle blame"]);
        assert_eq!(told(rows(5.5)), ["idle blame"]);
        assert_eq!(told(json!(null)), ["idle blame"]);
    }

    /// Steps of two lengths: the median lies on one side or the other, and only one of them is right.
    #[test]
    fn a_percentile_may_pass_and_not_be_strict() {
        let mut outcome = outcome(report("storage-io", 0.6, 2.0));
        outcome.truth["steps"]["p50_range_ms"] = json!([50.0, 100.0]);
        outcome.truth["steps"]["p50_ms"] = json!(50.0);
        let verdict = judge(scenario("cold-disk"), &outcome);
        assert!(verdict.misses.is_empty());
        assert!(!is_strict(verdict.p50_ms));
        assert!(is_strict(verdict.p95_ms));
        assert!(!is_strict([None, Some(50.0)]));
    }

    #[test]
    fn culprit_and_findings() {
        let right = judge(
            scenario("open-scanner"),
            &outcome(report("small-files", 0.6, 2.0)),
        );
        assert_eq!(right.misses, Vec::<String>::new());
        for outsiders in [
            json!([{"pid": 770, "command": "/usr/bin/python3 store.py 1"}]),
            json!([{"pid": 77, "command": "/usr/bin/python3 restore.py 1"}]),
            json!(null),
        ] {
            let mut other = report("small-files", 0.6, 2.0);
            other["findings"][0]["evidence"]["outsiders"] = outsiders;
            let unnamed = judge(scenario("open-scanner"), &outcome(other));
            assert_eq!(unnamed.misses, ["culprit not named"]);
        }
        // Of a rank the number is enough.
        let mut ranks = outcome(report("small-files", 0.6, 2.0));
        ranks.named = vec![Culprit {
            pid: 9,
            program: None,
        }];
        let told = judge(scenario("open-scanner"), &ranks);
        assert_eq!(told.misses, Vec::<String>::new());
        let few = judge(
            scenario("too-few-workers"),
            &outcome(report("input-cpu", 0.6, 2.0)),
        );
        assert_eq!(few.misses, ["no too-few-workers"]);
    }

    #[test]
    fn healthy_takes_no_blame() {
        let mut outcome = outcome(report("compute", 0.6, 1.0));
        outcome.gain = None;
        assert!(judge(scenario("healthy-plain"), &outcome).misses.is_empty());
        let report = outcome.report.as_mut().unwrap();
        report["findings"] =
            json!([{"kind": "memory-growth", "share": null}, {"kind": "input-cpu", "share": 0.02}]);
        assert_eq!(
            judge(scenario("healthy-plain"), &outcome).misses,
            ["false alarm memory-growth"]
        );
        assert!(judge(scenario("memory-growth"), &outcome).misses.is_empty());
        outcome.truth["kept_bytes_per_step"] = json!(400.0);
        for (told, misses) in [(430.0, vec![]), (450.0, vec!["kept by step"])] {
            let report = outcome.report.as_mut().unwrap();
            report["findings"][0]["evidence"] =
                json!({"bytes_per_step": told, "margin_bytes_per_step": 4.0});
            assert_eq!(judge(scenario("memory-growth"), &outcome).misses, misses);
        }
    }
}
