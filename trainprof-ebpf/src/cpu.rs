//! What is remembered of each CPU: the thread that is on it, threads that were lately, and who had it for longest. One slot of a
//! map holds all of it, and a switch looks it up once.

use core::{ffi::c_void, hint::black_box};

use trainprof_common::thread::ThreadState;

use crate::{
    follow::{place, thread},
    irq::Depth,
    maps::{CPU, Control, STATES, changed_at, control},
};

/// See [`CPU`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Cpu {
    pub running: Running,
    pub stays: Stays,
    /// Written by interrupts.
    pub irq: Depth,
    lately: [Lately; LATELY],
}

/// The thread on this CPU, when it was looked up.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Running {
    pub tid: u32,
    /// Its place and 1; 0: it is not followed.
    pub place: u32,
    /// [`Control::FOLLOWED`] at that time: an older one means nothing.
    followed: u64,
    /// Where its last system call left the registers; 0: it made none since it came. They lie on the thread's own kernel
    /// stack, so a call with the same ones is the same thread's.
    pub regs: u64,
    /// Calls of this thread are not counted in the stretch of that number ([`Control::TOUCHED_CALLS`]); 0: they may be. It is
    /// looked at anew whenever a thread comes onto the CPU.
    ignored: u64,
}

/// How many threads are remembered, by the lower bits of their ids; a power of two.
const LATELY: usize = 8;

/// A thread that came onto this CPU.
#[derive(Clone, Copy)]
#[repr(C)]
struct Lately {
    tid: u32,
    /// As in [`Running`].
    place: u32,
    /// The [`stamp`] at that time: with another one it means nothing.
    stamp: Stamp,
}

/// Differs whenever a thread may have got a place, lost it, or taken another's since.
type Stamp = (u64, u64);

#[inline(always)]
fn stamp() -> Stamp {
    (control(Control::FOLLOWED), changed_at())
}

/// This CPU's slot. Switches alone write the rest of it, but for [`Depth`], and nothing comes between; [`Running`] is also written by interrupts on
/// top of a program of the same thread, which write the same.
#[inline(always)]
pub fn this() -> Option<&'static mut Cpu> {
    // SAFETY: a per-CPU slot, valid while the program runs.
    Some(unsafe { &mut *CPU.get_ptr_mut(0)? })
}

/// See [`Running::ignores`]. `regs`: what the current call entered the kernel with.
#[inline(always)]
pub fn ignores(regs: *const c_void, stretch: u64) -> bool {
    this().is_some_and(|cpu| cpu.running.ignores(black_box(regs) as u64, stretch))
}

/// See [`Running::ignore`].
#[inline(always)]
pub fn ignore(stretch: u64) {
    if let Some(cpu) = this() {
        cpu.running.ignore(stretch);
    }
}

impl Cpu {
    /// The state of the thread that is on this CPU, if it is followed. It was looked up when it came.
    #[inline(always)]
    pub fn running(&mut self, tid: u32) -> Option<*mut ThreadState> {
        if self.running.tid != tid || self.running.followed != control(Control::FOLLOWED) {
            self.running.look_up(tid);
        }
        state_at(self.running.place)
    }

    /// A thread comes onto this CPU; its state, if it is followed.
    #[inline(always)]
    pub fn comes(&mut self, tid: u32) -> Option<*mut ThreadState> {
        if tid == 0 {
            self.running.is_nobody(0);
            return None;
        }
        let stamp = stamp();
        let known = &mut self.lately[tid as usize & (LATELY - 1)];
        if known.tid == tid && known.stamp == stamp {
            self.running.followed = stamp.0;
            (self.running.tid, self.running.place, self.running.regs) = (tid, known.place, 0);
            self.running.ignored = 0;
        } else {
            self.running.look_up(tid);
            (known.tid, known.place, known.stamp) = (tid, self.running.place, stamp);
        }
        state_at(self.running.place)
    }

    /// The state of a thread that is about to be woken, if it is followed: it may have been on this CPU lately.
    #[inline(always)]
    pub fn find(&self, tid: u32) -> Option<*mut ThreadState> {
        let known = &self.lately[tid as usize & (LATELY - 1)];
        if known.tid == tid && known.stamp == stamp() {
            state_at(known.place)
        } else {
            thread(tid)
        }
    }
}

impl Running {
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.followed == control(Control::FOLLOWED)
    }

    #[inline(always)]
    pub fn look_up(&mut self, tid: u32) {
        // First how many were added: if one is while it is looked up, this is out of date at once.
        self.followed = control(Control::FOLLOWED);
        self.place = place(tid).map_or(0, |place| place + 1);
        self.tid = tid;
        self.regs = 0;
        self.ignored = 0;
    }

    /// Whether it is known, without a look at the thread itself, that a call with these registers is not counted in this stretch.
    #[inline(always)]
    pub fn ignores(&self, regs: u64, stretch: u64) -> bool {
        self.regs == regs && self.ignored == stretch && self.is_current()
    }

    /// The calls of this thread, which is on this CPU, are not counted in this stretch.
    #[inline(always)]
    pub fn ignore(&mut self, stretch: u64) {
        self.ignored = stretch;
    }

    /// The thread `tid` has no place, or not for long.
    #[inline(always)]
    pub fn is_nobody(&mut self, tid: u32) {
        (self.tid, self.place, self.regs) = (tid, 0, 0);
    }
}

/// The state at a place as [`Running`] has it.
#[inline(always)]
pub fn state_at(place: u32) -> Option<*mut ThreadState> {
    if place == 0 {
        return None;
    }
    STATES.get_ptr_mut(place - 1)
}

/// Who had a CPU while another thread wanted it: the longest stay, not the last one. Kernel threads run for microseconds between
/// two others, and are not what a thread waited for.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Stays {
    /// The last switch: the thread that leaves now came then.
    at: u64,
    /// The longest of the last stays: when it ended, how long it was, whose it was.
    end: u64,
    ns: u64,
    tid: u32,
    pad: u32,
}

/// A stay as long as this (ns) is remembered whatever was before it.
const LONG_NS: u64 = 500_000;

impl Stays {
    /// Who had this CPU for most of the time between `wanted` and `now`; `leaving` leaves it now, and was not noted yet. 0:
    /// nobody.
    #[inline(always)]
    pub fn most(&self, leaving: u32, wanted: u64, now: u64) -> u32 {
        let last = now.saturating_sub(self.at.max(wanted));
        let before = self.end.saturating_sub(wanted).min(self.ns);
        if before > last { self.tid } else { leaving }
    }

    /// Notes that `leaving` leaves this CPU. A shorter stay is remembered when it is longer than what is left of the one that
    /// is remembered, which lasts as long as it was.
    #[inline(always)]
    pub fn note(&mut self, leaving: u32, now: u64) {
        let came = self.at;
        let ns = now.saturating_sub(came);
        self.at = now;
        let left = self.ns.saturating_sub(now.saturating_sub(self.end));
        // How long who was there first had been there is not known.
        if came != 0 && (ns >= LONG_NS || ns >= left) {
            (self.end, self.ns, self.tid) = (now, ns, leaving);
        }
    }
}
