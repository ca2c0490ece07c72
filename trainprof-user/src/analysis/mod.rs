//! From a session to why the job is not faster: who is who, where the step thread's time went, steps, causes,
//! findings and the verdict. A pure function of the session: no clock, no I/O.

pub mod alternation;
pub mod asked;
pub mod bound;
mod bursts;
pub mod cast;
pub mod causes;
pub mod checkpoints;
mod clock;
pub mod collectives;
pub mod crowding;
pub mod demand;
pub mod epochs;
pub mod facts;
pub mod files;
pub mod gpu;
pub mod helpers;
mod hidden;
pub mod idle;
pub mod kind;
pub mod locks;
pub mod memory;
pub mod messages;
mod multiples;
pub mod pace;
pub mod phases;
pub mod polling;
pub mod pulse;
pub mod put_aside;
pub mod python;
pub mod room;
pub mod rules;
pub mod running;
pub mod spans;
pub mod spinning;
pub mod steps;
pub mod taking_in;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod timeline;
pub mod verdict;
pub mod walk;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};

pub use cast::Cast;
pub use causes::{Detail, Share};
pub use kind::Kind;
pub use rules::{Answer, Finding};
pub use steps::Steps;
pub use verdict::Verdict;

use self::{
    bound::Terms,
    causes::Scene,
    demand::{Demand, demand},
    epochs::{Epochs, epochs},
    facts::Facts,
    files::{FileKinds, FileTime},
    gpu::GpuTime,
    idle::IdleBlame,
    locks::{Lock, LockId, locks},
    running::yielding,
    throttle::Throttled,
    walk::{Walked, Walker, What},
};
use crate::{env::host::cpu_list, session::Session};

/// Least length of time that a batch is taken to be in the making, ns.
const MIN_BATCH_NS: u64 = 20_000_000;
const MAX_BATCH_NS: u64 = 5_000_000_000;
/// CPU time beside what was walked may make a job seem to use a little more than it may.
const MORE_THAN_ALLOWED: f64 = 1.05;

/// Everything that was found out about one trainer.
pub struct Trainer {
    pub cast: Cast,
    pub walked: Walked,
    pub shares: Vec<Share>,
    /// By leaf: causes and their shares (0–1).
    pub kinds_of_leaf: Vec<Vec<(Kind, f64)>>,
    pub steps: Option<Steps>,
    pub epochs: Option<Epochs>,
    pub demand: Demand,
    pub terms: Terms,
    pub idle: IdleBlame,
    pub gpu_calls: bool,
    /// It only brings together what other ranks computed.
    pub coordinates: bool,
    /// Share of the step thread's time inside synchronising calls.
    pub synchronising: f64,
    /// Walked time, ns.
    pub wall: f64,
    /// Sum of its stalls, ns.
    pub stalled: f64,
    pub checkpoints: Vec<(u64, u64)>,
    /// Stretches in which the step thread, having no producers, made batches itself.
    pub own_batches: Vec<(u64, u64)>,
    /// That it did so is known only from what these stretches alternate with.
    pub own_batches_guessed: bool,
    /// Threads outside the job that run no program.
    kernel_threads: BTreeSet<u32>,
    /// Stretches in which the step thread, having producers, took a batch in and asked for the next one.
    pub taking_in: Vec<(u64, u64)>,
}

impl Trainer {
    /// Nanoseconds of one cause.
    pub fn ns(&self, kind: Kind) -> f64 {
        self.shares
            .iter()
            .filter(|share| share.kind == kind)
            .map(|share| share.ns)
            .sum()
    }

    /// Nanoseconds by cause.
    pub fn by_kind(&self) -> BTreeMap<Kind, f64> {
        let mut out = BTreeMap::new();
        for share in &self.shares {
            *out.entry(share.kind).or_default() += share.ns;
        }
        out
    }

    /// Share (0–1) of the time in which it did not wait for other ranks.
    fn own_share(&self) -> f64 {
        1.0 - self.ns(Kind::Communication) / self.wall.max(1.0)
    }

    /// The rank that it waits for most.
    fn waits_for(&self) -> Option<u32> {
        let mut by_rank = BTreeMap::<u32, f64>::new();
        for share in &self.shares {
            if share.kind == Kind::Communication && share.detail.rank != 0 {
                *by_rank.entry(share.detail.rank).or_default() += share.ns;
            }
        }
        by_rank
            .into_iter()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(rank, _)| rank)
    }

    /// The factor by which the job could be faster without a cause, at most.
    pub fn bound(&self, kind: Kind) -> f64 {
        let part = |share: &Share| self.part_of_cause(kind, share);
        let sum = |in_stall: bool| -> f64 {
            self.shares
                .iter()
                .filter(|share| share.in_stall == in_stall)
                .map(|share| share.ns * part(share))
                .sum()
        };
        let own = |what: fn(&What) -> bool| -> f64 {
            self.shares
                .iter()
                .filter(|share| !share.in_stall)
                .filter(|share| what(&self.walked.leaves[share.leaf as usize].0.what))
                .map(|share| share.ns * part(share))
                .sum()
        };
        let own_cpu = own(|what| matches!(what, What::Run { .. }));
        // Strangers' work and the quota stay, whatever else of the job's own goes. Threads of the kernel may work for the job.
        let stays = |share: &Share| match share.kind {
            _ if share.kind == kind => false,
            Kind::CpuContention => !self.kernel_threads.contains(&share.detail.outsider),
            Kind::CpuThrottled => true,
            _ => false,
        };
        let own_crowded: f64 = self
            .shares
            .iter()
            .filter(|share| !share.in_stall && !stays(share))
            .filter(|share| {
                let (way, _) = &self.walked.leaves[share.leaf as usize];
                matches!(way.what, What::Runnable { .. })
            })
            .map(|share| share.ns)
            .sum();
        let mut demand = self.demand.clone();
        if kind == Kind::InputCpu {
            demand.count_as(Kind::AllocationChurn, kind);
        }
        let beside = match kind {
            Kind::InputCpu => self.beside_taking_in(),
            _ => Beside::default(),
        };
        let producers_cpu = demand.run_by_kind.get(&kind).copied().unwrap_or(0.0);
        let terms = Terms {
            own_crowded,
            own_of_cause: sum(false) + beside.own,
            own_crowded_by_cause: own(|what| matches!(what, What::Runnable { .. }))
                + beside.crowded,
            stall_of_cause: sum(true) + beside.stalled,
            cpu_of_cause: own_cpu + producers_cpu,
            ..self.terms.clone()
        };
        bound::bound(kind, &terms, &demand)
    }

    /// How much (0–1) of a share goes when the cause `kind` does: what is allocated to make batches, and workers that are made for it,
    /// go with the work on them.
    fn part_of_cause(&self, kind: Kind, share: &Share) -> f64 {
        if share.kind == kind {
            return 1.0;
        }
        match share.kind {
            Kind::WorkerStart if kind == Kind::InputCpu => 1.0,
            Kind::AllocationChurn if kind == Kind::InputCpu => {
                let (way, spent) = &self.walked.leaves[share.leaf as usize];
                if share.in_stall || self.cast.producers.contains(&way.what.tid()) {
                    1.0
                } else {
                    spans::share_inside(&spent.windows, &self.own_batches)
                }
            }
            _ => 0.0,
        }
    }

    /// What other causes took while the step thread took batches in: what it waits for then goes with that work.
    fn beside_taking_in(&self) -> Beside {
        let mut out = Beside::default();
        if self.taking_in.is_empty() {
            return out;
        }
        let leaves = self.walked.leaves.len();
        let (mut input, mut stalled) = (vec![0.0; leaves], vec![false; leaves]);
        for share in &self.shares {
            let leaf = share.leaf as usize;
            stalled[leaf] = share.in_stall;
            if share.kind == Kind::InputCpu {
                input[leaf] += share.of_leaf;
            }
        }
        for piece in &self.walked.pieces {
            let leaf = piece.leaf as usize;
            let (way, _) = &self.walked.leaves[leaf];
            let own = way.hops.is_empty();
            if own && matches!(way.what, What::Run { .. }) {
                // Its own running then is all told as input.
                continue;
            }
            let inside = spans::share_inside(&[(piece.from, piece.to)], &self.taking_in);
            let ns = piece.ns * inside * (1.0 - input[leaf]);
            if stalled[leaf] {
                out.stalled += ns;
            } else {
                out.own += ns;
                if matches!(way.what, What::Runnable { .. }) {
                    out.crowded += ns;
                }
            }
        }
        out
    }
}

/// Nanoseconds of the step thread's time: its own, of that wanting a CPU, and in stalls.
#[derive(Clone, Copy, Default)]
struct Beside {
    own: f64,
    crowded: f64,
    stalled: f64,
}

/// What was found out about a job.
pub struct Analysis {
    /// The trainer that the verdict is about; `None` when nothing could be walked.
    pub trainer: Option<Trainer>,
    /// The other trainers.
    pub others: Vec<Trainer>,
    pub file_times: BTreeMap<u32, FileTime>,
    pub throttled: Option<(String, f64, f64)>,
    pub locks: BTreeMap<LockId, Lock>,
    pub verdict: Option<Verdict>,
    pub findings: Vec<Finding>,
}

/// Analyses a session.
pub fn analyse(session: &Session) -> Analysis {
    let facts = Facts::new(session);
    let locks = locks(&facts);
    let files = FileKinds::new(&facts);
    let throttled = Throttled::new(&facts);
    let mut trainers: Vec<Trainer> = if facts.walkable_ns() == 0 {
        Vec::new()
    } else {
        cast::casts(&facts, &locks)
            .into_iter()
            .map(|cast| trainer(&facts, cast, &locks, &files, &throttled))
            .collect()
    };
    rank(&mut trainers);
    let chosen = choose(session, &trainers);
    let trainer = chosen.map(|at| trainers.swap_remove(at));
    let mut analysis = Analysis {
        trainer,
        others: trainers,
        file_times: files.times().clone(),
        throttled: throttled
            .cgroup
            .map(|(cgroup, cpus)| (cgroup, cpus, throttled.periods)),
        locks,
        verdict: None,
        findings: Vec::new(),
    };
    analysis.findings = rules::findings(session, &facts, &analysis);
    analysis.verdict = analysis
        .trainer
        .as_ref()
        .map(|trainer| verdict::verdict(session, &analysis, trainer));
    analysis
}

fn trainer(
    facts: &Facts,
    cast: Cast,
    locks: &BTreeMap<LockId, Lock>,
    files: &FileKinds,
    throttled: &Throttled,
) -> Trainer {
    let gpu = GpuTime::new(facts, &cast);
    let pinned = allowed_cpus(facts);
    let (may_use, host) = (cpus(facts.session, pinned), host_cpus(facts.session));
    let scene = Scene::new(
        facts,
        &cast,
        locks,
        files,
        throttled,
        &gpu,
        (host, may_use >= host),
    );
    // First with what is known of a batch's length beforehand, then with the steps that this shows.
    let mut walked = Walker::new(facts, &cast, locks, guess_batch(facts, &cast)).explain();
    let steps = steps::steps(facts, &cast, &scene, &walked);
    if let Some(steps) = &steps {
        let batch = steps.mean_ns() * cast.parallel().max(1) as f64;
        let batch = (batch as u64).clamp(MIN_BATCH_NS, MAX_BATCH_NS);
        walked = Walker::new(facts, &cast, locks, batch).explain();
    }
    let shares = scene.shares(&walked);
    let mut kinds_of_leaf = vec![Vec::new(); walked.leaves.len()];
    for share in &shares {
        kinds_of_leaf[share.leaf as usize].push((share.kind, share.of_leaf));
    }
    let idle = idle::blame(&gpu, &walked.spans, &walked.pieces, &kinds_of_leaf);
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
            wall * (1.0 - idle.idle_s / idle.seen_s)
        } else {
            0.0
        },
        pace: steps
            .as_ref()
            .map_or(0.0, |steps| pace::pace(steps, &walked.stalls)),
        ..Terms::default()
    };
    Trainer {
        wall,
        stalled: in_stalls,
        gpu_calls: gpu.calls,
        coordinates: false,
        synchronising: gpu.synchronising,
        checkpoints: scene.checkpoints().to_vec(),
        own_batches: scene.own_batches().to_vec(),
        own_batches_guessed: scene.own_batches_guessed(),
        kernel_threads: kernel_threads(facts.session),
        taking_in: scene.taking_in().to_vec(),
        kinds_of_leaf,
        shares,
        epochs: epochs(facts, &cast, &scene, steps.as_ref()),
        steps,
        demand,
        terms,
        idle,
        walked,
        cast,
    }
}

/// Threads outside the job of whose process no command is known.
fn kernel_threads(session: &Session) -> BTreeSet<u32> {
    let runs = |pid: &u32| {
        let command = session.host.outsiders.get(pid);
        command.is_some_and(|words| words.iter().any(|word| !word.is_empty()))
    };
    session
        .outsiders
        .iter()
        .filter(|(_, (pid, _))| pid.as_ref().is_some_and(|pid| !runs(pid)))
        .map(|(tid, _)| *tid)
        .collect()
}

/// A first guess at how long a batch is in the making: the time between two stalls, for each producer.
fn guess_batch(facts: &Facts, cast: &Cast) -> u64 {
    let stalls = facts
        .items(cast.step_tid)
        .iter()
        .filter(|item| cast.producers.contains(&item.waker.tid))
        .count() as u64;
    let between = facts.walkable_ns() / stalls.max(1);
    (between * cast.parallel().max(1) as u64).clamp(MIN_BATCH_NS, MAX_BATCH_NS)
}

/// CPU time of these threads of the job in what can be walked, ns.
fn cpu_ns(facts: &Facts, of: impl Fn(u32) -> bool) -> f64 {
    facts
        .session
        .history
        .segments()
        .flat_map(|segment| &segment.residuals)
        .filter(|(tid, _)| of(**tid))
        .map(|(_, residual)| residual.run_ns as f64)
        .sum()
}

/// CPU time that threads of the job, but for `without`, spent on giving the CPU up again and again in what can be walked, ns.
fn spun_ns(facts: &Facts, without: &BTreeSet<u32>) -> f64 {
    facts
        .session
        .history
        .segments()
        .flat_map(|segment| &segment.residuals)
        .filter(|(tid, _)| !without.contains(tid))
        .map(|(tid, residual)| residual.run_ns as f64 * yielding(facts.samples(*tid)))
        .sum()
}

/// CPUs that the job may use: those of the host, or fewer by affinity, cpuset or quota.
fn cpus(session: &Session, pinned: Option<f64>) -> f64 {
    let host = host_cpus(session);
    let cpusets = session
        .processes
        .values()
        .filter_map(|process| {
            let facts = process.seen.facts.as_ref()?;
            cpu_list(facts.cgroup.as_ref()?.cpuset.as_deref()?)
        })
        .map(|cpus| cpus.len() as f64)
        .fold(pinned.unwrap_or(host), f64::min);
    session
        .host
        .quotas
        .values()
        .filter_map(|series| series.last())
        .map(|quota| quota.quota_us as f64 / quota.period_us.max(1) as f64)
        .fold(cpusets, f64::min)
}

/// CPUs that the job's processes may use together, when that is fewer than the host has. It is known of their first
/// threads alone: `None` where the job used more than that.
fn allowed_cpus(facts: &Facts) -> Option<f64> {
    let session = facts.session;
    let allowed: BTreeSet<u32> = session
        .host
        .allowed_cpus
        .values()
        .filter_map(|list| cpu_list(list))
        .flatten()
        .collect();
    let count = allowed.len() as f64;
    let used = cpu_ns(facts, |_| true) / (facts.walkable_ns() as f64).max(1.0);
    (count > 0.0 && count < host_cpus(session) && used <= count * MORE_THAN_ALLOWED)
        .then_some(count)
}

fn host_cpus(session: &Session) -> f64 {
    session
        .start
        .as_ref()
        .map_or(1.0, |start| f64::from(start.host.cpus_online.max(1)))
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
