//! The part of the report that is about memory.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use trainprof_common::{hist::size_low, op::Op};

use super::{
    alloc,
    io::{self, round},
    model::{
        AllocatorCpu, CgroupPressure, CpuShare, FaultRates, Faults, KeptSite, Memory, MemoryCgroup,
        MemoryCpu, MemoryPressure, MemoryProcess, OomKill, RssBytes, Series, SizeRow,
    },
};
use crate::{
    analysis::{
        memory::{Site, Which, growers, growth_bytes_per_s, kept_sites, name},
        memory_limit::nearest,
        python::function_name,
        rules::growth::line,
        running,
    },
    record::fact::{CgroupPressureSample, PageKind, PlaceClass, PressureTotals, ProcessSample},
    session::{
        Id, Session,
        roles::{Role, roles},
    },
    time::KtimeNs,
};

/// Builds it; so many rows of each table.
pub fn memory(session: &Session, top: usize) -> Memory {
    let counters: Vec<_> = session
        .threads
        .values()
        .filter_map(|thread| thread.counters)
        .collect();
    let growers = growers(session);
    let growth = growers.as_deref().map(growth_bytes_per_s);
    let churn = session.alloc.churn_share();
    let kinds = [PageKind::Anonymous, PageKind::CopyOnWrite, PageKind::Shared];
    Memory {
        rss_bytes: session.rss.sums().map(|rss| RssBytes {
            first: rss.first,
            last: rss.last,
            max: rss.max,
        }),
        growth_bytes_per_s: growth.map(|growth| round(growth, 1)),
        time_to_limit_s: growers
            .as_deref()
            .and_then(|growers| nearest(session, growers)?.seconds)
            .map(|seconds| round(seconds, 1)),
        allocs_per_s: session
            .alloc
            .allocs_per_s(|pid| session.cpus_used(pid))
            .map(|rate| round(rate.value, 1)),
        alloc_bytes_per_s: session
            .alloc
            .bytes_per_s(|pid| session.cpus_used(pid))
            .map(|rate| round(rate.value, 1)),
        churn_share: churn.map(|share| round(share.value, 6)),
        churn_share_error: churn.map(|share| round(share.error, 6)),
        sites: alloc::sites(session, top),
        faults: (!counters.is_empty() && session.counts_faults()).then(|| Faults {
            minor: counters.iter().map(|c| c.minor_faults).sum(),
            major: counters.iter().map(|c| c.major_faults).sum(),
        }),
        calls: io::memory_calls(session),
        kept_sites: session.memory.sampling.map(|_| {
            kept_sites(session, None, &kinds)
                .iter()
                .take(top)
                .map(kept)
                .collect()
        }),
        processes: processes(session, top),
        sizes: sizes(session),
        cgroups: cgroups(session),
        pressure: pressure(session),
        cgroup_pressure: cgroup_pressure(session),
        allocation: alloc::allocation(session, top),
        oom_kills: oom_kills(session),
    }
}

/// In the order in which they ended.
fn oom_kills(session: &Session) -> Vec<OomKill> {
    let roles = roles(session);
    let start = session.start.as_ref().map_or(KtimeNs(0), |start| start.at);
    let mut killed: Vec<(KtimeNs, u32)> = session
        .host
        .out_of_memory
        .iter()
        .map(|(pid, at)| (*at, *pid))
        .collect();
    killed.sort_unstable();
    killed
        .into_iter()
        .map(|(at, pid)| {
            let process = session.processes.get(&pid);
            OomKill {
                pid: Id(pid),
                name: process
                    .map(|process| process.name.clone())
                    .unwrap_or_default(),
                role: roles.get(&pid).map_or(Role::Helper, |role| *role).name(),
                at_s: round(at.seconds_since(start), 3),
                rss_max_bytes: process.and_then(|process| process.rss).map(|rss| rss.max),
            }
        })
        .collect()
}

fn kept(site: &Site) -> KeptSite {
    KeptSite {
        function: site.frame.function.clone(),
        module: site.frame.module.clone(),
        source: site
            .frame
            .source
            .as_ref()
            .map(|line| format!("{}:{}", line.file, line.line)),
        stack: site.stack.iter().map(name).collect(),
        python: site.python.iter().map(function_name).collect(),
        kept_bytes_per_s: round(site.bytes_per_s, 1),
        error_bytes_per_s: round(site.error_bytes_per_s, 1),
        share: round(site.share, 4),
        samples: site.samples,
    }
}

/// The largest ones.
fn processes(session: &Session, top: usize) -> Vec<MemoryProcess> {
    let roles = roles(session);
    let growers = growers(session);
    let mut out: Vec<MemoryProcess> = session
        .host
        .processes
        .iter()
        .map(|(pid, samples)| {
            let of = |what: fn(&ProcessSample) -> Option<u64>| {
                series(
                    session,
                    samples.iter().filter_map(|s| Some((s.at, what(s)?))),
                )
            };
            let proportional = of(|s| s.pss_bytes);
            MemoryProcess {
                pid: Id(*pid),
                role: roles.get(pid).map_or(Role::Helper, |role| *role).name(),
                anonymous_bytes: of(|s| Some(s.anon_bytes)),
                file_bytes: of(|s| Some(s.file_bytes)),
                shared_bytes: of(|s| Some(s.shmem_bytes)),
                swap_bytes: of(|s| Some(s.swap_bytes)),
                pss_bytes: proportional.map(|series| series.last),
                proportional_bytes: proportional,
                growth_bytes_per_s: growers.as_ref().map(|growers| {
                    let of = growers
                        .iter()
                        .filter(|g| g.pid == *pid && g.which == Which::Anonymous);
                    // An empty sum is -0.
                    round(of.map(|g| g.growth.slope).sum::<f64>() + 0.0, 1)
                }),
                faults: faults(session, *pid),
                cpu: cpu(session, *pid),
            }
        })
        .collect();
    let size = |p: &MemoryProcess| {
        let last = |s: &Option<Series>| s.map_or(0, |s| s.last);
        last(&p.anonymous_bytes) + last(&p.file_bytes) + last(&p.shared_bytes)
    };
    out.sort_by_key(|process| Reverse(size(process)));
    out.truncate(top);
    out
}

/// A size over time; `None` when it was never told.
pub(super) fn series(
    session: &Session,
    samples: impl Iterator<Item = (KtimeNs, u64)>,
) -> Option<Series> {
    let start = session.start.as_ref()?.at;
    let samples: Vec<(KtimeNs, u64)> = samples.collect();
    let points: Vec<(f64, f64)> = samples
        .iter()
        .map(|(at, bytes)| (at.seconds_since(start), *bytes as f64))
        .collect();
    let line = line(&points);
    Some(Series {
        first: samples.first()?.1,
        last: samples.last()?.1,
        max: samples.iter().map(|(_, bytes)| *bytes).max()?,
        slope_bytes_per_s: line.map(|line| round(line.slope, 1)),
        slope_margin_bytes_per_s: line.map(|line| round(line.margin, 1)),
    })
}

/// How often a process's threads faulted. The kernel counts minor and major ones; which of them were copies, samples
/// tell.
fn faults(session: &Session, pid: u32) -> Option<FaultRates> {
    let (mut minor, mut major, mut seen) = (0, 0, false);
    for thread in session.threads_of(pid) {
        if let Some(counters) = thread.counters {
            seen = true;
            minor += counters.minor_faults;
            major += counters.major_faults;
        }
    }
    (seen && session.counts_faults()).then_some(())?;
    let seconds = present_s(session, pid);
    let kind = |kind| {
        session
            .memory
            .kinds
            .get(&(pid, kind))
            .copied()
            .unwrap_or_default()
    };
    let all = [
        PageKind::Anonymous,
        PageKind::Shared,
        PageKind::CopyOnWrite,
        PageKind::Unknown,
    ];
    let (samples, faults) = all.iter().fold((0, 0), |(n, sum), each| {
        let of = kind(*each);
        (n + of.0, sum + of.1)
    });
    let rate = |which| {
        (faults > 0)
            .then(|| kind(which).1 as f64 / faults as f64 * (minor + major) as f64 / seconds)
    };
    let copies = rate(PageKind::CopyOnWrite);
    Some(FaultRates {
        minor_per_s: round(minor as f64 / seconds, 1),
        major_per_s: round(major as f64 / seconds, 1),
        copy_on_write_per_s: copies.map(|n| round(n, 1)),
        copy_on_write_error_per_s: copies.map(|_| {
            let share = kind(PageKind::CopyOnWrite).1 as f64 / faults as f64;
            let error = 2.0 * (share * (1.0 - share) / samples as f64).sqrt();
            round(
                error.max(3.0 / samples as f64) * (minor + major) as f64 / seconds,
                1,
            )
        }),
        shared_per_s: rate(PageKind::Shared).map(|n| round(n, 1)),
        samples,
    })
}

/// How long a process was there while it was watched.
fn present_s(session: &Session, pid: u32) -> f64 {
    let threads = session.threads_of(pid);
    let (mut from, mut to) = (session.until, KtimeNs(0));
    for thread in threads {
        from = from.min(thread.key.since);
        to = to.max(thread.until.unwrap_or(session.until));
    }
    to.seconds_since(from).max(1e-3)
}

/// What part of a process's CPU time memory takes, from clock samples.
fn cpu(session: &Session, pid: u32) -> Option<MemoryCpu> {
    let threads = || session.threads_of(pid);
    let tids: BTreeSet<u32> = threads().map(|thread| thread.key.tid).collect();
    let samples = || {
        let segments = session.history.segments();
        let all = segments.flat_map(|segment| &segment.samples);
        all.filter(|sample| tids.contains(&sample.tid))
    };
    let mut split = running::split_of(session, samples());
    split.add_edges(running::edges(session, threads()));
    (split.samples > 0).then(|| {
        let share = |of: f64| CpuShare {
            share: round(of, 4),
            // Where no sample hit, three more would mostly have (the rule of three).
            error: round(
                (2.0 * (of * (1.0 - of) / split.samples as f64).sqrt())
                    .max(3.0 / split.samples as f64)
                    .min(1.0),
                4,
            ),
        };
        let mut hits = BTreeMap::<(&'static str, Option<&str>), usize>::new();
        for place in samples().filter_map(|sample| session.places.get(&sample.place)) {
            if let Some(kind) = allocator_kind(place.class) {
                *hits.entry((kind, place.module.as_deref())).or_default() += 1;
            }
        }
        let mut allocators: Vec<AllocatorCpu> = hits
            .into_iter()
            .map(|((kind, module), hits)| {
                let CpuShare { share, error } = share(hits as f64 / split.samples as f64);
                AllocatorCpu {
                    kind,
                    module: module.map(str::to_owned),
                    share,
                    error,
                }
            })
            .collect();
        allocators.sort_by(|a, b| b.share.total_cmp(&a.share));
        MemoryCpu {
            allocators,
            allocator: share(split.allocator),
            faults: share(split.fault),
            calls: share(split.memory_calls),
            samples: split.samples,
        }
    })
}

const fn allocator_kind(class: PlaceClass) -> Option<&'static str> {
    match class {
        PlaceClass::Malloc => Some("malloc"),
        PlaceClass::PyMalloc => Some("python"),
        PlaceClass::GpuAllocator => Some("gpu"),
        PlaceClass::Other
        | PlaceClass::GpuDriver
        | PlaceClass::Python
        | PlaceClass::Kernel
        | PlaceClass::Spinning => None,
    }
}

/// Calls that map memory, by process and size class. Where calls were counted in turns, each that was counted stands for as many of its
/// process and kind as there were.
fn sizes(session: &Session) -> Vec<SizeRow> {
    let in_turns = session.uncounted.seconds() > 0.0;
    let mut out = Vec::new();
    for ((pid, op), counts) in &session.files.memory_sizes {
        let Some(call) = Op::try_from(*op).ok().and_then(io::memory_call) else {
            continue;
        };
        let counted: u64 = counts.iter().sum();
        let all = if in_turns {
            io::calls_of(session, *pid, *op).max(counted)
        } else {
            counted
        };
        let each = all as f64 / counted.max(1) as f64;
        let there = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        out.extend(there.map(|(bucket, count)| SizeRow {
            pid: Id(*pid),
            call,
            from_bytes: size_low(bucket),
            count: (*count as f64 * each).round() as u64,
        }));
    }
    out
}

fn cgroups(session: &Session) -> Vec<MemoryCgroup> {
    session
        .host
        .memory
        .iter()
        .filter_map(|(path, series)| {
            let (first, last) = (series.first()?, series.last()?);
            Some(MemoryCgroup {
                cgroup: path.clone(),
                usage_bytes: RssBytes {
                    first: first.usage_bytes,
                    last: last.usage_bytes,
                    max: series.iter().map(|s| s.usage_bytes).max()?,
                },
                limit_bytes: last.limit_bytes,
                anonymous_bytes: last.anon_bytes,
                file_bytes: last.file_bytes,
                oom_kills: last
                    .oom_kills
                    .zip(first.oom_kills)
                    .map(|(last, first)| last.saturating_sub(first)),
            })
        })
        .collect()
}

fn pressure(session: &Session) -> Option<MemoryPressure> {
    let (first, last) = (session.host.host.first()?, session.host.host.last()?);
    let seconds =
        |of: fn(&PressureTotals) -> Option<u64>| stalled_s(of(&first.pressure), of(&last.pressure));
    Some(MemoryPressure {
        some_s: seconds(|p| p.memory_some_us),
        full_s: seconds(|p| p.memory_full_us),
    })
}

/// Totals of microseconds, first and last, as seconds between.
fn stalled_s(first: Option<u64>, last: Option<u64>) -> Option<f64> {
    Some(round(last?.saturating_sub(first?) as f64 / 1e6, 3))
}

fn cgroup_pressure(session: &Session) -> Vec<CgroupPressure> {
    session
        .host
        .pressure
        .iter()
        .filter_map(|(path, series)| {
            let (first, last) = (series.first()?, series.last()?);
            let seconds =
                |of: fn(&CgroupPressureSample) -> Option<u64>| stalled_s(of(first), of(last));
            Some(CgroupPressure {
                cgroup: path.clone(),
                memory_some_s: seconds(|s| s.pressure.memory_some_us),
                memory_full_s: seconds(|s| s.pressure.memory_full_us),
                cpu_some_s: seconds(|s| s.pressure.cpu_some_us),
                cpu_full_s: seconds(|s| s.cpu_full_us),
                io_some_s: seconds(|s| s.pressure.io_some_us),
                io_full_s: seconds(|s| s.pressure.io_full_us),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::Class;

    use super::*;
    use crate::record::{
        Record,
        fact::{CallsHidden, HistSum, Interval, OpSum, ThreadSeen},
    };

    #[test]
    fn sizes_stand_for_the_calls_that_were_not_counted_too() {
        let second = |n: u64| KtimeNs(n * 1_000_000_000);
        let mut session = Session::default();
        session.apply(&Record::Thread(ThreadSeen {
            at: second(0),
            pid: 7,
            tid: 7,
            parent_tid: None,
            name: String::new(),
        }));
        for n in 0..4 {
            // From the first second on, calls are counted for half of the time.
            let mut calls = 100;
            if n > 0 {
                calls = 50;
                session.apply(&Record::CallsHidden(CallsHidden {
                    from: KtimeNs(second(n).0 + 500_000_000),
                    to: second(n + 1),
                    counted: None,
                    slowed: 0.0,
                }));
            }
            let (tid, op, class) = (7, Op::Mmap.number(), Class::Unknown as u8);
            session.apply(&Record::Interval(Interval {
                from: second(n),
                to: second(n + 1),
                ops: vec![OpSum {
                    tid,
                    fileset: 0,
                    dev: 0,
                    op,
                    class,
                    count: u64::from(calls),
                    errors: 0,
                    bytes: 0,
                    ns: 0,
                }],
                hists: vec![HistSum {
                    tid,
                    dev: 0,
                    op,
                    class,
                    latency: Vec::new(),
                    size: vec![(12, calls / 5), (20, calls - calls / 5)],
                }],
                ..Interval::default()
            }));
        }
        let calls = io::memory_calls(&session)["mmap"].count;
        assert!((395..=405).contains(&calls), "{calls}");
        let counts: Vec<u64> = sizes(&session).iter().map(|row| row.count).collect();
        assert_eq!(counts.len(), 2);
        assert!(counts[0].abs_diff(calls / 5) <= 1, "{counts:?}");
        assert!(
            counts.iter().sum::<u64>().abs_diff(calls) <= 1,
            "{counts:?}"
        );
    }
}
