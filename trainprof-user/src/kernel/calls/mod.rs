//! Probes on calls into the GPU's runtime, in the processes that have it mapped.
//!
//! Attaching goes on in a process of its own, all the while: libraries are loaded when a program gets to them, and
//! processes come and go.

mod catalogue;
mod exports;
mod mapped;
mod serve;

use std::time::Duration;

use aya::Ebpf;
use serde::{Deserialize, Serialize};

use super::{aside::Aside, uprobe::load};

/// Names of the programs in the eBPF object.
pub(super) const ENTRY: &str = "gpu_call_entry";
pub(super) const RETURN: &str = "gpu_call_return";

/// How long the removal of the probes is waited for at the end. It takes the kernel some 80 ms for each, one after the
/// other whoever asks, and goes on without us.
const PATIENCE: Duration = Duration::from_millis(300);

/// What the other process is to do.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Attach in this process what it has mapped by now.
    Look { pid: u32, uses_gpu: bool },
    /// It has ended or executed another program.
    Forget { pid: u32 },
    /// Remove the probes of a function from every process.
    Detach { function: u16 },
}

/// What the other process tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A function that will be probed.
    Function {
        number: u16,
        library: String,
        name: String,
        /// Whether its probe is single-stepped: some 10 µs a call, else about one.
        steps: bool,
    },
    /// The probes of a process are live.
    Attached { pid: u32 },
    /// What could not be attached, and why.
    Failed { what: String, reason: String },
}

/// The process that attaches, as we see it.
pub struct CallProbes {
    aside: Aside,
    over: bool,
}

impl CallProbes {
    /// Loads the programs and starts the process. Must be called while we have one thread.
    pub(super) fn start(ebpf: &mut Ebpf) -> Result<Self, String> {
        let mut keep = Vec::new();
        for name in [ENTRY, RETURN] {
            keep.push(load(ebpf, name)?);
        }
        let aside = Aside::start(&keep, PATIENCE, |line| serve::serve(ebpf, line))
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Self { aside, over: false })
    }

    /// Lets it look at a process. False when it has too much to do already: ask again later.
    pub fn look(&self, pid: u32, uses_gpu: bool) -> bool {
        self.order(&Order::Look { pid, uses_gpu })
    }

    /// Lets it forget a process.
    pub fn forget(&self, pid: u32) -> bool {
        self.order(&Order::Forget { pid })
    }

    /// Lets it remove a function's probes.
    pub fn detach(&self, function: u16) -> bool {
        self.order(&Order::Detach { function })
    }

    fn order(&self, order: &Order) -> bool {
        matches!(self.aside.line.send(order), Ok(true))
    }

    /// What it has told. It tells of its own end once, as a failure.
    pub fn notices(&mut self) -> Vec<Notice> {
        self.aside.told(&mut self.over, |how| Notice::Failed {
            what: "all".to_owned(),
            reason: format!("the process that attaches the probes ended ({how})"),
        })
    }
}
