//! The follow set: threads made by followed threads are followed from their first moment on.

use core::{ffi::c_void, hint::black_box};

use aya_ebpf::{
    bindings::BPF_NOEXIST, helpers::bpf_ktime_get_ns, macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use trainprof_common::{
    event::{EXIT_OUT_OF_MEMORY, ExecEvent, ExitEvent, ForkEvent, Kind},
    loss::Loss,
    thread::{EndedKey, EndedThread, State, TaskCounters, ThreadState},
};

use crate::{
    cpu, emit, files, gpu,
    kernel::{counter, current_ids, current_task, member, offset, peek},
    maps::{ENDED, FREE_PLACES, NO_STATE, STATES, THREADS, changed},
    object, sched, touch,
};

/// Error of an insertion over an entry that is there (errno(3)), as the helper gives it.
const EEXIST: i32 = -17;

/// The state of a followed thread.
#[inline(always)]
pub fn thread(tid: u32) -> Option<*mut ThreadState> {
    STATES.get_ptr_mut(place(tid)?)
}

/// Where the state of a followed thread lies.
#[inline(always)]
pub fn place(tid: u32) -> Option<u32> {
    // SAFETY: copied out at once.
    unsafe { THREADS.get(&tid) }.copied()
}

/// The state of the thread that is on this CPU, if it is followed.
#[inline(always)]
pub fn running(tid: u32) -> Option<*mut ThreadState> {
    cpu::this()?.running(tid)
}

/// The thread that makes a system call, if it is followed, and its id. `regs`: what it entered the kernel with.
#[inline(always)]
pub fn calling(regs: *const c_void) -> Option<(*mut ThreadState, u32)> {
    let known = &mut cpu::this()?.running;
    if known.regs != black_box(regs) as u64 || !known.is_current() {
        // SAFETY: a typed pointer.
        let tid = unsafe { member(current_task(), offset!(task_pid)) };
        // Who came onto this CPU was looked up then.
        if known.tid != tid || !known.is_current() {
            known.look_up(tid);
        }
        known.regs = black_box(regs) as u64;
    }
    Some((cpu::state_at(known.place)?, known.tid))
}

/// The thread on this CPU ends: its place may be another thread's from now on.
#[inline(always)]
fn forget_running(tid: u32) {
    if let Some(cpu) = cpu::this() {
        cpu.running.is_nobody(tid);
    }
}

/// Gives the place of a thread that is not followed any more to whoever comes next.
#[inline(always)]
fn free(place: u32) {
    // It cannot be full: it has room for all places.
    let _ = FREE_PLACES.push(place, 0);
}

#[inline(always)]
fn comm(task: *const c_void) -> [u8; 16] {
    peek(task as u64, offset!(task_comm)).unwrap_or([0; 16])
}

/// Counters that the kernel keeps for a task.
///
/// # Safety
/// `task` is a typed pointer.
#[inline(always)]
unsafe fn counters(task: *const c_void) -> TaskCounters {
    // SAFETY: as above.
    unsafe {
        TaskCounters {
            min_flt: counter(task, offset!(task_min_flt)),
            maj_flt: counter(task, offset!(task_maj_flt)),
            read_bytes: counter(task, offset!(task_read_bytes)),
            write_bytes: counter(task, offset!(task_write_bytes)),
        }
    }
}

/// `sched_process_fork(parent, child)`: the child has never run yet.
#[btf_tracepoint]
pub fn sched_process_fork(ctx: BtfTracePointContext) -> u32 {
    let parent: *const c_void = ctx.arg(0);
    let child: *const c_void = ctx.arg(1);
    // SAFETY: typed arguments.
    let (parent_tid, parent_tgid, child_tid, child_tgid) = unsafe {
        (
            member::<u32>(parent, offset!(task_pid)),
            member::<u32>(parent, offset!(task_tgid)),
            member::<u32>(child, offset!(task_pid)),
            member::<u32>(child, offset!(task_tgid)),
        )
    };
    if let Some(state) = thread(parent_tid) {
        // SAFETY: written by this thread's own probes alone; the entry outlives this program.
        // From now on another thread may change the descriptors.
        object::forget_all(unsafe { &mut *state });
        if child_tid == child_tgid {
            files::note_break(child, child_tgid);
        }
        // Where there is no room, `sched_wakeup_new` finds that once more, of threads whose leading thread is followed.
        if !begin(child, child_tid, child_tgid, parent_tid, parent_tgid)
            && (child_tid == child_tgid || thread(child_tgid).is_none())
        {
            emit::lost(Loss::ThreadsFull);
        }
        #[cfg(feature = "log")]
        aya_log_ebpf::debug!(
            &ctx,
            "following thread {} of process {}",
            child_tid,
            child_tgid
        );
    }
    0
}

/// `sched_wakeup_new(task)`: threads that the kernel makes for a process (io_uring's) are not shown as forked.
#[btf_tracepoint]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> u32 {
    let task: *const c_void = ctx.arg(0);
    // SAFETY: a typed argument.
    let (tid, tgid) = unsafe {
        (
            member::<u32>(task, offset!(task_pid)),
            member::<u32>(task, offset!(task_tgid)),
        )
    };
    if tid != tgid
        && thread(tgid).is_some()
        && thread(tid).is_none()
        && !begin(task, tid, tgid, tgid, tgid)
    {
        emit::lost(Loss::ThreadsFull);
    }
    0
}

/// Gives a thread that has never run yet a state. False when there is no room.
#[inline(always)]
fn follow(tid: u32, tgid: u32, now: u64) -> bool {
    let Ok(Some(place)) = FREE_PLACES.pop() else {
        return false;
    };
    // Nobody else knows of this place yet.
    let Some(nothing) = NO_STATE.get(0) else {
        return false;
    };
    if STATES.set(place, nothing, 0).is_err() {
        return false;
    }
    let Some(state) = STATES.get_ptr_mut(place) else {
        return false;
    };
    // SAFETY: as above.
    let state = unsafe { &mut *state };
    state.tgid = tgid;
    // Waits for its first turn on a CPU.
    state.state = State::Preempted as u32;
    state.nr = trainprof_common::thread::NR_PREEMPTED;
    state.since = now;
    state.followed_since = now;
    match THREADS.insert(tid, place, u64::from(BPF_NOEXIST)) {
        Ok(()) => {
            changed();
            true
        }
        Err(error) => {
            free(place);
            error == EEXIST
        }
    }
}

/// Follows a thread that has never run yet. False when there is no room.
#[inline(always)]
fn begin(
    child: *const c_void,
    child_tid: u32,
    child_tgid: u32,
    parent_tid: u32,
    parent_tgid: u32,
) -> bool {
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    // Else the scan of /proc was first.
    if place(child_tid).is_none() && !follow(child_tid, child_tgid, now) {
        return false;
    }
    emit::event(&ForkEvent {
        kind: Kind::Fork as u32,
        parent_tid,
        at: now,
        parent_tgid,
        child_tid,
        child_tgid,
        pad: 0,
        comm: comm(child),
    });
    true
}

/// `sched_process_exec(task, old_pid, bprm)`: a thread that is not the leader takes the leader's id over.
#[btf_tracepoint]
pub fn sched_process_exec(ctx: BtfTracePointContext) -> u32 {
    let task: *const c_void = ctx.arg(0);
    let old_tid: u32 = ctx.arg(1);
    // SAFETY: typed argument.
    let tgid = unsafe { member::<u32>(task, offset!(task_tgid)) };
    if old_tid != tgid
        && let Some(own) = place(old_tid)
    {
        if let Some(leaders) = place(tgid) {
            free(leaders);
        }
        if THREADS.insert(tgid, own, 0).is_err() {
            emit::lost(Loss::ThreadsFull);
            free(own);
        }
        let _ = THREADS.remove(old_tid);
        changed();
        // It has had the leader's id for a while, and may have come onto this CPU as a stranger.
        forget_running(old_tid);
    }
    let Some(state) = thread(tgid) else {
        return 0;
    };
    // SAFETY: as in `sched_process_fork`. Descriptors that close on exec are gone.
    object::forget_all(unsafe { &mut *state });
    files::note_break(task, tgid);
    emit::event(&ExecEvent {
        kind: Kind::Exec as u32,
        tgid,
        // SAFETY: clock helper.
        at: unsafe { bpf_ktime_get_ns() },
        old_tid,
        pad: 0,
        comm: comm(task),
    });
    0
}

/// Whether the kernel chose the task's process to be ended when memory ran out: it then notes the address space in what
/// all threads of the process share (mark_oom_victim in mm/oom_kill.c).
#[inline(always)]
fn is_oom_victim(task: *const c_void) -> bool {
    let signal = peek::<u64>(task as u64, offset!(task_signal)).unwrap_or(0);
    peek::<u64>(signal, offset!(signal_oom_mm)).is_some_and(|mm| mm != 0)
}

/// `sched_process_exit(task)`: the thread's final account.
#[btf_tracepoint]
pub fn sched_process_exit(ctx: BtfTracePointContext) -> u32 {
    let task: *const c_void = ctx.arg(0);
    let (tgid, tid) = current_ids();
    let Some(state) = thread(tid) else {
        return 0;
    };
    // SAFETY: the entry stays valid inside this program's RCU section.
    let state = unsafe { &mut *state };
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: typed argument, of the current task.
    let total = unsafe {
        sched::is_running(state, task, tid, now);
        counters(task)
    };
    let ended = EndedThread {
        tgid,
        preemptions: state.preemptions,
        preempted_ns: state.preempted_ns,
        run_ns: state.run_ns + now.saturating_sub(state.since),
        followed_since: state.followed_since,
        counters: TaskCounters {
            min_flt: total.min_flt.saturating_sub(state.base.min_flt),
            maj_flt: total.maj_flt.saturating_sub(state.base.maj_flt),
            read_bytes: total.read_bytes.saturating_sub(state.base.read_bytes),
            write_bytes: total.write_bytes.saturating_sub(state.base.write_bytes),
        },
        comm: comm(task),
    };
    if ENDED
        .insert(
            EndedKey {
                at: now,
                tid,
                pad: 0,
            },
            &ended,
            0,
        )
        .is_err()
    {
        emit::lost(Loss::EndedFull);
    }
    if let Some(place) = place(tid) {
        let _ = THREADS.remove(tid);
        changed();
        free(place);
    }
    forget_running(tid);
    if tid == tgid {
        files::forget_break(tgid);
    }
    touch::forget(tid);
    gpu::ended(tid, now);
    emit::event(&ExitEvent {
        kind: Kind::Exit as u32,
        tid,
        at: now,
        tgid,
        flags: if is_oom_victim(task) {
            EXIT_OUT_OF_MEMORY
        } else {
            0
        },
    });
    0
}
