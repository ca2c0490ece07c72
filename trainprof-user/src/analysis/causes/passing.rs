//! Time on the CPU in which a rank looks for the messages of others: libraries for that wait without sleeping.

use std::collections::BTreeMap;

use trainprof_common::arch;

use crate::{
    analysis::{
        cast::Cast,
        facts::{Facts, is_on_purpose},
    },
    record::fact::SampleFact,
    session::{
        Thread, WaitId,
        kind::{WaitKind, wait_kind},
        passing::Places,
        roles::leading_thread,
    },
};

/// A clock sample stands for no more than this (ns) before and after it.
const REACH_NS: u64 = 50_000_000;
/// Where so much (0–1) of the calls by which a thread gives the CPU up are made while it looks, all of them are.
const MOST: f64 = 0.8;
/// A rank that looks for less than this part (0–1) of what another one does is late.
const LATE: f64 = 0.6;

/// When threads of the ranks do that.
#[derive(Default)]
pub struct Passing {
    /// Stretches, by thread.
    stretches: BTreeMap<u32, Vec<(u64, u64)>>,
    /// The rank that is waited for; 0: none is late, or it is not on this host.
    late: u32,
}

impl Passing {
    pub fn new(facts: &Facts, cast: &Cast) -> Self {
        let places = Places::new(facts.session);
        if places.passing.is_empty() {
            return Self::default();
        }
        let mut out = Self::default();
        let mut by_rank = BTreeMap::<u32, u64>::new();
        for pid in cast.ranks.iter().copied().chain([cast.trainer]) {
            for thread in facts.session.threads_of(pid) {
                let tid = thread.key.tid;
                out.stretches
                    .insert(tid, stretches(facts.samples(tid), &places));
            }
            // Other threads may look for messages whatever the rank does.
            if let Some(thread) = leading_thread(facts.session, pid) {
                let looked = out.of(thread.key.tid).iter();
                let looked: u64 = looked.map(|(from, to)| to - from).sum();
                let of_ranks = |tid: u32| {
                    let pid = facts.pid(tid);
                    pid.is_none_or(|pid| pid == cast.trainer || cast.ranks.contains(&pid))
                };
                by_rank.insert(pid, looked + sleeps(thread, of_ranks));
            }
        }
        out.late = late(&by_rank, cast.trainer);
        out
    }

    /// Of a thread.
    pub fn of(&self, tid: u32) -> &[(u64, u64)] {
        self.stretches.get(&tid).map_or(&[], Vec::as_slice)
    }

    /// The rank that the trainer waits for so; 0: none that is known.
    pub fn late(&self) -> u32 {
        self.late
    }
}

/// For how long a thread waited for anything but files and processes of the job that are no ranks, as its workers: it may be others'
/// messages.
fn sleeps(thread: &Thread, of_ranks: impl Fn(u32) -> bool) -> u64 {
    let at_work = |id: &WaitId| {
        matches!(
            wait_kind(id),
            WaitKind::File | WaitKind::Fault | WaitKind::Uring | WaitKind::None
        ) || is_on_purpose(id.waker.kind) && !of_ranks(id.waker.tid)
    };
    let waits = thread.waits.iter().filter(|(id, _)| !at_work(id));
    waits.map(|(_, total)| total.wait_ns).sum()
}

/// The rank that looks for messages least, if much less than this one.
fn late(by_rank: &BTreeMap<u32, u64>, trainer: u32) -> u32 {
    let own = by_rank.get(&trainer).copied().unwrap_or(0);
    let others = by_rank.iter().filter(|(pid, _)| **pid != trainer);
    others
        .min_by_key(|(pid, ns)| (**ns, **pid))
        .filter(|(_, ns)| (**ns as f64) < LATE * own as f64)
        .map_or(0, |(pid, _)| *pid)
}

/// What a thread's samples in such places stand for; of calls that give the CPU up, those next to them, and of the C library's functions,
/// those between them.
fn stretches(samples: &[SampleFact], places: &Places) -> Vec<(u64, u64)> {
    let yield_nr = (0..i16::MAX).find(|nr| arch::syscall_name(*nr) == Some("sched_yield"));
    let yields = |at: usize| Some(samples[at].nr) == yield_nr;
    let serves = |at: usize| places.c_library.contains(&samples[at].place);
    let mut inside: Vec<bool> = samples
        .iter()
        .map(|sample| places.passing.contains(&sample.place))
        .collect();
    let far = |a: usize, b: usize| samples[b].at.0.saturating_sub(samples[a].at.0) > 2 * REACH_NS;
    spread(&mut inside, yields, serves, far);
    // In a short stretch all samples may have met such calls.
    let yielding = || (0..samples.len()).filter(|at| yields(*at));
    if yielding().filter(|at| inside[*at]).count() as f64 >= MOST * yielding().count() as f64 {
        yielding().for_each(|at| inside[at] = true);
    }
    let nearest = spread(&mut inside, yields, serves, far);
    for at in (0..samples.len()).filter(|at| serves(*at)) {
        inside[at] = nearest[at] == [true; 2];
    }
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (at, sample) in samples.iter().enumerate().filter(|(at, _)| inside[*at]) {
        let now = sample.at.0;
        let before = at.checked_sub(1).map_or(REACH_NS, |last| {
            (now.saturating_sub(samples[last].at.0) / 2).min(REACH_NS)
        });
        let after = samples.get(at + 1).map_or(REACH_NS, |next| {
            (next.at.0.saturating_sub(now) / 2).min(REACH_NS)
        });
        let (from, to) = (now.saturating_sub(before), now + after);
        match out.last_mut() {
            // The halves of an odd number.
            Some(last) if last.1 + 1 >= from => last.1 = to,
            _ => out.push((from, to)),
        }
    }
    out
}

/// Takes calls that give the CPU up as inside where one next to them is, the C library's functions left out; and tells for each sample
/// whether the nearest one before and after it is, these left out. Nothing spreads to where it is `far`.
fn spread(
    inside: &mut [bool],
    yields: impl Fn(usize) -> bool,
    serves: impl Fn(usize) -> bool,
    far: impl Fn(usize, usize) -> bool,
) -> Vec<[bool; 2]> {
    let mut nearest = vec![[false; 2]; inside.len()];
    for side in [0, 1] {
        let mut last = false;
        for step in 0..inside.len() {
            let at = if side == 0 {
                step
            } else {
                inside.len() - 1 - step
            };
            let (one, other) = if side == 0 {
                (at.saturating_sub(1), at)
            } else {
                (at, (at + 1).min(inside.len() - 1))
            };
            last &= !far(one, other);
            nearest[at][side] = last;
            if !serves(at) {
                inside[at] |= last && yields(at);
                last = inside[at];
            }
        }
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::KtimeNs;

    const MS: u64 = 1_000_000;

    #[test]
    fn samples_stand_for_the_time_around_them() {
        let yields = (0..400)
            .find(|nr| arch::syscall_name(*nr) == Some("sched_yield"))
            .expect("a number");
        let sample = |at: u64, place: u32, nr: i16| SampleFact {
            at: KtimeNs(at * MS),
            tid: 1,
            place,
            nr,
        };
        const USER: i16 = -1;
        let all = [
            sample(0, 1, USER),
            sample(20, 7, USER),
            sample(40, 2, yields),
            sample(60, 7, USER),
            sample(80, 1, USER),
            // Nobody is looked for.
            sample(100, 2, yields),
            sample(120, 1, USER),
            // It slept before and after.
            sample(1_000, 7, USER),
            sample(2_000, 1, USER),
        ];
        let places = Places {
            passing: [7].into(),
            c_library: [8].into(),
        };
        let got = stretches(&all, &places);
        assert_eq!(got, [(10 * MS, 70 * MS), (950 * MS, 1_050 * MS)]);
        // The C library takes a lock for who looks, and then gives the CPU up; it copies for who computes.
        let all = [
            sample(0, 8, USER),
            sample(20, 7, USER),
            sample(40, 8, USER),
            sample(60, 2, yields),
            sample(80, 8, USER),
            sample(100, 1, USER),
        ];
        assert_eq!(stretches(&all, &places), [(10 * MS, 70 * MS)]);
        // All calls but few are made there: so are those.
        let mut all: Vec<SampleFact> = (0..8).map(|n| sample(n * 20, 2, yields)).collect();
        all[3].place = 7;
        all.extend([sample(160, 1, USER), sample(180, 2, yields)]);
        assert_eq!(stretches(&all, &places).len(), 2);
        all[1].place = 1;
        all[1].nr = USER;
        assert_eq!(stretches(&all, &places), [(30 * MS, 150 * MS)]);
        // What comes long after, with nothing between, is something else.
        let all = [
            sample(0, 7, USER),
            sample(1_000, 2, yields),
            sample(1_020, 1, USER),
            sample(1_040, 2, yields),
        ];
        assert_eq!(stretches(&all, &places), [(0, 50 * MS)]);
        assert_eq!(stretches(&[], &places), []);
    }

    #[test]
    fn the_rank_that_looks_least_is_late() {
        let by_rank = |ns: &[u64]| (1..).zip(ns.iter().copied()).collect();
        assert_eq!(late(&by_rank(&[500, 400, 20]), 1), 3);
        assert_eq!(late(&by_rank(&[500, 400, 20]), 3), 0);
        assert_eq!(late(&by_rank(&[500, 400, 450]), 1), 0);
        assert_eq!(late(&by_rank(&[500]), 1), 0);
    }
}
