//! What is left until memory runs out, and for how long that lasts.

use super::{
    groups::counts_in,
    memory::{Grower, growth_bytes_per_s},
};
use crate::session::Session;

/// A limit, and what is left until it.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The control group whose limit it is, or the tightest above it; `None`: the host.
    pub cgroup: Option<String>,
    /// Bytes until it is reached.
    pub room_bytes: f64,
    /// Seconds until then; `None`: what grows does not count there.
    pub seconds: Option<f64>,
}

/// The limit that is reached first at this pace, of a control group or of the host; where nothing grows the tightest one. `None`:
/// no limit is known.
pub fn nearest(session: &Session, growers: &[Grower]) -> Option<Limit> {
    let groups = session.host.memory.iter().filter_map(|(path, series)| {
        let last = series.last()?;
        // Page cache of files gives way.
        let used = last
            .usage_bytes
            .saturating_sub(last.file_bytes.unwrap_or(0))
            .max(last.anon_bytes.unwrap_or(0));
        let room_bytes = last.limit_bytes?.saturating_sub(used) as f64;
        let inside: Vec<Grower> = growers
            .iter()
            .filter(|grower| counts_in(session, grower.pid, "memory", path))
            .copied()
            .collect();
        Some(limit(Some(path), room_bytes, &inside))
    });
    let available = |bytes: u64| limit(None, bytes as f64, growers);
    let host = session.host.host.last();
    let host = host.and_then(|sample| sample.memory_available_bytes.map(available));
    let order = |limit: &Limit| (limit.seconds.unwrap_or(f64::INFINITY), limit.room_bytes);
    groups.chain(host).min_by(|a, b| {
        let ((a_s, a_bytes), (b_s, b_bytes)) = (order(a), order(b));
        a_s.total_cmp(&b_s).then(a_bytes.total_cmp(&b_bytes))
    })
}

fn limit(cgroup: Option<&String>, room_bytes: f64, growers: &[Grower]) -> Limit {
    let growth = growth_bytes_per_s(growers);
    Limit {
        cgroup: cgroup.cloned(),
        room_bytes,
        seconds: (growth > 0.0).then(|| room_bytes / growth),
    }
}
