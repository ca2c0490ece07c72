//! The process that opens and closes windows.
//!
//! That takes capabilities which the collector gives up, and up to a tenth of a second for probes to be removed. Its end,
//! however it comes, removes every probe: the kernel closes what it held.

mod tell;

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    time::{Duration, Instant},
};

use aya::Ebpf;
use trainprof_common::alloc::{HIT_COUNTERS, QUICK_NS, Window};
use trainprof_common::thread::{State, ThreadState};

use self::tell::mean_run_ns;
use super::{
    Closed, Maps, Notice, Order, PROGRAMS, WindowOrder,
    calibrate::{Calibration, Counters, before_removal, calibrate, children_cpu_ns, own_cpu_ns},
    chosen::{Allocator, Files, Mapping, mappings},
    functions::CATALOGUE,
    library::Place,
    sites::{Asked, followed, spot, wanted},
};
use crate::{
    arch::Emulates,
    env::{clock, host::KernelVersion},
    kernel::{
        GRACE,
        aside::{Line, Received},
        descriptors,
        uprobe::{
            links::{Links, Spot, Together, attach},
            multi::Relocated,
        },
        wire::Packed,
    },
    privilege::{Keep, drop_unneeded},
};

/// Niceness of this process: on a busy host it must not be put off while probes are in.
const NICENESS: libc::c_int = -10;
/// Nothing is to be done without an order: how long one is waited for at a time.
const IDLE: Duration = Duration::from_secs(60);
/// How long a message waits for room.
const ROOM: Duration = Duration::from_secs(2);
/// Remembered addresses above which fewer are.
const MANY_ADDRESSES: u64 = 1_000;
const FEWEST_ADDRESSES: u32 = 1 << 12;

struct Server<'a> {
    ebpf: &'a mut Ebpf,
    maps: &'a mut Maps,
    /// Programs for links of many uprobes, where the kernel has these and the calibration could make them.
    together: Option<Together>,
    line: &'a Line,
    files: Files,
    /// What was told of a process: its allocator's file, or that it has none.
    told: BTreeMap<u32, String>,
    /// What functions of a process asked for in windows that followed nothing.
    asked: BTreeMap<u32, Asked>,
    /// Windows that a process had of those.
    turns: BTreeMap<u32, u32>,
    /// Processes that are probed until they end.
    kept: BTreeMap<u32, (Vec<Mapping>, Probed)>,
    /// Since when hits of those are counted, and CPU time of ours when that began.
    kept_since: (u64, u64),
    hits: [u64; HIT_COUNTERS],
    /// The half of the sums that they are added to.
    half: u32,
    address_mask: u32,
    refused: bool,
}

/// Probes on one process.
#[derive(Default)]
struct Probed {
    links: Links,
    sites: u32,
    returns: u32,
}

impl Probed {
    fn add(&mut self, links: Links, spots: &[Spot]) {
        self.links.put_before(links);
        self.sites += spots.len() as u32;
        self.returns += spots.iter().filter(|spot| spot.returns).count() as u32;
    }
}

/// CPU time in a part of the time between two looks at it, taken to be even: a window that was full may have been over long
/// before we got a CPU to look again.
fn cut(cpu_ns: u64, part: u64, whole: u64) -> u64 {
    if part >= whole {
        return cpu_ns;
    }
    (u128::from(cpu_ns) * u128::from(part) / u128::from(whole)) as u64
}

/// Serves until the line ends. The programs are loaded, but for those `prepared` for links of many uprobes.
pub fn serve(ebpf: &mut Ebpf, maps: &mut Maps, prepared: Result<Relocated, String>, line: &Line) {
    go_first();
    let keep = Keep {
        read_processes: true,
        attach_uprobes: true,
        ..Keep::default()
    };
    if drop_unneeded(keep).is_err() {
        return;
    }
    descriptors::raise_limit();
    let emulates = Emulates::by(KernelVersion::running());
    let mut server = Server {
        ebpf,
        maps,
        together: None,
        line,
        files: Files::new(emulates),
        told: BTreeMap::new(),
        asked: BTreeMap::new(),
        turns: BTreeMap::new(),
        kept: BTreeMap::new(),
        kept_since: (0, 0),
        hits: [0; HIT_COUNTERS],
        half: 0,
        address_mask: 0,
        refused: false,
    };
    match prepared.and_then(|programs| Together::load(&programs, PROGRAMS)) {
        Ok(together) => server.together = Some(together),
        Err(reason) => server.send(&Notice::OneByOne { reason }),
    }
    loop {
        match line.receive(IDLE) {
            _ if line.is_over() => return,
            Received::Message(Order::Calibrate) => server.calibrate(),
            Received::Message(Order::Open(order)) => server.window(&order),
            Received::Message(Order::Keep { pid }) => server.keep(pid),
            Received::Message(Order::Tell { number }) => server.tell_kept(number),
            Received::Message(Order::Forget { pid }) => {
                server.told.remove(&pid);
                server.asked.remove(&pid);
                server.turns.remove(&pid);
                server.kept.remove(&pid);
            }
            Received::Nothing => {}
            Received::Ended => return,
        }
    }
}

impl Server<'_> {
    fn calibrate(&mut self) {
        let mut measured = self.measure();
        if let Err(reason) = &measured
            && self.together.take().is_some()
        {
            self.send(&Notice::OneByOne {
                reason: reason.clone(),
            });
            // Costs are those of the links that windows have.
            measured = self.measure();
        }
        self.stop_counting();
        self.clear();
        match measured {
            Ok(calibration) => self.send(&Notice::Calibrated(Calibration {
                children_cpu_ns: children_cpu_ns(),
                ..calibration
            })),
            Err(reason) => self.fail("calibration", reason),
        }
    }

    fn measure(&mut self) -> Result<Calibration, String> {
        self.clear();
        calibrate(self.ebpf, self.together.as_ref(), self.maps)
    }

    /// Opens a window, waits until it is over, and tells what was seen.
    fn window(&mut self, order: &WindowOrder) {
        std::thread::sleep(Duration::from_micros(u64::from(order.delay_us)));
        if self.line.is_over() {
            return;
        }
        let cpu = own_cpu_ns();
        let mut closed = Closed {
            number: order.number,
            pid: order.pid,
            ..Closed::default()
        };
        if let Some((mappings, allocator)) = self.allocator(order.pid) {
            let places = self.places(&allocator, order);
            self.clear();
            let began = Instant::now();
            let mut probed = self.attach(order.pid, &allocator, &places, order.paired);
            let mut removed = Links::default();
            closed.attach_ns = began.elapsed().as_nanos() as u64;
            (closed.sites, closed.returns) = (probed.sites, probed.returns);
            if probed.sites > 0 {
                let looked = clock::now().0;
                let ran = self.cpu_ns(order.pid);
                closed.from = clock::now().0;
                self.begin(order, closed.from);
                self.wait(Duration::from_micros(u64::from(order.length_us)));
                if let Some(together) = &self.together {
                    removed = before_removal(together);
                }
                closed.to = self.stop_counting();
                closed.cpu_ns = ran
                    .zip(self.cpu_ns(order.pid))
                    .map(|(before, after)| after.saturating_sub(before))
                    .map(|ns| {
                        let whole = clock::now().0.saturating_sub(looked);
                        cut(ns, closed.to.saturating_sub(closed.from), whole)
                    });
                closed.functions = places.iter().map(|place| place.row as u8).collect();
            }
            let began = Instant::now();
            removed.put_before(std::mem::take(&mut probed.links));
            drop(removed);
            closed.detach_ns = began.elapsed().as_nanos() as u64;
            closed.full = self.full_at().is_some();
            self.count_hits(&mut closed);
            let mappings = super::chosen::mappings(order.pid)
                .filter(|now| !now.is_empty())
                .unwrap_or(mappings);
            let asked = self.tell(order.number, 0, |_| Some(&mappings));
            if !order.paired {
                let sums = self.asked.entry(order.pid).or_default();
                for (function, bytes) in asked {
                    *sums.entry(function).or_default() += bytes;
                }
            }
            closed.lifetimes = order.paired.then(|| self.lifetimes(closed.to));
        }
        closed.own_cpu_ns = own_cpu_ns().saturating_sub(cpu);
        self.send(&Notice::Closed(closed));
    }

    fn places(&mut self, allocator: &Allocator, order: &WindowOrder) -> Vec<Place> {
        let places = &allocator.library.places;
        if !order.paired {
            let turns = self.turns.entry(order.pid).or_default();
            let turn = *turns;
            *turns += 1;
            return wanted(places, order.max_sites, turn);
        }
        let unknown = Asked::new();
        let asked = self.asked.get(&order.pid).unwrap_or(&unknown);
        followed(places, asked, self.together.is_some())
    }

    /// The allocator of a process, told when it is another than before.
    fn allocator(&mut self, pid: u32) -> Option<(Vec<Mapping>, Allocator)> {
        if self.refused {
            return None;
        }
        let mappings = mappings(pid)?;
        let found = self.files.allocator(pid, &mappings);
        let (what, notice) = match &found {
            Ok(allocator) => (
                allocator.identity.clone(),
                Notice::Found {
                    pid,
                    library: allocator.name.clone(),
                    functions: allocator
                        .library
                        .places
                        .iter()
                        .map(|place| (CATALOGUE[place.row].shown.to_owned(), place.steps))
                        .collect(),
                    makers: allocator
                        .library
                        .places
                        .iter()
                        .filter(|place| CATALOGUE[place.row].allocates())
                        .count() as u32,
                },
            ),
            Err(reason) => (
                String::new(),
                Notice::NotFound {
                    pid,
                    reason: reason.clone(),
                },
            ),
        };
        if self.told.get(&pid) != Some(&what) {
            self.told.insert(pid, what);
            self.send(&notice);
        }
        Some((mappings, found.ok()?))
    }

    /// Attaches, at once where the kernel can. Else the busiest function comes last and goes first: while others come and go,
    /// it costs nothing.
    fn attach(
        &mut self,
        pid: u32,
        allocator: &Allocator,
        places: &[Place],
        paired: bool,
    ) -> Probed {
        let mut probed = Probed::default();
        let Some(process) = NonZeroU32::new(pid) else {
            return probed;
        };
        let spots: Vec<Spot> = places.iter().map(|place| spot(place, paired)).collect();
        if let Some(together) = &self.together
            && let Ok(links) = together.attach(&allocator.path, process, &spots)
        {
            probed.add(links, &spots);
            return probed;
        }
        // One place that is refused fails them all: each by itself tells which it is, and why.
        for (place, spot) in places.iter().zip(&spots).rev() {
            let together = self.together.as_ref();
            match attach(
                self.ebpf,
                PROGRAMS,
                together,
                &allocator.path,
                process,
                spot,
            ) {
                Ok(links) => probed.add(links, std::slice::from_ref(spot)),
                Err((_, true)) => {
                    self.refused = true;
                    self.fail(
                        "all",
                        "this kernel lets nobody without CAP_SYS_ADMIN attach uprobes".into(),
                    );
                    return probed;
                }
                Err((error, false)) => {
                    // The process may just have ended.
                    if Path::new(&format!("/proc/{pid}")).exists() {
                        self.fail(CATALOGUE[place.row].shown, error);
                    }
                }
            }
        }
        probed
    }

    fn begin(&mut self, order: &WindowOrder, now: u64) {
        let length = u64::from(order.length_us) * 1_000;
        set(
            self.maps,
            Window {
                max_calls: order.max_calls,
                // What is allocated in the last moment has no time to be given back at once.
                track_until: now + length.saturating_sub(QUICK_NS),
                open: 1,
                stack_mask: mask(order.stack_every),
                paired: u32::from(order.paired),
                ..Window::default()
            },
        );
    }

    /// Waits for the end of a window, or until the probes close it.
    fn wait(&mut self, length: Duration) {
        let until = Instant::now() + length;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.full_at().is_some() {
                return;
            }
            readable(self.maps.full.as_raw_fd(), left);
        }
    }

    /// No hit is counted from here on. Gives when that was so.
    fn stop_counting(&mut self) -> u64 {
        let now = clock::now().0;
        set(self.maps, Window::default());
        self.full_at().map_or(now, |at| at.min(now))
    }

    /// CPU time of a process's threads so far, by the probes that follow them.
    fn cpu_ns(&self, pid: u32) -> Option<u64> {
        let threads = self.maps.threads.all().ok()?;
        let now = clock::now().0;
        let ran = |state: &ThreadState| {
            let current = if state.state == State::Run as u32 {
                now.saturating_sub(state.since)
            } else {
                0
            };
            state.run_ns + current
        };
        Some(
            threads
                .iter()
                .filter(|(_, state)| state.tgid == pid)
                .map(|(_, state)| ran(state))
                .sum(),
        )
    }

    fn full_at(&self) -> Option<u64> {
        let state = self.maps.state.get(&0, 0).ok()?;
        Some(state.0.full_at).filter(|at| *at != 0)
    }

    /// Probes all of a process until it ends.
    fn keep(&mut self, pid: u32) {
        if self.kept.contains_key(&pid) {
            return;
        }
        let Some((mappings, allocator)) = self.allocator(pid) else {
            return;
        };
        if self.kept.is_empty() {
            self.clear();
            self.address_mask = 0;
            self.kept_since = (clock::now().0, own_cpu_ns());
            self.open_kept();
        }
        let probed = self.attach(pid, &allocator, &allocator.library.places, true);
        if probed.sites > 0 {
            self.kept.insert(pid, (mappings, probed));
        }
    }

    fn open_kept(&mut self) {
        set(
            self.maps,
            Window {
                max_calls: u64::MAX,
                track_until: u64::MAX,
                open: 1,
                stack_mask: mask(64),
                paired: 1,
                address_mask: self.address_mask,
                half: self.half,
                ..Window::default()
            },
        );
    }

    /// Tells what was seen since the last time. Counting goes on meanwhile, in the other half of the sums.
    fn tell_kept(&mut self, number: u32) {
        if self.kept.is_empty() {
            self.send(&Notice::Closed(Closed {
                number,
                ..Closed::default()
            }));
            return;
        }
        let (told, followed) = (self.half, self.address_mask);
        self.half = 1 - told;
        // The table is full of what lives long: fewer are followed from here on.
        let fewer =
            self.lost(&self.maps.all_hits()) > MANY_ADDRESSES && followed < FEWEST_ADDRESSES;
        if fewer {
            self.address_mask = followed * 2 + 1;
        }
        let to = clock::now().0;
        self.open_kept();
        if fewer {
            // What is added meanwhile may stay: it is one of the fewer.
            let _ = self.maps.live.drain();
        }
        std::thread::sleep(GRACE);
        let (from, cpu) = std::mem::replace(&mut self.kept_since, (to, own_cpu_ns()));
        let mut closed = Closed {
            number,
            from,
            to,
            functions: (0..CATALOGUE.len() as u8).collect(),
            sites: self.kept.values().map(|(_, probed)| probed.sites).sum(),
            returns: self.kept.values().map(|(_, probed)| probed.returns).sum(),
            ..Closed::default()
        };
        self.count_hits(&mut closed);
        let kept: BTreeMap<u32, Vec<Mapping>> = self
            .kept
            .iter_mut()
            .map(|(pid, (known, _))| {
                if let Some(now) = mappings(*pid).filter(|now| !now.is_empty()) {
                    *known = now;
                }
                (*pid, known.clone())
            })
            .collect();
        self.tell(number, told, |pid| kept.get(&pid));
        let mut lifetimes = self.drain_lifetimes(told);
        lifetimes.one_in = followed + 1;
        closed.lifetimes = Some(lifetimes);
        closed.own_cpu_ns = self.kept_since.1.saturating_sub(cpu);
        self.send(&Notice::Closed(closed));
    }

    fn fail(&self, what: &str, reason: String) {
        self.send(&Notice::Failed {
            what: what.to_owned(),
            reason,
        });
    }

    /// Tells, and waits a while for room: the collector takes messages four times a second.
    fn send(&self, notice: &Notice) {
        let until = Instant::now() + ROOM;
        while matches!(self.line.send(notice), Ok(false)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Counters for Maps {
    fn open(&mut self, paired: bool) {
        set(
            self,
            Window {
                max_calls: u64::MAX,
                track_until: u64::MAX,
                open: 1,
                stack_mask: u32::MAX,
                paired: u32::from(paired),
                ..Window::default()
            },
        );
    }

    fn run_ns(&self) -> Option<f64> {
        mean_run_ns(&[0; HIT_COUNTERS], &self.all_hits())
    }
}

fn set(maps: &mut Maps, window: Window) {
    // It cannot fail: the map has this one element.
    let _ = maps.window.set(0, Packed(window), 0);
}

/// Bits of a random number that must be 0 for a stack to be taken.
fn mask(every: u32) -> u32 {
    match every {
        0 => u32::MAX,
        every => every.next_power_of_two() - 1,
    }
}

/// Waits until a descriptor is readable, at most that long, to the microsecond.
fn readable(fd: RawFd, patience: Duration) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let time = libc::timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    // SAFETY: one valid entry and a valid time.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
}

/// Asks for CPU time before others. Without the privilege for it things go on as they are.
fn go_first() {
    // SAFETY: concerns this process alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cpu_time_ends_with_the_window_and_not_when_it_is_looked_at() {
        assert_eq!(cut(300, 100, 300), 100);
        assert_eq!(cut(300, 300, 300), 300);
        assert_eq!(cut(300, 301, 300), 300);
        assert_eq!(cut(300, 0, 0), 300);
        assert_eq!(cut(u64::MAX, 1, 2), u64::MAX / 2);
    }
}
