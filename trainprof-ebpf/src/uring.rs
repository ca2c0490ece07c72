//! io_uring: reads and writes that no system call shows. Requests are followed from submission, in the
//! submitting thread, to completion, wherever that happens.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use trainprof_common::{loss::Loss, op::Op};

use crate::{
    account::{self, Done},
    emit,
    follow::{running, thread},
    kernel::{current_ids, offset, peek},
    maps::{URING, UringRequest},
    object, touch,
};

/// Operation codes (include/uapi/linux/io_uring.h).
mod opcode {
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const READV_FIXED: u8 = 60;
    pub const WRITEV_FIXED: u8 = 61;
}

#[inline(always)]
fn operation(request: u64) -> Option<Op> {
    match peek::<u8>(request, offset!(kiocb_opcode))? {
        opcode::READV | opcode::READ_FIXED | opcode::READ | opcode::READV_FIXED => {
            Some(Op::UringRead)
        }
        opcode::WRITEV | opcode::WRITE_FIXED | opcode::WRITE | opcode::WRITEV_FIXED => {
            Some(Op::UringWrite)
        }
        _ => None,
    }
}

/// `io_uring_submit_req(req)`, before 6.3 `io_uring_submit_sqe(req, …)`.
#[btf_tracepoint]
pub fn io_uring_submit(ctx: BtfTracePointContext) -> u32 {
    let request: u64 = ctx.arg(0);
    let (_, tid) = current_ids();
    if thread(tid).is_none() || operation(request).is_none() {
        return 0;
    }
    // SAFETY: clock helper.
    let submitted = unsafe { bpf_ktime_get_ns() };
    let entry = UringRequest {
        submitted,
        tid,
        pad: 0,
    };
    if URING.insert(request, &entry, 0).is_err() {
        emit::lost(Loss::UringFull);
    }
    0
}

/// `io_uring_complete(ctx, req, …)`.
#[btf_tracepoint]
pub fn io_uring_complete(ctx: BtfTracePointContext) -> u32 {
    let request: u64 = ctx.arg(1);
    // SAFETY: copied out at once; a request completes once.
    let entry = match unsafe { URING.get(request) } {
        Some(entry) => *entry,
        None => {
            // One of a process that is not followed, or one whose beginning was not seen: it is counted where it completes, which
            // is in a thread that uses the ring.
            let (_, tid) = current_ids();
            if running(tid).is_none() {
                return 0;
            }
            UringRequest {
                submitted: 0,
                tid,
                pad: 0,
            }
        }
    };
    let seen = entry.submitted != 0;
    if seen {
        let _ = URING.remove(request);
    }
    let Some(op) = operation(request) else {
        return 0;
    };
    let result: i32 = peek(request, offset!(kiocb_res)).unwrap_or(0);
    let file: u64 = peek(request, offset!(kiocb_file)).unwrap_or(0);
    let tgid = match thread(entry.tid) {
        // SAFETY: the entry stays valid inside this program's RCU section.
        Some(state) => unsafe { (*state).tgid },
        None => 0,
    };
    let on = object::describe(file, tgid);
    // SAFETY: clock helper.
    let now = unsafe { bpf_ktime_get_ns() };
    let done = Done {
        tid: entry.tid,
        op: op.number(),
        bytes: u64::from(result.max(0) as u32),
        ns: if seen {
            now.saturating_sub(entry.submitted)
        } else {
            0
        },
        failed: result < 0,
        timed: seen,
        at: now,
    };
    account::operation(&done, &on);
    touch::note_of(tgid, &done, &on);
    0
}
