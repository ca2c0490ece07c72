//! One window of allocation probes: what it would cost, and how long it may be. Pure.

/// Lengths that a window may have, microseconds, and the calls after which a longer one tells little more.
const LENGTHS_US: [u32; 9] = [
    200_000, 100_000, 50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500,
];
const ENOUGH_CALLS: f64 = 20_000.0;
/// A thread may call so many times as often as it did when probes go in and are taken away: then nothing caps its calls.
const JUMP: f64 = 10.0;
/// Share of what may be added to a thread in ten seconds that one window's pauses may take.
const PAUSE_SHARE: f64 = 0.3;
/// Below this a window is short, microseconds; unless it is expected to see so many calls.
const SHORT_US: u32 = 5_000;
const TELLING_CALLS: f64 = 1_000.0;
/// Calls that a window must be expected to see to be worth its closing.
const TOO_FEW_CALLS: u64 = 50;
/// One call in so many has its stack taken; and what that adds to a call on average, nanoseconds (measured: 685 each).
const STACK_EVERY: u32 = 64;
const STACK_NS: f64 = 700.0 / STACK_EVERY as f64;
/// Calls a second of a thread of which nothing is known, as far as traps that linger go: few make more.
pub const UNKNOWN_RATE: f64 = 1e6;
/// Below this share of a process's clock samples its allocator is little, once there are enough of them.
const LITTLE: f64 = 0.01;
const ENOUGH_SAMPLES: u64 = 50;
/// A window is planned to see this part of the calls at which it closes early, or less: one that ends by how much was called lasts
/// the longer the slower the job is just then, so that slow times would weigh more than they last.
const EXPECTED_OF_CAP: f64 = 0.6;
/// More than caches alone can make of a hit.
const MOST_SLOWER: f64 = 4.0;

/// What probes cost on this host, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub emulated_ns: f64,
    pub stepped_ns: f64,
    pub return_ns: f64,
    /// Run time of our program in a hit where `emulated_ns` was measured.
    pub run_ns: f64,
    /// Putting the probes of one function in and taking them away stops every thread that uses it for so long in all. One on its return
    /// costs no pause of its own: it is the same trap.
    pub pause_ns: u64,
    /// For how long a trap that is being taken away is still hit, uncounted.
    pub linger_ns: u64,
    /// How long taking one probe away takes us: meanwhile those that go after it are hit.
    pub removal_ns: u64,
    /// For how long each probe is hit outside a window, while others go in, until that was seen.
    pub outside_ns: u64,
    /// CPU time of ours for attaching and removing one probe.
    pub own_ns: u64,
}

impl Costs {
    /// For how long traps of a window are hit after it: each lingers, and the others wait for the first ones.
    pub fn traps_left_ns(&self, probes: u32) -> f64 {
        let (probes, others) = (u64::from(probes), u64::from(probes.saturating_sub(1)));
        (self.linger_ns * probes + self.removal_ns * others) as f64
    }

    /// How many times as long as on our own process a hit takes, where our program itself runs `run_ns`: both wait for the same
    /// caches, which the job fills with data and code of its own.
    pub fn slower(&self, run_ns: f64) -> f64 {
        (run_ns / self.run_ns.max(1.0)).clamp(1.0, MOST_SLOWER)
    }

    /// The same where a hit takes so many times as long. What single-stepping adds has its time elsewhere.
    pub fn where_hits_are(&self, slower: f64) -> Self {
        Self {
            emulated_ns: self.emulated_ns * slower,
            stepped_ns: self.stepped_ns + self.emulated_ns * (slower - 1.0),
            return_ns: self.return_ns * slower,
            ..*self
        }
    }

    /// CPU time that a window takes from us, nanoseconds; `beside` its probes.
    pub fn takes_of_us(&self, probes: u32, beside: f64) -> f64 {
        beside + (self.own_ns * u64::from(probes)) as f64
    }
}

/// A process that a window could open on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub pid: u32,
    /// CPU time it has used, and CPUs that it uses now.
    pub cpu_ns: u64,
    pub cpus: f64,
    /// Clock samples of it, and how many of them were in its allocator.
    pub samples: u64,
    pub in_allocator: u64,
    /// Probes that a window takes, as far as they are known, and how many of them the kernel single-steps.
    pub sites: u32,
    pub stepped: u32,
}

impl Candidate {
    fn allocator_share(&self) -> f64 {
        if self.samples == 0 {
            0.0
        } else {
            self.in_allocator as f64 / self.samples as f64
        }
    }

    /// CPUs spent in its allocator; 0 when that is little.
    pub fn weight(&self) -> f64 {
        if self.samples >= ENOUGH_SAMPLES && self.allocator_share() >= LITTLE {
            self.cpus * self.allocator_share()
        } else {
            0.0
        }
    }
}

/// A window that may open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub pid: u32,
    /// How long it waits before it opens.
    pub delay_us: u32,
    pub length_us: u32,
    /// Calls of one function by one thread after which it closes.
    pub max_calls: u64,
    pub stack_every: u32,
    pub paired: bool,
    /// Functions that it may probe.
    pub max_sites: u32,
}

/// What a window did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub pid: u32,
    /// Seconds in which calls were counted.
    pub counted_s: f64,
    /// Calls that were counted, and those of the thread that made most.
    pub calls: u64,
    pub worst_calls: u64,
    /// Hits, those outside the counted time too.
    pub emulated: u64,
    pub stepped: u64,
    pub returns: u64,
    /// Mean run time of our program in a hit; `None`: not known.
    pub run_ns: Option<f64>,
    /// Functions that were probed.
    pub sites: u32,
    /// CPU time of ours.
    pub own_ns: u64,
    pub paired: bool,
}

/// What a window cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// CPU time that hits took from the job.
    pub job_ns: u64,
    /// What closing added to the thread that made most calls: it was stopped, and then still met traps.
    pub pause_ns: u64,
    /// What was added to the thread that made most calls.
    pub thread_ns: u64,
}

/// What limits a window, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// What may be added to one thread in ten seconds, what is left of it, and what is left of it to be planned.
    pub thread_limit: f64,
    pub thread_most: f64,
    pub thread_left: f64,
    /// What was saved up.
    pub saved: f64,
    /// For how long each probe is expected to be hit outside a window, seconds.
    pub outside_s: f64,
    /// What a window takes from us beside its probes.
    pub beside: f64,
}

/// Which window is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Calls a second of the busiest thread, as far as they are known.
    pub rate: Option<f64>,
    /// It is the first of its process.
    pub first: bool,
    pub paired: bool,
    pub stacks: bool,
}

/// The longest window on a process that there is room for.
pub fn longest(costs: &Costs, chosen: &Candidate, wish: &Wish, room: &Room) -> Option<Plan> {
    let Wish {
        rate,
        first,
        paired,
        stacks,
    } = *wish;
    // Which of its functions a process calls most is not known: any may be one that is single-stepped.
    let dearest = if chosen.stepped > 0 {
        costs.stepped_ns
    } else {
        costs.emulated_ns
    };
    let stack = if stacks { STACK_NS } else { 0.0 };
    let threads = chosen.cpus.ceil().max(1.0);
    // Windows that come oftener say more than windows that see all functions at once.
    let pauses = room.thread_limit * PAUSE_SHARE / costs.pause_ns.max(1) as f64;
    let most = if paired {
        1
    } else {
        chosen.sites.min(pauses as u32).max(1)
    };
    for max_sites in (1..=most).rev() {
        // What a call costs, and one of each function: calls are capped by thread and function.
        let (call_ns, each_ns, sites, returns) = if paired {
            // Each allocation is seen to begin and to return, and its release.
            let both = 2.0 * dearest + costs.return_ns;
            (both, both, 2, 1)
        } else {
            let stepped = f64::from(chosen.stepped.min(max_sites));
            let all = f64::from(max_sites);
            let entries = stepped * costs.stepped_ns + (all - stepped) * costs.emulated_ns;
            (dearest + stack, entries + all * stack, max_sites, 0)
        };
        let pause = (costs.pause_ns * u64::from(sites)) as f64;
        let own = costs.takes_of_us(sites + returns, room.beside);
        // A thread of which nothing is known may do nothing but allocate.
        let share = rate.map_or(1.0, |rate| slowed(rate, call_ns));
        let lingering = slowed(rate.unwrap_or(UNKNOWN_RATE), call_ns);
        let probes = sites + returns;
        let outside = room.outside_s * 1e9 * share * f64::from(probes)
            + costs.traps_left_ns(probes) * lingering;
        let outside_most = outside_most(costs, rate, call_ns, probes, room.outside_s * 1e9);
        for (n, &length_us) in LENGTHS_US.iter().enumerate() {
            // The first window of a process is to learn what the others will cost.
            if first && length_us > SHORT_US {
                continue;
            }
            // Fewer functions for long enough say more than all of them for a moment.
            let expected = rate.unwrap_or(0.0) * (1.0 - share) * f64::from(length_us) / 1e6;
            if max_sites > 1 && length_us < SHORT_US && expected < TELLING_CALLS {
                break;
            }
            if let Some(rate) = rate
                && let Some(shorter) = LENGTHS_US.get(n + 1)
                && rate * f64::from(*shorter) / 1e6 > ENOUGH_CALLS
            {
                continue;
            }
            let thread = f64::from(length_us) * 1e3 * share + outside + pause;
            let saved = (room.saved - own) / threads;
            let left = room.thread_left.min(saved);
            if thread > left {
                continue;
            }
            // The process may make more calls than it did: then the window ends before either limit is reached. Where it is
            // short enough, no thread can make too many.
            let most = room.thread_most.min(saved);
            let counted = (left - pause - outside).min(most - pause - outside_most);
            let length_ns = f64::from(length_us) * 1e3;
            let call_least_ns = if length_ns <= counted {
                costs.emulated_ns.max(1.0)
            } else {
                each_ns
            };
            let max_calls = (counted / call_least_ns) as u64;
            if max_calls < TOO_FEW_CALLS {
                continue;
            }
            let shorter = n + 1 < LENGTHS_US.len();
            if shorter && expected > EXPECTED_OF_CAP * max_calls as f64 {
                continue;
            }
            return Some(Plan {
                pid: chosen.pid,
                delay_us: 0,
                length_us,
                max_calls,
                stack_every: if stacks && !paired { STACK_EVERY } else { 0 },
                paired,
                max_sites,
            });
        }
    }
    None
}

/// What hits outside a window may add to a thread of which `rate` was known: the busiest function's probe goes in last and is taken
/// away first, and while that one goes in the thread may do nothing else.
fn outside_most(costs: &Costs, rate: Option<f64>, call_ns: f64, probes: u32, each_ns: f64) -> f64 {
    let rate = rate.unwrap_or(UNKNOWN_RATE);
    let others = each_ns * f64::from(probes.saturating_sub(1));
    each_ns + (others + costs.traps_left_ns(probes)) * slowed(JUMP * rate, call_ns)
}

/// What is expected once `seen` was seen: a host that was slow once may be so again, so that is believed at once, and its
/// getting better slowly.
pub fn learned(expected: f64, seen: f64) -> f64 {
    let mix = if seen > expected { 1.0 } else { 0.3 };
    expected + mix * (seen - expected)
}

/// Share of its time that a thread loses which makes `rate` calls a second, when each costs `call_ns` more: it makes
/// fewer while it loses.
pub fn slowed(rate: f64, call_ns: f64) -> f64 {
    let load = rate * call_ns / 1e9;
    load / (1.0 + load)
}
