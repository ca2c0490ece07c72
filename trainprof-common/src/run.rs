//! Like calls of a thread that are not in their [`crate::cell::OpCell`] yet. They gather in small tables on each CPU, which
//! lie near in its caches as the large tables of cells do not; what has no room there goes on into its cell, and user space
//! adds the rest.

use crate::{
    cell::{HistCell, HistKey, OpCell, OpKey},
    hist::COARSE_BUCKETS,
};

/// Tables of runs on a CPU: the kernel allows no larger one than 32 KiB.
pub const BANKS: usize = 4;
/// Sets of a table, and entries of each.
pub const SETS: usize = 64;
pub const WAYS: usize = 4;

/// Calls of one thread that are the same operation on the same file set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallRun {
    /// Thread, class and operation: see [`CallRun::who`].
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
    /// Nanoseconds of those that were timed.
    pub ns: u64,
    /// How many of them took how long, a byte for each coarse bucket: see [`CallRun::MOST`].
    pub latency: [u64; LATENCY_WORDS],
}
crate::wire!(CallRun, 40 + LATENCY_WORDS * 8);

/// Words of a run's latencies, and bytes in each.
pub const LATENCY_WORDS: usize = COARSE_BUCKETS / LANES;
const LANES: usize = 8;

impl CallRun {
    pub const EMPTY: Self = Self {
        who: 0,
        whence: 0,
        count: 0,
        rest: 0,
        stay: 0,
        bytes: 0,
        ns: 0,
        latency: [0; LATENCY_WORDS],
    };

    /// A run has no more calls than a byte can count.
    pub const MOST: u32 = 255;

    /// Counts the latency of one more of its calls; `bucket`: of [`crate::hist::latency_bucket`].
    #[inline(always)]
    pub fn took(&mut self, bucket: u32) {
        let coarse = bucket as usize / 2;
        self.latency[coarse / LANES % LATENCY_WORDS] += 1 << (coarse % LANES * 8);
    }

    /// Adds what it counted to a cell.
    #[inline(always)]
    pub fn add_to(&self, cell: &mut OpCell) {
        cell.count += self.count as u64;
        cell.bytes += self.bytes;
        cell.ns += self.ns;
        for (word, counts) in self
            .latency
            .iter()
            .zip(cell.latency.as_chunks_mut::<LANES>().0)
        {
            if *word != 0 {
                for (lane, count) in counts.iter_mut().enumerate() {
                    *count += (*word >> (lane * 8)) as u32 & 0xff;
                }
            }
        }
    }

    #[inline(always)]
    pub const fn who(tid: u32, op: u8, class: u8) -> u64 {
        (tid as u64) << 32 | (class as u64) << 8 | op as u64
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

    /// Names one stay of a thread on a CPU, by its beginning (kernel time, ns): another one has another name, but for one in
    /// 65 536.
    #[inline(always)]
    pub const fn stay(since: u64) -> u16 {
        (since >> 10) as u16
    }

    /// In which table a run belongs, and in which set of that.
    #[inline(always)]
    pub const fn place(who: u64, whence: u64) -> (usize, usize) {
        let place = mixed(who, whence, (SETS * BANKS).ilog2());
        (place / SETS, place % SETS)
    }
}

/// So many bits out of two words: multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4).
#[inline(always)]
const fn mixed(who: u64, whence: u64, bits: u32) -> usize {
    let mixed =
        whence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ who.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed >> (u64::BITS - bits)) as usize
}

/// One of a CPU's tables.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RunTable {
    pub sets: [[CallRun; WAYS]; SETS],
}
crate::wire!(RunTable, size_of::<CallRun>() * WAYS * SETS);

/// Sets of a table of [`HistRun`]s, and entries of each.
pub const HIST_SETS: usize = 16;
pub const HIST_WAYS: usize = 2;

/// Latencies and sizes of calls of one thread that are the same operation on the same file system.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HistRun {
    /// As in [`CallRun`]; 0: there are none.
    pub who: u64,
    pub dev: u32,
    pub pad: u32,
    pub cell: HistCell,
}
crate::wire!(HistRun, 16 + size_of::<HistCell>());

impl HistRun {
    pub const EMPTY: Self = Self {
        who: 0,
        dev: 0,
        pad: 0,
        cell: HistCell::EMPTY,
    };

    /// The cell that they go into.
    #[inline(always)]
    pub const fn key(&self) -> HistKey {
        Self::key_of(self.who, self.dev)
    }

    #[inline(always)]
    pub const fn key_of(who: u64, dev: u32) -> HistKey {
        HistKey {
            tid: (who >> 32) as u32,
            dev,
            op: who as u8,
            class: (who >> 8) as u8,
            pad: 0,
        }
    }

    /// In which set of a table it belongs.
    #[inline(always)]
    pub const fn set(who: u64, dev: u32) -> usize {
        mixed(who, dev as u64, HIST_SETS.ilog2())
    }
}

/// A CPU's table of latencies and sizes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HistTable {
    pub sets: [[HistRun; HIST_WAYS]; HIST_SETS],
}
crate::wire!(HistTable, size_of::<HistRun>() * HIST_WAYS * HIST_SETS);

#[cfg(test)]
mod tests {
    use super::{BANKS, CallRun, HIST_SETS, HIST_WAYS, HistRun, SETS, WAYS};
    use crate::cell::OpCell;

    #[test]
    fn what_a_run_is_of_can_be_read_back() {
        let run = CallRun {
            who: CallRun::who(4711, 3, 9),
            whence: CallRun::whence(0xfe00_0001, 77),
            ..CallRun::default()
        };
        let key = run.key();
        assert_eq!((key.tid, key.op, key.class), (4711, 3, 9));
        assert_eq!((key.dev, key.fileset), (0xfe00_0001, 77));
    }

    #[test]
    fn latencies_of_a_run_get_into_its_cell() {
        let mut run = CallRun::EMPTY;
        for _ in 0..CallRun::MOST {
            run.count += 1;
            run.took(17);
        }
        let mut cell = OpCell::EMPTY;
        run.add_to(&mut cell);
        let mut run = CallRun {
            count: 3,
            ..CallRun::EMPTY
        };
        for bucket in [0, 16, 127] {
            run.took(bucket);
        }
        run.add_to(&mut cell);
        assert_eq!(cell.count, 258);
        let told = (0..).zip(cell.latency).filter(|(_, n)| *n > 0);
        assert!(told.eq([(0, 1), (8, 256), (63, 1)]), "{:?}", cell.latency);
    }

    #[test]
    fn kinds_of_calls_spread_over_the_tables() {
        let mut used = [0_usize; BANKS * SETS];
        // Two loaders that take their turns on a CPU, with pictures in a hundred directories.
        for tid in [4711, 4712] {
            for fileset in 1..=100 {
                for op in [1, 2, 4, 5] {
                    // The low bits name the CPU that counted it.
                    let whence = CallRun::whence(0xfe00_0000, fileset << 12);
                    let (bank, set) = CallRun::place(CallRun::who(tid, op, 1), whence);
                    used[bank * SETS + set] += 1;
                }
            }
        }
        let fit: usize = used.iter().map(|n| (*n).min(WAYS)).sum();
        assert!(fit >= 680, "{fit} of 800");
    }

    #[test]
    fn histograms_spread_over_their_table() {
        let mut used = [0_usize; HIST_SETS];
        for tid in [4711, 4712] {
            for (op, class) in [
                (1, 1),
                (2, 1),
                (4, 1),
                (5, 1),
                (2, 3),
                (3, 3),
                (7, 4),
                (14, 4),
            ] {
                used[HistRun::set(CallRun::who(tid, op, class), 0xfe00_0000)] += 1;
            }
        }
        let fit: usize = used.iter().map(|n| (*n).min(HIST_WAYS)).sum();
        assert!(fit >= 12, "{fit} of 16");
    }
}
