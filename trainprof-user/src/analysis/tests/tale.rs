//! Makes records from a story. What is not told as a wait is running.

use std::collections::BTreeMap;

use trainprof_common::{
    op::{Class, Op},
    thread::{NR_FAULT, NR_PREEMPTED, WakerKind},
};

use crate::{
    env::{cgroup::CgroupFacts, process::ProcessFacts},
    record::{
        Record,
        fact::{
            CallsHidden, FilesetFact, Interval, ObjectFact, OpSum, PlaceClass, PlaceFact,
            ProcessSeen, PyFunctionFact, PyRuntimeFact, PySampleFact, PyStackFact,
            PyThreadSampleFact, SampleFact, Start, ThreadSeen, ThreadTotals, TouchFact, WaitFact,
            WaitSum, WakerFact,
        },
        gpu::{GpuCallFact, GpuCallKind, PassFact, UpdateFact},
    },
    session::Session,
    time::KtimeNs,
};

/// Kernel time at which every story begins.
const BEGIN: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

pub const FUTEX: i16 = 202;
pub const POLL: i16 = 7;
pub const READ: i16 = 0;
pub const WRITE: i16 = 1;
pub const FSYNC: i16 = 74;
pub const RECV: i16 = 45;
pub const SLEEP: i16 = 230;

/// Who ends a wait.
#[derive(Clone, Copy)]
pub enum By {
    Thread(u32),
    Sender(u32),
    Interrupt,
    Softirq,
    Nobody,
}

/// What a thread waits on.
#[derive(Clone, Copy)]
pub enum On {
    Nothing,
    /// A futex at an address.
    Futex(u64),
    Pipe(u64),
    Socket(u64),
    File(u32),
    /// A page fault on a mapped file.
    Mapped(u32),
}

/// A story in the making.
#[derive(Default)]
pub struct Tale {
    threads: Vec<ThreadSeen>,
    processes: Vec<ProcessSeen>,
    execs: Vec<(u32, String)>,
    filesets: Vec<FilesetFact>,
    waits: Vec<WaitFact>,
    summed: Vec<(u64, u64)>,
    touches: Vec<TouchFact>,
    without_calls: Vec<(u64, u64)>,
    ops: Vec<(u64, OpSum)>,
    outsiders: Vec<Record>,
    stacked: Vec<PyThreadSampleFact>,
    gpu_calls: Vec<GpuCallFact>,
    passes: Vec<PassFact>,
    updates: Vec<UpdateFact>,
    places: Vec<PlaceFact>,
    samples: Vec<SampleFact>,
    ends: Vec<Record>,
}

/// Milliseconds of a story as kernel time.
pub fn at(ms: f64) -> u64 {
    BEGIN + (ms * MS as f64) as u64
}

impl Tale {
    /// A process with its main thread.
    pub fn process(&mut self, pid: u32, parent: u32) -> &mut Self {
        self.processes.push(ProcessSeen {
            at: KtimeNs(BEGIN),
            pid,
            parent,
            name: format!("p{pid}"),
            facts: None,
            frameworks: None,
        });
        self.thread(pid, pid)
    }

    /// The program that a process runs.
    pub fn program(&mut self, pid: u32, exe: &str) -> &mut Self {
        let facts = self.facts(pid);
        (facts.exe, facts.command) = (Some(exe.into()), vec![exe.to_owned()]);
        self
    }

    /// The control group that a process is in, of version 2.
    pub fn cgroup(&mut self, pid: u32, path: &str) -> &mut Self {
        self.facts(pid).cgroup = Some(CgroupFacts {
            path_v2: Some(path.to_owned()),
            ..CgroupFacts::default()
        });
        self
    }

    fn facts(&mut self, pid: u32) -> &mut ProcessFacts {
        let process = self.processes.iter_mut().find(|seen| seen.pid == pid);
        process.expect("a process").facts.get_or_insert_with(|| {
            let facts = serde_json::json!({
                "pid": pid, "start_time_ticks": 1, "ppid": 1, "uid": 0, "comm": "c", "command": [], "exe": null,
                "cwd": null, "started_unix": null, "threads": 1, "nspid": null, "cgroup": null
            });
            serde_json::from_value(facts).expect("facts of a process")
        })
    }

    /// A process executes a program of this name, of which nothing else is known: it is gone before it could be looked at.
    pub fn executed(&mut self, pid: u32, name: &str) -> &mut Self {
        self.execs.push((pid, name.to_owned()));
        self
    }

    /// A library that a process has loaded.
    pub fn library(&mut self, pid: u32, name: &str) -> &mut Self {
        for process in self.processes.iter_mut().filter(|seen| seen.pid == pid) {
            let facts = process.frameworks.get_or_insert_with(Default::default);
            facts.libraries.push((name.to_owned(), None));
        }
        self
    }

    pub fn thread(&mut self, pid: u32, tid: u32) -> &mut Self {
        self.threads.push(ThreadSeen {
            at: KtimeNs(BEGIN),
            pid,
            tid,
            parent_tid: None,
            name: format!("t{tid}"),
        });
        self
    }

    /// A process that was there before the watch, and is followed from then on.
    pub fn found(&mut self, process: u32, when: f64) -> &mut Self {
        let of = |pid: u32| pid == process;
        for seen in self.processes.iter_mut().filter(|seen| of(seen.pid)) {
            seen.at = KtimeNs(at(when));
        }
        for seen in self.threads.iter_mut().filter(|seen| of(seen.pid)) {
            seen.at = KtimeNs(at(when));
        }
        self
    }

    /// A process and its threads that were made and ended while the watch went on.
    pub fn lived(&mut self, process: u32, from: f64, to: f64) -> &mut Self {
        let of = |pid: u32| pid == process;
        for seen in self.processes.iter_mut().filter(|seen| of(seen.pid)) {
            seen.at = KtimeNs(at(from));
        }
        for seen in self.threads.iter_mut().filter(|seen| of(seen.pid)) {
            seen.at = KtimeNs(at(from));
            seen.parent_tid = Some(process);
            self.ends.push(Record::Exit {
                at: KtimeNs(at(to)),
                pid: seen.pid,
                tid: seen.tid,
            });
        }
        self
    }

    /// A thread that was made and ended while the watch went on.
    pub fn thread_lived(&mut self, tid: u32, from: f64, to: f64) -> &mut Self {
        for seen in self.threads.iter_mut().filter(|seen| seen.tid == tid) {
            seen.at = KtimeNs(at(from));
            seen.parent_tid = Some(seen.pid);
            self.ends.push(Record::Exit {
                at: KtimeNs(at(to)),
                pid: seen.pid,
                tid,
            });
        }
        self
    }

    pub fn fileset(&mut self, number: u32, directory: &str, fs_type: &str) -> &mut Self {
        self.filesets.push(FilesetFact {
            number,
            directory: Some(directory.to_owned()),
            extension: None,
            from_text: false,
            mount_point: Some(directory.to_owned()),
            fs_type: Some(fs_type.to_owned()),
        });
        self
    }

    pub fn outsider(&mut self, tid: u32, name: &str) -> &mut Self {
        self.outsiders.push(Record::Outsider {
            tid,
            pid: Some(tid),
            name: Some(name.to_owned()),
        });
        self
    }

    /// CPUs that a process may use.
    pub fn allowed(&mut self, pid: u32, cpus: &str) -> &mut Self {
        let cpus = cpus.to_owned();
        self.outsiders.push(Record::Affinity { pid, cpus });
        self
    }

    /// Where the state of a process's interpreter lies.
    pub fn interpreter(&mut self, pid: u32, address: u64, bytes: u64) -> &mut Self {
        let fact = PyRuntimeFact {
            pid,
            address,
            bytes,
        };
        self.outsiders.push(Record::PyRuntime(fact));
        self
    }

    /// A function of Python code.
    pub fn function(&mut self, number: u32, file: &str, name: &str) -> &mut Self {
        self.code(number, file, name, false)
    }

    /// A generator.
    pub fn generator(&mut self, number: u32, file: &str, name: &str) -> &mut Self {
        self.code(number, file, name, true)
    }

    fn code(&mut self, number: u32, file: &str, name: &str, generator: bool) -> &mut Self {
        self.outsiders.push(Record::PyFunction(PyFunctionFact {
            number,
            file: file.to_owned(),
            name: name.to_owned(),
            line: 1,
            generator,
        }));
        self
    }

    /// A stack of them, the innermost first, and times at which a thread, such as a process's main one, was there.
    pub fn stack(
        &mut self,
        number: u32,
        functions: &[u32],
        tid: u32,
        times: impl Iterator<Item = f64>,
    ) -> &mut Self {
        self.outsiders.push(Record::PyStack(PyStackFact {
            number,
            functions: functions.to_vec(),
        }));
        self.stacked.extend(times.map(|when| PyThreadSampleFact {
            at: KtimeNs(at(when)),
            tid,
            stack: number,
        }));
        self
    }

    /// Waits that begin between these times are told by the sums of their interval alone.
    pub fn summed(&mut self, from: f64, to: f64) -> &mut Self {
        self.summed.push((at(from), at(to)));
        self
    }

    /// A wait from one time to another.
    pub fn wait(&mut self, tid: u32, from: f64, to: f64, nr: i16, on: On, by: By) -> &mut Self {
        self.wait_and_queue(tid, from, to, to, nr, on, by, 0)
    }

    /// Put off the CPU by another thread.
    pub fn preempted(&mut self, tid: u32, from: f64, to: f64, by: u32) -> &mut Self {
        self.wait_and_queue(
            tid,
            from,
            from,
            to,
            NR_PREEMPTED,
            On::Nothing,
            By::Nobody,
            by,
        )
    }

    #[expect(clippy::too_many_arguments, reason = "one wait")]
    fn wait_and_queue(
        &mut self,
        tid: u32,
        from: f64,
        woken: f64,
        to: f64,
        nr: i16,
        on: On,
        by: By,
        ran_before: u32,
    ) -> &mut Self {
        let (kind, waker) = match by {
            By::Thread(tid) => (WakerKind::Thread, tid),
            By::Sender(tid) => (WakerKind::Sender, tid),
            By::Interrupt => (WakerKind::Interrupt, 0),
            By::Softirq => (WakerKind::Softirq, 0),
            By::Nobody => (WakerKind::Unknown, 0),
        };
        let object = |class: Class, id: u64, fileset: u32| ObjectFact {
            id,
            fileset,
            class: class as u8,
        };
        let (nr, object) = match on {
            On::Nothing => (nr, object(Class::Unknown, 0, 0)),
            On::Futex(address) => (nr, object(Class::Unknown, address, 0)),
            On::Pipe(inode) => (nr, object(Class::Pipe, inode, 0)),
            On::Socket(inode) => (nr, object(Class::Socket, inode, 0)),
            On::File(fileset) => (nr, object(Class::File, 9, fileset)),
            On::Mapped(fileset) => (NR_FAULT, object(Class::File, 9, fileset)),
        };
        self.waits.push(WaitFact {
            tid,
            from: KtimeNs(at(from)),
            wait_ns: at(woken) - at(from),
            runnable_ns: at(to) - at(woken),
            ran_before,
            nr,
            object,
            waker: WakerFact {
                kind: kind as u8,
                tid: waker,
            },
            iowait: false,
        });
        self
    }

    /// A noted system call.
    pub fn touch(
        &mut self,
        tid: u32,
        when: f64,
        op: Op,
        class: Class,
        id: u64,
        bytes: u64,
    ) -> &mut Self {
        self.touches.push(TouchFact {
            tid,
            at: KtimeNs(at(when)),
            op: op as u8,
            object: ObjectFact {
                id,
                fileset: 0,
                class: class as u8,
            },
            bytes,
            skipped: 0,
        });
        self
    }

    /// Nobody's calls were counted between these times.
    pub fn without_calls(&mut self, from: f64, to: f64) -> &mut Self {
        self.without_calls.push((at(from), at(to)));
        self
    }

    /// A synchronising call into the GPU's runtime.
    pub fn synchronise(&mut self, tid: u32, from: f64, to: f64) -> &mut Self {
        self.gpu_call(tid, from, to, GpuCallKind::Synchronise, 0)
    }

    pub fn gpu_call(
        &mut self,
        tid: u32,
        from: f64,
        to: f64,
        kind: GpuCallKind,
        bytes: u64,
    ) -> &mut Self {
        self.gpu_calls.push(GpuCallFact {
            tid,
            from: KtimeNs(at(from)),
            ns: at(to) - at(from),
            kind,
            bytes,
            function: 0,
        });
        self
    }

    /// A backward pass of the thread begins.
    pub fn backward(&mut self, tid: u32, ms: f64) -> &mut Self {
        self.backward_from(tid, ms, 0)
    }

    /// The same, by calls that this number tells from others.
    pub fn backward_from(&mut self, tid: u32, ms: f64, path: u64) -> &mut Self {
        self.passes.push(PassFact {
            at: KtimeNs(at(ms)),
            tid,
            sp: 0x7fff_0000,
            path,
        });
        self
    }

    /// An optimiser updates the model.
    pub fn updated(&mut self, tid: u32, ms: f64) -> &mut Self {
        self.updates.push(UpdateFact {
            at: KtimeNs(at(ms)),
            tid,
        });
        self
    }

    /// Passes before that time were not seen.
    pub fn passes_from(&mut self, ms: f64) -> &mut Self {
        self.passes.retain(|pass| pass.at.0 >= at(ms));
        self
    }

    /// Something that clock samples hit.
    pub fn place(&mut self, number: u32, module: &str, class: PlaceClass) -> &mut Self {
        self.places.push(PlaceFact {
            number,
            module: Some(module.to_owned()),
            function: None,
            class,
        });
        self
    }

    /// The same, in this function.
    pub fn place_in(
        &mut self,
        number: u32,
        module: &str,
        function: &str,
        class: PlaceClass,
    ) -> &mut Self {
        self.place(number, module, class);
        if let Some(place) = self.places.last_mut() {
            place.function = Some(function.to_owned());
        }
        self
    }

    /// Code in no file: compiled when the program ran.
    pub fn compiled(&mut self, number: u32) -> &mut Self {
        self.places.push(PlaceFact {
            number,
            module: None,
            function: None,
            class: PlaceClass::Other,
        });
        self
    }

    /// A clock sample in user code.
    pub fn sample(&mut self, tid: u32, when: f64, place: u32) -> &mut Self {
        self.samples.push(SampleFact {
            tid,
            at: KtimeNs(at(when)),
            place,
            nr: NR_PREEMPTED,
        });
        self
    }

    /// A clock sample inside a system call.
    pub fn sample_in(&mut self, tid: u32, when: f64, place: u32, call: i16) -> &mut Self {
        self.samples.push(SampleFact {
            tid,
            at: KtimeNs(at(when)),
            place,
            nr: call,
        });
        self
    }

    /// Counted operations.
    #[expect(clippy::too_many_arguments, reason = "one row")]
    pub fn ops(
        &mut self,
        tid: u32,
        when: f64,
        op: Op,
        class: Class,
        fileset: u32,
        count: u64,
        bytes: u64,
        ms: f64,
    ) -> &mut Self {
        self.ops.push((
            at(when),
            OpSum {
                tid,
                fileset,
                dev: 1,
                op: op as u8,
                class: class as u8,
                count,
                errors: 0,
                bytes,
                ns: (ms * MS as f64) as u64,
            },
        ));
        self
    }

    /// The session of a watch that lasted so many milliseconds.
    pub fn session(&self, length_ms: f64) -> Session {
        let mut session = Session::default();
        for record in self.records(length_ms) {
            session.apply(&record);
        }
        session
    }

    /// When a thread ended, if it did.
    fn end_of(&self, thread: u32) -> u64 {
        let ends = self.ends.iter().filter_map(|end| match end {
            Record::Exit { at, tid, .. } if *tid == thread => Some(at.0),
            _ => None,
        });
        ends.min().unwrap_or(u64::MAX)
    }

    fn is_without_calls(&self, when: u64) -> bool {
        let mut ranges = self.without_calls.iter();
        ranges.any(|(from, to)| (*from..*to).contains(&when))
    }

    fn records(&self, length_ms: f64) -> Vec<Record> {
        let mut out = vec![Record::Start(Start {
            at: KtimeNs(BEGIN),
            anchor: crate::time::Anchor {
                ktime: KtimeNs(BEGIN),
                unix_ns: 0,
                uncertainty_ns: 0,
            },
            host: crate::env::host::HostFacts {
                cpus_online: 4,
                ..host()
            },
            targets: vec![self.processes[0].pid],
            event_min_ns: 50_000,
            attach_ns: 0,
        })];
        out.extend(self.outsiders.clone());
        let mut stacked = self.stacked.clone();
        stacked.sort_by_key(|sample| sample.at);
        out.extend(stacked.into_iter().map(|sample| {
            let PyThreadSampleFact { at, tid, stack } = sample;
            match self.processes.iter().any(|process| process.pid == tid) {
                true => Record::PySample(PySampleFact {
                    at,
                    pid: tid,
                    stack,
                }),
                false => Record::PyThreadSample(sample),
            }
        }));
        out.extend(self.gpu_calls.iter().cloned().map(Record::GpuCall));
        out.extend(self.passes.iter().copied().map(Record::Pass));
        out.extend(self.updates.iter().copied().map(Record::Update));
        out.extend(self.processes.iter().cloned().map(Record::Process));
        out.extend(self.threads.iter().cloned().map(Record::Thread));
        let execs = self.execs.iter().cloned();
        out.extend(execs.map(|(pid, name)| Record::Exec {
            at: KtimeNs(BEGIN),
            pid,
            old_tid: pid,
            name,
        }));
        out.extend(self.filesets.iter().cloned().map(Record::Fileset));
        out.extend(self.places.iter().cloned().map(Record::Place));
        let mut waits = self.waits.clone();
        waits.sort_by_key(|w| w.from.0 + w.wait_ns + w.runnable_ns);
        let mut totals = BTreeMap::<u32, ThreadTotals>::new();
        let end = at(length_ms);
        let mut from = BEGIN;
        while from < end {
            let to = (from + 1000 * MS).min(end);
            let ends_here = |w: &&WaitFact| {
                let done = w.from.0 + w.wait_ns + w.runnable_ns;
                done > from && done <= to
            };
            let here: Vec<WaitFact> = waits.iter().filter(ends_here).copied().collect();
            let summed = |w: &&WaitFact| {
                let mut ranges = self.summed.iter();
                ranges.any(|(from, to)| (*from..*to).contains(&w.from.0))
            };
            out.extend(
                here.iter()
                    .filter(|w| !summed(w))
                    .copied()
                    .map(Record::Wait),
            );
            out.extend(
                self.touches
                    .iter()
                    .filter(|t| t.at.0 >= from && t.at.0 < to)
                    .filter(|t| !self.is_without_calls(t.at.0))
                    .copied()
                    .map(Record::Touch),
            );
            for (since, until) in &self.without_calls {
                let (since, until) = (from.max(*since), to.min(*until));
                if since < until {
                    out.push(Record::CallsHidden(CallsHidden {
                        from: KtimeNs(since),
                        to: KtimeNs(until),
                        counted: None,
                        slowed: 0.0,
                    }));
                }
            }
            out.extend(
                self.samples
                    .iter()
                    .filter(|s| s.at.0 >= from && s.at.0 < to)
                    .copied()
                    .map(Record::Sample),
            );
            for thread in &self.threads {
                let total = totals.entry(thread.tid).or_insert(ThreadTotals {
                    tid: thread.tid,
                    ..ThreadTotals::default()
                });
                let off: u64 = waits
                    .iter()
                    .filter(|w| w.tid == thread.tid)
                    .map(|w| {
                        let done = w.from.0 + w.wait_ns + w.runnable_ns;
                        done.min(to).saturating_sub(w.from.0.max(from))
                    })
                    .sum();
                let there = to
                    .min(self.end_of(thread.tid))
                    .saturating_sub(from.max(thread.at.0));
                total.run_ns += there.saturating_sub(off);
                for wait in here
                    .iter()
                    .filter(|w| w.tid == thread.tid && w.nr == NR_PREEMPTED)
                {
                    total.preemptions += 1;
                    total.preempted_ns += wait.runnable_ns;
                }
            }
            out.push(Record::Interval(Interval {
                from: KtimeNs(from),
                to: KtimeNs(to),
                waits: sums(&here),
                ops: self
                    .ops
                    .iter()
                    .filter(|(when, _)| *when >= from && *when < to)
                    .map(|(_, op)| *op)
                    .collect(),
                running: totals.values().copied().collect(),
                events: here.len() as u64,
                ..Interval::default()
            }));
            from = to;
        }
        out.extend(self.ends.clone());
        out
    }
}

fn sums(waits: &[WaitFact]) -> Vec<WaitSum> {
    let mut out = BTreeMap::new();
    for w in waits.iter().filter(|w| w.nr != NR_PREEMPTED) {
        let id = crate::session::WaitId::of_single(w);
        let sum = out.entry((w.tid, id)).or_insert(WaitSum {
            tid: w.tid,
            nr: w.nr,
            object: id.object,
            waker: w.waker,
            count: 0,
            wait_ns: 0,
            runnable_ns: 0,
            iowait_ns: 0,
            max_ns: 0,
        });
        sum.count += 1;
        sum.wait_ns += w.wait_ns;
        sum.runnable_ns += w.runnable_ns;
        sum.max_ns = sum.max_ns.max(w.wait_ns);
    }
    out.into_values().collect()
}

fn host() -> crate::env::host::HostFacts {
    serde_json::from_value(serde_json::json!({
        "kernel_release": "6.18", "architecture": "x86_64", "hostname": null, "cpu_model": null,
        "cpus_online": 4, "memory_bytes": 1u64 << 34, "virtualisation": null, "clocksource": null,
        "lockdown": null, "boot_id": null, "trainprof_version": "0.1.0"
    }))
    .expect("facts of a host")
}
