//! Where the functions on a Python thread's stack are found, and what was found there.

/// Frames that are followed at most, the innermost ones.
pub const PY_FRAMES: usize = 32;
/// [`PyThread::behind`]: the thread's state points to the frame itself.
pub const NOT_BEHIND: u32 = u32::MAX;

/// How to get from a thread of a Python program to its frames. Offsets in bytes, of this program's version of Python.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PyThread {
    /// Address of the word that points to the innermost frame.
    pub frame: u64,
    /// Where that word points to something else: of that, the frame.
    pub behind: u32,
    /// Of a frame: its caller, its code, and where in the code it is.
    pub caller: u32,
    pub code: u32,
    pub position: u32,
}
crate::wire!(PyThread, 24);

/// Addresses of the code that is on a thread's stack, as the program's memory says; the innermost first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PyFrames {
    /// Of `codes` that are valid; 0: not a thread whose frames can be found.
    pub count: u32,
    pub pad: u32,
    pub codes: [u64; PY_FRAMES],
}
crate::wire!(PyFrames, 8 + 8 * PY_FRAMES);
