//! Like calls of a thread that are not in their [`crate::cell::OpCell`] yet. They gather in a small table on each CPU; what
//! has no room there goes on into its cell, and user space adds the rest.

use crate::cell::OpKey;

/// Sets of a table, and entries of each.
pub const SETS: usize = 128;
pub const WAYS: usize = 4;

/// Calls of one thread that are the same operation on the same file set, with sizes of the same bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallRun {
    /// Thread, size bucket, class and operation: see [`CallRun::who`].
    pub who: u64,
    /// Device and file set: see [`CallRun::whence`].
    pub whence: u64,
    /// 0: there are none.
    pub count: u32,
    /// So many more of them are not looked at to be noted one by one, as long as the thread stays on this CPU: see
    /// [`CallRun::stay`].
    pub rest: u16,
    pub stay: u16,
    pub bytes: u64,
}
crate::wire!(CallRun, 32);

impl CallRun {
    #[inline(always)]
    pub const fn who(tid: u32, op: u8, class: u8, bucket: u8) -> u64 {
        (tid as u64) << 32 | (bucket as u64) << 16 | (class as u64) << 8 | op as u64
    }

    #[inline(always)]
    pub const fn whence(dev: u32, fileset: u32) -> u64 {
        (dev as u64) << 32 | fileset as u64
    }

    /// The cell that they go into.
    #[inline(always)]
    pub const fn key(&self) -> OpKey {
        OpKey {
            tid: self.tid(),
            fileset: self.whence as u32,
            dev: (self.whence >> 32) as u32,
            op: self.who as u8,
            class: (self.who >> 8) as u8,
            pad: 0,
        }
    }

    #[inline(always)]
    pub const fn tid(&self) -> u32 {
        (self.who >> 32) as u32
    }

    #[inline(always)]
    pub const fn bucket(&self) -> u8 {
        (self.who >> 16) as u8
    }

    /// Names one stay of a thread on a CPU, by its beginning (kernel time, ns): another one has another name, but for one in
    /// 65 536.
    #[inline(always)]
    pub const fn stay(since: u64) -> u16 {
        (since >> 10) as u16
    }

    /// Whether both are of the same kind of calls.
    #[inline(always)]
    pub const fn like(&self, other: &Self) -> bool {
        self.who == other.who && self.whence == other.whence
    }

    /// In which set of a table it belongs: multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4).
    #[inline(always)]
    pub const fn set(&self) -> usize {
        let mixed = self.whence.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ self.who.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        (mixed >> (u64::BITS - SETS.ilog2())) as usize
    }
}

/// A CPU's table.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RunTable {
    pub sets: [[CallRun; WAYS]; SETS],
}
crate::wire!(RunTable, 32 * WAYS * SETS);

#[cfg(test)]
mod tests {
    use super::{CallRun, SETS, WAYS};

    #[test]
    fn what_a_run_is_of_can_be_read_back() {
        let run = CallRun {
            who: CallRun::who(4711, 3, 9, 38),
            whence: CallRun::whence(0xfe00_0001, 77),
            ..CallRun::default()
        };
        let key = run.key();
        assert_eq!((key.tid, key.op, key.class), (4711, 3, 9));
        assert_eq!((key.dev, key.fileset, run.bucket()), (0xfe00_0001, 77, 38));
    }

    #[test]
    fn kinds_of_calls_spread_over_the_table() {
        let mut used = [0_usize; SETS];
        for tid in [4711, 4712] {
            for fileset in 1..=20 {
                for (op, bucket) in [(1, 8), (1, 9), (1, 10), (2, 8), (2, 9), (2, 10), (4, 0)] {
                    let run = CallRun {
                        who: CallRun::who(tid, op, 1, bucket),
                        // The low bits name the CPU that counted it.
                        whence: CallRun::whence(0xfe00_0000, fileset << 12),
                        ..CallRun::default()
                    };
                    used[run.set()] += 1;
                }
            }
        }
        let fit: usize = used.iter().map(|n| (*n).min(WAYS)).sum();
        assert!(fit >= 265, "{fit} of 280");
    }
}
