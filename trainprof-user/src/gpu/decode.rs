//! From NVML's units and time stamps to facts: pure.

use crate::{
    record::gpu::{GpuMetric, GpuSampleFact},
    time::{Anchor, KtimeNs},
};

/// No utilisation sample of NVML covers more (nvml.h, `nvmlUtilization_t`: between 1/6 s and 1 s). A longer gap between
/// two samples was not measured.
const MAX_SPAN_NS: u64 = 1_000_000_000;

/// Kernel time of one of NVML's time stamps: microseconds since 1970 on the host's clock.
pub fn ktime(unix_us: u64, anchor: &Anchor) -> KtimeNs {
    let unix_ns = i128::from(unix_us) * 1000;
    let at = i128::from(anchor.ktime.0) + unix_ns - i128::from(anchor.unix_ns);
    KtimeNs(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
}

/// The samples of one buffer of the driver, drained again and again.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub device: u32,
    pub metric: GpuMetric,
    /// What one of NVML's units is.
    pub unit: f64,
    /// Time stamp of the newest sample seen, 0 before the first.
    pub last_us: u64,
    /// Samples that end before are not told.
    pub since: KtimeNs,
}

impl Buffer {
    /// The samples that are new. Each tells of the time since the one before it.
    pub fn facts(&mut self, samples: &[(u64, f64)], anchor: &Anchor) -> Vec<GpuSampleFact> {
        let mut sorted: Vec<(u64, f64)> = samples
            .iter()
            .copied()
            // The driver hands out slots that were never filled, too.
            .filter(|(at, _)| *at > self.last_us)
            .collect();
        sorted.sort_by_key(|(at, _)| *at);
        sorted.dedup_by_key(|(at, _)| *at);
        let mut out = Vec::new();
        for (at_us, value) in sorted {
            let span_ns = match self.last_us {
                0 => 0,
                last => ((at_us - last) * 1000).min(MAX_SPAN_NS),
            };
            self.last_us = at_us;
            let at = ktime(at_us, anchor);
            // The first sample's span is not known.
            if span_ns > 0 && at > self.since {
                out.push(GpuSampleFact {
                    device: self.device,
                    at,
                    span_ns,
                    metric: self.metric,
                    value: value * self.unit,
                });
            }
        }
        out
    }
}

/// A value that tells of the time since it was last asked for.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    last: Option<KtimeNs>,
}

impl Polled {
    /// The span of a reading, in ns; `None` for the first.
    pub fn span(&mut self, at: KtimeNs) -> Option<u64> {
        let last = self.last.replace(at)?;
        Some(at.since(last).min(MAX_SPAN_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANCHOR: Anchor = Anchor {
        ktime: KtimeNs(5_000_000_000),
        unix_ns: 1_700_000_000_000_000_000,
        uncertainty_ns: 10,
    };

    fn buffer() -> Buffer {
        Buffer {
            device: 3,
            metric: GpuMetric::Utilisation,
            unit: 0.01,
            last_us: 0,
            since: KtimeNs(0),
        }
    }

    #[test]
    fn time_stamps_become_kernel_time() {
        for (us, ns) in [
            (1_700_000_000_000_000, 5_000_000_000),
            (1_700_000_000_000_100, 5_000_100_000),
            (1_699_999_999_000_000, 4_000_000_000),
            (0, 0),
        ] {
            assert_eq!(ktime(us, &ANCHOR), KtimeNs(ns), "{us}");
        }
    }

    #[test]
    fn each_sample_tells_of_the_time_since_the_one_before() {
        let base = 1_700_000_000_000_000;
        let mut buffer = buffer();
        let first = buffer.facts(&[(base + 100_000, 50.0), (0, 0.0), (base, 10.0)], &ANCHOR);
        assert_eq!(first.len(), 1, "the first has no span: {first:?}");
        assert_eq!((first[0].span_ns, first[0].value), (100_000_000, 0.5));
        // The driver gives what it has, also what was there before.
        let second = buffer.facts(
            &[
                (base + 100_000, 50.0),
                (base + 300_000, 100.0),
                (base + 300_000, 100.0),
                (base + 9_000_000, 7.0),
            ],
            &ANCHOR,
        );
        let spans: Vec<_> = second.iter().map(|s| s.span_ns).collect();
        assert_eq!(spans, [200_000_000, 1_000_000_000]);
        assert_eq!(second[1].device, 3);
        assert!(buffer.facts(&[], &ANCHOR).is_empty());
    }

    #[test]
    fn what_was_before_the_watch_is_only_the_beginning_of_a_span() {
        let base = 1_700_000_000_000_000;
        let mut buffer = buffer();
        buffer.since = KtimeNs(5_000_000_000);
        let facts = buffer.facts(
            &[
                (base - 200_000, 1.0),
                (base - 100_000, 1.0),
                (base + 1, 2.0),
            ],
            &ANCHOR,
        );
        assert_eq!(facts.len(), 1);
        assert_eq!(facts[0].span_ns, 100_001_000);
    }
}
