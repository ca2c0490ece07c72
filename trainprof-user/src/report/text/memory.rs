//! Memory: sizes, faults, calls, kept memory, allocations.

use std::fmt::Write as _;

use super::units::{Page, bytes, clip, count, estimate, give_or_take, share, wrapped};
use crate::{
    analysis::words::{function as function_name, time},
    report::model::{Memory, Report},
};

/// Call sites of allocations that are listed.
const SITES: usize = 5;
/// Call sites of kept memory, and frames of each.
const KEPT_SITES: usize = 3;
const FRAMES: usize = 4;

pub fn memory(out: &mut Page, report: &Report) -> std::fmt::Result {
    let memory = &report.memory;
    let mut facts = Vec::new();
    if let Some(rss) = memory.rss_bytes {
        facts.push(format!(
            "resident {} → {}",
            bytes(rss.first as f64),
            bytes(rss.last as f64)
        ));
    }
    if let Some(growth) = memory.growth_bytes_per_s.filter(|growth| *growth > 0.0) {
        let left = memory
            .time_to_limit_s
            .map_or_else(String::new, |s| format!(" ({} left)", time(s)));
        facts.push(format!("grows by {}/s{left}", bytes(growth)));
    }
    if let Some(faults) = memory.faults {
        facts.push(format!(
            "{} minor and {} major page faults",
            faults.minor, faults.major
        ));
    }
    for (name, row) in memory.calls.iter().filter(|(_, row)| row.count > 0) {
        facts.push(format!("{} {name}", row.count));
    }
    if !facts.is_empty() {
        writeln!(out)?;
        wrapped(out, "memory: ", &facts.join(", "))?;
        kept(out, memory)?;
    }
    for killed in &memory.oom_kills {
        let text = format!(
            "{} {} ({}) was killed {} after the beginning: memory had run out",
            killed.role,
            killed.pid,
            killed.name,
            time(killed.at_s)
        );
        wrapped(out, "  ", &text)?;
    }
    for group in &memory.cgroups {
        if let (Some(kills @ 1..), Some(limit)) = (group.oom_kills, group.limit_bytes) {
            let times = if kills == 1 { "once" } else { "several times" };
            let text = format!(
                "control group {} ran out of its {} {times}",
                group.cgroup,
                bytes(limit as f64)
            );
            wrapped(out, "  ", &text)?;
        }
    }
    allocations(out, report)
}

/// What windows on the allocator tell.
fn allocations(out: &mut Page, report: &Report) -> std::fmt::Result {
    let memory = &report.memory;
    let (Some(seen), Some(rate), Some(size)) = (
        &memory.allocation,
        memory.allocs_per_s,
        memory.alloc_bytes_per_s,
    ) else {
        return Ok(());
    };
    let windows = format!(
        "{} of {:.1} ms in all",
        count(seen.windows as usize, "window", "windows"),
        seen.window_s * 1e3,
    );
    let text = if rate > 0.0 {
        format!(
            "{} a second, {}/s{} (from {windows})",
            estimate(rate, seen.allocs_per_s_error.unwrap_or(0.0)),
            bytes(size),
            give_or_take(seen.alloc_bytes_per_s_error.unwrap_or(0.0) / size.max(1.0)),
        )
    } else {
        format!("none in {windows}")
    };
    wrapped(out, "allocations: ", &text)?;
    if let Some(lived) = &seen.lifetimes {
        let text = format!(
            "freed within 1 ms: {} of calls, {} of bytes; within the window: {} of bytes",
            share(lived.freed_within_1ms_share, lived.error),
            share(
                lived.freed_within_1ms_bytes_share,
                lived.freed_within_1ms_bytes_share_error
            ),
            share(
                lived.freed_in_window_bytes_share,
                lived.freed_in_window_bytes_share_error
            ),
        );
        wrapped(out, "  ", &text)?;
    }
    for site in memory.sites.iter().take(SITES) {
        let function = site.function.as_deref().unwrap_or("?");
        let process = match report.job.processes.len() {
            1 => String::new(),
            _ => format!(", process {}", site.pid),
        };
        writeln!(
            out,
            "  {:>9}  {} in {} ({}{process})",
            share(site.share, site.share_error),
            clip(&function_name(function), 48),
            site.module.as_deref().unwrap_or("?"),
            site.allocator,
        )?;
    }
    Ok(())
}

/// Where memory is kept: only where it grows, and only what is more than its own error.
fn kept(out: &mut Page, memory: &Memory) -> std::fmt::Result {
    if memory.growth_bytes_per_s.is_none_or(|growth| growth <= 0.0) {
        return Ok(());
    }
    let sites = memory.kept_sites.iter().flatten();
    let sure = sites.filter(|site| site.error_bytes_per_s < site.kept_bytes_per_s);
    for site in sure.take(KEPT_SITES) {
        let function = site.function.as_deref().map(function_name);
        let first = function.and_then(|function| {
            let mut frames = site.stack.iter();
            frames.position(|frame| frame.starts_with(&function))
        });
        let from = first.unwrap_or_default();
        let native = site.stack[from..].iter();
        // What a job's own code can change is its own functions.
        let stack: Vec<String> = if site.python.is_empty() {
            native.take(FRAMES).cloned().collect()
        } else {
            let python = site.python.iter().take(FRAMES);
            native.take(1).chain(python).cloned().collect()
        };
        let mut mark = String::new();
        write!(
            mark,
            "  kept {:>3.0} %, {}/s: ",
            site.share * 100.0,
            bytes(site.kept_bytes_per_s)
        )?;
        wrapped(out, &mark, &stack.join(" < "))?;
    }
    Ok(())
}
