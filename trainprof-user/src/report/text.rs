//! The report as text: what is most important first, in lines that fit a terminal.

use std::fmt::Write as _;

use super::model::{FindingRow, Memory, ProcessRow, Report, Shares};
use crate::analysis::words::time;

/// Columns that every line fits into.
const WIDTH: usize = 100;
/// Call sites of allocations that are listed.
const SITES_SHOWN: usize = 5;

/// Renders a report for reading.
pub fn to_text(report: &Report, top: usize) -> String {
    let mut out = String::new();
    // Writing into a string cannot fail.
    let _ = render(&mut out, report, top);
    out.lines()
        .map(|line| clip(line.trim_end(), WIDTH) + "\n")
        .collect()
}

fn render(out: &mut String, report: &Report, top: usize) -> std::fmt::Result {
    verdict(out, report)?;
    headline(out, report)?;
    processes(out, report, top)?;
    waits(out, report)?;
    files(out, report, top)?;
    memory(out, report)?;
    footer(out, report)
}

/// The verdict in one or two sentences, and what to do about it.
fn verdict(out: &mut String, report: &Report) -> std::fmt::Result {
    let Some(verdict) = &report.verdict else {
        return Ok(());
    };
    wrapped(out, "→ ", &verdict.summary)?;
    let (named, others): (Vec<&FindingRow>, Vec<&FindingRow>) = report
        .findings
        .iter()
        .partition(|finding| finding.kind == verdict.bottleneck);
    for finding in named {
        wrapped(out, "  do: ", &finding.advice)?;
    }
    for finding in others.iter().filter(|finding| finding.kind != "compute") {
        let share = finding
            .share
            .map_or_else(String::new, |share| format!(" ({})", percent(share)));
        let text = format!("{}{share}: {}", finding.kind, finding.summary);
        wrapped(out, "  also: ", &text)?;
    }
    write!(out, "  confidence {}", percent(verdict.confidence))?;
    if let (Some(count), Some(clock), Some(times)) = (
        report.steps.count,
        report.steps.clock,
        &report.steps.time_ms,
    ) {
        write!(
            out,
            "; {count} steps seen by {clock}: p50 {:.1} ms, p95 {:.1}, p99 {:.1}",
            times.p50, times.p95, times.p99
        )?;
    }
    writeln!(out, "\n")
}

/// Text in lines that fit, the first one after `mark`, the others below it.
fn wrapped(out: &mut String, mark: &str, text: &str) -> std::fmt::Result {
    let indent = mark.chars().count();
    let mut line = mark.to_owned();
    let mut filled = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if filled > indent && filled + 1 + length > WIDTH {
            writeln!(out, "{line}")?;
            line = " ".repeat(indent);
            filled = indent;
        }
        if filled > indent {
            line.push(' ');
            filled += 1;
        }
        line.push_str(word);
        filled += length;
    }
    writeln!(out, "{line}")
}

fn headline(out: &mut String, report: &Report) -> std::fmt::Result {
    let pid = report
        .job
        .pid
        .map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let seconds = report.duration_s;
    writeln!(out, "job {pid}: {}", report.job.command.join(" "))?;
    write!(
        out,
        "watched {seconds:.1} s, {} processes",
        report.job.processes.len()
    )?;
    if let Some(trainer) = &report.trainer {
        write!(
            out,
            "; trainer {}, {} workers",
            trainer.pid, report.workers.count
        )?;
    }
    writeln!(out)?;
    if let Some(trainer) = &report.trainer {
        writeln!(out, "the trainer's time: {}", split(&trainer.share))?;
    }
    if let Some(share) = &report.workers.share {
        writeln!(out, "the workers' time:  {}", split(share))?;
    }
    Ok(())
}

/// The parts of a split that matter, largest first.
fn split(share: &Shares) -> String {
    let mut parts = [
        (share.on_cpu, "on the CPU"),
        (share.runnable, "runnable"),
        (share.data_wait, "waiting for data"),
        (share.io_wait, "waiting for files"),
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

fn processes(out: &mut String, report: &Report, top: usize) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:>8} {:<8} {:<16} {:>7} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}  {:>8}",
        "PID", "ROLE", "NAME", "THREADS", "CPU", "RUNQ", "DATA", "I/O", "LOCK", "REST", "CPU TIME"
    )?;
    let mut rows: Vec<&ProcessRow> = report.job.processes.iter().collect();
    rows.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then(a.pid.cmp(&b.pid)));
    for row in rows.iter().take(top) {
        let share = &row.share;
        let rest = share.other_wait + share.comm_wait + share.slot_wait.unwrap_or(0.0);
        writeln!(
            out,
            "{:>8} {:<8} {:<16} {:>7} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}  {:>7.2}s",
            row.pid,
            row.role,
            clip(&row.name, 16),
            row.threads,
            percent(share.on_cpu),
            percent(share.runnable),
            percent(share.data_wait),
            percent(share.io_wait),
            percent(share.lock_wait),
            percent(rest),
            row.cpu_s,
        )?;
    }
    more(out, rows.len(), top, "processes")
}

fn waits(out: &mut String, report: &Report) -> std::fmt::Result {
    let leading: Vec<(u32, u32)> = report.trainer.iter().map(|t| (t.pid, t.tid)).collect();
    let Some(thread) = report
        .threads
        .iter()
        .find(|t| leading.contains(&(t.pid, t.tid)))
    else {
        return Ok(());
    };
    if thread.waits.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nwhat the trainer's thread {} ({}) waited for",
        thread.tid, thread.name
    )?;
    for wait in thread.waits.iter().take(5) {
        let waker = match (&wait.waker.name, wait.waker.pid, wait.waker.kind) {
            (Some(name), Some(pid), _) => format!("woken by {name} ({pid})"),
            (_, _, "interrupt") => "woken by an interrupt".to_owned(),
            (_, _, kind) => format!("woken by: {kind}"),
        };
        let on = wait
            .object
            .as_deref()
            .map(|o| format!(" {o}"))
            .unwrap_or_default();
        writeln!(
            out,
            "{:>8.3} s {:>8} × {} in {}{on}, {waker}",
            wait.seconds, wait.count, wait.kind, wait.syscall
        )?;
    }
    Ok(())
}

fn files(out: &mut String, report: &Report, top: usize) -> std::fmt::Result {
    let io = &report.io;
    let rate = |n: u64| n as f64 / report.duration_s.max(1e-9);
    writeln!(
        out,
        "\nfiles: {} opens ({:.0}/s), {} reads, {} read ({}/s), {} written",
        io.opens,
        rate(io.opens),
        io.reads,
        bytes(io.bytes_read as f64),
        bytes(rate(io.bytes_read)),
        bytes(io.bytes_written as f64),
    )?;
    let mut facts = Vec::new();
    if let Some(share) = io.small_file_share {
        facts.push(format!("{} of opened files below 256 KiB", percent(share)));
    }
    if let Some(ratio) = io.cache_hit_ratio {
        facts.push(format!("{} of bytes from the cache", percent(ratio)));
    }
    for (name, q) in &io.latency_us {
        facts.push(format!(
            "{name} p50 {} p99 {}",
            micros(q.p50),
            micros(q.p99)
        ));
    }
    if !facts.is_empty() {
        writeln!(out, "       {}", facts.join("; "))?;
    }
    if io.top.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:>9} {:>9} {:>10} {:>10} {:>8}  {:<8} DIRECTORY",
        "OPENS", "READS", "READ", "MEAN SIZE", "WAIT", "FS"
    )?;
    let rows = top.min(10);
    for row in io.top.iter().take(rows) {
        writeln!(
            out,
            "{:>9} {:>9} {:>10} {:>10} {:>7.2}s  {:<8} {}",
            row.opens,
            row.reads,
            bytes(row.bytes as f64),
            row.mean_file_bytes.map_or_else(|| "-".to_owned(), bytes),
            row.wait_s,
            clip(row.filesystem.as_deref().unwrap_or("?"), 8),
            clip_left(&row.path, WIDTH - 61),
        )?;
    }
    more(out, io.top.len(), rows, "directories")
}

fn memory(out: &mut String, report: &Report) -> std::fmt::Result {
    let memory = &report.memory;
    let mut facts = Vec::new();
    if let Some(rss) = memory.rss_bytes {
        facts.push(format!(
            "resident {} → {}",
            bytes(rss.first as f64),
            bytes(rss.last as f64)
        ));
    }
    if let Some(faults) = memory.faults {
        facts.push(format!(
            "{} minor and {} major page faults",
            faults.minor, faults.major
        ));
    }
    if let Some(growth) = memory.growth_bytes_per_s.filter(|growth| *growth > 0.0) {
        let left = memory
            .time_to_limit_s
            .map_or_else(String::new, |s| format!(" ({} left)", time(s)));
        facts.push(format!("grows by {}/s{left}", bytes(growth)));
    }
    for (name, row) in memory.calls.iter().filter(|(_, row)| row.count > 0) {
        facts.push(format!("{} {name}", row.count));
    }
    if !facts.is_empty() {
        writeln!(
            out,
            "
memory: {}",
            facts.join(", ")
        )?;
        kept(out, memory)?;
    }
    for killed in &memory.oom_kills {
        writeln!(
            out,
            "  {} {} ({}) was killed {} after the beginning: memory had run out",
            killed.role,
            killed.pid,
            killed.name,
            time(killed.at_s)
        )?;
    }
    for group in &memory.cgroups {
        if let (Some(kills @ 1..), Some(limit)) = (group.oom_kills, group.limit_bytes) {
            let times = if kills == 1 { "once" } else { "several times" };
            writeln!(
                out,
                "  control group {} ran out of its {} {times}",
                group.cgroup,
                bytes(limit as f64)
            )?;
        }
    }
    allocations(out, report)
}

/// What windows on the allocator tell.
fn allocations(out: &mut String, report: &Report) -> std::fmt::Result {
    let memory = &report.memory;
    let (Some(seen), Some(rate), Some(size)) = (
        &memory.allocation,
        memory.allocs_per_s,
        memory.alloc_bytes_per_s,
    ) else {
        return Ok(());
    };
    write!(
        out,
        "allocations: {rate:.0}/s (± {:.0}), {}/s, from {} windows of {:.1} ms in all",
        seen.allocs_per_s_error.unwrap_or(0.0),
        bytes(size),
        seen.windows,
        seen.window_s * 1e3,
    )?;
    writeln!(out)?;
    if let Some(lived) = &seen.lifetimes {
        writeln!(
            out,
            "  freed within 1 ms: {} of calls, {} of bytes; within the window: {} of bytes",
            percent(lived.freed_within_1ms_share),
            percent(lived.freed_within_1ms_bytes_share),
            percent(lived.freed_in_window_bytes_share),
        )?;
    }
    for site in memory.sites.iter().take(SITES_SHOWN) {
        writeln!(
            out,
            "  {:>5}  {} in {} ({}, process {})",
            percent(site.share),
            site.function.as_deref().unwrap_or("?"),
            site.module.as_deref().unwrap_or("?"),
            site.allocator,
            site.pid,
        )?;
    }
    Ok(())
}

/// Where memory is kept: only where it grows.
fn kept(out: &mut String, memory: &Memory) -> std::fmt::Result {
    const SITES: usize = 3;
    const FRAMES: usize = 4;
    if memory.growth_bytes_per_s.is_none_or(|growth| growth <= 0.0) {
        return Ok(());
    }
    for site in memory.kept_sites.iter().flatten().take(SITES) {
        writeln!(
            out,
            "  kept {:>3.0} %, {}/s: {}",
            site.share * 100.0,
            bytes(site.kept_bytes_per_s),
            site.stack
                .iter()
                .skip_while(|frame| {
                    site.function
                        .as_ref()
                        .is_some_and(|function| !frame.starts_with(function.as_str()))
                })
                .take(FRAMES)
                .cloned()
                .collect::<Vec<_>>()
                .join(" < ")
        )?;
    }
    Ok(())
}

fn footer(out: &mut String, report: &Report) -> std::fmt::Result {
    let coverage = &report.coverage;
    let cost = &report.cost;
    write!(
        out,
        "\nseen: {} events, {} lost",
        coverage.events, coverage.lost
    )?;
    if coverage.lost > 0 {
        let reasons: Vec<String> = coverage
            .lost_by_reason
            .iter()
            .map(|(r, n)| format!("{r} {n}"))
            .collect();
        write!(out, " ({})", reasons.join(", "))?;
    }
    writeln!(out)?;
    for missing in &coverage.missing {
        writeln!(out, "not seen: {}: {}", missing.what, missing.reason)?;
    }
    if let (Some(cpu), Some(rss)) = (cost.collector_cpu_s, cost.collector_rss_max_bytes) {
        let probes = cost.slowdown_estimate_pct.map_or_else(
            || "probes not measured (that takes CAP_SYS_ADMIN and five seconds)".to_owned(),
            |percent| format!("probes {percent:.2} % of the CPU time that this host used"),
        );
        writeln!(
            out,
            "cost of watching: {probes}; trainprof itself {cpu:.2} s CPU, {} memory",
            bytes(rss as f64)
        )?;
    }
    if let Some(windows) = cost.windows.as_ref().filter(|windows| windows.count > 0) {
        writeln!(
            out,
            "windows on the allocator: {} with {} hits took {:.3} s of the job's CPU time and stopped threads for \
             {:.3} s",
            windows.count, windows.hits, windows.job_cpu_s, windows.pause_s
        )?;
    }
    if !cost.shed.is_empty() {
        writeln!(
            out,
            "left out to keep watching below {}: {}",
            percent(cost.budget.unwrap_or(0.0)),
            cost.shed.join(", ")
        )?;
    }
    Ok(())
}

fn more(out: &mut String, all: usize, shown: usize, what: &str) -> std::fmt::Result {
    if all > shown {
        writeln!(
            out,
            "{:>8} more {what} (--top N, or the JSON report)",
            all - shown
        )
    } else {
        Ok(())
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes in the largest unit that keeps three digits.
fn bytes(n: f64) -> String {
    let mut value = n;
    for unit in ["B", "KB", "MB", "GB", "TB"] {
        if value < 999.5 {
            return if unit == "B" || value >= 99.95 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

fn micros(us: f64) -> String {
    if us < 999.5 {
        format!("{us:.0} µs")
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// The beginning of a text, at most `width` characters.
fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The end of a text, at most `width` characters.
fn clip_left(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    std::iter::once('…')
        .chain(text.chars().skip(count + 1 - width))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (n, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 KB"),
            (98_000.0, "98.0 KB"),
            (1.5e9, "1.5 GB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(micros(12.4), "12 µs");
        assert_eq!(micros(38_000.0), "38.0 ms");
    }

    #[test]
    fn clipping_keeps_the_width() {
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip_left("abcdef", 4), "…def");
        assert_eq!(clip_left("abc", 4), "abc");
    }
}
