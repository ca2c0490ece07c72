//! Single events as records, with what must be looked up while it is there.

use trainprof_common::{
    event::{EXIT_OUT_OF_MEMORY, FAULT_IN_KERNEL, FAULT_WRITE_TO_SHARED},
    op::Class,
};

use super::Live;
use crate::{
    env::{clock, frameworks::FrameworkFacts, process::ProcessFacts},
    event::{self, Event},
    record::{
        Record,
        fact::{FaultFact, GpuMemoryFact, HugePages, ObjectFact, ProcessSeen, ThreadSeen},
    },
    source::{
        convert::{self, object_fact, touch_fact, wait_fact},
        newcomers::Newcomer,
        outsiders::WORTH_NAMING_NS,
        python::{Asked, Codes},
        stacks::Raw,
    },
    time::KtimeNs,
};

/// Memory of GPUs that is there for less is not asked about; how much is remembered until then, and asked about in one interval.
const KEPT_NS: u64 = 1_000_000_000;
const MAX_ASKS: usize = 4_096;
const ASKS_AT_ONCE: usize = 200;

impl Live {
    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Wait(wait) => {
                self.look_up(wait.object.fileset, wait.waker);
                let waited = wait.woken.saturating_sub(wait.from);
                self.socket(wait.tid, &object_fact(&wait.object), waited);
                if wait.to.saturating_sub(wait.woken) >= WORTH_NAMING_NS {
                    self.outsider(wait.ran_before);
                }
                self.out.push(Record::Wait(wait_fact(&wait)));
            }
            Event::Touch(touch) => {
                self.look_up(touch.object.fileset, 0);
                self.out.push(Record::Touch(touch_fact(&touch)));
            }
            Event::Fork(fork) => {
                let at = KtimeNs(fork.at);
                let name = event::name(&fork.comm);
                if fork.child_tid == fork.child_tgid {
                    if self.members.contains(&fork.child_tgid) {
                        self.forget(fork.child_tgid);
                    }
                    self.places.forked(fork.parent_tgid, fork.child_tgid);
                    self.pythons.forked(fork.parent_tgid, fork.child_tgid);
                    self.gpus.forked(fork.child_tgid, at);
                    self.newcomer(
                        fork.child_tgid,
                        Newcomer {
                            at,
                            parent: Some(fork.parent_tgid),
                            name: name.clone(),
                        },
                    );
                }
                self.thread(ThreadSeen {
                    at,
                    pid: fork.child_tgid,
                    tid: fork.child_tid,
                    parent_tid: Some(fork.parent_tid),
                    name,
                });
            }
            Event::Exec(exec) => {
                self.places.executed(exec.tgid);
                self.pythons.executed(exec.tgid);
                self.forget(exec.tgid);
                let at = KtimeNs(exec.at);
                let name = event::name(&exec.comm);
                if exec.old_tid != exec.tgid {
                    self.alive.remove(&exec.old_tid);
                    self.alive.insert(exec.tgid, exec.tgid);
                }
                self.out.push(Record::Exec {
                    at,
                    pid: exec.tgid,
                    old_tid: exec.old_tid,
                    name: name.clone(),
                });
                let parent = None;
                self.newcomer(exec.tgid, Newcomer { at, parent, name });
            }
            Event::Backward(pass) => self.out.push(convert::pass(&pass)),
            Event::Update(update) => self.out.push(convert::update(&update)),
            Event::Execution(execution) => self.out.push(convert::execution(&execution)),
            Event::GpuCall(call) => match convert::call(&call) {
                Some(record) => self.out.push(record),
                None => self.undecodable += 1,
            },
            Event::Exit(exit) => {
                self.alive.remove(&exit.tid);
                if exit.tid == exit.tgid {
                    self.probes.py_thread(exit.tid, None);
                }
                // Others of its threads may go on when the first one has ended.
                if self.newcomers.is_waiting(exit.tgid)
                    && !self.alive.values().any(|pid| *pid == exit.tgid)
                {
                    self.newcomers.ended(exit.tgid);
                }
                let at = KtimeNs(exit.at);
                self.out.push(Record::Exit {
                    at,
                    pid: exit.tgid,
                    tid: exit.tid,
                });
                if exit.flags & EXIT_OUT_OF_MEMORY != 0 {
                    self.out.push(Record::OutOfMemory { at, pid: exit.tgid });
                }
            }
            Event::Sample(sample) => {
                self.beside.samples += 1;
                self.places.add(sample, &mut self.out);
            }
            Event::Fault(fault) => self.fault(fault),
            Event::GpuMemory(memory) => self.gpu_memory(memory),
        }
    }

    /// Records what was allocated or given back, and asks for the Python that allocated it.
    fn gpu_memory(&mut self, memory: event::GpuMemory) {
        self.gpu_memories += 1;
        let number = self.gpu_memories;
        self.out.push(Record::GpuMemory(GpuMemoryFact {
            number,
            at: KtimeNs(memory.at),
            tid: memory.tid,
            pid: memory.tgid,
            address: memory.address,
            bytes: memory.bytes,
            function: memory.function,
        }));
        let place = (memory.tgid, memory.address);
        if memory.bytes == 0 || memory.codes.is_empty() {
            self.gpu_asks.remove(&place);
        } else if self.gpu_asks.len() < MAX_ASKS || self.gpu_asks.contains_key(&place) {
            let codes = Codes {
                of: Asked::GpuMemory(number),
                pid: memory.tgid,
                codes: memory.codes,
            };
            self.gpu_asks.insert(place, (memory.at, codes));
        }
    }

    /// Asks for the Python of what has been there for a while: of what is given back at once nobody wants to know.
    pub(super) fn ask_of_gpu_memory(&mut self, now: KtimeNs) {
        let old = |at: u64| at + KEPT_NS <= now.0;
        let due: Vec<(u32, u64)> = self
            .gpu_asks
            .iter()
            .filter(|(_, (at, _))| old(*at))
            .map(|(place, _)| *place)
            .take(ASKS_AT_ONCE)
            .collect();
        for place in due {
            if let Some((_, codes)) = self.gpu_asks.remove(&place) {
                self.pythons.ask(codes);
            }
        }
    }

    /// Records a sampled page fault once its stack is known.
    fn fault(&mut self, fault: event::Fault) {
        self.faults += 1;
        let (number, at) = (self.faults, KtimeNs(fault.at));
        let copied = fault.what & FAULT_WRITE_TO_SHARED != 0;
        let shown = self
            .pages
            .add(number, fault.tgid, fault.address, copied, at);
        if let Some(bytes) = shown.huge {
            let faults = vec![number];
            self.out
                .push(Record::HugePages(HugePages { bytes, faults }));
        }
        let faults = fault
            .weight
            .saturating_mul(self.probes.fault_period.unwrap_or(1))
            .saturating_mul(self.beside.faults.every());
        self.all_faults += u64::from(faults);
        let fact = FaultFact {
            number,
            at,
            tid: fault.tid,
            pid: fault.tgid,
            faults,
            kind: shown.kind,
            in_kernel: fault.what & FAULT_IN_KERNEL != 0,
            stack: 0,
        };
        if !fault.codes.is_empty() {
            self.pythons.ask(Codes {
                of: Asked::Fault(number),
                pid: fault.tgid,
                codes: fault.codes,
            });
        }
        let stack = fault.stack;
        let raw = Raw::Memory {
            ip: stack.ip,
            sp: stack.sp,
            bp: stack.bp,
            data: stack.data,
        };
        let then = Box::new(move |stack| Record::Fault(FaultFact { stack, ..fact }));
        self.stacks
            .add(&mut self.places, fault.tgid, raw, then, &mut self.out);
    }

    /// What was known of a process is not true any more: it executed another program, or another one has its id.
    fn forget(&mut self, pid: u32) {
        self.probes.py_thread(pid, None);
        self.pages.executed(pid);
        self.mapped.executed(pid);
        self.gpus.executed(pid, self.probes.calls.as_ref());
        self.allocs.executed(pid, self.probes.alloc.as_ref());
    }

    /// Describes a process that has come while we watch, by no more than its name as long as too many come.
    fn newcomer(&mut self, pid: u32, newcomer: Newcomer) {
        let Newcomer { at, parent, name } = &newcomer;
        if self.newcomers.is_looked_at(pid, *at) {
            self.process(*at, pid, *parent, Some(name.clone()));
            return;
        }
        self.memo.learn_process(pid);
        self.out.push(Record::Process(ProcessSeen {
            at: *at,
            pid,
            parent: parent.unwrap_or(0),
            name: name.clone(),
            frameworks: None,
            facts: None,
        }));
        self.newcomers.waits(pid, newcomer);
    }

    /// Describes by all that there is who was not looked at when it came, and has lived for a while.
    pub(super) fn look_at_newcomers(&mut self, now: KtimeNs) {
        for (pid, newcomer) in self.newcomers.due(now) {
            let Newcomer { at, parent, name } = newcomer;
            self.process(at, pid, parent, Some(name));
        }
    }

    pub(super) fn process(
        &mut self,
        at: KtimeNs,
        pid: u32,
        parent: Option<u32>,
        name: Option<String>,
    ) {
        self.memo.learn_process(pid);
        // One that has the id since then is another one.
        let facts = ProcessFacts::read(clock::now(), pid, &mut self.groups).ok();
        let another = facts.as_ref().is_some_and(|facts| !facts.was_there(at));
        let facts = facts.filter(|_| !another);
        // Whose parent was told here was forked; it has what its siblings have.
        let siblings = parent.and_then(|parent| self.mapped.inherited(parent, self.intervals));
        let known = siblings.is_some();
        let frameworks = siblings
            .or_else(|| FrameworkFacts::read(pid).ok())
            .filter(|_| !another);
        if !known {
            self.out.extend(self.foreign.look_at(pid));
        }
        if let (Some(parent), Some(facts), false) = (parent, &frameworks, known) {
            self.mapped.read_forked(parent, self.intervals, facts);
        }
        let trains = frameworks.as_ref().is_some_and(FrameworkFacts::trains);
        self.mapped.begun(pid, self.intervals, trains);
        self.out.push(Record::Process(ProcessSeen {
            at,
            pid,
            parent: parent.or(facts.as_ref().map(|f| f.ppid)).unwrap_or(0),
            name: name
                .or(facts.as_ref().map(|f| f.comm.clone()))
                .unwrap_or_default(),
            frameworks,
            facts,
        }));
    }

    pub(super) fn thread(&mut self, seen: ThreadSeen) {
        self.alive.insert(seen.tid, seen.pid);
        self.members.insert(seen.tid);
        self.out.push(Record::Thread(seen));
    }

    /// Describes what a fact refers to, before the fact itself.
    pub(super) fn look_up(&mut self, fileset: u32, waker: u32) {
        if self.memo.new_fileset(fileset)
            && let Some(info) = self.probes.fileset(fileset)
        {
            self.memo.describe(fileset, &info, &mut self.out);
        }
        if !self.members.contains(&waker) {
            self.outsiders.woke(waker, &mut self.out);
        }
    }

    /// Describes a thread that is not of the job.
    pub(super) fn outsider(&mut self, tid: u32) {
        if !self.members.contains(&tid) {
            self.outsiders.meet(tid, &mut self.out);
        }
    }

    /// Notes a socket that a thread of the job waited on.
    pub(super) fn socket(&mut self, tid: u32, object: &ObjectFact, waited_ns: u64) {
        if object.class == Class::Socket as u8
            && let Some(pid) = self.alive.get(&tid)
        {
            self.pressure.socket(*pid, object.id, waited_ns);
        }
    }
}
