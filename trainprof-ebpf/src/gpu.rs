//! Calls into the GPU's runtime: one pair of programs for every function that is probed. Which function was
//! hit is told by the number that user space attached the pair with.
//!
//! A call made inside another one belongs to that one: the thread's outermost call alone is sent. Frames are told
//! apart by the stack pointer, so a call that never came back (an exception, longjmp) cannot swallow later ones.

use aya_ebpf::{
    EbpfContext as _,
    bindings::BPF_ANY,
    helpers::{bpf_ktime_get_ns, bpf_probe_read_user, generated::bpf_get_attach_cookie},
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use trainprof_common::{
    arch,
    event::{BackwardEvent, ExecutionEvent, GpuCallEvent, GpuMemoryEvent, Kind, UpdateEvent},
    gpu::{
        Call, CallKind, EXECUTED, Function, MAX_FUNCTIONS, OPERATOR_ARGUMENTS, PY_TEXT,
        PY_TUPLE_FIRST, SCOPE_NAME, UPDATES,
    },
    loss::Loss,
};

use crate::{
    emit,
    kernel::{current_ids, member},
    maps::{GPU_CALLS, GPU_COUNTS},
    python,
};

/// The function that was hit.
#[inline(always)]
fn function(ctx: *mut core::ffi::c_void) -> Function {
    // SAFETY: the helper reads the context that the program was given.
    Function::unpack(unsafe { bpf_get_attach_cookie(ctx) })
}

/// Argument `n` of the function, 0 for one that there is not. All are read, each by a load of its own: the verifier
/// takes none at an offset that was computed, which the compiler would otherwise make of this.
#[inline(always)]
fn argument(ctx: &ProbeContext, n: u8) -> u64 {
    let read = |i: usize| -> u64 {
        // SAFETY: a uprobe's context is the probed thread's registers, and the offset lies inside them.
        unsafe { member(ctx.as_ptr(), arch::REGS_CALL_ARGS[i] as u32) }
    };
    let (a, b, c, d, e, f) = (read(0), read(1), read(2), read(3), read(4), read(5));
    match n {
        0 => a,
        1 => b,
        2 => c,
        3 => d,
        4 => e,
        5 => f,
        _ => 0,
    }
}

/// The argument that says what is computed, 0 where none does: read in any case, and chosen without a branch (see [`scope_name`]).
#[inline(always)]
fn executed(ctx: &ProbeContext, function: Function) -> u64 {
    // SAFETY: a uprobe's context is the probed thread's registers, and the offset lies inside them.
    let what: u64 = unsafe { member(ctx.as_ptr(), arch::REGS_CALL_ARGS[EXECUTED] as u32) };
    what & u64::from(function.size != EXECUTED as u8).wrapping_sub(1)
}

/// A word of the program's memory; `None` where that cannot be read.
#[inline(always)]
fn word(address: u64) -> Option<u64> {
    // SAFETY: reads of memory that need not be there fail.
    unsafe { bpf_probe_read_user(address as *const u64).ok() }
}

/// The argument that tells the name of a stretch: of these two one, chosen without a branch, of which the compiler would make a load at an
/// offset that is computed.
#[inline(always)]
fn scope_name(ctx: &ProbeContext, by_python: bool) -> u64 {
    let read = |n: usize| -> u64 {
        // SAFETY: a uprobe's context is the probed thread's registers, and the offset lies inside them.
        unsafe { member(ctx.as_ptr(), arch::REGS_CALL_ARGS[n] as u32) }
    };
    let (name, arguments) = (read(SCOPE_NAME), read(OPERATOR_ARGUMENTS));
    let of_scope = u64::from(by_python).wrapping_sub(1);
    name & of_scope | arguments & !of_scope
}

/// Whether the stretch that begins is an update of a model. `named`: the address of the `std::string` that names it, or of what points to
/// the tuple that begins with its name.
#[inline(always)]
fn is_update(named: u64, by_python: bool) -> bool {
    let Some(found) = word(named) else {
        return false;
    };
    if !by_python {
        return names_update(found);
    }
    let Some(first) = word(found + PY_TUPLE_FIRST) else {
        return false;
    };
    names_update(first + PY_TEXT[0]) || names_update(first + PY_TEXT[1])
}

/// Whether this text names an update of a model.
#[inline(always)]
fn names_update(text: u64) -> bool {
    const WANTED: [u64; 2] = words();
    let (Some(first), Some(second)) = (word(text), word(text + 8)) else {
        return false;
    };
    first == WANTED[0] && second & LAST == WANTED[1]
}

/// All bytes of the second word but the last, which is no part of [`UPDATES`].
const LAST: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]);

/// [`UPDATES`] as two words of memory.
const fn words() -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = UPDATES;
    [
        u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        u64::from_ne_bytes([i, j, k, l, m, n, o, 0]),
    ]
}

/// A function is entered.
#[uprobe]
pub fn gpu_call_entry(ctx: ProbeContext) -> u32 {
    let function = function(ctx.as_ptr());
    let index = u32::from(function.number);
    if index < MAX_FUNCTIONS as u32
        && let Some(count) = GPU_COUNTS.get_ptr_mut(index)
    {
        // SAFETY: a per-CPU slot; a probe of the same CPU that ran in between costs a count of the rate, no more.
        unsafe { *count += 1 };
    }
    let (_, tid) = current_ids();
    // SAFETY: the probe's context is the registers.
    let sp: u64 = unsafe { member(ctx.as_ptr(), arch::REGS_SP as u32) };
    // What is called inside it are calls of their own.
    if function.kind == CallKind::Backward as u8 {
        emit::event(&BackwardEvent {
            kind: Kind::Backward as u32,
            tid,
            // SAFETY: clock helper.
            at: unsafe { bpf_ktime_get_ns() },
            sp,
            path: python::path(tid),
        });
        return 0;
    }
    if function.kind == CallKind::Execute as u8 {
        emit::event(&ExecutionEvent {
            kind: Kind::Execution as u32,
            tid,
            // SAFETY: clock helper.
            at: unsafe { bpf_ktime_get_ns() },
            what: executed(&ctx, function),
        });
        return 0;
    }
    let by_python = function.kind == CallKind::Operator as u8;
    if by_python || function.kind == CallKind::Scope as u8 {
        if is_update(scope_name(&ctx, by_python), by_python) {
            emit::event(&UpdateEvent {
                kind: Kind::Update as u32,
                tid,
                // SAFETY: clock helper.
                at: unsafe { bpf_ktime_get_ns() },
            });
        }
        return 0;
    }
    // SAFETY: copied out at once; only this thread writes its entry.
    if let Some(outer) = unsafe { GPU_CALLS.get(tid) }
        && outer.sp > sp
    {
        return 0;
    }
    let size = argument(&ctx, function.size);
    let bytes = if function.times == trainprof_common::gpu::NO_ARG {
        size
    } else {
        size.wrapping_mul(argument(&ctx, function.times))
    };
    let call = Call {
        // SAFETY: clock helper.
        from: unsafe { bpf_ktime_get_ns() },
        sp,
        bytes,
        first: argument(&ctx, 0),
        function: function.number,
        kind: function.kind,
        of_gpu: u8::from(function.of_gpu),
        pad: [0; 4],
    };
    if GPU_CALLS.insert(tid, &call, u64::from(BPF_ANY)).is_err() {
        emit::lost(Loss::GpuCallsFull);
    }
    0
}

/// A function returns.
#[uretprobe]
pub fn gpu_call_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    let (_, tid) = current_ids();
    // SAFETY: copied out at once; only this thread writes its entry.
    let Some(call) = (unsafe { GPU_CALLS.get(tid) }).copied() else {
        return 0;
    };
    // SAFETY: the probe's context is the registers.
    let sp: u64 = unsafe { member(ctx.as_ptr(), arch::REGS_SP as u32) };
    // Returning took the return address off the stack. A deeper frame is a call inside this one.
    if sp <= call.sp {
        return 0;
    }
    let _ = GPU_CALLS.remove(tid);
    // A shallower one is the return of a call that had begun before the outermost one that we know of.
    if sp == call.sp + arch::RETURN_ADDRESS_BYTES as u64 {
        send(tid, &call, now);
        // Zero is success, in the runtime and in the driver.
        if call.of_gpu != 0 && ctx.ret::<u32>() == 0 {
            memory(&call);
        }
    }
    0
}

/// A thread has ended: what it was in the middle of ends with it.
#[inline(always)]
pub fn ended(tid: u32, now: u64) {
    // SAFETY: copied out at once; only this thread writes its entry.
    if let Some(call) = (unsafe { GPU_CALLS.get(tid) }).copied() {
        let _ = GPU_CALLS.remove(tid);
        send(tid, &call, now);
    }
}

#[inline(always)]
fn send(tid: u32, call: &Call, to: u64) {
    emit::event(&GpuCallEvent {
        kind: Kind::GpuCall as u32,
        tid,
        from: call.from,
        ns: to.saturating_sub(call.from),
        bytes: call.bytes,
        function: u32::from(call.function),
        what: u32::from(call.kind),
    });
}

/// Tells of memory that a call has allocated or given back, and by which code of Python it was allocated.
#[inline(always)]
fn memory(call: &Call) {
    let address = if call.kind == CallKind::Free as u8 {
        Some(call.first)
    } else if call.kind == CallKind::Allocate as u8 {
        // SAFETY: the helper fails where nothing can be read.
        unsafe { bpf_probe_read_user(call.first as *const u64).ok() }
    } else {
        None
    };
    let Some(address) = address else { return };
    let (tgid, tid) = current_ids();
    emit::built::<GpuMemoryEvent>(|event| {
        // SAFETY: room for one event, written whole but for the code beyond its count.
        unsafe {
            (*event).kind = Kind::GpuMemory as u32;
            (*event).tid = tid;
            (*event).at = call.from;
            (*event).address = address;
            (*event).bytes = call.bytes;
            (*event).function = u32::from(call.function);
            (*event).tgid = tgid;
            if call.kind == CallKind::Allocate as u8 {
                python::copy(tid, &raw mut (*event).python);
            } else {
                (*event).python.count = 0;
                (*event).python.pad = 0;
            }
        }
    });
}
