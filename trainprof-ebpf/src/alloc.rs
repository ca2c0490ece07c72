//! Calls into allocators, in short windows on one process at a time. Which function was hit, and what its arguments
//! mean, is told by the number that user space attached the probe with.
//!
//! Each thread has its own cells, so they need no atomic operations. A window's length in time is user space's
//! business, except that the probes close it themselves when a thread has had enough.

use core::hint::black_box;

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_ANY, BPF_F_USER_STACK, BPF_NOEXIST, BPF_RB_FORCE_WAKEUP},
    helpers::{
        bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_probe_read_user,
        generated::bpf_get_attach_cookie,
    },
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext, tracing::StackIdContext as _},
};
use trainprof_common::{
    alloc::{
        Allocated, Caller, CallerKey, Calls, CallsKey, HIT_EMULATED, HIT_RETURN, HIT_STEPPED,
        LOST_ADDRESS, LOST_CELL, MemoryKey, NO_ARG, Pending, QUICK_NS, RUN_NS, RUNS_TIMED, Site,
        Window,
    },
    arch,
    hist::size_bucket,
};

use crate::{
    kernel::{current_ids, member},
    maps::{
        ALLOC_CALLERS, ALLOC_CALLS, ALLOC_FULL, ALLOC_HITS, ALLOC_LIFETIMES, ALLOC_LIVE,
        ALLOC_PENDING, ALLOC_STACKS, ALLOC_STATE, ALLOC_WINDOW, NO_CALLS,
    },
};

/// One run in so many is timed: a number that no program's rhythm divides.
const TIMED_EVERY: u64 = 13;
/// A run that took longer was interrupted, nanoseconds.
const INTERRUPTED_NS: u64 = 10_000;

/// Adds to a counter of this CPU, and gives what it was.
#[inline(always)]
fn add_to(index: u32, more: u64) -> u64 {
    let Some(n) = ALLOC_HITS.get_ptr_mut(index) else {
        return 0;
    };
    // SAFETY: a per-CPU slot; a probe of the same CPU that ran in between costs one count, no more.
    unsafe {
        let before = *n;
        *n = before + more;
        before
    }
}

/// Adds one to a counter of this CPU.
#[inline(always)]
fn count(index: u32) {
    add_to(index, 1);
}

#[inline(always)]
fn clock() -> u64 {
    // SAFETY: a helper without preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// The window, while hits are counted.
#[inline(always)]
fn open_window() -> Option<*mut Window> {
    let window = ALLOC_WINDOW.get_ptr_mut(0)?;
    // SAFETY: a map value, which user space replaces as a whole; each member is read once.
    (unsafe { (&raw const (*window).open).read_volatile() } == 1).then_some(window)
}

/// The half of the sums that a hit is added to: read once, so that all of it goes into one.
///
/// # Safety
/// `window` is that map's value.
#[inline(always)]
unsafe fn half(window: *const Window) -> u32 {
    // SAFETY: as promised by the caller; user space replaces it as a whole.
    unsafe { (&raw const (*window).half).read_volatile() }
}

/// Arguments 0 to 3 of a function. Each is read by a load of its own: the verifier takes none at an offset that was
/// computed.
#[inline(always)]
fn argument(ctx: &ProbeContext, n: u8) -> u64 {
    let read = |i: usize| -> u64 {
        // SAFETY: a uprobe's context is the probed thread's registers, and the offset lies inside them.
        unsafe { member(ctx.as_ptr(), arch::REGS_CALL_ARGS[i] as u32) }
    };
    let (a, b, c, d) = (read(0), read(1), read(2), read(3));
    match n {
        0 => a,
        1 => b,
        2 => c,
        3 => d,
        _ => 0,
    }
}

/// An allocator's function is entered.
#[uprobe]
pub fn alloc_entry(ctx: ProbeContext) -> u32 {
    // SAFETY: the helper reads the context that the program was given.
    let site = Site::unpack(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    let kind = if site.flags & Site::STEPS != 0 {
        HIT_STEPPED
    } else {
        HIT_EMULATED
    };
    let Some(window) = open_window() else {
        count(kind);
        return 0;
    };
    let timed = add_to(kind, 1).is_multiple_of(TIMED_EVERY);
    let began = if timed { clock() } else { 0 };
    if entered(&ctx, site, window) && timed {
        let took = clock().saturating_sub(began);
        if took < INTERRUPTED_NS {
            add_to(RUN_NS, took);
            count(RUNS_TIMED);
        }
    }
    0
}

/// Takes in a call while the window is open. True where it did what it does for every call that allocates.
#[inline(always)]
fn entered(ctx: &ProbeContext, site: Site, window: *mut Window) -> bool {
    if site.flags & Site::NOT_NULL != 0 && argument(ctx, 0) == 0 {
        return false;
    }
    let (tgid, tid) = current_ids();
    // SAFETY: as in `open_window`.
    let (paired, stack_mask, half) =
        unsafe { ((*window).paired, (*window).stack_mask, half(window)) };
    let freed = site.flags & Site::FREES != 0;
    if paired != 0 && freed {
        gave_back(tgid, argument(ctx, 0), half);
    }
    let mut bytes = 0;
    if site.size != NO_ARG {
        bytes = argument(ctx, site.size);
        if site.times != NO_ARG {
            bytes = bytes.wrapping_mul(argument(ctx, site.times));
        }
        // More than there are addresses: such a call fails, and is no memory that was asked for in earnest.
        if bytes >= arch::USER_ADDRESSES {
            bytes = 0;
        }
    }
    called(tgid, tid, site.function.into(), bytes, half);
    if site.size == NO_ARG {
        return false;
    }
    // SAFETY: a helper without preconditions.
    let sampled = unsafe { bpf_get_prandom_u32() } & stack_mask == 0;
    if sampled {
        came_from(ctx, tid, site.function, bytes, half);
    }
    if paired != 0 {
        let result = if site.result == NO_ARG {
            0
        } else {
            argument(ctx, site.result)
        };
        let pending = Pending {
            size: bytes,
            result,
        };
        if ALLOC_PENDING
            .insert(tid, &pending, u64::from(BPF_ANY))
            .is_err()
        {
            count(LOST_ADDRESS);
        }
    }
    !sampled && paired == 0
}

/// Closes the window: a thread has had its share.
#[inline(always)]
fn close(window: *mut Window) {
    let now = clock();
    if let Some(state) = ALLOC_STATE.get_ptr_mut(0) {
        // SAFETY: plain stores of words; a second CPU here at the same time stores nearly the same.
        unsafe {
            (&raw mut (*window).open).write_volatile(0);
            (&raw mut (*state).full_at).write_volatile(now);
        }
    }
    let _ = ALLOC_FULL.output::<u64>(&now, u64::from(BPF_RB_FORCE_WAKEUP));
}

/// Adds a call to its thread's cell. As [`gave_back`] a function of its own, which the verifier looks at once and not for each way
/// to it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn called(tgid: u32, tid: u32, function: u32, bytes: u64, half: u32) -> u32 {
    let Some(window) = ALLOC_WINDOW.get_ptr_mut(0) else {
        return 0;
    };
    let key = CallsKey {
        tgid,
        tid,
        function: function as u16,
        half: half as u16,
    };
    if ALLOC_CALLS.get_ptr_mut(key).is_none() {
        let Some(none) = NO_CALLS.get(0) else {
            return 0;
        };
        if ALLOC_CALLS
            .insert(key, none, u64::from(BPF_NOEXIST))
            .is_err()
        {
            count(LOST_CELL);
            return 0;
        }
    }
    let Some(cell) = ALLOC_CALLS.get_ptr_mut(key) else {
        return 0;
    };
    // SAFETY: the entry stays valid inside this program's RCU section, and only this thread writes it.
    let cell = unsafe { &mut *cell };
    add(cell, bytes);
    // SAFETY: as in `open_window`.
    if cell.count >= unsafe { (*window).max_calls } {
        close(window);
    }
    0
}

#[inline(always)]
fn add(cell: &mut Calls, bytes: u64) {
    cell.count += 1;
    cell.bytes += bytes;
    // The compiler knows what it can be, the verifier does not: the comparison must stay.
    if let Some(n) = cell.size.get_mut(black_box(size_bucket(bytes)) as usize) {
        *n += 1;
    }
}

/// Adds a sampled call to where it came from. The return address lies on top of the stack: user space attaches where
/// that is so. Frames beyond are as good as the program's frame pointers.
#[inline(always)]
fn came_from(ctx: &ProbeContext, tid: u32, function: u8, bytes: u64, half: u32) {
    // SAFETY: a uprobe's context is the probed thread's registers.
    let sp: u64 = unsafe { member(ctx.as_ptr(), arch::REGS_SP as u32) };
    // SAFETY: the helper fails on an address that cannot be read.
    let caller = unsafe { bpf_probe_read_user(sp as *const u64) }.unwrap_or(0);
    let stack = ctx.get_stackid(&ALLOC_STACKS, u64::from(BPF_F_USER_STACK));
    let key = CallerKey {
        caller,
        stack: stack.map_or(-1, |id| id as i32),
        tid,
        function: u32::from(function),
        half,
    };
    if let Some(cell) = ALLOC_CALLERS.get_ptr_mut(key) {
        // SAFETY: the entry stays valid inside this program's RCU section, and only this thread writes it.
        unsafe {
            (*cell).count += 1;
            (*cell).bytes += bytes;
        }
    } else if ALLOC_CALLERS
        .insert(key, &Caller { count: 1, bytes }, u64::from(BPF_ANY))
        .is_err()
    {
        count(LOST_CELL);
    }
}

/// A function that allocates returns.
#[uretprobe]
pub fn alloc_return(ctx: RetProbeContext) -> u32 {
    count(HIT_RETURN);
    let (tgid, tid) = current_ids();
    // SAFETY: copied out at once; only this thread writes its entry.
    let Some(pending) = (unsafe { ALLOC_PENDING.get(tid) }).copied() else {
        return 0;
    };
    let _ = ALLOC_PENDING.remove(tid);
    let Some(window) = open_window() else {
        return 0;
    };
    let address = if pending.result == 0 {
        // SAFETY: the probe's context is the registers.
        unsafe { member(ctx.as_ptr(), arch::REGS_RESULT as u32) }
    } else {
        // SAFETY: the helper fails on an address that cannot be read.
        unsafe { bpf_probe_read_user(pending.result as *const u64) }.unwrap_or(0)
    };
    let now = clock();
    // SAFETY: as in `open_window`.
    let (mask, until, half) =
        unsafe { ((*window).address_mask, (*window).track_until, half(window)) };
    if address == 0 || now > until || spread(address) & mask != 0 {
        return 0;
    }
    let allocated = Allocated {
        at: now,
        size: pending.size,
    };
    let key = MemoryKey {
        address,
        tgid,
        pad: 0,
    };
    if ALLOC_LIVE
        .insert(key, &allocated, u64::from(BPF_ANY))
        .is_err()
    {
        count(LOST_ADDRESS);
        return 0;
    }
    if let Some(all) = ALLOC_LIFETIMES.get_ptr_mut(half) {
        // SAFETY: a per-CPU slot.
        unsafe {
            (*all).tracked += 1;
            (*all).tracked_bytes += pending.size;
        }
    }
    0
}

/// Bits of an address that are as good as random: a product's upper half (Fibonacci hashing).
#[inline(always)]
fn spread(address: u64) -> u32 {
    ((address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Memory is given back.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn gave_back(tgid: u32, address: u64, half: u32) -> u32 {
    if address == 0 {
        return 0;
    }
    let key = MemoryKey {
        address,
        tgid,
        pad: 0,
    };
    // SAFETY: copied out at once.
    let Some(allocated) = (unsafe { ALLOC_LIVE.get(key) }).copied() else {
        return 0;
    };
    let _ = ALLOC_LIVE.remove(key);
    let ns = clock().saturating_sub(allocated.at);
    let Some(all) = ALLOC_LIFETIMES.get_ptr_mut(half) else {
        return 0;
    };
    // SAFETY: a per-CPU slot.
    let all = unsafe { &mut *all };
    all.freed += 1;
    all.freed_bytes += allocated.size;
    if ns < QUICK_NS {
        all.quick += 1;
        all.quick_bytes += allocated.size;
    }
    if let Some(n) = all.ns.get_mut(black_box(size_bucket(ns)) as usize) {
        *n += 1;
    }
    0
}
