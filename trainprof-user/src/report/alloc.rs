//! Allocations: rates, sizes, lifetimes and call sites, from windows.

use std::collections::BTreeMap;

use trainprof_common::hist::size_low;

use super::{
    io::round,
    model::{
        AllocProcess, AllocSizeRow, AllocThread, Allocation, AllocationSite, Lifetimes, SiteFrame,
        WindowCost,
    },
};
use crate::{
    analysis::{
        allocation::{Caller, callers, file_name},
        memory::{kept_sites, tells_kept},
    },
    record::fact::{AllocFrame, PageKind},
    session::{
        Id, Session,
        alloc::{Estimate, ProcessAllocs},
        strata::Sizes,
    },
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
    let lived = &seen.lifetimes;
    let mut processes: Vec<AllocProcess> = seen
        .processes
        .keys()
        .map(|pid| process(session, *pid, top))
        .collect();
    processes.sort_by(|a, b| {
        b.allocs_per_s
            .partial_cmp(&a.allocs_per_s)
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    processes.truncate(top);
    let cpus = |pid| session.cpus_used(pid);
    Some(Allocation {
        windows: seen.windows,
        paired_windows: seen.paired_windows,
        window_s: round(seen.processes.values().map(|p| p.seconds).sum(), 6),
        allocs_per_s_error: error(seen.allocs_per_s(cpus)),
        alloc_bytes_per_s_error: error(seen.bytes_per_s(cpus)),
        sizes: sizes(seen.sizes(cpus)),
        lifetimes: seen.short_lived().map(|short| Lifetimes {
            followed: lived.tracked,
            followed_bytes: lived.tracked_bytes,
            freed_within_1ms_share: round(short.quick.value, 6),
            freed_within_1ms_bytes_share: round(short.quick_bytes.value, 6),
            freed_in_window_share: round(short.freed.value, 6),
            freed_in_window_bytes_share: round(short.freed_bytes.value, 6),
            error: round(short.quick.error, 6),
            freed_within_1ms_bytes_share_error: round(short.quick_bytes.error, 6),
            freed_in_window_share_error: round(short.freed.error, 6),
            freed_in_window_bytes_share_error: round(short.freed_bytes.error, 6),
        }),
        processes,
        lost: seen.lost,
    })
}

fn value(rate: Option<Estimate>) -> Option<f64> {
    rate.map(|rate| round(rate.value, 1))
}

fn error(rate: Option<Estimate>) -> Option<f64> {
    rate.map(|rate| round(rate.error, 1))
}

fn sizes(of: Sizes) -> Vec<AllocSizeRow> {
    of.into_iter()
        .map(|(bucket, count, share)| AllocSizeRow {
            from_bytes: size_low(usize::from(bucket)),
            count,
            share: round(share.value, 6),
            share_error: round(share.error, 6),
        })
        .collect()
}

fn process(session: &Session, pid: u32, top: usize) -> AllocProcess {
    let none = ProcessAllocs::default();
    let process = session.alloc.processes.get(&pid).unwrap_or(&none);
    let cpus = session.cpus_used(pid);
    let allocs = process.allocs_per_s(cpus);
    let bytes = process.bytes_per_s(cpus);
    let allocator = session.alloc.allocators.get(&pid);
    let mut by_thread: Vec<AllocThread> = process
        .threads
        .iter()
        .map(|(tid, thread)| {
            let allocs = process.thread_allocs_per_s(thread, cpus);
            let bytes = process.thread_bytes_per_s(thread, cpus);
            AllocThread {
                tid: Id(*tid),
                calls: thread.calls,
                allocs_per_s: value(allocs),
                allocs_per_s_error: error(allocs),
                bytes_per_s: value(bytes),
                bytes_per_s_error: error(bytes),
                sizes: sizes(process.thread_sizes(thread, cpus)),
            }
        })
        .collect();
    by_thread.sort_by_key(|thread| std::cmp::Reverse(thread.calls));
    by_thread.truncate(top);
    AllocProcess {
        pid: Id(pid),
        allocator: allocator.map(|fact| fact.library.clone()),
        windows: process.windows,
        window_s: round(process.seconds, 6),
        allocs_per_s: value(allocs),
        allocs_per_s_error: error(allocs),
        bytes_per_s: value(bytes),
        bytes_per_s_error: error(bytes),
        functions: process
            .functions
            .iter()
            .map(|(name, (count, _))| (name.clone(), *count))
            .collect(),
        threads: threads(process),
        sizes: sizes(process.sizes(cpus)),
        by_thread,
    }
}

/// Share of what a process keeps that must have been found at its call sites for the others to keep nothing: memory that
/// is first touched elsewhere could be of any of them.
const ALL_KEPT: f64 = 0.95;

/// A function: module and name.
type Function = (String, String);

/// What a process keeps, bytes a second, by the function that first touches it.
struct Kept {
    by_function: BTreeMap<Function, Estimate>,
    /// Bytes a second that each function asks for: one may call several functions of the allocator.
    asked: BTreeMap<Function, f64>,
    /// All of it is kept by functions that ask for memory.
    all_known: bool,
}

impl Kept {
    /// `asked`: see there.
    fn of(session: &Session, pid: u32, asked: BTreeMap<Function, f64>) -> Self {
        let mut by_function = BTreeMap::<Function, Estimate>::new();
        let (mut known, mut all) = (0.0, 0.0);
        for site in kept_sites(session, Some(&[pid].into()), &[PageKind::Anonymous]) {
            all += site.bytes_per_s;
            if let (Some(module), Some(function)) = (site.frame.module, site.frame.function) {
                let function = (module, function);
                if asked.contains_key(&function) {
                    known += site.bytes_per_s;
                }
                let kept = by_function.entry(function).or_default();
                kept.value += site.bytes_per_s;
                // Its error is that of 95 %: two standard errors.
                kept.error = kept.error.hypot(site.error_bytes_per_s / 2.0);
            }
        }
        Self {
            by_function,
            asked,
            all_known: known >= ALL_KEPT * all,
        }
    }

    /// Of what a function keeps, the part that calls for so many bytes a second have.
    fn at(&self, function: &Function, bytes: f64) -> Option<Estimate> {
        match self.by_function.get(function) {
            Some(kept) => {
                let asked = self.asked.get(function).copied().unwrap_or(0.0);
                let part = if asked > 0.0 { bytes / asked } else { 0.0 };
                Some(Estimate {
                    value: kept.value * part,
                    error: kept.error * part,
                })
            }
            None => self.all_known.then(Estimate::default),
        }
    }
}

/// Calls of each thread; JSON knows no two keys that read alike.
fn threads(process: &ProcessAllocs) -> BTreeMap<u32, u64> {
    let mut out = BTreeMap::new();
    for (tid, thread) in &process.threads {
        *out.entry(Id(*tid).of_kernel()).or_default() += thread.calls;
    }
    out
}

/// Where memory is asked for, the most frequent first.
pub fn sites(session: &Session, top: usize) -> Vec<AllocationSite> {
    let rows = callers(session);
    let mut asked = BTreeMap::<u32, BTreeMap<Function, f64>>::new();
    for row in &rows {
        let of = asked.entry(row.pid).or_default();
        if let Some(function) = named(row) {
            *of.entry(function).or_default() += asks(session, row);
        }
    }
    let kept: BTreeMap<u32, Kept> = if tells_kept(session) {
        asked
            .into_iter()
            .map(|(pid, asked)| (pid, Kept::of(session, pid, asked)))
            .collect()
    } else {
        BTreeMap::new()
    };
    rows.into_iter()
        .take(top)
        .map(|row| {
            let kept_here = named(&row)
                .and_then(|function| kept.get(&row.pid)?.at(&function, asks(session, &row)));
            let (allocs, bytes) = (row.allocs_per_s(session), row.bytes_per_s(session));
            let share = row.share(session);
            AllocationSite {
                pid: Id(row.pid),
                module: row.module.as_deref().map(file_name),
                allocs_per_s: value(allocs),
                allocs_per_s_error: error(allocs),
                bytes_per_s: value(bytes),
                bytes_per_s_error: error(bytes),
                kept_bytes_per_s: value(kept_here),
                kept_bytes_per_s_error: error(kept_here),
                share: round(share.value, 6),
                share_error: round(share.error, 6),
                samples: row.sampled.calls,
                stack: row.frames.iter().take(FRAMES).map(frame).collect(),
                function: row.function,
                allocator: row.allocator,
            }
        })
        .collect()
}

/// Bytes a second; where no window tells a rate, those of the sampled calls.
fn asks(session: &Session, row: &Caller) -> f64 {
    let rate = row.bytes_per_s(session);
    rate.map_or(row.sampled.bytes as f64, |rate| rate.value)
}

fn named(row: &Caller) -> Option<Function> {
    Some((file_name(row.module.as_deref()?), row.function.clone()?))
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

/// What windows cost; `None` when nothing was measured.
pub fn window_cost(session: &Session) -> Option<WindowCost> {
    let seen = &session.alloc;
    if seen.calibration.is_none() && seen.windows == 0 {
        return None;
    }
    let governor = seen.governor.as_ref();
    Some(WindowCost {
        count: seen.windows,
        capped: seen.capped,
        hits: seen.hits,
        job_cpu_s: seconds(seen.job_ns),
        pause_s: seconds(seen.pause_ns),
        trainprof_cpu_s: seconds(seen.own_ns),
        worst_thread_share: governor.map(|g| round(g.worst_thread_ns as f64 / 1e10, 6)),
        hit_ns: seen.calibration.map(|c| round(c.emulated_ns, 1)),
        stepped_hit_ns: seen.calibration.map(|c| round(c.stepped_ns, 1)),
        return_ns: seen.calibration.map(|c| round(c.return_ns, 1)),
        open_pause_ms: seen.opening_ns.map(|ns| round(ns as f64 / 1e6, 3)),
        close_pause_ms: seen.calibration.map(|c| round(c.pause_ns as f64 / 1e6, 3)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{
            Record,
            fact::{
                AllocSiteFact, FaultFact, FaultSamplingFact, FrameFact, PagesGone, PlaceClass,
                StackFact,
            },
        },
        time::KtimeNs,
    };

    const PID: u32 = 100;
    const SECOND: u64 = 1_000_000_000;
    /// Seconds of the watch, in which pages are kept from the fourth second on to two seconds before its end.
    const LENGTH: u64 = 20;

    /// Sampled calls (bytes asked for) of functions, and faults in others, each for 100 pages and one a second.
    fn session(sampled: bool, sites: &[(&str, &str, u64)], faults: &[(&str, bool)]) -> Session {
        let mut session = Session::default();
        let start = serde_json::json!({"Start": {
            "at": 0, "anchor": {"ktime": 0, "unix_ns": 0, "uncertainty_ns": 0},
            "host": {
                "kernel_release": "6.18", "architecture": "x86_64", "hostname": null, "cpu_model": null,
                "cpus_online": 4, "memory_bytes": 1u64 << 34, "virtualisation": null,
                "clocksource": null, "lockdown": null, "boot_id": null, "trainprof_version": "0.1.0"
            },
            "targets": [PID], "event_min_ns": 50_000, "attach_ns": 0
        }});
        session.apply(&serde_json::from_value(start).expect("a beginning"));
        session.until = KtimeNs(LENGTH * SECOND);
        if sampled {
            session.apply(&Record::FaultSampling(FaultSamplingFact {
                period: 17,
                page_bytes: 4096,
            }));
        }
        for (allocator, function, bytes) in sites {
            session.apply(&Record::AllocSite(AllocSiteFact {
                window: 1,
                pid: PID,
                function: (*allocator).to_owned(),
                count: 10,
                bytes: *bytes,
                frames: vec![AllocFrame {
                    address: 1,
                    module: Some("/opt/lib/model.so".to_owned()),
                    offset: 1,
                    function: Some((*function).to_owned()),
                }],
            }));
        }
        for (n, (function, kept)) in faults.iter().enumerate() {
            let stack = n as u32 + 1;
            session.apply(&Record::Frame(FrameFact {
                number: stack,
                module: Some("model.so".to_owned()),
                offset: 7,
                function: Some((*function).to_owned()),
                source: None,
                class: PlaceClass::Other,
            }));
            session.apply(&Record::Stack(StackFact {
                number: stack,
                frames: vec![stack],
                whole: true,
            }));
            for second in 0..LENGTH {
                let number = 1 + stack * 100 + second as u32;
                session.apply(&Record::Fault(FaultFact {
                    number,
                    at: KtimeNs(second * SECOND),
                    tid: PID,
                    pid: PID,
                    faults: 100,
                    kind: PageKind::Anonymous,
                    in_kernel: false,
                    stack,
                }));
                if !kept {
                    session.apply(&Record::PagesGone(PagesGone {
                        at: KtimeNs(second * SECOND + 1),
                        faults: vec![number],
                    }));
                }
            }
        }
        session
    }

    fn kept(session: &Session) -> Vec<(String, String, Option<f64>)> {
        sites(session, 10)
            .into_iter()
            .map(|site| {
                let function = site.function.unwrap_or_default();
                (site.allocator, function, site.kept_bytes_per_s)
            })
            .collect()
    }

    #[test]
    fn what_a_call_site_keeps_is_what_page_faults_say_of_its_function() {
        let rate = 100.0 * 4096.0;
        let row = |allocator: &str, function: &str, kept| {
            (allocator.to_owned(), function.to_owned(), kept)
        };
        let calls = [
            ("malloc", "cache", 300),
            ("calloc", "cache", 100),
            ("malloc", "scratch", 900),
        ];
        // One function may call several of the allocator's: each has its part.
        let all = kept(&session(
            true,
            &calls,
            &[("cache", true), ("scratch", false)],
        ));
        assert_eq!(
            all,
            [
                row("calloc", "cache", Some(0.25 * rate)),
                row("malloc", "cache", Some(0.75 * rate)),
                row("malloc", "scratch", Some(0.0)),
            ]
        );
        // What `fill` touches first may be memory of `scratch`.
        let elsewhere = kept(&session(true, &calls, &[("cache", true), ("fill", true)]));
        assert_eq!(elsewhere[1].2, Some(0.75 * rate));
        assert_eq!(elsewhere[2].2, None);
        let unseen = kept(&session(false, &calls, &[]));
        assert!(unseen.iter().all(|row| row.2.is_none()), "{unseen:?}");
    }
}
