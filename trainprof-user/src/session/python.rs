//! Sampled stacks of Python programs.

use std::collections::BTreeMap;

use crate::{
    record::{
        Record,
        fact::{ObjectFact, PyFunctionFact, PyRuntimeFact},
    },
    time::KtimeNs,
};

/// Samples of one thread that are kept, 16 bytes each; when more come, the older half goes.
const MAX_SAMPLES: usize = 20_000;

/// What was recorded of Python programs.
#[derive(Default)]
pub struct PythonSeen {
    pub functions: BTreeMap<u32, PyFunctionFact>,
    /// Numbers of functions, the innermost first, by the stack's number.
    pub stacks: BTreeMap<u32, Vec<u32>>,
    /// By thread, a process's main one having its number: time in nanoseconds and number of the stack, in the order in which they came.
    pub samples: BTreeMap<u32, Vec<(u64, u32)>>,
    /// Of each process that runs an interpreter.
    runtimes: BTreeMap<u32, PyRuntimeFact>,
}

impl PythonSeen {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::PyFunction(function) => {
                self.functions.insert(function.number, function.clone());
            }
            Record::PyStack(stack) => {
                self.stacks.insert(stack.number, stack.functions.clone());
            }
            Record::PySample(sample) => self.sample(sample.pid, sample.at, sample.stack),
            Record::PyThreadSample(sample) => self.sample(sample.tid, sample.at, sample.stack),
            Record::PyRuntime(runtime) => {
                self.runtimes.insert(runtime.pid, *runtime);
            }
            _ => {}
        }
    }

    fn sample(&mut self, tid: u32, at: KtimeNs, stack: u32) {
        let kept = self.samples.entry(tid).or_default();
        if kept.len() >= MAX_SAMPLES {
            kept.drain(..MAX_SAMPLES / 2);
        }
        kept.push((at.0, stack));
    }

    /// The address that stands for the lock of a process's interpreter (GIL), where it is known.
    pub fn lock_of(&self, pid: u32) -> Option<u64> {
        self.runtimes.get(&pid).map(|runtime| runtime.address)
    }

    /// The same, if that lock is what a thread of the process waits on: a mutex and condition variables inside the
    /// interpreter's global state, where nothing else is waited for long.
    pub fn lock(&self, pid: u32, object: &ObjectFact) -> Option<u64> {
        let runtime = self.runtimes.get(&pid)?;
        let inside = object.id.wrapping_sub(runtime.address) < runtime.bytes;
        (object.class == 0 && object.id != 0 && inside).then_some(runtime.address)
    }

    /// Forgets samples of stretches of time that history forgot. `spans` are in order; what came after the last is kept.
    pub(super) fn retain(&mut self, spans: &[(KtimeNs, KtimeNs)]) {
        let end = spans.last().map_or(0, |(_, to)| to.0);
        self.samples.retain(|_, samples| {
            samples.retain(|(at, _)| {
                let begun = spans.partition_point(|(from, _)| from.0 <= *at);
                let within = |(_, to): &(KtimeNs, KtimeNs)| *at <= to.0;
                *at > end
                    || begun
                        .checked_sub(1)
                        .is_some_and(|last| within(&spans[last]))
            });
            !samples.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fact::{PySampleFact, PyStackFact};

    fn seen(times: impl Iterator<Item = u64>) -> PythonSeen {
        let mut seen = PythonSeen::default();
        for at in times {
            seen.apply(&Record::PySample(PySampleFact {
                at: KtimeNs(at),
                pid: 7,
                stack: 1,
            }));
        }
        seen
    }

    fn times(seen: &PythonSeen) -> Vec<u64> {
        let samples = seen.samples.get(&7);
        samples.map_or(vec![], |s| s.iter().map(|(at, _)| *at).collect())
    }

    #[test]
    fn what_is_recorded_is_kept_by_number() {
        let mut seen = PythonSeen::default();
        let function = PyFunctionFact {
            number: 3,
            file: "train.py".into(),
            name: "main".into(),
            line: 12,
            generator: false,
        };
        seen.apply(&Record::PyFunction(function.clone()));
        seen.apply(&Record::PyStack(PyStackFact {
            number: 1,
            functions: vec![3, 3],
        }));
        assert_eq!(seen.functions[&3], function);
        assert_eq!(seen.stacks[&1], [3, 3]);
    }

    #[test]
    fn the_older_half_goes_when_there_are_too_many() {
        let many = MAX_SAMPLES as u64 + 1;
        let kept = times(&seen(0..many));
        assert_eq!(kept.len(), MAX_SAMPLES / 2 + 1);
        assert_eq!(kept.last(), Some(&(many - 1)));
        assert!(kept.is_sorted());
    }

    #[test]
    fn samples_go_with_the_history_around_them() {
        let spans = [(10, 20), (30, 40)].map(|(from, to)| (KtimeNs(from), KtimeNs(to)));
        let mut seen = seen([5, 10, 20, 25, 35, 45].into_iter());
        seen.retain(&spans);
        assert_eq!(times(&seen), [10, 20, 35, 45]);
        let mut early = self::seen([1, 2].into_iter());
        early.retain(&spans);
        assert!(early.samples.is_empty());
    }
}
