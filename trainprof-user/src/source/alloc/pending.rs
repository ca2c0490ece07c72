//! Call sites that wait for the names of their functions.

use crate::{
    demangle::demangled,
    kernel::alloc::{StackSum, function_name},
    record::{
        Record,
        fact::{AllocFrame, AllocSiteFact},
    },
    source::places::Places,
    time::KtimeNs,
};

/// How long a site waits for names.
const PATIENCE_NS: u64 = 3_000_000_000;
/// Frames of a site whose names are looked up.
const NAMED: usize = 12;

struct Waiting {
    fact: AllocSiteFact,
    since: KtimeNs,
}

/// See the module.
#[derive(Default)]
pub struct PendingSites {
    waiting: Vec<Waiting>,
}

impl PendingSites {
    /// `pid`: whose a stack is where its process was over too soon.
    pub fn add(&mut self, window: u32, pid: u32, stacks: &[StackSum], at: KtimeNs) {
        self.waiting.extend(stacks.iter().map(|stack| {
            Waiting {
                since: at,
                fact: AllocSiteFact {
                    window,
                    pid: if stack.pid == 0 { pid } else { stack.pid },
                    function: function_name(stack.function).unwrap_or("?").to_owned(),
                    count: stack.count,
                    bytes: stack.bytes,
                    frames: stack
                        .frames
                        .iter()
                        .map(|frame| AllocFrame {
                            address: frame.address,
                            module: frame.file.as_ref().map(|(path, _)| path.clone()),
                            offset: frame.file.as_ref().map_or(0, |(_, offset)| *offset),
                            function: None,
                        })
                        .collect(),
                },
            }
        }));
    }

    /// Records the sites whose names are known, or not to be had.
    pub fn settle(&mut self, now: KtimeNs, places: &mut Places, out: &mut Vec<Record>) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let patient = now.since(waiting.since) < PATIENCE_NS;
            if name(&mut waiting.fact, places) || !patient {
                out.push(Record::AllocSite(waiting.fact));
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// Records all of them.
    pub fn finish(&mut self, places: &mut Places, out: &mut Vec<Record>) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            name(&mut waiting.fact, places);
            out.push(Record::AllocSite(waiting.fact));
        }
    }
}

/// Fills names in; whether there is nothing left to wait for.
fn name(fact: &mut AllocSiteFact, places: &mut Places) -> bool {
    let mut all = true;
    for frame in fact.frames.iter_mut().take(NAMED) {
        if frame.module.is_none() || frame.function.is_some() {
            continue;
        }
        // The call is before the address that it returns to.
        match places.function_at(fact.pid, frame.address.saturating_sub(1)) {
            Some(function) => frame.function = function.as_deref().map(demangled),
            None => all = false,
        }
    }
    all
}
