//! Sampled page faults, the stacks that led to them, and what became of the pages.

use std::collections::BTreeMap;

use crate::{
    record::{
        Record,
        fact::{FaultFact, FaultSamplingFact, FrameFact, PageKind, StackFact},
    },
    time::KtimeNs,
};

/// Faults that are kept one by one; when more come, every second one goes and the others count twice.
const MAX_FAULTS: usize = 65_536;

/// No fault takes longer than so many nanoseconds that no clock sample shows.
const MAX_EDGE_NS: f64 = 10_000.0;

/// A sampled fault.
#[derive(Clone, Copy, Debug)]
pub struct SeenFault {
    pub fact: FaultFact,
    /// Faults that it stands for, of those that are kept here.
    pub faults: f64,
    /// Bytes of the huge page that each of these brought in; `None`: an ordinary page, as far as is known.
    pub huge: Option<u64>,
    /// Number of the stack of Python's functions that led to it; `None`: not known, or not Python.
    pub python: Option<u32>,
    /// When its page was first seen to be gone.
    pub gone: Option<KtimeNs>,
}

impl SeenFault {
    /// Bytes that these faults brought in, where an ordinary page has so many.
    pub fn bytes(&self, page: f64) -> f64 {
        self.faults * self.huge.map_or(page, |huge| huge as f64)
    }
}

/// See the module.
#[derive(Default)]
pub struct MemorySeen {
    pub sampling: Option<FaultSamplingFact>,
    /// Nanoseconds of a fault that clock samples show as the code that faulted; 0: not known, or faults were few.
    pub edge_ns: f64,
    pub frames: BTreeMap<u32, FrameFact>,
    pub stacks: BTreeMap<u32, StackFact>,
    /// By number.
    pub faults: BTreeMap<u32, SeenFault>,
    /// Samples, and the faults that they stand for, by process and kind.
    pub kinds: BTreeMap<(u32, PageKind), (u64, u64)>,
    /// Pages that were gone, the bytes of those that are huge, and stacks of Python, before their fault was recorded: faults wait for
    /// their stacks.
    early: BTreeMap<u32, KtimeNs>,
    early_huge: BTreeMap<u32, u64>,
    early_python: BTreeMap<u32, u32>,
    /// How often the faults were halved.
    halved: u32,
}

impl MemorySeen {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::FaultSampling(sampling) => self.sampling = Some(*sampling),
            Record::FaultEdge { ns } if ns.is_finite() => self.edge_ns = ns.clamp(0.0, MAX_EDGE_NS),
            Record::Frame(frame) => {
                self.frames.insert(frame.number, frame.clone());
            }
            Record::Stack(stack) => {
                self.stacks.insert(stack.number, stack.clone());
            }
            Record::Fault(fault) => self.fault(*fault),
            Record::PagesGone(pages) => {
                for number in &pages.faults {
                    match self.faults.get_mut(number) {
                        Some(fault) => {
                            fault.gone.get_or_insert(pages.at);
                        }
                        None if self.early.len() < MAX_FAULTS => {
                            self.early.insert(*number, pages.at);
                        }
                        None => {}
                    }
                }
            }
            Record::HugePages(pages) => {
                for number in &pages.faults {
                    match self.faults.get_mut(number) {
                        Some(fault) => fault.huge = Some(pages.bytes),
                        None if self.early_huge.len() < MAX_FAULTS => {
                            self.early_huge.insert(*number, pages.bytes);
                        }
                        None => {}
                    }
                }
            }
            Record::PyFault(python) => match self.faults.get_mut(&python.fault) {
                Some(fault) => fault.python = Some(python.stack),
                None if self.early_python.len() < MAX_FAULTS => {
                    self.early_python.insert(python.fault, python.stack);
                }
                None => {}
            },
            _ => {}
        }
    }

    fn fault(&mut self, fact: FaultFact) {
        let sum = self.kinds.entry((fact.pid, fact.kind)).or_default();
        sum.0 += 1;
        sum.1 += u64::from(fact.faults);
        let gone = self.early.remove(&fact.number);
        let huge = self.early_huge.remove(&fact.number);
        let python = self.early_python.remove(&fact.number);
        if !u64::from(fact.number).is_multiple_of(1 << self.halved.min(63)) {
            return;
        }
        let times = f64::from(1_u32 << self.halved.min(31));
        self.faults.insert(
            fact.number,
            SeenFault {
                fact,
                faults: f64::from(fact.faults) * times,
                huge,
                python,
                gone,
            },
        );
        if self.faults.len() > MAX_FAULTS {
            self.halved += 1;
            let every = 1 << self.halved.min(63);
            self.faults
                .retain(|number, _| u64::from(*number).is_multiple_of(every));
            for fault in self.faults.values_mut() {
                fault.faults *= 2.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fact::{HugePages, PagesGone, PyFaultFact};

    fn fault(number: u32) -> Record {
        Record::Fault(FaultFact {
            number,
            at: KtimeNs(u64::from(number)),
            tid: 1,
            pid: 1,
            faults: 17,
            kind: PageKind::Anonymous,
            in_kernel: false,
            stack: 0,
        })
    }

    #[test]
    fn a_page_that_was_gone_before_its_fault_was_recorded_is_gone() {
        let mut seen = MemorySeen::default();
        seen.apply(&fault(1));
        seen.apply(&Record::PagesGone(PagesGone {
            at: KtimeNs(9),
            faults: vec![1, 2],
        }));
        seen.apply(&fault(2));
        seen.apply(&fault(3));
        let gone: Vec<_> = seen.faults.values().map(|f| f.gone.is_some()).collect();
        assert_eq!(gone, [true, true, false]);
    }

    #[test]
    fn a_fault_brings_in_a_huge_page_whether_that_is_told_before_it_or_after() {
        let mut seen = MemorySeen::default();
        seen.apply(&fault(1));
        seen.apply(&Record::HugePages(HugePages {
            bytes: 1 << 21,
            faults: vec![1, 3],
        }));
        seen.apply(&fault(2));
        seen.apply(&fault(3));
        let bytes: Vec<f64> = seen.faults.values().map(|f| f.bytes(4096.0)).collect();
        let huge = f64::from(17 << 21);
        assert_eq!(bytes, [huge, 17.0 * 4096.0, huge]);
    }

    #[test]
    fn a_faults_functions_may_be_told_before_it_or_after() {
        let mut seen = MemorySeen::default();
        let told = |fault, stack| Record::PyFault(PyFaultFact { fault, stack });
        seen.apply(&fault(1));
        seen.apply(&told(1, 7));
        seen.apply(&told(2, 8));
        seen.apply(&fault(2));
        seen.apply(&fault(3));
        let stacks: Vec<_> = seen.faults.values().map(|f| f.python).collect();
        assert_eq!(stacks, [Some(7), Some(8), None]);
    }

    #[test]
    fn many_faults_are_thinned_and_their_sum_stays() {
        let mut seen = MemorySeen::default();
        let count = 3 * MAX_FAULTS as u32;
        for number in 1..=count {
            seen.apply(&fault(number));
        }
        assert!(seen.faults.len() <= MAX_FAULTS);
        let sum: f64 = seen.faults.values().map(|f| f.faults).sum();
        let all = 17.0 * f64::from(count);
        assert!((sum / all - 1.0).abs() < 0.01, "{sum} {all}");
        assert_eq!(
            seen.kinds[&(1, PageKind::Anonymous)],
            (u64::from(count), 17 * u64::from(count))
        );
    }
}
