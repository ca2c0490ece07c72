//! Compares what the report says with what the job timed itself. Pure functions.

use serde_json::Value;

use super::{
    catalogue::{Scenario, Sort},
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
    pub gain: Option<Speedup>,
    pub gain_as_timed: Option<Speedup>,
    pub count: [Option<f64>; 2],
    pub p50_ms: [Option<f64>; 2],
    pub p95_ms: [Option<f64>; 2],
    /// What is wrong; empty: passed
    pub misses: Vec<String>,
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
        gain: gain.and_then(|gain| Speedup::at_one_speed(truth, gain)),
        gain_as_timed: gain.and_then(Speedup::as_timed),
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
    misses.extend(share(right, &mut verdict, truth));
    misses.extend(bound(right, &verdict));
    misses.extend(steps(&mut verdict, report, truth));
    misses.extend(findings(scenario, report));
    if scenario.names && !outcome.named.iter().any(|&pid| is_named(report, pid)) {
        misses.push("culprit not named".to_owned());
    }
    verdict.misses = misses;
    verdict
}

/// Where a GPU is seen a share may be one of its idle time, and the script tells both.
fn share(right: bool, verdict: &mut Verdict, truth: &Value) -> Option<String> {
    let found = verdict.share.filter(|_| right)?;
    let near = |true_share: &f64| (found - true_share).abs() <= SHARE;
    if let Some(other) = truth["idle_share"].as_f64()
        && near(&other)
    {
        verdict.share_true = Some(other);
    }
    verdict
        .share_true
        .is_some_and(|truth| !near(&truth))
        .then(|| "share".to_owned())
}

fn bound(right: bool, verdict: &Verdict) -> Option<String> {
    let gain = verdict.gain.filter(|_| right)?;
    match verdict.bound {
        None => Some("no bound".to_owned()),
        Some(bound) => is_below(bound, gain).then(|| "bound below gain".to_owned()),
    }
}

pub fn is_below(bound: f64, gain: Speedup) -> bool {
    bound < gain.all * (1.0 - GAIN_NOISE)
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

/// Whether a process outside the job stands anywhere in what the report blames.
fn is_named(report: &Value, pid: u32) -> bool {
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
            truth: json!({"turn_ms": [100.0], "model_ms": [30.0], "share": 0.6, "compute_share": 0.6, "steps": steps_of(100.0), "steps_with_evaluation": steps_of(100.0)}),
            gain: Some(Gain {
                truth_with: json!({"turn_ms": [100.0], "model_ms": [30.0]}),
                truth_without: json!({"turn_ms": [40.0], "model_ms": [20.0]}),
            }),
            named: vec![77],
            foreign_cpus: 0.0,
        }
    }

    fn report(kind: &str, share: f64, bound: f64) -> Value {
        json!({
            "verdict": {"bottleneck": kind, "share": share, "speedup_bound": bound},
            "steps": {"count": 101, "time_ms": {"p50": 102.0, "p95": 195.0}},
            "findings": [{"kind": kind, "share": share}],
            "blame": [{"path": ["trainer 5: data_wait", "store.py 77: open"]}],
        })
    }

    #[test]
    fn right_in_all() {
        let verdict = judge(
            scenario("cold-disk"),
            &outcome(report("storage-io", 0.63, 2.1)),
        );
        assert_eq!(verdict.misses, Vec::<String>::new());
        assert_eq!(verdict.gain.unwrap().all, 2.0);
        assert_eq!(verdict.gain_as_timed.unwrap().all, 2.5);
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
    fn culprit_and_findings() {
        let right = judge(
            scenario("open-scanner"),
            &outcome(report("small-files", 0.6, 2.0)),
        );
        assert_eq!(right.misses, Vec::<String>::new());
        let mut other = report("small-files", 0.6, 2.0);
        other["blame"] = json!([{"path": ["store.py 770: open"]}]);
        let unnamed = judge(scenario("open-scanner"), &outcome(other));
        assert_eq!(unnamed.misses, ["culprit not named"]);
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
    }
}
