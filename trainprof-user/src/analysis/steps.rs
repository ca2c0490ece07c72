//! The step clock: when a turn of the training loop began, found from outside.

use std::collections::{BTreeMap, BTreeSet};

pub use super::clock::{Clock, Steps};
use super::{
    apart::{after_work, apart, apart_by_work, one_by_one},
    asked::{epoch_by_epoch, step_by_step},
    bursts::{bursts, own_times},
    cast::Cast,
    causes::Scene,
    clock::{MIN_STEPS, SAME, build},
    collectives::collectives,
    executions::one_of_each,
    facts::Facts,
    loaders::training_only,
    locks::lock_of,
    messages::{Channel, began, hand_overs, is_one_of, reads, requests, taken_from_to},
    multiples::filled,
    own_thread::{own_thread, pool},
    passes::from_batches,
    phases::renewals,
    pieces::{one_from_each, whole_batches, whole_from_helper},
    polling::is_polled,
    pulse::{Pulse, pulse},
    put_aside::spread,
    python::Python,
    room::{own_lines, room},
    rounds::one_each,
    skipped::skips,
    spans::union,
    taking_in::handed,
    timeline::{Item, line},
    walk::Walked,
};
use crate::{record::fact::GpuCallKind, session::kind::WaitKind};

/// What lasts so many times the usual length is several steps.
const SEVERAL: f64 = 1.7;

/// Turns with so many times as much computing as a usual one, in which this part (0–1) of all of it lies, and this part of all time, are
/// none.
const LUMP: u64 = 5;
const IN_LUMPS: f64 = 0.7;
const LUMPS_OF_ALL: f64 = 0.2;

/// Who waits so much of the time (share) by polling is found at it in each step.
const POLLS: f64 = 0.4;

/// How sure calls of one kind alone are, against several kinds that agree.
const ONE_KIND: f64 = 0.75;
/// Part (0–1) of the watch that batches which the step thread makes itself must cover.
const ALL_THROUGH: f64 = 0.5;
/// Where there are so many times as many backward passes, the GPU is not waited for in each step.
const SELDOM: f64 = 1.5;
/// So many times as many as there are turns are parts of these.
const SEVERAL_PARTS: f64 = 1.5;
/// Part (0–1) of the watch in which backward passes are seen that count against other clocks.
const SEEN: f64 = 0.9;
/// Part (0–1) of the steps in which there are as many passes, where these belong to each.
const EVENLY: f64 = 0.6;
/// By which part passes may differ that nothing sets apart.
const ALIKE: f64 = 0.03;
/// By which part what is done for each of several batches of one hand-over differs at most.
const MUCH_ALIKE: f64 = 0.15;
/// How far from a whole number of times as many bursts as calls of one kind may be, as a part of it.
const IN_TURN: f64 = 0.03;
/// Times and checkpoints whose numbers differ by this part or less are the same.
const ECHO: f64 = 0.05;

/// What is missing from a report where calls of frameworks are not watched, or not any more.
const EXECUTIONS: &str = "framework-calls";

/// Finds the steps; `None` where there is no clock.
pub fn steps(facts: &Facts, cast: &Cast, scene: &Scene, walked: &Walked) -> Option<Steps> {
    let candidates = [
        from_polling(facts, cast),
        from_workers(facts, cast, scene, walked),
        from_own_thread(facts, cast, scene),
        from_gpu(facts, cast),
        from_queue(facts, cast, scene),
        from_own_batches(facts, scene),
        from_backward(facts, cast, scene),
        from_executions(facts, cast, scene),
        from_collectives(facts, cast, scene, walked),
        from_pool(facts, cast, scene),
        from_own_calls(facts, cast, scene),
    ];
    let mut found: Vec<Steps> = candidates
        .into_iter()
        .flatten()
        .filter(|steps| steps.spans.len() >= MIN_STEPS)
        .collect();
    let first = found
        .iter()
        .position(|steps| !are_lumps(facts, cast, steps))?;
    let mut steps = found.remove(first);
    let is_better = |passes: &Steps| {
        // Parts of a batch that are handed over one by one have a pass each, from wherever in the program.
        let all = facts.passes(cast.step_tid).len() as f64;
        let as_many = (steps.spans.len() as f64 - all).abs() <= SAME * all;
        are_of_several_losses(facts, cast, &steps)
            || are_parts(facts, cast, passes, &steps)
            || !as_many
                && (contradict(facts, passes, &steps)
                    || are_steps_each(facts, cast.step_tid, passes, &steps))
    };
    // Another framework may prepare what PyTorch learns from, and workers hand over batches, whatever else is computed.
    let learns_otherwise = !facts.passes(cast.step_tid).is_empty()
        || matches!(steps.clock, Clock::BatchRequests | Clock::BatchHandOver);
    let passes = found.iter_mut().find(|other| match other.clock {
        Clock::BackwardPass => is_better(other),
        Clock::FrameworkCalls => !learns_otherwise && counts_better(facts, other, &steps),
        _ => false,
    });
    if let Some(passes) = passes {
        std::mem::swap(passes, &mut steps);
    }
    let others = found.iter();
    steps.compare(
        others
            .map(|other| (other.clock, other.spans.len()))
            .collect(),
    );
    Some(steps)
}

/// The steps of a trainer of which it is known that each has one backward pass. `counted`: what else tells so, in a part of the time.
pub(super) fn by_passes(
    facts: &Facts,
    cast: &Cast,
    scene: &Scene,
    counted: Option<(Clock, usize)>,
) -> Option<Steps> {
    let mut steps = from_backward(facts, cast, scene)?;
    let others: Vec<_> = counted
        .filter(|(clock, _)| *clock != Clock::BackwardPass)
        .into_iter()
        .collect();
    let as_many = steps.spans.len();
    steps.compare(others.iter().map(|(clock, _)| (*clock, as_many)).collect());
    steps.others = others;
    Some(steps)
}

/// Whether what a framework computes as a whole counts better than these steps. It goes on while a loop waits for none of it but each
/// tenth loss.
fn counts_better(facts: &Facts, executions: &Steps, steps: &Steps) -> bool {
    let (all, count) = (executions.spans.len() as f64, steps.spans.len() as f64);
    let as_many = (count - all).abs() <= SAME * all;
    let waits = matches!(steps.clock, Clock::OwnThread | Clock::GpuSync);
    let seldom = waits && all > count && are_all_through(facts, executions);
    !as_many && (seldom || contradict(facts, executions, steps))
}

/// Whether backward passes, seen all through the watch, are neither as many as these steps, nor several to each (of several losses, or of
/// a batch that is worked off in parts), nor each for several of them (whose losses are added up). Else parts of batches were counted,
/// or batches that nothing was learned from, or some were missed; or many batches were handed over at once.
fn contradict(facts: &Facts, passes: &Steps, steps: &Steps) -> bool {
    let each = passes.spans.len() as f64 / steps.spans.len() as f64;
    let times = each.max(1.0 / each);
    let whole = times.round();
    let off = if whole > 1.0 { IN_TURN } else { SAME };
    let in_turn =
        (times - whole).abs() <= off * whole && (each < 1.0 || are_evenly_in(passes, steps));
    let at_once = whole > 1.0 && each > 1.0 && alike_all_through(passes, steps);
    are_all_through(facts, passes) && (!in_turn || at_once)
}

/// Whether the model is updated after each pass, of one loss, and the step thread does about as much for each: what was handed over is for
/// several updates, as of several batches.
fn are_steps_each(facts: &Facts, tid: u32, passes: &Steps, steps: &Steps) -> bool {
    let each = passes.spans.len() as f64 / steps.spans.len() as f64;
    if each.round() < 2.0 || !facts.each_is_updated(tid) || !are_all_through(facts, passes) {
        return false;
    }
    let ends: Vec<u64> = passes.spans.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let own = own_times(facts, tid, &ends);
    let mut by_place = [Vec::new(), Vec::new()];
    for (span, pair) in passes.spans.iter().zip(own.chunks_exact(2)) {
        let at = steps.spans.partition_point(|step| step.0 < span.0);
        let begins = steps.spans.get(at).is_some_and(|step| step.0 < span.1);
        by_place[usize::from(begins)].push(pair[1].saturating_sub(pair[0]));
    }
    let [inside, across] = by_place.map(|mut lengths: Vec<u64>| {
        lengths.sort_unstable();
        lengths.get(lengths.len() / 2).copied().unwrap_or(0) as f64
    });
    inside > 0.0 && (across - inside).abs() <= MUCH_ALIKE * inside
}

/// Whether these are the parts of turns whose gradients are accumulated.
fn are_parts(facts: &Facts, cast: &Cast, passes: &Steps, steps: &Steps) -> bool {
    let several = steps.spans.len() as f64 > SEVERAL_PARTS * passes.spans.len() as f64;
    facts.accumulated(cast.step_tid).is_some() && several && are_all_through(facts, passes)
}

/// Whether passes were seen through nearly all of the time.
fn are_all_through(facts: &Facts, passes: &Steps) -> bool {
    let covered: u64 = passes.spans.iter().map(|(from, to)| to - from).sum();
    covered as f64 >= SEEN * facts.walkable_ns() as f64
}

/// Whether most of the steps have as many passes each. A number that differs from one to the next is that of batches which happened to be
/// handed over together; and many are near a whole number of times as many in any case.
fn are_evenly_in(passes: &Steps, steps: &Steps) -> bool {
    let before = |at: u64| passes.spans.partition_point(|pass| pass.0 < at);
    let mut numbers: Vec<usize> = steps
        .spans
        .iter()
        .map(|(from, to)| before(*to) - before(*from))
        .collect();
    numbers.sort_unstable();
    let most = numbers.chunk_by(|a, b| a == b).map(<[usize]>::len).max();
    most.unwrap_or(0) as f64 >= EVENLY * numbers.len() as f64
}

/// Whether these are what another thread does of each of a turn's several backward passes.
fn are_of_several_losses(facts: &Facts, cast: &Cast, steps: &Steps) -> bool {
    let (all, turns) = (facts.passes(cast.step_tid), facts.losses(cast.step_tid));
    let (all, count) = (all.len() as f64, steps.spans.len() as f64);
    steps.clock == Clock::OwnThread
        && (turns.len() as f64) < (1.0 - SAME) * all
        && (count - all).abs() <= SAME * all
}

/// Whether from one pass to the next it takes as long where a step began between them as elsewhere: no optimiser's work, nor another
/// loss, sets the last of a step's passes apart from the others.
fn alike_all_through(passes: &Steps, steps: &Steps) -> bool {
    let begins = |span: &(u64, u64)| {
        let at = steps.spans.partition_point(|step| step.0 < span.0);
        steps.spans.get(at).is_some_and(|step| step.0 < span.1)
    };
    let (across, inside): (Vec<_>, Vec<_>) = passes.spans.iter().partition(|span| begins(span));
    let middle = |spans: Vec<(u64, u64)>| {
        let mut lengths: Vec<u64> = spans.iter().map(|(from, to)| to - from).collect();
        lengths.sort_unstable();
        lengths.get(lengths.len() / 2).copied().unwrap_or(0) as f64
    };
    let (across, inside) = (middle(across), middle(inside));
    (across - inside).abs() <= ALIKE * inside
}

/// Whether most of what the step thread computes falls into few turns, many times as much into each as into a usual one: then
/// what was handed over was no batch, but a metric's parts, say, each so many steps.
fn are_lumps(facts: &Facts, cast: &Cast, steps: &Steps) -> bool {
    let handed = matches!(
        steps.clock,
        Clock::BatchHandOver | Clock::BatchRequests | Clock::Queue
    );
    let ends: Vec<u64> = steps.spans.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let own = own_times(facts, cast.step_tid, &ends);
    let mut ran: Vec<u64> = own
        .chunks_exact(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect();
    ran.sort_unstable();
    let usual = ran.get(ran.len() / 2).copied().unwrap_or(0);
    let lumps = &ran[ran.partition_point(|ran| *ran <= LUMP * usual)..];
    let sum = |ran: &[u64]| ran.iter().sum::<u64>() as f64;
    let all: u64 = steps.spans.iter().map(|(from, to)| to - from).sum();
    handed && sum(lumps) > IN_LUMPS * sum(&ran) && sum(lumps) > LUMPS_OF_ALL * all as f64
}

/// Batches that the step thread polls for: whoever does so most of the time asks again when it has worked on one. What comes
/// meanwhile may be pieces of them.
fn from_polling(facts: &Facts, cast: &Cast) -> Option<Steps> {
    let items = facts.items(cast.step_tid);
    let polled: Vec<&Item> = items
        .iter()
        .filter(|item| cast.fed(item) && is_polled(item))
        .collect();
    let waited: u64 = polled.iter().map(|item| item.woken - item.from).sum();
    if (waited as f64) < POLLS * facts.walkable_ns() as f64 {
        return None;
    }
    let times = polled.iter().map(|item| item.from).collect();
    Some(build(facts, Clock::BatchHandOver, apart(times), None))
}

/// Batches from worker processes: asked for by a write on a channel, handed over by a message on another, or on the same socket.
fn from_workers(facts: &Facts, cast: &Cast, scene: &Scene, walked: &Walked) -> Option<Steps> {
    if cast.workers.is_empty() {
        return None;
    }
    let handed = hand_overs(facts, cast, |tid| facts.pid(tid) == Some(cast.trainer));
    let requests = requests(facts, cast, scene.locks);
    let (channels, taken) = training_only(handed.clone());
    if taken.len() < MIN_STEPS {
        return None;
    }
    let renewals = renewals(facts, cast);
    // A helper thread takes messages ahead of the steps.
    let itself = facts
        .touches(cast.step_tid)
        .iter()
        .any(|touch| reads(touch, &channels));
    let begun = |steps: Steps| {
        let mut steps = from_asking(facts, cast, &channels, steps);
        drop_unnoted(facts, cast, &mut steps);
        from_renewal(&mut steps.spans, &renewals);
        steps
    };
    let asked = |steps: Steps| {
        let mut steps = begun(steps);
        if steps.clock == Clock::BatchHandOver && itself {
            let without = [walked.stalls.clone(), renewals.clone()].concat();
            let epochs: Vec<u64> = renewals.iter().map(|(from, _)| *from).collect();
            spread(&mut steps.spans, &union(without), &epochs);
        }
        steps
    };
    if itself && let Some(whole) = one_from_each(facts, cast, &handed) {
        return Some(begun(build(facts, Clock::BatchHandOver, whole, None)));
    }
    // Each message is a batch, also where nothing is left to ask for.
    if itself && !renewals.is_empty() {
        return Some(asked(build(facts, Clock::BatchHandOver, taken, None)));
    }
    let close = |a: usize, b: usize, slack: usize| a.abs_diff(b) <= slack + a.max(b) / 10;
    let outstanding = 4 * cast.workers.len();
    let inside: Vec<u64> = match (taken.first(), taken.last()) {
        (Some(first), Some(last)) => requests
            .iter()
            .copied()
            .filter(|at| at + 1_000_000_000 >= *first && *at <= last + 1_000_000_000)
            .collect(),
        _ => Vec::new(),
    };
    if inside.len() >= MIN_STEPS && close(inside.len(), taken.len(), outstanding) {
        let times = if renewals.is_empty() {
            step_by_step(&inside, &taken)
        } else {
            epoch_by_epoch(&inside, &taken, &renewals)
        };
        // Short epochs, or evaluations: what is asked for in advance, or for those, cannot be told from the rest.
        if times.len() > taken.len() + taken.len() / 50 + 1 {
            return Some(asked(build(facts, Clock::BatchHandOver, taken, None)));
        }
        return Some(asked(build(
            facts,
            Clock::BatchRequests,
            times,
            Some(taken.len()),
        )));
    }
    if !itself && let Some(whole) = whole_from_helper(facts, cast, scene.locks, &channels, &taken) {
        return Some(asked(build(facts, Clock::BatchHandOver, whole, None)));
    }
    let one_after_another = cast.makers.len() == 1;
    let whole = one_after_another.then(|| whole_batches(facts, cast, &channels, &taken));
    let taken = whole.flatten().unwrap_or(taken);
    Some(asked(build(facts, Clock::BatchHandOver, taken, None)))
}

/// Moves each step's beginning to where the step thread began to wait for its batch on one of the channels, or to read it: when it
/// has the batch it asks for another, so that waiting and reading would count to the step before.
fn from_asking(facts: &Facts, cast: &Cast, channels: &[Channel], steps: Steps) -> Steps {
    let taken = began(facts.touches(cast.step_tid), channels);
    let mut waits: Vec<u64> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| is_one_of(&item.object, channels))
        .map(|item| item.from)
        .chain(taken)
        .collect();
    waits.sort_unstable();
    let messages = taken_from_to(facts, cast.step_tid, channels);
    let begin = |before: u64, at: u64| {
        // It may wait for the rest of what it has begun to take.
        let begun = messages.partition_point(|message| message.0 <= before);
        let whole = begun.checked_sub(1).map_or(0, |n| messages[n].1);
        let before = before.max(whole.min(at));
        // What was not seen is no part of a step.
        let seen = facts.spans.partition_point(|span| span.0 <= at);
        let before = before.max(seen.checked_sub(1).map_or(0, |n| facts.spans[n].0));
        let next = waits.partition_point(|from| *from <= before);
        waits.get(next).map_or(at, |from| at.min(*from))
    };
    let mut before = facts.spans.first().map_or(0, |span| span.0);
    let mut spans = Vec::with_capacity(steps.spans.len());
    for (from, to) in steps.spans {
        spans.push((begin(before, from), begin(from, to)));
        before = from;
    }
    spans.retain(|(from, to)| to > from);
    Steps { spans, ..steps }
}

/// Before calls of the trainer are noted one by one, what it need not wait for is not seen: what lasts that long then is several steps.
fn drop_unnoted(facts: &Facts, cast: &Cast, steps: &mut Steps) {
    let first = facts
        .touching_threads()
        .filter(|(tid, _)| facts.pid(*tid) == Some(cast.trainer))
        .filter_map(|(_, touches)| Some(touches.first()?.at.0))
        .min()
        .unwrap_or(0);
    let most = SEVERAL * steps.quantile_ns(0.5) as f64;
    steps
        .spans
        .retain(|(from, to)| *from >= first || ((to - from) as f64) < most);
}

/// A new set of workers is made for the batches to come: that belongs to the step that waits for the first of them.
fn from_renewal(spans: &mut [(u64, u64)], renewals: &[(u64, u64)]) {
    for at in 0..spans.len() {
        let (from, to) = spans[at];
        let first = renewals.partition_point(|renewal| renewal.0 <= from);
        let Some(renewal) = renewals.get(first).filter(|renewal| renewal.0 < to) else {
            continue;
        };
        spans[at].1 = renewal.0;
        if let Some(next) = spans.get_mut(at + 1).filter(|next| next.0 == to) {
            next.0 = renewal.0;
        }
    }
}

/// Queues in memory: the trainer waited for a batch, or a producer waited for room. In one step it is one or the
/// other: an empty queue has room.
fn from_queue(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    // A process hands over so too: by semaphores, what is in shared memory. Of several that are done at the same time one shows.
    let makers: &BTreeSet<u32> = if cast.workers.is_empty() {
        &cast.loader_threads
    } else {
        &cast.makers
    };
    if makers.is_empty() || !cast.workers.is_empty() && makers.len() > 1 {
        return None;
    }
    let by_producer = |waker: u32| cast.producers.contains(&waker);
    let own = own_lines(facts, cast.step_tid, by_producer);
    let mut lines = BTreeMap::<u64, bool>::new();
    let stalls: Vec<(u64, u64)> = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| by_producer(item.waker.tid) && item.kind() == WaitKind::Futex)
        .filter(|item| {
            let at = line(&item.object);
            *lines.entry(at).or_insert_with(|| {
                lock_of(scene.locks, facts, cast.step_tid, at).is_none() && own.contains(&at)
            })
        })
        .map(|item| (item.from, item.woken))
        .collect();
    let slots: Vec<(u64, u64)> = makers
        .iter()
        .flat_map(|tid| room(facts, scene.locks, *tid, cast.step_tid))
        .collect();
    let (few, many) = (stalls.len().min(slots.len()), stalls.len().max(slots.len()));
    let waits = if few * 20 > many {
        [stalls, slots].concat()
    } else if stalls.len() > slots.len() {
        stalls
    } else {
        slots
    };
    let mut times: Vec<u64> = waits.iter().map(|(_, woken)| *woken).collect();
    times.sort_unstable();
    let times = filled(facts, cast.step_tid, apart(times));
    let times = after_work(facts, cast.step_tid, &times).unwrap_or(times);
    let steps = build(facts, Clock::Queue, times, None);
    (!skips(facts, cast.step_tid, &steps, &union(waits))).then_some(steps)
}

fn from_own_batches(facts: &Facts, scene: &Scene) -> Option<Steps> {
    let (turns, within_ns) = scene.own_turns()?;
    let times: Vec<u64> = turns.iter().map(|(from, _)| *from).collect();
    if times.len() < MIN_STEPS {
        return None;
    }
    let mut steps = build(facts, Clock::OwnBatches, times, None);
    steps.within_ns = within_ns;
    // Files that a program reads when it starts are no batches.
    let covered: u64 = steps.spans.iter().map(|(from, to)| to - from).sum();
    (covered as f64 >= ALL_THROUGH * facts.walkable_ns() as f64).then_some(steps)
}

/// Backward passes that the step thread begins.
fn from_backward(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    let passes = facts.parts(cast.step_tid);
    let turns = facts.accumulated(cast.step_tid);
    if turns.unwrap_or(passes).len() < MIN_STEPS {
        return None;
    }
    let waits: Vec<u64> = handed(facts, cast, scene.locks)
        .map(|item| item.from)
        .collect();
    let times = from_batches(passes, &waits, scene.checkpoints());
    let Some(turns) = turns else {
        return Some(build(facts, Clock::BackwardPass, times, None));
    };
    let before = |pass: &u64| times.partition_point(|at| at <= pass).checked_sub(1);
    let begins = turns.iter().filter_map(|pass| Some(times[before(pass)?]));
    let mut steps = build(facts, Clock::BackwardPass, begins.collect(), None);
    steps.parts = passes.len() as f64 / turns.len() as f64;
    Some(steps)
}

/// What the step thread has its framework compute once in each turn.
fn from_executions(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    // Where they were too many to watch, those before that were seen.
    if !facts.session.sees(EXECUTIONS) {
        return None;
    }
    let turns = one_of_each(facts.executions(cast.step_tid))?;
    let waits: Vec<u64> = handed(facts, cast, scene.locks)
        .map(|item| item.from)
        .collect();
    let times = from_batches(&turns, &waits, scene.checkpoints());
    Some(build(facts, Clock::FrameworkCalls, times, None))
}

/// Calls that the step thread makes at even intervals, where nothing better is there: less sure than the others.
fn from_own_calls(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    let pulse = pulse(facts, cast.step_tid, scene.checkpoints())
        .filter(|pulse| !echoes(&pulse.times, scene.checkpoints()));
    let bursts = bursts(facts, cast.step_tid, scene.checkpoints());
    // Where it reads from several things in turn, each shows a part of the steps alone.
    let in_turn = |pulse: &Pulse, bursts: &[u64]| {
        let times = bursts.len() as f64 / pulse.times.len() as f64;
        times.round() >= 2.0 && (times - times.round()).abs() <= IN_TURN * times
    };
    let (times, kinds) = match (pulse, bursts) {
        (Some(pulse), Some(bursts)) if in_turn(&pulse, &bursts) => (bursts, 1),
        (Some(pulse), _) => (pulse.times, pulse.kinds),
        (None, bursts) => (bursts?, 1),
    };
    let times = one_each(times, &Python::new(facts).in_model(cast.step_tid));
    let mut steps = build(facts, Clock::OwnCalls, times, None);
    if kinds < 2 {
        steps.confidence *= ONE_KIND;
    }
    Some(steps)
}

/// Whether these times are those of checkpoints, about which it is not known how many steps lie between them: memory that one gave back is
/// taken anew after it.
fn echoes(times: &[u64], checkpoints: &[(u64, u64)]) -> bool {
    let (times, checkpoints) = (times.len() as f64, checkpoints.len() as f64);
    (times - checkpoints).abs() <= ECHO * times
}

/// Parts of steps that a thread of its own does while it waits.
fn from_own_thread(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    let times = own_thread(facts, cast, scene.locks)?;
    Some(build(facts, Clock::OwnThread, times, None))
}

/// Computing that threads of its own do while it waits.
fn from_pool(facts: &Facts, cast: &Cast, scene: &Scene) -> Option<Steps> {
    let times = pool(facts, cast, scene.locks, scene.own_batches())?;
    Some(build(facts, Clock::OwnThread, times, None))
}

/// Synchronising calls: one a step, or a group of them, in which next to nothing is done between two.
fn from_gpu(facts: &Facts, cast: &Cast) -> Option<Steps> {
    let times: Vec<u64> = facts
        .calls(cast.step_tid)
        .iter()
        .filter(|call| call.kind == GpuCallKind::Synchronise)
        .map(|call| call.to)
        .collect();
    let times = one_by_one(facts, cast.step_tid, &times).unwrap_or_else(|| apart(times));
    // It may ask for the loss of each tenth step.
    let passes = facts.losses(cast.step_tid).len();
    if passes as f64 > SELDOM * times.len() as f64 {
        return None;
    }
    (times.len() >= MIN_STEPS).then(|| build(facts, Clock::GpuSync, times, None))
}

/// Ends of exchanges with other ranks.
fn from_collectives(facts: &Facts, cast: &Cast, scene: &Scene, walked: &Walked) -> Option<Steps> {
    let times = collectives(facts, cast, scene, walked);
    // Where each parameter is exchanged by itself, next to nothing is done between two of them.
    let times = one_by_one(facts, cast.step_tid, &times)
        .unwrap_or_else(|| apart_by_work(facts, cast.step_tid, &apart(times)));
    (times.len() >= MIN_STEPS).then(|| build(facts, Clock::Collectives, times, None))
}
