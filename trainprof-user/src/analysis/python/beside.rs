//! Functions of the job's own under which its framework never computes: no model, and it is not known what for.

use std::collections::BTreeMap;

use super::{ALWAYS, Mark, Python};
use crate::analysis::alternation::of_framework;

/// A framework that clock samples see less than this part (0–1) of a thread's time trains nothing there.
const LEAST_MODEL: f64 = 0.02;
/// A clock sample this close to a stack, ns, shows what that stack ran.
const NEAR_NS: u64 = 2_500_000;
/// Stacks and clock samples that tell what a function does, and the part of the latter that its framework may have at most.
const MIN_ASIDE: usize = 10;
const MOST_COMPUTING: f64 = 0.3;

/// What was seen of a function of the job's own.
#[derive(Default)]
struct Aside {
    samples: usize,
    /// Of these, with a framework's code called by it.
    computed: usize,
    /// Clock samples close to them, and those in a framework's libraries.
    near: usize,
    near_computing: usize,
}

impl Aside {
    fn is_no_model(&self) -> bool {
        self.samples >= MIN_ASIDE
            && self.computed == 0
            && self.near >= MIN_ASIDE
            && self.near_computing as f64 <= MOST_COMPUTING * self.near as f64
    }
}

impl Python<'_> {
    /// Stretches in which a process's main thread was in functions of the job's own under which its framework never computes, neither by
    /// stacks nor by clock samples at about the same times: what they do is no model, and it is not known what it is for. Empty as
    /// `input` is.
    pub fn beside(&self, pid: u32, least: f64) -> Vec<(u64, u64)> {
        let session = self.facts.session;
        let trains = session
            .processes
            .get(&pid)
            .and_then(|process| process.seen.frameworks.as_ref())
            .is_some_and(|loaded| loaded.trains());
        let clock = self.facts.samples(pid);
        let computes = |place: u32| of_framework(session, place);
        let seen = clock.iter().filter(|sample| computes(sample.place)).count();
        if !trains || (seen as f64) < LEAST_MODEL * clock.len() as f64 || seen == 0 {
            return Vec::new();
        }
        let running = self.running(pid);
        let mut functions = BTreeMap::<u32, Aside>::new();
        for (at, stack) in &running {
            let (Some(marks), Some(stack)) =
                (self.marks.get(stack), session.python.stacks.get(stack))
            else {
                continue;
            };
            let after = clock.partition_point(|sample| sample.at.0 < *at);
            let near = clock[after.saturating_sub(1)..]
                .iter()
                .take(2)
                .min_by_key(|sample| sample.at.0.abs_diff(*at))
                .filter(|sample| sample.at.0.abs_diff(*at) <= NEAR_NS);
            for (depth, function) in stack.iter().enumerate() {
                if !matches!(marks[depth], Mark::Own | Mark::Source) {
                    continue;
                }
                let aside = functions.entry(*function).or_default();
                aside.samples += 1;
                aside.computed += usize::from(marks[..depth].contains(&Mark::Framework));
                if let Some(sample) = near {
                    aside.near += 1;
                    aside.near_computing += usize::from(computes(sample.place));
                }
            }
        }
        let always = ALWAYS * running.len() as f64;
        functions.retain(|_, aside| aside.is_no_model() && (aside.samples as f64) <= always);
        let is_aside = |stack: u32| {
            let stack = session.python.stacks.get(&stack);
            stack.is_some_and(|stack| stack.iter().any(|f| functions.contains_key(f)))
        };
        self.stretches(pid, least, is_aside)
    }
}
