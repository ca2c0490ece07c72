//! Loaders that serve the training itself, told from those of another phase: of an evaluation, say.

use std::collections::BTreeMap;

/// Loaders whose usual steps differ by this factor serve different phases: training and evaluation.
const OTHER_PHASE: f64 = 1.4;
/// Where a loader's messages are so many times their usual distance apart, the rest of that time is another phase's.
const PAUSE: u64 = 8;
/// An evaluation follows each of so many epochs at least.
const TURNS: usize = 4;

/// Leaves out loaders that serve another phase: their steps are of another length and they take less time. What is left:
/// channels, and times of the messages on them.
pub(super) fn training_only<T>(by_channel: BTreeMap<T, Vec<u64>>) -> (Vec<T>, Vec<u64>) {
    let mut loaders: Vec<Loader<T>> = by_channel
        .into_iter()
        .map(|(channel, times)| {
            let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            gaps.sort_unstable();
            let usual = gaps.get(gaps.len() / 2).copied().unwrap_or(0).max(1);
            Loader {
                channel,
                usual,
                length: gaps.iter().map(|gap| (*gap).min(PAUSE * usual)).sum(),
                times,
            }
        })
        .collect();
    loaders.sort_by_key(|loader| loader.usual);
    let split = (1..loaders.len()).find(|at| {
        let (quick, slow) = loaders.split_at(*at);
        let jump = OTHER_PHASE * quick[quick.len() - 1].usual as f64;
        slow[0].usual as f64 >= jump
            && are_apart(quick, slow)
            && differ_in_pairs(quick, slow)
            && come_in_turn(quick, slow)
    });
    if let Some(at) = split {
        let slow = loaders.split_off(at);
        if time_of(&loaders) <= time_of(&slow) {
            loaders = slow;
        }
    }
    let (mut channels, mut out) = (Vec::with_capacity(loaders.len()), Vec::new());
    for loader in loaders {
        channels.push(loader.channel);
        out.extend(loader.times);
    }
    out.sort_unstable();
    (channels, out)
}

/// Whether two groups, sorted, differ more from each other than those of each among themselves: loaders that live for a few batches differ
/// from one to the next.
fn are_apart<T>(quick: &[Loader<T>], slow: &[Loader<T>]) -> bool {
    let times = |a: &Loader<T>, b: &Loader<T>| b.usual as f64 / a.usual as f64;
    let among = |group: &[Loader<T>]| times(&group[0], &group[group.len() - 1]);
    times(&quick[quick.len() - 1], &slow[0]) > among(quick).max(among(slow))
}

/// Whether two steps together take longer in one group too: where two workers are done at the same time short and long ones take
/// turns, and the middle one is either.
fn differ_in_pairs<T>(quick: &[Loader<T>], slow: &[Loader<T>]) -> bool {
    let longest = quick.iter().map(Loader::pair).max().unwrap_or(0);
    let least = slow.iter().map(Loader::pair).min().unwrap_or(0);
    least as f64 >= OTHER_PHASE * longest as f64
}

/// Whether two groups of loaders may be two phases: these take turns, so where each turn has a loader of its own both groups have
/// about as many, and a loader that persists lasts. Else one of many loaders was out of line.
fn come_in_turn<T>(a: &[Loader<T>], b: &[Loader<T>]) -> bool {
    let rare = |a: &[Loader<T>], b: &[Loader<T>]| {
        a.len() * TURNS < b.len() && time_of(a) * (TURNS as u64) < time_of(b)
    };
    !rare(a, b) && !rare(b, a)
}

fn time_of<T>(group: &[Loader<T>]) -> u64 {
    group.iter().map(|loader| loader.length).sum()
}

/// Messages that came through one channel.
struct Loader<T> {
    channel: T,
    /// Time between two of them, and of all of them without what is another phase's, ns.
    usual: u64,
    length: u64,
    times: Vec<u64>,
}

impl<T> Loader<T> {
    /// Time from one message to the one after the next, where nothing else comes between.
    fn pair(&self) -> u64 {
        let mut pairs: Vec<u64> = self
            .times
            .windows(3)
            .map(|three| three[2] - three[0])
            .collect();
        pairs.sort_unstable();
        pairs
            .get(pairs.len() / 4)
            .copied()
            .unwrap_or(self.usual * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loaders with five messages each, so many ms apart.
    fn loaders(gaps: &[u64]) -> BTreeMap<u64, Vec<u64>> {
        let mut now = 0;
        let one = |(pipe, gap): (usize, &u64)| {
            now += 100_000_000;
            let times = (0..5).map(|n| now + n * gap * 1_000_000).collect();
            (pipe as u64, times)
        };
        gaps.iter().enumerate().map(one).collect()
    }

    #[test]
    fn one_loader_of_many_that_is_out_of_line_is_no_other_phase() {
        let mut gaps = [20; 30];
        (gaps[7], gaps[20]) = (1, 60);
        let (pipes, taken) = training_only(loaders(&gaps));
        assert_eq!((pipes.len(), taken.len()), (30, 150));
    }

    #[test]
    fn loaders_that_live_for_a_few_batches_differ() {
        for gaps in [[7, 12, 15, 25, 41], [25, 7, 41, 12, 15]] {
            assert_eq!(training_only(loaders(&gaps)).1.len(), 25, "{gaps:?}");
        }
    }

    #[test]
    fn steps_that_come_in_pairs_are_one_phase() {
        // Two workers that are done at the same time: 8 ms after one step, 78 after the next.
        let pairs = |begin: u64, odd: u64| -> Vec<u64> {
            let gap = |n: u64| if n % 2 == odd { 8 } else { 78 };
            (0..41)
                .scan(begin, |at, n| {
                    *at += gap(n) * 1_000_000;
                    Some(*at)
                })
                .collect()
        };
        let mut both = BTreeMap::new();
        both.insert(1, pairs(0, 0));
        both.insert(2, pairs(4_000_000_000, 1)[..40].to_vec());
        both.insert(3, pairs(8_000_000_000, 0)[..40].to_vec());
        assert_eq!(training_only(both).1.len(), 121);
    }

    #[test]
    fn phases_that_take_turns_are_told_apart() {
        // Three epochs to an evaluation, which is quicker.
        let gaps: Vec<u64> = (0..32).map(|n| if n % 4 == 3 { 8 } else { 20 }).collect();
        let (pipes, taken) = training_only(loaders(&gaps));
        assert_eq!((pipes.len(), taken.len()), (24, 120));
        // An evaluation whose loader persists, among loaders made anew for each epoch.
        let mut mixed = loaders(&[20; 30]);
        mixed.insert(
            99,
            (0..60)
                .map(|n| n * 50_000_000 + n % 3 * 8_000_000)
                .collect(),
        );
        let (pipes, _) = training_only(mixed);
        assert_ne!(pipes.len(), 31);
    }

    #[test]
    fn an_evaluation_that_begins_and_ends_the_watch_is_not_the_longer_phase() {
        // Both loaders persist: 15 batches of 8 ms after each 60 of 20 ms.
        let (mut now, mut both) = (0, BTreeMap::<u64, Vec<u64>>::new());
        for (phase, count, ms) in [(2, 15, 8), (1, 60, 20)]
            .repeat(5)
            .into_iter()
            .chain([(2, 15, 8)])
        {
            for _ in 0..count {
                now += ms * 1_000_000;
                both.entry(phase).or_default().push(now);
            }
        }
        let (pipes, taken) = training_only(both);
        assert_eq!((pipes, taken.len()), (vec![1], 300));
    }
}
