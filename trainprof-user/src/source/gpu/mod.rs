//! What the job does with GPUs: the driver's answers and the probes on runtime calls, as records.

mod dear;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
};

use trainprof_common::gpu::CallKind;

use self::dear::{Rate, far_too_many, is_inside, let_go};
use crate::{
    env::process,
    gpu::{
        Answer, DeviceUser, Driver, Heard,
        used::{Visible, decide},
    },
    kernel::{CallProbes, GPU_CALLS, Notice},
    record::{
        Record,
        gpu::{GpuDeviceFact, GpuProcessFact},
    },
    time::KtimeNs,
};

const SECOND: u64 = 1_000_000_000;
/// When a process is looked at for libraries of the GPU, in nanoseconds after it began (or executed a program), and how often
/// after that. A library is loaded when a program gets to it.
const LOOKS: [u64; 5] = [0, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND];
const LOOK_EVERY: u64 = 10 * SECOND;
/// The same of a process that was forked and executed nothing: what it has of its parent it does not call, so only what it loads itself
/// counts, and most of them are loaders' workers.
const FORKED_LOOKS: [u64; 2] = [2 * SECOND, 10 * SECOND];
/// A process that has been there longer is looked at less often: it has its libraries.
const SETTLED: u64 = 60 * SECOND;
const SETTLED_LOOK_EVERY: u64 = 30 * SECOND;
/// Bytes read of a process's environment.
const ENVIRON: u64 = 128 << 10;

/// A function whose calls are watched.
struct Watched {
    number: u16,
    /// What is missing without it.
    title: String,
    kind: CallKind,
    driver: bool,
    steps: bool,
    /// Calls when the current second began, and when that was looked at last.
    before: u64,
    seen: u64,
}

/// Calls that were watched, by what the kernel does at their beginning. Each has a probe at its return too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsSeen {
    pub emulated: u64,
    pub stepped: u64,
}

/// When a process is looked at, from when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looks {
    began: KtimeNs,
    /// It executed nothing since it was forked.
    forked: bool,
    next: KtimeNs,
}

impl Looks {
    fn begin(began: KtimeNs, forked: bool, now: KtimeNs) -> Self {
        Self {
            began,
            forked,
            next: next_look(began, forked, now),
        }
    }

    /// It is looked at now.
    fn looked(&mut self, now: KtimeNs) {
        self.next = next_look(self.began, self.forked, now);
    }
}

/// When a process that began then and is looked at now is looked at next.
fn next_look(began: KtimeNs, forked: bool, now: KtimeNs) -> KtimeNs {
    let age = now.0.saturating_sub(began.0);
    let looks = if forked { &FORKED_LOOKS[..] } else { &LOOKS };
    match looks.iter().find(|after| **after > age) {
        Some(after) => KtimeNs(began.0 + after),
        None if age < SETTLED => KtimeNs(now.0 + LOOK_EVERY),
        None => KtimeNs(now.0 + SETTLED_LOOK_EVERY),
    }
}

/// What is known of the job's GPUs and of its calls.
#[derive(Default)]
pub struct Gpus {
    driver: Option<Driver>,
    devices: Vec<GpuDeviceFact>,
    /// Processes with a context, by device.
    contexts: BTreeMap<u32, BTreeSet<u32>>,
    environments: BTreeMap<u32, Visible>,
    looks: BTreeMap<u32, Looks>,
    watched: Vec<Watched>,
    second_began: KtimeNs,
    /// Calls of the second before that one took too much.
    too_many: bool,
    calls: CallsSeen,
    /// Samples that were dropped since this was last asked.
    dropped: u64,
}

impl Gpus {
    pub fn set_driver(&mut self, driver: Driver) {
        self.driver = Some(driver);
    }

    /// A process was looked at before the watch began, `age` nanoseconds after its own beginning.
    pub fn looked_at(&mut self, pid: u32, age: u64, now: KtimeNs) {
        let began = KtimeNs(now.0.saturating_sub(age));
        self.looks.insert(pid, Looks::begin(began, false, now));
    }

    /// A process was forked: for now it has nothing but what its parent has, and many end before they load anything.
    pub fn forked(&mut self, pid: u32, at: KtimeNs) {
        self.looks.insert(pid, Looks::begin(at, true, at));
    }

    /// How many calls were watched so far.
    pub fn calls(&self) -> CallsSeen {
        self.calls
    }

    /// How many samples were dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// A process executed a program: what it had mapped is gone.
    pub fn executed(&mut self, pid: u32, calls: Option<&CallProbes>) {
        if self.looks.remove(&pid).is_some()
            && let Some(calls) = calls
        {
            calls.forget(pid);
        }
        self.environments.remove(&pid);
    }

    /// CPU time of the process that asks the driver, nanoseconds.
    pub fn cpu_ns(&mut self) -> u64 {
        self.driver.as_mut().map_or(0, Driver::cpu_ns)
    }

    /// Takes what there is. `job` are the job's live processes.
    pub fn tick(
        &mut self,
        now: KtimeNs,
        job: &BTreeSet<u32>,
        calls: Option<&mut CallProbes>,
        count: impl Fn(u16) -> u64,
        out: &mut Vec<Record>,
    ) {
        let heard = self.driver.as_mut().map(Driver::hear).unwrap_or_default();
        let mut changed = self.all_heard(heard, job, out);
        self.environments.retain(|pid, _| job.contains(pid));
        if !self.devices.is_empty() {
            for pid in job {
                if !self.environments.contains_key(pid) {
                    self.environments.insert(*pid, visible(*pid));
                    changed = true;
                }
            }
        }
        if changed {
            self.decide(job, out);
        }
        if let Some(calls) = calls {
            for notice in calls.notices() {
                self.notice(notice, &count, out);
            }
            self.look(now, job, calls);
            self.cap(now, calls, &count, job, out);
        }
    }

    /// Takes what the driver has kept so far, at the end of a watch.
    pub fn finish(&mut self, job: &BTreeSet<u32>, out: &mut Vec<Record>) {
        let heard = self.driver.as_mut().map(Driver::last).unwrap_or_default();
        if self.all_heard(heard, job, out) {
            self.decide(job, out);
        }
    }

    /// Whether any of it changes who uses what.
    fn all_heard(&mut self, heard: Vec<Heard>, job: &BTreeSet<u32>, out: &mut Vec<Record>) -> bool {
        heard.into_iter().fold(false, |changed, heard| {
            self.heard(heard, job, out) | changed
        })
    }

    /// Whether it changes who uses what.
    fn heard(&mut self, heard: Heard, job: &BTreeSet<u32>, out: &mut Vec<Record>) -> bool {
        let missing = |reason| Record::Missing {
            what: "gpu".to_owned(),
            reason,
        };
        match heard {
            Heard::Silent(seconds) => out.push(missing(format!(
                "the driver has not answered for {seconds} s"
            ))),
            // It has said why.
            Heard::Ended(how) if how == "exit status 0" => {}
            Heard::Ended(how) => out.push(missing(format!(
                "the process that asks the driver ended ({how})"
            ))),
            Heard::Answer(answer) => match answer {
                Answer::Loaded | Answer::Alive | Answer::AllTold => {}
                Answer::NotLoadable(reason) | Answer::Missing(reason) => out.push(missing(reason)),
                Answer::Dropped(count) => self.dropped += count,
                Answer::Samples(samples) => {
                    out.extend(samples.into_iter().map(Record::GpuSample));
                }
                Answer::Devices(devices) => {
                    self.devices = devices;
                    for pid in job {
                        self.environments.insert(*pid, visible(*pid));
                    }
                    for (device, used) in self.decisions(job) {
                        if let Some(fact) = self.devices.iter_mut().find(|d| d.device == device) {
                            fact.used_by_job = used;
                        }
                    }
                    out.extend(self.devices.iter().cloned().map(Record::GpuDevice));
                }
                Answer::Processes { at, device, users } => {
                    out.extend(
                        users
                            .iter()
                            .map(|user| Record::GpuProcess(fact(at, device, user, job))),
                    );
                    let pids: BTreeSet<u32> = users.iter().map(|user| user.pid).collect();
                    let before = self.contexts.insert(device, pids);
                    return before.as_ref() != self.contexts.get(&device);
                }
            },
        }
        false
    }

    fn decisions(&self, job: &BTreeSet<u32>) -> BTreeMap<u32, Option<bool>> {
        let visible: Vec<&Visible> = self.environments.values().collect();
        decide(&self.devices, &visible, &self.contexts, |pid| {
            job.contains(&pid)
        })
    }

    /// Records a device anew when it turns out otherwise who uses it.
    fn decide(&mut self, job: &BTreeSet<u32>, out: &mut Vec<Record>) {
        let decisions = self.decisions(job);
        for fact in &mut self.devices {
            let used = decisions.get(&fact.device).copied().flatten();
            // What was used once stays used: a context that is gone says nothing of before.
            if used != fact.used_by_job && fact.used_by_job != Some(true) {
                fact.used_by_job = used;
                out.push(Record::GpuDevice(fact.clone()));
            }
        }
    }

    fn notice(&mut self, notice: Notice, count: &impl Fn(u16) -> u64, out: &mut Vec<Record>) {
        match notice {
            Notice::Function {
                number,
                library,
                name,
                title,
                kind,
                driver,
                steps,
            } => {
                let kind = CallKind::from_number(u32::from(kind)).unwrap_or(CallKind::Synchronise);
                if !matches!(
                    kind,
                    CallKind::Backward | CallKind::Scope | CallKind::Operator | CallKind::Execute
                ) {
                    out.push(Record::GpuFunction {
                        number: u32::from(number),
                        library,
                        name,
                    });
                }
                let calls = count(number);
                self.watched.push(Watched {
                    number,
                    title,
                    kind,
                    driver,
                    steps,
                    before: calls,
                    seen: calls,
                });
            }
            Notice::Attached { pid } => {
                tracing::debug!(pid, "calls into the GPU's runtime are watched")
            }
            Notice::Looked { .. } => {}
            Notice::Failed { what, reason } => {
                // It may be one that gives memory back.
                if what.starts_with(GPU_CALLS) {
                    out.push(Record::GpuMemoryUntold);
                }
                out.push(Record::Missing { what, reason });
            }
        }
    }

    /// Lets those processes be looked at whose time it is.
    fn look(&mut self, now: KtimeNs, job: &BTreeSet<u32>, calls: &CallProbes) {
        self.looks.retain(|pid, _| {
            let there = job.contains(pid);
            if !there {
                calls.forget(*pid);
            }
            there
        });
        for pid in job {
            let looks = self.looks.entry(*pid).or_insert(Looks {
                began: now,
                forked: false,
                next: now,
            });
            if now < looks.next {
                continue;
            }
            let uses_gpu = self.contexts.values().any(|pids| pids.contains(pid));
            if !calls.look(*pid, uses_gpu) {
                // It is busy: the rest has to wait for the next turn.
                return;
            }
            looks.looked(now);
        }
    }

    /// Stops watching functions that are called too often.
    fn cap(
        &mut self,
        now: KtimeNs,
        calls: &CallProbes,
        count: &impl Fn(u16) -> u64,
        job: &BTreeSet<u32>,
        out: &mut Vec<Record>,
    ) {
        // In the middle of a second what is too much already is let go too.
        let seconds = now.seconds_since(self.second_began);
        let over = seconds >= 1.0;
        let mut rates = Vec::with_capacity(self.watched.len());
        for watched in &mut self.watched {
            let total = count(watched.number);
            let new = total.saturating_sub(std::mem::replace(&mut watched.seen, total));
            if watched.steps {
                self.calls.stepped += new;
            } else {
                self.calls.emulated += new;
            }
            rates.push(Rate {
                kind: watched.kind,
                driver: watched.driver,
                steps: watched.steps,
                calls: total.saturating_sub(watched.before) as f64 / seconds.max(1.0),
            });
            if over {
                watched.before = total;
            }
        }
        if over {
            self.second_began = now;
        }
        let users: BTreeSet<&u32> = self.contexts.values().flatten().collect();
        let processes = users.into_iter().filter(|pid| job.contains(pid)).count();
        let mut gone = let_go(&rates, processes);
        // A model that is moved to the GPU, or state that is fetched from it, makes many calls for a moment.
        if over {
            let before = std::mem::replace(&mut self.too_many, !gone.is_empty());
            if !before && !far_too_many(&rates, processes) {
                return;
            }
        } else if !far_too_many(&rates, processes) {
            return;
        }
        let numbers = gone.iter().map(|at| self.watched[*at].number).collect();
        if gone.is_empty() || !calls.detach(numbers) {
            return;
        }
        gone.sort_unstable();
        for at in gone.into_iter().rev() {
            let watched = self.watched.remove(at);
            if !is_inside(&rates[at], &rates) {
                // Without the one, what the other tells says nothing of what is kept.
                if matches!(watched.kind, CallKind::Allocate | CallKind::Free) {
                    out.push(Record::GpuMemoryUntold);
                }
                out.push(Record::Missing {
                    what: watched.title,
                    reason: format!(
                        "called {:.0} times a second or more: watching that would slow the job down",
                        rates[at].calls
                    ),
                });
            }
        }
    }
}

fn fact(at: KtimeNs, device: u32, user: &DeviceUser, job: &BTreeSet<u32>) -> GpuProcessFact {
    GpuProcessFact {
        at,
        device,
        pid: user.pid,
        memory_bytes: user.memory_bytes,
        utilisation: user.utilisation,
        name: if job.contains(&user.pid) {
            None
        } else {
            fs::read_to_string(format!("/proc/{}/comm", user.pid))
                .ok()
                .map(|name| name.trim_end().to_owned())
        },
    }
}

fn visible(pid: u32) -> Visible {
    let mut environ = Vec::new();
    if let Ok(file) = File::open(process::shared(pid, "environ")) {
        // What cannot be read says nothing.
        let _ = file.take(ENVIRON).read_to_end(&mut environ);
    }
    Visible::decode(&environ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_old_is_looked_at_less_often() {
        let next = |began: u64, now: u64| {
            next_look(KtimeNs(began * SECOND), false, KtimeNs(now * SECOND)).0 / SECOND
        };
        assert_eq!(next(100, 100), 101);
        assert_eq!(next(100, 103), 105);
        assert_eq!(next(100, 110), 120);
        assert_eq!(next(100, 400), 430);
    }

    #[test]
    fn what_was_looked_at_before_is_not_at_once_again() {
        let mut gpus = Gpus::default();
        let now = KtimeNs(500 * SECOND);
        gpus.looked_at(7, 3 * SECOND, now);
        assert_eq!(gpus.looks[&7].next, KtimeNs(502 * SECOND));
        // Longer there than the kernel's clock has run (a host that slept).
        gpus.looked_at(8, 900 * SECOND, now);
        assert_eq!(gpus.looks[&8].next, KtimeNs(530 * SECOND));
        gpus.forked(9, now);
        // Forked: a worker, as like as not.
        let mut looks = gpus.looks[&9];
        let mut seen = Vec::new();
        while looks.next < KtimeNs(525 * SECOND) {
            seen.push(looks.next.since(now) / SECOND);
            looks.looked(looks.next);
        }
        assert_eq!(seen, [2, 10, 20]);
    }
}
