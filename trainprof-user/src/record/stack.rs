//! Call stacks, and what was seen at them.

use serde::{Deserialize, Serialize};

use super::touch::PlaceClass;
use crate::time::KtimeNs;

/// A place in call stacks, kept once for all stacks that it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameFact {
    /// From 1 on.
    pub number: u32,
    /// File name of the mapped file, without its directory; `None` where no file is mapped.
    pub module: Option<String>,
    /// Where in that file, in bytes; without a file: the address. Of callers an address inside the call.
    pub offset: u64,
    /// As its programmer wrote it (demangled); `None` when no symbol was found.
    pub function: Option<String>,
    pub source: Option<SourceLine>,
    pub class: PlaceClass,
}

/// A line of a source file, as debugging information tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
}

/// A call stack, kept once for all that was seen at it. Its frames are recorded before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFact {
    /// From 1 on; 0 stands for a stack that is not known.
    pub number: u32,
    /// Numbers of [`FrameFact`]s, the innermost first.
    pub frames: Vec<u32>,
    /// It was followed to its beginning.
    pub whole: bool,
}

/// What kind of memory a page fault was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageKind {
    /// New memory of the process's own.
    Anonymous,
    /// A page of a file, or of memory that processes share.
    Shared,
    /// A write to a page that was shared until then, and is copied: after a fork, of a privately mapped file, or of
    /// memory that was read before it was written.
    CopyOnWrite,
    /// Gone again before it could be looked at.
    Unknown,
}

/// A page fault that was picked by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultFact {
    /// From 1 on, in the order in which they happened on each CPU.
    pub number: u32,
    pub at: KtimeNs,
    pub tid: u32,
    pub pid: u32,
    /// Faults that it stands for.
    pub faults: u32,
    pub kind: PageKind,
    /// In the kernel, on behalf of a system call that writes to user memory.
    pub in_kernel: bool,
    /// Number of a [`StackFact`]; 0: not known.
    pub stack: u32,
}

/// Pages of sampled faults that were found to be gone: given back since the fault. Those that are never named here
/// were still there whenever they were looked at, at last when their process ended or the watch did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesGone {
    pub at: KtimeNs,
    /// Numbers of [`FaultFact`]s.
    pub faults: Vec<u32>,
}

/// Sampled faults that brought in a huge page each (Documentation/admin-guide/mm/transhuge.rst), as far as the kernel tells: Linux 6.7
/// and newer do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Bytes of one.
    pub bytes: u64,
    /// Numbers of [`FaultFact`]s, which may be told later.
    pub faults: Vec<u32>,
}

/// How page faults are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSamplingFact {
    /// At most one of so many faults is looked at.
    pub period: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
}
