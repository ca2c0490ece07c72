//! What a thread's time on the CPU went into, from clock samples.

use trainprof_common::{
    arch,
    thread::{NR_FAULT, NR_PREEMPTED},
};

use super::{
    facts::Facts,
    spans::union,
    walk::{Walked, What},
};
use crate::{
    record::fact::{PlaceClass, SampleFact},
    session::{Session, Thread},
};

/// Stacks of Python are not taken at the same time as samples of the clock: one that is this near belongs to them.
const AROUND_NS: u64 = 10_000_000;
/// Fewer samples than this say nothing about a stretch.
const MIN_SAMPLES: usize = 25;

/// Shares (0–1) of time on the CPU; but for `interpreter` and `removing` they sum to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// User code that is none of the below.
    pub user: f64,
    /// Of `user`: the Python interpreter.
    pub interpreter: f64,
    /// Libraries that decode or decompress: images, sound, films, archives, columns.
    pub decoders: f64,
    /// The kernel, making processes and waiting for their end.
    pub processes: f64,
    /// Allocators: malloc family, Python's, the framework's for the GPU.
    pub allocator: f64,
    /// The kernel, handling page faults.
    pub fault: f64,
    /// The kernel, in mmap, munmap, brk, madvise, mremap, mprotect.
    pub memory_calls: f64,
    /// The kernel, in open, stat, close, getdents and the like.
    pub file_meta: f64,
    /// The kernel, in removing what has a path, by a thread that uses no files: the pages of shared memory are given back. Part of
    /// `memory_calls` then, and else of `file_meta`.
    pub removing: f64,
    /// The kernel, in read and the like.
    pub read: f64,
    /// The kernel, in write, fsync, rename and the like.
    pub write: f64,
    /// The kernel, in socket calls.
    pub socket: f64,
    /// The CUDA runtime and driver.
    pub gpu_driver: f64,
    /// The kernel, in other calls.
    pub other_calls: f64,
    /// Samples that this was taken from; 0: nothing is known, and all counts as `user`.
    pub samples: usize,
}

impl Split {
    /// Taking memory and giving it back.
    pub fn churn(&self) -> f64 {
        self.allocator + self.fault + self.memory_calls
    }

    /// Has a thread that uses no files remove shared memory.
    fn of_thread(mut self, thread: Option<&Thread>) -> Self {
        let uses_files = |thread: &Thread| {
            let activity = &thread.activity;
            activity.file_meta_calls > 0 || activity.file_write_bytes > 0
        };
        if thread.is_none_or(uses_files) {
            self.removing = 0.0;
        }
        self.file_meta -= self.removing;
        self.memory_calls += self.removing;
        self
    }

    /// Takes this part (0–1) of the running as page faults that samples show as the code that faulted.
    pub fn add_edges(&mut self, part: f64) {
        let code = self.user + self.decoders;
        if code <= 0.0 {
            return;
        }
        let moved = part.min(code);
        self.user -= moved * self.user / code;
        self.decoders -= moved * self.decoders / code;
        self.fault += moved;
    }
}

/// The part (0–1) of threads' running that is page faults and that samples show as the code that faulted: see
/// [`MemorySeen::edge_ns`](crate::session::memory::MemorySeen::edge_ns).
pub fn edges<'a>(session: &Session, threads: impl Iterator<Item = &'a Thread>) -> f64 {
    let (mut faults, mut run_ns) = (0, 0);
    for thread in threads {
        let counters = thread.counters.unwrap_or_default();
        faults += counters.minor_faults + counters.major_faults;
        run_ns += thread.run_ns;
    }
    (faults as f64 * session.memory.edge_ns / run_ns.max(1) as f64).min(1.0)
}

/// The split of a thread's running inside the given windows; from all its samples when there are too few inside.
pub fn split(facts: &Facts, tid: u32, windows: &[(u64, u64)]) -> Split {
    let all = facts.samples(tid);
    let mut inside = Vec::new();
    for (from, to) in windows {
        let first = all.partition_point(|sample| sample.at.0 < *from);
        inside.extend(all[first..].iter().take_while(|sample| sample.at.0 < *to));
    }
    let thread = || facts.session.thread(tid).into_iter();
    if inside.len() >= MIN_SAMPLES {
        let mut split = count(facts, inside.iter().copied()).of_thread(thread().next());
        if split.fault > 0.0 && facts.session.memory.edge_ns > 0.0 {
            let whole = count(facts, all.iter()).fault;
            split.add_edges(edges(facts.session, thread()) * split.fault / whole);
        }
        split
    } else if all.len() >= MIN_SAMPLES {
        let mut split = count(facts, all.iter()).of_thread(thread().next());
        split.add_edges(edges(facts.session, thread()));
        split
    } else {
        Split {
            user: 1.0,
            ..Split::default()
        }
    }
}

/// Around samples of a thread that took memory, gave it back or faulted it in: what else was going on then.
pub fn churning(facts: &Facts, tid: u32) -> Vec<(u64, u64)> {
    let samples = facts.samples(tid).iter();
    let churning = samples.filter(|sample| count(facts, [*sample].into_iter()).churn() > 0.0);
    let spans = churning.map(|sample| {
        (
            sample.at.0.saturating_sub(AROUND_NS),
            sample.at.0 + AROUND_NS,
        )
    });
    union(spans.collect())
}

/// Nanoseconds of a walk in which threads ran whose samples are too few to tell what they did.
pub fn unsampled(facts: &Facts, walked: &Walked) -> f64 {
    let run = walked.leaves.iter().filter(|(leaf, _)| match leaf.what {
        What::Run { tid } => facts.samples(tid).len() < MIN_SAMPLES,
        _ => false,
    });
    run.map(|(_, spent)| spent.ns).sum()
}

/// Share (0–1) of what can be walked that lies behind a thread's last sample.
pub fn behind_samples(facts: &Facts, tid: u32) -> f64 {
    let last = facts.samples(tid).last().map_or(0, |sample| sample.at.0);
    let behind = facts.spans.iter();
    let behind: u64 = behind
        .map(|(from, to)| to.saturating_sub((*from).max(last)))
        .sum();
    behind as f64 / facts.walkable_ns().max(1) as f64
}

fn count<'a>(facts: &Facts, samples: impl Iterator<Item = &'a SampleFact>) -> Split {
    split_of(facts.session, samples)
}

/// A look for work between two calls of sched_yield(2) takes about so much of the time of a call.
const LOOK: f64 = 0.4;

/// The share (0–1) of a thread's running that is spinning in sched_yield(2), by its samples.
pub fn yielding(samples: &[SampleFact]) -> f64 {
    let yields = samples
        .iter()
        .filter(|sample| arch::syscall_name(sample.nr) == Some("sched_yield"));
    let share = yields.count() as f64 / samples.len().max(1) as f64;
    (share * (1.0 + LOOK)).min(1.0)
}

/// The split of any samples.
pub fn split_of<'a>(session: &Session, samples: impl Iterator<Item = &'a SampleFact>) -> Split {
    let mut split = Split::default();
    for sample in samples {
        split.samples += 1;
        let class = session
            .places
            .get(&sample.place)
            .map_or(PlaceClass::Other, |place| place.class);
        if class == PlaceClass::Python && sample.nr != NR_FAULT {
            split.interpreter += 1.0;
        }
        if class == PlaceClass::Kernel && removes(sample.nr) {
            split.removing += 1.0;
        }
        let share = match (class, sample.nr) {
            (PlaceClass::Kernel, NR_FAULT) => &mut split.fault,
            // The driver's own work: taking memory of the GPU, say.
            (PlaceClass::Kernel, nr)
                if arch::syscall_name(nr) == Some("ioctl") && on_gpu(session, sample.tid) =>
            {
                &mut split.gpu_driver
            }
            (PlaceClass::Kernel, nr) => match call(nr) {
                Call::Meta => &mut split.file_meta,
                Call::Read => &mut split.read,
                Call::Write => &mut split.write,
                Call::Memory => &mut split.memory_calls,
                Call::Socket => &mut split.socket,
                Call::Process => &mut split.processes,
                Call::Other => &mut split.other_calls,
            },
            (PlaceClass::Malloc | PlaceClass::PyMalloc | PlaceClass::GpuAllocator, _) => {
                &mut split.allocator
            }
            (PlaceClass::GpuDriver, _) => &mut split.gpu_driver,
            (PlaceClass::Other | PlaceClass::Spinning | PlaceClass::Python, NR_FAULT) => {
                &mut split.fault
            }
            (PlaceClass::Other | PlaceClass::Spinning, _) if decodes(session, sample.place) => {
                &mut split.decoders
            }
            (PlaceClass::Other | PlaceClass::Spinning | PlaceClass::Python, _) => &mut split.user,
        };
        *share += 1.0;
    }
    let total = split.samples.max(1) as f64;
    for share in [
        &mut split.user,
        &mut split.interpreter,
        &mut split.decoders,
        &mut split.processes,
        &mut split.allocator,
        &mut split.fault,
        &mut split.memory_calls,
        &mut split.file_meta,
        &mut split.removing,
        &mut split.read,
        &mut split.write,
        &mut split.socket,
        &mut split.gpu_driver,
        &mut split.other_calls,
    ] {
        *share /= total;
    }
    split
}

/// Whether the driver lists a thread's process on a GPU.
fn on_gpu(session: &Session, tid: u32) -> bool {
    let pid = session.thread(tid).map(|thread| thread.pid);
    let mut listed = session.gpu.processes.keys();
    pid.is_some_and(|pid| listed.any(|(_, on)| *on == pid))
}

/// What a system call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Meta,
    Read,
    Write,
    Memory,
    Socket,
    Process,
    Other,
}

/// Whether a call waits for nothing but locks on files (fcntl_locking(2), flock(2)).
pub fn locks_files(nr: i16) -> bool {
    nr > NR_PREEMPTED && matches!(arch::syscall_name(nr), Some("fcntl" | "flock"))
}

/// Whether a call takes away a name: the last one of some shared memory gives that back.
fn removes(nr: i16) -> bool {
    nr >= 0 && matches!(arch::syscall_name(nr), Some("unlink" | "unlinkat"))
}

/// What system calls are for, by their names.
const CALLS: [(Call, &[&str]); 6] = [
    (
        Call::Meta,
        &[
            "open",
            "openat",
            "openat2",
            "creat",
            "close",
            "stat",
            "lstat",
            "fstat",
            "newfstatat",
            "statx",
            "access",
            "faccessat",
            "faccessat2",
            "readlink",
            "readlinkat",
            "getdents",
            "getdents64",
            "unlink",
            "unlinkat",
            "mkdir",
            "mkdirat",
            "rmdir",
            "lseek",
            "ioctl",
            "fcntl",
            "fadvise64",
            "statfs",
            "fstatfs",
            "getxattr",
            "lgetxattr",
            "fgetxattr",
        ],
    ),
    (
        Call::Read,
        &[
            "read",
            "pread64",
            "readv",
            "preadv",
            "preadv2",
            "sendfile",
            "splice",
            "copy_file_range",
            "readahead",
            "io_uring_enter",
            "io_submit",
            "io_getevents",
            "io_pgetevents",
        ],
    ),
    (
        Call::Write,
        &[
            "write",
            "pwrite64",
            "writev",
            "pwritev",
            "pwritev2",
            "fsync",
            "fdatasync",
            "sync_file_range",
            "msync",
            "sync",
            "syncfs",
            "rename",
            "renameat",
            "renameat2",
            "truncate",
            "ftruncate",
            "fallocate",
        ],
    ),
    (
        Call::Memory,
        &["mmap", "munmap", "brk", "madvise", "mremap", "mprotect"],
    ),
    (
        Call::Socket,
        &[
            "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "connect",
            "accept", "accept4",
        ],
    ),
    (
        Call::Process,
        &[
            "clone", "clone3", "fork", "vfork", "execve", "execveat", "wait4", "waitid",
        ],
    ),
];

/// What a system call is for, by its number.
pub fn call(nr: i16) -> Call {
    if nr <= NR_PREEMPTED {
        return Call::Other;
    }
    let name = arch::syscall_name(nr).unwrap_or("");
    let found = CALLS.iter().find(|(_, names)| names.contains(&name));
    found.map_or(Call::Other, |(call, _)| *call)
}

/// Beginnings of names of shared objects whose work is to decode, decompress or parse.
const DECODERS: [&str; 39] = [
    "libz.",
    "libz-",
    "libdeflate",
    "libzstd",
    "liblz4",
    "libsnappy",
    "libbrotli",
    "libbz2",
    "liblzma",
    "libjpeg",
    "libturbojpeg",
    "libpng",
    "libwebp",
    "libtiff",
    "libopenjp2",
    "libheif",
    "_imaging",
    "cv2",
    "libopencv",
    "libavcodec",
    "libavformat",
    "libswscale",
    "libsndfile",
    "libFLAC",
    "libarrow",
    "libparquet",
    "_json.",
    "_csv.",
    "orjson",
    "ujson",
    "simdjson",
    "tokenizers",
    "_sentencepiece",
    // pandas reads text, h5py and zarr inflate chunks.
    "parsers.",
    "pandas_parser.",
    "libhdf5",
    "blosc.",
    "libblosc",
    "numcodecs",
];

/// Whether a place lies in such a library.
pub fn decodes(session: &Session, place: u32) -> bool {
    session
        .places
        .get(&place)
        .and_then(|place| place.module.as_deref())
        .is_some_and(|module| DECODERS.iter().any(|name| module.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_are_told_by_name_have_a_number() {
        for name in CALLS.iter().flat_map(|(_, names)| *names) {
            assert!(crate::session::kind::has_number(name), "{name}");
        }
    }

    #[test]
    fn edges_come_from_the_code_that_faulted_and_no_further() {
        let mut split = Split {
            user: 0.3,
            decoders: 0.1,
            fault: 0.5,
            read: 0.1,
            ..Split::default()
        };
        split.add_edges(0.2);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} for {b}");
        close(split.user, 0.15);
        close(split.decoders, 0.05);
        close(split.fault, 0.7);
        // A kernel that counts more than samples bear out.
        split.add_edges(0.9);
        close(split.fault, 0.9);
        close(split.user + split.decoders, 0.0);
        close(split.read, 0.1);
        let mut none = Split::default();
        none.add_edges(0.5);
        assert_eq!(none, Split::default());
    }
}
