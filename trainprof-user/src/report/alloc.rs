//! Allocations: rates, sizes, lifetimes and call sites, from windows.

use std::collections::BTreeMap;

use trainprof_common::hist::size_low;

use super::{
    io::round,
    model::{
        AllocProcess, AllocSizeRow, Allocation, AllocationSite, Lifetimes, SiteFrame, WindowCost,
    },
};
use crate::{
    record::fact::AllocFrame,
    session::{Session, alloc::share},
    time::seconds,
};

/// Frames of a site that are listed.
const FRAMES: usize = 16;

/// What windows tell; `None` when there were none.
pub fn allocation(session: &Session, top: usize) -> Option<Allocation> {
    let seen = &session.alloc;
    if seen.windows == 0 {
        return None;
    }
    let mut sizes = BTreeMap::<u8, u64>::new();
    for process in seen.processes.values() {
        for (bucket, count) in &process.sizes {
            *sizes.entry(*bucket).or_default() += count;
        }
    }
    let all: u64 = sizes.values().sum();
    let lived = &seen.lifetimes;
    let rate = |estimate: Option<crate::session::alloc::Estimate>| {
        estimate.map(|e| (round(e.value, 1), round(e.error, 1)))
    };
    let mut processes: Vec<AllocProcess> = seen
        .processes
        .iter()
        .map(|(pid, process)| AllocProcess {
            pid: *pid,
            allocator: seen.allocators.get(pid).map(|fact| fact.library.clone()),
            windows: process.windows,
            window_s: round(process.seconds, 6),
            allocs_per_s: rate(process.allocs_per_s(session.cpus_used(*pid))).map(|r| r.0),
            allocs_per_s_error: rate(process.allocs_per_s(session.cpus_used(*pid))).map(|r| r.1),
            bytes_per_s: rate(process.bytes_per_s(session.cpus_used(*pid))).map(|r| r.0),
            functions: process
                .functions
                .iter()
                .map(|(name, (count, _))| (name.clone(), *count))
                .collect(),
            threads: process
                .threads
                .iter()
                .map(|(tid, (count, _))| (*tid, *count))
                .collect(),
        })
        .collect();
    processes.sort_by(|a, b| {
        b.allocs_per_s
            .partial_cmp(&a.allocs_per_s)
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    processes.truncate(top);
    Some(Allocation {
        windows: seen.windows,
        paired_windows: seen.paired_windows,
        window_s: round(seen.processes.values().map(|p| p.seconds).sum(), 6),
        allocs_per_s_error: rate(seen.allocs_per_s(|pid| session.cpus_used(pid))).map(|r| r.1),
        alloc_bytes_per_s_error: rate(seen.bytes_per_s(|pid| session.cpus_used(pid))).map(|r| r.1),
        sizes: sizes
            .into_iter()
            .map(|(bucket, count)| AllocSizeRow {
                from_bytes: size_low(usize::from(bucket)),
                count,
                share: round(share(count, all).unwrap_or(0.0), 6),
            })
            .collect(),
        lifetimes: (lived.tracked > 0).then(|| Lifetimes {
            followed: lived.tracked,
            followed_bytes: lived.tracked_bytes,
            freed_within_1ms_share: round(share(lived.quick, lived.tracked).unwrap_or(0.0), 6),
            freed_within_1ms_bytes_share: round(
                share(lived.quick_bytes, lived.tracked_bytes).unwrap_or(0.0),
                6,
            ),
            freed_in_window_share: round(share(lived.freed, lived.tracked).unwrap_or(0.0), 6),
            freed_in_window_bytes_share: round(
                share(lived.freed_bytes, lived.tracked_bytes).unwrap_or(0.0),
                6,
            ),
            // Of a share p of n, as binomial counts have it.
            error: round(standard_error(lived.quick, lived.tracked), 6),
        }),
        processes,
        lost: seen.lost,
    })
}

fn standard_error(part: u64, whole: u64) -> f64 {
    let p = part as f64 / whole.max(1) as f64;
    (p * (1.0 - p) / whole.max(1) as f64).max(0.0).sqrt()
}

/// Where memory is asked for, the most frequent first.
pub fn sites(session: &Session, top: usize) -> Vec<AllocationSite> {
    let seen = &session.alloc;
    // Calls that came from one function are one row, whatever led there; the commonest way is shown.
    type Key = (u32, String, Option<String>, Option<String>, Option<u64>);
    let mut rows = BTreeMap::<Key, (u64, u64, u64, Vec<AllocFrame>)>::new();
    for ((pid, function, frames), (count, bytes)) in &seen.sites {
        let caller = frames.first();
        let key = (
            *pid,
            function.clone(),
            caller.and_then(|frame| frame.module.clone()),
            caller.and_then(|frame| frame.function.clone()),
            // Without a name, places in a module are told apart by where they are.
            caller
                .filter(|frame| frame.function.is_none())
                .map(|frame| {
                    if frame.module.is_some() {
                        frame.offset
                    } else {
                        frame.address
                    }
                }),
        );
        let row = rows.entry(key).or_default();
        row.0 += count;
        row.1 += bytes;
        if *count > row.2 {
            row.2 = *count;
            row.3.clone_from(frames);
        }
    }
    let mut out: Vec<AllocationSite> = rows
        .into_iter()
        .map(
            |((pid, allocator, module, function, _), (count, bytes, _, frames))| {
                let (all, all_bytes) = seen.sampled.get(&pid).copied().unwrap_or_default();
                let process = seen.processes.get(&pid);
                let part = count as f64 / all.max(1) as f64;
                let rate = process
                    .and_then(|p| p.allocs_per_s(session.cpus_used(pid)))
                    .map(|rate| rate.value * part);
                AllocationSite {
                    pid,
                    function,
                    module: module.map(|path| file_name(&path)),
                    allocator,
                    allocs_per_s: rate.map(|rate| round(rate, 1)),
                    allocs_per_s_error: rate
                        .map(|rate| round(rate / (count.max(1) as f64).sqrt(), 1)),
                    bytes_per_s: process
                        .and_then(|p| p.bytes_per_s(session.cpus_used(pid)))
                        .map(|rate| round(rate.value * bytes as f64 / all_bytes.max(1) as f64, 1)),
                    kept_bytes_per_s: None,
                    share: round(part, 6),
                    samples: count,
                    stack: frames.iter().take(FRAMES).map(frame).collect(),
                }
            },
        )
        .collect();
    out.sort_by(|a, b| b.samples.cmp(&a.samples).then(a.pid.cmp(&b.pid)));
    out.truncate(top);
    out
}

fn frame(frame: &AllocFrame) -> SiteFrame {
    SiteFrame {
        function: frame.function.clone(),
        module: frame.module.as_deref().map(file_name),
        offset: if frame.module.is_some() {
            frame.offset
        } else {
            frame.address
        },
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// What windows cost; `None` when nothing was measured.
pub fn window_cost(session: &Session) -> Option<WindowCost> {
    let seen = &session.alloc;
    if seen.calibration.is_none() && seen.windows == 0 {
        return None;
    }
    let governor = seen.governor.as_ref();
    Some(WindowCost {
        count: seen.windows,
        hits: seen.hits,
        job_cpu_s: seconds(seen.job_ns),
        pause_s: seconds(seen.pause_ns),
        trainprof_cpu_s: seconds(seen.own_ns),
        worst_thread_share: governor.map(|g| round(g.worst_thread_ns as f64 / 1e10, 6)),
        hit_ns: seen.calibration.map(|c| round(c.emulated_ns, 1)),
        stepped_hit_ns: seen.calibration.map(|c| round(c.stepped_ns, 1)),
        return_ns: seen.calibration.map(|c| round(c.return_ns, 1)),
        close_pause_ms: seen.calibration.map(|c| round(c.pause_ns as f64 / 1e6, 3)),
    })
}
