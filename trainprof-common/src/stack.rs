//! A piece of a thread's user stack: enough to find its callers without any help of the program's.

/// Bytes that are copied at once: where one piece cannot be read, those before it are kept.
pub const STACK_CHUNK: usize = 512;
/// Pieces that are copied at most.
pub const STACK_CHUNKS: usize = 16;
/// Bytes of stack at most.
pub const STACK_BYTES: usize = STACK_CHUNK * STACK_CHUNKS;

/// Registers and stack of a thread in user mode.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UserStack {
    /// Instruction, stack pointer, frame pointer.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// Bytes in `data` that are valid, from `sp` upwards.
    pub bytes: u32,
    pub pad: u32,
    pub data: [u8; STACK_BYTES],
}
crate::wire!(UserStack, 32 + STACK_BYTES);
