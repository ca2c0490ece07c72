//! The join of GPU samples with the host: every idle second of a GPU goes to what the host did in it.
//!
//! A sample says how much of its span was idle, not when. Idle time goes first to what no GPU work can overlap
//! with (stalls, copies, waits), the rest to the trainer's own computing. How far that may be wrong is carried
//! along: a span that is neither all idle nor all busy can be misjudged by the smaller of the two.

use std::collections::BTreeMap;

use super::{
    gpu::{GpuTime, IdleSpan},
    kind::Kind,
    spans::overlap,
    walk::Piece,
};

/// Idle seconds by cause.
#[derive(Clone, Debug, Default)]
pub struct IdleBlame {
    pub idle_s: f64,
    /// Seconds that samples tell about.
    pub seen_s: f64,
    pub by_kind: BTreeMap<Kind, f64>,
    /// Seconds that may belong to another cause.
    pub uncertain_s: f64,
}

/// Blames the idle time of one mean device. `kinds`: for each leaf its causes with their shares.
pub fn blame(
    gpu: &GpuTime,
    walked: &[(u64, u64)],
    pieces: &[Piece],
    kinds: &[Vec<(Kind, f64)>],
) -> IdleBlame {
    let mut out = IdleBlame::default();
    // A span of which a part was not walked would leave idle time to nobody.
    let is_walked =
        |span: &&IdleSpan| overlap(walked, span.from, span.to) * 10 >= (span.to - span.from) * 9;
    let devices = gpu.sampled_devices.max(1) as f64;
    // Longest piece: how far back a piece that overlaps a span can begin.
    let longest = pieces
        .iter()
        .map(|piece| piece.to - piece.from)
        .max()
        .unwrap_or(0);
    for span in gpu.spans.iter().filter(|span| is_walked(span)) {
        let length = (span.to - span.from) as f64;
        let idle = length * span.idle;
        out.seen_s += length / 1e9 / devices;
        out.idle_s += idle / 1e9 / devices;
        let mut doing = BTreeMap::<Kind, f64>::new();
        let first = pieces.partition_point(|piece| piece.from + longest < span.from);
        for piece in pieces[first..]
            .iter()
            .take_while(|piece| piece.from < span.to)
        {
            let upper = piece.to.min(span.to);
            let lower = piece.from.max(span.from);
            if upper <= lower {
                continue;
            }
            let ns = piece.ns * (upper - lower) as f64 / (piece.to - piece.from) as f64;
            for (kind, share) in &kinds[piece.leaf as usize] {
                *doing.entry(*kind).or_default() += ns * share;
            }
        }
        let overlapping = |kind: &Kind| matches!(kind, Kind::Compute | Kind::HostCompute);
        let stalled: f64 = doing
            .iter()
            .filter(|(kind, _)| !overlapping(kind))
            .map(|(_, ns)| ns)
            .sum();
        let to_stalls = idle.min(stalled);
        let parted = idle.min(length - idle);
        out.uncertain_s += parted / 1e9 / devices;
        for (kind, ns) in &doing {
            if !overlapping(kind) && stalled > 0.0 {
                *out.by_kind.entry(*kind).or_default() += to_stalls * ns / stalled / 1e9 / devices;
            }
        }
        let computing: f64 = doing
            .iter()
            .filter(|(kind, _)| overlapping(kind))
            .map(|(_, ns)| ns)
            .sum();
        let rest = idle - to_stalls;
        let kind = if computing > 0.0 {
            Kind::HostCompute
        } else {
            Kind::Unknown
        };
        if rest > 0.0 {
            *out.by_kind.entry(kind).or_default() += rest / 1e9 / devices;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_goes_to_stalls_first() {
        let gpu = GpuTime {
            spans: vec![
                IdleSpan {
                    from: 0,
                    to: 1_000,
                    idle: 0.5,
                },
                IdleSpan {
                    from: 1_000,
                    to: 2_000,
                    idle: 1.0,
                },
            ],
            calls: true,
            synchronising: 0.0,
            devices: vec![0],
            sampled_devices: 1,
        };
        let pieces = [
            Piece {
                from: 0,
                to: 600,
                ns: 600.0,
                leaf: 0,
            },
            Piece {
                from: 600,
                to: 1_000,
                ns: 400.0,
                leaf: 1,
            },
            Piece {
                from: 1_000,
                to: 1_900,
                ns: 900.0,
                leaf: 1,
            },
            Piece {
                from: 1_900,
                to: 2_000,
                ns: 100.0,
                leaf: 0,
            },
        ];
        let kinds = [vec![(Kind::Compute, 1.0)], vec![(Kind::StorageIo, 1.0)]];
        let got = blame(&gpu, &[(0, 2_000)], &pieces, &kinds);
        let ns = |kind: Kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round();
        assert_eq!(ns(Kind::StorageIo), 400.0 + 900.0);
        assert_eq!(ns(Kind::HostCompute), 100.0 + 100.0);
        assert_eq!((got.idle_s * 1e9).round(), 1_500.0);
        assert_eq!((got.uncertain_s * 1e9).round(), 500.0);
    }
}
