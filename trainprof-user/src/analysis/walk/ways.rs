//! Ways from the step thread to what its time was spent with, and the time that went each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    analysis::locks::LockId,
    record::fact::{GpuCallKind, ObjectFact, WakerFact},
    session::{
        WaitId,
        kind::{WaitKind, wait_kind},
    },
};

/// Different leaves that are kept apart.
const MAX_LEAVES: usize = 20_000;
/// Beyond these, so many in which waits for files are told apart by thread and call alone: a data set may have a folder for each sample.
const MAX_COARSE: usize = 5_000;
/// Windows of running that are kept for one leaf, to find its samples.
const MAX_WINDOWS: usize = 20_000;

/// How the walk got from a waiting thread to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HopKind {
    /// The other thread handed something over, or ended.
    HandOver,
    /// The other thread gave a lock back.
    Lock(LockId),
    /// The other thread gave a lock of the kernel back: of a directory, a file, the address space.
    KernelLock,
    /// The other thread belongs to another trainer.
    Rank,
}

/// One wait on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Who waited.
    pub tid: u32,
    pub wait: WaitKind,
    pub how: HopKind,
    /// File set of a kernel lock.
    pub fileset: u32,
}

/// What a piece of time was spent with, at the end of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// On a CPU.
    Run { tid: u32 },
    /// Inside a call into the GPU's runtime, on a CPU or not.
    GpuCall { tid: u32, kind: GpuCallKind },
    /// Wanted a CPU; `by` had it (0: nobody that was seen).
    Runnable { tid: u32, by: u32 },
    /// Waited, and nobody of the job ended it.
    Wait {
        tid: u32,
        nr: i16,
        object: ObjectFact,
        waker: WakerFact,
    },
    /// A producer that had nothing to do: the step thread's side had asked for nothing.
    Idle { tid: u32 },
    /// The thread was not there yet, or no more.
    Absent { tid: u32 },
    /// Not seen: the walk was too long, or went in a circle.
    Unknown { tid: u32 },
}

impl What {
    /// The thread at the end of the way.
    pub const fn tid(&self) -> u32 {
        match self {
            Self::Run { tid }
            | Self::GpuCall { tid, .. }
            | Self::Runnable { tid, .. }
            | Self::Wait { tid, .. }
            | Self::Idle { tid }
            | Self::Absent { tid }
            | Self::Unknown { tid } => *tid,
        }
    }
}

/// A way and its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf {
    pub hops: Vec<Hop>,
    pub what: What,
}

impl Leaf {
    /// Whether it is waiting for the GPU to be done.
    pub fn waits_for_gpu(&self) -> bool {
        let What::GpuCall { kind, .. } = self.what else {
            return false;
        };
        kind == GpuCallKind::Synchronise
    }

    /// The same for a wait for a file, whatever set it is of.
    fn coarse(&self) -> Option<Self> {
        let What::Wait {
            tid,
            nr,
            object,
            waker,
        } = self.what
        else {
            return None;
        };
        let id = WaitId { nr, object, waker };
        let object = ObjectFact {
            id: 0,
            fileset: 0,
            ..object
        };
        (object.fileset != id.object.fileset && wait_kind(&id) == WaitKind::File).then(|| Self {
            hops: self.hops.clone(),
            what: What::Wait {
                tid,
                nr,
                object,
                waker,
            },
        })
    }

    /// The thread that the first one waited for.
    pub fn next(&self) -> Option<u32> {
        (!self.hops.is_empty()).then(|| self.hops.get(1).map_or(self.what.tid(), |hop| hop.tid))
    }
}

/// All time that went one way.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    pub ns: f64,
    /// Stretches of running, waiting or being runnable on the leaf's own thread: where its samples are, and what it held.
    pub windows: Vec<(u64, u64)>,
}

/// A piece of the step thread's time: `ns` of the stretch from `from` to `to`.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub from: u64,
    pub to: u64,
    pub ns: f64,
    pub leaf: u32,
}

/// The result of walking.
#[derive(Default)]
pub struct Walked {
    pub leaves: Vec<(Leaf, Spent)>,
    index: HashMap<Leaf, u32>,
    /// In the step thread's time.
    pub pieces: Vec<Piece>,
    /// Of waits for files not all sets of files are told.
    pub coarse: bool,
    /// Nanoseconds at the end that were left out: a wait for a batch that the end cut off.
    pub cut: u64,
    /// What was walked of the step thread's time.
    pub spans: Vec<(u64, u64)>,
    /// Stretches in which the step thread waited for a producer.
    pub stalls: Vec<(u64, u64)>,
    /// Threads of which one stands for all on the way: there would be no end of ways through thousands that live for a moment.
    alike: BTreeSet<u32>,
}

impl Walked {
    /// Nothing was walked yet.
    pub(super) fn new(alike: &BTreeSet<u32>) -> Self {
        Self {
            alike: alike.clone(),
            ..Self::default()
        }
    }

    /// Who stands for a thread where not all are told apart.
    fn one_of(&self, tid: u32) -> u32 {
        match self.alike.first() {
            Some(one) if self.alike.contains(&tid) => *one,
            _ => tid,
        }
    }

    fn leaf(&mut self, mut leaf: Leaf) -> u32 {
        if let Some(one) = self.alike.first() {
            let passed = leaf.hops.iter_mut();
            passed
                .filter(|hop| self.alike.contains(&hop.tid))
                .for_each(|hop| hop.tid = *one);
            leaf.hops.dedup();
        }
        if let Some(number) = self.index.get(&leaf) {
            return *number;
        }
        let leaf = if self.leaves.len() < MAX_LEAVES {
            leaf
        } else {
            match leaf.coarse() {
                Some(coarse) if self.leaves.len() < MAX_LEAVES + MAX_COARSE => {
                    self.coarse = true;
                    coarse
                }
                _ => Leaf {
                    hops: Vec::new(),
                    what: What::Unknown {
                        tid: self.one_of(leaf.what.tid()),
                    },
                },
            }
        };
        if let Some(number) = self.index.get(&leaf) {
            return *number;
        }
        let number = self.leaves.len() as u32;
        self.leaves.push((leaf.clone(), Spent::default()));
        self.index.insert(leaf, number);
        number
    }

    pub(super) fn add(&mut self, part: Part, stretch: (u64, u64), ns: f64) {
        let leaf = self.keep(part);
        self.spend(leaf, stretch, ns);
    }

    /// The leaves of some pieces, with the nanoseconds of each.
    pub(super) fn pool(&mut self, parts: Vec<Part>) -> Vec<(u32, f64)> {
        let mut out = BTreeMap::<u32, f64>::new();
        for part in parts {
            let ns = part.ns;
            *out.entry(self.keep(part)).or_default() += ns;
        }
        out.into_iter().collect()
    }

    /// So much of a stretch of the step thread's time went into a leaf.
    pub(super) fn spend(&mut self, leaf: u32, stretch: (u64, u64), ns: f64) {
        self.leaves[leaf as usize].1.ns += ns;
        self.pieces.push(Piece {
            from: stretch.0,
            to: stretch.1,
            ns,
            leaf,
        });
    }

    /// The leaf of a piece, which shows when its thread did that.
    fn keep(&mut self, part: Part) -> u32 {
        let window = part.window;
        // Of waiting and being runnable that is known from sums alone, no single piece is known.
        let whole = part.ns >= 0.99 * (window.1 - window.0) as f64;
        let kept = match part.leaf.what {
            What::Run { .. } | What::GpuCall { .. } => true,
            What::Runnable { .. } | What::Wait { .. } => whole,
            _ => false,
        };
        let number = self.leaf(part.leaf);
        let spent = &mut self.leaves[number as usize].1;
        if kept && spent.windows.len() < MAX_WINDOWS {
            spent.windows.push(window);
        }
        number
    }
}

/// A piece on its way out: where it lies in time, and how much of it counts.
pub(super) struct Part {
    pub leaf: Leaf,
    pub window: (u64, u64),
    pub ns: f64,
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::Class;

    use super::*;

    fn file_wait(fileset: u32) -> Leaf {
        Leaf {
            hops: Vec::new(),
            what: What::Wait {
                tid: 7,
                nr: 257,
                object: ObjectFact {
                    id: 0,
                    fileset,
                    class: Class::Directory as u8,
                },
                waker: WakerFact { kind: 0, tid: 0 },
            },
        }
    }

    fn add(walked: &mut Walked, leaf: Leaf) {
        let window = (0, 1);
        let ns = 1.0;
        walked.add(Part { leaf, window, ns }, window, ns);
    }

    /// As with a folder for each sample on a file system that makes each opening wait.
    #[test]
    fn waits_for_files_of_more_sets_than_are_told_are_still_waits_for_files() {
        let mut walked = Walked::default();
        let sets = MAX_LEAVES as u32 + 500;
        (1..=sets).for_each(|fileset| add(&mut walked, file_wait(fileset)));
        assert!(walked.coarse);
        let rest: f64 = walked.leaves[MAX_LEAVES..].iter().map(|l| l.1.ns).sum();
        assert_eq!(rest, 500.0);
        assert_eq!(walked.leaves[MAX_LEAVES].0, file_wait(0));
        assert_eq!(walked.leaves.len(), MAX_LEAVES + 1);
        // One that was told before still is, and what is no wait for a file is not seen.
        add(&mut walked, file_wait(9));
        assert_eq!(walked.leaves[8].1.ns, 2.0);
        let run = Leaf {
            hops: Vec::new(),
            what: What::Run { tid: 9 },
        };
        add(&mut walked, run);
        let last = walked.leaves.last().map(|(leaf, _)| leaf.what);
        assert_eq!(last, Some(What::Unknown { tid: 9 }));
    }

    #[test]
    fn few_sets_of_files_are_all_told() {
        let mut walked = Walked::default();
        (1..=500).for_each(|fileset| add(&mut walked, file_wait(fileset)));
        assert!(!walked.coarse);
        assert_eq!(walked.leaves.len(), 500);
    }
}
