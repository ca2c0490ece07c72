//! Tables: processes, where the trainer's time went, its waits, directories. Rows are cut at the line's end.

use std::fmt::Write as _;

use super::units::{Page, bytes, clip, clip_left, count, micros, percent, wrapped};
use crate::{
    report::{
        model::{DirectoryRow, Io, ProcessRow, Report, WaitRow},
        threads::keep,
    },
    session::Id,
};

/// Ways and waits that are listed, and the part (0–1) of the time that each must have.
const WAYS: usize = 6;
const WAITS: usize = 5;
const WORKERS_WAITS: usize = 3;
const MIN_PART: f64 = 0.01;
/// A directory with less than this part (0–1) of all opens, bytes and waits says little.
const MIN_DIRECTORY: f64 = 0.02;
/// So do all of them where files are opened less often (a second), fewer bytes move (a second), and they are waited for for less than
/// this part (0–1) of the time.
const FEW_OPENS: f64 = 2.0;
const FEW_BYTES: f64 = 1e5;

/// Columns of the table of processes without the name, and of the name at most (TASK_COMM_LEN).
const BESIDE_NAME: usize = 72;
const LONGEST_NAME: usize = 16;

pub fn processes(out: &mut Page, report: &Report, top: usize) -> std::fmt::Result {
    let name = (out.width - BESIDE_NAME).min(LONGEST_NAME);
    writeln!(
        out,
        "\n{:>8} {:<8} {:<name$} {:>7} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}  {:>8}",
        "PID", "ROLE", "NAME", "THREADS", "CPU", "RUNQ", "DATA", "I/O", "LOCK", "REST", "CPU TIME"
    )?;
    let mut rows: Vec<&ProcessRow> = report.job.processes.iter().collect();
    rows.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s).then(a.pid.cmp(&b.pid)));
    let all = rows.len();
    let trainer = report.trainer.as_ref().map(|trainer| trainer.pid);
    keep(&mut rows, top, |row| Some(row.pid) == trainer);
    for row in &rows {
        let share = &row.share;
        let rest = share.other_wait
            + share.comm_wait
            + share.slot_wait.unwrap_or(0.0)
            + share.gpu_wait.unwrap_or(0.0);
        writeln!(
            out,
            "{:>8} {:<8} {:<name$} {:>7} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}  {:>7.2}s",
            row.pid,
            row.role,
            clip(&row.name, name),
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
    more(out, all, rows.len(), "process", "processes")?;
    wrapped(
        out,
        "         ",
        "(shares are of the leading thread's time, CPU TIME is of all threads)",
    )
}

/// The ways that the step thread's time went, back along wake-ups. Those that differ only in what there is no room for are one.
pub fn blame(out: &mut Page, report: &Report) -> std::fmt::Result {
    let mut rows = Vec::<(&str, String, f64, f64)>::new();
    for row in report.blame.iter().filter(|row| row.share >= MIN_PART) {
        let told = way(&row.path, out.width - 37);
        match rows
            .iter_mut()
            .find(|(kind, same, ..)| *kind == row.kind && *same == told)
        {
            Some((.., seconds, share)) => {
                *seconds += row.seconds;
                *share += row.share;
            }
            None => rows.push((row.kind, told, row.seconds, row.share)),
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    writeln!(out, "\nwhere the trainer's time went, back along wake-ups")?;
    for (kind, told, seconds, share) in rows.into_iter().take(WAYS) {
        let mark = format!("  {:>5} {seconds:>8.2} s  {kind:<16} ", percent(share));
        wrapped(out, &mark, &told)?;
    }
    Ok(())
}

/// A way in at most `width` characters: who waited and what it ends at matter most.
fn way(path: &[String], width: usize) -> String {
    let whole = path.join(" → ");
    match path {
        [first, .., last] if path.len() > 2 && whole.chars().count() > width => {
            format!("{first} → … → {last}")
        }
        _ => whole,
    }
}

pub fn waits(out: &mut Page, report: &Report) -> std::fmt::Result {
    let Some(trainer) = &report.trainer else {
        return Ok(());
    };
    let Some(thread) = report
        .threads
        .iter()
        .find(|thread| (thread.pid, thread.tid) == (trainer.pid, trainer.tid))
    else {
        return Ok(());
    };
    let own = thread.waits.iter().map(|wait| (trainer.pid, wait));
    let rows = longest(own, thread.present_s);
    if rows.is_empty() {
        return writeln!(
            out,
            "\nthe trainer's thread {} waited for nothing that took {} of the time",
            thread.tid,
            percent(MIN_PART)
        );
    }
    writeln!(out, "\nwhat the trainer's thread {} waited for", thread.tid)?;
    list(out, &rows, WAITS, thread.present_s)
}

/// What the leading threads of all worker processes waited for, together.
pub fn workers_waits(out: &mut Page, report: &Report) -> std::fmt::Result {
    let processes = report.job.processes.iter();
    let workers: Vec<&ProcessRow> = processes.filter(|row| row.role == "worker").collect();
    let present_s: f64 = workers.iter().filter_map(|row| row.present_s).sum();
    let waits = workers
        .iter()
        .flat_map(|row| row.waits.iter().map(|wait| (row.pid, wait)));
    let rows = longest(waits, present_s);
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nwhat the workers waited for")?;
    list(out, &rows, WORKERS_WAITS, present_s)
}

/// Waits that read alike as one, each with the process that waited: text, seconds and count of those that took a part of `present_s`
/// that is worth a line, the longest first.
fn longest<'a>(
    waits: impl Iterator<Item = (Id, &'a WaitRow)>,
    present_s: f64,
) -> Vec<(String, f64, u64)> {
    let mut rows = Vec::<(String, f64, u64)>::new();
    for (own, wait) in waits {
        let said = format!("{}, {}", waited_in(wait), ended_by(wait, own));
        match rows.iter_mut().find(|(same, _, _)| *same == said) {
            Some((_, seconds, count)) => {
                *seconds += wait.seconds;
                *count += wait.count;
            }
            None => rows.push((said, wait.seconds, wait.count)),
        }
    }
    rows.retain(|(_, seconds, _)| *seconds >= MIN_PART * present_s);
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows
}

fn list(
    out: &mut Page,
    rows: &[(String, f64, u64)],
    most: usize,
    present_s: f64,
) -> std::fmt::Result {
    for (said, seconds, count) in rows.iter().take(most) {
        let share = percent(seconds / present_s.max(1e-9));
        let mark = format!("  {share:>5} {seconds:>8.2} s {count:>8} × ");
        wrapped(out, &mark, said)?;
    }
    Ok(())
}

/// Kind, system call and object, each once.
fn waited_in(wait: &WaitRow) -> String {
    if wait.kind == "unseen" {
        return "not seen singly".to_owned();
    }
    let mut said = wait.kind.to_owned();
    if wait.syscall != wait.kind {
        let _ = write!(said, " in {}", wait.syscall);
    }
    // An address says nothing to a reader.
    if let Some(object) = wait.object.as_deref().filter(|on| !on.starts_with("0x")) {
        let _ = write!(said, " {object}");
    }
    said
}

fn ended_by(wait: &WaitRow, own: Id) -> String {
    match (&wait.waker.name, wait.waker.pid, wait.waker.kind) {
        (Some(name), Some(pid), _) if pid == own => format!(
            "woken by its own thread {} ({name})",
            wait.waker.tid.unwrap_or(pid)
        ),
        (Some(name), Some(pid), _) => format!("woken by process {pid} ({name})"),
        (_, _, "interrupt") => "ended by an interrupt".to_owned(),
        (_, _, "kernel") => "ended by the kernel".to_owned(),
        _ => "who ended it was not seen".to_owned(),
    }
}

pub fn files(out: &mut Page, report: &Report, top: usize) -> std::fmt::Result {
    let io = &report.io;
    let (Some(opens), Some(reads), Some(writes), Some(bytes_read), Some(bytes_written)) = (
        io.opens,
        io.reads,
        io.writes,
        io.bytes_read,
        io.bytes_written,
    ) else {
        return writeln!(out, "\nfiles: not seen here (trainprof doctor says why)");
    };
    if opens + reads + writes + bytes_read + bytes_written == 0 {
        return writeln!(out, "\nfiles: none opened, read or written");
    }
    let rate = |n: u64| n as f64 / report.duration_s.max(1e-9);
    let counted = report.coverage.calls_counted_share;
    let about = if counted < 1.0 { "about " } else { "" };
    let mut facts = vec![format!(
        "{about}{} opens ({:.0}/s), {} reads, {} read ({}/s), {} written",
        opens,
        rate(opens),
        reads,
        bytes(bytes_read as f64),
        bytes(rate(bytes_read)),
        bytes(bytes_written as f64),
    )];
    if let Some(share) = io.small_file_share.filter(|share| *share >= MIN_PART) {
        facts.push(format!("{} of opened files below 256 KiB", percent(share)));
    }
    if let Some(ratio) = io.cache_hit_ratio {
        facts.push(format!("{} of bytes from the cache", percent(ratio)));
    }
    let timed = [("open", io.latency_us.open), ("read", io.latency_us.read)];
    for (name, q) in timed.iter().filter_map(|(name, q)| Some((name, (*q)?))) {
        facts.push(format!(
            "{name} p50 {} p99 {}",
            micros(q.p50),
            micros(q.p99)
        ));
    }
    if counted < 1.0 {
        facts.push(format!(
            "estimates: calls were counted {} of the time",
            percent(counted)
        ));
    }
    writeln!(out)?;
    wrapped(out, "files: ", &facts.join("; "))?;
    directories(out, io, report.duration_s, top)
}

fn directories(out: &mut Page, io: &Io, seconds: f64, top: usize) -> std::fmt::Result {
    let all = &io.top;
    let sum = |of: fn(&DirectoryRow) -> f64| all.iter().map(of).sum::<f64>();
    let traffic: [fn(&DirectoryRow) -> f64; 3] = [
        |row| (row.totals.opens + row.totals.stats) as f64,
        |row| (row.totals.bytes + row.totals.bytes_written) as f64,
        |row| row.totals.wait_s,
    ];
    let sums = traffic.map(sum);
    let few = [FEW_OPENS, FEW_BYTES, MIN_PART].map(|rate| rate * seconds);
    if sums.iter().zip(few).all(|(sum, few)| *sum < few) {
        return Ok(());
    }
    let told: Vec<&DirectoryRow> = all
        .iter()
        .filter(|row| {
            traffic
                .iter()
                .zip(sums)
                .any(|(of, sum)| sum > 0.0 && of(row) >= MIN_DIRECTORY * sum)
        })
        .collect();
    if told.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:>9} {:>9} {:>10} {:>10} {:>8}  {:<8} DIRECTORY",
        "OPENS", "READS", "READ", "MEAN SIZE", "WAIT", "FS"
    )?;
    for row in told.iter().take(top) {
        writeln!(
            out,
            "{:>9} {:>9} {:>10} {:>10} {:>7.2}s  {:<8} {}",
            row.totals.opens,
            row.totals.reads,
            bytes(row.totals.bytes as f64),
            row.mean_file_bytes.map_or_else(|| "-".to_owned(), bytes),
            row.totals.wait_s,
            clip(row.filesystem.as_deref().unwrap_or("?"), 8),
            clip_left(&row.path, out.width - 61),
        )?;
    }
    // Those that say little are left out without a word, those that there was no room for are not.
    if told.len() > top || io.directories > all.len() {
        more(
            out,
            io.directories,
            told.len().min(top),
            "directory",
            "directories",
        )
    } else {
        Ok(())
    }
}

fn more(out: &mut Page, all: usize, shown: usize, one: &str, many: &str) -> std::fmt::Result {
    if all > shown {
        writeln!(
            out,
            "{:>8} more (--top N, or the JSON report)",
            count(all - shown, one, many)
        )
    } else {
        Ok(())
    }
}
