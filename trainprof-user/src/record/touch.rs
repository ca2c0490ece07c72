//! Facts about what threads did with the CPU and with descriptors, one by one.

use serde::{Deserialize, Serialize};

use super::fact::ObjectFact;
use crate::time::KtimeNs;

/// A system call that succeeded, of a process whose calls are noted one by one: open, read, write and copy on
/// descriptors, mmap and munmap, reads and writes through io_uring.
///
/// Calls of a thread on the same object that follow each other closely are noted once, and a thread's notes
/// in all are limited: `skipped` says how many calls were left out since the last one that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchFact {
    pub tid: u32,
    /// When it returned.
    pub at: KtimeNs,
    /// [`trainprof_common::op::Op`] number.
    pub op: u8,
    pub object: ObjectFact,
    /// Bytes moved.
    pub bytes: u64,
    pub skipped: u32,
}

/// A look at what a thread was doing on the CPU, taken by a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleFact {
    pub tid: u32,
    pub at: KtimeNs,
    /// Number of a [`PlaceFact`].
    pub place: u32,
    /// The system call that it was in, [`trainprof_common::thread::NR_FAULT`] in a page fault,
    /// `NR_PREEMPTED` in user mode.
    pub nr: i16,
}

/// How often clock samples are taken on each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplingFact {
    pub hz: u32,
}

/// A place in a program, kept once for all samples in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceFact {
    pub number: u32,
    /// File name of the mapped file, without its directory; `None` in the kernel and where nothing is mapped.
    pub module: Option<String>,
    /// `None` when no symbol was found.
    pub function: Option<String>,
    pub class: PlaceClass,
}

/// What the code at a place is for, as far as its module and symbol tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PlaceClass {
    /// Nothing of the below.
    Other,
    /// malloc family of libc, jemalloc, tcmalloc, mimalloc, operator new and delete.
    Malloc,
    /// Python's object allocator.
    PyMalloc,
    /// Allocators of a framework that serve the GPU.
    GpuAllocator,
    /// Inside the CUDA runtime or driver.
    GpuDriver,
    /// The Python interpreter.
    Python,
    /// The kernel, in a system call or a page fault: the sample's `nr` says which.
    Kernel,
    /// A loop that waits for somebody else without giving the CPU up: it has the processor's instruction for that (PAUSE of x86).
    Spinning,
}
