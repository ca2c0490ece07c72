//! Memory that grows: which process's, of which kind, at which calls it is kept, and how long it can go on.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    python::{self, is_own},
    rules::growth::{Growth, line, steady_growth},
    words,
};
use crate::{
    record::fact::{FrameFact, PageKind, PlaceClass, ProcessSample, PyFunctionFact},
    session::{SeenFault, Session},
};

/// Slower growth than this (bytes a second) takes days to matter.
const MIN_SLOPE: f64 = 64.0 * 1024.0;
/// Growth in a watch below this share of what is resident may be noise of it, as long as it is no more than so many bytes.
const MIN_OF_RESIDENT: f64 = 0.01;
const MOST_NOISE: f64 = 64e6;
/// Samples of a process's memory, one a second, that tell whether it grows.
const ENOUGH_SAMPLES: usize = 10;
/// Samples of a process that tell how fast it copies pages.
const MIN_SAMPLES: usize = 12;
/// Growth is copying when mapped files left at this share of its pace.
const COPIED: f64 = 0.6;
/// Copying goes on when each third of the later half of a watch sees it at this share of that half's pace; points that show it.
const GOES_ON: f64 = 0.4;
const MIN_POINTS: usize = 8;
/// Callers of a function without a name that may stand for it: beyond these they have little to do with it.
const CALLERS: usize = 6;
/// A page must have been there this long (s) to count as kept.
const KEPT_S: f64 = 2.0;

/// Which of a process's memory grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Anonymous,
    Shared,
}

impl Which {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Shared => "shared",
        }
    }

    /// Bytes of it in a sample. What was swapped out was anonymous.
    pub fn bytes(self, sample: &ProcessSample) -> u64 {
        match self {
            Self::Anonymous => sample.anon_bytes + sample.swap_bytes,
            Self::Shared => sample.shmem_bytes,
        }
    }
}

/// A process whose memory grows steadily.
#[derive(Clone, Copy, Debug)]
pub struct Grower {
    pub pid: u32,
    pub which: Which,
    pub growth: Growth,
    /// The pages were its kin's: written, and so copied.
    pub copied: bool,
}

/// Processes whose memory grows steadily, the fastest first; `None` when none was seen for long enough.
pub fn growers(session: &Session) -> Option<Vec<Grower>> {
    let start = session.start.as_ref()?;
    let mut enough = false;
    let mut out = Vec::new();
    for (pid, series) in &session.host.processes {
        enough |= series.len() >= ENOUGH_SAMPLES;
        for which in [Which::Anonymous, Which::Shared] {
            let points: Vec<(f64, f64)> = series
                .iter()
                .map(|s| (s.at.seconds_since(start.at), which.bytes(s) as f64))
                .collect();
            let resident = series
                .last()
                .map_or(0, |s| s.anon_bytes + s.shmem_bytes + s.file_bytes);
            if let Some(growth) = steady_growth(&points)
                && growth.slope >= MIN_SLOPE
                && growth.slope * session.duration_s()
                    >= (MIN_OF_RESIDENT * resident as f64).min(MOST_NOISE)
            {
                out.push(Grower {
                    pid: *pid,
                    which,
                    growth,
                    copied: which == Which::Anonymous
                        && has_kin(session, *pid)
                        && gave_way(series, &growth),
                });
            }
        }
    }
    add_copiers(&mut out, session, steady_growth);
    out.sort_by(|a, b| b.growth.slope.total_cmp(&a.growth.slope));
    enough.then_some(out)
}

/// Growth of the mapped files that a process has in memory: 0 where they do not grow steadily; `None`: too little was seen. It is no
/// alarm by itself: these pages give way.
pub fn file_growth(session: &Session, pid: u32) -> Option<f64> {
    let start = session.start.as_ref()?;
    let series = session.host.processes.get(&pid)?;
    let points: Vec<(f64, f64)> = series
        .iter()
        .map(|s| (s.at.seconds_since(start.at), s.file_bytes as f64))
        .collect();
    (points.len() >= ENOUGH_SAMPLES)
        .then(|| steady_growth(&points).map_or(0.0, |growth| growth.slope))
}

/// Processes that make pages of their kin their own, the fastest first: also where that slows down, since each page is copied once.
/// `None` when none was seen for long enough.
pub fn copiers(session: &Session) -> Option<Vec<Grower>> {
    let mut out: Vec<Grower> = growers(session)?
        .into_iter()
        .filter(|grower| grower.copied)
        .collect();
    add_copiers(&mut out, session, goes_on);
    out.sort_by(|a, b| b.growth.slope.total_cmp(&a.growth.slope));
    Some(out)
}

/// Growth in the later half of a series, where the last third still grows at a fair share of that pace.
fn goes_on(points: &[(f64, f64)]) -> Option<Growth> {
    if points.len() < MIN_POINTS {
        return None;
    }
    let later = &points[points.len() / 2..];
    let half = line(later)?;
    // In each part of it: a burst is over at once.
    let parts = later.windows(later.len() / 3 + 1).step_by(later.len() / 3);
    let evenly = parts
        .filter_map(line)
        .all(|part| part.slope >= GOES_ON * half.slope);
    (half.slope > half.margin && evenly).then_some(half)
}

/// Adds the processes whose copies grow. A forked process's pages count as resident from the beginning, so its size tells
/// nothing of it: the copies themselves do, second by second.
fn add_copiers(
    out: &mut Vec<Grower>,
    session: &Session,
    growth_of: fn(&[(f64, f64)]) -> Option<Growth>,
) {
    let known: BTreeSet<u32> = out.iter().filter(|g| g.copied).map(|g| g.pid).collect();
    for (pid, copies) in copies(session) {
        if known.contains(&pid)
            || copies.samples < MIN_SAMPLES
            || !has_kin(session, pid)
            || forks(session, pid)
        {
            continue;
        }
        let Some(mut growth) = growth_of(&copies.points).filter(|g| g.slope >= MIN_SLOPE) else {
            continue;
        };
        let seconds = copies.points.last().map_or(1.0, |(second, _)| *second);
        growth.margin = growth.margin.max(2.0 * copies.squares.sqrt() / seconds);
        out.push(Grower {
            pid,
            which: Which::Anonymous,
            growth,
            copied: true,
        });
    }
}

/// Points in time of a process at most.
const MOST_POINTS: usize = 2_048;

/// What a process has made its own of its kin's pages.
#[derive(Default)]
struct Copies {
    /// Seconds, and bytes until then.
    points: Vec<(f64, f64)>,
    /// Squares of what each sample stands for, in bytes, and samples.
    squares: f64,
    samples: usize,
}

/// By process.
fn copies(session: &Session) -> BTreeMap<u32, Copies> {
    let (Some(start), Some(sampling)) = (&session.start, &session.memory.sampling) else {
        return BTreeMap::new();
    };
    let page = f64::from(sampling.page_bytes);
    let watched = session.duration_s() as usize;
    let each = watched.div_ceil(MOST_POINTS).max(1);
    let mut out = BTreeMap::<u32, Copies>::new();
    for fault in session.memory.faults.values() {
        if fault.fact.kind == PageKind::CopyOnWrite && fault.gone.is_none() {
            let copies = out.entry(fault.fact.pid).or_insert_with(|| Copies {
                points: (1..=watched / each)
                    .map(|n| ((n * each) as f64, 0.0))
                    .collect(),
                ..Copies::default()
            });
            let bytes = fault.bytes(page);
            copies.squares += bytes * bytes;
            copies.samples += 1;
            let second = fault.fact.at.seconds_since(start.at) as usize;
            if let Some(point) = copies.points.get_mut(second / each) {
                point.1 += bytes;
            }
        }
    }
    for copies in out.values_mut() {
        let mut sum = 0.0;
        for point in &mut copies.points {
            sum += point.1;
            point.1 = sum;
        }
    }
    out
}

/// Whether there is a process that it can share private pages with: its parent, or a child. Without one, writes to shared
/// pages are first writes to memory that was only read before.
fn has_kin(session: &Session, pid: u32) -> bool {
    session
        .processes
        .get(&pid)
        .is_some_and(|process| session.processes.contains_key(&process.parent))
        || session
            .processes
            .values()
            .any(|process| process.parent == pid)
}

/// Whether a process makes children. Each fork has its pages copied anew when it writes them, and what was copied before is given
/// back when that child ends: nothing grows.
fn forks(session: &Session, pid: u32) -> bool {
    let Some(start) = &session.start else {
        return false;
    };
    let children = session.processes.values();
    let mut born = children.filter(|child| child.parent == pid && child.since > start.at);
    born.next().is_some()
}

/// Whether mapped files left a process as fast as its own memory grew: pages of a private map of a file that were written, and so
/// copied. (Pages that a fork shares with its kin count as its own from the beginning: copying them leaves it as large as it was.)
fn gave_way(series: &[ProcessSample], growth: &Growth) -> bool {
    let (Some(first), Some(last)) = (series.first(), series.last()) else {
        return false;
    };
    let seconds = last.at.seconds_since(first.at);
    let left = first.file_bytes.saturating_sub(last.file_bytes) as f64;
    left >= COPIED * growth.slope * seconds
}

/// Where the warm-up is over, and where pages are too young to be called kept; seconds.
pub(super) fn kept_window(session: &Session) -> (f64, f64) {
    let length = session.duration_s();
    (length / 5.0, (length - KEPT_S).max(length / 5.0))
}

/// Sampled faults whose pages were kept.
fn kept_faults(session: &Session) -> impl Iterator<Item = &SeenFault> {
    let window = kept_window(session);
    let start = session.start.as_ref().map(|start| start.at);
    session.memory.faults.values().filter(move |fault| {
        let at = start.map_or(0.0, |start| fault.fact.at.seconds_since(start));
        fault.gone.is_none()
            && fault.fact.kind != PageKind::Unknown
            && (window.0..window.1).contains(&at)
    })
}

/// A place in the program where memory is first touched that is then kept.
#[derive(Clone, Debug)]
pub struct Site {
    pub frame: FrameFact,
    /// The stack that led to most of it, the innermost frame first.
    pub stack: Vec<FrameFact>,
    /// Functions of Python on it, the innermost first; empty where that is not known, or no Python.
    pub python: Vec<PyFunctionFact>,
    pub bytes_per_s: f64,
    /// 95 % confidence, from the number of samples: ± this.
    pub error_bytes_per_s: f64,
    /// Of all that is kept by the processes that were asked for.
    pub share: f64,
    pub samples: usize,
}

impl Site {
    /// The function of Python that a reader can do something about: the innermost one of the job's own.
    pub fn function(&self) -> Option<&PyFunctionFact> {
        own(self.python.iter())
    }
}

/// Where new memory is kept, the largest first; of some processes, or of all.
pub fn kept_sites(
    session: &Session,
    pids: Option<&BTreeSet<u32>>,
    kinds: &[PageKind],
) -> Vec<Site> {
    let window = kept_window(session);
    let faults = kept_faults(session).filter(|fault| {
        pids.is_none_or(|pids| pids.contains(&fault.fact.pid)) && kinds.contains(&fault.fact.kind)
    });
    sites(session, faults, window.1 - window.0)
}

/// Whether page faults tell what is kept: they were sampled, and for longer than a page must be there.
pub fn tells_kept(session: &Session) -> bool {
    let window = kept_window(session);
    session.memory.sampling.is_some() && window.1 > window.0
}

/// Where memory is first touched that is soon given back, the largest first; of one process.
pub fn churn_sites(session: &Session, pid: u32) -> Vec<Site> {
    let faults = session.memory.faults.values().filter(|fault| {
        fault.fact.pid == pid
            && (fault.fact.kind == PageKind::Unknown
                || fault.fact.kind == PageKind::Anonymous && fault.gone.is_some())
    });
    sites(session, faults, session.duration_s())
}

/// Faults by the frame that is responsible for them, over so many seconds.
fn sites<'a>(
    session: &Session,
    faults: impl Iterator<Item = &'a SeenFault>,
    seconds: f64,
) -> Vec<Site> {
    let page = session
        .memory
        .sampling
        .map_or(0.0, |sampling| f64::from(sampling.page_bytes));
    let seconds = seconds.max(1e-9);
    let mut all = 0.0;
    // By stack, and Python's: bytes, their squares, samples.
    let mut stacks = BTreeMap::<(u32, Option<u32>), (f64, f64, usize)>::new();
    for fault in faults {
        let bytes = fault.bytes(page);
        all += bytes;
        let of = (fault.fact.stack, fault.python);
        let sum = stacks.entry(of).or_default();
        sum.0 += bytes;
        sum.1 += bytes * bytes;
        sum.2 += 1;
    }
    struct Sum {
        bytes: f64,
        squares: f64,
        samples: usize,
        best: (f64, u32, Option<u32>),
        frame: FrameFact,
    }
    let mut by_frame = BTreeMap::<(Option<&str>, Option<&str>, Option<(&str, &str)>), Sum>::new();
    for ((number, python), (bytes, squares, samples)) in stacks {
        let Some(frame) = responsible(session, number) else {
            continue;
        };
        let function = own(functions(session, python));
        // Places without a name in one library are one: an address tells a reader nothing.
        let sum = by_frame
            .entry((
                frame.module.as_deref(),
                frame.function.as_deref(),
                function.map(|function| (function.file.as_str(), function.name.as_str())),
            ))
            .or_insert_with(|| Sum {
                bytes: 0.0,
                squares: 0.0,
                samples: 0,
                best: (0.0, 0, None),
                frame: frame.clone(),
            });
        sum.bytes += bytes;
        sum.squares += squares;
        sum.samples += samples;
        if bytes > sum.best.0 {
            sum.best = (bytes, number, python);
            sum.frame = frame.clone();
        }
    }
    let mut out: Vec<Site> = by_frame
        .into_values()
        .map(|sum| Site {
            frame: sum.frame,
            stack: frames(session, sum.best.1).cloned().collect(),
            python: functions(session, sum.best.2).cloned().collect(),
            bytes_per_s: sum.bytes / seconds,
            error_bytes_per_s: 2.0 * sum.squares.sqrt() / seconds,
            share: sum.bytes / all,
            samples: sum.samples,
        })
        .collect();
    out.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    out
}

/// Functions of Python on a stack, the innermost first.
pub(super) fn functions(
    session: &Session,
    stack: Option<u32>,
) -> impl Iterator<Item = &PyFunctionFact> {
    let python = &session.python;
    let numbers = stack.and_then(|stack| python.stacks.get(&stack));
    let numbers = numbers.into_iter().flatten();
    numbers.filter_map(|number| python.functions.get(number))
}

/// The innermost of them that is the job's own, or else the innermost one.
pub(super) fn own<'f>(
    functions: impl Iterator<Item = &'f PyFunctionFact>,
) -> Option<&'f PyFunctionFact> {
    let mut functions = functions.peekable();
    let first = functions.peek().copied();
    functions.find(|function| is_own(&function.file)).or(first)
}

/// Frames of a stack, the innermost first.
pub fn frames(session: &Session, stack: u32) -> impl Iterator<Item = &FrameFact> {
    session
        .memory
        .stacks
        .get(&stack)
        .into_iter()
        .flat_map(|stack| &stack.frames)
        .filter_map(|number| session.memory.frames.get(number))
}

/// The frame of a stack that a reader can do something about: the first outside allocators and the C library, or
/// where that has no name one of its next callers that has, but for the interpreter, which calls everything; the innermost one when
/// all are inside.
pub fn responsible(session: &Session, stack: u32) -> Option<&FrameFact> {
    let mut outside = frames(session, stack).filter(|frame| !is_plumbing(frame));
    let first = outside.next();
    first
        .filter(|frame| frame.function.is_some())
        .or_else(|| {
            let mut callers = outside.take(CALLERS);
            callers.find(|frame| frame.function.is_some() && frame.class != PlaceClass::Python)
        })
        .or(first)
        .or_else(|| frames(session, stack).next())
}

/// Allocators, and libraries that do what they are told with the memory that they are given.
fn is_plumbing(frame: &FrameFact) -> bool {
    const LIBRARIES: [&str; 9] = [
        "libc.so",
        "libc-2.",
        "libc.musl",
        "ld-linux",
        "ld-musl",
        "libpthread",
        "libstdc++.so",
        "libm.so",
        "[vdso]",
    ];
    matches!(
        frame.class,
        PlaceClass::Malloc | PlaceClass::PyMalloc | PlaceClass::GpuAllocator
    ) || frame.function.as_deref().is_some_and(fills_memory)
        || frame
            .module
            .as_deref()
            .is_none_or(|module| LIBRARIES.iter().any(|library| module.starts_with(library)))
}

/// Functions of the C library that write where they are told to, also in programs that it is linked into.
fn fills_memory(function: &str) -> bool {
    const FUNCTIONS: [&str; 8] = [
        "memset", "memcpy", "memmove", "mempcpy", "memccpy", "bzero", "strcpy", "strncpy",
    ];
    let name = function.trim_start_matches('_');
    FUNCTIONS.iter().any(|known| {
        name.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    })
}

/// A frame as people read it.
pub fn name(frame: &FrameFact) -> String {
    let module = frame.module.as_deref().unwrap_or("?");
    match &frame.function {
        Some(function) => format!("{} ({module})", words::function(function)),
        None => format!("{module}+{:#x}", frame.offset),
    }
}

/// A call site as people read it: of a library without names of functions that library.
pub fn site_name(site: &Site) -> String {
    let native = native_name(site);
    match site.function() {
        Some(function) => format!("{}, through {native}", python::function_name(function)),
        None => native,
    }
}

fn native_name(site: &Site) -> String {
    match (&site.frame.function, &site.frame.module) {
        (None, Some(module)) => module.clone(),
        (None, None) => "code that is in no file".to_owned(),
        _ => name(&site.frame),
    }
}

/// Bytes a second that the job's memory grows by. Memory that processes share grows once.
pub fn growth_bytes_per_s(growers: &[Grower]) -> f64 {
    let own: f64 = growers
        .iter()
        .filter(|grower| grower.which == Which::Anonymous)
        .map(|grower| grower.growth.slope)
        .sum();
    let shared = growers
        .iter()
        .filter(|grower| grower.which == Which::Shared)
        .map(|grower| grower.growth.slope)
        .fold(0.0, f64::max);
    own + shared
}
