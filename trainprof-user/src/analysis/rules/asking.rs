//! What windows on allocators say of how a process asks for memory: evidence beside page faults, which small blocks cause none of.

use serde_json::{Value, json};
use trainprof_common::hist::size_low;

use super::{Evidence, look::rounded};
use crate::{
    analysis::{
        allocation::{Caller, callers, file_name},
        words,
    },
    session::{Session, alloc::Estimate},
};

/// Call sites and size classes that are told.
const ROWS: usize = 5;
/// Fewer sampled calls than this do not name a site.
const MIN_SAMPLES: u64 = 8;
/// Blocks of up to so many bytes are objects, not buffers.
const SMALL: f64 = 1024.0;

/// See the module.
pub(super) struct Asking {
    /// Calls a second.
    allocs: Option<Estimate>,
    bytes: Option<Estimate>,
    /// The most frequent first.
    callers: Vec<Caller>,
}

impl Asking {
    pub(super) fn of(session: &Session, pid: Option<u32>) -> Self {
        let process = pid.and_then(|pid| Some((pid, session.alloc.processes.get(&pid)?)));
        Self {
            allocs: process.and_then(|(pid, p)| p.allocs_per_s(session.cpus_used(pid))),
            bytes: process.and_then(|(pid, p)| p.bytes_per_s(session.cpus_used(pid))),
            callers: callers(session)
                .into_iter()
                .filter(|caller| Some(caller.pid) == pid && caller.sampled.calls >= MIN_SAMPLES)
                .take(ROWS)
                .collect(),
        }
    }

    /// Adds what is known; `null`: no window was opened on the process, or none followed blocks.
    pub(super) fn tell(&self, session: &Session, pid: Option<u32>, evidence: &mut Evidence) {
        let number = |of: Option<f64>| of.map_or(Value::Null, rounded);
        let short = session.alloc.short_lived();
        let process = pid.and_then(|pid| session.alloc.processes.get(&pid));
        let sizes = process
            .zip(pid)
            .map(|(p, pid)| p.sizes(session.cpus_used(pid)));
        let mut sizes = sizes.unwrap_or_default();
        sizes.sort_by(|a, b| b.2.value.total_cmp(&a.2.value));
        sizes.truncate(ROWS);
        let sizes: Value = sizes
            .iter()
            .map(|(bucket, _, share)| {
                json!({
                    "from_bytes": size_low(usize::from(*bucket)),
                    "share": rounded(share.value),
                    "share_error": rounded(share.error),
                })
            })
            .collect();
        evidence.extend([
            ("allocs_per_s", number(self.allocs.map(|e| e.value))),
            ("allocs_per_s_error", number(self.allocs.map(|e| e.error))),
            ("alloc_bytes_per_s", number(self.bytes.map(|e| e.value))),
            (
                "alloc_bytes_per_s_error",
                number(self.bytes.map(|e| e.error)),
            ),
            (
                "freed_within_1ms_share",
                number(short.map(|s| s.quick.value)),
            ),
            (
                "freed_within_1ms_share_error",
                number(short.map(|s| s.quick.error)),
            ),
            ("allocation_sizes", sizes),
            (
                "allocation_sites",
                self.callers.iter().map(|c| site(session, c)).collect(),
            ),
        ]);
    }

    /// Who asks most often, as part of a summary.
    pub(super) fn said(&self, session: &Session) -> String {
        let Some((caller, name)) = self.first() else {
            return String::new();
        };
        let rate = self
            .allocs
            .map_or_else(String::new, |rate| times(rate.value));
        let quick = session.alloc.short_lived().map_or_else(String::new, |s| {
            let share = words::percent(s.quick.value);
            format!("; {share} of blocks are given back within a millisecond")
        });
        format!(
            "; {} of its {rate}allocations a second are made by {name}, of {} each{quick}",
            words::percent(caller.share(session).value),
            words::bytes(caller.mean_bytes()),
        )
    }

    /// Who asks most often.
    pub(super) fn place(&self) -> Option<String> {
        self.first().map(|(_, name)| name)
    }

    /// Whether they are objects rather than buffers; `None`: not known.
    pub(super) fn is_small(&self) -> Option<bool> {
        let named = self.first().map(|(caller, _)| caller);
        let caller = named.or_else(|| self.callers.first())?;
        Some(caller.mean_bytes() <= SMALL)
    }

    /// The first that has a name.
    fn first(&self) -> Option<(&Caller, String)> {
        self.callers
            .iter()
            .find_map(|caller| Some((caller, caller.name()?)))
    }
}

/// A rate as people say it.
fn times(per_s: f64) -> String {
    if per_s >= 1e6 {
        format!("{:.1} million ", per_s / 1e6)
    } else if per_s >= 1e3 {
        format!("{:.0} thousand ", per_s / 1e3)
    } else {
        format!("{per_s:.0} ")
    }
}

fn site(session: &Session, caller: &Caller) -> Value {
    let share = caller.share(session);
    let rate = |of: Option<Estimate>| of.map_or(Value::Null, |rate| rounded(rate.value));
    let error = |of: Option<Estimate>| of.map_or(Value::Null, |rate| rounded(rate.error));
    let (allocs, bytes) = (caller.allocs_per_s(session), caller.bytes_per_s(session));
    json!({
        "function": caller.function,
        "module": caller.module.as_deref().map(file_name),
        "allocator": caller.allocator,
        "share": rounded(share.value),
        "share_error": rounded(share.error),
        "allocs_per_s": rate(allocs),
        "allocs_per_s_error": error(allocs),
        "bytes_per_s": rate(bytes),
        "bytes_per_s_error": error(bytes),
        "mean_bytes": rounded(caller.mean_bytes()),
        "samples": caller.sampled.calls,
    })
}
