//! x86-64: `struct pt_regs` (arch/x86/include/asm/ptrace.h) and system-call numbers
//! (arch/x86/entry/syscalls/syscall_64.tbl).

use crate::op::{
    MAX_SYSCALLS, NO_ARG, Op, SyscallInfo, WaitOn,
    mark::{CLOSES_MANY, REPLACES, RING, SENDS, SLEEPS, YIELDS},
};

/// Byte offset in `struct pt_regs` of the system call's number; -1 there: not in a system call.
pub const REGS_SYSCALL: usize = 120;
/// Byte offsets of the six arguments of a system call: di, si, dx, r10, r8, r9.
pub const REGS_ARGS: [usize; 6] = [112, 104, 96, 56, 72, 64];
/// Byte offset of the instruction's address.
pub const REGS_IP: usize = 128;
/// Byte offset of what [`in_user_mode`] judges: the code segment's selector.
pub const REGS_MODE: usize = 136;

/// Whether registers are those of user mode: the selector's lowest two bits are the privilege level, 0 in the kernel.
#[inline(always)]
pub const fn in_user_mode(mode: u64) -> bool {
    mode & 3 != 0
}

/// Whether system calls made in this mode have other numbers and arguments than [`syscalls`] tells: those of 32-bit programs, whose code
/// segment is `__USER32_CS` (arch/x86/include/asm/segment.h).
#[inline(always)]
pub const fn is_foreign(mode: u64) -> bool {
    mode & 0xffff == 0x23
}

/// Tracepoints at ends and beginnings of interrupt handlers that only this processor's kernels have
/// (arch/x86/include/asm/trace/irq_vectors.h): those in which threads are woken. A probe of the same name counts each.
pub const HANDLERS: &[&str] = &[
    "call_function_single_exit",
    "call_function_single_entry",
    "irq_work_exit",
    "irq_work_entry",
];

/// `e_machine` of this architecture's ELF files (elf(5)).
pub const ELF_MACHINE: u16 = 62;
/// Byte offset of the frame pointer.
pub const REGS_FP: usize = 32;
/// Byte offset of the touched address in `struct bpf_perf_event_data`: behind the registers and the period.
pub const PERF_ADDRESS: usize = 176;
/// What compilers align functions to.
pub const FUNCTION_ALIGN: u64 = 16;

/// Where direct calls and jumps in code at `address` lead, with some that are none: the code is not decoded, every
/// byte that may begin a `call rel32` or `jmp rel32` counts.
pub fn branch_targets(code: &[u8], address: u64) -> impl Iterator<Item = u64> + '_ {
    code.windows(5).enumerate().filter_map(move |(at, bytes)| {
        let [0xe8 | 0xe9, a, b, c, d] = *bytes else {
            return None;
        };
        let next = address.wrapping_add(at as u64 + 5);
        Some(next.wrapping_add(i64::from(i32::from_le_bytes([a, b, c, d])) as u64))
    })
}
/// Byte offsets of the first six arguments of a function: di, si, dx, cx, r8, r9.
pub const REGS_CALL_ARGS: [usize; 6] = [112, 104, 96, 88, 72, 64];
/// Byte offset of the register that a function returns its result in.
pub const REGS_RESULT: usize = 80;
/// Byte offset of the stack pointer.
pub const REGS_SP: usize = 152;

/// A program has no address from here on, with four levels of page tables or five (Documentation/arch/x86/x86_64/mm.rst).
pub const USER_ADDRESSES: u64 = 1 << 56;
/// How far a function's return moves the stack pointer (0 where the return address is in a register).
pub const RETURN_ADDRESS_BYTES: usize = 8;

struct Row {
    nr: u16,
    name: &'static str,
    info: SyscallInfo,
}

#[allow(
    clippy::too_many_arguments,
    reason = "one positional row of the table below"
)]
const fn row(
    nr: u16,
    name: &'static str,
    op: Op,
    fd: u8,
    path: u8,
    fd2: u8,
    len: u8,
    at_flags: u8,
    on: WaitOn,
    marks: u8,
) -> Row {
    let info = SyscallInfo {
        op: op as u8,
        fd,
        path,
        fd2,
        len,
        at_flags,
        wait_on: on as u8,
        marks,
    };
    Row { nr, name, info }
}

const X: u8 = NO_ARG;

/// Calls that are counted, wait on something that has a name, or deserve their name in a report.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    //  nr   name                 counted as    fd path fd2 len at  waits on           marks
    row(  0, "read",            Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(  1, "write",           Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row(  2, "open",            Op::Open,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row(  3, "close",           Op::Close,     0, X, X, X, X, WaitOn::Descriptor,  0),
    row(  4, "stat",            Op::Stat,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row(  5, "fstat",           Op::Stat,      0, X, X, X, X, WaitOn::Nothing,     0),
    row(  6, "lstat",           Op::Stat,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row(  7, "poll",            Op::None,      X, X, X, X, X, WaitOn::PollSet,     SLEEPS),
    row(  8, "lseek",           Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(  9, "mmap",            Op::Mmap,      4, X, X, 1, X, WaitOn::Nothing,     0),
    row( 10, "mprotect",        Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 11, "munmap",          Op::Munmap,    X, X, X, 1, X, WaitOn::Nothing,     0),
    row( 12, "brk",             Op::Brk,       X, X, X, X, X, WaitOn::Nothing,     0),
    row( 16, "ioctl",           Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 17, "pread64",         Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 18, "pwrite64",        Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row( 19, "readv",           Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 20, "writev",          Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row( 21, "access",          Op::Stat,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 23, "select",          Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row( 24, "sched_yield",     Op::None,      X, X, X, X, X, WaitOn::Nothing,     YIELDS),
    row( 25, "mremap",          Op::Mremap,    X, X, X, 2, X, WaitOn::Nothing,     0),
    row( 26, "msync",           Op::Fsync,     X, X, X, X, X, WaitOn::Nothing,     0),
    row( 28, "madvise",         Op::Madvise,   X, X, X, 1, X, WaitOn::Nothing,     0),
    row( 33, "dup2",            Op::None,      X, X, X, X, X, WaitOn::Nothing,     REPLACES),
    row( 34, "pause",           Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row( 35, "nanosleep",       Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row( 40, "sendfile",        Op::Copy,      1, X, 0, X, X, WaitOn::Descriptor,  SENDS),
    row( 42, "connect",         Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 43, "accept",          Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 44, "sendto",          Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row( 45, "recvfrom",        Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 46, "sendmsg",         Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row( 47, "recvmsg",         Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 56, "clone",           Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 57, "fork",            Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 58, "vfork",           Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 59, "execve",          Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 60, "exit",            Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 61, "wait4",           Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row( 65, "semop",           Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row( 72, "fcntl",           Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 73, "flock",           Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 74, "fsync",           Op::Fsync,     0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 75, "fdatasync",       Op::Fsync,     0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 76, "truncate",        Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row( 77, "ftruncate",       Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 78, "getdents",        Op::Getdents,  0, X, X, X, X, WaitOn::Descriptor,  0),
    row( 82, "rename",          Op::Rename,    X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 83, "mkdir",           Op::Unlink,    X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 84, "rmdir",           Op::Unlink,    X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 85, "creat",           Op::Open,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 87, "unlink",          Op::Unlink,    X, 0, X, X, X, WaitOn::Nothing,     0),
    row( 89, "readlink",        Op::Stat,      X, 0, X, X, X, WaitOn::Nothing,     0),
    row(128, "rt_sigtimedwait", Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(130, "rt_sigsuspend",   Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(137, "statfs",          Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(138, "fstatfs",         Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(162, "sync",            Op::Fsync,     X, X, X, X, X, WaitOn::Nothing,     0),
    row(187, "readahead",       Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(191, "getxattr",        Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(192, "lgetxattr",       Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(193, "fgetxattr",       Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(202, "futex",           Op::None,      X, X, X, X, X, WaitOn::Address,     SLEEPS),
    row(208, "io_getevents",    Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(209, "io_submit",       Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(217, "getdents64",      Op::Getdents,  0, X, X, X, X, WaitOn::Descriptor,  0),
    row(220, "semtimedop",      Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(221, "fadvise64",       Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(230, "clock_nanosleep", Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(231, "exit_group",      Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(232, "epoll_wait",      Op::None,      0, X, X, X, X, WaitOn::Descriptor,  SLEEPS),
    row(247, "waitid",          Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(257, "openat",          Op::Open,      X, 1, X, X, X, WaitOn::Nothing,     0),
    row(258, "mkdirat",         Op::Unlink,    X, 1, X, X, X, WaitOn::Nothing,     0),
    row(262, "newfstatat",      Op::Stat,      0, 1, X, X, 3, WaitOn::Nothing,     0),
    row(263, "unlinkat",        Op::Unlink,    X, 1, X, X, X, WaitOn::Nothing,     0),
    row(264, "renameat",        Op::Rename,    X, 1, X, X, X, WaitOn::Nothing,     0),
    row(267, "readlinkat",      Op::Stat,      X, 1, X, X, X, WaitOn::Nothing,     0),
    row(269, "faccessat",       Op::Stat,      X, 1, X, X, X, WaitOn::Nothing,     0),
    row(270, "pselect6",        Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(271, "ppoll",           Op::None,      X, X, X, X, X, WaitOn::PollSet,     SLEEPS),
    row(275, "splice",          Op::Copy,      0, X, 2, X, X, WaitOn::Descriptor,  SENDS),
    row(277, "sync_file_range", Op::Fsync,     0, X, X, X, X, WaitOn::Descriptor,  0),
    row(281, "epoll_pwait",     Op::None,      0, X, X, X, X, WaitOn::Descriptor,  SLEEPS),
    row(285, "fallocate",       Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(288, "accept4",         Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(292, "dup3",            Op::None,      X, X, X, X, X, WaitOn::Nothing,     REPLACES),
    row(295, "preadv",          Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(296, "pwritev",         Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row(299, "recvmmsg",        Op::None,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(306, "syncfs",          Op::Fsync,     0, X, X, X, X, WaitOn::Descriptor,  0),
    row(307, "sendmmsg",        Op::None,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row(316, "renameat2",       Op::Rename,    X, 1, X, X, X, WaitOn::Nothing,     0),
    row(322, "execveat",        Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(326, "copy_file_range", Op::Copy,      0, X, 2, X, X, WaitOn::Descriptor,  0),
    row(327, "preadv2",         Op::Read,      0, X, X, X, X, WaitOn::Descriptor,  0),
    row(328, "pwritev2",        Op::Write,     0, X, X, X, X, WaitOn::Descriptor,  SENDS),
    row(332, "statx",           Op::Stat,      0, 1, X, X, 2, WaitOn::Nothing,     0),
    row(333, "io_pgetevents",   Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(425, "io_uring_setup",  Op::None,      X, X, X, X, X, WaitOn::Nothing,     RING),
    row(426, "io_uring_enter",  Op::None,      0, X, X, X, X, WaitOn::Descriptor,  RING),
    row(435, "clone3",          Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(436, "close_range",     Op::None,      X, X, X, X, X, WaitOn::Nothing,     CLOSES_MANY),
    row(437, "openat2",         Op::Open,      X, 1, X, X, X, WaitOn::Nothing,     0),
    row(439, "faccessat2",      Op::Stat,      0, 1, X, X, 3, WaitOn::Nothing,     0),
    row(441, "epoll_pwait2",    Op::None,      0, X, X, X, X, WaitOn::Descriptor,  SLEEPS),
    row(449, "futex_waitv",     Op::None,      X, X, X, X, X, WaitOn::Nothing,     SLEEPS),
    row(454, "futex_wake",      Op::None,      X, X, X, X, X, WaitOn::Nothing,     0),
    row(455, "futex_wait",      Op::None,      X, X, X, X, X, WaitOn::Address,     SLEEPS),
];

/// The table that the probes look system calls up in.
pub fn syscalls() -> [SyscallInfo; MAX_SYSCALLS] {
    let mut table = [SyscallInfo::IGNORED; MAX_SYSCALLS];
    for row in TABLE {
        table[row.nr as usize] = row.info;
    }
    table
}

/// Name of a system call, for the calls that reports name.
pub fn syscall_name(nr: i16) -> Option<&'static str> {
    TABLE
        .iter()
        .find(|row| row.nr as i16 == nr)
        .map(|row| row.name)
}
