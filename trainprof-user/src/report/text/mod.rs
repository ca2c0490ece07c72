//! The report as text: what is most important first, in lines that fit a terminal.

mod footer;
mod gpu;
mod memory;
mod place;
mod tables;
mod units;

use std::fmt::Write as _;

use self::units::{Page, count, percent, wrapped};
use super::model::{FindingRow, Report, Shares};

/// What nothing can be surer than: a watch is a sample.
const MOST_SURE: f64 = 0.99;

/// Renders a report for reading, in lines of at most `width` columns.
pub fn to_text(report: &Report, top: usize, width: usize) -> String {
    let mut out = Page::new(width);
    // Writing into memory cannot fail.
    let _ = render(&mut out, report, top);
    out.into_lines()
}

fn render(out: &mut Page, report: &Report, top: usize) -> std::fmt::Result {
    verdict(out, report)?;
    headline(out, report)?;
    tables::processes(out, report, top)?;
    tables::blame(out, report)?;
    tables::waits(out, report)?;
    tables::workers_waits(out, report)?;
    gpu::gpu(out, report)?;
    tables::files(out, report, top)?;
    memory::memory(out, report)?;
    footer::footer(out, report)
}

/// The verdict in one or two sentences, and what to do about it.
fn verdict(out: &mut Page, report: &Report) -> std::fmt::Result {
    let Some(verdict) = &report.verdict else {
        return Ok(());
    };
    wrapped(out, "→ ", &verdict.summary)?;
    let (named, others): (Vec<&FindingRow>, Vec<&FindingRow>) = report
        .findings
        .iter()
        .partition(|finding| finding.kind == verdict.bottleneck);
    for finding in &named {
        // What it would bring is said above.
        wrapped(out, "  do: ", &finding.advice)?;
    }
    let of = if verdict.share_of == "gpu-idle-time" {
        "of the GPU's idle time"
    } else {
        "of the trainer's time"
    };
    for finding in others.iter().filter(|finding| finding.kind != "compute") {
        let share = finding
            .share
            .map_or_else(String::new, |share| format!(" ({} {of})", percent(share)));
        let text = format!("{}{share}: {}", finding.kind, finding.summary);
        wrapped(out, "  also: ", &text)?;
        // One number of workers is told, in one place.
        let told = if counts_workers(finding) {
            named.iter().any(|finding| advises_workers(finding))
        } else {
            advises_workers(finding) && others.iter().any(|finding| counts_workers(finding))
        };
        if told {
            continue;
        }
        let effect = finding
            .effect
            .as_ref()
            .map_or_else(String::new, |effect| format!("; without this {effect}"));
        wrapped(out, "        do: ", &format!("{}{effect}", finding.advice))?;
    }
    if verdict.bottleneck != "inconclusive" {
        writeln!(
            out,
            "  confidence {}",
            percent(verdict.confidence.min(MOST_SURE))
        )?;
    }
    writeln!(out)
}

/// Whether all that a finding advises is a number of workers.
fn counts_workers(finding: &FindingRow) -> bool {
    finding.kind == "too-few-workers"
}

/// Whether a finding of something else names that number.
fn advises_workers(finding: &FindingRow) -> bool {
    !counts_workers(finding)
        && (finding.advice.contains("num_workers=")
            || finding.advice.contains("num_workers to about"))
}

fn headline(out: &mut Page, report: &Report) -> std::fmt::Result {
    let pid = report
        .job
        .pid
        .map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    writeln!(out, "job {pid}: {}", report.job.command.join(" "))?;
    let processes = report.job.processes.len();
    write!(
        out,
        "watched {:.1} s, {}",
        report.duration_s,
        count(processes, "process", "processes")
    )?;
    if let Some(trainer) = &report.trainer {
        write!(
            out,
            "; trainer {}, {}",
            trainer.pid,
            count(report.workers.count, "worker", "workers")
        )?;
    }
    writeln!(out)?;
    place::place(out, report)?;
    steps(out, report)?;
    if let Some(trainer) = &report.trainer {
        wrapped(out, "the trainer's time: ", &split(&trainer.share))?;
    }
    if let Some(share) = &report.workers.share {
        wrapped(out, "the workers' time:  ", &split(share))?;
    }
    Ok(())
}

fn steps(out: &mut Page, report: &Report) -> std::fmt::Result {
    let steps = &report.steps;
    let (Some(seen), Some(clock), Some(times)) = (steps.count, steps.clock, &steps.time_ms) else {
        return match &report.trainer {
            Some(_) => writeln!(out, "steps: none could be told from outside"),
            None => Ok(()),
        };
    };
    let mut text = format!(
        "{seen}; p50 {:.1} ms, p95 {:.1}, p99 {:.1}, max {:.1}; told by {}",
        times.p50,
        times.p95,
        times.p99,
        times.max,
        told_by(clock)
    );
    if let Some(sure) = steps.confidence {
        text += &format!(", confidence {:.0} %", sure * 100.0);
    }
    if let Some(walked) = &steps.walked {
        text += &format!(
            "; causes are those of {} of them, while calls were counted, with a mean of {:.1} ms for {:.1}",
            walked.count, walked.mean_ms, times.mean
        );
    }
    wrapped(out, "steps: ", &text)
}

/// A step clock in words; [`crate::analysis::steps::Clock`] has the names.
fn told_by(clock: &str) -> &str {
    match clock {
        "batch-requests" => "requests for batches (batch-requests)",
        "batch-hand-over" => "batches that workers hand over (batch-hand-over)",
        "queue" => "what the trainer takes from a queue (queue)",
        "own-batches" => "batches that the trainer makes itself (own-batches)",
        "backward-pass" => "backward passes (backward-pass)",
        "framework-calls" => "calls of what the framework compiled (framework-calls)",
        "own-thread" => "waits for threads that compute for it (own-thread)",
        "gpu-sync" => "waits for the GPU (gpu-sync)",
        "collectives" => "exchanges between ranks (collectives)",
        "own-calls" => "system calls that repeat (own-calls)",
        other => other,
    }
}

/// The parts of a split that matter, largest first.
fn split(share: &Shares) -> String {
    let mut parts = [
        (share.on_cpu, "on the CPU"),
        (share.runnable, "runnable"),
        (share.data_wait, "waiting for data"),
        (share.io_wait, "waiting for files"),
        (share.gpu_wait.unwrap_or(0.0), "waiting for the GPU"),
        (share.lock_wait, "waiting for own threads"),
        (share.comm_wait, "waiting for ranks"),
        (share.slot_wait.unwrap_or(0.0), "waiting for work"),
        (share.other_wait, "other waits"),
    ];
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shown: Vec<String> = parts
        .iter()
        .filter(|(share, _)| *share >= 0.005)
        .map(|(share, what)| format!("{} {what}", percent(*share)))
        .collect();
    if shown.is_empty() {
        "nothing seen".to_owned()
    } else {
        shown.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::{
            steps::Clock,
            tests::gpu_unseen::{NO_DRIVER, asked_once_for_a_gpu, uses_a_gpu_unseen},
        },
        report::{Shown, report},
        session::Session,
    };

    #[test]
    fn each_clock_is_told_in_words() {
        for clock in [
            Clock::BatchRequests,
            Clock::BatchHandOver,
            Clock::Queue,
            Clock::OwnBatches,
            Clock::OwnThread,
            Clock::GpuSync,
            Clock::Collectives,
            Clock::BackwardPass,
            Clock::FrameworkCalls,
            Clock::OwnCalls,
        ] {
            let name = clock.name();
            let told = told_by(name);
            assert!(told.len() > name.len() + 2 && told.contains(name), "{told}");
        }
    }

    fn text(session: &Session) -> String {
        to_text(&report(session, Shown::default()), 20, 100)
    }

    #[test]
    fn a_gpu_that_is_used_and_not_seen_is_told() {
        let text = text(&uses_a_gpu_unseen());
        let line = format!("not seen: gpu: {NO_DRIVER}");
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("not told: "), "{text}");
    }

    #[test]
    fn that_a_job_without_a_gpu_has_none_is_not_told() {
        let text = text(&asked_once_for_a_gpu());
        assert!(!text.contains("not seen: gpu"), "{text}");
    }

    #[test]
    fn waiting_for_the_gpu_is_part_of_the_split() {
        let share = Shares {
            on_cpu: 0.3,
            gpu_wait: Some(0.7),
            ..Shares::default()
        };
        assert_eq!(split(&share), "70 % waiting for the GPU, 30 % on the CPU");
    }
}
