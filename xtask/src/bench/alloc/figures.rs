//! What the runs come to. Pure.

use serde_json::Value;

use super::tools::Peer;
use crate::bench::{job::Work, stats::Spread, table::percent, tools::Used};

/// One run of the job, in the order in which they were made.
pub struct Sample {
    pub peer: Peer,
    pub work: Work,
    pub used: Option<Used>,
}

/// By how many percent the job was slower under a tool, run by run, against the mean of the bare runs before and after.
pub fn slower(samples: &[Sample], peer: Peer, value: fn(&Work) -> f64) -> Option<Spread> {
    Spread::of(samples.iter().enumerate().filter_map(|(n, sample)| {
        (sample.peer == peer).then_some(())?;
        let bare = |sample: &Sample| (sample.peer == Peer::Bare).then(|| value(&sample.work));
        let before = n.checked_sub(1).and_then(|n| bare(&samples[n]))?;
        let after = samples.get(n + 1).and_then(bare)?;
        Some(percent(value(&sample.work), f64::midpoint(before, after)))
    }))
}

/// What trainprof told of a run, and the truth.
#[derive(Debug, PartialEq)]
pub struct Told {
    pub windows: Option<f64>,
    pub hits: Option<f64>,
    /// Percent of the job's CPU time that watching cost, as it says.
    pub spent: Option<f64>,
    /// Percent of the job's CPU time that hits and pauses of windows took.
    pub in_windows: Option<f64>,
    /// Percent that was added to one thread in its worst ten seconds.
    pub worst_thread: Option<f64>,
    /// Allocations a second, its own error in percent of that, and by how many percent it was off.
    pub rate: Option<f64>,
    pub error: Option<f64>,
    pub off: Option<f64>,
}

pub fn told(report: &Value, work: &Work, per_picture: f64) -> Told {
    let cost = &report["cost"];
    let windows = &cost["windows"];
    let number = |value: &Value, scale: f64| value.as_f64().map(|value| value * scale);
    let rate = number(&report["memory"]["allocs_per_s"], 1.0);
    let error = number(&report["memory"]["allocation"]["allocs_per_s_error"], 100.0);
    let truth = per_picture * work.units / work.wall_s;
    let in_windows = number(&windows["job_cpu_s"], 1.0)
        .zip(number(&windows["pause_s"], 1.0))
        .map(|(hits, pauses)| 100.0 * (hits + pauses) / work.cpu_s);
    Told {
        windows: number(&windows["count"], 1.0),
        hits: number(&windows["hits"], 1.0),
        spent: number(&cost["spent_share"], 100.0),
        in_windows,
        worst_thread: number(&windows["worst_thread_share"], 100.0),
        rate,
        error: error.zip(rate).map(|(error, rate)| error / rate),
        off: rate.map(|rate| percent(rate, truth)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Peer, Sample, slower, told};
    use crate::bench::job::Work;

    fn sample(peer: Peer, wall_s: f64, units: f64) -> Sample {
        let work = Work {
            wall_s,
            cpu_s: wall_s / 2.0,
            units,
            truth: Value::Null,
        };
        Sample {
            peer,
            work,
            used: None,
        }
    }

    #[test]
    fn a_run_is_compared_with_its_neighbours() {
        let samples = [
            sample(Peer::Bare, 10.0, 100.0),
            // Half the work in 6 s: 12 s for all of it.
            sample(Peer::Memray, 6.0, 50.0),
            sample(Peer::Bare, 14.0, 100.0),
            sample(Peer::Memray, 7.0, 50.0),
            sample(Peer::Bare, 14.0, 100.0),
        ];
        let spread = slower(&samples, Peer::Memray, Work::wall_ns_per_unit).unwrap();
        assert!(spread.min.abs() < 1e-9 && spread.max.abs() < 1e-9);
        assert_eq!(
            slower(&samples, Peer::Heaptrack, Work::wall_ns_per_unit),
            None
        );
        // Without a bare run on both sides there is nothing to compare with.
        let alone = &samples[..2];
        assert_eq!(slower(alone, Peer::Memray, Work::wall_ns_per_unit), None);
    }

    #[test]
    fn what_is_told_is_set_against_the_truth() {
        let report = json!({
            "memory": {"allocs_per_s": 1100.0, "allocation": {"allocs_per_s_error": 55.0}},
            "cost": {"spent_share": 0.004, "windows": {"count": 3, "hits": 900, "job_cpu_s": 0.02,
                "pause_s": 0.03, "worst_thread_share": 0.006}},
        });
        let told_of = told(&report, &sample(Peer::Trainprof, 10.0, 100.0).work, 100.0);
        let near = |value: Option<f64>, expected: f64| {
            assert!(
                value.is_some_and(|value| (value - expected).abs() < 1e-9),
                "{value:?} {expected}"
            );
        };
        near(told_of.windows, 3.0);
        near(told_of.spent, 0.4);
        near(told_of.in_windows, 1.0);
        near(told_of.worst_thread, 0.6);
        near(told_of.error, 5.0);
        near(told_of.off, 10.0);
        assert_eq!(
            told(&json!({}), &sample(Peer::Trainprof, 1.0, 1.0).work, 1.0).rate,
            None
        );
    }
}
