//! Everything that was found out about one trainer, and how much faster it could be without a cause.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    bound::{self, Terms},
    cast::Cast,
    causes::{AroundCalls, Share},
    demand::Demand,
    epochs::Epochs,
    gpu_use::GpuUse,
    idle::IdleBlame,
    kind::Kind,
    spans,
    steps::Steps,
    walk::{Walked, What},
};

/// The part (0–1) of the waits for locks behind work of producers from which on locks are that work's.
const MOSTLY_WORK: f64 = 0.9;
/// Others have a part in a GPU when they use it for so much (0–1) of the time.
const SHARED: f64 = 0.1;
/// How far off that may be: two jobs that took 0.56 and 0.53 of the time from others were told 0.60 and 0.46 (H100, H200, ten seconds).
const SHARES_OFF: f64 = 0.07;

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
    pub gpu_use: GpuUse,
    /// It only brings together what other ranks computed.
    pub coordinates: bool,
    /// Share of the step thread's time inside synchronising calls.
    pub synchronising: f64,
    /// Walked time, ns.
    pub wall: f64,
    /// Share (0–1) of it that threads ran for of which too few samples tell what they did.
    pub unsampled: f64,
    /// Share (0–1) of what can be walked that lies behind the step thread's last clock sample.
    pub behind_samples: f64,
    /// Sum of its stalls, ns.
    pub stalled: f64,
    pub checkpoints: Vec<(u64, u64)>,
    /// Share (0–1) of its GPU's use that is the job's own.
    pub gpu_ours: f64,
    /// Stretches in which the step thread, having no producers, made batches itself.
    pub own_batches: Vec<(u64, u64)>,
    /// That it did so is known only from what these stretches alternate with.
    pub own_batches_guessed: bool,
    /// Threads outside the job that run no program.
    pub(super) kernel_threads: BTreeSet<u32>,
    /// Threads of its own that mostly look for work.
    pub(super) idlers: BTreeSet<u32>,
    pub(super) around_calls: AroundCalls,
    /// Stretches in which the step thread, having producers, took a batch in and asked for the next one.
    pub taking_in: Vec<(u64, u64)>,
    /// Stretches in which the step thread, having producers and no GPU, did other work than its model's and its input's.
    pub beside_model: Vec<(u64, u64)>,
    /// That is mostly the collecting of Python's garbage.
    pub garbage: bool,
    /// That is mostly for who looks for a mistake, or for what takes long: the program describes itself.
    pub describes: bool,
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
    pub(super) fn own_share(&self) -> f64 {
        1.0 - self.ns(Kind::Communication) / self.wall.max(1.0)
    }

    /// The rank that it waits for most.
    pub(super) fn waits_for(&self) -> Option<u32> {
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

    /// The factor by which the job could be faster with its GPU to itself, at most; `None` where nobody else uses it, or that is not
    /// known.
    pub fn bound_alone(&self) -> Option<f64> {
        let busy = 1.0 - self.idle.idle_s / self.idle.seen_s.max(1e-9);
        let others = busy * (1.0 - self.gpu_ours);
        let at_most = (others + SHARES_OFF).min(busy);
        (self.idle.seen_s > 0.0 && others >= SHARED).then(|| bound::without(at_most))
    }

    /// The factor by which the job could be faster without a cause, at most.
    pub fn bound(&self, kind: Kind) -> f64 {
        let whole = self.bound_of(kind, true);
        let along = self.made_with(kind, Kind::AllocationChurn);
        let work = self.ns(kind) + self.ns(Kind::WorkerStart);
        if kind != Kind::InputCpu || along <= work {
            return whole;
        }
        // More than the work is what it allocates: that is a cause of its own. Either the work goes and that stays, or both go
        // elsewhere and are done there.
        let alone = self.bound_of(kind, false);
        alone
            .max(bound::moved(&self.terms, along + work))
            .min(whole)
    }

    /// Nanoseconds of another cause that go with `kind`.
    fn made_with(&self, kind: Kind, other: Kind) -> f64 {
        let shares = self.shares.iter().filter(|share| share.kind == other);
        shares
            .map(|share| share.ns * self.part_of_cause(kind, share))
            .sum()
    }

    /// The same; `churn`: what is allocated for it goes with it.
    fn bound_of(&self, kind: Kind, churn: bool) -> f64 {
        let part = |share: &Share| {
            let stays = !churn && share.kind == Kind::AllocationChurn && share.kind != kind;
            if stays {
                0.0
            } else {
                self.part_of_cause(kind, share)
            }
        };
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
        let asleep_of_cause = self
            .shares
            .iter()
            .filter(|share| {
                let what = &self.walked.leaves[share.leaf as usize].0.what;
                // What a process outside the job does meanwhile is not seen.
                let others = what.tid() != self.cast.step_tid || share.detail.outsider != 0;
                matches!(what, What::Wait { .. }) && others
            })
            .map(|share| share.ns * part(share))
            .sum();
        let own_cpu = own(|what| matches!(what, What::Run { .. }));
        // Strangers' work and the quota stay, whatever else of the job's own goes. Threads of the kernel may work for the job.
        let stranger =
            |tid: u32| !self.kernel_threads.contains(&tid) && !self.idlers.contains(&tid);
        let stays = |share: &Share| match share.kind {
            _ if share.kind == kind => false,
            Kind::CpuContention => stranger(share.detail.outsider),
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
            if churn {
                demand.count_as(Kind::AllocationChurn, kind);
            }
            let locked = self
                .shares
                .iter()
                .filter(|share| self.is_work_under_a_lock(share));
            let worked: f64 = locked.map(|share| share.ns).sum();
            if worked > MOSTLY_WORK * self.ns(Kind::Serialization) {
                demand.count_as(Kind::Serialization, kind);
            }
        }
        if kind == Kind::SmallFiles {
            let producers = self.cast.producers.iter();
            let more = producers.map(|tid| self.around_calls.more(*tid));
            demand.count_part_as(Kind::InputCpu, more.fold(0.0, f64::max), kind);
        }
        let beside = match kind {
            Kind::InputCpu => self.beside(kind, &self.taking_in),
            Kind::HostCompute => self.beside(kind, &self.beside_model),
            _ => Beside::default(),
        };
        let producers_cpu = demand.run_by_kind.get(&kind).copied().unwrap_or(0.0);
        let terms = Terms {
            own_crowded,
            own_of_cause: sum(false) + beside.own,
            own_crowded_by_cause: own(|what| matches!(what, What::Runnable { .. }))
                + beside.crowded,
            asleep_of_cause,
            own_asleep_of_cause: own(|what| matches!(what, What::Wait { .. })),
            stall_of_cause: sum(true) + beside.stalled,
            cpu_of_cause: own_cpu + producers_cpu,
            ..self.terms.clone()
        };
        bound::bound(kind, &terms, &demand)
    }

    /// How much (0–1) of a share goes when the cause `kind` does: what is allocated to make batches, workers that are made for it, and locks
    /// that are held for it go with the work on them; what the interpreter does around calls on files goes with these.
    fn part_of_cause(&self, kind: Kind, share: &Share) -> f64 {
        if share.kind == kind {
            return 1.0;
        }
        match share.kind {
            Kind::InputCpu if kind == Kind::SmallFiles => {
                let (way, _) = &self.walked.leaves[share.leaf as usize];
                match way.what {
                    What::Run { tid } => self.around_calls.more(tid),
                    _ => 0.0,
                }
            }
            // What launches work for a busy GPU goes with what launches it too late for an idle one.
            Kind::Compute if kind == Kind::HostCompute && self.idle.seen_s > 0.0 => {
                let (way, _) = &self.walked.leaves[share.leaf as usize];
                f64::from(u8::from(matches!(way.what, What::Run { .. })))
            }
            Kind::WorkerStart if kind == Kind::InputCpu => 1.0,
            Kind::Serialization if kind == Kind::InputCpu => {
                f64::from(u8::from(self.is_work_under_a_lock(share)))
            }
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

    /// Whether a producer had a lock, and a CPU: nobody waits for the lock when that work is gone.
    fn is_work_under_a_lock(&self, share: &Share) -> bool {
        let (way, _) = &self.walked.leaves[share.leaf as usize];
        share.kind == Kind::Serialization
            && share.detail.lock.is_some()
            && matches!(way.what, What::Run { tid } if self.cast.producers.contains(&tid))
    }

    /// What other causes took in stretches in which the step thread's running is all told as `kind`: what it waits for then goes with
    /// that work.
    fn beside(&self, kind: Kind, stretches: &[(u64, u64)]) -> Beside {
        let mut out = Beside::default();
        if stretches.is_empty() {
            return out;
        }
        let leaves = self.walked.leaves.len();
        let (mut told, mut stalled) = (vec![0.0; leaves], vec![false; leaves]);
        for share in &self.shares {
            let leaf = share.leaf as usize;
            stalled[leaf] = share.in_stall;
            if share.kind == kind {
                told[leaf] += share.of_leaf;
            }
        }
        for piece in &self.walked.pieces {
            let leaf = piece.leaf as usize;
            let (way, _) = &self.walked.leaves[leaf];
            let own = way.hops.is_empty();
            if own && matches!(way.what, What::Run { .. }) {
                // That is told already.
                continue;
            }
            let inside = spans::share_inside(&[(piece.from, piece.to)], stretches);
            let ns = piece.ns * inside * (1.0 - told[leaf]);
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
