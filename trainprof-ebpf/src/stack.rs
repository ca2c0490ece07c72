//! Copies of threads' user stacks. Callers are found in user space, by unwinding tables.

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use trainprof_common::stack::{STACK_CHUNK, STACK_CHUNKS, UserStack};

/// Copies the stack from `sp` upwards, as far as it can be read.
///
/// # Safety
/// `to` may be written to.
#[inline(always)]
pub unsafe fn copy(ip: u64, sp: u64, bp: u64, to: *mut UserStack) {
    // SAFETY: as promised; the helper fails on what cannot be read.
    unsafe {
        (*to).ip = ip;
        (*to).sp = sp;
        (*to).bp = bp;
        (*to).pad = 0;
        let data = (&raw mut (*to).data).cast::<u8>();
        let mut chunks = 0;
        while chunks < STACK_CHUNKS {
            let at = chunks * STACK_CHUNK;
            if bpf_probe_read_user(
                data.add(at).cast(),
                STACK_CHUNK as u32,
                (sp + at as u64) as *const _,
            ) != 0
            {
                break;
            }
            chunks += 1;
        }
        (*to).bytes = (chunks * STACK_CHUNK) as u32;
    }
}
