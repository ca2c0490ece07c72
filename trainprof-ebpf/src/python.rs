//! The code that is on the stack of a Python program's thread, for the few events that a stack is taken for.

use aya_ebpf::helpers::bpf_probe_read_user;
use trainprof_common::python::{NOT_BEHIND, PY_FRAMES, PyFrames, PyThread};

use crate::maps::PY_THREADS;

/// Follows the current thread's frames, as far as they can be read. What user space knows of the thread may be out of date:
/// whatever is found is an address that may not be one of code.
///
/// # Safety
/// `to` may be written to.
#[inline(always)]
pub unsafe fn copy(tid: u32, to: *mut PyFrames) {
    // SAFETY: as promised; `count` stays below the length of `codes`, and the helper fails on what cannot be read.
    unsafe {
        (*to).pad = 0;
        let mut count = 0;
        if let Some(thread) = PY_THREADS.get(tid)
            && let Some(mut frame) = innermost(thread)
        {
            while count < PY_FRAMES && frame != 0 {
                let Some(code) = word(frame, thread.code) else {
                    break;
                };
                (*to).codes[count] = code;
                count += 1;
                let Some(caller) = word(frame, thread.caller) else {
                    break;
                };
                frame = caller;
            }
        }
        (*to).count = count as u32;
    }
}

/// Hash of the calls by which the current thread came to where it is: the code of each of its frames, and where in it that is. 0 where
/// they cannot be read.
#[inline(always)]
pub fn path(tid: u32) -> u64 {
    let mut hash = 0;
    // SAFETY: copied out at once; user space alone writes it.
    if let Some(thread) = unsafe { PY_THREADS.get(tid) }
        && let Some(mut frame) = innermost(thread)
    {
        for _ in 0..PY_FRAMES {
            if frame == 0 {
                break;
            }
            // One after the other, each with its own way out: where the compiler joins them, Linux 6.1 follows one that there is not, on
            // which the hash is whatever was in its register before.
            let Some(code) = word(frame, thread.code) else {
                break;
            };
            let Some(position) = word(frame, thread.position) else {
                break;
            };
            let Some(caller) = word(frame, thread.caller) else {
                break;
            };
            hash = mixed(mixed(hash, code), position);
            frame = caller;
        }
    }
    hash
}

/// FNV-1a, a word at a time.
#[inline(always)]
const fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

#[inline(always)]
fn innermost(thread: &PyThread) -> Option<u64> {
    let frame = word(thread.frame, 0)?;
    if thread.behind == NOT_BEHIND || frame == 0 {
        Some(frame)
    } else {
        word(frame, thread.behind)
    }
}

#[inline(always)]
fn word(base: u64, offset: u32) -> Option<u64> {
    // SAFETY: the helper fails where nothing can be read.
    unsafe { bpf_probe_read_user((base + u64::from(offset)) as *const u64).ok() }
}
