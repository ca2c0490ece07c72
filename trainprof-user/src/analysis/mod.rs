//! From a session to why the job is not faster: who is who, where the step thread's time went, steps, causes,
//! findings and the verdict. A pure function of the session: no clock, no I/O.

mod aides;
mod all_time;
pub mod allocation;
pub mod alternation;
mod apart;
pub mod asked;
pub mod bound;
mod brief;
mod bursts;
pub mod cast;
pub mod causes;
pub mod checkpoints;
mod clock;
mod collecting;
pub mod collectives;
mod confidence;
pub mod cpus;
pub mod crowding;
pub mod demand;
pub mod epochs;
pub mod executions;
mod facts;
pub mod files;
pub mod gpu;
mod gpu_memory;
pub mod gpu_use;
mod groups;
pub mod helpers;
mod hidden;
pub mod idle;
pub mod kind;
mod loaders;
pub mod locks;
pub mod memory;
pub mod memory_limit;
pub mod messages;
mod multiples;
mod own_thread;
pub mod pace;
mod passes;
pub mod phases;
mod pieces;
pub mod polling;
mod pools;
pub mod pulse;
pub mod put_aside;
pub mod python;
pub mod room;
mod rounds;
pub mod rules;
pub mod running;
mod settle;
mod skipped;
mod sockets;
mod spans;
pub mod spinning;
mod steadiness;
pub mod steps;
pub mod taking_in;
#[cfg(test)]
pub(crate) mod tests;
pub mod throttle;
pub mod timeline;
mod trainer;
mod unclear;
mod updates;
pub mod verdict;
pub mod walk;
pub mod words;

use std::collections::BTreeMap;

pub use cast::Cast;
pub use causes::{Detail, Share};
pub use kind::Kind;
pub use rules::{Answer, Finding, NotTold};
pub use steps::Steps;
pub use trainer::Trainer;
pub use verdict::Verdict;

use self::{
    bound::Terms,
    causes::Scene,
    collecting::mostly_collects,
    cpus::{allowed_cpus, cpu_ns, cpus, host_cpus, kernel_threads, spun_ns},
    demand::demand,
    epochs::epochs,
    facts::Facts,
    files::{FileKinds, FileTime},
    gpu::GpuTime,
    gpu_use::GpuUse,
    locks::{Lock, LockId, locks},
    spans::union,
    throttle::{Quota, Throttled},
    walk::Walker,
};
use crate::session::Session;

/// Least length of time that a batch is taken to be in the making, ns.
const MIN_BATCH_NS: u64 = 20_000_000;
const MAX_BATCH_NS: u64 = 5_000_000_000;

/// What was found out about a job.
pub struct Analysis {
    /// The trainer that the verdict is about; `None` when nothing could be walked.
    pub trainer: Option<Trainer>,
    /// The trainer's steps in all of the watch, where all else is of the time alone in which calls were counted.
    pub steps_of_all: Option<Steps>,
    /// The other trainers.
    pub others: Vec<Trainer>,
    pub file_times: BTreeMap<u32, FileTime>,
    /// Quotas that were hit.
    pub quotas: Vec<Quota>,
    pub locks: BTreeMap<LockId, Lock>,
    pub verdict: Option<Verdict>,
    pub findings: Vec<Finding>,
    /// Rules that could not tell.
    pub not_told: Vec<NotTold>,
}

/// What a trainer was found to be while its calls were counted: who is who, and by what its steps were told, and how many.
struct Found {
    cast: Cast,
    counted: Option<(steps::Clock, usize)>,
}

/// Analyses a session.
pub fn analyse(session: &Session) -> Analysis {
    let counted = Facts::new(session);
    let mut analysis = analyse_facts(&counted, None);
    let alone = analysis.others.is_empty();
    let Some(trainer) = analysis
        .trainer
        .as_ref()
        .filter(|trainer| alone && all_time::one_pass_each(&counted, trainer))
    else {
        return analysis;
    };
    let Some(all) = Facts::of_all_time(session) else {
        return analysis;
    };
    let found = Found {
        cast: trainer.cast.clone(),
        counted: trainer
            .steps
            .as_ref()
            .map(|steps| (steps.clock, steps.spans.len())),
    };
    if all_time::may_tell(&counted, trainer) && all_time::tells(&counted, &all, trainer) {
        return analyse_facts(&all, Some(found));
    }
    if all_time::passes_all_through(&all, trainer.cast.step_tid) {
        analysis.steps_of_all = steps_of_all(&all, &found.cast);
    }
    analysis
}

/// The steps of all of the watch, where passes tell them and nothing else is told by all of it.
fn steps_of_all(facts: &Facts, cast: &Cast) -> Option<Steps> {
    let (locks, files, throttled) = (locks(facts), FileKinds::new(facts), Throttled::new(facts));
    let gpu = GpuTime::new(facts, cast);
    let pinned = allowed_cpus(facts);
    let cpus = (host_cpus(facts.session), cpus(facts, pinned));
    let scene = Scene::new(facts, cast, &locks, &files, &throttled, &gpu, cpus);
    steps::by_passes(facts, cast, &scene, None)
}

/// `found`: whom these facts are about, where calls were counted for a part of their time only.
fn analyse_facts(facts: &Facts, found: Option<Found>) -> Analysis {
    let session = facts.session;
    let locks = locks(facts);
    let files = FileKinds::new(facts);
    let throttled = Throttled::new(facts);
    let mut trainers: Vec<Trainer> = if facts.walkable_ns() == 0 {
        Vec::new()
    } else if let Some(found) = found {
        vec![trainer(facts, found, &locks, &files, &throttled)]
    } else {
        cast::casts(facts, &locks)
            .into_iter()
            .map(|cast| Found {
                cast,
                counted: None,
            })
            .map(|found| trainer(facts, found, &locks, &files, &throttled))
            .collect()
    };
    rank(&mut trainers);
    let chosen = choose(session, &trainers);
    let trainer = chosen.map(|at| trainers.swap_remove(at));
    let mut analysis = Analysis {
        trainer,
        steps_of_all: None,
        others: trainers,
        file_times: files.times().clone(),
        quotas: throttled.quotas,
        locks,
        verdict: None,
        findings: Vec::new(),
        not_told: Vec::new(),
    };
    (analysis.findings, analysis.not_told) = rules::findings(session, facts, &analysis);
    analysis.verdict = analysis
        .trainer
        .as_ref()
        .map(|trainer| verdict::verdict(session, &analysis, trainer));
    analysis
}

fn trainer(
    facts: &Facts,
    Found { cast, counted }: Found,
    locks: &BTreeMap<LockId, Lock>,
    files: &FileKinds,
    throttled: &Throttled,
) -> Trainer {
    let gpu = GpuTime::new(facts, &cast);
    let pinned = allowed_cpus(facts);
    let (may_use, host) = (cpus(facts, pinned), host_cpus(facts.session));
    let scene = Scene::new(facts, &cast, locks, files, throttled, &gpu, (host, may_use));
    // First with what is known of a batch's length beforehand, then with the steps that this shows.
    let mut walked = Walker::new(facts, &cast, locks, guess_batch(facts, &cast)).explain();
    let steps = if facts.with_calls {
        steps::steps(facts, &cast, &scene, &walked)
    } else {
        steps::by_passes(facts, &cast, &scene, counted)
    };
    if let Some(steps) = &steps {
        let batch = steps.mean_ns() / steps.parts * cast.at_once(facts);
        let batch = (batch as u64).clamp(MIN_BATCH_NS, MAX_BATCH_NS);
        walked = Walker::new(facts, &cast, locks, batch).explain();
    }
    let mut shares = scene.shares(&walked);
    let kinds_of_leaf = kinds_by_leaf(&shares, walked.leaves.len());
    let waits: Vec<bool> = walked
        .leaves
        .iter()
        .map(|(leaf, _)| leaf.waits_for_gpu())
        .collect();
    let idle = idle::blame(&gpu, &walked.spans, &walked.pieces, &kinds_of_leaf, &waits);
    idle::give_to_copies(&mut shares, &waits, idle.behind_copies_s);
    let kinds_of_leaf = kinds_by_leaf(&shares, walked.leaves.len());
    let there: f64 = facts
        .spans_of(cast.step_tid)
        .iter()
        .map(|(from, to)| (to - from) as f64)
        .sum();
    // The wait that the end of the watch cut off was not walked.
    let wall = there - walked.cut as f64;
    let part = wall / there.max(1.0);
    let demand = demand(facts, &cast, locks, &scene).for_part(part);
    let in_stalls: f64 = shares
        .iter()
        .filter(|share| share.in_stall)
        .map(|share| share.ns)
        .sum();
    let mut apart = cast::apart(facts, locks, &cast);
    apart.extend(scene.helpers().threads_apart(facts.session));
    let terms = Terms {
        wall,
        own: wall - in_stalls,
        cpu: cpu_ns(facts, |_| true) * part,
        cpu_apart: (cpu_ns(facts, |tid| apart.contains(&tid)) + spun_ns(facts, &apart)) * part,
        cpus: may_use,
        pinned,
        host_cpus: host,
        gpu_busy: if gpu.sampled() && idle.seen_s > 0.0 {
            wall * (1.0 - idle.idle_s / idle.seen_s) * gpu.ours
        } else {
            0.0
        },
        gpu_pauses: gpu.in_pauses(),
        pace: steps
            .as_ref()
            .map(|steps| {
                let others = [&walked.stalls, scene.checkpoints()].concat();
                pace::pace(steps, &union(others))
            })
            .unwrap_or_default(),
        ..Terms::default()
    };
    Trainer {
        wall,
        stalled: in_stalls,
        gpu_calls: gpu.calls,
        coordinates: false,
        synchronising: gpu.synchronising,
        gpu_ours: gpu.ours,
        gpu_use: GpuUse::new(facts, &cast, &gpu),
        unsampled: running::unsampled(facts, &walked) / wall.max(1.0),
        behind_samples: running::behind_samples(facts, cast.step_tid),
        checkpoints: scene.checkpoints().to_vec(),
        own_batches: scene.own_batches().to_vec(),
        own_batches_guessed: scene.own_batches_guessed(),
        kernel_threads: kernel_threads(facts.session),
        idlers: scene.idlers().collect(),
        around_calls: scene.around_calls().clone(),
        taking_in: scene.taking_in().to_vec(),
        beside_model: scene.beside_model().to_vec(),
        garbage: mostly_collects(facts, cast.step_tid, scene.beside_model()),
        describes: scene.describes(),
        kinds_of_leaf,
        shares,
        epochs: facts
            .with_calls
            .then(|| epochs(facts, &cast, &scene, steps.as_ref()))
            .flatten(),
        steps,
        demand,
        terms,
        idle,
        walked,
        cast,
    }
}

/// For each leaf its causes, with their shares (0–1) of it.
fn kinds_by_leaf(shares: &[Share], leaves: usize) -> Vec<Vec<(Kind, f64)>> {
    let mut out = vec![Vec::new(); leaves];
    for share in shares {
        out[share.leaf as usize].push((share.kind, share.of_leaf));
    }
    out
}

/// A first guess at how long a batch is in the making: the time between two stalls, for each producer.
fn guess_batch(facts: &Facts, cast: &Cast) -> u64 {
    let stalls = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| cast.producers.contains(&item.waker.tid))
        .count() as u64;
    let between = facts.walkable_ns() as f64 / stalls.max(1) as f64;
    ((between * cast.at_once(facts)) as u64).clamp(MIN_BATCH_NS, MAX_BATCH_NS)
}

/// A rank that does less than this part of what the others do itself only brings their results together.
const COORDINATES: f64 = 0.25;

/// Lets each trainer know how long the ranks that it does not wait for most are busy themselves, since no step gets shorter than
/// that, and whether it is one of those only that bring the others' results together, as a server of parameters does.
fn rank(trainers: &mut [Trainer]) {
    let own: BTreeMap<u32, f64> = trainers
        .iter()
        .map(|trainer| (trainer.cast.trainer, trainer.own_share()))
        .collect();
    for trainer in trainers {
        let late = trainer.waits_for();
        let mut others: Vec<(u32, f64)> = own.iter().map(|(pid, share)| (*pid, *share)).collect();
        others.retain(|(pid, _)| *pid != trainer.cast.trainer);
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        let most = others.iter().find(|(pid, _)| Some(*pid) != late);
        trainer.terms.other_ranks = most.map_or(0.0, |(_, share)| share * trainer.wall);
        // One that is late may be busy all the time while the others hardly are.
        trainer.coordinates = others
            .get(1)
            .is_some_and(|(_, share)| trainer.own_share() < COORDINATES * share);
    }
}

/// The trainer that is told about: the one that was asked for, or the one that waits for others most; none that merely coordinates them.
fn choose(session: &Session, trainers: &[Trainer]) -> Option<usize> {
    let asked = session
        .start
        .as_ref()
        .and_then(|start| start.targets.first().copied());
    let by_pid = trainers
        .iter()
        .position(|trainer| Some(trainer.cast.trainer) == asked && !trainer.coordinates);
    by_pid.or_else(|| {
        trainers
            .iter()
            .enumerate()
            .filter(|(_, trainer)| !trainer.coordinates)
            .max_by(|(_, a), (_, b)| {
                let of = |t: &Trainer| t.ns(Kind::Communication) / t.wall.max(1.0);
                of(a)
                    .total_cmp(&of(b))
                    .then(b.cast.trainer.cmp(&a.cast.trainer))
            })
            .map(|(at, _)| at)
    })
}
