//! Reasons for which a fact was lost in the kernel. Loss is counted, never silent.

/// One reason. The numbers are indices into the kernel's loss counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// The ring buffer had no room for an event.
    RingFull = 0,
    /// The table of followed threads was full: a new thread is not followed.
    ThreadsFull = 1,
    /// The table of operations was full: the operation is not counted.
    OpCellsFull = 2,
    /// Not used any more.
    Unused = 3,
    /// The table of waits was full.
    WaitCellsFull = 4,
    /// The table of file sets was full: the operation is counted without a directory.
    FilesetsFull = 5,
    /// A system call's exit without its entry.
    UnmatchedExit = 6,
    /// A switch of a thread was not shown by the kernel, and its account of CPU time could not fill the gap.
    UnmatchedSwitch = 7,
    /// A descriptor could not be resolved to an object.
    UnresolvedFd = 8,
    /// The table of ended threads was full.
    EndedFull = 9,
    /// The table of io_uring requests in flight was full.
    UringFull = 10,
    /// The table of threads whose calls are noted was full: a call was not noted.
    TouchesFull = 11,
    /// The table of GPU calls under way was full.
    GpuCallsFull = 12,
    /// Answers of the GPU's driver were not taken in time. Counted in user space.
    GpuAnswers = 13,
    /// A system call's entry without its exit: the call is not counted.
    UnmatchedEntry = 14,
    /// The kernel did not run a probe. Counted by the kernel, and read in user space.
    ProbeMissed = 15,
}

impl Loss {
    /// Every reason, by its number.
    pub const ALL: [Self; 16] = [
        Self::RingFull,
        Self::ThreadsFull,
        Self::OpCellsFull,
        Self::Unused,
        Self::WaitCellsFull,
        Self::FilesetsFull,
        Self::UnmatchedExit,
        Self::UnmatchedSwitch,
        Self::UnresolvedFd,
        Self::EndedFull,
        Self::UringFull,
        Self::TouchesFull,
        Self::GpuCallsFull,
        Self::GpuAnswers,
        Self::UnmatchedEntry,
        Self::ProbeMissed,
    ];
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring-full",
            Self::ThreadsFull => "threads-full",
            Self::OpCellsFull => "op-cells-full",
            Self::Unused => "unused",
            Self::WaitCellsFull => "wait-cells-full",
            Self::FilesetsFull => "filesets-full",
            Self::UnmatchedExit => "unmatched-exit",
            Self::UnmatchedSwitch => "unmatched-switch",
            Self::UnresolvedFd => "unresolved-descriptor",
            Self::EndedFull => "ended-full",
            Self::UringFull => "io-uring-full",
            Self::TouchesFull => "touches-full",
            Self::GpuCallsFull => "gpu-calls-full",
            Self::GpuAnswers => "gpu-answers",
            Self::UnmatchedEntry => "unmatched-entry",
            Self::ProbeMissed => "probe-missed",
        }
    }
}
