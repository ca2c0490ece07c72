//! The results as Markdown: a table by step, and a chart of the last watched run over time.

use std::fmt::Write;

use super::{
    Round,
    figures::{Course, Facts, Step},
};
use crate::bench::{
    stats::Spread,
    table::{host, percent},
};

/// Seconds from one line of the chart to the next, and characters for one percent.
const LINE_S: f64 = 5.0;
const PERCENT_CHARS: f64 = 40.0;
/// Characters at most.
const WIDTH: usize = 60;

pub fn render(rounds: &[Round], args: &[String]) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, rounds, args);
    text
}

fn write_all(text: &mut String, rounds: &[Round], args: &[String]) -> std::fmt::Result {
    writeln!(
        text,
        "## The governor while a job allocates more and more\n"
    )?;
    writeln!(text, "{}\n", host())?;
    let mut command = "cargo xtask bench governor".to_owned();
    for arg in args {
        command += &format!(" {arg}");
    }
    writeln!(
        text,
        "One thread calls malloc at a rate that rises in steps, bare and under `trainprof attach PID` in turn. Told by trainprof: \
        windows, hits, what windows cost (hits by calibration, pauses, its own CPU time) of the job's CPU time in that step, and \
        what all of it cost from trainprof's start until then. \
        Measured by the job itself: by how much its calls took longer than usual together with the time in which it neither ran \
        nor waited for a CPU, of the step and of the worst ten seconds that end in it; and how much more CPU time it took for \
        its work than in the bare run of the round. Median [least, greatest] of {} rounds. Reproduce with `{command}`.\n",
        rounds.len()
    )?;
    table(text, rounds)?;
    whole(text, rounds)?;
    if let Some(last) = rounds.last() {
        writeln!(
            text,
            "\nThe last watched run: what was added to the thread in the ten seconds before, as it measured; `w`: windows in \
            these {LINE_S:.0} seconds. Last: all that watching had cost until then by trainprof's account, its start with it, of the job's CPU \
            time.\n"
        )?;
        writeln!(text, "```text\n{}```", chart(&last.watched, &last.facts))?;
    }
    Ok(())
}

fn table(text: &mut String, rounds: &[Round]) -> std::fmt::Result {
    writeln!(
        text,
        "| malloc a second | made | windows | hits | windows cost, told, % | all until then, told, % | added, measured, % | worst 10 s, measured, % | \
        the same, bare, % | CPU per work, % |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
    let steps = rounds
        .iter()
        .map(|r| r.watched.steps.len().min(r.bare.steps.len()));
    for n in 0..steps.min().unwrap_or(0) {
        let of = |value: &dyn Fn(&Round, &Step) -> Option<f64>| {
            Spread::of(rounds.iter().filter_map(|r| value(r, &r.watched.steps[n])))
        };
        let Some(first) = rounds.first() else { break };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            rate(first.watched.steps[n].rate),
            Spread::show(of(&|_, step| Some(step.calls / step.seconds())), 0),
            Spread::show(
                of(&|r, step| Some(r.facts.windows_in(step).count() as f64)),
                0
            ),
            Spread::show(
                of(&|r, step| Some(r.facts.windows_in(step).map(|w| w.hits).sum())),
                0
            ),
            Spread::show(of(&|r, step| Some(100.0 * r.facts.windows_share(step))), 2),
            Spread::show(of(&|r, step| Some(100.0 * r.facts.spent_until(step)?)), 2),
            Spread::show(of(&|_, step| Some(100.0 * step.added())), 2),
            Spread::show(of(&|r, step| Some(100.0 * r.watched.worst_in(step)?)), 2),
            Spread::show(
                of(&|r, _| Some(100.0 * r.bare.worst_in(&r.bare.steps[n])?)),
                2
            ),
            Spread::show(
                of(&|r, step| Some(percent(
                    step.cpu_per_piece(),
                    r.bare.steps[n].cpu_per_piece()
                ))),
                2
            ),
        )?;
    }
    Ok(())
}

/// The watch as a whole.
fn whole(text: &mut String, rounds: &[Round]) -> std::fmt::Result {
    let last = |round: &Round| round.watched.steps.last().cloned();
    let spent = Spread::of(
        rounds
            .iter()
            .filter_map(|r| Some(100.0 * r.facts.spent_until(&last(r)?)?)),
    );
    let budget = Spread::of(
        rounds
            .iter()
            .filter_map(|r| Some(100.0 * r.facts.states.last()?.budget)),
    );
    let worst = |share: &dyn Fn(&Round) -> Option<f64>| {
        Spread::show(
            Spread::of(rounds.iter().filter_map(|r| Some(100.0 * share(r)?))),
            2,
        )
    };
    let told =
        worst(&|r| r.used.report.as_ref()?["cost"]["windows"]["worst_thread_share"].as_f64());
    let measured = worst(&|r| {
        let recent = r.watched.recent().into_iter().map(|(_, share)| share);
        recent.max_by(f64::total_cmp)
    });
    writeln!(
        text,
        "\nThe whole watch: everything that watching cost {} % of the job's CPU time by its own account, of a budget of {} %; \
        added to the thread in its worst ten seconds {told} % by trainprof's account, {measured} % by its own.",
        Spread::show(spent, 2),
        budget.map_or_else(|| "–".to_owned(), |budget| format!("{:.1}", budget.median)),
    )
}

fn rate(per_s: f64) -> String {
    if per_s >= 1e6 {
        format!("{} M", per_s / 1e6)
    } else {
        format!("{} k", per_s / 1e3)
    }
}

fn chart(course: &Course, facts: &Facts) -> String {
    let mut text = String::new();
    let budget = facts.states.last().map_or(0.01, |state| state.budget);
    let recent = course.recent();
    let end = recent.last().map_or(0.0, |(at, _)| *at);
    let mut at = super::figures::HORIZON_S;
    while at <= end + 1e-6 {
        let share = recent
            .iter()
            .rev()
            .find(|(time, _)| *time <= at + 1e-6)
            .map_or(0.0, |(_, share)| *share);
        // The rate is that of the stretch which ends here.
        let step = course.step_at(at - LINE_S / 2.0);
        let windows = facts
            .windows
            .iter()
            .map(|window| course.seconds_at(window.from_ns))
            .filter(|time| at - LINE_S <= *time && *time < at)
            .count();
        let _ = writeln!(
            text,
            "{at:4.0} s {:>6}/s {windows:2} w {} {:.2} %, all {}",
            step.map_or_else(|| "–".to_owned(), |step| rate(step.rate)),
            bar(share, budget),
            100.0 * share,
            facts
                .spent_at(course.ns_at(at))
                .map_or_else(|| "–".to_owned(), |all| format!("{:.2} %", 100.0 * all)),
        );
        at += LINE_S;
    }
    text
}

/// A share as a bar, with a mark where the budget ends.
fn bar(share: f64, budget: f64) -> String {
    let chars = |share: f64| ((share * 100.0 * PERCENT_CHARS).round() as usize).min(WIDTH);
    let (filled, mark) = (chars(share), chars(budget));
    (0..WIDTH)
        .map(|n| match (n < filled, n == mark) {
            (true, _) => '█',
            (_, true) => '|',
            _ => ' ',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::figures, bar, chart, rate};

    #[test]
    fn a_bar_shows_share_and_budget() {
        let half = bar(0.005, 0.01);
        assert_eq!(half.matches('█').count(), 20);
        assert_eq!(half.find('|'), Some(20 * '█'.len_utf8() + 20));
        let beyond = bar(1.0, 0.01);
        assert!(!beyond.contains('|'));
        assert_eq!(beyond.chars().count(), bar(0.0, 0.01).chars().count());
    }

    #[test]
    fn a_line_for_each_five_seconds() {
        let course = figures::tests::course();
        let facts = figures::Facts::of(figures::tests::LINES).unwrap();
        let chart = chart(&course, &facts);
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines.len(), 3, "{chart}");
        // 9 ms of 9 s, and what the start took, which is not told here.
        assert!(
            lines[0].contains("10 k/s  0 w") && lines[0].ends_with(" 0.00 %, all 0.10 %"),
            "{chart}"
        );
        assert!(
            lines[1].contains("100 k/s  1 w") && lines[1].ends_with(" 1.00 %, all 0.10 %"),
            "{chart}"
        );
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(rate(10_000.0), "10 k");
        assert_eq!(rate(5_000_000.0), "5 M");
    }
}
