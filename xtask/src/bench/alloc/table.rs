//! The results as Markdown.

use std::fmt::Write;

use super::{
    TITLE,
    figures::{Sample, Told, slower, told},
    tools::Peer,
};
use crate::bench::{job::Work, stats::Spread, table::host};

pub fn render(
    samples: &[Sample],
    left_out: &[(Peer, String)],
    per_picture: f64,
    args: &[String],
) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, samples, left_out, per_picture, args);
    text
}

fn write_all(
    text: &mut String,
    samples: &[Sample],
    left_out: &[(Peer, String)],
    per_picture: f64,
    args: &[String],
) -> std::fmt::Result {
    writeln!(text, "## Allocations\n")?;
    writeln!(text, "{TITLE}, bare and under each tool in turn.\n")?;
    writeln!(text, "{}\n", host())?;
    for peer in Peer::ALL {
        if samples.iter().any(|sample| sample.peer == peer) {
            let version = peer
                .version()
                .map(|version| format!(" ({version})"))
                .unwrap_or_default();
            writeln!(text, "- **{}**{version}: {}", peer.name(), peer.shown())?;
        }
    }
    let mut command = "cargo xtask bench alloc".to_owned();
    for arg in args {
        command += &format!(" {arg}");
    }
    writeln!(
        text,
        "\nMedian [least, greatest]; slow-downs against the mean of the bare runs just before and after, per picture; CPU is the \
        job's own, user and system. Reproduce with `cargo xtask setup --bench` and `{command}`.\n"
    )?;
    slow_downs(text, samples, left_out)?;
    let bare = samples.iter().filter(|sample| sample.peer == Peer::Bare);
    let rate = Spread::of(bare.map(|s| per_picture * s.work.units / s.work.wall_s / 1e6));
    writeln!(
        text,
        "\nBare: {} million allocations a second ({per_picture:.2} for each picture, counted by a library in a run of its own).\n",
        Spread::show(rate, 2)
    )?;
    what_was_told(text, samples, per_picture)
}

fn slow_downs(
    text: &mut String,
    samples: &[Sample],
    left_out: &[(Peer, String)],
) -> std::fmt::Result {
    writeln!(
        text,
        "| tool | runs | wall, µs per picture | wall, % | job's CPU, % |"
    )?;
    writeln!(text, "|---|---|---|---|---|")?;
    for peer in Peer::ALL {
        if let Some((_, lack)) = left_out.iter().find(|(other, _)| *other == peer) {
            writeln!(
                text,
                "| {} | 0 | **left out: {lack}** | – | – |",
                peer.name()
            )?;
            continue;
        }
        let runs: Vec<&Sample> = samples.iter().filter(|s| s.peer == peer).collect();
        if runs.is_empty() {
            continue;
        }
        let wall = Spread::of(runs.iter().map(|s| s.work.wall_ns_per_unit() / 1e3));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            peer.name(),
            runs.len(),
            Spread::show(wall, 1),
            Spread::show(slower(samples, peer, Work::wall_ns_per_unit), 1),
            Spread::show(slower(samples, peer, Work::cpu_ns_per_unit), 1),
        )?;
    }
    Ok(())
}

fn what_was_told(text: &mut String, samples: &[Sample], per_picture: f64) -> std::fmt::Result {
    let of = |peer: Peer| -> Vec<Told> {
        samples
            .iter()
            .filter(|sample| sample.peer == peer)
            .filter_map(|sample| {
                let report = sample.used.as_ref()?.report.as_ref()?;
                Some(told(report, &sample.work, per_picture))
            })
            .collect()
    };
    let runs = of(Peer::Trainprof);
    if runs.is_empty() {
        return Ok(());
    }
    writeln!(text, "### What trainprof says of these runs\n")?;
    writeln!(text, "| in its report | |\n|---|---|")?;
    type Value = fn(&Told) -> Option<f64>;
    let rows: [(&str, Value, usize); 8] = [
        ("windows opened", |t| t.windows, 0),
        ("hits", |t| t.hits, 0),
        (
            "all that watching cost, % of the job's CPU time",
            |t| t.spent,
            2,
        ),
        ("of that hits and pauses of windows, %", |t| t.in_windows, 2),
        (
            "added to the thread in its worst ten seconds, %",
            |t| t.worst_thread,
            2,
        ),
        (
            "allocations a second, million",
            |t| t.rate.map(|rate| rate / 1e6),
            3,
        ),
        ("their stated error, %", |t| t.error, 1),
        ("their difference from what the job did, %", |t| t.off, 1),
    ];
    for (name, value, decimals) in rows {
        let spread = Spread::of(runs.iter().filter_map(value));
        writeln!(text, "| {name} | {} |", Spread::show(spread, decimals))?;
    }
    Ok(())
}
