//! What watching costs a job that goes on: the same processes do the same work again and again, with a tool in every second
//! turn. That tells small costs better than runs of their own do, since runs of one program differ by more.

use std::{ffi::OsString, fmt::Write as _};

use anyhow::{Context, Result};
use clap::Parser;

use super::{
    Common, Place, chosen,
    job::{Job, Work},
    lasting::Lasting,
    loads::Load,
    section,
    stats::Spread,
    table::{host, percent},
    tools::{Attached, Launch, Paths, Tool},
};

/// Pictures that the allocating job makes in a turn, for about 15 s.
const PICTURES: f64 = 130_000.0;

#[derive(Parser)]
#[command(
    name = "cargo xtask bench turns",
    about = "Measure what watching costs a job that goes on, with and without it in turn"
)]
struct Options {
    /// Rounds; in each every tool has a turn, between two without one
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Jobs: jpeg, allocations
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// What takes turns beside a job without a tool.
fn arms(job: Lasting) -> [Arm; 2] {
    match job {
        Lasting::Jpeg => [Arm::Empty, Arm::Trainprof],
        Lasting::Allocations => [Arm::TrainprofOff, Arm::Trainprof],
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Bare,
    Empty,
    Trainprof,
    TrainprofOff,
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Empty => "empty",
            Self::Trainprof => "trainprof",
            Self::TrainprofOff => "trainprof --alloc off",
        }
    }

    fn attach(self, pid: u32, paths: &Paths) -> Result<Option<Attached>> {
        match self {
            Self::Bare => Ok(None),
            Self::Empty => Attached::start(Tool::Empty, pid, paths),
            Self::Trainprof => Attached::start(Tool::Trainprof, pid, paths),
            Self::TrainprofOff => {
                let launch =
                    Launch::trainprof("trainprof-off", paths, pid).args(&["--alloc", "off"]);
                Attached::launch(launch, &paths.scratch).map(Some)
            }
        }
    }
}

/// One turn of a job.
struct Turn {
    arm: Arm,
    work: Work,
    /// Share of a core that the tool used meanwhile, and windows of allocator probes that it opened.
    own_share: Option<f64>,
    windows: Option<f64>,
}

pub fn run(args: &[String]) -> Result<()> {
    let program = "cargo xtask bench turns".to_owned();
    let options = match Options::try_parse_from(std::iter::once(&program).chain(args)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let kinds = chosen(&options.only, &Lasting::ALL, Lasting::name)?;
    let Place { paths, bench } = Place::new(&options.common, Load::Jpeg)?;
    let mut all = Vec::new();
    for kind in kinds {
        let line = kind.line(&bench, PICTURES)?;
        all.push((kind, turns(kind, &line, options.rounds, &paths)?));
    }
    let text = render(&all, args)?;
    println!("{text}");
    if let Some(out) = &options.common.out {
        section::write(out, "turns", &text)?;
    }
    Ok(())
}

fn turns(kind: Lasting, line: &[OsString], rounds: usize, paths: &Paths) -> Result<Vec<Turn>> {
    let mut job = Job::start(line)?;
    // Warms the page cache, the allocator and the clock of the processor; not counted.
    turn(&mut job, Arm::Bare, paths)?;
    let mut turns = vec![turn(&mut job, Arm::Bare, paths)?];
    for round in 0..rounds {
        let mut arms = arms(kind);
        if round % 2 == 1 {
            arms.reverse();
        }
        for arm in arms {
            for arm in [arm, Arm::Bare] {
                let turn = turn(&mut job, arm, paths).with_context(|| arm.name())?;
                eprintln!(
                    "{} round {}/{rounds} {:<22} {:8.2} µs of wall and {:8.2} of CPU per {}",
                    kind.name(),
                    round + 1,
                    arm.name(),
                    turn.work.wall_ns_per_unit() / 1e3,
                    turn.work.cpu_ns_per_unit() / 1e3,
                    kind.unit()
                );
                turns.push(turn);
            }
        }
    }
    Ok(turns)
}

fn turn(job: &mut Job, arm: Arm, paths: &Paths) -> Result<Turn> {
    let attached = arm.attach(job.pid(), paths)?;
    let work = job.turn()?;
    let used = attached.map(Attached::stop).transpose()?;
    let report = used.as_ref().and_then(|used| used.report.as_ref());
    Ok(Turn {
        arm,
        work,
        own_share: used.as_ref().map(|used| used.cpu_share_watching),
        windows: report.and_then(|report| report["cost"]["windows"]["count"].as_f64()),
    })
}

/// By how many percent the turns of an arm took longer than the mean of the bare ones before and after.
fn slower(turns: &[Turn], arm: Arm, value: fn(&Work) -> f64) -> Vec<f64> {
    turns
        .windows(3)
        .filter(|near| near[1].arm == arm && near[0].arm == Arm::Bare && near[2].arm == Arm::Bare)
        .map(|near| {
            let bare = f64::midpoint(value(&near[0].work), value(&near[2].work));
            percent(value(&near[1].work), bare)
        })
        .collect()
}

fn render(all: &[(Lasting, Vec<Turn>)], args: &[String]) -> Result<String> {
    let mut text = String::new();
    let command = args
        .iter()
        .fold(String::new(), |line, arg| line + " " + arg);
    writeln!(
        text,
        "## A job that goes on, with and without a tool in turn\n"
    )?;
    writeln!(text, "{}\n", host())?;
    writeln!(
        text,
        "The same processes do the same work again and again. Each turn under a tool, from its first to its last second, is compared with \
        the mean of the bare turns before and after it. Median [least, greatest]; then where the true median lies with 95 % \
        confidence, whatever the distribution, were turns independent: neighbours share a bare one. Reproduce with `cargo xtask bench turns{command}`.\n"
    )?;
    writeln!(
        text,
        "| job | tool | turns | of seconds | wall, % | its median | job's CPU, % | its median | tool's own CPU, % of a core | windows |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
    for (kind, turns) in all {
        for arm in arms(*kind) {
            let of: Vec<&Turn> = turns.iter().filter(|turn| turn.arm == arm).collect();
            let [wall, cpu] =
                [Work::wall_ns_per_unit, Work::cpu_ns_per_unit].map(|v| slower(turns, arm, v));
            let between = |values: &[f64]| {
                Spread::of_median(values.iter().copied()).map_or_else(
                    || "–".to_owned(),
                    |(low, high)| format!("{low:.1} to {high:.1}"),
                )
            };
            let own = of.iter().filter_map(|turn| turn.own_share);
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                kind.name(),
                arm.name(),
                of.len(),
                Spread::show(Spread::of(of.iter().map(|turn| turn.work.wall_s)), 1),
                Spread::show(Spread::of(wall.iter().copied()), 1),
                between(&wall),
                Spread::show(Spread::of(cpu.iter().copied()), 1),
                between(&cpu),
                Spread::show(Spread::of(own.map(|share| 100.0 * share)), 2),
                Spread::show(Spread::of(of.iter().filter_map(|turn| turn.windows)), 0),
            )?;
        }
    }
    writeln!(text)?;
    for (kind, turns) in all {
        let bare = turns.iter().filter(|turn| turn.arm == Arm::Bare);
        let each = Spread::of(bare.map(|turn| turn.work.wall_ns_per_unit() / 1e3));
        let (name, title, unit) = (kind.name(), kind.title(), kind.unit());
        writeln!(
            text,
            "- **{name}**: {title}. Bare: {} µs a {unit}.",
            Spread::show(each, 1)
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Arm, Turn, slower};
    use crate::bench::job::Work;

    fn turn(arm: Arm, wall_s: f64) -> Turn {
        let work = Work {
            wall_s,
            cpu_s: 1.0,
            units: 10.0,
            truth: Value::Null,
        };
        Turn {
            arm,
            work,
            own_share: None,
            windows: None,
        }
    }

    #[test]
    fn a_turn_is_compared_with_the_bare_ones_around_it() {
        let turns = [
            turn(Arm::Bare, 1.0),
            turn(Arm::Trainprof, 1.1),
            turn(Arm::Bare, 1.2),
            turn(Arm::Empty, 1.5),
            turn(Arm::Bare, 1.3),
            turn(Arm::Trainprof, 1.43),
        ];
        // The last one has no bare turn after it.
        let told = slower(&turns, Arm::Trainprof, Work::wall_ns_per_unit);
        assert!(told.len() == 1 && told[0].abs() < 1e-9, "{told:?}");
        assert!((slower(&turns, Arm::Empty, Work::wall_ns_per_unit)[0] - 20.0).abs() < 1e-9);
    }
}
