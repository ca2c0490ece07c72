//! Whether a trainer uses a GPU, and whether what the GPU does was seen at all.
//!
//! A wait for the GPU spins on the CPU as a rule. Where neither samples of the device nor calls into its runtime are there,
//! nothing tells that spinning from computing.

use super::{cast::Cast, facts::Facts, gpu::GpuTime, running::split_of};
use crate::session::Session;

/// Samples of a process that tell whether it runs the driver's code, and the least part (0–1) of them that does where each step calls
/// it: what only asked at its start whether there is a GPU never runs that code again.
const MIN_SAMPLES: usize = 50;
const DRIVES: f64 = 0.01;

/// What tells of a GPU, and what is missing of that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuUse {
    /// The trainer uses one.
    pub used: bool,
    /// Samples tell when the device was busy.
    pub sampled: bool,
    /// Its calls that synchronise and copy were seen, or would have been.
    pub called: bool,
    /// Why there are no samples, and why no calls, where the watch was told.
    pub no_samples: Option<String>,
    pub no_calls: Option<String>,
    /// Functions of its libraries are probed.
    pub probed: bool,
}

impl GpuUse {
    pub fn new(facts: &Facts, cast: &Cast, gpu: &GpuTime) -> Self {
        let session = facts.session;
        let called = gpu.calls || probed(session);
        Self {
            used: gpu.sampled() || gpu.calls || uses(facts, cast.trainer),
            sampled: gpu.sampled(),
            called,
            no_samples: reason(session, |what| what == "gpu"),
            no_calls: reason(session, |what| {
                what == "gpu-calls" || what.starts_with("gpu-calls:")
            }),
            probed: !session.gpu.functions.is_empty(),
        }
    }

    /// Whether it uses a GPU of which nothing was seen.
    pub const fn unseen(&self) -> bool {
        self.used && !self.sampled && !self.called
    }

    /// Why nothing was seen, in words.
    pub fn why(&self) -> String {
        let samples = self.no_samples.as_deref().map_or_else(
            || "the driver was not asked for samples".to_owned(),
            |reason| format!("there are no samples of its use ({reason})"),
        );
        format!("{samples}, and {}", self.why_no_calls())
    }

    /// Why its calls were not seen.
    pub fn why_no_calls(&self) -> String {
        match (&self.no_calls, self.probed) {
            (Some(reason), _) => format!("there are no calls into its runtime ({reason})"),
            (None, true) => "there are no calls into its libraries (a runtime that is linked statically goes past the functions that can be probed)".to_owned(),
            (None, false) => "its libraries are not probed".to_owned(),
        }
    }

    /// What would show it.
    pub fn cure(&self) -> &'static str {
        let forbidden = self
            .no_calls
            .as_deref()
            .is_some_and(|reason| reason.contains("CAP_SYS_ADMIN"));
        if forbidden {
            "run trainprof as root (CAP_SYS_ADMIN), so that calls into the GPU's runtime are seen"
        } else {
            "let trainprof reach the driver (libnvidia-ml.so.1: --gpu auto, or --gpu with its path), so that the GPU is sampled"
        }
    }
}

/// Whether the runtime that frameworks call is probed: then few calls means that few were made.
fn probed(session: &Session) -> bool {
    let mut libraries = session.gpu.functions.values().map(|(library, _)| library);
    libraries.any(|library| library.starts_with("libcudart"))
}

/// Whether a process has a context on a device, or the driver's library in it and in use. The runtime's library alone tells nothing:
/// frameworks that are built for GPUs have it on any host.
fn uses(facts: &Facts, pid: u32) -> bool {
    let session = facts.session;
    if session.gpu.processes.keys().any(|(_, of)| *of == pid) {
        return true;
    }
    let of_process = session.threads_of(pid);
    let samples = of_process.flat_map(|thread| facts.samples(thread.key.tid));
    let split = split_of(session, samples);
    if split.samples >= MIN_SAMPLES {
        return split.gpu_driver >= DRIVES;
    }
    session
        .processes
        .get(&pid)
        .and_then(|process| process.seen.frameworks.as_ref())
        .is_some_and(|facts| facts.libraries.iter().any(|(name, _)| name == "libcuda"))
}

/// Whether a process may use a device that is no NVIDIA one, of which nothing is ever seen (AMD's runtime).
pub fn may_use_another(session: &Session, pid: u32) -> bool {
    session
        .processes
        .get(&pid)
        .and_then(|process| process.seen.frameworks.as_ref())
        .is_some_and(|loaded| loaded.has("hip-runtime"))
}

fn reason(session: &Session, is: impl Fn(&str) -> bool) -> Option<String> {
    let mut missing = session.missing.iter();
    let (_, reason) = missing.find(|(what, _)| is(what))?;
    Some(reason.clone())
}
