//! Wire types of trainprof's kernel probes and its collector.
//!
//! Everything here crosses the border between kernel and user space: fixed-width integers, explicit
//! padding, sizes asserted at compile time. There are no file names and no thresholds here: what is
//! slow or bad is decided in user space, later.
#![no_std]

pub mod alloc;
pub mod arch;
pub mod cell;
pub mod event;
pub mod fileset;
pub mod gpu;
pub mod hist;
pub mod loss;
pub mod offsets;
pub mod op;
pub mod python;
pub mod run;
pub mod stack;
pub mod thread;
pub mod touch;

/// Implemented by types that may be copied to and from the kernel byte by byte.
///
/// # Safety
/// The type is `repr(C)`, consists of integers and arrays of integers alone, and has no implicit padding.
pub unsafe trait Wire: Copy + 'static {}

// SAFETY: an integer.
unsafe impl Wire for u32 {}

/// Asserts a wire type's size at compile time and marks it as [`Wire`].
#[macro_export]
macro_rules! wire {
    ($type:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$type>() == $size);
        // SAFETY: integers only, and the size above leaves no room for implicit padding.
        unsafe impl $crate::Wire for $type {}
    };
}
