//! What a followed thread does to files and memory, and to which class of object.

/// An operation that is counted. The numbers are part of the wire format: add, never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Not counted.
    None = 0,
    /// open, openat, openat2, creat.
    Open = 1,
    /// read, pread64, readv, preadv, preadv2, recv family on sockets.
    Read = 2,
    /// write, pwrite64, writev, pwritev, pwritev2, send family on sockets.
    Write = 3,
    Close = 4,
    /// stat, lstat, fstat, newfstatat, statx, access, faccessat, faccessat2, readlink, readlinkat.
    Stat = 5,
    /// getdents, getdents64.
    Getdents = 6,
    /// mmap: of a file when the object's class says so, else anonymous.
    Mmap = 7,
    /// fsync, fdatasync, sync_file_range, msync, sync, syncfs.
    Fsync = 8,
    /// rename, renameat, renameat2.
    Rename = 9,
    /// The source side of sendfile, copy_file_range, splice.
    Copy = 10,
    /// The target side of the same calls.
    CopyOut = 11,
    /// A major page fault on a mapped file.
    Fault = 12,
    /// Page-cache pages added on behalf of a thread that reads: bytes that were not in the cache.
    Fill = 13,
    Munmap = 14,
    Brk = 15,
    Madvise = 16,
    Mremap = 17,
    /// unlink, unlinkat, mkdir, mkdirat, rmdir.
    Unlink = 18,
    /// An io_uring read, counted at its completion.
    UringRead = 19,
    /// An io_uring write, counted at its completion.
    UringWrite = 20,
    /// Page-cache pages added on behalf of a page fault.
    FaultFill = 21,
}

impl Op {
    /// Whether operations of this number are counted at the end of system calls.
    pub const fn is_call(number: u8) -> bool {
        const ELSEWHERE: [Op; 6] = [
            Op::None,
            Op::Fault,
            Op::Fill,
            Op::UringRead,
            Op::UringWrite,
            Op::FaultFill,
        ];
        let mut n = 0;
        while n < ELSEWHERE.len() {
            if ELSEWHERE[n].number() == number {
                return false;
            }
            n += 1;
        }
        true
    }

    /// Its number in the wire format.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Every operation, by its number.
    pub const ALL: [Self; 22] = [
        Self::None,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Close,
        Self::Stat,
        Self::Getdents,
        Self::Mmap,
        Self::Fsync,
        Self::Rename,
        Self::Copy,
        Self::CopyOut,
        Self::Fault,
        Self::Fill,
        Self::Munmap,
        Self::Brk,
        Self::Madvise,
        Self::Mremap,
        Self::Unlink,
        Self::UringRead,
        Self::UringWrite,
        Self::FaultFill,
    ];
}

impl TryFrom<u8> for Op {
    type Error = u8;

    fn try_from(n: u8) -> Result<Self, u8> {
        Self::ALL.get(n as usize).copied().ok_or(n)
    }
}

/// The class of the object behind a descriptor, from its inode's mode and its file system's magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Not resolved, or no object at all.
    Unknown = 0,
    /// A regular file on a file system that keeps data.
    File = 1,
    Directory = 2,
    Pipe = 3,
    Socket = 4,
    /// A regular file on tmpfs: shared memory or a staged file; user space tells them apart by the mount.
    Tmpfs = 5,
    /// procfs, sysfs, cgroup and other file systems that the kernel makes up.
    Proc = 6,
    /// A character or block device.
    Device = 7,
    /// An anonymous inode: eventfd, epoll, timerfd, io_uring and so on.
    Anon = 8,
    /// Memory without a file.
    Memory = 9,
}

impl Class {
    /// Every class, by its number.
    pub const ALL: [Self; 10] = [
        Self::Unknown,
        Self::File,
        Self::Directory,
        Self::Pipe,
        Self::Socket,
        Self::Tmpfs,
        Self::Proc,
        Self::Device,
        Self::Anon,
        Self::Memory,
    ];
}

impl TryFrom<u8> for Class {
    type Error = u8;

    fn try_from(n: u8) -> Result<Self, u8> {
        Self::ALL.get(n as usize).copied().ok_or(n)
    }
}

/// Which argument of a system call holds something; 0–5, or [`NO_ARG`].
pub const NO_ARG: u8 = 0xff;

/// What a blocked system call waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitOn {
    /// Nothing that can be named: sleep, pause, wait for a child.
    Nothing = 0,
    /// The descriptor in argument `fd`.
    Descriptor = 1,
    /// The address in argument 0 (futex).
    Address = 2,
    /// The first entry of the pollfd array in argument 0.
    PollSet = 3,
}

/// How a system call is accounted: one entry of the table that user space fills for its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SyscallInfo {
    /// [`Op`] number; 0: the call itself is not counted.
    pub op: u8,
    /// Argument with the descriptor, or [`NO_ARG`].
    pub fd: u8,
    /// Argument with a path, or [`NO_ARG`].
    pub path: u8,
    /// Argument with a second descriptor (target of a copy), or [`NO_ARG`].
    pub fd2: u8,
    /// Argument with a length in bytes that counts as the call's bytes, or [`NO_ARG`]: then a
    /// non-negative result of reads, writes and copies counts.
    pub len: u8,
    /// Argument with AT_* flags, or [`NO_ARG`].
    pub at_flags: u8,
    /// [`WaitOn`] number.
    pub wait_on: u8,
    /// Bits of [`mark`].
    pub marks: u8,
}
crate::wire!(SyscallInfo, 8);

impl SyscallInfo {
    /// As a word, in which the probes keep it.
    pub const fn word(self) -> u64 {
        u64::from_ne_bytes([
            self.op,
            self.fd,
            self.path,
            self.fd2,
            self.len,
            self.at_flags,
            self.wait_on,
            self.marks,
        ])
    }

    /// A call that is neither counted nor waits on something that has a name.
    pub const IGNORED: Self = Self {
        op: 0,
        fd: NO_ARG,
        path: NO_ARG,
        fd2: NO_ARG,
        len: NO_ARG,
        at_flags: NO_ARG,
        wait_on: 0,
        marks: 0,
    };
}

/// What else is particular to a call: bits of [`SyscallInfo::marks`].
pub mod mark {
    /// It sends to its descriptor: a wake-up in softirq context inside it is its own doing.
    pub const SENDS: u8 = 1;
    /// It makes the descriptor in argument 1 refer to something else.
    pub const REPLACES: u8 = 2;
    /// It closes descriptors that its arguments do not name one by one.
    pub const CLOSES_MANY: u8 = 4;
    /// It has descriptors opened and closed without a call for each.
    pub const RING: u8 = 8;
    /// A thread makes it because it has nothing to do, and again and again.
    pub const YIELDS: u8 = 16;
    /// What it waits for itself, a signal can end (`TASK_INTERRUPTIBLE`): a sleep that none can is something else's.
    pub const SLEEPS: u8 = 32;
    /// Any of those after which a descriptor may refer to something else.
    pub const CHANGES_DESCRIPTORS: u8 = REPLACES | CLOSES_MANY | RING;
}

/// System-call numbers below this are looked up; x86-64 and arm64 end below 500.
pub const MAX_SYSCALLS: usize = 512;
