//! Calls of chosen processes, noted one by one: what a training loop does again and again in each step.

use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_ktime_get_ns};
use trainprof_common::{
    event::{Kind, TouchEvent},
    loss::Loss,
    op::{Class, Op},
    run::CallRun,
    thread::{Object, ThreadState},
    touch::{LENGTH_BYTES, TOUCH_SLOTS, TouchSlot, TouchState},
};

use crate::{
    account::Done,
    emit,
    maps::{Control, TOUCHES, control, touched},
};

/// So many notes may follow each other at once. Where calls are more than what may be noted, those on pipes come before all others: batches
/// are handed over there.
const BURST: u64 = 256;
const BURST_OF_PIPES: u64 = 4 * BURST;

/// Operations that are noted, by number.
const NOTED: u32 = bit(Op::Open)
    | bit(Op::Read)
    | bit(Op::Write)
    | bit(Op::Copy)
    | bit(Op::CopyOut)
    | bit(Op::Mmap)
    | bit(Op::Munmap)
    | bit(Op::Brk)
    | bit(Op::Mremap)
    | bit(Op::UringRead)
    | bit(Op::UringWrite);

const fn bit(op: Op) -> u32 {
    1 << op.number()
}

/// Notes a finished operation of the current thread when its process is one of the chosen. `run`: the run of like calls that
/// it joined.
#[inline(always)]
pub fn note(state: &mut ThreadState, run: Option<&mut CallRun>, done: &Done, object: &Object) {
    if !touched(state.tgid) || !noted(done, object) {
        return;
    }
    let mut run = run.filter(|_| object.fileset != 0);
    let stay = CallRun::stay(state.since);
    if let Some(run) = &mut run
        && run.rest != 0
        && run.stay == stay
    {
        run.rest -= 1;
        state.passed += 1;
        return;
    }
    let passed = state.passed.min(u32::from(u16::MAX)) as u16;
    state.passed = 0;
    let rest = send(done, object, passed);
    if let Some(run) = run {
        (run.rest, run.stay) = (rest as u16, stay);
    }
}

/// Notes an operation that finished elsewhere.
#[inline(always)]
pub fn note_of(tgid: u32, done: &Done, object: &Object) {
    if touched(tgid) && noted(done, object) {
        send(done, object, 0);
    }
}

#[inline(always)]
fn noted(done: &Done, object: &Object) -> bool {
    !done.failed
        && NOTED >> (done.op & 31) & 1 != 0
        && object.class != Class::Unknown as u32
        && object.class != Class::Proc as u32
}

/// Gives how many like calls may be passed over without a look at the clock.
#[inline(always)]
fn send(done: &Done, object: &Object, passed: u16) -> u32 {
    touch(
        u64::from(done.tid) << 32
            | u64::from(passed) << 16
            | u64::from(done.op) << 8
            | u64::from(object.class as u8),
        object.id,
        u64::from(object.dev) << 32 | u64::from(object.fileset),
        done.bytes,
        done.at,
    )
}

/// Like calls are passed over as if each came so many nanoseconds after the one before (a power of two), but not more
/// than [`Control::MOST_PASSED`] in a row.
const EACH_NS: u32 = 12;

// A global function: the verifier looks at it once. `who` is thread, calls that were passed over, operation and class,
// `whence` device and file set.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn touch(who: u64, id: u64, whence: u64, bytes: u64, at: u64) -> u32 {
    let tid = (who >> 32) as u32;
    let (op, class) = ((who >> 8) as u8 as u32, who as u8 as u32);
    let passed = (who >> 16) as u16 as u32;
    let fileset = whence as u32;
    let at = if at == 0 {
        // SAFETY: clock helper.
        unsafe { bpf_ktime_get_ns() }
    } else {
        at
    };
    let mut state = TOUCHES.get_ptr_mut(tid);
    if state.is_none() {
        let _ = TOUCHES.insert(tid, &TouchState::default(), u64::from(BPF_NOEXIST));
        state = TOUCHES.get_ptr_mut(tid);
    }
    let Some(state) = state else {
        emit::lost(Loss::TouchesFull);
        return 0;
    };
    // SAFETY: written by this thread's own probes; completions of io_uring on another CPU may take an
    // update away, which at worst notes one call more or less.
    let state = unsafe { &mut *state };
    let mut kind = TouchSlot {
        at,
        id: if fileset != 0 { u64::from(fileset) } else { id },
        op,
        class,
        bytes: bytes.min(u64::from(u32::MAX)) as u32,
        pad: 0,
    };
    let mut found = TOUCH_SLOTS;
    for (n, slot) in state.slots.iter().enumerate() {
        if slot.at != 0 && slot.id == kind.id && slot.op == op && slot.class == class {
            found = n;
        }
    }
    state.skipped = state.skipped.saturating_add(passed);
    // From when on a call of this kind, and any call, may be noted.
    let mut next = 0;
    let mut length_at = 0;
    if found < TOUCH_SLOTS {
        let slot = &state.slots[found & (TOUCH_SLOTS - 1)];
        next = slot.at + control(Control::TOUCH_GAP_NS);
        let is_length = bytes <= LENGTH_BYTES;
        if at < next && of_messages(slot) && is_length != (u64::from(slot.bytes) <= LENGTH_BYTES) {
            // What comes right after its length tells what kind of message it is, and a length after that begins another one.
            if is_length {
                next = 0;
            } else {
                length_at = slot.at;
            }
        }
    }
    let spacing = control(Control::TOUCH_SPACING_NS);
    let burst = if class == Class::Pipe as u32 {
        BURST_OF_PIPES
    } else {
        BURST
    };
    next = next.max(state.spent.saturating_sub(spacing * burst));
    if length_at != 0 {
        kind.at = length_at;
    } else if at < next {
        state.skipped = state.skipped.saturating_add(1);
        return ((next - at) >> EACH_NS).min(control(Control::MOST_PASSED)) as u32;
    } else {
        state.spent = state.spent.max(at) + spacing;
    }
    if found == TOUCH_SLOTS {
        found = state.next as usize;
        state.next = state.next.wrapping_add(1);
    }
    state.slots[found & (TOUCH_SLOTS - 1)] = kind;
    let event = TouchEvent {
        kind: Kind::Touch as u32,
        tid,
        at,
        object: Object {
            id,
            dev: (whence >> 32) as u32,
            fileset,
            class,
            pad: 0,
        },
        bytes,
        op,
        skipped: state.skipped,
    };
    state.skipped = 0;
    emit::event(&event);
    0
}

/// Reads on a pipe may be of messages that begin with their lengths.
#[inline(always)]
fn of_messages(slot: &TouchSlot) -> bool {
    slot.op == u32::from(Op::Read.number()) && slot.class == Class::Pipe as u32
}

/// A thread has ended.
#[inline(always)]
pub fn forget(tid: u32) {
    let _ = TOUCHES.remove(tid);
}
