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
    analysis::memory::{kept_sites, tells_kept},
    record::fact::{AllocFrame, PageKind},
    session::{
        Id, Session,
        alloc::{ProcessAllocs, share},
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
            pid: Id(*pid),
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
            threads: threads(process),
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

/// Share of what a process keeps that must have been found at its call sites for the others to keep nothing: memory that
/// is first touched elsewhere could be of any of them.
const ALL_KEPT: f64 = 0.95;

/// A function: module and name.
type Function = (String, String);

/// What a process keeps, bytes a second, by the function that first touches it.
struct Kept {
    by_function: BTreeMap<Function, f64>,
    /// Bytes that the sampled calls of each function asked for: one may call several functions of the allocator.
    asked: BTreeMap<Function, u64>,
    /// All of it is kept by functions that ask for memory.
    all_known: bool,
}

impl Kept {
    /// `asked`: bytes that functions of the process asked for.
    fn of(session: &Session, pid: u32, asked: BTreeMap<Function, u64>) -> Self {
        let mut by_function = BTreeMap::<Function, f64>::new();
        let (mut known, mut all) = (0.0, 0.0);
        for site in kept_sites(session, Some(&[pid].into()), &[PageKind::Anonymous]) {
            all += site.bytes_per_s;
            if let (Some(module), Some(function)) = (site.frame.module, site.frame.function) {
                let function = (module, function);
                if asked.contains_key(&function) {
                    known += site.bytes_per_s;
                }
                *by_function.entry(function).or_default() += site.bytes_per_s;
            }
        }
        Self {
            by_function,
            asked,
            all_known: known >= ALL_KEPT * all,
        }
    }

    /// Of what a function keeps, the part that calls for so many bytes have.
    fn at(&self, function: &Function, bytes: u64) -> Option<f64> {
        match self.by_function.get(function) {
            Some(kept) => {
                let asked = self.asked.get(function).copied().unwrap_or(0).max(1);
                Some(kept * bytes as f64 / asked as f64)
            }
            None => self.all_known.then_some(0.0),
        }
    }
}

/// Calls of each thread; JSON knows no two keys that read alike.
fn threads(process: &ProcessAllocs) -> BTreeMap<u32, u64> {
    let mut out = BTreeMap::new();
    for (tid, (count, _)) in &process.threads {
        *out.entry(Id(*tid).of_kernel()).or_default() += count;
    }
    out
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
    let named = |module: &Option<String>, function: &Option<String>| {
        Some((file_name(module.as_deref()?), function.clone()?))
    };
    let mut asked = BTreeMap::<u32, BTreeMap<Function, u64>>::new();
    for ((pid, _, module, function, _), (_, bytes, _, _)) in &rows {
        let of = asked.entry(*pid).or_default();
        if let Some(function) = named(module, function) {
            *of.entry(function).or_default() += bytes;
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
                let kept_here = named(&module, &function)
                    .and_then(|function| kept.get(&pid)?.at(&function, bytes));
                AllocationSite {
                    pid: Id(pid),
                    function,
                    module: module.map(|path| file_name(&path)),
                    allocator,
                    allocs_per_s: rate.map(|rate| round(rate, 1)),
                    allocs_per_s_error: rate
                        .map(|rate| round(rate / (count.max(1) as f64).sqrt(), 1)),
                    bytes_per_s: process
                        .and_then(|p| p.bytes_per_s(session.cpus_used(pid)))
                        .map(|rate| round(rate.value * bytes as f64 / all_bytes.max(1) as f64, 1)),
                    kept_bytes_per_s: kept_here.map(|rate| round(rate, 1)),
                    share: round(part, 6),
                    share_error: round(standard_error(count, all), 6),
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
