//! What the job measured of itself, and what trainprof recorded of its windows. Pure.

use anyhow::{Context, Result};
use serde_json::Value;

/// The time over which the governor bounds what it adds to a thread, seconds.
pub const HORIZON_S: f64 = 10.0;

/// A stretch of the job at one rate. Times of the kernel's monotonic clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Calls of malloc a second that were due, and calls that were made.
    pub rate: f64,
    pub calls: f64,
    pub from_ns: u64,
    pub to_ns: u64,
    pub cpu_s: f64,
    /// Pieces of work between allocations.
    pub pieces: f64,
    /// By how much calls took more CPU time than usual, and for how long the thread neither ran nor waited for a CPU.
    pub slowed_ns: f64,
    pub blocked_ns: f64,
}

impl Step {
    pub fn seconds(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e9
    }

    pub fn cpu_per_piece(&self) -> f64 {
        self.cpu_s / self.pieces
    }

    /// Share of its time that was added to the thread, as it measured.
    pub fn added(&self) -> f64 {
        (self.slowed_ns + self.blocked_ns) / 1e9 / self.seconds()
    }
}

/// One run of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    pub steps: Vec<Step>,
    /// What was added to the thread, slot by slot.
    pub slot_s: f64,
    pub added_ns: Vec<f64>,
}

impl Course {
    /// From the job's own account (xtask/bench/rates.c).
    pub fn of(truth: &Value) -> Result<Self> {
        let steps = truth["steps"].as_array().context("no steps")?;
        let steps = steps
            .iter()
            .map(|step| {
                let number = |key: &str| {
                    step[key]
                        .as_f64()
                        .with_context(|| format!("a step without {key}"))
                };
                let time = |key: &str| {
                    step[key]
                        .as_u64()
                        .with_context(|| format!("a step without {key}"))
                };
                Ok(Step {
                    rate: number("rate")?,
                    calls: number("calls")?,
                    from_ns: time("from_ns")?,
                    to_ns: time("to_ns")?,
                    cpu_s: number("cpu_s")?,
                    pieces: number("pieces")?,
                    slowed_ns: number("slowed_ns")?,
                    blocked_ns: number("blocked_ns")?,
                })
            })
            .collect::<Result<_>>()?;
        let added = truth["added_ns"].as_array().context("no added_ns")?;
        Ok(Self {
            steps,
            slot_s: truth["slot_s"].as_f64().context("no slot_s")?,
            added_ns: added.iter().filter_map(Value::as_f64).collect(),
        })
    }

    fn begin_ns(&self) -> u64 {
        self.steps.first().map_or(0, |step| step.from_ns)
    }

    /// Share of the last ten seconds that was added to the thread, at the end of each slot from the tenth second on.
    pub fn recent(&self) -> Vec<(f64, f64)> {
        let slots = ((HORIZON_S / self.slot_s).round() as usize).max(1);
        self.added_ns
            .windows(slots)
            .enumerate()
            .map(|(n, recent)| {
                let at = (n + slots) as f64 * self.slot_s;
                let share = recent.iter().sum::<f64>() / 1e9 / (slots as f64 * self.slot_s);
                (at, share)
            })
            .collect()
    }

    /// The largest share of any ten seconds that end in a step; where the run is shorter than that, of none.
    pub fn worst_in(&self, step: &Step) -> Option<f64> {
        let from = (step.from_ns - self.begin_ns()) as f64 / 1e9;
        let to = (step.to_ns - self.begin_ns()) as f64 / 1e9;
        // The last slot of a step ends with it, as near as slots go.
        self.recent()
            .into_iter()
            .filter(|(at, _)| *at > from && *at <= to + self.slot_s)
            .map(|(_, share)| share)
            .max_by(f64::total_cmp)
    }

    /// The step at a time, seconds from the beginning.
    pub fn step_at(&self, at_s: f64) -> Option<&Step> {
        let ns = self.ns_at(at_s);
        self.steps
            .iter()
            .find(|step| step.from_ns <= ns && ns < step.to_ns)
    }

    /// A time, seconds from the beginning, by the kernel's clock.
    pub fn ns_at(&self, at_s: f64) -> u64 {
        self.begin_ns() + (at_s * 1e9) as u64
    }

    /// When something happened, seconds from the beginning.
    pub fn seconds_at(&self, ns: u64) -> f64 {
        ns as f64 / 1e9 - self.begin_ns() as f64 / 1e9
    }
}

/// A window of probes, as recorded. Nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    pub from_ns: u64,
    pub hits: f64,
    /// CPU time of the job that hits took; how long closing stopped its thread; CPU time of trainprof.
    pub job_ns: f64,
    pub pause_ns: f64,
    pub own_ns: f64,
}

impl Window {
    pub fn cost_ns(&self) -> f64 {
        self.job_ns + self.pause_ns + self.own_ns
    }
}

/// What the governor had come to.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub at_ns: u64,
    pub budget: f64,
    pub job_ns: f64,
    pub spent_ns: f64,
    pub worst_thread_ns: f64,
}

/// What a recording tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub windows: Vec<Window>,
    pub states: Vec<State>,
    /// CPU time of trainprof until the watch began.
    pub start_ns: f64,
}

impl Facts {
    /// From what `examples/windows` prints.
    pub fn of(text: &str) -> Result<Self> {
        let mut facts = Self::default();
        for line in text.lines() {
            let value: Value =
                serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
            let of = |fact: &Value, key: &str| {
                fact[key]
                    .as_f64()
                    .with_context(|| format!("no {key} in {line}"))
            };
            let at = |fact: &Value, key: &str| {
                fact[key]
                    .as_u64()
                    .with_context(|| format!("no {key} in {line}"))
            };
            if let Some(window) = value.get("window") {
                facts.windows.push(Window {
                    from_ns: at(window, "from")?,
                    hits: of(window, "hits")?,
                    job_ns: of(window, "job_ns")?,
                    pause_ns: of(window, "pause_ns")?,
                    own_ns: of(window, "own_ns")?,
                });
            } else if let Some(start) = value.get("start") {
                facts.start_ns = of(start, "own_ns")?;
            } else if let Some(state) = value.get("governor") {
                facts.states.push(State {
                    at_ns: at(state, "at")?,
                    budget: of(state, "budget")?,
                    job_ns: of(state, "job_ns")?,
                    spent_ns: of(state, "probes_ns")?
                        + of(state, "own_ns")?
                        + of(state, "windows_ns")?,
                    worst_thread_ns: of(state, "worst_thread_ns")?,
                });
            }
        }
        Ok(facts)
    }

    pub fn windows_in<'f>(&'f self, step: &Step) -> impl Iterator<Item = &'f Window> {
        let (from, to) = (step.from_ns, step.to_ns);
        self.windows
            .iter()
            .filter(move |window| from <= window.from_ns && window.from_ns < to)
    }

    /// What windows of a step cost, as a share of the job's CPU time in it.
    pub fn windows_share(&self, step: &Step) -> f64 {
        let ns: f64 = self.windows_in(step).map(Window::cost_ns).sum();
        ns / 1e9 / step.cpu_s
    }

    /// What watching had cost when the step ended, its start with it, as a share of the job's CPU time since then.
    pub fn spent_until(&self, step: &Step) -> Option<f64> {
        self.spent_at(step.to_ns)
    }

    /// The same at any time, nanoseconds of the kernel's clock.
    pub fn spent_at(&self, ns: u64) -> Option<f64> {
        let state = self.states.iter().rev().find(|state| state.at_ns <= ns)?;
        (state.job_ns > 0.0).then(|| (self.start_ns + state.spent_ns) / state.job_ns)
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// Two steps of 10 s; a tenth of a second is added in one slot of the second.
    pub fn course() -> Course {
        let step = |n: u64, rate: f64, slowed_ns: f64| Step {
            rate,
            calls: rate * 10.0,
            from_ns: 1_000 + n * 10_000_000_000,
            to_ns: 1_000 + (n + 1) * 10_000_000_000,
            cpu_s: 10.0,
            pieces: 1e6,
            slowed_ns,
            blocked_ns: 0.0,
        };
        let mut added_ns = vec![0.0; 200];
        added_ns[149] = 1e8;
        Course {
            steps: vec![step(0, 1e4, 0.0), step(1, 1e5, 1e8)],
            slot_s: 0.1,
            added_ns,
        }
    }

    pub const LINES: &str = concat!(
        r#"{"calibration":{"emulated_ns":700.0}}"#,
        "\n",
        r#"{"governor":{"at":9000000000,"budget":0.01,"job_ns":9000000000,"probes_ns":1000000,"own_ns":8000000,"windows_ns":0,"windows":0,"worst_thread_ns":0,"shed":[]}}"#,
        "\n",
        r#"{"window":{"from":15000000000,"hits":100,"job_ns":10000000,"pause_ns":9000000,"own_ns":1000000}}"#,
        "\n",
    );

    #[test]
    fn the_worst_ten_seconds_of_a_step() {
        let course = course();
        assert_eq!(course.worst_in(&course.steps[0]), Some(0.0));
        let worst = course.worst_in(&course.steps[1]).unwrap();
        assert!((worst - 0.01).abs() < 1e-9, "{worst}");
        assert!((course.steps[1].added() - 0.01).abs() < 1e-9);
        let short = Course {
            added_ns: vec![1e8; 50],
            ..course.clone()
        };
        assert_eq!(short.worst_in(&short.steps[0]), None);
    }

    #[test]
    fn facts_go_to_the_step_of_their_time() {
        let (course, facts) = (course(), Facts::of(LINES).unwrap());
        assert_eq!(facts.windows_in(&course.steps[0]).count(), 0);
        assert_eq!(facts.windows_in(&course.steps[1]).count(), 1);
        assert!((facts.windows_share(&course.steps[1]) - 0.002).abs() < 1e-9);
        assert_eq!(facts.spent_until(&course.steps[0]), Some(0.001));
        let start = r#"{"start":{"at":1,"own_ns":90000000}}"#;
        let facts = Facts::of(&format!("{start}\n{LINES}")).unwrap();
        assert_eq!(facts.spent_until(&course.steps[0]), Some(0.011));
        assert_eq!(Facts::default().spent_until(&course.steps[0]), None);
        assert!(Facts::of("nonsense").is_err());
    }

    #[test]
    fn the_jobs_account_is_read() {
        let truth = json!({
            "slot_s": 0.1, "added_ns": [1, 2],
            "steps": [{"rate": 10, "calls": 9, "from_ns": 5, "to_ns": 1_000_000_005u64, "cpu_s": 1.0, "pieces": 4,
                "slowed_ns": 1_000_000, "blocked_ns": 2_000_000}],
        });
        let course = Course::of(&truth).unwrap();
        assert_eq!(course.added_ns, [1.0, 2.0]);
        assert!((course.steps[0].added() - 0.003).abs() < 1e-12);
        assert!(Course::of(&json!({"steps": [{}]})).is_err());
    }
}
