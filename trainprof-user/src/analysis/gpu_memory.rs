//! Where the job allocates memory of GPUs that it keeps.

use std::collections::{BTreeMap, BTreeSet};

use super::memory::{functions, kept_window, own};
use crate::{record::fact::PyFunctionFact, session::Session};

/// A function that allocates memory of GPUs which is kept.
#[derive(Clone, Copy, Debug)]
pub struct GpuSite<'a> {
    /// The job's own function of Python, or the library's where the job leaves all to one; `None`: it is not known, or no Python.
    pub function: Option<&'a PyFunctionFact>,
    pub bytes_per_s: f64,
    /// Of all that these processes keep.
    pub share: f64,
    /// Allocations that were not given back.
    pub blocks: usize,
}

/// Where these processes allocate what they do not give back, the most first; `None`: not all was seen, or too little of the time.
/// Frameworks ask the driver for large blocks, which they divide: a block belongs to who needed it first.
pub fn kept_sites<'a>(session: &'a Session, pids: &BTreeSet<u32>) -> Option<Vec<GpuSite<'a>>> {
    let (from, to) = kept_window(session);
    let start = session.start.as_ref()?.at;
    if to <= from {
        return None;
    }
    let mut all = 0.0;
    let mut sums = BTreeMap::<Option<(&str, &str)>, (Option<&PyFunctionFact>, f64, usize)>::new();
    for kept in session.gpu.kept()? {
        if !pids.contains(&kept.fact.pid)
            || !(from..to).contains(&kept.fact.at.seconds_since(start))
        {
            continue;
        }
        let function = own(functions(session, kept.python));
        let name = function.map(|function| (function.file.as_str(), function.name.as_str()));
        let sum = sums.entry(name).or_insert((function, 0.0, 0));
        sum.1 += kept.fact.bytes as f64;
        sum.2 += 1;
        all += kept.fact.bytes as f64;
    }
    let mut out: Vec<_> = sums
        .into_values()
        .map(|(function, bytes, blocks)| GpuSite {
            function,
            bytes_per_s: bytes / (to - from),
            share: bytes / all,
            blocks,
        })
        .collect();
    out.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    Some(out)
}
