//! The table of a run, for the eye and for docs/ACCURACY.md, and the figures that sum it up.

use serde_json::{Value, json};

use super::{
    catalogue::{Scenario, Sort},
    judge::{FOREIGN, Verdict, is_strict, is_strictly_below},
    run::Outcome,
    speedup::Speedup,
};
use crate::bench::stats::Spread;

pub struct Row {
    pub scenario: &'static Scenario,
    pub run: usize,
    pub verdict: Verdict,
    /// None when the run itself failed; the reason stands in the misses
    pub outcome: Option<Outcome>,
}

pub const HEAD: [&str; 12] = [
    "scenario",
    "expected",
    "found",
    "share found / true",
    "bound / gain",
    "gain as timed, at one speed",
    "GPU idle s found / true",
    "steps found / true",
    "p50 ms found / true",
    "p95 ms found / true",
    "other CPUs",
    "result",
];

impl Row {
    pub fn cells(&self) -> [String; 12] {
        let verdict = &self.verdict;
        let foreign = self.outcome.as_ref().map(|outcome| outcome.foreign_cpus);
        [
            self.scenario.name.to_owned(),
            self.scenario.expect.join(" or "),
            verdict.found.clone().unwrap_or_else(|| "–".to_owned()),
            pair([verdict.share, verdict.share_true], 2),
            gain(verdict),
            other_gains(verdict),
            if verdict.idle_s[1].is_some() {
                pair(verdict.idle_s, 2)
            } else {
                String::new()
            },
            pair(verdict.count, 0),
            time(verdict.p50_ms),
            time(verdict.p95_ms),
            foreign.map_or_else(String::new, |cpus| {
                let mark = if cpus > FOREIGN { " (!)" } else { "" };
                format!("{cpus:.2}{mark}")
            }),
            if verdict.misses.is_empty() {
                "pass".to_owned()
            } else {
                format!("miss: {}", verdict.misses.join(", "))
            },
        ]
    }

    pub fn json(&self) -> Value {
        let verdict = &self.verdict;
        let gain = self.outcome.as_ref().and_then(|o| o.gain.as_ref());
        json!({
            "scenario": self.scenario.name,
            "run": self.run,
            "expected": self.scenario.expect,
            "found": verdict.found,
            "share": verdict.share,
            "share_true": verdict.share_true,
            "speedup_bound": verdict.bound,
            "gain": speedup(verdict.gain),
            "gain_as_timed": speedup(verdict.gain_as_timed),
            "gain_at_one_speed": speedup(verdict.gain_at_one_speed),
            "gpu_idle_s": verdict.idle_s,
            "gpu_idle_all_s": verdict.idle_of_s,
            "steps": verdict.count,
            "p50_ms": verdict.p50_ms,
            "p50_strict": is_strict(verdict.p50_ms),
            "p95_ms": verdict.p95_ms,
            "p95_strict": is_strict(verdict.p95_ms),
            "misses": verdict.misses,
            "settings": self.outcome.as_ref().map(|o| &o.settings),
            "truth": self.outcome.as_ref().map(|o| &o.truth),
            "truth_with": gain.map(|gain| &gain.truth_with),
            "truth_without": gain.map(|gain| &gain.truth_without),
            "foreign_cpus": self.outcome.as_ref().map(|o| o.foreign_cpus),
        })
    }
}

fn speedup(gain: Option<Speedup>) -> Value {
    gain.map_or(
        Value::Null,
        |gain| json!({"all": gain.all, "error": gain.error, "range": gain.range}),
    )
}

/// The bound, and the gain with its standard error.
fn gain(verdict: &Verdict) -> String {
    let both = pair([verdict.bound, verdict.gain.map(|gain| gain.all)], 2);
    verdict
        .gain
        .and_then(|gain| gain.error)
        .map_or_else(|| both.clone(), |error| format!("{both} ± {error:.2}"))
}

fn other_gains(verdict: &Verdict) -> String {
    match (verdict.gain_as_timed, verdict.gain_at_one_speed) {
        (None, None) => String::new(),
        (timed, one_speed) => [timed, one_speed]
            .map(|gain| gain.map_or("–".to_owned(), |gain| format!("{:.2}", gain.all)))
            .join(", "),
    }
}

/// Marked where it is not within 5 % of the very percentile.
fn time(values: [Option<f64>; 2]) -> String {
    let mark = if values[0].is_some() && !is_strict(values) {
        " *"
    } else {
        ""
    };
    pair(values, 1) + mark
}

fn pair(values: [Option<f64>; 2], decimals: usize) -> String {
    let one =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"));
    format!("{} / {}", one(values[0]), one(values[1]))
}

pub fn line(cells: &[String]) -> String {
    const WIDTHS: [usize; 11] = [18, 16, 16, 13, 20, 11, 11, 13, 17, 17, 9];
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        text += &format!("{cell:width$}  ");
    }
    text + &cells[WIDTHS.len()]
}

pub fn markdown(rows: &[Row]) -> String {
    let mut text = format!("| {} |\n|{}\n", HEAD.join(" | "), "---|".repeat(HEAD.len()));
    for row in rows {
        text += &format!("| {} |\n", row.cells().join(" | "));
    }
    text
}

/// The median of bounds must lie within this part above the gain.
const TIGHT: f64 = 0.15;
/// A median of fewer runs says little of the suite.
const TIGHT_OF: usize = 10;

/// Bounds over gains of one kind, where the verdict is right.
fn ratios(rows: &[Row], gain: fn(&Verdict) -> Option<Speedup>) -> Vec<f64> {
    rows.iter()
        .filter(|row| !wrong(row))
        .filter_map(|row| Some(row.verdict.bound? / gain(&row.verdict)?.all))
        .collect()
}

/// What the suite as a whole misses, whatever its runs do.
pub fn misses(rows: &[Row]) -> Vec<String> {
    let ratios = ratios(rows, |verdict| verdict.gain);
    let median = Spread::of(ratios.iter().copied()).map(|spread| spread.median);
    median
        .filter(|&median| ratios.len() >= TIGHT_OF && median > 1.0 + TIGHT)
        .map(|median| {
            format!(
                "bounds are {:.0} % above the gain in the median, more than {:.0} %",
                (median - 1.0) * 100.0,
                TIGHT * 100.0
            )
        })
        .into_iter()
        .collect()
}

/// The targets, with how many runs met each.
pub fn summary(rows: &[Row]) -> Vec<String> {
    let missed = |what: &[&str]| {
        count(rows, |row| {
            row.verdict
                .misses
                .iter()
                .any(|miss| what.iter().any(|word| miss.starts_with(word)))
        })
    };
    let met = |what: &[&str], of: usize| format!("{} of {of}", of - missed(what));
    let right = count(rows, |row| !wrong(row));
    let with_gain = count(rows, |row| row.verdict.gain.is_some() && !wrong(row));
    let not_below = |gain: fn(&Verdict) -> Option<Speedup>, is_below: fn(f64, Speedup) -> bool| {
        let below = count(rows, |row| {
            !wrong(row)
                && row
                    .verdict
                    .bound
                    .zip(gain(&row.verdict))
                    .is_some_and(|(bound, gain)| is_below(bound, gain))
        });
        format!("{} of {with_gain}", with_gain - below)
    };
    let above = |gain: fn(&Verdict) -> Option<Speedup>| {
        let ratios = ratios(rows, gain);
        Spread::show(
            Spread::of(ratios.into_iter().map(|ratio| (ratio - 1.0) * 100.0)),
            0,
        )
    };
    let errors = rows.iter().filter_map(|row| {
        let gain = row.verdict.gain?;
        Some(gain.error? / gain.all * 100.0)
    });
    let healthy = count(rows, |row| row.scenario.sort == Sort::Healthy);
    let idle = count(rows, |row| row.verdict.idle_s[1].is_some());
    let strict = |times: fn(&Verdict) -> [Option<f64>; 2]| {
        let strict = count(rows, |row| is_strict(times(&row.verdict)));
        format!("{strict} of {}", rows.len())
    };
    let disturbed = count(rows, |row| {
        row.outcome
            .as_ref()
            .is_some_and(|o| o.foreign_cpus > FOREIGN)
    });
    vec![
        format!("verdict right: {right} of {}", rows.len()),
        format!(
            "share within 5 points (of right verdicts): {}",
            met(&["share"], right)
        ),
        format!(
            "bound not below the gain by more than 2 % and two standard errors (of right verdicts with a gain): {}",
            met(&["bound", "no bound"], with_gain)
        ),
        format!(
            "bound not below the gain by more than 2 %, whatever the error: {}; as timed: {}; at one speed: {}",
            not_below(|v| v.gain, is_strictly_below),
            not_below(|v| v.gain_as_timed, is_strictly_below),
            not_below(|v| v.gain_at_one_speed, is_strictly_below),
        ),
        format!(
            "bound above the gain, % (at most {:.0} in the median): {}; as timed: {}; at one speed: {}",
            TIGHT * 100.0,
            above(|v| v.gain),
            above(|v| v.gain_as_timed),
            above(|v| v.gain_at_one_speed),
        ),
        format!(
            "standard error of the gain, %: {}",
            Spread::show(Spread::of(errors), 1)
        ),
        format!(
            "GPU idle seconds of the cause within 5 points of the idle time: {}",
            met(&["idle blame"], idle)
        ),
        format!(
            "no false alarm (healthy jobs): {}",
            met(&["false alarm"], healthy)
        ),
        format!(
            "step count within 2 %: {}",
            met(&["step count", "no steps"], rows.len())
        ),
        format!(
            "p50 within 5 % of the 48th to the 52nd percentile: {}; of the 50th: {}",
            met(&["p50", "no steps"], rows.len()),
            strict(|v| v.p50_ms)
        ),
        format!(
            "p95 within 5 % of the 93rd to the 97th percentile: {}; of the 95th: {}",
            met(&["p95", "no steps"], rows.len()),
            strict(|v| v.p95_ms)
        ),
        format!("runs in which others used more than {FOREIGN} CPUs: {disturbed}"),
    ]
}

fn count(rows: &[Row], is: impl Fn(&Row) -> bool) -> usize {
    rows.iter().filter(|row| is(row)).count()
}

/// Verdict wrong, or the run failed.
fn wrong(row: &Row) -> bool {
    row.outcome.is_none() || row.verdict.misses.iter().any(|miss| miss == "verdict")
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::ALL;
    use super::*;

    fn rows(bounds: &[f64]) -> Vec<Row> {
        let gain = Speedup {
            all: 2.0,
            error: Some(0.1),
            range: [1.9, 2.1],
        };
        bounds
            .iter()
            .map(|&bound| Row {
                scenario: &ALL[0],
                run: 0,
                verdict: Verdict {
                    bound: Some(bound),
                    gain: Some(gain),
                    ..Verdict::default()
                },
                outcome: Some(Outcome {
                    settings: json!({}),
                    report: None,
                    truth: json!({}),
                    gain: None,
                    named: Vec::new(),
                    foreign_cpus: 0.0,
                }),
            })
            .collect()
    }

    #[test]
    fn a_suite_misses_when_bounds_are_loose_in_the_median() {
        let tight = [[2.2; 6].as_slice(), &[4.0; 5]].concat();
        let loose = [[2.2; 5].as_slice(), &[2.4; 6]].concat();
        assert_eq!(misses(&rows(&tight)), Vec::<String>::new());
        assert_eq!(
            misses(&rows(&loose)),
            ["bounds are 20 % above the gain in the median, more than 15 %"]
        );
        assert_eq!(misses(&rows(&loose[5..])), Vec::<String>::new());
    }

    #[test]
    fn a_bound_below_is_counted_with_and_without_the_error() {
        let lines = summary(&rows(&[2.0, 1.9, 1.7])).join("\n");
        assert!(lines.contains("whatever the error: 1 of 3"), "{lines}");
    }

    #[test]
    fn a_percentile_that_is_not_strict_is_marked() {
        assert_eq!(time([Some(100.0), Some(50.0)]), "100.0 / 50.0 *");
        assert_eq!(time([Some(51.0), Some(50.0)]), "51.0 / 50.0");
        assert_eq!(time([None, Some(50.0)]), "– / 50.0");
    }
}
