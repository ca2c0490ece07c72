//! Requests for batches, one for each step: those in advance left out, and what is not asked for any more put in.

use std::collections::BTreeMap;

use super::put_aside::usual_count;

/// Requests closer together than this share of the usual step are handed out in advance, not step by step.
const IN_ADVANCE: f64 = 0.1;
/// Times apart by this factor are of two kinds.
const PLAINLY: f64 = 2.0;
/// Who asks twice within this time asks for two things at once.
const AT_ONCE_NS: u64 = 1_000_000;
/// Share of the steps with several requests from which on these are one step each.
const TOGETHER: f64 = 0.6;

/// Times from one to the next, sorted.
fn gaps(times: &[u64]) -> Vec<u64> {
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps
}

/// Requests closer together than this are handed out in advance: a part of the usual step, or less where short steps, as between
/// two workers that are done at the same time, lie plainly above what is handed out.
fn in_advance(gaps: &[u64]) -> u64 {
    let at = |share: usize| gaps.get(gaps.len() * share / 4).copied().unwrap_or(0);
    // Where they come two at a time, half of the times between them are no steps.
    let usual = if at(2) < AT_ONCE_NS { at(3) } else { at(2) };
    let limit = (usual as f64 * IN_ADVANCE) as u64;
    let upto = gaps.partition_point(|gap| *gap < limit);
    let near = &gaps[..gaps.len().min(upto + 1)];
    let jump = near
        .windows(2)
        .rev()
        .map(|pair| (pair[0].max(1) as f64, pair[1] as f64))
        .find(|(below, above)| *above >= PLAINLY * below);
    jump.map_or(limit, |(below, above)| {
        limit.min((below * above).sqrt() as u64)
    })
}

/// Requests step by step: one stands for each step. Those that are handed out in advance, when an epoch begins, stand for the last
/// steps of the epoch before it, when there was nothing left to ask for: these began with their hand-overs (`taken`) where there are
/// as many of them, else evenly.
pub fn step_by_step(requests: &[u64], taken: &[u64]) -> Vec<u64> {
    let least = in_advance(&gaps(requests));
    let mut groups: Vec<(u64, usize)> = Vec::with_capacity(requests.len());
    let mut before = None;
    for at in requests {
        match groups.last_mut() {
            Some(group) if before.is_some_and(|before| at - before < least) => group.1 += 1,
            _ => groups.push((*at, 0)),
        }
        before = Some(*at);
    }
    let several = groups.iter().filter(|group| group.1 > 0).count();
    // Who always asks for several at once makes a step of them, where it is as many each time; else these are short steps, with batches
    // that had come before their turn.
    let together = several as f64 >= TOGETHER * groups.len() as f64;
    if together && !as_many(&groups) {
        return requests.to_vec();
    }
    let mut out: Vec<u64> = Vec::with_capacity(requests.len());
    for (at, others) in groups {
        if let (Some(last), false) = (out.last().copied(), together) {
            let handed = within(
                taken,
                last + least,
                at.saturating_sub(least).max(last + least),
            );
            if handed.len() == others {
                out.extend(handed);
            } else {
                let each = (at - last) / (others as u64 + 1);
                out.extend((1..=others as u64).map(|n| last + n * each));
            }
        }
        out.push(at);
    }
    out
}

/// Whether most of these groups are of one size.
fn as_many(groups: &[(u64, usize)]) -> bool {
    let mut sizes = BTreeMap::<usize, usize>::new();
    for (_, others) in groups {
        *sizes.entry(*others).or_default() += 1;
    }
    let most = sizes.values().copied().max().unwrap_or(0);
    most as f64 >= TOGETHER * groups.len() as f64
}

/// The same where each epoch has workers of its own, made in `renewals`. As many batches as are asked for before the first one
/// comes are taken at the end, when nothing is left to ask for. A request that comes with a batch is of that batch's step.
pub fn epoch_by_epoch(requests: &[u64], taken: &[u64], renewals: &[(u64, u64)]) -> Vec<u64> {
    let least = in_advance(&gaps(taken));
    let begins = renewals.iter().map(|(from, _)| *from);
    let ends = begins.clone().chain([u64::MAX]);
    let mut epochs: Vec<(Vec<u64>, u64)> = [0]
        .into_iter()
        .chain(begins)
        .zip(ends)
        .map(|(begin, end)| (one_epoch(requests, taken, (begin, end), least), end))
        .collect();
    even_out(&mut epochs);
    epochs.into_iter().flat_map(|(steps, _)| steps).collect()
}

fn one_epoch(requests: &[u64], taken: &[u64], (begin, end): (u64, u64), least: u64) -> Vec<u64> {
    let taken = within(taken, begin, end);
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        return Vec::new();
    };
    // What is written after the last batch of an epoch tells its workers to end.
    let requests = within(requests, begin, end.min(last + least));
    let before = if begin == 0 {
        0
    } else {
        requests.partition_point(|at| at < first)
    };
    let mut out = requests[before..].to_vec();
    let last = out.last().map_or(0, |last| last + least);
    out.extend(taken.iter().filter(|at| **at > last));
    out
}

/// Batches that came before their turn are taken with others, and nothing shows when they are used at an epoch's end. Most epochs
/// have as many steps: those with fewer get what they lack, evenly, where nothing is asked for any more.
fn even_out(epochs: &mut [(Vec<u64>, u64)]) {
    let Some((_, whole)) = epochs.split_first_mut() else {
        return;
    };
    let Some((_, whole)) = whole.split_last_mut() else {
        return;
    };
    let Some(usual) = usual_count(whole.iter().map(|(steps, _)| steps.len())) else {
        return;
    };
    for (steps, end) in whole {
        let (Some(last), lack) = (steps.last().copied(), usual.saturating_sub(steps.len())) else {
            continue;
        };
        if lack * 2 <= usual {
            let each = end.saturating_sub(last) / (lack as u64 + 1);
            steps.extend((1..=lack as u64).map(|n| last + n * each));
        }
    }
}

fn within(times: &[u64], from: u64, to: u64) -> &[u64] {
    &times[times.partition_point(|at| *at < from)..times.partition_point(|at| *at < to)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_short_epochs_begin_with_their_batches() {
        // Seven batches an epoch of one worker: two are asked for while it is made, the second of them late.
        let epoch = |at: u64| {
            let requests = [213, 218, 366, 651, 796, 941, 1082, 1510];
            let taken = [343, 641, 787, 931, 1073, 1215, 1355];
            (requests.map(|t| at + t), taken.map(|t| at + t))
        };
        let (mut requests, mut taken, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for n in 1..=10 {
            let begin = n * 1511;
            let (asked, got) = epoch(begin);
            requests.extend(asked);
            taken.extend(got);
            made.push((begin, begin + 216));
        }
        let steps = epoch_by_epoch(&requests, &taken, &made);
        assert_eq!(steps.len(), taken.len());
        for (step, taken) in steps.iter().zip(&taken) {
            assert!(step.abs_diff(*taken) < 25, "{step} for {taken}");
        }
    }

    #[test]
    fn short_steps_of_workers_that_are_done_together_are_steps() {
        // One worker of two is late: 70 ms to one step, 5 or 8 to the next. Epochs of 50 begin with four requests at once.
        let (mut requests, mut taken, mut at) = (Vec::new(), Vec::new(), 0_u64);
        for step in 0..200 {
            if step % 50 == 0 {
                requests.extend([at, at + 200, at + 500, at + 700]);
            }
            at += [5_000, 70_000, 8_000, 70_000][step % 4];
            taken.push(at);
            if step % 50 < 46 {
                requests.push(at + 100);
            }
        }
        let steps = step_by_step(&requests, &taken);
        assert!(steps.len().abs_diff(197) <= 1, "{}", steps.len());
    }

    #[test]
    fn two_loaders_that_are_drawn_from_together_make_one_step() {
        let requests: Vec<u64> = (1..100)
            .flat_map(|n| [n * 30_000_000, n * 30_000_000 + 400_000])
            .collect();
        assert_eq!(step_by_step(&requests, &requests).len(), 99);
    }

    #[test]
    fn batches_that_wait_for_their_turn_are_short_steps() {
        // Three workers behind one lock: of those that are done out of turn one, two or three are used at once.
        let (mut requests, mut at) = (Vec::new(), 0);
        for n in 0..120_u64 {
            at += 75_000_000;
            requests.extend((0..=n % 3).map(|k| at + k * 500_000));
        }
        assert_eq!(step_by_step(&requests, &requests).len(), 240);
    }

    #[test]
    fn an_epoch_that_had_begun_asks_step_by_step() {
        let steps = epoch_by_epoch(&[5, 105, 205], &[3, 103, 203, 303, 403], &[(500, 510)]);
        assert_eq!(steps, [5, 105, 205, 303, 403]);
    }

    #[test]
    fn epochs_of_like_length_lend_it_to_those_in_which_batches_were_taken_together() {
        // Six steps of 100 each, of which the last two are asked for in advance; every third epoch takes these at once.
        let (mut requests, mut taken, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..12 {
            let begin = 1000 + n * 650;
            made.push((begin, begin + 40));
            requests.extend([5, 6, 51, 151, 251, 351].map(|t| begin + t));
            taken.extend([50, 150, 250, 350, 450].map(|t| begin + t));
            if n % 3 > 0 {
                taken.push(begin + 550);
            }
        }
        let steps = epoch_by_epoch(&requests, &taken, &made);
        // The last epoch goes on, for all that is known.
        let whole = steps.iter().filter(|at| **at < 1000 + 11 * 650).count();
        assert_eq!(whole, 11 * 6);
        assert!(steps.is_sorted());
    }
}
