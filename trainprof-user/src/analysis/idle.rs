//! The join of GPU samples with the host: every idle second of a GPU goes to what the host did in it.
//!
//! A sample says how much of its span was idle, not when. Idle time goes first to what no GPU work can overlap
//! with (stalls, waits), then to copies, then to the trainer's own computing, as long as each of them lasted; what is left while the
//! trainer waited for the GPU is nobody's. How far that may be wrong is carried along: a span that is neither all idle nor all busy can
//! be misjudged by the smaller of the two.

use std::collections::BTreeMap;

use super::{
    causes::Share,
    gpu::{GpuTime, IdleSpan},
    kind::Kind,
    spans::overlap,
    walk::Piece,
};

/// Idle seconds of a mean device by cause.
#[derive(Clone, Debug, Default)]
pub struct IdleBlame {
    /// Devices that it is the mean of: those that were sampled.
    pub devices: usize,
    /// Whether the driver lists the trainer, by whose time they are blamed, on them.
    pub own: bool,
    pub idle_s: f64,
    /// Seconds that samples tell about.
    pub seen_s: f64,
    pub by_kind: BTreeMap<Kind, f64>,
    /// Seconds that may belong to another cause.
    pub uncertain_s: f64,
    /// Of the seconds of copies: while the host waited for the GPU, which waited for copies that were begun before.
    pub behind_copies_s: f64,
}

/// Copies that were begun take so many times as long as the fastest link needs at most, mostly: 1.3 where the link is that one (PCIe 5.0,
/// H100, pinned memory).
const SLOWER_LINK: f64 = 2.0;

/// In which order idle time is given to what the host did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The GPU has nothing to do.
    Stalls,
    /// A copy that blocks waits for the kernels before it, while which the GPU is busy, and only then moves bytes.
    Copies,
    /// Launched kernels may run beside it.
    Computing,
}

impl Turn {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Compute | Kind::HostCompute => Self::Computing,
            Kind::H2dCopy => Self::Copies,
            _ => Self::Stalls,
        }
    }
}

/// Blames the idle time of one mean device. `kinds`: for each leaf its causes with their shares. `waits`: whether a leaf is waiting
/// for the GPU: whatever is idle then, the host does not keep waiting.
pub fn blame(
    gpu: &GpuTime,
    walked: &[(u64, u64)],
    pieces: &[Piece],
    kinds: &[Vec<(Kind, f64)>],
    waits: &[bool],
) -> IdleBlame {
    let mut out = IdleBlame {
        devices: gpu.sampled_devices,
        own: gpu.own,
        ..IdleBlame::default()
    };
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
        let (mut computing, mut waiting) = (0.0, 0.0);
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
                if Turn::of(*kind) == Turn::Computing {
                    if waits[piece.leaf as usize] {
                        waiting += ns * share;
                    } else {
                        computing += ns * share;
                    }
                }
            }
        }
        let parted = idle.min(length - idle);
        out.uncertain_s += parted / 1e9 / devices;
        let mut left = idle;
        for turn in [Turn::Stalls, Turn::Copies] {
            let of_turn = || doing.iter().filter(|(kind, _)| Turn::of(**kind) == turn);
            let there: f64 = of_turn().map(|(_, ns)| ns).sum();
            let given = left.min(there);
            for (kind, ns) in of_turn().filter(|_| there > 0.0) {
                *out.by_kind.entry(*kind).or_default() += given * ns / there / 1e9 / devices;
            }
            left -= given;
        }
        // As a rule the GPU takes its work one by one: while it copies for what is queued behind, no kernel runs. The host that waits for it
        // all that time does not keep it waiting; where the host hardly waits, its computing comes first.
        let copying = gpu.copying(span);
        let surely = if waiting >= left {
            left.min(copying)
        } else {
            0.0
        };
        let by_host = (left - surely).min(computing);
        left -= by_host;
        let behind = left.min(SLOWER_LINK * copying);
        out.behind_copies_s += behind / 1e9 / devices;
        for (kind, ns) in [
            (Kind::HostCompute, by_host),
            (Kind::H2dCopy, behind),
            (Kind::Unknown, left - behind),
        ] {
            if ns > 0.0 {
                *out.by_kind.entry(kind).or_default() += ns / 1e9 / devices;
            }
        }
    }
    out
}

/// Gives so many seconds of waits for the GPU to copies: it waited for these.
pub fn give_to_copies(shares: &mut Vec<Share>, waits: &[bool], seconds: f64) {
    let is_wait = |share: &Share| waits[share.leaf as usize] && share.kind == Kind::Compute;
    let all: f64 = shares
        .iter()
        .filter(|share| is_wait(share))
        .map(|share| share.ns)
        .sum();
    let part = (seconds * 1e9 / all.max(1.0)).min(1.0);
    let mut copies = Vec::new();
    for share in shares.iter_mut().filter(|share| is_wait(share)) {
        let mut copy = share.clone();
        copy.kind = Kind::H2dCopy;
        copy.of_leaf *= part;
        copy.ns *= part;
        share.of_leaf -= copy.of_leaf;
        share.ns -= copy.ns;
        copies.push(copy);
    }
    shares.extend(copies.into_iter().filter(|copy| copy.ns > 0.0));
}

/// The idle time of the mean device of the job, each device by the time of the trainer that the driver lists on it, or, where it lists
/// none, all by that of the first trainer. A device of several trainers counts with each of them.
pub fn of_job<'a>(mut trainers: impl Iterator<Item = &'a IdleBlame> + Clone) -> IdleBlame {
    let own: Vec<&IdleBlame> = trainers
        .clone()
        .filter(|blame| blame.own && blame.seen_s > 0.0)
        .collect();
    if own.is_empty() {
        return trainers.next().cloned().unwrap_or_default();
    }
    let mut out = IdleBlame {
        devices: own.iter().map(|blame| blame.devices).sum(),
        own: true,
        ..IdleBlame::default()
    };
    for blame in own {
        let part = blame.devices as f64 / out.devices as f64;
        out.idle_s += blame.idle_s * part;
        out.seen_s += blame.seen_s * part;
        out.uncertain_s += blame.uncertain_s * part;
        out.behind_copies_s += blame.behind_copies_s * part;
        for (kind, seconds) in &blame.by_kind {
            *out.by_kind.entry(*kind).or_default() += seconds * part;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::causes::Detail;

    /// One sample, of a device that idled for this share of it.
    fn sampled_once(idle: f64) -> GpuTime {
        GpuTime {
            spans: vec![IdleSpan {
                from: 0,
                to: 1_000,
                idle,
                traffic: 1e12,
            }],
            calls: true,
            waits_seen: true,
            synchronising: 0.0,
            devices: vec![0],
            own: true,
            sampled_devices: 1,
            copies: Vec::new(),
            ours: 1.0,
            filled: 1.0,
        }
    }

    fn piece(from: u64, to: u64, leaf: u32) -> Piece {
        Piece {
            from,
            to,
            ns: (to - from) as f64,
            leaf,
        }
    }

    #[test]
    fn idle_time_goes_to_stalls_first() {
        let gpu = GpuTime {
            spans: vec![
                IdleSpan {
                    from: 0,
                    to: 1_000,
                    idle: 0.5,
                    traffic: 0.0,
                },
                IdleSpan {
                    from: 1_000,
                    to: 2_000,
                    idle: 1.0,
                    traffic: 0.0,
                },
            ],
            calls: true,
            waits_seen: true,
            synchronising: 0.0,
            devices: vec![0],
            own: true,
            sampled_devices: 1,
            copies: Vec::new(),
            ours: 1.0,
            filled: 1.0,
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
        let got = blame(&gpu, &[(0, 2_000)], &pieces, &kinds, &[false; 2]);
        let ns = |kind: Kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round();
        assert_eq!(ns(Kind::StorageIo), 400.0 + 900.0);
        assert_eq!(ns(Kind::HostCompute), 100.0 + 100.0);
        assert_eq!((got.idle_s * 1e9).round(), 1_500.0);
        assert_eq!((got.uncertain_s * 1e9).round(), 500.0);
    }

    #[test]
    fn a_copy_that_waits_for_kernels_leaves_no_gpu_idle() {
        let gpu = sampled_once(0.3);
        let pieces = [piece(0, 750, 0), piece(750, 1_000, 1)];
        let kinds = [vec![(Kind::H2dCopy, 1.0)], vec![(Kind::Checkpoint, 1.0)]];
        let got = blame(&gpu, &[(0, 1_000)], &pieces, &kinds, &[false; 2]);
        let ns = |kind: Kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round();
        assert_eq!((ns(Kind::Checkpoint), ns(Kind::H2dCopy)), (250.0, 50.0));
    }

    #[test]
    fn what_idles_while_the_gpu_is_waited_for_is_not_the_hosts() {
        let gpu = sampled_once(0.6);
        // The host computes for 200, and waits for the GPU for the rest.
        let pieces = [piece(0, 200, 0), piece(200, 1_000, 1)];
        let kinds = [vec![(Kind::Compute, 1.0)], vec![(Kind::Compute, 1.0)]];
        let got = blame(&gpu, &[(0, 1_000)], &pieces, &kinds, &[false, true]);
        let ns = |kind: Kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round();
        assert_eq!((ns(Kind::HostCompute), ns(Kind::Unknown)), (200.0, 400.0));
    }

    #[test]
    fn copies_inside_the_gpu_and_those_of_a_host_that_hardly_waits_keep_nobody_waiting() {
        let kinds = [vec![(Kind::Compute, 1.0)], vec![(Kind::Compute, 1.0)]];
        let told = |traffic: f64, computing: u64| {
            let mut gpu = sampled_once(0.6);
            gpu.spans[0].traffic = traffic;
            gpu.copies = vec![(100, 12_600)];
            let pieces = [piece(0, computing, 0), piece(computing, 1_000, 1)];
            let got = blame(&gpu, &[(0, 1_000)], &pieces, &kinds, &[false, true]);
            [Kind::HostCompute, Kind::H2dCopy, Kind::Unknown]
                .map(|kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round())
        };
        assert_eq!(told(1e6, 300), [300.0, 300.0, 0.0]);
        // Nothing went over the link.
        assert_eq!(told(0.0, 300), [300.0, 0.0, 300.0]);
        // The host computes nearly all the time.
        assert_eq!(told(1e6, 950), [600.0, 0.0, 0.0]);
    }

    #[test]
    fn what_idles_behind_a_copy_is_the_copys() {
        let mut gpu = sampled_once(0.6);
        // The host computes for 200, and waits for the GPU for the rest. Of the 600 that it idles a copy takes 100 at least.
        gpu.copies = vec![(100, 6_300)];
        let pieces = [piece(0, 200, 0), piece(200, 1_000, 1)];
        let kinds = [vec![(Kind::Compute, 1.0)], vec![(Kind::Compute, 1.0)]];
        let got = blame(&gpu, &[(0, 1_000)], &pieces, &kinds, &[false, true]);
        let ns = |kind: Kind| (got.by_kind.get(&kind).copied().unwrap_or(0.0) * 1e9).round();
        assert_eq!(
            (ns(Kind::HostCompute), ns(Kind::H2dCopy), ns(Kind::Unknown)),
            (200.0, 200.0, 200.0)
        );
        let share = |leaf: u32, ns: f64| Share {
            leaf,
            kind: Kind::Compute,
            detail: Detail::default(),
            of_leaf: 1.0,
            ns,
            in_stall: false,
        };
        let mut shares = vec![share(0, 200.0), share(1, 800.0)];
        give_to_copies(&mut shares, &[false, true], got.behind_copies_s);
        let told: Vec<_> = shares
            .iter()
            .map(|share| (share.leaf, share.kind, share.ns.round()))
            .collect();
        assert_eq!(
            told,
            [
                (0, Kind::Compute, 200.0),
                (1, Kind::Compute, 600.0),
                (1, Kind::H2dCopy, 200.0)
            ]
        );
    }
}
