//! The results as Markdown.

use std::fmt::Write;

use serde_json::Value;

use super::loads::Load;
use super::overhead::{Sample, Series};
use super::stats::Spread;
use super::tools::{Tool, Used};

pub fn render(all: &[Series], tools: &[Tool], args: &[String]) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, all, tools, args);
    text
}

fn write_all(
    text: &mut String,
    all: &[Series],
    tools: &[Tool],
    args: &[String],
) -> std::fmt::Result {
    writeln!(text, "{}\n", host())?;
    for tool in tools {
        let version = tool
            .version()
            .map(|version| format!(" ({version})"))
            .unwrap_or_default();
        writeln!(text, "- **{}**{version}: {}", tool.name(), tool.command())?;
    }
    let mut command = "cargo xtask bench overhead".to_owned();
    for arg in args {
        command += &format!(" {arg}");
    }
    writeln!(
        text,
        "\nMedian [least, greatest] of interleaved runs; slow-downs against the bare run of the same round."
    )?;
    writeln!(text, "Reproduce with `{command}`.\n")?;
    for series in all {
        costs(text, series, tools)?;
    }
    own_cost(text, all)
}

/// The table of one load.
fn costs(text: &mut String, series: &Series, tools: &[Tool]) -> std::fmt::Result {
    let unit = series.load.unit();
    writeln!(text, "## {}\n", series.load.title())?;
    writeln!(
        text,
        "| tool | runs | wall, ns per {unit} | added, ns per {unit} | wall, % | job's CPU, % |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for &tool in tools {
        let samples: Vec<&Sample> = series.samples.iter().filter(|s| s.tool == tool).collect();
        if samples.is_empty() {
            continue;
        }
        let wall = Spread::of(samples.iter().map(|s| s.work.wall_ns_per_unit()));
        let against = |value: fn(&Sample, &Sample) -> f64| {
            if tool == Tool::Bare {
                return None;
            }
            Spread::of(
                samples
                    .iter()
                    .filter_map(|s| Some(value(s, bare_of(series, s.round)?))),
            )
        };
        let added = against(|s, bare| s.work.wall_ns_per_unit() - bare.work.wall_ns_per_unit());
        let slower =
            against(|s, bare| percent(s.work.wall_ns_per_unit(), bare.work.wall_ns_per_unit()));
        let cpu = against(|s, bare| percent(s.work.cpu_ns_per_unit(), bare.work.cpu_ns_per_unit()));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            tool.name(),
            samples.len(),
            Spread::show(wall, 0),
            Spread::show(added, 0),
            Spread::show(slower, 1),
            Spread::show(cpu, 1),
        )?;
    }
    let bare = series.samples.iter().filter(|s| s.tool == Tool::Bare);
    let rate = Spread::of(bare.map(|s| s.work.units / s.work.wall_s));
    writeln!(
        text,
        "\nBare: {} {} a second.",
        Spread::show(rate, 0),
        series.load.units()
    )?;
    if let Some(line) = agreement(series) {
        writeln!(text, "{line}")?;
    }
    writeln!(text)
}

fn bare_of(series: &Series, round: usize) -> Option<&Sample> {
    series
        .samples
        .iter()
        .find(|s| s.tool == Tool::Bare && s.round == round)
}

/// By how many percent a value is above a base.
pub fn percent(value: f64, base: f64) -> f64 {
    100.0 * (value / base - 1.0)
}

/// Whether trainprof's counts were those of the job: a cheap count that is wrong is worth nothing.
fn agreement(series: &Series) -> Option<String> {
    if series.load != Load::Tiny {
        return None;
    }
    let (mut exact, mut runs, mut lost, mut off) = (0, 0, 0, 0.0_f64);
    for sample in &series.samples {
        let Some(report) = sample.used.as_ref().and_then(|used| used.report.as_ref()) else {
            continue;
        };
        runs += 1;
        lost += report["coverage"]["lost"].as_u64().unwrap_or(0);
        let differs = [
            ("opens", "opens"),
            ("reads", "reads"),
            ("bytes_read", "bytes"),
        ]
        .map(|(told, true_)| {
            let told = report["io"][told].as_f64().unwrap_or(0.0);
            percent(told, sample.work.truth[true_].as_f64().unwrap_or(0.0)).abs()
        })
        .into_iter()
        .fold(0.0, f64::max);
        exact += u32::from(differs == 0.0);
        off = off.max(differs);
    }
    (runs > 0).then(|| {
        format!(
            "trainprof's opens, reads and bytes were exactly the job's in {exact} of {runs} runs, and nowhere off by more than {off:.1} % \
             (calls are counted in turns where the budget has no room for all); events lost: {lost}."
        )
    })
}

/// What trainprof itself used.
fn own_cost(text: &mut String, all: &[Series]) -> std::fmt::Result {
    let mut samples = all.iter().flat_map(|series| &series.samples);
    if !samples.any(|sample| sample.tool == Tool::Trainprof) {
        return Ok(());
    }
    writeln!(text, "## What trainprof itself uses\n")?;
    writeln!(
        text,
        "| load | attach to watching, ms | own CPU while watching, % of one core | own CPU with start and report, s | peak RSS, MiB | BPF, % of the window |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|")?;
    for series in all {
        let uses: Vec<&Used> = series
            .samples
            .iter()
            .filter(|s| s.tool == Tool::Trainprof)
            .filter_map(|s| s.used.as_ref())
            .collect();
        if uses.is_empty() {
            continue;
        }
        let cost = |key: &'static str, scale: f64| {
            Spread::of(uses.iter().filter_map(|used| {
                let report = used.report.as_ref()?;
                let value = report["cost"][key].as_f64()?;
                Some(value * scale / report["duration_s"].as_f64().filter(|s| *s > 0.0)?)
            }))
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            series.load.name(),
            Spread::show(Spread::of(uses.iter().map(|used| used.attach_s * 1e3)), 0),
            Spread::show(
                Spread::of(uses.iter().map(|used| used.cpu_share_watching * 100.0)),
                2
            ),
            Spread::show(Spread::of(uses.iter().map(|used| used.cpu_s)), 2),
            Spread::show(
                Spread::of(
                    uses.iter()
                        .map(|used| used.rss_max_bytes / f64::from(1 << 20))
                ),
                1
            ),
            Spread::show(cost("bpf_ns", 100.0 / 1e9), 2),
        )?;
    }
    Ok(())
}

/// The host, in a line.
pub fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name")?
                .split_once(':')
                .map(|(_, name)| name.trim())
        })
        .unwrap_or("unknown CPU");
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let memory_kib = read("/proc/meminfo")
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok())
        .unwrap_or(0);
    let stats = read("/proc/sys/kernel/bpf_stats_enabled");
    format!(
        "Linux {}, {model}, {cpus} CPUs, {} GiB; kernel.bpf_stats_enabled {} before the runs.",
        kernel.trim(),
        memory_kib >> 20,
        Value::from(stats.trim())
    )
}
