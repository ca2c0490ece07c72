//! Allocator, page-fault and mmap/munmap work.

use serde_json::json;
use trainprof_common::op::{Class, Op};

use super::{Answer, Look, asking::Asking, device_memory, look, look::rounded, memory_growth};
use crate::{
    analysis::{
        Kind,
        facts::Facts,
        memory::{Site, churn_sites, site_name},
        python::Place,
        python::function_name,
        running::{Split, churning, split},
        words,
    },
    session::Session,
};

const KIND: Kind = Kind::AllocationChurn;
/// A function with at least this part (0–1) of the time is where it goes.
const MOST: f64 = 0.5;
/// Call sites that are told.
const SITES: usize = 5;
/// Fewer samples than this do not name a site.
const MIN_SAMPLES: usize = 8;
/// Calls a second that map memory, from which on they are what brings the faults.
const MANY_CALLS: f64 = 20.0;
/// Share of the faults' time above which pages themselves are the cost, not the calls.
const FAULTS_ALONE: f64 = 0.8;

/// The C library takes no larger threshold than this, and maps larger blocks whatever it was told (`HEAP_MAX_SIZE / 2`,
/// glibc's malloc/malloc.c, 64 bits).
const LARGEST_THRESHOLD: u64 = 32 << 20;

/// The C library adjusts its thresholds to the blocks that are freed until any of them is set (mallopt(3)): from then on it maps each
/// block from 128 KiB on, unless that threshold is set as well.
/// What is taken and given back is shared memory, where removing it takes more than this part (0–1) of the kernel's work on memory.
const REMOVED: f64 = 0.2;
const KEEP_HEAP: &str = "reuse buffers, or keep freed memory in the process: all three of MALLOC_MMAP_THRESHOLD_=33554432, MALLOC_TRIM_THRESHOLD_=1073741824 and MALLOC_TOP_PAD_=268435456 (one alone makes it worse), or jemalloc";
const KEEP_MAPPED: &str = "reuse buffers, or keep freed memory in the process: both MALLOC_MMAP_THRESHOLD_=33554432 and MALLOC_TRIM_THRESHOLD_=1073741824, or jemalloc";

/// Calls on memory of the whole job.
#[derive(Default)]
struct Calls {
    count: u64,
    bytes: u64,
    maps: u64,
    mapped_bytes: u64,
    brks: u64,
}

impl Calls {
    fn of(session: &Session) -> Self {
        let mut calls = Self::default();
        for (key, total) in &session.files.ops {
            if key.class != Class::Memory as u8 {
                continue;
            }
            match Op::try_from(key.op) {
                Ok(Op::Mmap) => {
                    calls.maps += total.count;
                    calls.mapped_bytes += total.bytes;
                }
                Ok(Op::Brk) => calls.brks += total.count,
                Ok(Op::Munmap | Op::Madvise | Op::Mremap) => {}
                _ => continue,
            }
            calls.count += total.count;
            calls.bytes += total.bytes;
        }
        calls
    }

    fn mean_mapped_bytes(&self) -> Option<u64> {
        self.mapped_bytes.checked_div(self.maps)
    }
}

/// Memory that grows by so much (0–1) of what is touched for the first time is kept, and not given back.
const KEPT: f64 = 0.3;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// Calls a second that allocate pinned memory of the host, in the time that the history keeps: it drops calls with their time.
fn pinned_per_s(facts: &Facts) -> f64 {
    let session = facts.session;
    let pins = |function: u32| {
        session
            .gpu
            .functions
            .get(&function)
            .is_some_and(|(_, name)| {
                name.contains("HostAlloc")
                    || name.contains("MallocHost")
                    || name.contains("MemAllocHost")
                    || name.contains("HostRegister")
            })
    };
    let calls = facts.gpu_calls().filter(|call| pins(call.function)).count();
    calls as f64 * 1e9 / facts.walkable_ns().max(1) as f64
}

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let duration = look.session.duration_s().max(1e-9);
        let calls = Calls::of(look.session);
        let (doer, split) = look
            .top(KIND, |share| Some(look.doer(share)))
            .into_iter()
            .map(|(tid, seconds)| (tid, seconds, split(look.facts, tid, &[])))
            .max_by(|a, b| (a.1 * a.2.churn()).total_cmp(&(b.1 * b.2.churn())))
            .map(|(tid, _, split)| (Some(tid), split))
            .unwrap_or_default();
        let pid = doer
            .and_then(|tid| look.session.thread(tid))
            .map(|thread| thread.pid);
        let sites: Vec<_> = pid
            .map(|pid| churn_sites(look.session, pid))
            .unwrap_or_default()
            .into_iter()
            .filter(|site| site.samples >= MIN_SAMPLES)
            .take(SITES)
            .collect();
        let pinned = pinned_per_s(look.facts);
        evidence.insert("memory_calls_per_s", rounded(calls.count as f64 / duration));
        evidence.insert("memory_call_bytes_per_s", rounded(calls.bytes as f64 / duration));
        evidence.insert(
            "mean_mmap_bytes",
            calls
                .mean_mapped_bytes()
                .map_or(json!(null), |mean| rounded(mean as f64)),
        );
        evidence.insert("pinned_allocations_per_s", rounded(pinned));
        evidence.insert("allocator_share_of_cpu", rounded(split.allocator));
        evidence.insert("fault_share_of_cpu", rounded(split.fault));
        evidence.insert("memory_calls_share_of_cpu", rounded(split.memory_calls));
        evidence.insert(
            "sites",
            sites
                .iter()
                .map(|site| {
                    let mut row = memory_growth::site(site);
                    if let Some(row) = row.as_object_mut() {
                        // What is given back is touched, not kept.
                        if let Some(bytes) = row.remove("kept_bytes_per_s") {
                            row.insert("touched_bytes_per_s".to_owned(), bytes);
                        }
                    }
                    row
                })
                .collect(),
        );
        if let Some(told) = device_memory::taken_again(look, evidence) {
            return told;
        }
        let python = doer.zip(pid).map_or_else(Vec::new, |(tid, pid)| {
            look.in_python(&[pid], Some(&churning(look.facts, tid)))
        });
        if !python.is_empty() {
            evidence.insert("python", python.iter().map(look::python).collect());
        }
        let mostly = python.first().filter(|place| place.share >= MOST);
        let asking = Asking::of(look.session, pid);
        asking.tell(look.session, pid, evidence);
        let mapped = split.fault + split.memory_calls > split.allocator;
        let touched = sites.first().map_or_else(String::new, |site| {
            format!(
                "; {} of the pages that are given back are first touched in {}",
                words::percent(site.share),
                site_name(site)
            )
        });
        // Who asks most often is not who costs most where pages are the cost.
        let (said, at) = if mapped {
            (touched, sites.first().map(site_name))
        } else {
            (asking.said(look.session), asking.place())
        };
        // What a job's own code can change is its own function.
        let own = sites.first().and_then(Site::function).filter(|_| mapped);
        let at = mostly.map(Place::name).or(own.map(function_name)).or(at);
        let mostly = mostly.map_or_else(String::new, |place| {
            format!("; {} of it in {}", words::percent(place.share), place.name())
        });
        let summary = format!(
            "{} in {}: {} of its CPU time in page faults, {} in {}, {} in the allocator{mostly}{said}",
            if doer.is_some_and(|tid| look.trainer.cast.producers.contains(&tid)) {
                "the producers' time goes"
            } else {
                "the trainer's time goes"
            },
            if mapped { "taking memory from the kernel and giving it back" } else { "allocating and freeing" },
            words::percent(split.fault),
            words::percent(split.memory_calls),
            if split.removing > 0.0 { "mmap, munmap and removing shared memory" } else { "mmap and munmap" },
            words::percent(split.allocator),
        );
        let advice = if mapped && is_kept(look.session, doer) {
            "see memory-growth: most of these pages are kept, and cost what they do because they are new; where they must be, huge pages take 512 times fewer faults (GLIBC_TUNABLES=glibc.malloc.hugetlb=1, or transparent_hugepage=always)".to_owned()
        } else {
            let kept = pid.filter(|_| mapped && pinned < 1.0).and_then(|pid| keeps(look.session, pid));
            let helps = kept.unwrap_or_else(|| advice(&split, &calls, pinned, duration, asking.is_small()));
            at.map_or_else(|| helps.to_owned(), |at| format!("in {at}: {helps}"))
        };
        (summary, advice)
    })
}

/// Whether most pages that a thread's process touched for the first time were still there at the end.
fn is_kept(session: &Session, doer: Option<u32>) -> bool {
    let Some(pid) = doer
        .and_then(|tid| session.thread(tid))
        .map(|thread| thread.pid)
    else {
        return false;
    };
    let faults: u64 = session
        .threads_of(pid)
        .filter_map(|thread| Some(thread.counters?.minor_faults))
        .sum();
    let grown = session
        .processes
        .get(&pid)
        .and_then(|process| process.rss.as_ref())
        .map_or(0, |rss| rss.last.saturating_sub(rss.first));
    grown as f64 >= KEPT * (faults * PAGE) as f64 && grown > 0
}

/// What other allocators than the C library's are told by, and how each is made to keep freed memory (jemalloc(3); gperftools'
/// docs/tcmalloc.html; mimalloc's readme).
const KEEPERS: [(&str, &str); 3] = [
    (
        "jemalloc",
        "reuse buffers, or let jemalloc, which this process uses, keep freed memory: MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1",
    ),
    (
        "tcmalloc",
        "reuse buffers, or let tcmalloc, which this process uses, keep freed memory: TCMALLOC_RELEASE_RATE=0 and TCMALLOC_AGGRESSIVE_DECOMMIT=0",
    ),
    (
        "mimalloc",
        "reuse buffers, or let mimalloc, which this process uses, keep freed memory: MIMALLOC_PURGE_DELAY=-1",
    ),
];

/// How such an allocator, where a process has one loaded, is made to keep freed memory.
fn keeps(session: &Session, pid: u32) -> Option<&'static str> {
    let loaded = session.processes.get(&pid)?.seen.frameworks.as_ref()?;
    let is_loaded = |name: &str| loaded.libraries.iter().any(|(library, _)| library == name);
    let keeper = KEEPERS.iter().find(|(name, _)| is_loaded(name));
    keeper.map(|(_, helps)| *helps)
}

/// What helps against the mechanism that takes most of the time.
fn advice(
    split: &Split,
    calls: &Calls,
    pinned_per_s: f64,
    duration: f64,
    small: Option<bool>,
) -> &'static str {
    let faults = split.fault + split.memory_calls;
    if split.removing > REMOVED * faults {
        return "keep segments of shared memory and use them again (a ring of them, made once) instead of a new one for each batch";
    }
    let given_back = (calls.maps + calls.brks) as f64 / duration >= MANY_CALLS;
    if pinned_per_s >= 1.0 {
        "keep pinned buffers and use them again (a pool, or the loader's pin_memory with few workers) instead of allocating them for each batch"
    } else if split.allocator >= faults && small == Some(true) {
        "make fewer small objects (one array or buffer instead of many, used again in the next step), or use jemalloc or tcmalloc, whose calls are cheaper"
    } else if split.allocator >= faults {
        "reuse buffers and make fewer temporaries (out= arguments, in-place operations), or use jemalloc or tcmalloc"
    } else if given_back && calls.brks > calls.maps {
        KEEP_HEAP
    } else if !given_back && split.fault >= FAULTS_ALONE * faults {
        "reuse buffers; where large ones must be new each time, huge pages take 512 times fewer faults (GLIBC_TUNABLES=glibc.malloc.hugetlb=1, or transparent_hugepage=always)"
    } else if calls.mean_mapped_bytes() > Some(LARGEST_THRESHOLD) {
        "reuse buffers (out= arguments, in-place operations): blocks of this size are mapped anew each time, whatever the thresholds of the C library (32 MiB at most); where they must be new, jemalloc keeps them, and huge pages take 512 times fewer faults (transparent_hugepage=always)"
    } else {
        KEEP_MAPPED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_mechanism() {
        let split = |fault: f64, memory_calls: f64, allocator: f64| Split {
            fault,
            memory_calls,
            allocator,
            ..Split::default()
        };
        let calls = |maps: u64, brks: u64| Calls {
            maps,
            brks,
            ..Calls::default()
        };
        let large = Calls {
            mapped_bytes: 900 * (48 << 20),
            ..calls(900, 0)
        };
        let none = None;
        let removing = Split {
            removing: 0.2,
            ..split(0.2, 0.3, 0.1)
        };
        for (split, calls, pinned, small, word) in [
            (split(0.4, 0.1, 0.1), large, 0.0, none, "32 MiB"),
            (
                split(0.1, 0.1, 0.5),
                calls(900, 0),
                0.0,
                none,
                "temporaries",
            ),
            (split(0.1, 0.1, 0.5), calls(9, 0), 0.0, Some(false), "out= "),
            (split(0.1, 0.1, 0.5), calls(9, 0), 0.0, Some(true), "small"),
            (
                split(0.4, 0.1, 0.1),
                calls(900, 0),
                0.0,
                Some(true),
                "MMAP_THRESHOLD",
            ),
            (split(0.4, 0.1, 0.1), calls(9, 900), 0.0, none, "TOP_PAD"),
            (split(0.5, 0.01, 0.1), calls(9, 0), 0.0, none, "huge pages"),
            (split(0.4, 0.1, 0.1), calls(900, 0), 9.0, none, "pinned"),
            (
                removing,
                calls(900, 0),
                0.0,
                none,
                "segments of shared memory",
            ),
        ] {
            let said = advice(&split, &calls, pinned, 10.0, small);
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}
