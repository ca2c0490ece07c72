//! What rules look at, and the questions that several of them ask.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use trainprof_common::op::Op;

use super::{Answer, Evidence, Finding, growth::Growth};
use crate::{
    analysis::{
        Analysis, Kind, Share, Trainer,
        causes::outsider,
        cpus::left_by_quotas,
        facts::{Call, Facts},
        files::FileTime,
        python::{Place, Python},
        walk::What,
        words::{bytes, factor, places, time},
    },
    session::{Coarse, Id, Session},
};

/// A cause with a smaller share is not worth a finding.
const MIN_SHARE: f64 = 0.07;
/// Less than this (ns) of walked time tells nothing.
const MIN_WALKED: f64 = 1e9;
/// Functions of Python code that are told, and the least part (0–1) of the samples that one must have.
const PLACES: usize = 3;
const MIN_PLACE: f64 = 0.05;
/// Sets of files that this part (0–1) of the time goes to are where a cause is.
const NEARLY_ALL: f64 = 0.95;
/// A job that leaves more CPUs of its own idle is not held back by having few.
const LEAVES_IDLE: f64 = 0.5;

/// What counts as a cause: making workers is work of the input side.
fn with(kind: Kind) -> impl Iterator<Item = Kind> {
    let more = (kind == Kind::InputCpu).then_some(Kind::WorkerStart);
    std::iter::once(kind).chain(more)
}

/// A function of Python code as evidence.
pub fn python(place: &Place) -> Value {
    json!({
        "function": place.function.name,
        "file": place.function.file,
        "line": place.function.line,
        "share": rounded(place.share),
    })
}

/// A function that has so much (0–1) of the time is where most of it goes; with what it calls, more.
pub(super) const MOST_OF_IT: f64 = 0.4;
const MOST_AROUND: f64 = 0.6;

fn worth_telling(mut places: Vec<Place>) -> Vec<Place> {
    places.truncate(PLACES);
    places.retain(|place| place.share >= MIN_PLACE);
    places
}

/// One trainer, with everything around it.
pub struct Look<'a> {
    pub session: &'a Session,
    pub facts: &'a Facts<'a>,
    pub analysis: &'a Analysis,
    pub trainer: &'a Trainer,
}

impl<'a> Look<'a> {
    /// Functions of the job's own that the main threads of these processes were in while they ran, most first: the first few.
    pub fn in_python(&self, pids: &[u32], within: Option<&[(u64, u64)]>) -> Vec<Place<'a>> {
        worth_telling(Python::new(self.facts).places(pids, within))
    }

    /// The same of threads while the interpreter runs, and no library that it calls.
    pub fn interpreted(&self, tids: &[u32]) -> Vec<Place<'a>> {
        worth_telling(Python::new(self.facts).interpreted(tids))
    }

    /// The one of these that has most of the time; else the one in which, with what it calls, most of it goes.
    pub fn mostly_in_python(
        &self,
        places: &[Place<'a>],
        pids: &[u32],
        within: Option<&[(u64, u64)]>,
    ) -> Option<Place<'a>> {
        let first = places.first().filter(|place| place.share >= MOST_OF_IT);
        first
            .cloned()
            .or_else(|| Python::new(self.facts).around(pids, within, MOST_AROUND))
    }

    /// Those of the trainer that make no input.
    pub fn computing_in_python(&self) -> Vec<Place<'a>> {
        worth_telling(Python::new(self.facts).computing(self.trainer.cast.trainer))
    }
}

impl Look<'_> {
    /// Whether the GPU's idle time is what shares are shares of.
    pub fn by_gpu(&self) -> bool {
        self.trainer.idle.seen_s > 0.0
    }

    /// A cause's share (0–1) of the trainer's wall time, or of the GPU's idle time where a GPU is sampled.
    pub fn share(&self, kind: Kind) -> f64 {
        if self.by_gpu() {
            let idle = &self.trainer.idle;
            if idle.idle_s > 0.0 {
                self.idle_s(kind) / idle.idle_s
            } else {
                0.0
            }
        } else {
            self.wall_share(kind)
        }
    }

    /// A cause's share (0–1) of the trainer's wall time.
    pub fn wall_share(&self, kind: Kind) -> f64 {
        if self.by_gpu() {
            return self.idle_s(kind) / self.trainer.idle.seen_s.max(1e-9);
        }
        let ns: f64 = with(kind).map(|kind| self.trainer.ns(kind)).sum();
        ns / self.trainer.wall.max(1.0)
    }

    /// Seconds for which the GPU idled for a cause.
    fn idle_s(&self, kind: Kind) -> f64 {
        let by_kind = &self.trainer.idle.by_kind;
        with(kind).filter_map(|kind| by_kind.get(&kind)).sum()
    }

    /// How many such calls into the GPU's runtime the step thread makes a step; `None` without a step clock.
    pub fn a_step(&self, such: impl Fn(&Call) -> bool) -> Option<f64> {
        let steps = self.trainer.steps.as_ref()?;
        let calls = self.facts.calls(self.trainer.cast.step_tid);
        let inside = |at: u64| {
            let before = steps.spans.partition_point(|span| span.0 <= at);
            before.checked_sub(1).is_some_and(|n| at < steps.spans[n].1)
        };
        let calls = calls.iter().filter(|call| such(call) && inside(call.from));
        Some(calls.count() as f64 / steps.spans.len() as f64)
    }

    /// The time that went to a cause.
    pub fn parts(&self, kind: Kind) -> impl Iterator<Item = &Share> {
        self.trainer
            .shares
            .iter()
            .filter(move |share| share.kind == kind)
    }

    /// Sums of a cause's time (ns) by whatever `by` tells of it, largest first; `None` is left out.
    pub fn top<K: Ord>(&self, kind: Kind, by: impl Fn(&Share) -> Option<K>) -> Vec<(K, f64)> {
        let mut sums = BTreeMap::<K, f64>::new();
        for share in self.parts(kind) {
            if let Some(key) = by(share) {
                *sums.entry(key).or_default() += share.ns;
            }
        }
        let mut out: Vec<(K, f64)> = sums.into_iter().collect();
        out.sort_by(|a, b| b.1.total_cmp(&a.1));
        out
    }

    /// File sets that a cause's time went to.
    pub fn filesets(&self, kind: Kind) -> Vec<(u32, f64)> {
        self.top(kind, |share| {
            (share.detail.fileset != 0).then_some(share.detail.fileset)
        })
    }

    /// Processes outside the job, or helpers of it, that a cause's time went to: pid, command.
    pub fn outsiders(&self, kind: Kind) -> Vec<((Id, String), f64)> {
        self.top(kind, |share| {
            (share.detail.outsider != 0)
                .then(|| outsider(self.session, share.detail.outsider))
                .flatten()
        })
    }

    /// Mean length of a step, ms.
    pub fn step_ms(&self) -> Option<f64> {
        Some(self.trainer.steps.as_ref()?.mean_ns() / 1e6)
    }

    /// How much that is in a step and in an epoch, as evidence and for a sentence (", 5 MB a step and 1 GB an epoch of
    /// 40 s"); an epoch is `null` where none can be told.
    pub fn per_turn(&self, growth: &Growth) -> (Evidence, String) {
        let mut evidence = Evidence::new();
        let mut parts = Vec::new();
        if let Some(steps) = &self.trainer.steps {
            let (value, margin) = growth.over(steps.mean_ns() / 1e9, steps.mean_error_ns() / 1e9);
            evidence.insert("bytes_per_step", rounded(value));
            evidence.insert("margin_bytes_per_step", rounded(margin));
            parts.push(format!("{} a step", bytes(value)));
        }
        let epochs = self.trainer.epochs.as_ref();
        let over = epochs.map(|epochs| growth.over(epochs.mean_s, epochs.error_s));
        let or_null = |value: Option<f64>| value.map_or(Value::Null, rounded);
        evidence.insert("bytes_per_epoch", or_null(over.map(|over| over.0)));
        evidence.insert("margin_bytes_per_epoch", or_null(over.map(|over| over.1)));
        evidence.insert("epoch_s", or_null(epochs.map(|epochs| epochs.mean_s)));
        evidence.insert("epochs", json!(epochs.map(|epochs| epochs.count)));
        evidence.insert(
            "epochs_told_by",
            json!(epochs.map(|epochs| epochs.sign.name())),
        );
        if let (Some(epochs), Some((value, _))) = (epochs, over) {
            let length = time(epochs.mean_s);
            parts.push(format!("{} an epoch of {length}", bytes(value)));
        }
        let said = match parts.is_empty() {
            true => String::new(),
            false => format!(", {}", parts.join(" and ")),
        };
        (evidence, said)
    }

    /// "at most 2.4x faster", and what that means for a step.
    fn effect(&self, kind: Kind) -> String {
        let bound = self.trainer.bound(kind);
        match self.step_ms() {
            Some(step) if bound.is_finite() => format!(
                "a step would fall from {} to no less than {} (at most {} as fast)",
                time(step / 1e3),
                time(step / 1e3 / bound),
                factor(bound)
            ),
            _ => format!("the job would be at most {} as fast", factor(bound)),
        }
    }

    /// What so many times the speed means, as far as what was seen tells: "a step would take about 40 ms instead of 100 ms".
    pub fn about(&self, factor: f64) -> String {
        match self.step_ms() {
            Some(step) => format!(
                "a step would take about {} instead of {}",
                time(step / 1e3 / factor),
                time(step / 1e3)
            ),
            None => format!("the job would be about {factor:.1}x as fast"),
        }
    }

    /// Whether enough was seen for any rule about time.
    pub fn enough(&self) -> bool {
        self.trainer.wall >= MIN_WALKED
    }

    /// The answer for a cause: found when its share is large enough.
    pub fn cause(&self, kind: Kind, say: impl FnOnce(&mut Evidence) -> (String, String)) -> Answer {
        if !self.enough() {
            return Answer::NotEnough("less than a second was seen");
        }
        let share = self.share(kind);
        if share < MIN_SHARE || self.wall_share(kind) < MIN_SHARE / 2.0 {
            return Answer::Clear;
        }
        let mut evidence = Evidence::new();
        evidence.insert(
            "seconds",
            seconds(self.wall_share(kind) * self.trainer.wall),
        );
        let bound = self.trainer.bound(kind);
        evidence.insert(
            "speedup_bound",
            if bound.is_finite() {
                rounded(bound)
            } else {
                Value::Null
            },
        );
        let filesets = self.filesets(kind);
        if !filesets.is_empty() {
            evidence.insert("directories", self.directories(&filesets));
        }
        let outsiders = self.outsiders(kind);
        if !outsiders.is_empty() {
            evidence.insert(
                "outsiders",
                outsiders
                    .iter()
                    .take(5)
                    .map(|((pid, command), ns)| {
                        json!({"pid": pid, "command": command, "seconds": seconds(*ns)})
                    })
                    .collect(),
            );
        }
        let (summary, advice) = say(&mut evidence);
        Answer::Found(Finding {
            kind: kind.name(),
            share: Some(share),
            evidence,
            summary,
            advice,
            effect: Some(self.effect(kind)),
        })
    }

    /// What is known of the directories that the most time went to. Files of several extensions may lie in one.
    fn directories(&self, filesets: &[(u32, f64)]) -> Value {
        let mut directories = BTreeMap::<_, (f64, FileTime)>::new();
        for (fileset, ns) in filesets {
            let Some(fact) = self.session.filesets.get(fileset) else {
                continue;
            };
            let place = (fact.directory.as_deref(), fact.fs_type.as_deref());
            let (spent, times) = directories.entry(place).or_default();
            *spent += ns;
            let time = self.analysis.file_times.get(fileset);
            let time = time.copied().unwrap_or_default();
            times.opens += time.opens;
            times.opened_bytes += time.opened_bytes;
            times.read_bytes += time.read_bytes;
        }
        let mut directories: Vec<_> = directories.into_iter().collect();
        directories.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
        let largest = directories.into_iter().take(5);
        largest
            .map(|((path, filesystem), (ns, time))| {
                json!({
                    "path": path,
                    "filesystem": filesystem,
                    "seconds": seconds(ns),
                    "opens": time.opens,
                    "mean_file_bytes": time.mean_bytes().map(f64::round),
                    "bytes_read": time.read_bytes,
                })
            })
            .collect()
    }

    /// The places of a cause for a sentence: the largest ones, or all where these hold less than half of it.
    pub fn places(&self, kind: Kind) -> Vec<String> {
        if self.stands_for_others(kind) {
            return places(self.session, self.most_used(kind).into_iter());
        }
        let filesets = self.filesets(kind);
        let most = filesets.first().map_or(0.0, |(_, ns)| *ns);
        let sum = |sets: &[(u32, f64)]| -> f64 { sets.iter().map(|(_, ns)| ns).sum() };
        let large = filesets.partition_point(|(_, ns)| *ns >= 0.2 * most);
        let (largest, _) = filesets.split_at(large);
        if 2.0 * sum(largest) < sum(&filesets) {
            return places(self.session, self.sets_of_files(kind).into_iter());
        }
        places(self.session, largest.iter().map(|(fileset, _)| *fileset))
    }

    /// File sets whose files a cause is about: those that its time went to, or where not all of these are told, all on the same mounts.
    fn sets_of_files(&self, kind: Kind) -> BTreeSet<u32> {
        let told = self.filesets(kind).into_iter().map(|(fileset, _)| fileset);
        let mut told: BTreeSet<u32> = told.collect();
        let stands = self.stands_for_others(kind);
        if self.trainer.walked.coarse || stands {
            let mount = |fileset: &u32| self.session.filesets.get(fileset)?.mount_point.as_deref();
            let mounts: BTreeSet<&str> = told.iter().filter_map(mount).collect();
            // What is written there is another matter.
            let read = self.analysis.file_times.iter();
            let read = read.filter(|(_, time)| !stands || time.written_bytes <= time.read_bytes);
            let all = read.map(|(fileset, _)| fileset);
            told.extend(all.filter(|set| mount(set).is_some_and(|path| mounts.contains(path))));
        }
        told
    }

    /// How long opens of these files take: the milliseconds that one in a hundred reaches; `None` where none was timed.
    pub fn open_p99_ms(&self, kind: Kind) -> Option<f64> {
        let sets = self.sets_of_files(kind);
        let mut opens = Coarse::default();
        let timed = self.session.files.by_fileset.iter();
        timed
            .filter(|((fileset, _, op, _), _)| *op == Op::Open as u8 && sets.contains(fileset))
            .for_each(|(_, latencies)| opens.add(latencies));
        opens.quantile_ns(0.99).map(|ns| ns / 1e6)
    }

    /// Whether most of a cause's time on files went into running: what a thread runs for is put down to the set that it uses most,
    /// whichever it is.
    fn stands_for_others(&self, kind: Kind) -> bool {
        let (mut all, mut ran) = (0.0, 0.0);
        for share in self.parts(kind).filter(|share| share.detail.fileset != 0) {
            all += share.ns;
            let (way, _) = &self.trainer.walked.leaves[share.leaf as usize];
            if matches!(way.what, What::Run { .. } | What::Runnable { .. }) {
                ran += share.ns;
            }
        }
        ran * 2.0 > all
    }

    /// The sets of files that a cause is about which nearly all of the time on them goes to, by the time of each.
    fn most_used(&self, kind: Kind) -> Vec<u32> {
        let ns = |fileset: &u32| {
            let time = self.analysis.file_times.get(fileset);
            time.map_or(0, |time| time.meta_ns + time.read_ns)
        };
        let mut sets: Vec<(u32, u64)> = self
            .sets_of_files(kind)
            .into_iter()
            .map(|fileset| (fileset, ns(&fileset)))
            .collect();
        sets.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let all: u64 = sets.iter().map(|(_, ns)| ns).sum();
        let mut before = 0;
        sets.into_iter()
            .take_while(|(_, ns)| {
                let more = (before as f64) < NEARLY_ALL * all as f64 || before == 0;
                before += ns;
                more
            })
            .map(|(fileset, _)| fileset)
            .collect()
    }

    /// " (served by pid 12: cmd)" where a process outside the job served what was waited for.
    pub fn served_by(&self, kind: Kind) -> String {
        match self.outsiders(kind).first() {
            Some(((pid, command), ns)) if *ns >= 0.2 * self.trainer.ns(kind) => {
                format!(", served by process {pid} ({})", clip(command, 60))
            }
            _ => String::new(),
        }
    }

    /// Whether most of a cause's time lies behind waits for producers.
    pub fn behind_producers(&self, kind: Kind) -> bool {
        let behind: f64 = self
            .parts(kind)
            .filter(|share| share.in_stall)
            .map(|share| share.ns)
            .sum();
        behind * 2.0 >= self.trainer.ns(kind)
    }

    /// The thread that does it: who waits for a CPU behind it does not.
    pub fn doer(&self, share: &Share) -> u32 {
        match self.trainer.walked.leaves[share.leaf as usize].0.what {
            What::Runnable { by, .. } if self.session.thread(by).is_some() => by,
            _ => share.detail.tid,
        }
    }

    /// Whether producers do most of it, the trainer waiting for them or for the CPUs that they have.
    fn producers_do(&self, kind: Kind) -> bool {
        let cast = &self.trainer.cast;
        let theirs: f64 = self
            .parts(kind)
            .filter(|share| share.in_stall || cast.makes_batches(self.doer(share)))
            .map(|share| share.ns)
            .sum();
        theirs * 2.0 >= self.trainer.ns(kind)
    }

    /// Who does it: "its workers", "its loader threads" or "the trainer itself".
    pub fn who(&self, kind: Kind) -> &'static str {
        if !self.producers_do(kind) {
            "the trainer itself"
        } else if self.trainer.cast.workers.is_empty() {
            "its loader threads"
        } else {
            "its workers"
        }
    }

    /// Whether a worker runs a program of its own, that it was made for, and not the trainer's: by its file, and by the name that it had
    /// from executing it, which is all that is known of one that was gone before it could be looked at.
    pub fn is_other_program(&self, worker: u32) -> bool {
        let processes = &self.session.processes;
        let program = |pid: u32| {
            let facts = processes.get(&pid)?.seen.facts.as_ref()?;
            let file = facts.exe.as_deref()?;
            // One that was replaced since (`proc_pid_exe(5)`).
            Some(file.trim_end_matches(" (deleted)"))
        };
        let Some(trainers) = program(self.trainer.cast.trainer) else {
            return false;
        };
        let file = trainers.rsplit('/').next().unwrap_or_default();
        // A script has the name of its own file, and runs its interpreter's.
        let executed = processes.get(&worker).filter(|process| process.executed);
        program(worker).is_some_and(|own| own != trainers)
            || executed.is_some_and(|process| !may_be(&process.name, file))
    }

    /// Whether most of those that make batches are such programs.
    pub fn makers_are_programs(&self) -> bool {
        let makers = &self.trainer.cast.makers;
        let programs = makers.iter().filter(|pid| self.is_other_program(**pid));
        2 * programs.count() > makers.len()
    }

    /// CPUs of the host that nobody used; `None`: not seen.
    pub fn idle_cpus(&self) -> Option<f64> {
        let host = &self.session.host.host;
        let (first, last) = (host.first()?, host.last()?);
        let idle = last.idle_ns.saturating_sub(first.idle_ns) as f64;
        (last.at > first.at).then(|| idle / last.at.since(first.at) as f64)
    }

    /// CPUs of the host that nobody used, on average; fewer where the job, or those that make its batches, have a quota.
    pub fn free_cpus(&self) -> f64 {
        let terms = &self.trainer.terms;
        let by_job = terms.cpus - terms.cpu / self.trainer.wall.max(1.0);
        let by_host = self.idle_cpus().unwrap_or(f64::INFINITY);
        let makers = &self.trainer.cast.makers;
        let by_quota = left_by_quotas(self.facts, makers).unwrap_or(f64::INFINITY);
        by_job.min(by_host).min(by_quota).max(0.0)
    }

    /// What to do about CPUs that the job is kept from; empty when it may use all of the host's, or leaves its own idle.
    pub fn let_on_more_cpus(&self, evidence: &mut Evidence) -> String {
        let terms = &self.trainer.terms;
        let Some(pinned) = terms.pinned.filter(|_| self.free_cpus() < LEAVES_IDLE) else {
            return String::new();
        };
        evidence.insert("cpus_allowed", rounded(pinned));
        format!(
            "let the job run on more CPUs: its processes are kept to {pinned:.0} of the host's {:.0} by affinity or cpuset (taskset, numactl, what the batch system grants); or ",
            terms.host_cpus
        )
    }

    /// Operations of the job a second in sets of files where a cause's time went.
    pub fn files_per_s(&self, kind: Kind, of: fn(&FileTime) -> u64) -> f64 {
        let count: u64 = self
            .sets_of_files(kind)
            .iter()
            .filter_map(|fileset| self.analysis.file_times.get(fileset))
            .map(of)
            .sum();
        count as f64 / self.session.duration_s().max(1e-9)
    }

    /// Mean size of the opened files where a cause's time went, bytes.
    pub fn mean_file_bytes(&self, kind: Kind) -> Option<f64> {
        let (mut opens, mut bytes) = (0, 0);
        for fileset in self.sets_of_files(kind) {
            if let Some(time) = self.analysis.file_times.get(&fileset) {
                opens += time.opens;
                bytes += time.opened_bytes;
            }
        }
        (opens > 0).then(|| bytes as f64 / opens as f64)
    }
}

/// Whether a process that was given this name when it executed a program may run this file: `python3` is a link to `python3.11`.
fn may_be(name: &str, file: &str) -> bool {
    file.starts_with(name) || name.starts_with(file)
}

/// Nanoseconds as seconds with three digits after the point.
pub fn seconds(ns: f64) -> Value {
    rounded(ns / 1e9)
}

/// A number with three digits after the point.
pub fn rounded(n: f64) -> Value {
    json!((n * 1e3).round() / 1e3)
}

/// The beginning of a text.
pub fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_owned()
    } else {
        text.chars().take(most - 1).chain(['…']).collect()
    }
}
