//! What watching costs a job, told by its twin: two jobs do the same work side by side, each with half of the host's CPU time,
//! and one of them is watched. What others do on the host, and how fast its processors happen to be, meets both alike, so the
//! ratio of the two holds still where the times of either do not.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use clap::Parser;

use super::{
    Common, Place, alloc,
    job::{Job, Work},
    lasting::Lasting,
    loads::Load,
    section,
    stats::Spread,
    table::{host, percent},
    tools::{Attached, Tool},
};
use crate::scenarios::group::{self, Group};

#[derive(Parser)]
#[command(
    name = "cargo xtask bench twins",
    about = "Measure what watching costs a job beside a twin that is not watched (control groups v1)"
)]
struct Options {
    /// What the jobs do
    #[arg(long, value_enum, default_value_t = Lasting::Jpeg)]
    job: Lasting,
    /// Rounds; in each both jobs are watched once, and once none is
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Turns of work in a watch
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..))]
    turns: u32,
    #[command(flatten)]
    common: Common,
}

/// What a heading calls it, and the name of its table.
fn heading(job: Lasting) -> (&'static str, &'static str) {
    match job {
        Lasting::Jpeg => ("A job", "twins"),
        Lasting::Allocations => ("A job that allocates", "twins-allocations"),
    }
}

/// A job in groups of its own: one whose CPU time is as much as the twin's, one that counts what it uses.
struct Twin {
    job: Job,
    equal: Group,
    counted: Group,
}

impl Twin {
    fn start(line: &[std::ffi::OsString], name: &str) -> Result<Self> {
        let job = Job::start(line)?;
        let twin = Self {
            equal: Group::new("cpu", name)?,
            counted: Group::new("cpuacct", name)?,
            job,
        };
        twin.take_in(twin.job.pid())?;
        Ok(twin)
    }

    /// Puts a process into its groups; 0: this one.
    fn take_in(&self, pid: u32) -> Result<()> {
        for group in [&self.equal, &self.counted] {
            group.set("cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Starts a tool that watches it. What the tool uses counts as this twin's.
    fn watch(&self, place: &Place) -> Result<Option<Attached>> {
        self.take_in(0)?;
        let attached = Attached::start(Tool::Trainprof, self.job.pid(), &place.paths);
        for controller in ["cpu", "cpuacct"] {
            group::leave(controller)?;
        }
        attached
    }
}

/// What one of the twins used in a turn, per unit of its work.
#[derive(Clone, Copy, Debug)]
struct Spent {
    wall: f64,
    job_cpu: f64,
    /// With the tool's.
    all_cpu: f64,
}

impl Spent {
    const FIGURES: [fn(&Self) -> f64; 3] = [|s| s.wall, |s| s.job_cpu, |s| s.all_cpu];
}

/// Percent of each of [`Spent::FIGURES`].
type Figures = [f64; 3];

/// Turns of both, in a row.
#[derive(Default)]
struct Leg {
    turns: Vec<[Spent; 2]>,
    /// What the tool says of its cost, percent, and what it used of a core.
    own_account: Option<f64>,
    own_share: Option<f64>,
}

/// Each of the twins watched in turn, and then, just so, neither.
struct Round {
    watched: [Leg; 2],
    bare: [Leg; 2],
}

pub fn run(args: &[String]) -> Result<()> {
    let program = "cargo xtask bench twins".to_owned();
    let options = match Options::try_parse_from(std::iter::once(&program).chain(args)) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let place = Place::new(&options.common, Load::Jpeg)?;
    group::sweep();
    let line = options.job.line(&place.bench, alloc::PICTURES)?;
    let mut twins = [Twin::start(&line, "one")?, Twin::start(&line, "other")?];
    // Warms the page cache, the allocator and the clock of the processor; not counted.
    turn(&mut twins)?;
    let mut rounds = Vec::new();
    for number in 0..options.rounds {
        let mut leg = |watched| leg(&mut twins, watched, options.turns, &place);
        let round = Round {
            watched: [leg(Some(0))?, leg(Some(1))?],
            bare: [leg(None)?, leg(None)?],
        };
        eprintln!(
            "round {}/{}: watched {}, bare {}",
            number + 1,
            options.rounds,
            show(&slower(&round.watched)),
            show(&slower(&round.bare)),
        );
        rounds.push(round);
    }
    let text = render(&rounds, args, &options)?;
    println!("{text}");
    if let Some(out) = &options.common.out {
        section::write(out, heading(options.job).1, &text)?;
    }
    Ok(())
}

fn leg(twins: &mut [Twin; 2], watched: Option<usize>, turns: u32, place: &Place) -> Result<Leg> {
    let mut leg = Leg::default();
    let mut before = used(twins)?;
    let mut attached = match watched {
        Some(which) => twins[which].watch(place)?,
        None => None,
    };
    for number in 0..turns {
        let work = turn(twins)?;
        if number + 1 == turns
            && let Some(attached) = attached.take()
        {
            let used = attached.stop()?;
            leg.own_share = Some(used.cpu_share_watching);
            let report = used.report.context("no report")?;
            leg.own_account = report["cost"]["slowdown_estimate_pct"].as_f64();
        }
        let after = used(twins)?;
        leg.turns.push([0, 1].map(|twin| Spent {
            wall: work[twin].wall_ns_per_unit(),
            job_cpu: work[twin].cpu_ns_per_unit(),
            all_cpu: (after[twin] - before[twin]) * 1e9 / work[twin].units,
        }));
        before = after;
    }
    Ok(leg)
}

/// CPU time of all that is or was in the twins' groups, seconds.
fn used(twins: &[Twin; 2]) -> Result<[f64; 2]> {
    Ok([twins[0].counted.cpu_s()?, twins[1].counted.cpu_s()?])
}

/// Both do their work once, at the same time.
fn turn(twins: &mut [Twin; 2]) -> Result<[Work; 2]> {
    for twin in &mut *twins {
        twin.job.go()?;
    }
    let [one, other] = twins;
    Ok([one.job.done()?, other.job.done()?])
}

/// By how many percent more of each figure the first took than the second in the first leg, and the second than the first in the
/// second leg: their geometric mean for each turn, in which whatever makes the two unlike is gone.
fn slower(legs: &[Leg; 2]) -> Vec<Figures> {
    let turns = legs[0].turns.iter().zip(&legs[1].turns);
    turns
        .map(|(first, second)| {
            Spent::FIGURES.map(|figure| {
                let ratio = figure(&first[0]) / figure(&first[1]);
                let back = figure(&second[1]) / figure(&second[0]);
                percent((ratio * back).sqrt(), 1.0)
            })
        })
        .collect()
}

fn show(turns: &[Figures]) -> String {
    let turns = turns.iter().map(|[wall, job, all]| {
        format!("{wall:+.1} % of wall, {job:+.1} % of the job's CPU, {all:+.1} % with the tool's")
    });
    turns.collect::<Vec<_>>().join("; ")
}

fn render(rounds: &[Round], args: &[String], options: &Options) -> Result<String> {
    let mut text = String::new();
    let command = args
        .iter()
        .fold(String::new(), |line, arg| line + " " + arg);
    writeln!(text, "## {} beside its twin\n", heading(options.job).0)?;
    writeln!(text, "{}\n", host())?;
    writeln!(
        text,
        "{}, twice at the same time: each has the same share of the CPUs, and what watches one of them has to do with that one's. \
        A watch is of {} turns of work; it attaches before the first of them, whose CPU time with trainprof's has the start in it. Each figure is by how much more the watched one took \
        than the other, per {}, as the geometric mean of a watch of the one and a watch of the other. Median [least, greatest]; \
        then where the true median lies with 95 % confidence, whatever the distribution. Reproduce with `cargo xtask bench twins{command}`.\n",
        options.job.title(),
        options.turns,
        options.job.unit(),
    )?;
    writeln!(
        text,
        "| watched | turns | pairs | wall, % | its median | job's CPU, % | its median | job's and trainprof's CPU, % | its median |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|")?;
    let told = |of: fn(&Round) -> &[Leg; 2]| -> Vec<Vec<Figures>> {
        rounds.iter().map(|round| slower(of(round))).collect()
    };
    for (name, all) in [
        ("one", told(|round| &round.watched)),
        ("none", told(|round| &round.bare)),
    ] {
        let first: Vec<Figures> = all.iter().filter_map(|t| t.first().copied()).collect();
        let later: Vec<Figures> = all.iter().flat_map(|t| t.iter().skip(1).copied()).collect();
        for (which, values) in [("the first", first), ("later ones", later)] {
            write!(text, "| {name} | {which} | {} |", values.len())?;
            for figure in 0..3 {
                let of = || values.iter().map(|value| value[figure]);
                let median = Spread::of_median(of()).map_or_else(
                    || "–".to_owned(),
                    |(low, high)| format!("{low:.1} to {high:.1}"),
                );
                write!(text, " {} | {median} |", Spread::show(Spread::of(of()), 1))?;
            }
            writeln!(text)?;
        }
    }
    let legs = || rounds.iter().flat_map(|round| &round.watched);
    let seconds = |leg: &Leg| leg.turns.iter().flatten().map(|s| s.wall).sum::<f64>() / 2.0;
    let units = f64::from(options.turns);
    let each = Spread::of(legs().map(|leg| seconds(leg) / units / 1e3));
    writeln!(
        text,
        "\nA {} took {} µs beside the other one. trainprof's own account of a whole watch: {} %; its collector used {} % of a core.",
        options.job.unit(),
        Spread::show(each, 0),
        Spread::show(Spread::of(legs().filter_map(|leg| leg.own_account)), 2),
        Spread::show(
            Spread::of(legs().filter_map(|leg| leg.own_share).map(|s| 100.0 * s)),
            2
        ),
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Leg, Spent, slower};

    fn leg(one: f64, other: f64) -> Leg {
        let spent = |wall| Spent {
            wall,
            job_cpu: 2.0 * wall,
            all_cpu: 1.0,
        };
        Leg {
            turns: vec![[spent(one), spent(other)]],
            ..Leg::default()
        }
    }

    #[test]
    fn what_makes_the_two_unlike_is_gone() {
        // The first is half as fast anyway; the second turn is on a faster host. Who is watched takes 2 % more.
        let told = slower(&[leg(2.04, 1.0), leg(1.0, 0.51)]);
        let [wall, job, all] = told[0];
        assert!((wall - 2.0).abs() < 1e-9, "{wall}");
        assert!((job - 2.0).abs() < 1e-9, "{job}");
        assert!(all.abs() < 1e-9, "{all}");
    }
}
