//! The thread that reads the stacks, within a small share of a CPU.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Codes, Heard, Program, sampler::Sampler};
use crate::source::own;

/// CPU time that it may take is at most one part in so many of the time that passes: 0.15 %.
const TIME_PER_CPU: u32 = 666;
/// Time that it did not take is there for later, as much of it as it may take in a second. At the beginning there is more: a
/// watch of ten seconds has as many stacks as it can have, one of days costs no more for it.
const SAVED: Duration = Duration::from_secs(1);
const SAVED_AT_FIRST: Duration = Duration::from_secs(15);
/// Turns that the usual cost of one is the mean of, and what it is at first; nanoseconds.
const TURNS: u64 = 16;
const USUAL_NS: u64 = 50_000;
/// What it is told, and what it tells, that waits at most. While the latter waits, no stack is read.
const TOLD: usize = 1024;
const HEARD: usize = 4096;
/// Deeper than anything in it goes.
const STACK_BYTES: usize = 256 << 10;

/// What the thread is told.
enum Told {
    /// These processes are alive, in the order of their ids.
    Alive(Vec<Program>),
    /// Threads beside the main ones that were busy of late, by process.
    Busy(BTreeMap<u32, Vec<u32>>),
    Codes(Codes),
}

/// The thread, as its user sees it. It ends when this is dropped.
pub struct Worker {
    told: SyncSender<Told>,
    heard: Receiver<Heard>,
    thin: Arc<AtomicBool>,
}

impl Worker {
    /// Starts it with the capabilities that the calling thread has now.
    pub fn start() -> io::Result<Self> {
        let (told, from) = sync_channel(TOLD);
        let (out, heard) = sync_channel(HEARD);
        let thin = Arc::new(AtomicBool::new(false));
        let thinned = Arc::clone(&thin);
        thread::Builder::new()
            .name("python".into())
            .stack_size(STACK_BYTES)
            .spawn(move || run(&from, &out, &thinned))?;
        Ok(Self { told, heard, thin })
    }

    /// Tells which processes are alive, in the order of their ids; false when it has not read what it was told before.
    pub fn tell(&self, programs: Vec<Program>) -> bool {
        self.told.try_send(Told::Alive(programs)).is_ok()
    }

    /// Tells which threads beside the main ones were busy of late, by process; false when it has not read what it was told before.
    pub fn tell_busy(&self, busy: BTreeMap<u32, Vec<u32>>) -> bool {
        self.told.try_send(Told::Busy(busy)).is_ok()
    }

    /// Asks which functions a fault came from; false when too much was asked already.
    pub fn ask(&self, codes: Codes) -> bool {
        self.told.try_send(Told::Codes(codes)).is_ok()
    }

    /// From now on stacks are read half as often, or as often as ever.
    pub fn thin_out(&self, thin: bool) {
        self.thin.store(thin, Ordering::Relaxed);
    }

    /// What it tells next, if there is anything.
    pub fn heard(&self) -> Result<Heard, TryRecvError> {
        self.heard.try_recv()
    }
}

fn run(told: &Receiver<Told>, heard: &SyncSender<Heard>, thin: &AtomicBool) {
    let mut sampler = Sampler::default();
    let mut budget = Budget::begin(Instant::now(), own::thread_cpu_ns());
    let mut random = own::now().0;
    let mut due = Instant::now();
    let mut out = Vec::new();
    loop {
        let turn = match told.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Told::Alive(programs)) => {
                sampler.set(&programs, Instant::now());
                let rest = budget.rest(Instant::now(), own::thread_cpu_ns());
                due = due.min(Instant::now() + rest);
                false
            }
            Ok(Told::Busy(busy)) => {
                sampler.set_busy(&busy);
                false
            }
            // What this takes is paid for by the next turn.
            Ok(Told::Codes(codes)) => {
                sampler.resolve(&codes, &mut out);
                false
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                sampler.turn(Instant::now(), &mut out);
                true
            }
        };
        for tells in out.drain(..) {
            if heard.send(tells).is_err() {
                return;
            }
        }
        if !turn {
            continue;
        }
        let now = Instant::now();
        let rest = budget.rest(now, own::thread_cpu_ns());
        let apart = if thin.load(Ordering::Relaxed) { 2 } else { 1 };
        let pause = (sampler.pause(now) * apart).max(budget.usual());
        due = now + pause.mul_f64(jitter(&mut random)).max(rest);
    }
}

/// Between a half and one and a half, so that no loop of the job is in step with us.
fn jitter(random: &mut u64) -> f64 {
    // Good enough for this (Knuth, MMIX).
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    0.5 + (*random >> 33) as f64 / (1_u64 << 31) as f64
}

/// CPU time that may be taken.
struct Budget {
    at: Instant,
    cpu_ns: u64,
    /// Time that has passed and was not paid for yet.
    saved: Duration,
    /// The same that was paid for in advance.
    owed: Duration,
    usual_ns: u64,
}

impl Budget {
    fn begin(at: Instant, cpu_ns: u64) -> Self {
        Self {
            at,
            cpu_ns,
            saved: SAVED_AT_FIRST,
            owed: Duration::ZERO,
            usual_ns: USUAL_NS,
        }
    }

    /// How long to rest at least, when the thread has used `cpu_ns` of CPU time in all by now.
    fn rest(&mut self, now: Instant, cpu_ns: u64) -> Duration {
        let passed = self.saved + now.duration_since(self.at);
        let turn_ns = cpu_ns.saturating_sub(self.cpu_ns);
        let used = self.owed + Duration::from_nanos(turn_ns) * TIME_PER_CPU;
        self.saved = passed.saturating_sub(used).min(self.saved.max(SAVED));
        self.owed = used.saturating_sub(passed);
        (self.at, self.cpu_ns) = (now, cpu_ns);
        // A dear turn, such as a look at a new process, is not usual.
        let counted_ns = turn_ns.min(4 * self.usual_ns);
        self.usual_ns = (self.usual_ns * (TURNS - 1) + counted_ns) / TURNS;
        self.owed
    }

    /// How far apart turns may be on average, with a tenth to spare: what a single turn cost must not decide when the next one
    /// comes, else dear places of a program would be seen too rarely.
    fn usual(&self) -> Duration {
        if self.saved > SAVED {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.usual_ns + self.usual_ns / 10) * TIME_PER_CPU
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later() -> Budget {
        let mut budget = Budget::begin(Instant::now(), 0);
        budget.saved = SAVED;
        budget
    }

    /// Turns of so many CPU microseconds in ten seconds, and the part of a CPU that they took.
    fn ten_seconds(mut budget: Budget, turn_us: u64) -> (u64, f64) {
        let begin = budget.at;
        let (mut now, mut cpu_ns, mut turns) = (begin, 0, 0);
        while now < begin + Duration::from_secs(10) {
            cpu_ns += turn_us * 1_000;
            turns += 1;
            let rest = budget.rest(now, cpu_ns);
            now += budget.usual().max(Duration::from_millis(10)).max(rest);
        }
        (turns, cpu_ns as f64 / (now - begin).as_nanos() as f64)
    }

    #[test]
    fn it_takes_no_more_than_its_share() {
        // Cheap turns are taken as they come, dear ones are spread out.
        for (turn_us, most) in [(10, 1_000), (300, 55), (5_000, 4)] {
            let (turns, share) = ten_seconds(later(), turn_us);
            assert!(share < 0.0017, "{turn_us} µs: {share}");
            assert!(
                (most * 3 / 4..=most).contains(&turns),
                "{turn_us} µs: {turns}"
            );
        }
    }

    #[test]
    fn at_first_it_may_take_more() {
        let (turns, share) = ten_seconds(Budget::begin(Instant::now(), 0), 30);
        assert!(turns >= 999, "{turns}");
        assert!(share < 0.0038, "{share}");
        let (_, share) = ten_seconds(Budget::begin(Instant::now(), 0), 5_000);
        assert!(share < 0.0046, "{share}");
    }

    #[test]
    fn what_was_not_taken_lasts_for_a_second() {
        let mut budget = later();
        let at = budget.at + Duration::from_secs(100);
        assert_eq!(budget.rest(at, 0), Duration::ZERO);
        let rest = budget.rest(at, 10_000_000);
        assert_eq!(rest, Duration::from_millis(6_660 - 1_000));
    }

    #[test]
    fn one_dear_turn_does_not_decide_when_the_next_ones_come() {
        let mut budget = later();
        let usual = budget.usual();
        budget.rest(budget.at, 3_000_000);
        assert!(budget.usual() < usual * 5 / 4);
    }

    #[test]
    fn turns_come_at_uneven_times() {
        let mut random = 1;
        let all: Vec<f64> = (0..1000).map(|_| jitter(&mut random)).collect();
        assert!(all.iter().all(|factor| (0.5..1.5).contains(factor)));
        let mean = all.iter().sum::<f64>() / 1000.0;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }
}
