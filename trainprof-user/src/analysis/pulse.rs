//! A clock from calls that the step thread makes again and again: memory that it maps and gives back, files and
//! sockets that it reads.
//!
//! Calls of one kind (operation, object, size to the power of two) that come at even intervals, all through the
//! watch, are one a step: several in each step are spaced unevenly, since steps also do other things. So where the
//! intervals repeat after k calls, a step has k of them. What is written tells nothing: a log is written every few
//! steps as regularly. Kinds that disagree give no clock.

use std::collections::BTreeMap;

use trainprof_common::op::{Class, Op};

use super::{facts::Facts, spans::overlap};

/// Steps that show a pattern.
pub(super) const MIN_STEPS: usize = 20;
/// A step that takes less than this part (0–1) of the usual time may be a part of one, and one of which the usual is that part several.
const SHORT: f64 = 0.75;
/// Of the steps so many (0–1) may be put together of parts: more, and steps have fewer calls now and then.
const MENDED: f64 = 0.1;
/// Calls of one kind in a step at most.
const MOST_CALLS: usize = 16;
/// A pattern of k calls shows when intervals differ from those k calls earlier by at most this part of what they
/// differ from their neighbours (mean squares of logarithms).
const REPEATS: f64 = 0.3;
/// Share of the steps between half and twice the usual length.
const REGULAR: f64 = 0.93;
/// Share of the walked time that the steps cover, and the longest stretch without one, in usual steps.
const COVERED: f64 = 0.9;
const LONGEST: f64 = 20.0;
/// More calls a second than this may have been noted in part only.
pub(super) const MOST_PER_S: f64 = 1500.0;
/// Kinds whose numbers of steps differ by this part or less agree.
pub(super) const AGREE: f64 = 0.03;
/// The C library moves the heap's end by what is asked for and 128 KiB to spare (`M_TOP_PAD`, mallopt(3)). By twice that only
/// when a single allocation was greater than what was spare, so that each one of that size moves it; for smaller ones it moves
/// every few allocations, and so every few steps.
const ONE_ALLOCATION: u64 = 256 * 1024;
/// Allocators that take memory from the kernel in pieces of their own sizes, whatever is asked for.
const IN_PIECES: [&str; 3] = ["jemalloc", "tcmalloc", "mimalloc"];
/// Kinds that are so much rarer are events of their own, such as logs and epochs.
const RARER: f64 = 16.0;

/// Beginnings of steps, and how many kinds of calls agree on them.
pub struct Pulse {
    pub times: Vec<u64>,
    pub kinds: usize,
}

/// Finds the pulse of a thread's calls outside of `without` (sorted); `None` where there is none, or two.
pub fn pulse(facts: &Facts, tid: u32, without: &[(u64, u64)]) -> Option<Pulse> {
    let mut kinds = BTreeMap::<(u8, u8, u64, u32), Vec<u64>>::new();
    let mut noted = 0_usize;
    let pieces = in_pieces(facts, tid);
    for touch in facts.touches(tid) {
        noted += 1;
        let at = touch.at.0;
        if !counts(touch.op, touch.object.class) || overlap(without, at, at + 1) > 0 {
            continue;
        }
        let moves_heap = touch.op == Op::Brk.number();
        if moves_heap && (pieces || touch.bytes < ONE_ALLOCATION) {
            continue;
        }
        let object = match touch.object.fileset {
            0 => touch.object.id,
            fileset => u64::from(fileset),
        };
        // Memory has no identity: its size stands for it.
        let size = match Class::try_from(touch.object.class) {
            // There is one heap; what is to spare makes its moves differ.
            Ok(Class::Memory) if moves_heap => 0,
            Ok(Class::Memory) => touch.bytes.max(1).ilog2(),
            _ => 0,
        };
        let object = if size > 0 || moves_heap { 0 } else { object };
        kinds
            .entry((touch.op, touch.object.class, object, size))
            .or_default()
            .push(at);
    }
    if noted as f64 > MOST_PER_S * facts.walkable_ns() as f64 / 1e9 {
        return None;
    }
    let mut found: Vec<Vec<u64>> = kinds
        .into_values()
        .filter_map(|times| steps_of(facts, &times))
        .collect();
    found.sort_by_key(|times| std::cmp::Reverse(times.len()));
    let most = found.first()?.len() as f64;
    let agree = |times: &Vec<u64>| most - times.len() as f64 <= AGREE * most;
    let kinds = found.iter().filter(|times| agree(times)).count();
    let other = found
        .iter()
        .any(|times| !agree(times) && times.len() as f64 * RARER > most);
    if other {
        return None;
    }
    // One that is made twice in a step now and then counts more steps than there are, and makes two short ones of each; one that is
    // left out now and then makes long ones. Of those that do so as rarely the first counts the most.
    let best = (0..kinds).min_by_key(|at| odd(&lengths(facts, &found[*at])))?;
    Some(Pulse {
        times: found.swap_remove(best),
        kinds,
    })
}

/// Whether the thread's process has an allocator that asks the kernel for pieces of its own sizes.
fn in_pieces(facts: &Facts, tid: u32) -> bool {
    facts
        .pid(tid)
        .and_then(|pid| facts.session.processes.get(&pid))
        .and_then(|process| process.seen.frameworks.as_ref())
        .is_some_and(|frameworks| {
            frameworks
                .libraries
                .iter()
                .any(|(name, _)| IN_PIECES.contains(&name.as_str()))
        })
}

fn counts(op: u8, class: u8) -> bool {
    matches!(
        (Op::try_from(op), Class::try_from(class)),
        (
            Ok(Op::Mmap | Op::Munmap | Op::Brk | Op::Madvise | Op::Mremap),
            Ok(Class::Memory)
        ) | (
            Ok(Op::Read | Op::UringRead),
            Ok(Class::File | Class::Socket)
        )
    )
}

/// The steps that calls of one kind show: the first call of each.
fn steps_of(facts: &Facts, times: &[u64]) -> Option<Vec<u64>> {
    if times.len() < MIN_STEPS + 1 {
        return None;
    }
    let calls = calls_in_step(times)?;
    let firsts = if calls == 1 {
        times.to_vec()
    } else {
        firsts(times, calls)?
    };
    steady(facts, &firsts).then_some(firsts)
}

/// After how many calls the intervals repeat; `None` where they do neither that nor stay alike.
pub(super) fn calls_in_step(times: &[u64]) -> Option<usize> {
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| ((pair[1] - pair[0]).max(1) as f64).ln())
        .collect();
    let differ = |lag: usize| -> f64 {
        let n = gaps.len() - lag;
        let mut squares: Vec<f64> = (0..n)
            .map(|at| (gaps[at + lag] - gaps[at]).powi(2))
            .collect();
        // One step in ten may be out of line.
        squares.sort_by(f64::total_cmp);
        squares.truncate(n - n / 10);
        squares.iter().sum::<f64>() / squares.len().max(1) as f64
    };
    let most = MOST_CALLS.min(gaps.len() / 4);
    let all: Vec<f64> = (1..=most).map(differ).collect();
    let highest = all.iter().copied().fold(0.0, f64::max);
    // Alike throughout: within 20 % or so.
    if highest <= 0.08 {
        return Some(1);
    }
    let lag = (1..=most).find(|lag| all[lag - 1] <= REPEATS * highest);
    match lag {
        Some(1) | None => {
            // Neither do they repeat: even but for noise, or not at all.
            (highest <= 0.5).then_some(1)
        }
        Some(lag) => Some(lag),
    }
}

/// The calls behind the longest interval of each step, when it is plainly the longest and steps have `calls` calls.
fn firsts(times: &[u64], calls: usize) -> Option<Vec<u64>> {
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    // One interval in `calls` is the long one.
    let long = sorted.len() - (sorted.len() / calls).max(1);
    let (below, above) = (
        sorted[long.saturating_sub(1 + long / 20)],
        sorted[(long + sorted.len() / calls / 20).min(sorted.len() - 1)],
    );
    if (above as f64) < 1.25 * below as f64 {
        return None;
    }
    let limit = ((below as f64) * (above as f64)).sqrt() as u64;
    let mut groups: Vec<(u64, usize)> = Vec::new();
    for (at, gap) in gaps.iter().enumerate() {
        if *gap > limit {
            groups.push((times[at + 1], 1));
        } else if let Some((_, size)) = groups.last_mut() {
            *size += 1;
        }
    }
    let steps = mended(groups, calls);
    let known = steps.split_last().map_or(&[][..], |(_, known)| known);
    let whole = known.iter().filter(|(_, size)| *size == calls).count();
    (steps.len() >= MIN_STEPS && whole as f64 >= REGULAR * known.len() as f64)
        .then(|| steps.iter().map(|(first, _)| *first).collect())
}

/// Groups of calls, by their first and how many they have: parts of a step in which something took long between two calls are one
/// step again, where that is so now and then.
fn mended(groups: Vec<(u64, usize)>, calls: usize) -> Vec<(u64, usize)> {
    let mut out: Vec<(u64, usize)> = Vec::new();
    for (first, size) in &groups {
        match out.last_mut() {
            Some((_, part)) if *part + size <= calls => *part += size,
            _ => out.push((*first, *size)),
        }
    }
    let put_together = groups.len() - out.len();
    if put_together as f64 <= MENDED * out.len() as f64 {
        out
    } else {
        groups
    }
}

/// Whether they are even and go on all through the watch.
fn steady(facts: &Facts, times: &[u64]) -> bool {
    times.len() > MIN_STEPS && even(&lengths(facts, times)) && throughout(facts, times)
}

/// Lengths of steps from one of these times to the next, sorted; without those that reach over a hole in what is known.
fn lengths(facts: &Facts, times: &[u64]) -> Vec<u64> {
    let whole = |pair: &&[u64]| overlap(&facts.spans, pair[0], pair[1]) == pair[1] - pair[0];
    let pairs = times.windows(2).filter(whole);
    let mut out: Vec<u64> = pairs.map(|pair| pair[1] - pair[0]).collect();
    out.sort_unstable();
    out
}

/// Whether sorted lengths of steps are alike.
pub(super) fn even(lengths: &[u64]) -> bool {
    let Some(usual) = lengths.get(lengths.len() / 2).map(|ns| *ns as f64) else {
        return false;
    };
    let regular = lengths
        .iter()
        .filter(|ns| (0.5 * usual..=2.0 * usual).contains(&(**ns as f64)))
        .count();
    regular as f64 >= REGULAR * lengths.len() as f64
}

/// How many of the sorted lengths of steps are plainly shorter, or longer, than the usual one.
fn odd(lengths: &[u64]) -> usize {
    let usual = lengths.get(lengths.len() / 2).map_or(0.0, |ns| *ns as f64);
    let short = lengths.partition_point(|ns| (*ns as f64) < SHORT * usual);
    let alike = lengths.partition_point(|ns| *ns as f64 <= usual / SHORT);
    short + lengths.len() - alike
}

/// Whether steps that begin at these times go on all through the watch.
pub(super) fn throughout(facts: &Facts, times: &[u64]) -> bool {
    let lengths = lengths(facts, times);
    let (Some(usual), Some(longest)) = (lengths.get(lengths.len() / 2), lengths.last()) else {
        return false;
    };
    let covered: u64 = lengths.iter().sum();
    *longest as f64 <= LONGEST * *usual as f64
        && covered as f64 >= COVERED * facts.walkable_ns() as f64
}
