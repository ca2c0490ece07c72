//! What is kept for a thread whose calls are noted one by one, so that a busy one is noted seldom.

/// Kinds of calls that are told apart; older ones give way.
pub const TOUCH_SLOTS: usize = 4;

/// The last call of one kind that was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TouchSlot {
    /// Kernel time of its return; 0: the slot is empty.
    pub at: u64,
    /// What it was on: file set of a file, inode number of anything else.
    pub id: u64,
    /// [`crate::op::Op`] number.
    pub op: u32,
    /// [`crate::op::Class`] number.
    pub class: u32,
    /// How much it moved, as far as that fits.
    pub bytes: u32,
    pub pad: u32,
}
crate::wire!(TouchSlot, 32);

/// A message on a pipe may begin with its length, which takes no more than this (Python's `multiprocessing.connection`: 4 or 12 bytes).
pub const LENGTH_BYTES: u64 = 16;

/// Calls of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TouchState {
    pub slots: [TouchSlot; TOUCH_SLOTS],
    /// Kernel time up to which the notes of this thread have used up their allowance.
    pub spent: u64,
    /// Calls that were not noted since the last one that was.
    pub skipped: u32,
    /// Slot to use next.
    pub next: u32,
}
crate::wire!(TouchState, 32 * TOUCH_SLOTS + 16);

/// Processes whose calls are noted: one flag for all process ids with the same lower 16 bits.
pub const TOUCHED: usize = 1 << 16;
