//! Intervals: what was counted, who is there, and how much memory they have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use trainprof_common::{loss::Loss, op::Op, thread::ThreadState};

use super::{Live, SourceError, comm, estimate::Seen};
use crate::{
    env::{frameworks::FrameworkFacts, process},
    kernel::{Aggregates, Counted},
    record::{
        Record,
        fact::{Interval, SamplingFact, ThreadSeen, ThreadTotals},
    },
    source::{
        alloc::CostSoFar,
        convert::{histograms, latencies, op_sum, thread_end, totals, wait_object, wait_sum},
        own,
        pressure::Job,
        runs,
    },
    time::KtimeNs,
};

/// For so many intervals what no clock sample shows of page faults can be measured wherever it can be at all: while its clock is open,
/// each switch on the host takes longer.
const EDGE_INTERVALS: u32 = 10;

impl Live {
    /// Lets the probes write into fresh aggregates. After [`crate::kernel::GRACE`] the old ones can be
    /// collected. What every thread had done is noted at once: on a host that leaves us little CPU time, the
    /// collecting may come much later.
    pub fn switch_over(&mut self) -> Result<KtimeNs, SourceError> {
        let wanted = self.wanted_calls(true);
        if wanted == Counted::All {
            self.count_calls(wanted);
        }
        self.probes.switch_over()?;
        let now = own::now();
        if wanted != Counted::All {
            self.count_calls(wanted);
        }
        self.threads = self.probes.threads()?;
        self.threads.sort_by_key(|(tid, _)| *tid);
        Ok(now)
    }

    /// Collects what was counted until `to`, the time of the last [`Self::switch_over`].
    pub fn collect(&mut self, to: KtimeNs) -> Result<(), SourceError> {
        self.drain_events();
        let mut counted = self.probes.drain()?;
        runs::add(&mut counted.ops, &counted.runs);
        runs::add_hists(&mut counted.hists, &counted.hist_runs);
        // The order of a hash table means nothing; a fixed one makes recordings comparable.
        counted
            .ops
            .sort_by_key(|(k, _)| (k.tid, k.fileset, k.op, k.class, k.dev));
        counted
            .waits
            .sort_by_key(|(k, _)| (k.tid, k.nr, k.object, k.waker, k.fileset));
        counted.ended.sort_by_key(|(k, _)| (k.at, k.tid));
        for (key, _) in &counted.ops {
            self.look_up(key.fileset, 0);
        }
        for (key, cell) in &counted.waits {
            self.look_up(key.fileset, key.waker);
            self.socket(key.tid, &wait_object(key), cell.wait_ns);
        }
        self.memo.look_again(&mut self.out);
        self.pressure.resolve_sockets(&mut self.out);
        // A thread that has ended since then has given its account. Who has its id now has not.
        let mut threads = std::mem::take(&mut self.threads);
        threads.retain(|(tid, state)| {
            let mut ended = counted.ended.iter();
            !ended.any(|(key, end)| key.tid == *tid && end.followed_since == state.followed_since)
        });
        self.reconcile(&threads);
        let latencies = latencies(&counted.ops);
        let interval = self.interval(to, counted, &threads);
        self.interval_from = to;
        self.intervals += 1;
        self.came = self.members.len() != self.members_before;
        self.members_before = self.members.len();
        let alive = self.alive.values().copied().collect();
        let due = self.mapped.due(self.intervals, &self.leading(), &alive);
        self.frameworks(due);
        self.observe();
        self.ask_of_gpu_memory(to);
        if self.intervals == EDGE_INTERVALS {
            self.fault_edge(to);
            self.probes.fault_edge = None;
        }
        let slowed = self.slowed_by_counting();
        self.turns.tell(to, &self.touched, slowed, &mut self.out);
        self.beside_programs(&interval);
        let untimed_ns = self.entries.take_hidden();
        let all_calls_rate = self.learn_of_calls(&interval, untimed_ns);
        let (probes_ns, calls_ns) = self.cost.spent(&self.estimate);
        let helpers = self.helpers_ns();
        let cost = CostSoFar {
            // The kernel counts what our programs take of a call, and not the trap that leads to them.
            probes_ns: probes_ns + self.allocs.traps_ns(self.gpus.calls()) + self.beside.ns(),
            calls_ns,
            own_ns: own::usage().0 + helpers.others,
            windows_ns: helpers.windows,
            all_calls_rate,
            hidden_calls: self.some_calls.cost(),
            interrupt_ns: self.beside.interrupt_ns.unwrap_or(0.0),
            faults_in_turns: self.beside.faults.every() > 1,
            halvable: self.probes.halvable(),
            came: self.came,
            cells: interval.ops.len() + interval.hists.len() + interval.waits.len(),
        };
        self.allocs
            .interval(&interval, &self.alive, &cost, &mut self.out);
        self.clock_samples();
        self.pythons.thin_out(self.are_drains_seldom());
        let ran = |(state, totals): (&(u32, ThreadState), &ThreadTotals)| {
            (totals.tid, state.1.tgid, totals.run_ns)
        };
        let running = threads.iter().zip(&interval.running).map(ran);
        let busy = self
            .busy
            .interval(running, interval.to.since(interval.from));
        self.pythons.set_busy(busy);
        self.ran_ns = interval.running.iter().map(|thread| thread.run_ns).sum();
        self.threads = threads;
        if untimed_ns > 0 {
            self.out.push(Record::EntriesHidden { ns: untimed_ns });
        }
        if !latencies.is_empty() {
            self.out.push(Record::OpLatencies(latencies));
        }
        self.out.push(Record::Interval(interval));
        let alive = self.alive.values().copied().collect();
        self.pages.look_again(own::now(), &alive, &mut self.out);
        self.memory(to);
        Ok(())
    }

    /// What sampling cost in an interval beside the programs, and whether page faults are sampled in the next one.
    fn beside_programs(&mut self, interval: &Interval) {
        if self.beside.interrupt_ns.is_none() && self.intervals > 1 {
            let measured = self.probes.interrupt.take().map(|clock| clock.measure());
            self.beside.interrupt_ns = Some(measured.and_then(Result::ok).unwrap_or(0.0));
            tracing::debug!(ns = self.beside.interrupt_ns, "what an interrupt takes");
        }
        if self.beside.wants_fault_cost() {
            // Where it cannot be told, it is not tried again.
            self.beside.fault_ns = Some(
                self.probes
                    .fault_cost()
                    .unwrap_or(super::beside::COUNTED_NS),
            );
            tracing::debug!(
                ns = self.beside.fault_ns,
                "what counting a page fault takes"
            );
        }
        let every = self.beside.faults.every();
        let seconds = interval.to.seconds_since(interval.from);
        self.beside
            .interval(seconds, self.all_faults, self.allocs.budget_ns());
        self.probes.sample_faults(self.beside.faults.are_on());
        let now = self.beside.faults.every();
        if let (true, Some(period)) = (now != every, self.probes.fault_period) {
            self.fault_sampling(period.saturating_mul(now));
        }
    }

    /// Takes as many clock samples as the governor leaves.
    fn clock_samples(&mut self) {
        let clocks = self.allocs.clocks();
        if clocks == 0 {
            self.pythons.stop(&mut self.out);
        }
        let before = self.probes.sampling_hz();
        self.probes.sample_by(clocks);
        let now = self.probes.sampling_hz();
        if let (true, Some(hz)) = (now != before, now) {
            self.out.push(Record::Sampling(SamplingFact { hz }));
        }
    }

    /// Whose calls there are in an interval, and what counting them costs; what that is for all calls, nanoseconds a second.
    /// `untimed_ns`: for how long beginnings of calls were hidden in it.
    fn learn_of_calls(&mut self, interval: &Interval, untimed_ns: u64) -> Option<f64> {
        let (mut touched, mut all) = (0, 0);
        for op in interval.ops.iter().filter(|op| Op::is_call(op.op)) {
            all += op.count;
            let of = self.alive.get(&op.tid);
            if of.is_some_and(|pid| self.touched.contains(pid)) {
                touched += op.count;
            }
        }
        let hidden = self.turns.hidden(interval.to);
        let before = std::mem::replace(&mut self.hidden_before, hidden);
        let hidden = hidden.since(before);
        let ns = interval.to.since(interval.from);
        self.some_calls.interval(ns, touched, all, hidden);
        let pace = self.probes.pace();
        self.estimate.interval(&Seen {
            ns,
            touched,
            all,
            pace: pace.saturating_sub(std::mem::replace(&mut self.pace, pace)),
            hidden,
            untimed_ns,
        });
        let [all, some] = self.cost.call_rates();
        let windows = self.cost.windows_of_some();
        let new = windows > std::mem::replace(&mut self.windows_of_some, windows);
        self.some_calls.measured(all, some, new);
        all.or(self.estimate.all_calls_rate())
    }

    /// Learns of threads whose fork event was lost, and forgets those whose exit event was.
    fn reconcile(&mut self, threads: &[(u32, ThreadState)]) {
        for (tid, state) in threads {
            if !self.members.contains(tid) {
                let name = comm(state.tgid, *tid).unwrap_or_default();
                let at = KtimeNs(state.followed_since);
                if !self.alive.values().any(|pid| *pid == state.tgid) {
                    self.process(at, state.tgid, None, None);
                }
                self.thread(ThreadSeen {
                    at,
                    pid: state.tgid,
                    tid: *tid,
                    parent_tid: None,
                    name,
                });
            }
        }
        // One that began since the threads were read is not among them.
        let probes = &self.probes;
        self.alive.retain(|tid, _| {
            threads.binary_search_by_key(tid, |(tid, _)| *tid).is_ok()
                || probes.thread(*tid).is_some()
        });
        self.places.retain(&self.alive.values().copied().collect());
    }

    fn interval(
        &mut self,
        to: KtimeNs,
        counted: Aggregates,
        threads: &[(u32, ThreadState)],
    ) -> Interval {
        let losses = self.probes.losses();
        let mut lost: Vec<(u32, u64)> = losses
            .iter()
            .map(|(reason, total)| {
                let before = self
                    .losses
                    .iter()
                    .find(|(r, _)| r == reason)
                    .map_or(0, |(_, n)| *n);
                (*reason as u32, total.saturating_sub(before))
            })
            .filter(|(_, n)| *n > 0)
            .collect();
        self.losses = losses;
        let length = to.since(self.interval_from);
        let (event_min_ns, wait_ns) = self.waits.interval(length);
        let (_, touch_ns) = self.touches.interval(length);
        self.set_thresholds(wait_ns, touch_ns);
        let dropped = self.gpus.take_dropped();
        if dropped > 0 {
            lost.push((Loss::GpuAnswers as u32, dropped));
        }
        Interval {
            from: self.interval_from,
            to,
            ops: counted.ops.iter().map(|(k, c)| op_sum(k, c)).collect(),
            hists: histograms(&counted.hists),
            waits: counted.waits.iter().map(|(k, c)| wait_sum(k, c)).collect(),
            ended: counted
                .ended
                .iter()
                .map(|(k, e)| thread_end(k, e))
                .collect(),
            running: threads
                .iter()
                .map(|(tid, state)| totals(*tid, state, to))
                .collect(),
            lost,
            undecodable: std::mem::take(&mut self.undecodable),
            events: std::mem::take(&mut self.events),
            event_min_ns,
        }
    }

    /// The processes that were named, and those that train as far as is known.
    pub(super) fn leading(&self) -> BTreeSet<u32> {
        self.targets.iter().chain(&self.touched).copied().collect()
    }

    /// What these processes have mapped by now.
    pub(super) fn frameworks(&mut self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            let Ok(frameworks) = FrameworkFacts::read(pid) else {
                continue;
            };
            self.mapped.read(pid, frameworks.trains());
            self.out.push(Record::Frameworks { pid, frameworks });
        }
    }

    /// Records how much of each process is resident, and what else is due to be read.
    fn memory(&mut self, at: KtimeNs) {
        let resident = self.resident();
        self.out
            .extend(resident.iter().map(|(pid, rss_bytes)| Record::Memory {
                at,
                pid: *pid,
                rss_bytes: *rss_bytes,
            }));
        let job = Job {
            resident: &resident,
            ran_ns: self.ran_ns,
        };
        self.pressure
            .poll(own::now(), job, &mut self.outsiders, &mut self.out);
    }

    /// Resident bytes of each process that is alive (/proc/PID/statm).
    pub(super) fn resident(&self) -> BTreeMap<u32, u64> {
        // SAFETY: sysconf has no preconditions.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let processes: BTreeSet<u32> = self.alive.values().copied().collect();
        processes
            .into_iter()
            .filter_map(|pid| {
                let pages = |path: &Path| -> Option<u64> {
                    let line = fs::read_to_string(path).ok()?;
                    line.split_ascii_whitespace().nth(1)?.parse().ok()
                };
                let own = pages(Path::new(&format!("/proc/{pid}/statm")))?;
                let pages = match own {
                    // It has none, or its first thread has ended.
                    0 => pages(&process::shared(pid, "statm"))?,
                    _ => own,
                };
                Some((pid, pages * page))
            })
            .collect()
    }
}
