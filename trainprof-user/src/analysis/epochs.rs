//! Epochs: when the job began to go through its data anew, as far as that shows from outside.
//!
//! Two signs are sure enough. A whole set of workers has ended before the next one is made. Or everything that workers had
//! been asked for was taken while nothing more was asked for, and then several batches were asked for at once. Either must
//! come back evenly: epochs of one job are alike, or alternate with an evaluation.

use super::{
    cast::Cast,
    causes::Scene,
    facts::Facts,
    messages::{hand_overs, requests},
    steps::Steps,
};

/// Requests that follow each other within this share of the usual time are made at once, and so many are a new
/// beginning: fewer follow each other by chance.
const AT_ONCE: f64 = 0.1;
const MIN_AT_ONCE: usize = 3;
/// Of as many batches as are asked for at once, this share was taken just before while none was asked for.
const DRAINED: f64 = 0.5;
/// The longest of several alike, over the shortest: in time, and in batches.
const ALIKE_TIME: f64 = 1.5;
const ALIKE_BATCHES: f64 = 1.1;
/// Whole epochs that make a pattern.
const MIN_EPOCHS: usize = 2;
/// An epoch is more than a few steps.
const MIN_STEPS: f64 = 3.0;

/// What epochs were found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A whole set of workers ended, and another was made.
    WorkerSets,
    /// Nothing was left to ask for, and then several batches were asked for at once.
    BatchRequests,
}

impl Sign {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkerSets => "worker-sets",
            Self::BatchRequests => "batch-requests",
        }
    }
}

/// Whole epochs of the watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epochs {
    pub sign: Sign,
    pub count: usize,
    /// Mean length, seconds, and its 95 % confidence: ± this.
    pub mean_s: f64,
    pub error_s: f64,
}

/// Finds them; `None` where nothing tells.
pub fn epochs(facts: &Facts, cast: &Cast, scene: &Scene, steps: Option<&Steps>) -> Option<Epochs> {
    let found = by_worker_sets(facts, cast).or_else(|| by_requests(facts, cast, scene))?;
    let step_s = steps.map_or(0.0, |steps| steps.mean_ns() / 1e9);
    (found.mean_s > MIN_STEPS * step_s).then_some(found)
}

fn by_worker_sets(facts: &Facts, cast: &Cast) -> Option<Epochs> {
    let session = facts.session;
    let start = session.start.as_ref()?.at.0;
    let mut lives: Vec<(u64, u64)> = cast
        .workers
        .iter()
        .filter_map(|pid| {
            let threads = session.threads_of(*pid);
            let gone = threads.map(|t| t.until.map_or(u64::MAX, |until| until.0));
            Some((session.processes.get(pid)?.since.0, gone.max()?))
        })
        .collect();
    lives.sort_unstable();
    let mut turns = Vec::new();
    // Those that were there from the start say nothing of when they began.
    let mut all_gone = start + 1;
    for (born, gone) in lives {
        if born >= all_gone {
            turns.push(born);
        }
        all_gone = all_gone.max(gone);
    }
    let lengths: Vec<f64> = turns
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64)
        .collect();
    whole(Sign::WorkerSets, &turns, &lengths, ALIKE_TIME)
}

fn by_requests(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Epochs> {
    if cast.workers.is_empty() {
        return None;
    }
    let requests = requests(facts, cast, scene.locks);
    let mut taken: Vec<u64> = hand_overs(facts, cast, |tid| facts.pid(tid) == Some(cast.trainer))
        .into_values()
        .flatten()
        .collect();
    taken.sort_unstable();
    let mut gaps: Vec<u64> = requests.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() / 2).copied()?;
    let least = (usual as f64 * AT_ONCE) as u64;
    // Where in the requests each epoch begins.
    let mut begins: Vec<usize> = Vec::new();
    let mut at = 0_usize;
    for group in requests.chunk_by(|a, b| b - a < least) {
        let drained = at.checked_sub(1).map_or(0, |before| {
            taken.partition_point(|t| *t < requests[at])
                - taken.partition_point(|t| *t <= requests[before])
        });
        let new = begins
            .last()
            .is_none_or(|last| requests[at] - requests[*last] > 2 * usual);
        if group.len() >= MIN_AT_ONCE && drained as f64 >= DRAINED * group.len() as f64 && new {
            begins.push(at);
        }
        at += group.len();
    }
    let turns: Vec<u64> = begins.iter().map(|at| requests[*at]).collect();
    let batches: Vec<f64> = begins
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64)
        .collect();
    // In a stretch with a hole turns are missing.
    let unbroken = facts
        .spans
        .iter()
        .any(|(from, to)| turns.iter().all(|turn| (*from..=*to).contains(turn)));
    unbroken
        .then(|| whole(Sign::BatchRequests, &turns, &batches, ALIKE_BATCHES))
        .flatten()
}

/// Epochs between turns (ns), if they are alike one by one or, an evaluation coming between, two by two. `sizes`: how large
/// each is, which may be at most `alike` times as much for the largest as for the smallest.
fn whole(sign: Sign, turns: &[u64], sizes: &[f64], alike: f64) -> Option<Epochs> {
    let each = (1..=2).find(|each| {
        let sums: Vec<f64> = sizes
            .chunks_exact(*each)
            .map(|sizes| sizes.iter().sum())
            .collect();
        let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
        let most = sums.iter().copied().fold(0.0, f64::max);
        sums.len() >= MIN_EPOCHS && most <= alike * least
    })?;
    let marks: Vec<u64> = turns.iter().step_by(each).copied().collect();
    let lengths: Vec<f64> = marks
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64 / 1e9)
        .collect();
    let n = lengths.len() as f64;
    let mean = lengths.iter().sum::<f64>() / n;
    let squares: f64 = lengths.iter().map(|length| (length - mean).powi(2)).sum();
    Some(Epochs {
        sign,
        count: lengths.len(),
        mean_s: mean,
        error_s: 2.0 * (squares / (n - 1.0) / n).sqrt(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sizes: &[f64], alike: f64) -> Option<Epochs> {
        let mut turns = vec![5_000_000_000];
        for size in sizes {
            turns.push(turns[turns.len() - 1] + (size * 1e9) as u64);
        }
        whole(Sign::WorkerSets, &turns, sizes, alike)
    }

    #[test]
    fn epochs_are_alike_or_alternate_with_an_evaluation() {
        let alike = of(&[10.0, 10.5, 9.5], 1.2).expect("three alike");
        assert_eq!(alike.count, 3);
        assert!((alike.mean_s - 10.0).abs() < 1e-9);
        assert!((alike.error_s - 2.0 * 0.5 / 3_f64.sqrt()).abs() < 1e-9);
        let pairs = of(&[10.0, 2.0, 10.2, 1.8, 9.0], 1.2).expect("two pairs");
        assert_eq!(pairs.count, 2);
        assert!((pairs.mean_s - 12.0).abs() < 1e-9);
        for not in [&[][..], &[10.0], &[10.0, 20.0], &[10.0, 2.0, 5.0, 1.0]] {
            assert_eq!(of(not, 1.2), None, "{not:?}");
        }
    }
}
