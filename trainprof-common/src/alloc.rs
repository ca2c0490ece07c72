//! What the probes on allocators share with user space. They are live in short windows only.

use crate::hist::SIZE_BUCKETS;

/// An argument that there is not.
pub const NO_ARG: u8 = 0xff;

/// What a probe's hit means, packed into the number that the kernel hands to it (`bpf_get_attach_cookie`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Our own number of the function.
    pub function: u8,
    /// Which argument, from 0, is the size in bytes, or [`NO_ARG`].
    pub size: u8,
    /// Which argument that has to be multiplied with, or [`NO_ARG`].
    pub times: u8,
    /// Which argument points to where the result is stored, or [`NO_ARG`] when it is returned.
    pub result: u8,
    /// Bits of [`Site`]'s constants.
    pub flags: u8,
}

impl Site {
    /// The kernel single-steps the instruction.
    pub const STEPS: u8 = 1;
    /// A call whose first argument is null ends in another function that is probed, and is counted there.
    pub const NOT_NULL: u8 = 2;
    /// The first argument is given back.
    pub const FREES: u8 = 4;

    pub const fn pack(self) -> u64 {
        self.function as u64
            | (self.size as u64) << 8
            | (self.times as u64) << 16
            | (self.result as u64) << 24
            | (self.flags as u64) << 32
    }

    pub const fn unpack(cookie: u64) -> Self {
        Self {
            function: cookie as u8,
            size: (cookie >> 8) as u8,
            times: (cookie >> 16) as u8,
            result: (cookie >> 24) as u8,
            flags: (cookie >> 32) as u8,
        }
    }
}

/// What the probes are to do; written by user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    /// Calls of one function by one thread after which the window closes by itself.
    pub max_calls: u64,
    /// Kernel time after which no further address is remembered.
    pub track_until: u64,
    /// 1 while hits are counted. The probes clear it after `max_calls`.
    pub open: u32,
    /// A stack is taken when these bits of a random number are 0; all bits: never.
    pub stack_mask: u32,
    /// 1: addresses are remembered from their allocation to their release.
    pub paired: u32,
    /// An address is remembered when these bits of its hash are 0.
    pub address_mask: u32,
    /// The half of the sums that is added to, 0 or 1: the other can be read meanwhile.
    pub half: u32,
    pub pad: u32,
}
crate::wire!(Window, 40);

/// Halves of the sums: see [`Window::half`].
pub const HALVES: usize = 2;

/// What the probes tell of a window as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WindowState {
    /// Kernel time at which `max_calls` were reached; 0: they were not.
    pub full_at: u64,
}
crate::wire!(WindowState, 8);

/// Indices of the counters of all hits, counted or not: what they cost depends on these kinds.
pub const HIT_EMULATED: u32 = 0;
pub const HIT_STEPPED: u32 = 1;
pub const HIT_RETURN: u32 = 2;
/// Addresses that could not be remembered, and stacks that could not be kept.
pub const LOST_ADDRESS: u32 = 3;
pub const LOST_CELL: u32 = 4;
/// Run time of the program at entries, nanoseconds, and in how many runs that was taken: some of those at which memory is
/// asked for and nothing beside the call is remembered.
pub const RUN_NS: u32 = 5;
pub const RUNS_TIMED: u32 = 6;
pub const HIT_COUNTERS: usize = 7;

/// Calls of one function by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CallsKey {
    /// The thread's process.
    pub tgid: u32,
    pub tid: u32,
    pub function: u16,
    /// See [`Window::half`].
    pub half: u16,
}
crate::wire!(CallsKey, 12);

/// Value of a [`CallsKey`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Calls {
    pub count: u64,
    pub bytes: u64,
    pub size: [u32; SIZE_BUCKETS],
}
crate::wire!(Calls, 16 + SIZE_BUCKETS * 4);

/// Where a sampled call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CallerKey {
    /// The address that the call returns to.
    pub caller: u64,
    /// Number of the stack in the kernel's table; negative: it could not be taken.
    pub stack: i32,
    pub tid: u32,
    pub function: u32,
    /// See [`Window::half`].
    pub half: u32,
}
crate::wire!(CallerKey, 24);

/// Value of a [`CallerKey`]: sampled calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Caller {
    pub count: u64,
    pub bytes: u64,
}
crate::wire!(Caller, 16);

/// An allocation under way, by thread.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pending {
    pub size: u64,
    /// Where the address will be stored; 0: it is returned.
    pub result: u64,
}
crate::wire!(Pending, 16);

/// Memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MemoryKey {
    pub address: u64,
    pub tgid: u32,
    pub pad: u32,
}
crate::wire!(MemoryKey, 16);

/// Memory that was allocated while it was remembered.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Allocated {
    /// Kernel time.
    pub at: u64,
    pub size: u64,
}
crate::wire!(Allocated, 16);

/// Nanoseconds below which memory was given back at once.
pub const QUICK_NS: u64 = 1_000_000;

/// Lifetimes of remembered memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Lifetimes {
    pub tracked: u64,
    pub tracked_bytes: u64,
    pub freed: u64,
    pub freed_bytes: u64,
    /// Within [`QUICK_NS`].
    pub quick: u64,
    pub quick_bytes: u64,
    /// By powers of two of nanoseconds, as [`crate::hist::size_bucket`] has them.
    pub ns: [u32; SIZE_BUCKETS],
}
crate::wire!(Lifetimes, 48 + SIZE_BUCKETS * 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_site_comes_back_whole() {
        let site = Site {
            function: 9,
            size: 2,
            times: NO_ARG,
            result: 0,
            flags: Site::STEPS | Site::FREES,
        };
        assert_eq!(Site::unpack(site.pack()), site);
    }
}
