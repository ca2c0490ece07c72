//! Steps as a clock found them: their number, how long they took, and how sure that is.

use super::facts::Facts;

/// Steps that make a clock.
pub(super) const MIN_STEPS: usize = 5;

/// Ends of steps that samples tell may be off by so much more in the mean square than the distance of the samples says.
const MOST_ERRORS: f64 = 2.0;

/// How sure steps are that no second clock counts, against those that one does.
const UNCHECKED: f64 = 0.85;
/// Two clocks that differ by this part or less count the same.
pub(super) const SAME: f64 = 0.02;

/// What steps were found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The trainer asked workers for the next batch.
    BatchRequests,
    /// The trainer took a batch from its workers.
    BatchHandOver,
    /// The trainer took a batch from a queue in its own memory.
    Queue,
    /// The trainer, having no workers, began to read a batch.
    OwnBatches,
    /// The trainer waited for a thread of its own that does a part of each step, such as the backward pass on a GPU.
    OwnThread,
    /// The trainer waited for the GPU to finish.
    GpuSync,
    /// The trainer waited for other ranks.
    Collectives,
    /// The trainer began a backward pass.
    BackwardPass,
    /// The trainer called for what its framework does of each step: what it compiled as a whole, or a round of boosting.
    FrameworkCalls,
    /// The trainer, computing alone, made the same calls again.
    OwnCalls,
}

impl Clock {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BatchRequests => "batch-requests",
            Self::BatchHandOver => "batch-hand-over",
            Self::Queue => "queue",
            Self::OwnBatches => "own-batches",
            Self::OwnThread => "own-thread",
            Self::GpuSync => "gpu-sync",
            Self::Collectives => "collectives",
            Self::BackwardPass => "backward-pass",
            Self::FrameworkCalls => "framework-calls",
            Self::OwnCalls => "own-calls",
        }
    }
}

/// Steps: stretches of time, in order.
#[derive(Clone, Debug)]
pub struct Steps {
    pub clock: Clock,
    pub spans: Vec<(u64, u64)>,
    /// 0–1: how regular they are, and how well a second clock agrees.
    pub confidence: f64,
    /// Batches, each with a backward pass, whose gradients a step accumulates in the mean; 1 where nothing tells that.
    pub parts: f64,
    /// How finely the beginning of a step is known, ns; 0: exactly.
    pub within_ns: u64,
    /// What other clocks count.
    pub others: Vec<(Clock, usize)>,
}

impl Steps {
    /// Lengths in ns, sorted.
    pub fn lengths(&self) -> Vec<u64> {
        let mut out: Vec<u64> = self.spans.iter().map(|(from, to)| to - from).collect();
        out.sort_unstable();
        out
    }

    /// Compares with what clocks count that other things drive. One that counts the same makes these surer; others may count
    /// parts of steps, or many of them at once, and say nothing against these.
    pub(super) fn compare(&mut self, others: Vec<(Clock, usize)>) {
        let count = self.spans.len();
        let same = |n: usize| n.abs_diff(count) as f64 <= SAME * count as f64;
        // Requests were compared with hand-overs.
        if self.clock != Clock::BatchRequests && others.iter().any(|(_, n)| same(*n)) {
            self.confidence = (self.confidence / UNCHECKED).min(1.0);
        }
        self.others = others;
    }

    /// Mean length, ns.
    pub fn mean_ns(&self) -> f64 {
        let total: u64 = self.spans.iter().map(|(from, to)| to - from).sum();
        total as f64 / self.spans.len().max(1) as f64
    }

    /// The 95 % confidence of the mean length, ns: ± this.
    pub fn mean_error_ns(&self) -> f64 {
        let n = self.spans.len() as f64;
        let mean = self.mean_ns();
        let squares: f64 = self
            .spans
            .iter()
            .map(|(from, to)| ((to - from) as f64 - mean).powi(2))
            .sum();
        2.0 * (squares / (n - 1.0).max(1.0) / n.max(1.0)).sqrt()
    }

    /// Mean square by which lengths near the `middle` one are off since ends are known no better than `within_ns`, ns².
    ///
    /// Off by up to half of that, evenly, is a variance of within² / 12 for each end, that is no step's own. An end that is taken for
    /// too late makes the step before too long and the one after it too short: what two steps in a row have in common that way shows
    /// how far off ends really are, up to so many times as much.
    fn errors(&self, middle: f64) -> f64 {
        let least = (self.within_ns as f64).powi(2) / 6.0;
        let off = |span: &(u64, u64)| (span.1 - span.0) as f64 - middle;
        let near = |off: f64| off.abs() <= 0.5 * middle;
        let products: Vec<f64> = self
            .spans
            .windows(2)
            .map(|pair| (off(&pair[0]), off(&pair[1])))
            .filter(|(a, b)| near(*a) && near(*b))
            .map(|(a, b)| a * b)
            .collect();
        let shared = products.iter().sum::<f64>() / products.len().max(1) as f64;
        (-2.0 * shared).clamp(least, MOST_ERRORS * least)
    }

    /// Length below which a share `q` (0–1) of the steps stayed, ns.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let sorted = self.lengths();
        let at = ((sorted.len() as f64 - 1.0) * q).round() as usize;
        let found = sorted.get(at).copied().unwrap_or(0);
        if self.within_ns == 0 || found == 0 {
            return found;
        }
        let middle = sorted[sorted.len() / 2] as f64;
        let near: Vec<f64> = sorted
            .iter()
            .map(|length| *length as f64)
            .filter(|length| (0.5 * middle..2.0 * middle).contains(length))
            .map(|length| length - middle)
            .collect();
        let variance = near.iter().map(|d| d * d).sum::<f64>() / near.len().max(1) as f64;
        let own = (1.0 - self.errors(middle) / variance.max(1.0)).clamp(0.0, 1.0);
        // It is lumpy as well: what it adds is nothing on average, but not in the middle one.
        let mean = near.iter().sum::<f64>() / near.len().max(1) as f64;
        let found = found as f64;
        let out = if found < 2.0 * middle {
            middle + (1.0 - own) * mean + (found - middle) * own.sqrt()
        } else {
            found
        };
        out as u64
    }
}

/// Steps from one of these times to the next, where all of it is known; `other`: how many another clock counts.
pub(super) fn build(facts: &Facts, clock: Clock, times: Vec<u64>, other: Option<usize>) -> Steps {
    let spans: Vec<(u64, u64)> = times
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .filter(|(from, to)| {
            to > from
                && facts
                    .spans
                    .iter()
                    .any(|(begin, end)| begin <= from && to <= end)
        })
        .collect();
    let mut steps = Steps {
        clock,
        spans,
        confidence: 0.0,
        parts: 1.0,
        within_ns: 0,
        others: Vec::new(),
    };
    let usual = steps.quantile_ns(0.5) as f64;
    let regular = steps
        .spans
        .iter()
        .filter(|(from, to)| {
            let length = (to - from) as f64;
            length > 0.5 * usual && length < 2.0 * usual
        })
        .count() as f64
        / steps.spans.len().max(1) as f64;
    let agreement = other.map_or(UNCHECKED, |other| {
        let (a, b) = (other as f64, steps.spans.len() as f64);
        a.min(b) / a.max(b).max(1.0)
    });
    let enough = (steps.spans.len() as f64 / 20.0).min(1.0);
    steps.confidence = regular * agreement * enough;
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_alike_whose_ends_are_known_badly_have_no_tail() {
        // 60 ms each, in truth; ends off by up to 9 ms either way, where samples are 10 ms apart.
        let mut seed = 1_u64;
        let mut off = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % 18_000_000
        };
        let ends: Vec<u64> = (1..400).map(|n| n * 60_000_000 + off()).collect();
        let mut steps = Steps {
            clock: Clock::OwnBatches,
            spans: ends.windows(2).map(|pair| (pair[0], pair[1])).collect(),
            confidence: 1.0,
            parts: 1.0,
            within_ns: 0,
            others: Vec::new(),
        };
        assert!(steps.quantile_ns(0.95) > 70_000_000);
        steps.within_ns = 12_700_000;
        let p95 = steps.quantile_ns(0.95);
        assert!((58_000_000..63_000_000).contains(&p95), "{p95}");
    }

    #[test]
    fn steps_that_differ_keep_their_tail() {
        // One in ten takes half as long again.
        let ends: Vec<u64> = (0..400_u64)
            .map(|n| n * 60_000_000 + n / 10 * 30_000_000)
            .collect();
        let steps = Steps {
            clock: Clock::OwnBatches,
            spans: ends.windows(2).map(|pair| (pair[0], pair[1])).collect(),
            confidence: 1.0,
            parts: 1.0,
            within_ns: 5_000_000,
            others: Vec::new(),
        };
        assert!(steps.quantile_ns(0.95) > 80_000_000);
    }

    #[test]
    fn a_second_clock_that_counts_the_same_makes_surer() {
        let compared = |clock, others: &[(Clock, usize)]| {
            let mut steps = Steps {
                clock,
                spans: (0..100).map(|n| (n, n + 1)).collect(),
                confidence: 0.8,
                parts: 1.0,
                within_ns: 0,
                others: Vec::new(),
            };
            steps.compare(others.to_vec());
            steps.confidence
        };
        let sure = compared(
            Clock::Queue,
            &[(Clock::GpuSync, 400), (Clock::Collectives, 101)],
        );
        assert!((sure - 0.8 / 0.85).abs() < 1e-9);
        assert_eq!(compared(Clock::Queue, &[(Clock::GpuSync, 400)]), 0.8);
        assert_eq!(
            compared(Clock::BatchRequests, &[(Clock::GpuSync, 100)]),
            0.8
        );
    }
}
