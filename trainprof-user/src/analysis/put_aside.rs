//! Batches that came before their turn: the trainer puts them aside, takes the next message, and later works on them without
//! taking anything. So several messages at once, and then or later as much work as several batches make, are several steps.

use std::collections::BTreeMap;

use super::spans::overlap;

/// A step whose own work is less than this share of the mean hardly has any: its batch was put aside.
const HARDLY: f64 = 0.2;
/// Steps with a message of their own that show how much work a batch is: the nearest ones, since a machine does not run at one
/// speed for long.
const MIN_SINGLE: usize = 5;
/// One in so many epochs with as many steps shows how many there are.
const ALIKE: usize = 4;
/// So many epochs show how much work a batch is, where single batches do not.
const MIN_EPOCHS: usize = 4;
/// Batches that are put aside have been worked on after so many messages, or are none.
const SOON: usize = 24;

/// How much work there is in each step.
struct Work {
    own: Vec<u64>,
    mean: f64,
    /// (Place, own work) of those with a message of their own.
    single: Vec<(usize, u64)>,
}

impl Work {
    /// `without`: stretches that are no work on a batch. `None` where too few steps show how much one is. Over whole epochs, at whose ends
    /// nothing is aside, the mean shows it.
    fn of(spans: &[(u64, u64)], without: &[(u64, u64)], epochs: &[u64]) -> Option<Self> {
        let own: Vec<u64> = spans
            .iter()
            .map(|(from, to)| to - from - overlap(without, *from, *to))
            .collect();
        let mean = own.iter().sum::<u64>() as f64 / own.len().max(1) as f64;
        let mut work = Self {
            own,
            mean,
            single: Vec::new(),
        };
        work.single = (0..work.own.len())
            .filter(|at| !work.hardly(*at) && (*at == 0 || !work.hardly(at - 1)))
            .map(|at| (at, work.own[at]))
            .collect();
        (work.single.len() >= MIN_SINGLE || epochs.len() >= MIN_EPOCHS).then_some(work)
    }

    fn hardly(&self, at: usize) -> bool {
        (self.own[at] as f64) < HARDLY * self.mean
    }

    /// The usual work on a batch around a place.
    fn usual(&self, place: usize) -> f64 {
        if self.single.len() < MIN_SINGLE {
            return self.mean;
        }
        let next = self.single.partition_point(|(at, _)| *at < place);
        let from = next
            .saturating_sub(MIN_SINGLE / 2)
            .min(self.single.len() - MIN_SINGLE);
        let mut near: Vec<u64> = self.single[from..from + MIN_SINGLE]
            .iter()
            .map(|(_, own)| *own)
            .collect();
        near.sort_unstable();
        near[MIN_SINGLE / 2] as f64
    }

    /// How many batches were worked on from one place to another, to the nearest.
    fn batches(&self, first: usize, last: usize) -> usize {
        let worked: u64 = self.own[first..=last].iter().sum();
        (worked as f64 / self.usual(last)).round() as usize
    }
}

/// Messages that were taken one after the other, and the work that followed.
struct Stretch {
    /// Places of the first message and of the one that the work follows.
    first: usize,
    last: usize,
    /// Batches that were worked on in it.
    batches: usize,
}

/// Spreads the work on batches that were put aside over their steps. `without`: stretches that are no work on a batch; sorted,
/// without overlaps. `epochs`: when new ones begin, each with workers of its own; nothing is put aside from one to the next, and
/// most have as many batches.
pub fn spread(spans: &mut Vec<(u64, u64)>, without: &[(u64, u64)], epochs: &[u64]) {
    fill(spans, without, epochs);
    let Some(work) = Work::of(spans, without, epochs) else {
        return;
    };
    let mut first = 0;
    // Since nothing was aside; and how many batches are.
    let mut open: Vec<Stretch> = Vec::new();
    let mut aside = 0;
    for at in 0..spans.len() {
        // Who puts batches aside has no hole, and ends with the epoch.
        let goes_on = at > 0
            && spans[at].0 == spans[at - 1].1
            && (epochs.binary_search(&spans[at].0).is_err() || is_empty(spans[at - 1]));
        if !goes_on {
            (first, aside) = (at, 0);
            open.clear();
        }
        if work.hardly(at) {
            continue;
        }
        let there = aside + at + 1 - first;
        let batches = work.batches(first, at).clamp(1, there);
        open.push(Stretch {
            first,
            last: at,
            batches,
        });
        aside = there - batches;
        first = at + 1;
        if aside == 0 {
            work_on(spans, without, &open);
        }
        if aside == 0 || first - open[0].first > SOON {
            open.clear();
            aside = 0;
        }
    }
    spans.retain(|span| !is_empty(*span));
}

fn is_empty((from, to): (u64, u64)) -> bool {
    from == to
}

/// Messages that come right after one another may be noted as one. Where there is work for as many more batches in an epoch as it lacks
/// messages, these came with the first one: they get empty steps at its beginning.
fn fill(spans: &mut Vec<(u64, u64)>, without: &[(u64, u64)], epochs: &[u64]) {
    let place = |at: &u64| spans.partition_point(|span| span.0 < *at);
    // What begins with an epoch and ends with one.
    let whole: Vec<(usize, usize)> = epochs
        .windows(2)
        .map(|pair| (place(&pair[0]), place(&pair[1])))
        .filter(|(first, end)| first < end)
        .collect();
    let usual = usual_count(whole.iter().map(|(first, end)| end - first));
    let (Some(usual), Some(work)) = (usual, Work::of(spans, without, epochs)) else {
        return;
    };
    for (first, end) in whole.into_iter().rev() {
        let count = end - first;
        if count < usual && work.batches(first, end - 1) == usual {
            let begin = spans[first].0;
            let lack = std::iter::repeat_n((begin, begin), usual - count);
            spans.splice(first..first, lack);
        }
    }
}

/// How many steps an epoch has, of how many are known in each: the most that one in four of them has.
pub fn usual_count(of_epochs: impl ExactSizeIterator<Item = usize>) -> Option<usize> {
    let epochs = of_epochs.len();
    let mut counts = BTreeMap::<usize, usize>::new();
    for count in of_epochs {
        *counts.entry(count).or_default() += 1;
    }
    let alike = counts.into_iter().filter(|(_, n)| n * ALIKE >= epochs);
    alike.map(|(count, _)| count).max()
}

/// Gives each stretch as many steps as batches were worked on in it. In all these are as many as there were messages.
fn work_on(spans: &mut [(u64, u64)], without: &[(u64, u64)], stretches: &[Stretch]) {
    if stretches
        .iter()
        .all(|stretch| stretch.first == stretch.last)
    {
        return;
    }
    let mut steps = Vec::new();
    for stretch in stretches {
        let (from, to) = spans[stretch.last];
        let begin = from + overlap(without, from, to);
        let mut before = spans[stretch.first].0;
        for step in 1..=stretch.batches {
            let end = begin + (to - begin) * step as u64 / stretch.batches as u64;
            steps.push((before, end));
            before = end;
        }
    }
    let first = stretches[0].first;
    spans[first..first + steps.len()].copy_from_slice(&steps);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_batches_that_were_put_aside_is_theirs() {
        // Steps of 30; in the fourth the message for the fifth comes first, after a stall of 10.
        let mut spans: Vec<(u64, u64)> = (0..10).map(|n| (30 * n, 30 * n + 30)).collect();
        spans[3] = (90, 101);
        spans[4] = (101, 160);
        spans[5] = (160, 180);
        let without = [(90, 100), (101, 102)];
        let mut found = spans.clone();
        spread(&mut found, &without, &[]);
        assert_eq!(found[3..5], [(90, 131), (131, 160)]);
        assert_eq!(found[..3], spans[..3]);
        assert_eq!(found[5..], spans[5..]);
    }

    #[test]
    fn a_batch_may_be_worked_on_after_others_were_taken() {
        // Five batches an epoch, each of 20, after a stall of 40: the third message comes with the first two, and its batch is worked
        // on after the fourth was taken.
        let (mut spans, mut without, mut true_steps) = (Vec::new(), Vec::new(), Vec::new());
        let epochs: Vec<u64> = (0..8).map(|n| n * 140).collect();
        for (n, begin) in epochs.iter().enumerate() {
            without.push((*begin, begin + 40));
            let plain = [0, 60, 80, 100, 120, 140];
            let taken = [0, 41, 42, 80, 120, 140];
            let times = |of: [u64; 6]| -> Vec<(u64, u64)> {
                of.windows(2)
                    .map(|pair| (begin + pair[0], begin + pair[1]))
                    .collect()
            };
            spans.extend(times(if n % 2 == 0 { plain } else { taken }));
            true_steps.extend(times(plain));
        }
        spread(&mut spans, &without, &epochs);
        for (found, step) in spans.iter().zip(&true_steps) {
            assert!(
                found.0.abs_diff(step.0) <= 1 && found.1.abs_diff(step.1) <= 1,
                "{found:?} {step:?}"
            );
        }
        // Two of the messages of an epoch were noted as one.
        let at = spans
            .iter()
            .position(|span| span.0 == epochs[3])
            .expect("it");
        spans.splice(at..at + 5, [(420, 500), (500, 560)]);
        spread(&mut spans, &without, &epochs);
        assert_eq!(spans.len(), true_steps.len());
        let off = |(found, step): (&(u64, u64), &(u64, u64))| found.1.abs_diff(step.1);
        let most = spans.iter().zip(&true_steps).map(off).max();
        assert!(most <= Some(1), "{spans:?}");
        // One that is never worked on is none of the next epoch's.
        let mut spans = vec![
            (0, 60),
            (60, 80),
            (80, 81),
            (81, 100),
            (100, 160),
            (160, 200),
        ];
        spans.extend((0..8).map(|n| (200 + n * 20, 220 + n * 20)));
        let as_they_were = spans.clone();
        spread(&mut spans, &[(0, 40), (100, 140)], &[0, 100]);
        assert_eq!(spans, as_they_were);
    }

    #[test]
    fn where_hardly_a_batch_comes_alone_whole_epochs_show_how_much_one_is() {
        // Epochs of four batches, each of 12: two pairs, of which one message comes right before the other.
        let epochs: Vec<u64> = (0..7).map(|n| n * 1000).collect();
        let (mut spans, mut without) = (Vec::new(), Vec::new());
        for begin in &epochs {
            without.push((*begin, begin + 951));
            let taken = [0, 952, 976, 977, 1000].map(|at| begin + at);
            spans.extend(taken.windows(2).map(|pair| (pair[0], pair[1])));
        }
        spread(&mut spans, &without, &epochs);
        let lengths: Vec<u64> = spans.iter().map(|(from, to)| to - from).collect();
        for epoch in lengths.chunks(4) {
            assert!(epoch[0].abs_diff(963) <= 2, "{lengths:?}");
            let others = epoch[1..].iter();
            assert!(others.clone().all(|ns| ns.abs_diff(12) <= 2), "{lengths:?}");
        }
    }

    #[test]
    fn short_steps_stay_short() {
        // Every second batch has next to no work, the others no more than usual.
        let spans: Vec<(u64, u64)> = (0..20)
            .flat_map(|n| [(40 * n, 40 * n + 2), (40 * n + 2, 40 * n + 40)])
            .collect();
        let mut found = spans.clone();
        spread(&mut found, &[], &[]);
        assert_eq!(found, spans);
        // One is short, in a loop of even ones.
        let mut spans: Vec<(u64, u64)> = (0..10).map(|n| (30 * n, 30 * n + 30)).collect();
        spans[4].1 = 122;
        spans
            .iter_mut()
            .skip(5)
            .for_each(|span| *span = (span.0 - 28, span.1 - 28));
        let mut found = spans.clone();
        spread(&mut found, &[], &[]);
        assert_eq!(found, spans);
        spread(&mut Vec::new(), &[], &[]);
    }
}
