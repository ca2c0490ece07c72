//! What was seen, what was not, and what watching cost.

use std::fmt::Write as _;

use super::units::{Page, bytes, wrapped};
use crate::{
    analysis::Kind,
    report::model::{Cost, NotToldRow, Report},
};

/// Windows on allocators that took less (s) are not worth a line.
const MIN_WINDOWS_S: f64 = 0.001;
/// How `cost.shed` begins to tell that calls were timed for a part of the watch.
const TIMED_CALLS: &str = "call-latencies";

pub fn footer(out: &mut Page, report: &Report) -> std::fmt::Result {
    let coverage = &report.coverage;
    let lost = if coverage.lost == 0 {
        "none lost".to_owned()
    } else {
        let reasons: Vec<String> = coverage
            .lost_by_reason
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        format!("{} lost ({})", coverage.lost, reasons.join(", "))
    };
    writeln!(out)?;
    wrapped(
        out,
        "seen: ",
        &format!("{} events, {lost}", coverage.events),
    )?;
    for missing in &coverage.missing {
        // A job without a GPU lacks nothing.
        if missing.what == "gpu" && !uses_gpu(report) {
            continue;
        }
        let text = format!("{}: {}", missing.what, missing.reason);
        wrapped(out, "not seen: ", &text)?;
    }
    if let Some(text) = not_told(report) {
        wrapped(out, "not told: ", &text)?;
    }
    let job_cpu_s = report.job.processes.iter().map(|row| row.cpu_s).sum();
    let parts = parts(&report.cost, job_cpu_s);
    if !parts.is_empty() {
        wrapped(out, "cost of watching: ", &parts)?;
    }
    let shed = &report.cost.shed;
    if !shed.is_empty() {
        let words: Vec<String> = shed.iter().map(|shed| plain(shed)).collect();
        wrapped(out, "given up to save cost: ", &words.join("; "))?;
    }
    Ok(())
}

/// Whether calls tell that, or that it could not be told what a GPU does.
fn uses_gpu(report: &Report) -> bool {
    let of_gpu = |kind: &str| kind == "h2d-copy" || kind == "gpu-shared";
    let walked = report.verdict.is_some();
    !report.gpu.calls.is_empty() || walked && report.not_told.iter().any(|row| of_gpu(row.kind))
}

/// Causes of which it is not known whether they hold the job back, by reason. Where next to nothing was seen, the verdict says that.
fn not_told(report: &Report) -> Option<String> {
    let causes: Vec<&NotToldRow> = report
        .not_told
        .iter()
        .filter(|row| Kind::CAUSES.iter().any(|cause| cause.name() == row.kind))
        .collect();
    if causes.len() * 2 > Kind::CAUSES.len() {
        return None;
    }
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in causes {
        match by_reason
            .iter_mut()
            .find(|(reason, _)| *reason == row.reason)
        {
            Some((_, kinds)) => kinds.push(row.kind),
            None => by_reason.push((&row.reason, vec![row.kind])),
        }
    }
    let parts: Vec<String> = by_reason
        .into_iter()
        .map(|(reason, kinds)| format!("{} ({reason})", kinds.join(", ")))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What it cost without its start, as a share (0–1) of the job's CPU time; `None`: not known.
fn without_start(cost: &Cost, job_cpu_s: f64) -> Option<f64> {
    let (spent, start_s) = (cost.spent_share?, cost.start_cpu_s?);
    (job_cpu_s > 0.0).then(|| spent - start_s / job_cpu_s)
}

fn parts(cost: &Cost, job_cpu_s: f64) -> String {
    let mut parts = Vec::new();
    if let Some(percent) = cost.slowdown_estimate_pct {
        parts.push(format!(
            "probes and samples {percent:.2} % of the CPU time that the host used"
        ));
    } else if cost.estimated {
        parts.push("the probes' part is an estimate".to_owned());
    } else {
        parts.push("probes not measured (that takes CAP_SYS_ADMIN and five seconds)".to_owned());
    }
    if let (Some(cpu), Some(rss)) = (cost.collector_cpu_s, cost.collector_rss_max_bytes) {
        let start = cost
            .start_cpu_s
            .map(|start| format!(" ({start:.2} s of it to begin)"));
        parts.push(format!(
            "trainprof itself {cpu:.2} s of CPU time{} and {} of memory",
            start.unwrap_or_default(),
            bytes(rss as f64)
        ));
    }
    if let Some(windows) = cost
        .windows
        .as_ref()
        .filter(|windows| windows.job_cpu_s + windows.pause_s >= MIN_WINDOWS_S)
    {
        parts.push(format!(
            "{} windows on allocators {:.3} s of the job's CPU time, and {:.3} s in which they stopped a thread",
            windows.count, windows.job_cpu_s, windows.pause_s
        ));
    }
    let Some(spent) = cost.spent_share else {
        return parts.join("; ");
    };
    let mut all = format!("{:.1} % of the job's CPU time", spent * 100.0);
    if let Some(budget) = cost.budget.filter(|budget| *budget > 0.0) {
        let _ = write!(all, " (budget {:.1} %", budget * 100.0);
        if spent > budget {
            all.push_str(match without_start(cost, job_cpu_s) {
                Some(rest) if rest <= budget => "; the start is paid back in the first minutes",
                Some(_) => "; more than that without the start, too",
                None => "",
            });
        }
        all.push(')');
    }
    format!("{all}: {}", parts.join("; "))
}

/// What was given up, in words for a reader.
fn plain(shed: &str) -> String {
    if let Some((name, time)) = shed.split_once(": for ")
        && let Some(time) = time.strip_suffix(", not at last")
    {
        return format!("{} for {time}", plain(name));
    }
    match shed {
        "short-intervals" => "sums of each second (they are of four)".to_owned(),
        "paired-windows" => "lifetimes of allocations".to_owned(),
        "stacks" => "call sites of allocations".to_owned(),
        "windows" => "more windows on allocators".to_owned(),
        "clock-samples" => "samples of what runs".to_owned(),
        other if other.starts_with(TIMED_CALLS) => {
            "latencies of all calls (those of a sample are told)".to_owned()
        }
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(spent: f64) -> Cost {
        Cost {
            slowdown_estimate_pct: Some(0.42),
            bpf_ns: None,
            bpf_runs: None,
            bpf_spin_ns: None,
            collector_cpu_s: Some(0.35),
            start_cpu_s: Some(0.2),
            collector_rss_max_bytes: Some(53_000_000),
            attach_s: None,
            shed: Vec::new(),
            budget: Some(0.01),
            spent_share: Some(spent),
            estimated: false,
            windows: None,
        }
    }

    #[test]
    fn what_was_given_up_for_a_time_is_told_in_words() {
        let told = plain("windows: for 30 s, not at last");
        assert_eq!(told, "more windows on allocators for 30 s");
    }

    #[test]
    fn what_was_spent_is_told_beside_the_budget() {
        let over = parts(&cost(0.023), 20.0);
        assert!(
            over.starts_with("2.3 % of the job's CPU time (budget 1.0 %"),
            "{over}"
        );
        assert!(
            over.contains("0.35 s of CPU time (0.20 s of it to begin) and"),
            "{over}"
        );
        let within = parts(&cost(0.008), 20.0);
        assert!(
            within.contains("(budget 1.0 %): probes and samples 0.42 %"),
            "{within}"
        );
    }

    #[test]
    fn the_start_is_the_reason_only_where_all_else_is_within_the_budget() {
        let paid_back = "(budget 1.0 %; the start is paid back in the first minutes): ";
        let too = "(budget 1.0 %; more than that without the start, too): ";
        // A start of 0.2 s is 2 % of 10 s, and 1 % of 20 s.
        for (spent, job_cpu_s, said) in [
            (0.029, 10.0, paid_back),
            (0.032, 10.0, too),
            (0.018, 20.0, paid_back),
            (0.023, 20.0, too),
            // Nobody knows how long the job ran.
            (0.023, 0.0, "(budget 1.0 %): "),
        ] {
            let text = parts(&cost(spent), job_cpu_s);
            assert!(text.contains(said), "{spent} {job_cpu_s}: {text}");
        }
        let of_before = Cost {
            start_cpu_s: None,
            ..cost(0.023)
        };
        let text = parts(&of_before, 20.0);
        assert!(text.contains("(budget 1.0 %): "), "{text}");
    }

    #[test]
    fn what_was_given_up_is_told_in_words() {
        assert_eq!(plain("stacks"), "call sites of allocations");
        assert_eq!(
            plain("call-latencies: a sample, and more"),
            "latencies of all calls (those of a sample are told)"
        );
    }
}
