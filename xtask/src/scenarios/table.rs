//! The table of a run, for the eye and for docs/ACCURACY.md, and the figures that sum it up.

use serde_json::{Value, json};

use super::{
    catalogue::Scenario,
    judge::{FOREIGN, Verdict, is_below},
    run::Outcome,
};
use crate::bench::stats::Spread;

pub struct Row {
    pub scenario: &'static Scenario,
    pub run: usize,
    pub verdict: Verdict,
    /// None when the run itself failed; the reason stands in the misses
    pub outcome: Option<Outcome>,
}

pub const HEAD: [&str; 10] = [
    "scenario",
    "expected",
    "found",
    "share found / true",
    "bound / gain (as timed)",
    "steps found / true",
    "p50 ms found / true",
    "p95 ms found / true",
    "other CPUs",
    "result",
];

impl Row {
    pub fn cells(&self) -> [String; 10] {
        let verdict = &self.verdict;
        let foreign = self.outcome.as_ref().map(|outcome| outcome.foreign_cpus);
        [
            self.scenario.name.to_owned(),
            self.scenario.expect.join(" or "),
            verdict.found.clone().unwrap_or_else(|| "–".to_owned()),
            pair([verdict.share, verdict.share_true], 2),
            gain(verdict),
            pair(verdict.count, 0),
            pair(verdict.p50_ms, 1),
            pair(verdict.p95_ms, 1),
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
            "gain": verdict.gain.map(|gain| gain.all),
            "gain_range": verdict.gain.map(|gain| gain.range),
            "gain_as_timed": verdict.gain_as_timed.map(|gain| gain.all),
            "gain_as_timed_range": verdict.gain_as_timed.map(|gain| gain.range),
            "steps": verdict.count,
            "p50_ms": verdict.p50_ms,
            "p95_ms": verdict.p95_ms,
            "misses": verdict.misses,
            "settings": self.outcome.as_ref().map(|o| &o.settings),
            "truth": self.outcome.as_ref().map(|o| &o.truth),
            "truth_with": gain.map(|gain| &gain.truth_with),
            "truth_without": gain.map(|gain| &gain.truth_without),
            "foreign_cpus": self.outcome.as_ref().map(|o| o.foreign_cpus),
        })
    }
}

/// The bound, the gain at one speed of the machine, and as it was timed.
fn gain(verdict: &Verdict) -> String {
    let at_one_speed = pair([verdict.bound, verdict.gain.map(|gain| gain.all)], 2);
    verdict.gain_as_timed.map_or_else(
        || at_one_speed.clone(),
        |timed| format!("{at_one_speed} ({:.2})", timed.all),
    )
}

fn pair(values: [Option<f64>; 2], decimals: usize) -> String {
    let one =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"));
    format!("{} / {}", one(values[0]), one(values[1]))
}

pub fn line(cells: &[String]) -> String {
    const WIDTHS: [usize; 9] = [18, 16, 16, 13, 20, 13, 17, 17, 9];
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

/// The targets, with how many runs met each.
pub fn summary(rows: &[Row]) -> Vec<String> {
    let missed = |what: &[&str]| {
        rows.iter()
            .filter(|row| {
                row.verdict
                    .misses
                    .iter()
                    .any(|miss| what.iter().any(|word| miss.starts_with(word)))
            })
            .count()
    };
    let met = |what: &[&str], of: usize| format!("{} of {of}", of - missed(what));
    let right = rows.iter().filter(|row| !wrong(row)).count();
    let with_gain = rows
        .iter()
        .filter(|row| row.verdict.gain.is_some() && !wrong(row))
        .count();
    let healthy = rows
        .iter()
        .filter(|row| row.scenario.sort == super::catalogue::Sort::Healthy)
        .count();
    let tight = Spread::of(rows.iter().filter(|row| !wrong(row)).filter_map(|row| {
        let (bound, gain) = (row.verdict.bound?, row.verdict.gain?);
        Some((bound / gain.all - 1.0) * 100.0)
    }));
    let tight_as_timed = Spread::of(rows.iter().filter(|row| !wrong(row)).filter_map(|row| {
        Some((row.verdict.bound? / row.verdict.gain_as_timed?.all - 1.0) * 100.0)
    }));
    let below_as_timed = rows
        .iter()
        .filter(|row| !wrong(row))
        .filter_map(|row| Some(is_below(row.verdict.bound?, row.verdict.gain_as_timed?)))
        .filter(|&is_below| is_below)
        .count();
    let disturbed = rows
        .iter()
        .filter(|row| {
            row.outcome
                .as_ref()
                .is_some_and(|o| o.foreign_cpus > FOREIGN)
        })
        .count();
    vec![
        format!("verdict right: {right} of {}", rows.len()),
        format!(
            "share within 5 points (of right verdicts): {}",
            met(&["share"], right)
        ),
        format!(
            "bound not below the gain (of right verdicts with a gain): {}",
            met(&["bound", "no bound"], with_gain)
        ),
        format!(
            "bound not below the gain as timed: {} of {with_gain}",
            with_gain - below_as_timed
        ),
        format!("bound above the gain, %: {}", Spread::show(tight, 0)),
        format!(
            "bound above the gain as timed, %: {}",
            Spread::show(tight_as_timed, 0)
        ),
        format!(
            "no false alarm (healthy jobs): {}",
            met(&["false alarm"], healthy)
        ),
        format!(
            "step count within 2 %: {}",
            met(&["step count", "no steps"], rows.len())
        ),
        format!("p50 within 5 %: {}", met(&["p50", "no steps"], rows.len())),
        format!("p95 within 5 %: {}", met(&["p95", "no steps"], rows.len())),
        format!("runs in which others used more than {FOREIGN} CPUs: {disturbed}"),
    ]
}

/// Verdict wrong, or the run failed.
fn wrong(row: &Row) -> bool {
    row.outcome.is_none() || row.verdict.misses.iter().any(|miss| miss == "verdict")
}
