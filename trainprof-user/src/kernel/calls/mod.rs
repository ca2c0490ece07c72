//! Probes on calls into the GPU's runtime, and on PyTorch's backward passes, in the processes that have them mapped.
//!
//! Attaching goes on in a process of its own, all the while: libraries are loaded when a program gets to them, and
//! processes come and go.

mod begin;
mod catalogue;
mod exports;
mod mapped;
mod serve;

pub use catalogue::GPU_CALLS;

use std::{
    collections::BTreeSet,
    thread::sleep,
    time::{Duration, Instant},
};

use aya::Ebpf;
use serde::{Deserialize, Serialize};

use super::{
    aside::{Aside, Ending},
    uprobe::{
        links::{Pair, Together},
        load,
    },
};

/// Names of the programs in the eBPF object.
pub(super) const ENTRY: &str = "gpu_call_entry";
pub(super) const RETURN: &str = "gpu_call_return";
const PROGRAMS: Pair = Pair {
    entry: ENTRY,
    returning: RETURN,
};

/// How long the removal of the probes is waited for at the end. Where each has a link of its own it takes the kernel some 80 ms
/// for each, one after the other whoever asks, and goes on without us.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long the beginning of a watch waits until the processes that are there already are probed, some 100 ms for each that makes
/// calls. Those that take longer lack their first calls.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks whether they are.
const BEGIN_PAUSE: Duration = Duration::from_millis(2);

/// What the other process is to do.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Attach in this process what it has mapped by now.
    Look { pid: u32, uses_gpu: bool },
    /// It has ended or executed another program.
    Forget { pid: u32 },
    /// Remove the probes of these functions from every process.
    Detach { functions: Vec<u16> },
}

/// What the other process tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A function that will be probed.
    Function {
        number: u16,
        library: String,
        name: String,
        /// What is missing from a report without its probe.
        title: String,
        /// [`trainprof_common::gpu::CallKind`] number.
        kind: u8,
        /// One of the driver's, which the runtime's own functions call.
        driver: bool,
        /// Whether its probe is single-stepped: some 10 µs a call, else about one.
        steps: bool,
    },
    /// The probes of a process are live.
    Attached { pid: u32 },
    /// A process was looked at, as ordered: what it has mapped is probed.
    Looked { pid: u32 },
    /// What could not be attached, and why.
    Failed { what: String, reason: String },
}

/// The process that attaches, as we see it.
pub struct CallProbes {
    aside: Aside,
    over: bool,
    /// What it told while the watch began.
    early: Vec<Notice>,
}

impl CallProbes {
    /// Loads the programs and starts the process. Must be called while we have one thread. `gpu`: calls into the GPU's runtime are
    /// watched.
    pub(super) fn start(ebpf: &mut Ebpf, gpu: bool) -> Result<Self, String> {
        let mut keep = Vec::new();
        for name in [ENTRY, RETURN] {
            keep.push(load(ebpf, name)?);
        }
        // Loaded when there is something to attach to, and only bound here, while all maps are there.
        let prepared = Together::prepare(ebpf, PROGRAMS);
        keep.extend(
            prepared
                .iter()
                .flat_map(|programs| programs.maps(&[ENTRY, RETURN])),
        );
        let serve = |line: &_| serve::serve(ebpf, prepared, gpu, line);
        let aside = Aside::start(c"tp-calls", &keep, Ending::Told, PATIENCE, serve)
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Self {
            aside,
            over: false,
            early: Vec::new(),
        })
    }

    /// Lets it look at these processes, and waits until it has: else their first calls would be missing from a watch that has begun.
    pub fn begin(&mut self, pids: &BTreeSet<u32>) {
        let asked = pids.iter().copied().filter(|pid| self.look(*pid, false));
        let asked = asked.collect();
        let end = Instant::now() + BEGIN_PATIENCE;
        self.early = until_looked(asked, || {
            if self.over || Instant::now() >= end {
                return None;
            }
            let told = self.told();
            if told.is_empty() {
                sleep(BEGIN_PAUSE);
            }
            Some(told)
        });
    }

    /// Lets it look at a process. False when it has too much to do already: ask again later.
    pub fn look(&self, pid: u32, uses_gpu: bool) -> bool {
        self.order(&Order::Look { pid, uses_gpu })
    }

    /// Lets it forget a process.
    pub fn forget(&self, pid: u32) -> bool {
        self.order(&Order::Forget { pid })
    }

    /// Lets it remove the probes of these functions.
    pub fn detach(&self, functions: Vec<u16>) -> bool {
        self.order(&Order::Detach { functions })
    }

    /// CPU time of that process, nanoseconds.
    pub fn cpu_ns(&mut self) -> u64 {
        self.aside.cpu_ns()
    }

    fn order(&self, order: &Order) -> bool {
        matches!(self.aside.line.send(order), Ok(true))
    }

    /// What it has told. It tells of its own end once, as a failure.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut out = std::mem::take(&mut self.early);
        out.extend(self.told());
        out
    }

    fn told(&mut self) -> Vec<Notice> {
        self.aside.told(&mut self.over, |how| Notice::Failed {
            what: format!("{}: all", catalogue::GPU_CALLS),
            reason: format!("the process that attaches the probes ended ({how})"),
        })
    }
}

/// Takes notices until each of the processes was looked at, or `told` has no more; gives what else was told.
fn until_looked(
    mut asked: BTreeSet<u32>,
    mut told: impl FnMut() -> Option<Vec<Notice>>,
) -> Vec<Notice> {
    let mut out = Vec::new();
    while !asked.is_empty() {
        let Some(notices) = told() else {
            break;
        };
        for notice in notices {
            match notice {
                Notice::Looked { pid } => {
                    asked.remove(&pid);
                }
                other => out.push(other),
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_begins_when_all_were_looked_at_and_forgets_nothing() {
        let looked = |pid| Notice::Looked { pid };
        let attached = |pid| Notice::Attached { pid };
        let told = vec![vec![attached(1), looked(1)], vec![], vec![looked(2)]];
        let mut turns = told.clone().into_iter();
        let out = until_looked(BTreeSet::from([1, 2]), || turns.next());
        assert_eq!(out, vec![attached(1)]);
        // What comes later is not waited for.
        let mut turns = told.into_iter().chain([vec![attached(3)]]);
        let out = until_looked(BTreeSet::from([1]), || turns.next());
        assert_eq!(out, vec![attached(1)]);
        assert_eq!(turns.count(), 3);
        // It may have no answer for us, or nobody may have been asked.
        let mut turns = vec![vec![attached(1)]].into_iter();
        let out = until_looked(BTreeSet::from([7]), || turns.next());
        assert_eq!(out, vec![attached(1)]);
        assert_eq!(until_looked(BTreeSet::new(), || None), Vec::new());
    }
}
