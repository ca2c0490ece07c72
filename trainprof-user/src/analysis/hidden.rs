//! Parts of steps that fell between two samples.
//!
//! Where two parts alternate and one of them lasts much longer than it usually does, with a gap between samples inside that could
//! hold the other one, the other one is taken to have been there: a loop does not leave out its own work. That they alternate evenly
//! must be plain without it.

use super::alternation::Run;

/// A stretch of so many times the usual length may be two.
const TOO_LONG: f64 = 1.6;
/// What is left on either side of a gap is at least this part of the usual length.
const LEAST_SIDE: f64 = 0.45;
/// A gap can hold a part that is this much of it as long: ends of parts are known to half a gap.
const HOLDS: f64 = 0.75;

/// Puts in the parts that samples at `times` (sorted) missed.
pub fn reveal(runs: &[Run], times: &[u64]) -> Vec<Run> {
    let usual = [0, 1].map(|state| usual(runs, state));
    let mut out = Vec::with_capacity(runs.len());
    for run in runs {
        let mut rest = *run;
        let other = usual[usize::from(1 - run.state)];
        while let Some((from, to)) = gap(&rest, times, usual[usize::from(run.state)], other) {
            out.push(Run { to: from, ..rest });
            out.push(Run {
                state: 1 - run.state,
                from,
                to,
                samples: 0,
            });
            rest.from = to;
        }
        out.push(rest);
    }
    out
}

/// Median length of the stretches of one part, ns.
fn usual(runs: &[Run], state: u8) -> f64 {
    let of = runs.iter().filter(|run| run.state == state);
    let mut lengths: Vec<u64> = of.map(|run| run.to - run.from).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0) as f64
}

/// Where in a stretch the other part may have been: in the first gap that can hold it and leaves enough on both sides.
fn gap(run: &Run, times: &[u64], usual: f64, other: f64) -> Option<(u64, u64)> {
    if ((run.to - run.from) as f64) < TOO_LONG * usual {
        return None;
    }
    let inside = &times[times.partition_point(|at| *at < run.from)..];
    let inside = &inside[..inside.partition_point(|at| *at <= run.to)];
    let pair = inside.windows(2).find(|pair| {
        (pair[1] - pair[0]) as f64 >= HOLDS * other
            && (pair[0] - run.from) as f64 >= LEAST_SIDE * usual
            && (run.to - pair[1]) as f64 >= LEAST_SIDE * usual
    })?;
    let length = (other as u64).min(pair[1] - pair[0]);
    let from = pair[0].midpoint(pair[1]) - length / 2;
    // Nothing is put in where the other part takes no time.
    (length > 0).then_some((from, from + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn run(state: u8, from: u64, to: u64) -> Run {
        Run {
            state,
            from: from * MS,
            to: to * MS,
            samples: 2,
        }
    }

    /// Steps of 20 ms of computing and 40 ms of something else, the computing of the second unseen.
    fn steps() -> Vec<Run> {
        vec![
            run(0, 0, 20),
            run(1, 20, 60),
            run(0, 60, 80),
            run(1, 80, 120),
            run(0, 120, 140),
            run(1, 140, 240),
            run(0, 240, 260),
            run(1, 260, 300),
        ]
    }

    #[test]
    fn a_part_that_no_sample_hit_is_put_into_the_gap_that_can_hold_it() {
        let times: Vec<u64> = (0..300)
            .step_by(10)
            .filter(|at| *at != 190)
            .map(|at| at * MS)
            .collect();
        let found = reveal(&steps(), &times);
        assert_eq!(found.len(), 10);
        assert_eq!(
            found[5..8],
            [
                run(1, 140, 180),
                Run {
                    samples: 0,
                    ..run(0, 180, 200)
                },
                run(1, 200, 240)
            ]
        );
    }

    #[test]
    fn samples_at_one_time_hide_nothing() {
        let runs = [run(0, 5, 5), run(1, 5, 5), run(0, 5, 5)];
        assert_eq!(reveal(&runs, &[5 * MS; 9]), runs);
    }

    #[test]
    fn without_such_a_gap_a_stretch_stays_whole() {
        let times: Vec<u64> = (0..300).step_by(10).map(|at| at * MS).collect();
        assert_eq!(reveal(&steps(), &times), steps());
    }
}
