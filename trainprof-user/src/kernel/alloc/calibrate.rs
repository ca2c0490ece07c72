//! What a probe costs on this host: measured on a process of our own.
//!
//! The process calls small functions that are probed and reads its own CPU time. While a probe is put in and taken away it goes on
//! calling, now and then, and reports for how long it was stopped.

use std::{
    fs,
    num::NonZeroU32,
    path::Path,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use aya::Ebpf;
use serde::{Deserialize, Serialize};
use trainprof_common::alloc::{NO_ARG, Site};

use super::{PROGRAMS, chosen};
use crate::{
    arch::CALIBRATED,
    env::clock,
    kernel::uprobe::links::{Links, Spot, Together, attach},
};

/// Costs of a probe, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// A hit where the kernel emulates the instruction.
    pub emulated_ns: f64,
    /// A hit where it single-steps.
    pub stepped_ns: f64,
    /// What following a block adds to the hits at the entries of its allocation and its release: the return's, and looking it up.
    pub return_ns: f64,
    /// A trap at a return, with a program that has nothing to do there.
    pub trap_return_ns: f64,
    /// Run time of our program in a hit.
    pub run_ns: f64,
    /// For how long putting one probe in stops a thread that uses the function, but for the trap itself: the median of four.
    pub open_pause_ns: u64,
    /// For how long taking one probe away stops a thread that uses the function: the median of four.
    pub pause_ns: u64,
    /// For how long a trap that is being taken away is still hit; nothing counts these hits. Kernels from 6.13 on first wait
    /// until no program can be running any more, but for links of many uprobes. The median of four.
    pub linger_ns: u64,
    /// Attaching one probe, and taking one away: wall time.
    pub attach_ns: u64,
    pub detach_ns: u64,
    /// Probes of a window are taken away all at once, in the time of one.
    pub together: bool,
    /// CPU time that one of each takes from us, together.
    pub own_cpu_ns: u64,
    /// CPU time of the processes that were probed.
    pub children_cpu_ns: u64,
}

/// Our own program, by a name that leads to it in every container.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// Calls of one measurement: of each of the first three functions alone, and of the last two as a pair.
const CALLS: [u64; WORKS] = [300, 50, 200, 200];
const WORKS: usize = 4;
const PAIR: usize = 3;
/// What is put in: at each entry, and at one return.
const PROBES: u64 = CALIBRATED.len() as u64 + 1;
/// How many measurements are made, so many one after the other and then again a little later: the lower quartile counts, since other work only
/// adds, for a few milliseconds as often as not.
const ROUNDS: usize = 15;
const ROUNDS_AT_ONCE: usize = 3;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);
/// How often a call is made while a probe is taken away, and what part of the time that it has taken already.
const POKE: Duration = Duration::from_micros(200);
const POKE_PART: u32 = 100;
/// Calls of one poke: with a trap they take far longer than anything that gets in between now and then.
const POKED: u64 = 20;
/// Longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

const MEASURE: u32 = 1;
const POKE_IT: u32 = MEASURE + WORKS as u32;

/// What both processes share.
#[repr(C)]
struct Shared {
    /// 0: nothing to do; `MEASURE` + n: do work n; `POKE_IT` + n: poke function n until this changes.
    order: AtomicU32,
    /// Becomes the order when it is done.
    done: AtomicU32,
    /// Nanoseconds of CPU time for one call, in thousandths; or the longest poke, in nanoseconds.
    answer: AtomicU64,
    /// When the last poke that met a trap was over, kernel time.
    trapped_at: AtomicU64,
    /// A poke's calls met a trap when they took longer, nanoseconds.
    trap_ns: AtomicU64,
}

/// The process that is probed.
struct Subject {
    shared: NonNull<Shared>,
    pid: libc::pid_t,
}

impl Subject {
    fn start() -> Option<Self> {
        // SAFETY: a fresh shared page, zeroed by the kernel, which is a valid `Shared`.
        let shared = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if shared == libc::MAP_FAILED {
            return None;
        }
        let shared = NonNull::new(shared.cast::<Shared>())?;
        // SAFETY: only asks.
        let parent = unsafe { libc::getpid() };
        // SAFETY: this process has one thread, so the child may go on as if nothing had happened.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                // SAFETY: numbers only; a parent that died before is seen by the second call.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() == parent {
                        // SAFETY: the page is mapped as long as this process lives.
                        obey(shared.as_ref());
                    }
                    libc::_exit(0)
                }
            }
            pid => Some(Self { shared, pid }),
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped until this is dropped; all members are atomic.
        unsafe { self.shared.as_ref() }
    }

    fn order(&self, order: u32) {
        self.shared().done.store(0, Ordering::Release);
        self.shared().order.store(order, Ordering::Release);
    }

    /// The answer to the last order.
    fn answer(&self, order: u32) -> Option<u64> {
        let until = Instant::now() + PATIENCE;
        while self.shared().done.load(Ordering::Acquire) != order {
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        Some(self.shared().answer.load(Ordering::Acquire))
    }

    /// CPU nanoseconds of one call; of one pair of them.
    fn cost(&self, work: usize) -> Option<f64> {
        let order = MEASURE + work as u32;
        self.order(order);
        Some(self.answer(order)? as f64 / 1_000.0)
    }

    /// Does something while the process goes on calling; for how long that stopped it, nanoseconds, and what came of it.
    fn beside<T>(&self, function: usize, act: impl FnOnce() -> T) -> Option<(u64, T)> {
        let order = POKE_IT + function as u32;
        self.order(order);
        std::thread::sleep(Duration::from_millis(1));
        let done = act();
        std::thread::sleep(POKE * 2);
        self.shared().order.store(0, Ordering::Release);
        Some((self.answer(order)?, done))
    }

    /// Takes a probe away whose hit costs `hit_ns`, as windows do.
    fn pause(
        &self,
        function: usize,
        links: Links,
        hit_ns: f64,
        together: Option<&Together>,
    ) -> Option<Pause> {
        let trap_ns = hit_ns * POKED as f64 / 3.0;
        self.shared()
            .trap_ns
            .store(trap_ns as u64, Ordering::Release);
        let (pause_ns, (began, took_ns)) = self.beside(function, || {
            let mut removed = together.map(before_removal).unwrap_or_default();
            removed.put_before(links);
            let began = clock::now().0;
            drop(removed);
            (began, clock::now().0.saturating_sub(began))
        })?;
        let trapped_at = self.shared().trapped_at.load(Ordering::Acquire);
        Some(Pause {
            pause_ns,
            linger_ns: trapped_at.saturating_sub(began).min(took_ns),
            took_ns,
        })
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // SAFETY: a child of ours that was not waited for; the page is used by nobody else any more.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            libc::munmap(self.shared.as_ptr().cast(), 4096);
        }
    }
}

/// What taking a probe away did.
struct Pause {
    /// For how long it stopped the process.
    pause_ns: u64,
    /// For how long the trap was still there.
    linger_ns: u64,
    /// How long it took us.
    took_ns: u64,
}

/// What the probed process does, until it is killed.
fn obey(shared: &Shared) {
    loop {
        let order = shared.order.load(Ordering::Acquire);
        match order {
            MEASURE..POKE_IT => {
                let work = (order - MEASURE) as usize;
                let mut costs: Vec<u64> = (0..ROUNDS)
                    .map(|round| {
                        if round % ROUNDS_AT_ONCE == 0 {
                            std::thread::sleep(BETWEEN_ROUNDS);
                        }
                        measure(work)
                    })
                    .collect();
                costs.sort_unstable();
                shared.answer.store(costs[ROUNDS / 4], Ordering::Release);
            }
            POKE_IT.. => {
                let longest = poke(shared, order);
                shared.answer.store(longest, Ordering::Release);
            }
            0 => {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
        }
        shared
            .order
            .compare_exchange(order, 0, Ordering::AcqRel, Ordering::Acquire)
            .ok();
        shared.done.store(order, Ordering::Release);
    }
}

/// CPU time of a call or a pair, in thousandths of a nanosecond.
fn measure(work: usize) -> u64 {
    let functions = if work == PAIR {
        &CALIBRATED[PAIR - 1..]
    } else {
        &CALIBRATED[work..=work]
    };
    let began = cpu_ns();
    // Not 0, which is no address.
    for size in 1..=CALLS[work] {
        for function in functions {
            // SAFETY: these functions do nothing.
            unsafe { function(size) };
        }
    }
    cpu_ns().saturating_sub(began) * 1_000 / CALLS[work]
}

/// The longest poke, less what the thread waited for a CPU meanwhile.
fn poke(shared: &Shared, order: u32) -> u64 {
    let function = (order - POKE_IT) as usize;
    let mut longest = 0;
    let from = Instant::now();
    while shared.order.load(Ordering::Acquire) == order {
        let (waited, began) = (run_delay_ns(), Instant::now());
        for size in 0..POKED {
            // SAFETY: these functions do nothing.
            unsafe { CALIBRATED[function](size) };
        }
        let took = began.elapsed().as_nanos() as u64;
        if took > shared.trap_ns.load(Ordering::Acquire) {
            shared.trapped_at.store(clock::now().0, Ordering::Release);
        }
        if took > longest {
            let delayed = run_delay_ns().saturating_sub(waited);
            longest = longest.max(took.saturating_sub(delayed));
        }
        std::thread::sleep(before_next_poke(from.elapsed()));
    }
    longest
}

/// Where a job's threads hand a CPU to each other all the time, the kernel's own threads have been seen to get none for half a minute (6.18, two
/// processes in a futex ping-pong), and without them no probe is gone (`synchronize_srcu` in kernel/events/uprobes.c).
fn before_next_poke(poked: Duration) -> Duration {
    POKE.max(poked / POKE_PART)
}

fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid pointer; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds that this process waited for a CPU (proc_pid_schedstat(5)).
fn run_delay_ns() -> u64 {
    fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// The probes' own counters.
pub trait Counters {
    /// Lets hits be counted as in a window; `paired`: each allocation's return and release too.
    fn open(&mut self, paired: bool);
    /// Mean run time of the program at entries so far, nanoseconds.
    fn run_ns(&self) -> Option<f64>;
}

/// Measures, with links of the kind that windows will have. Takes about a second.
pub fn calibrate(
    ebpf: &mut Ebpf,
    together: Option<&Together>,
    counters: &mut impl Counters,
) -> Result<Calibration, String> {
    let subject = Subject::start().ok_or("cannot start a process")?;
    let silent = || "the process that is probed does not answer".to_owned();
    let pid = NonZeroU32::new(subject.pid as u32).ok_or_else(silent)?;
    let bare: Vec<f64> = (0..WORKS)
        .map(|n| subject.cost(n))
        .collect::<Option<_>>()
        .ok_or_else(silent)?;
    let (mut attach_ns, mut own_ns) = (0, 0);
    let (mut links, mut stopped) = (Vec::new(), Vec::new());
    for (n, function) in CALIBRATED.iter().enumerate() {
        let offset = file_offset(*function as usize as u64)
            .ok_or("our own program's mappings cannot be read")?;
        let (size, flags) = match n {
            1 => (0, Site::STEPS),
            3 => (NO_ARG, Site::FREES),
            _ => (0, 0),
        };
        let cookie = Site {
            function: 0,
            size,
            times: NO_ARG,
            result: NO_ARG,
            flags,
        }
        .pack();
        let spot = Spot {
            offset,
            cookie,
            returns: n == 2,
        };
        let path = Path::new(OWN_PROGRAM);
        let (longest_ns, (attached, took, cpu)) = subject
            .beside(n, || {
                let (began, cpu) = (Instant::now(), own_cpu_ns());
                let attached = attach(ebpf, PROGRAMS, together, path, pid, &spot);
                let cpu = own_cpu_ns().saturating_sub(cpu);
                (attached, began.elapsed(), cpu)
            })
            .ok_or_else(silent)?;
        stopped.push(longest_ns);
        attach_ns += took.as_nanos() as u64 / PROBES;
        own_ns += cpu;
        links.push(attached.map_err(|(error, _)| error)?);
    }
    // What was called while they were put in, now and then, says nothing of a hit.
    counters.open(false);
    let mut probed = vec![subject.cost(0).ok_or_else(silent)?];
    let run_ns = counters
        .run_ns()
        .ok_or("the program at entries did not run")?;
    for work in 1..WORKS {
        if work == PAIR {
            counters.open(true);
        }
        probed.push(subject.cost(work).ok_or_else(silent)?);
    }
    let added = |work: usize| (probed[work] - bare[work]).max(0.0);
    // The last function's own probe is as the first one's.
    let hit = |function: usize| added(if function == PAIR { 0 } else { function });
    let opening = stopped.into_iter().enumerate();
    let opening = opening.map(|(n, ns)| ns.saturating_sub((hit(n) * POKED as f64) as u64));
    let open_pause_ns = median(opening.collect());
    let (mut pauses, mut lingers) = (Vec::new(), Vec::new());
    let mut detach_ns = 0;
    for (n, links) in links.into_iter().enumerate() {
        let removals = links.removals();
        let cpu = own_cpu_ns();
        let pause = subject
            .pause(n, links, hit(n), together)
            .ok_or_else(silent)?;
        pauses.push(pause.pause_ns);
        lingers.push(pause.linger_ns / removals);
        own_ns += own_cpu_ns().saturating_sub(cpu);
        detach_ns += pause.took_ns / removals / CALIBRATED.len() as u64;
    }
    Ok(Calibration {
        emulated_ns: added(0),
        stepped_ns: added(1),
        return_ns: (added(PAIR) - 2.0 * added(0)).max(0.0),
        trap_return_ns: (added(2) - added(0)).max(0.0),
        run_ns,
        open_pause_ns,
        pause_ns: median(pauses),
        linger_ns: median(lingers),
        attach_ns,
        detach_ns,
        together: together.is_some(),
        own_cpu_ns: own_ns / PROBES,
        // They have not ended yet.
        children_cpu_ns: 0,
    })
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// CPU nanoseconds of this process.
pub fn own_cpu_ns() -> u64 {
    used(libc::RUSAGE_SELF)
}

/// CPU nanoseconds of its children that have ended.
pub fn children_cpu_ns() -> u64 {
    used(libc::RUSAGE_CHILDREN)
}

/// getrusage(2).
fn used(by: libc::c_int) -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a valid pointer.
    let usage = unsafe {
        libc::getrusage(by, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// Lets the next removal take its traps at once: add the probes that are to go to what this gives.
///
/// The kernel has one lock for all that comes and goes (`dup_mmap_sem` in kernel/events/uprobes.c). The first who writes
/// waits for a grace period of RCU, here 6 ms; those who follow within another do not (kernel/rcu/sync.c). So a probe of our
/// own process waits, while those of the job still count, rather than its traps.
pub fn before_removal(together: &Together) -> Links {
    // Only the calibration's process comes by that place.
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    let own = OWN.get_or_init(|| file_offset(CALIBRATED[0] as usize as u64));
    let us = NonZeroU32::new(std::process::id());
    let spot = own.map(|offset| Spot {
        offset,
        cookie: 0,
        returns: false,
    });
    us.zip(spot)
        .and_then(|(us, spot)| together.attach(Path::new(OWN_PROGRAM), us, &[spot]).ok())
        .unwrap_or_default()
}

/// Where an address of our own code lies in our program's file.
fn file_offset(address: u64) -> Option<u64> {
    chosen::mappings(std::process::id())?
        .into_iter()
        .find(|m| m.start <= address && address < m.end)
        .map(|m| address - m.start + m.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_probe_that_does_not_go_costs_little() {
        let (mut now, mut pokes) = (Duration::ZERO, 0);
        while now < Duration::from_secs(60) {
            now += before_next_poke(now);
            pokes += 1;
        }
        // Each costs some 40 us.
        assert!((600..1_200).contains(&pokes), "{pokes}");
    }
}
